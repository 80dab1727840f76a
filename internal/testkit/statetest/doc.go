// Package statetest is what every client.State must show: one suite, run by the embedded state (client/sqlitestate) and by the
// record that a reconciling run keeps in its store of knowledge (reconcile/live).
//
//	statetest.Run(t, func(t *testing.T) statetest.Instance {
//		return statetest.Instance{State: open(t), Reopen: ...}
//	})
//
// The groups it records hold withdrawals and invalidations only, which have no evidence, so that a state which reads evidence
// at receipt needs no chain for it.
//
// # Invariants
//
// The subtests carry the rows of the checklist whose half they show: C2 (what is refused, and by which error), C3 (cursor and
// checkpoint, marks), C4 (the saved Open), C5 (endings) and C7 (holders, principals).
//
// # Ownership and failure
//
// An instance belongs to one subtest, which releases what it acquired. The package starts no goroutine.
//
// # Non-goals
//
// What a state shows its readers: rows, receipts and quarantine are each state's own.
package statetest
