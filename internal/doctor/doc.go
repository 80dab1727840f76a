// Package doctor looks at everything a provider stands on before, or while, it runs: its settings, its secrets, its database, its
// clock, its certificate, its public URL and its disk. It says of each whether it is well, and what to do where it is not.
//
//	findings := doctor.Examine(ctx, doctor.Options{Config: config})
//
// # A finding
//
//	ok        it is as it should be
//	warning   it works, and costs something or leaves something out that the operator should know of
//	failure   it keeps the provider from starting, or breaks something that it promises
//
// What is looked at in a database that was reached, in this order; whatever needs more than there is is left out, and the
// finding that ends the way says how many were:
//
//	connection -> version, role, durability, checksums, connections, pooler, clock
//	           -> with overlayd's own settings: settings, timeouts, listener
//	           -> migrations -> autovacuum, disk, sessions (with their feeds)
//
// Databases that feeds have for themselves are looked at in the same way; their checks are named with the feed behind an @.
//
// # Invariants
//
//	D1  Nothing is changed: every statement runs in a read-only transaction, no file is written or made, and the one notification
//	    that is sent goes to a channel that nobody else listens on. (LISTEN and NOTIFY leave nothing behind.)
//	D2  A finding is one check, one verdict, one sentence of what was found and, unless all is well, one of what to do.
//	D3  No secret is in a finding: no password, key or token.
//	D4  A check that could not be made is a failure that says why. It is bounded in time and hides no other check.
//	D5  Every threshold is a named field of limits, with its unit and its reason.
//
// # Ownership and failure
//
// Examine opens at most three connections to a database, closes them, and has no goroutine left when it returns. It reads no
// environment: how secrets are read, and what they mean, is the program's business, which passes functions.
//
// # Non-goals
//
// Watching: metrics and docs/scaling.md are for that. Other nodes, and the proxy's own settings: only what the public URL answers
// from here is seen. The room on the disk of a database on another machine.
package doctor
