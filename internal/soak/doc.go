// Package soak runs a provider for minutes as it would run for years: writers edit the same rows over and over, sessions are
// opened, scanned, followed and closed, and what nobody was promised any more is removed all the while. It shows that
// what is stored does not grow, and that nothing that was promised is missing.
//
//	fill -> idle pages -> writers, sessions and compaction -> idle pages
//	                      warm-up | first minute ... last minute
//
// The provider is the real one on a real Postgres with fsync on, in this process; requests reach its handler without
// a socket. Every put of a row carries the row's edit number in its context, and writers know the sequence of each, so
// that a session can tell of every row of its snapshot that it is the one of its W, and of every live edit that it is the next.
package soak
