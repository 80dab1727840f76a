// Package shuffle judges that the order in which verification ends, and restarts at any moment, change nothing about what a
// store says in the end. It holds tests only.
//
//	kit_test.go       one history played against a store in memory, with the work done in an order of its own
//	text_test.go      what is compared: a text of the whole snapshot, and the oracle of spend/spendtest
//	shuffle_test.go   many histories, many orders each; the mutant that must be caught
//
// Histories come from spend/spendtest: the journal of one history is always the same, batch by batch and view by view.
// What changes from one order to the next is when candidates are checked, when results are recorded, which of them come
// under a view that is over, which settled groups are accepted first, and where the process ends and starts again.
// Scripts are not run: each transaction has the result that its history gives it.
//
// # Invariants
//
//	S1  All orders of one history end in one text, byte for byte.
//	S2  That text agrees with the oracle, which computes everything from the whole history and shares no code with the engine.
//	S3  An audit of the store finds nothing at the end.
//
// # What may differ, and is not compared
//
// Revisions: a barrier that lifts without an accept takes one of its own. Of a component that two inclusions of one view
// contradict, the status that was published before: it depends on what was accepted by then. Where evidence is invalid, a
// group is given up at the first bad member, and its other members are not checked: whether a bad one among them reads as
// invalid or as unresolved depends on which was found first.
//
// # How many
//
// go test plays a slice. The whole is
//
//	go test -run TestR3_Shuffle ./reconcile/shuffle -timeout 60m -args -histories 1000 -orders 20
package shuffle
