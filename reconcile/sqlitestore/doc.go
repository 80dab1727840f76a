// Package sqlitestore keeps a store of knowledge in one SQLite file, without cgo.
// It is the embedded default.
//
//	DIR/knowledge.db     everything the engine knows
//	DIR/knowledge.lock   held for as long as a writer is open
//
// [Open] gives the one writer; [Inspect] gives a reader that may look while a
// writer in another process works. Both are a reconcile.Backend for
// reconcile.Open.
//
// # What is stored
//
// One table, kv, in the order of the engine's keys; values longer than 512 bytes
// (transactions, BEEF, claims in quarantine) stand in a second one, bulk, so that
// the tree of keys stays small. The keys and values are the engine's own and mean
// nothing to SQL. The table overlay_outputs is for SQL: [NewOutputs] keeps it.
//
// # Invariants
//
//   - Q1: an Update is one transaction in WAL mode with synchronous=FULL: what it
//     returned nil for survives the end of the process and of the machine.
//   - Q2: one writer has a directory; a second one, in this process or another,
//     gets [ErrLocked]. The lock is the operating system's and does not outlive its
//     process.
//   - Q3: a View sees one commit from its first read to its end, whatever is
//     written meanwhile.
//   - Q4: a file of a newer release, or of something else, is refused untouched; so
//     is a directory that a follower without reconciliation uses.
//   - Q5: the directory is made with mode 0700 and every file in it with 0600: the
//     checkpoints in it are bearer secrets.
//   - Q6: bulk holds what kv points at and nothing else.
//
// # Ownership and failure
//
// A [Backend] starts no goroutines of its own. A cancelled context ends a wait for
// the writer, a read between two statements and an Update before its COMMIT; from
// there on the Update ends by itself, so that its outcome is known. Only when
// COMMIT itself fails, with a broken disk, is it reconcile.ErrUnknown: what reached
// the disk may come back if the process ends before the next commit, which
// overwrites it.
//
// A View that lasts keeps the WAL from being reused, so that the file beside the
// database grows by what is written meanwhile.
//
// # Non-goals
//
// Encryption, network file systems (WAL needs shared memory), and retention: what
// the engine deletes is reused, the file does not shrink.
package sqlitestore
