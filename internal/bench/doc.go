// Package bench measures a provider from outside: appends, opens, pages, polls and fan-out, each beside a baseline that is
// measured in the same run. It is the generator of `overlayd bench` and of the module bench/compare.
//
//	provider (a process of its own)  <--HTTP-->  this process  <--pgx-->  the provider's database (baselines)
//	                                                  |
//	                                                  '--HTTP--> an echo (a process of its own)
//
// A run is made of rounds, and each round of all cases:
//
//	warm-up: every case once, nothing kept
//	round 1: case A, case B, case C        each case: readers ready -> load -> all delivered
//	round 2: case B, case C, case A
//	...
//
// so that what disturbs the machine for a while disturbs the cases alike, and none is always first. What is printed of a case is
// the median over its rounds, and a ratio is the median of the ratios of each round.
//
// # What a delivery is
//
// Its time runs from the moment before the bytes of an append are written to the moment when a reader has the whole body of an
// answer with that change, has verified its signature (signed services) and its headers' echo, has parsed it as strictly as package
// wire does, and has checked that it continues what it read before. Appends begin at fixed times whether or not earlier ones were
// answered, as far as there are appenders free; how late they began is reported, because it is not in the deliveries.
//
// Each reader has a connection of its own, and one goroutine that uses it. Tests of many readers are thus tests of many sockets,
// with no pool of connections between.
//
// # Invariants
//
//   - Y1: a quantile is the value of its nearest rank, or above that by at most 1 percent or 1 microsecond, and never below it.
//     The maximum is exact.
//   - Y2: merging what several recorders kept is the same as having recorded into one.
//   - Y3: in each round every case runs once, and the case that is first changes from round to round. Warm-up counts for nothing.
//   - Y4: a ratio is taken within a round, and the median of those is told. A round that one of the two lacks has none.
//   - Y5: every reader gets every change that was acknowledged, once: what is missing or came twice is counted, and is a failure
//     of the run.
//   - Y6: a run that is interrupted stops its load, waits for what was appended, and reports what it measured.
//   - Y7: a report in HTML is one file that needs no other, no network and no script, and shows nothing but what the report in JSON
//     holds.
//   - Y8: nothing is left behind: not a process, a temporary folder or a table of a baseline, nor, at a provider that was there
//     before, a row or a session. Kill -9 leaves a folder and, outside Linux, processes.
//   - Y9: an append that began late, because the generator or all appenders were busy, is told as late by all of that time. A database
//     that does not flush its commits is named as such in the report.
//
// # Ownership and failure
//
// A run owns the goroutines of its readers and submitters and has joined them when it returns; [Provider] and [Echo] own one
// process each. What the provider says may be tried again is, with the same key or cursor, and counted; the first error that may
// not be tried again ends the run.
//
// # Non-goals
//
// Bench is no test of durability or order (see internal/crash), nor of a provider over years (internal/soak). It measures from
// one process: on one machine the generator takes processor time from what it measures, which is why baselines pay it too.
package bench
