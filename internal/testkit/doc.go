// Package testkit holds the few things that the tests of many packages need and that know nothing of the product: waiting
// for what must happen, a log to read back, a folder for other users, and an address to listen on.
//
// # Waiting
//
// A test waits for a signal where there is one: a channel, a line of a [Log], an answer of the database. [Eventually] is for
// the rest, which announces itself to nobody in the test's process: what another process or the kernel does, and counters
// that are only there to be read. It is the one place where tests ask again and again. Nothing here waits for time to pass:
// [Patience] only ends what went wrong.
//
// # Invariants
//
//	K1  What is waited for and does not come fails the test, and the failure says what it was.
//	K2  A wait ends with the event: a Log's at once, Eventually's within some milliseconds.
//
// # Ownership and failure
//
// The package starts no goroutine and keeps no state of its own. A folder is removed after the test.
//
// # Non-goals
//
// Assertions, and anything of the product: those helpers stand with the tests they serve.
package testkit
