// Package live keeps one store of knowledge up to date: it follows any number of
// sources at once, has what they say verified, publishes it, keeps the view of
// the chain, feeds projectors, and survives being killed at any instruction.
//
//	err := live.Run(ctx, live.Config{
//		Store:   store,   // reconcile.Open over memstore, sqlitestore or pgstore
//		Chain:   headers, // of package verify
//		Sources: []live.Source{{BaseURL: url, Service: "ls_catalogue", OnReset: live.Reopen}},
//		On:      func(ctx context.Context, e live.Event) error { ... },
//	})
//
// # The parts of a run
//
//	source 1 --client.Follow--> record --+
//	source 2 --client.Follow--> record --+-- turn --> receive: batch and checkpoint, ONE commit
//	finite 3 --Fetch------------------> -+                 |
//	                                                       v
//	        pool: scripts, results recorded  <---- candidates to verify
//	                       |                               |
//	                       v                               v
//	     quarantine: that source begins anew      acceptor: whole groups, in order
//	                                                       |
//	     chain view -- keeper: one context change          v
//	                                       projectors, and the events of [Config].On
//
// Each source has one goroutine and one request in flight; the pool, the acceptor,
// the keeper of the chain view, every projector and the events have theirs. [Run]
// starts them and returns when all of them have ended.
//
// # Invariants
//
//   - V1: a batch, its pending work and its checkpoint are one commit, made before
//     the cursor is used; what an Open needs is committed before a byte of it is sent.
//   - V2: nothing here decides an order. A receive takes its position in the store;
//     what the pool finishes first is not published first.
//   - V3: one source cannot hold another up: commits are taken in turns, the pool
//     takes candidates of each source in turns, and whoever is over its budget of
//     pending work waits alone, holding no turn.
//   - V4: what a source says that is invalid or has two meanings ends that source's
//     generation and nothing else. Its next one begins when the source's policy says
//     so, after a pause that doubles from 1 second to 10 minutes.
//   - V5: placements are asked of the view that is in force while they are committed;
//     the view does not move between.
//   - V6: endings and accepted changes are told at least once: a mark in the store
//     follows what was told, for changes once in a second and when the run ends, so
//     that a killed run tells the last second again. A projector that writes through
//     the store's own transaction sees each change exactly once.
//   - V7: a finite answer is one generation, one group, at sequence 0. It says nothing
//     of what happens after it.
//
// # What a source is
//
// Base URL, service, query, principal and label. Two principals are two sources,
// and an anonymous caller is a third. The chain is pinned for the whole store at
// first use, the provider's identity for each source.
//
// # What is told to a source's policy
//
//	reset-required, expired, context-changed    Reopen begins anew at once, then later and later
//	invalid, equivocation, a broken protocol    Reopen begins anew after the growing pause
//	unauthorized, another identity or chain,    the source stops for this run, its rows stay and
//	a payment, a service that is not there      are stale; the others go on
//
// # Ownership and failure
//
// One Run serves a store in one process at a time. A failure of the store, of a
// projector's transaction beyond its own retries, or an error of On ends the run
// with the store as it was; a failure of a source does not. When the context ends,
// the commit under way is finished, results that were not recorded are dropped and
// are worked out again by the next run.
//
// A group or observation that a provider sends again breaks the protocol, and
// nothing of its batch is taken. With another meaning it is equivocation, also when
// one of the two is in the snapshot and the other in the log.
//
// # Non-goals
//
// Selection and membership (reconcile), checking evidence (reconcile/verify), and
// any act on a wallet: nothing here signs a transaction, broadcasts or pays.
package live
