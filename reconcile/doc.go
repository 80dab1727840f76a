// Package reconcile keeps what sources said, what transactions prove and what is
// still pending apart, in one store of knowledge that survives being killed at
// any instruction. It restates BRC-192 sections 4, 8 and 10 for lookups that are
// delivered by BRC-193.
//
//	what a source said   memberships: present, absent, by source generation
//	what is proved       transactions: selected, conflicting, included, in an
//	                     order that depends on receipt and never on the time at
//	                     which somebody finished checking
//	what waits           groups without all results, components with a barrier
//
// # One engine, any backend
//
// [Open] makes the one engine over a [Backend], which only keeps ordered keys.
// The rules live here once, so they are the same on every store. Packages below
// keep the bytes: memstore, sqlitestore, pgstore; storetest is their common
// suite.
//
// # Three kinds of progress
//
//	received   a batch, its provenance and its checkpoint are durable
//	accepted   one whole group is verified and published, or a context changed
//	projected  a projector's own checkpoint
//
// projected <= accepted <= received, always. A cursor may be used only after its
// receive is committed.
//
// # Invariants
//
//   - K1: what the codec decodes, it encodes to the same bytes; no value makes it
//     panic.
//   - K2: a commit is all or nothing, and each new mutation moves received by one.
//     A replay moves nothing and answers with the revisions it had.
//   - K3: position, index and readiness are decided when a batch is received.
//     Results reach validity only, never order.
//   - K4: a group is accepted whole or not at all; an invalid member quarantines
//     its group and ends its generation.
//   - K5: membership follows the queue of its generation; a number at or below a
//     source's fence is never alive again.
//   - K6: between two commits the published state of a component is either
//     settled or marked pending; nothing in between is read.
//   - K7: recomputing everything from retained facts gives what is published
//     (Audit finds nothing).
//   - K8: what one source leaves unfinished counts against that source's budget.
//   - K9: reading ahead is a hint: what a commit sees is what it would have seen
//     without it.
//   - K10: the work of one change follows its group and component, not what is
//     retained.
//
// # Decisions where the sources leave room
//
//   - D1: one store is one partition and one chain, fixed at first open.
//   - D2: the body of an accept, and so its key, leaves the computed state out:
//     the store computes it inside the commit, so that no caller can install a
//     choice of its own.
//   - D3: components, and the barrier, end at transactions that are included in
//     the current view: these are selected whatever their neighbours do.
//   - D4: a settled group behind an unsettled one gives its facts to the graph at
//     once; only its membership waits for its turn.
//   - D6: placements are asked of the local view while a batch is received, and
//     the answers travel inside the mutation with the id of that view.
//   - D8: readiness belongs to a transaction and is gated by the groups that
//     carry it.
//   - D9: limited evidence holds no barrier, but an output that a limited or a
//     pending transaction would spend is not reported as current.
//   - D10: results are durable side records without a revision of their own.
//   - D11: quarantine and equivocation end a generation, without a revision.
//   - D13: the first generation of a source is shown as partial while its snapshot
//     arrives; each later one is staged until all of its snapshot is accepted.
//   - D14: receive and context take a position each, also when nothing changes.
//   - D16: no assessment of a source is kept as a fact: what a source reports of an
//     output is its row, fresh for as long as its generation lives. So Invalidate
//     publishes a revision, by which an expiry can be told, and nothing else moves.
//   - A placement counts as an inclusion once a group that brought it is accepted, as
//     support for readiness at once. One that holds is never kept out by others that
//     are only claimed.
//   - A group that cannot end (limited, or unresolved) is no barrier for what it
//     carries; while a new view has it looked at again it is none either.
//   - Facts that lift or open a barrier without an accept are published by a
//     Reconcile, which Store.Settled hands out; a swap and a context publish theirs.
//
// # Ownership
//
// The engine has no clock and no network: time comes with contexts, provenance and
// endings, results come through [Store].Record. The one goroutine it ever starts
// keeps the view of a snapshot, until Close. Reads may go on beside a write; writes
// go one at a time, also over processes when the backend is shared by several.
//
// # Non-goals
//
// Checking scripts and paths (reconcile/verify), talking to providers
// (reconcile/live), and any act on a wallet: nothing here signs, broadcasts or
// pays.
package reconcile
