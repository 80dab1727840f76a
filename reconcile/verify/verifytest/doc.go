// Package verifytest makes chains of blocks, signed transactions and BEEF for
// tests: small, real to the last byte, and the same on every machine.
//
//	chain.go   blocks: Mine, Fork, View
//	tx.go      transactions: Pay
//	beef.go    evidence: BEEF
//
// # Invariants
//
//   - T1: the same calls give the same bytes: keys are derived, signatures are
//     deterministic (RFC 6979), block times count up.
//   - T2: what is made without asking for a fault is valid: scripts unlock, values
//     add up, paths lead to the headers.
//
// # Non-goals
//
// Anything that ships: it imports testing. Secrecy: the keys are public. Work:
// headers meet the easiest target.
package verifytest
