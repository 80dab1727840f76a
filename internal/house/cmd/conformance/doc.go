// Command conformance keeps docs/conformance.md and the tests in step.
//
//	go run ./internal/house/cmd/conformance       check, also against go test -list
//	go run ./internal/house/cmd/conformance -w    write the columns of tests anew
//
// Checking compares three things: the document, the test functions in the
// source, and the names that the built test programs list. It exits with 1 and
// one sentence a fault when they disagree, 2 when it cannot tell.
package main
