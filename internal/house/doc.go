// Package house holds the rules that the source tree itself must obey, and
// the tests that hold it to them. It reads source files and never runs them.
//
// # Rules
//
// Each has a test named after it.
//
//	Z1  Imports run one way. A table names, for each part of the program, what
//	    it must never reach, or the only things it may reach, with the reason.
//	Z2  Every package has exactly one package comment, and it is in doc.go.
//	Z3  No Go file is longer than 700 lines.
//	Z4  docs/conformance.md and the tests agree both ways: every test named
//	    after a row stands in that row, every test that it names exists, every
//	    row that no test shows is listed under "Not yet" with a reason, and
//	    every fuzz target is listed. A test named after an invariant of its
//	    own package must find that invariant in the package's doc.go.
//	Z5  Some things are done in one place only: BEEF is parsed in
//	    internal/beef, http.Server is built in internal/httpserve, and the
//	    environment is read by programs (cmd folders) alone.
//	Z6  Nothing that ships names the machine it was written on, and no work is
//	    left behind in a comment that says so.
//	Z7  Versions are exact: no replaced modules, no floating image tags, and
//	    the Go version of the container image is that of go.mod.
//
// # How it works
//
// Load walks the tree once and parses every Go file; the checks are functions
// over the result that return what is wrong as sentences, so that they are
// tested on small made-up trees as well as on the real one. Folders that start
// with a dot or an underscore, and testdata, are not looked at, as in the go
// command.
//
// Three small programs stand on it: cmd/conformance writes and checks
// docs/conformance.md, cmd/gotest runs go test and ends with a list of what it
// did not run, cmd/fuzz runs every fuzz target for a time.
//
// # Not its business
//
// Formatting, vet and staticcheck have tools of their own (make lint). What a
// test proves is for its reader to judge: these rules only see names.
package house
