// Package crash is the crash lab: it kills overlayd, Postgres and what lies between them at the worst moments, and proves from
// outside that no promise was broken. `make crash` runs it.
//
//	writers ---- operator API ----> overlayd ---- proxy ----> Postgres      killed, stopped, cut, hung, full
//	readers ---- BRC-193 ---------> overlayd                                killed at a failpoint
//	   |
//	   '--> [Ledger]: every acknowledged group, every delivered batch --> [Ledger.Judge]: findings, none of which may be
//
// What ships with the package is the checker, tested by itself. The lab is its tests with the tag crash: it builds overlayd with
// the failpoints in, runs one scenario after the other, and judges each. That the checker sees what it is for is shown by
// mutants (package failpoint): overlayd with a deliberate fault, which the lab must catch or fail.
//
// # What is proved
//
//	X4  Every acknowledged group is there once, at the acknowledged sequence, with the acknowledged content.
//	X5  A reader gets, in order, every group after its watermark that concerns its query, whole, and nothing else.
//	    Sequences have no gaps: one that is neither acknowledged nor the expiry of a row nor a prohibition is a fault.
//	X6  What was read once reads the same again, in every session of the scope. A repeated Open has the same bytes.
//	X7  A snapshot at W and T is the fold of the groups up to W, without what had expired at T, in the order of the rules.
//	X8  A session ends at its deadline, by a close, a removal or a prohibition, and never otherwise.
//	X9  A poll that is outstanding while a group for it is committed is answered within [LatestWake].
//	X10 A row is in no answer to a request that began after its prohibition was acknowledged.
//
// # The model
//
// The checker folds acknowledged groups by itself: it shares the wire shapes with the product and nothing else. Expiries and
// prohibitions have no acknowledgement; their sequences are learnt from the readers that see every row, and must fit the rows.
//
// # Non-goals
//
// Performance, principals (package lookup's tests), and faults that the product does not promise to survive.
package crash
