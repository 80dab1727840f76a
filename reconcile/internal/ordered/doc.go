// Package ordered is what the backends over SQL databases share: letting work in
// until the store is closed, checking and ordering writes, and reading a range in
// pages.
//
// # Invariants
//
//   - B1: after Close of a [Gate] nothing gets in, and nothing is inside.
//   - B2: writes that break the contract of reconcile.Writes are refused before
//     any of them is sent.
//   - B3: [Pages] gives every entry of a range once, in order, whatever the pages
//     are; between two pages no statement is open, so that a consumer may read
//     more while it iterates.
//
// It starts no goroutine and knows no database.
package ordered
