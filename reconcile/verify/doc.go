// Package verify checks evidence: whose transaction it is, whether its scripts
// unlock what it spends, and whether its Merkle paths end in headers of the
// locally selected chain.
//
//	port.go      View, ChainView: what is asked of a chain of headers
//	headers.go   a tree of headers in memory
//	file.go      a file of 80-byte headers, watched
//	tracker.go   go-sdk's chain tracker as a ChainView
//	plan.go      what a BEEF holds for one target: pure, no scripts
//	check.go     one candidate: scripts, values, what the observation says
//	pool.go      workers that take a store's jobs, fairly over its sources
//
// verifytest makes chains, transactions and BEEF for tests.
//
// # Two steps
//
// [Plan] runs while a batch is received. It hashes and parses, within budgets,
// and asks the view in force about placements; what it finds is recorded with the
// batch. [Verifier.Check] runs later, in any order, and executes scripts. Their
// outcome depends on the transaction alone, so it is remembered by txid: the same
// job under another view costs a look-up.
//
// # Order of checks
//
// A fault of the plan; the target by its txid; the output or the consumed
// outpoint that the observation names; then for every transaction behind it that
// is neither included nor decided, parents first: distinct inputs, known parents,
// values, scripts. The first that fails decides.
//
// # Invariants
//
//   - Y1: the target is the transaction with the txid of the observation, whatever
//     the order of the bundle. An Atomic BEEF about another subject is invalid, a
//     target without raw bytes unresolved.
//   - Y2: a fault belongs to its candidate. Only a transaction whose own scripts,
//     inputs or values fail becomes an invalid fact; a wrong index, a foreign
//     outpoint or a broken path never does.
//   - Y3: over a budget is limited, never invalid, and says which budget.
//   - Y4: a path whose header is unknown is unresolved where a branch may have it
//     (above the tip, on a known branch, below a checkpoint, or where the adapter
//     cannot tell), and invalid where none has.
//   - Y5: a job's result carries the context it was made for; a job whose context
//     is over is cancelled, and its result is not kept.
//   - Y6: no source waits for another: workers are given to sources by the time
//     they have had, and one is spare for a source that has none.
//   - Y7: one candidate takes bounded time and memory. Time is looked at between
//     inputs, and one input is bounded by internal/beef.
//   - Y8: a header is kept only when it links to one that is kept, meets its own
//     target and is later than the median of the eleven before it.
//
// # Decisions where the sources leave room
//
// A result lists at most Budget.Dependencies outpoints; cutting the list of a
// verified candidate does not make it limited, since the transaction is kept
// whole. Sources share workers by time and not by bytes: a small script can be
// expensive.
//
// # Ownership and failure
//
// [Verifier.Check] runs on its caller's goroutine. [Pool.Run] starts its workers
// and returns after they have ended. [HeaderFile] and the tracker start nothing:
// who wants to hear of changes runs Watch. Errors of the store end Run; trouble of
// a header source is its adapter's error and says nothing about evidence.
//
// # Non-goals
//
// Choosing which chain has the right rules: targets of headers are held against
// their own claim, not against the adjustments of a network. Unlocking by time is
// finality, which reconcile/spend judges. Fees.
package verify
