// Command gotest runs go test and ends with what was not run.
//
//	go run ./internal/house/cmd/gotest -race ./...
//
// Its arguments are those of go test; before them may stand -ran FILE, to which
// it writes the tests that were run, one "package Name" a line. It prints one line a package as go test
// does, and all output of tests that fail. At the end stand the skipped tests
// with their reasons, what other tests logged after "NOT RUN", and the counts.
// What was not run is no failure, unless OVERLAYD_TEST_REQUIRE contains "all";
// single needs ("root") in that list are the business of the tests.
//
// The race detector needs a C compiler. Without one -race is left out and the
// list says so, which "all" refuses too.
//
// It exits with 0 when every test that ran passed and at least one did, else
// with 1.
package main
