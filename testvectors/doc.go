// Package testvectors embeds this project's own test vectors, for implementations in Go; the files are plain JSON for all
// others. It imports the standard library alone, so that using it brings nothing else along.
//
//	digests/*.json     canonical forms and digests (README.md)
//	reconcile/*.json   one case a file: what sources send, what transactions prove, what must be read
//
// # Invariants
//
//	V1  A case is complete in its file: transactions, headers, evidence and steps.
//	V2  A file is what its generator (internal/sample/vectors) writes, byte for byte.
//
// # Stability
//
// Files are added; a file that is there keeps its meaning. Names of transactions, views and evidence are those of their
// own file and mean nothing in another.
package testvectors
