// Package sqlitestate keeps a client's state in one SQLite file, without cgo.
//
//	DIR/state.db     everything: intents, checkpoints, receipts, memberships
//	DIR/state.lock   held for as long as a writer is open
//
// [Open] gives the one writer, a client.State; [Inspect] gives a reader that may
// look while a writer in another process works.
//
// # What is stored
//
// For each source (base URL, service, query, principal) its generations: the saved
// Open and signed manifest, the checkpoint, and how it ended. For each generation the
// pages as they were received, in the retained order (generation, page, group,
// index). For each outpoint what the last applicable observation says. BEEF is
// stored once for each content; canonical observation bytes are given back
// exactly.
//
// # Which rows are the answer
//
//	generation 1   snapshot arriving   -> its rows are Partial
//	generation 1   snapshot complete   -> its rows are Current
//	generation 1   ended               -> its rows are Stale
//	generation 2   snapshot arriving   -> 1 is Stale, 2 is Partial, side by side
//	generation 2   snapshot complete   -> 2 is Current; rows only 1 had are gone
//
// The last step moves one number in the commit that records the last page; rows
// of retired generations are swept later, a bounded number with each commit.
//
// # Invariants
//
//   - C3.1: a page, its memberships and its checkpoint are one transaction in WAL
//     mode with synchronous=FULL.
//   - C3.2: a page read with a cursor other than the recorded one is refused.
//   - C3.3: an id is recorded once in its space. Snapshot ids live in a space of
//     their generation, live ids in a space of their scope, and no id is in a
//     generation's snapshot space and its scope's live space at once.
//   - C4.1: the intent is committed before Begin returns.
//   - C3.4: a state of an earlier release is brought up to date whole, in one
//     transaction, and nothing in it is lost; [Inspect] reads it as it is.
//   - C5.1: nothing of the published generation changes until another one has its
//     whole snapshot.
//   - C7.1: a source is one principal's: what is said to one identity is never
//     shown as said to another, nor to everybody.
//   - The file holds bearer secrets (session, cursor, request id); directory and
//     file are private to the user.
//
// # Ownership and failure
//
// A [Store] starts no goroutines of its own. Its methods may be called from
// several goroutines; writes go one at a time. A second writer, in this process or
// another, gets [ErrLocked]; the lock is the operating system's and does not
// outlive its process. Retention is not decided here: receipts and evidence of
// retired generations stay.
package sqlitestate
