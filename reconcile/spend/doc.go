// Package spend decides, from plain values, which transactions a store selects: readiness and total order, finality,
// non-final replacement, and the two passes of selection (BRC-192 s10.2 to s10.4), one component of the graph at a time. It
// does no I/O, reads no clock, starts no goroutine, and knows nothing of scripts, proofs, sources or stores.
//
//	received facts -> Advance -> readyAt, depth        (monotone: assigned once; Retract when support is taken away)
//	current view   -> Cover   -> forced transactions   (included, and the ancestors of what is)
//	what changed   -> Expand  -> components            -> Select -> status of each, replacements
//
// Positions are places in the store's one journal: each receive and each change of view takes one, before anything is
// verified. They are the only time there is. When a worker finished is not a value of this package.
//
// # Component
//
// Included transactions and their ancestors are selected whatever their neighbours do, so that nothing can be decided
// through them: components end there, and at roots of local trust. The frontiers that a component is replayed over are the
// readyAt of its members and the positions at which the finality of one changes; at any other position of the journal
// nothing in it can change. So the work of one change follows the size of its component and not that of the history. The
// published rule, which replays everything over every position, gives the same states (tests of G1), except that its
// barrier goes on through an included transaction and this one does not.
//
// # Order
//
// The total order is (readyAt, depth, firstRaw position, firstRaw index, txid). At each frontier, and again when today's
// choice is rebuilt, the least transaction whose parents have been decided is taken: ancestors come before descendants
// also where a proof made a child ready before its parent was known.
//
// # Invariants
//
//	G1  Select is a function of the component alone: the order of members, of border and of views that change nothing
//	    does not matter, nor when a result became known. Component by component it gives what the whole history gives.
//	G2  A version that was replaced is never selected again, whatever view comes.
//	G3  The selection is closed: each selected transaction has every parent trusted, included, or selected and final
//	    today, and no output is consumed by two selected ones.
//	G4  Included transactions and their ancestors keep their inputs against everything.
//	G5  When the current view contradicts itself (two included transactions with one input, or an included one with an invalid
//	    ancestor) nothing of the component is selected, by txid or otherwise: it waits.
//	G6  What is not ready reserves nothing and holds nothing back.
//	G7  What is ready and not decided holds back its whole component and no other.
//	G8  Eligibility is noted before reservations are looked at; without nonFinal, one that is not final is not eligible.
//	G9  Readiness that is assigned does not change while its support stands; neither a later proof nor a reorganisation
//	    moves it, and assigned at a position it is never earlier than what it needs.
//
// # Decisions where the sources leave room
//
// Forced is the ancestor closure of included transactions through every known raw transaction, not through verified ones
// only: a block that holds the child holds the parent. A forced transaction must itself be carried by a verified group.
//
// A proof stands for the ancestors of a transaction and not for the group that brought it: an anchored transaction, too, is
// ready only when a group that carries it is complete, and never before that group's own position. Once every group that
// could settle it waits for a member that is limited or unresolved it holds no barrier (Node.Stuck). Otherwise one group
// of an honest transaction and something that nobody can resolve would hold a component for ever.
//
// Limited candidates do not hold a barrier: the budget's decision is recorded as their state, and what they would spend is
// for the caller to show as not known.
//
// EligibleAt is that of the history. A transaction that no frontier admitted, and that today's rebuild selects because the
// historical winner is gone, is ordered after all that were, and its outcome says Eligible false.
//
// # Concurrency
//
// Functions keep no state. Arguments are read and never changed; results are the caller's, apart from slices of inputs.
package spend
