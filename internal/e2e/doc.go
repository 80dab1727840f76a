// Package e2e runs the real overlayd binary in tests.
//
// A test package that uses it gives its TestMain to [Main], which builds the
// binary once; without that every [Run] and [Start] builds its own. Whoever
// has a binary already names it in OVERLAYD_TEST_BINARY.
//
// A [Caller] speaks to what was started as a client of the protocol does,
// anonymous or signed, and verifies every signed answer.
//
// Invariants:
//
//	E1. A process started for a test has ended when the test has: it is asked to
//	    stop at clean-up, and killed when it does not.
//	E2. Processes see none of the OVERLAYD_* variables of the test's own
//	    environment, only those the test gives.
//	E3. When a test fails, what the process wrote to stderr is in the test's log.
//
// Nothing that ships imports this package. It asks for interfaces where tests
// have *testing.T and *testing.M, so that importing it does not make a program
// one of tests.
package e2e
