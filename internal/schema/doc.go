// Package schema holds the database schema of overlayd and the engine that brings a database up to it.
//
// The schema is a row of SQL files, sql/NNN_name.sql, compiled into the program. Each file is one migration, run as
// written in one transaction, in the order of its number, once. A released file is never edited: a change is a new file.
// There is no way back down: an older program refuses a newer schema.
//
// The version of a database is the number of migrations applied to it, kept in the one-row table
// overlayd_schema_version of the first schema on the connection's search path.
//
//	no table ----Migrate----> 1 ----> ... ----> target ----(a newer overlayd)----> target+n
//	   |                      |                   |                                   |
//	 Check: NotMigrated     NotMigrated          fine                               Newer
//
// # Invariants
//
//	M1  Migrate applies each migration exactly once, also when several processes migrate at the same time:
//	    they queue on one advisory lock of the database and look at the version after they got it.
//	M2  A migration and its step of the version commit together, or not at all.
//	M3  Migrate and Check refuse a database newer than this program and change nothing in it.
//	M4  Check and Status only read: they create nothing, so they can run as a role without rights on the schema.
//	M5  Hash changes with every byte and every name of the migrations.
//	M6  The files are numbered from 001 without gaps and contain no way down.
//
// # Ownership and failure
//
// The package starts no goroutine and keeps no state. The caller owns the connection; a cancelled context closes it
// and the server then rolls the running migration back and frees the lock. After any failed Migrate the
// database is at the version Status reports; running Migrate again goes on from there.
//
// # Non-goals
//
// Data migrations in Go, migrations without a transaction, several overlayd schemas behind one search path, and connections
// through a transaction-level pooler: the lock belongs to the server session.
package schema
