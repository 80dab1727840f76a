// Package require says what tests need from the machine beyond Go and Postgres, and makes its absence loud.
//
// A test that cannot run here logs plainly what was not run and passes. Where the need is named in the environment
// variable OVERLAYD_TEST_REQUIRE (a comma-separated list, as "root,browser") it fails instead: the continuous build names
// everything it provides, so nothing there is passed over in silence.
//
// Invariant: R1 a test that was not run says so in its log, or fails.
//
// It owns no goroutine and keeps no state. Non-goal: finding out what a machine offers, beyond being root.
package require
