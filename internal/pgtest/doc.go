// Package pgtest gives every test a database of its own.
//
//	func TestF1_Something(t *testing.T) {
//		t.Parallel()
//		db := pgtest.New(t)          // migrated, empty, nobody else's
//		_, err := db.Pool.Exec(t.Context(), "insert into ...")
//
// The server is the one OVERLAYD_TEST_DATABASE_URL names (a superuser's URL), which cmd/withpg sets for a whole `go test`.
// Without it each test process starts a private server of its own at the first use.
//
// A database is cloned from a template that holds the migrated schema. The template is named by schema.Hash, so that
// checkouts with different migrations share a server without noticing each other.
//
//	template absent --create, migrate, mark as template--> ready --create database ... template--> one per test --> dropped
//	     ^      (under an advisory lock of the server)        |                                             '--> kept, on failure
//	     '---- unmarked leftover of a killed builder: dropped '
//
// # Invariants
//
//	T1  Two tests never see the same database.
//	T2  A template is marked only after every migration succeeded, and only a marked one is cloned.
//	T3  Processes that need the same template at once build it once.
//	T4  The database of a test that passes is gone after the test; that of a failed one stays and its URL is logged.
//	T5  A private server and its folder are gone soon after the test process, however that ended.
//	T6  What Undisturbed measured, it measured while no other session's snapshot kept dead rows in the database.
//
// # Ownership and failure
//
// The files of a private server lie in /dev/shm if 8 GiB of memory are free and TMPDIR is not set, else in the folder of temporary files.
//
// The package starts no goroutine of its own; those of a pool end in the test's cleanup. A private server belongs to the
// process: the kernel stops it with the process, and a small shell waiting on a pipe then removes the folder. What a
// killed machine left is removed by the next run. When no server can be had, the test fails and says what to do: it is
// never skipped.
//
// # Non-goals
//
// Durability (fsync is off in private servers, unless a command asks for it), sharing rows between tests, and use outside tests. This package imports no
// package of the product above internal/schema and internal/localpg;
// of those for tests it imports internal/testkit.
package pgtest
