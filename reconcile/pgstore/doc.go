// Package pgstore keeps stores of knowledge in a Postgres database, beside a
// wallet backend's own tables, through pgx and the caller's pool.
//
//	overlay_knowledge_schema      the version of these tables
//	overlay_knowledge_partition   whose knowledge: its row's lock is the writer's turn
//	overlay_knowledge             (partition, key) -> value, the engine's own
//	overlay_outputs               (partition, outpoint) -> state, for SQL: NewOutputs
//
// [Open] makes the tables where there are none; [Inspect] makes nothing. Both are
// a reconcile.Backend for reconcile.Open. Several processes may have one partition
// open: each takes its turn.
//
// # A transaction of an Update
//
//	begin, settings, lock of the partition      one round trip
//	one look-up for each level of reads         one each
//	who writes, deletions, puts                 one for 16 MiB
//	commit                                      one
//
// # Invariants
//
//   - P1: an Update is one READ COMMITTED transaction that holds the partition's
//     row from its first statement on, so its reads see every commit before it and
//     none after. It waits for the database's disk, whatever the session says.
//   - P2: an error of COMMIT is reconcile.ErrUnknown unless the database itself said
//     that it rolled back: a fatal error does not say so.
//   - P3: after an unknown outcome this store reads nothing before the lost
//     transaction is over: it takes the partition's lock on another connection, and
//     ends the old session when that keeps it. So what is absent then stays absent.
//     A store that is opened anew waits in the same way.
//   - P4: a View is one REPEATABLE READ snapshot, and ends after
//     Options.SnapshotFor: the database cannot clean up behind an older one.
//   - P5: every statement walks the primary key, also when it was planned on an
//     empty table.
//   - P6: tables of a newer release are refused untouched.
//   - P7: a partition sees its own keys only.
//   - P8: what the engine reads for a page of groups is a few statements, however
//     many groups it has.
//
// # Ownership and failure
//
// A [Backend] starts no goroutine. The pool is the caller's; Close leaves it open.
// A writer whose machine vanishes holds its turn for at most a minute: then the
// database ends its session (idle_in_transaction_session_timeout).
//
// P3 holds for the store that lost the answer and for every store that is opened
// later. Another process that has the partition open already reads what is
// committed when it reads, and may see a lost commit appear.
//
// # Non-goals
//
// Pools that hand one session to several transactions at once, and the retention
// of what the engine keeps.
package pgstore
