// Package failover shows what providers do when their database is not the one it was: a backup restored under them, a standby
// that took over with or without everything. It holds tests only, with Postgres clusters of their own: what a
// restored database looks like is for Postgres to say, not for a simulation.
//
//	cluster ---copy of the data directory----> the same cluster, earlier
//	        ---pg_dump, pg_restore, rename---> the same cluster, another database
//	        ---pg_basebackup, streaming------> standby ---promote---> the new primary
//
// # Invariants
//
//	V1  After each of these a node either serves everything as before, because nothing was lost, or breaks the epoch before it
//	    answers from what is left: there is nothing between. (One exception: a dump restored in place, under connections that
//	    stay, is found at the next look at the heads, and before anything is appended.)
//	V2  What is missing on a machine (pg_basebackup, pg_dump) is reported through internal/pgtest/require, never passed over.
//
// # Ownership and failure
//
// A test owns its clusters and ends them. Nodes are stopped before the clusters they use. A failed test shows the nodes' logs.
//
// # Non-goals
//
// Choosing a primary, fencing off an old one, and synchronous replication: those are the database's.
package failover
