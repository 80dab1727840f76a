// Package memstore keeps knowledge in memory, for tests and for programs that may
// forget. It is volatile and says so: what must survive belongs in sqlitestore or
// pgstore.
//
// # Invariants
//
//   - M1: entries are in the order of their keys, whatever order they came in.
//   - M2: a view sees one state, also while an update is made.
//
// # Ownership
//
// No goroutines. A view holds no lock: it keeps the blocks of its state, which an
// update beside it copies before it changes them. Without a view beside it an
// update changes blocks where they are.
package memstore
