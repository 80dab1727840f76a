// Overlayd serves live lookups of overlay outputs (BRC-193) from Postgres.
//
//	overlayd dev              the whole provider on this machine, nothing to prepare
//	overlayd serve            the provider against a database of yours
//	overlayd migrate          bring the database's schema up to date
//	overlayd import FILE|-    append groups from NDJSON
//	overlayd sample N|small   write sample groups as NDJSON
//	overlayd follow URL NAME  follow a service as a verifying client
//	overlayd follow --reconcile URL... NAME
//	                          follow several providers, believe none of them about Bitcoin
//	overlayd reconcile inspect STATE
//	                          show what such a follower keeps, and why
//	overlayd admin ...        feeds, sessions, grants, prohibitions, epochs and quotas of a running provider
//	overlayd bench ...        load and latency runs, next to baselines of the same run
//	overlayd config           print the settings in force and where they come from
//	overlayd version          print the version
//
// # Shape
//
// main gives run the process's streams, environment and signals; run makes the
// command tree of root.go and turns an error into sentences and an exit code: 0
// fine, 1 failed, 2 usage. Each command is one newXxxCommand in a file of its
// own. This package is the only one that reads the environment.
//
// # Start and stop
//
// provider.go owns every goroutine of a running provider, and the one order in
// which things stop:
//
//  1. both listeners take no new connection, /readyz says no, imports stop reading
//  2. waiting polls are woken and answered whole
//  3. requests under way finish, within shutdownSeconds; then they are cut
//  4. the manifest's renewal and retention end
//  5. the feeds' committers, timers and listener end, after what was submitted
//  6. the pools are closed; 15 s after shutdownSeconds the process ends without that
//  7. dev stops its Postgres and gives its folder back
//
// A start that fails half-way unwinds in the same order. A second signal ends
// the process at once.
//
// # Output
//
// stdout carries results only: the ready line of dev, summaries, samples, the
// configuration, what admin was answered and what follow is told (one JSON object
// a line, a table on a terminal). Everything else goes to stderr, as slog records
// or sentences.
package main
