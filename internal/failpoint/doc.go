// Package failpoint names the moments at which a crash must do no harm, and lets the crash lab (internal/crash) stop or kill the
// program there.
//
//	failpoint.Hit(failpoint.OpenStored)
//
// Built without the tag failpoint, Hit is an empty function that the compiler inlines to nothing, and there is no registry. Built
// with it, a program arms points before it starts anything:
//
//	OVERLAYD_FAILPOINTS='livefeed/commit/sent=kill@3;lookup/open/stored=pause:20ms%50' overlayd serve
//
// A spec is points separated by semicolons, each point=action:
//
//	kill         the process ends as by kill -9, at the first hit
//	kill@3       at the third hit
//	pause:20ms   every hit waits that long, at most 1 minute
//	pause:20ms%5 five hits of a hundred do, chosen at random
//
// The package also names the mutants: deliberate faults, each compiled in by a tag of its own (mutant_bigserial, mutant_latewait,
// mutant_nolock, mutant_completion), that the lab must catch to be believed. Without a tag each is a constant false, and what it guards is dead
// code.
//
// # Invariants
//
//	X1  Without the tag nothing can be armed, and a hit costs nothing.
//	X2  Every named point is hit by the program: a point that nobody hits would prove nothing.
//	X3  A spec is taken whole or refused whole; what it says has one reading.
//
// # Non-goals
//
// Injected errors: what a failing database or network says is made by a failing database or network.
package failpoint
