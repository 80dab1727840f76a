// Package vectors makes the cases of testvectors/reconcile: transactions with signatures, blocks, Merkle paths and
// evidence, sound and broken, and the steps that are played with them.
//
//	kit.go        transactions, blocks, BEEF
//	scene.go      a case while it is made
//	evidence.go   cases about what counts as proof
//	spending.go   cases about which spend is selected
//	sources.go    cases about what sources say
//	write.go      the files
//
// # Invariants
//
//	N1  The same program writes the same bytes, on every machine: keys are derived, signatures are deterministic (RFC 6979).
//	N2  What a case expects was written down by hand from the published rules, never taken from an implementation.
//
// # Non-goals
//
// Secrecy: anyone can derive the keys. Work worth the name: the headers meet the easiest target.
package vectors
