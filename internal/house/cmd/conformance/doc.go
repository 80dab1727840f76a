// Command conformance keeps docs/conformance.md and the tests in step.
//
//	go run ./internal/house/cmd/conformance             check, also against go test -list
//	go run ./internal/house/cmd/conformance -ran FILE   check, also against what gotest -ran has run
//	go run ./internal/house/cmd/conformance -w          write the columns of tests anew
//
// Checking compares three things: the document, the test functions in the
// source, and the names that the built test programs list or have run. It exits with 1 and
// one sentence a fault when they disagree, 2 when it cannot tell.
package main
