// Package livefeed keeps feeds in Postgres. A feed is one ordered log of committed groups and the versioned rows that the
// log builds: what a snapshot at a watermark shows, and what happened after it, are two reads of the same history. The
// package knows nothing of HTTP, of principals beyond their keys, or of query languages.
//
//	Submit -> queue -> committer -> [lock head, read] -> plan -> [write, head, notify, commit] -> announce -> answer
//	                  (one a feed                              one transaction for            hub wakes
//	                   and process)                            all that waits                 who matches
//
//	rows   version [valid_from, valid_to): in the snapshot at W when valid_from <= W < valid_to
//	log    seq 1, 2, 3, ... without gaps; each with a random tag, its changes with before and after, its selectors
//	       floor <= everything retained <= head
//
// A reader takes a [Cut] (W, its tag, T, whether a timer is due, all from one statement), pages the snapshot at W with
// [Feed.Page], and then follows with [Feed.Log] from W, or with [Feed.Follow], which answers the same from memory where it can. To
// wait it registers with [Feed.Watch], reads the log once more, and only then sleeps.
//
// A selector is the posted form of an attribute and a value. Rows are posted under theirs, and groups under those of
// their rows before and after: a row that leaves is seen leaving. A group with an invalidate is also posted under [All],
// which every sparse read merges and which every waiter hears.
//
// Versions of a row under one order key that follow each other without a gap can share a number: they are a run. A posting
// lasts while the versions of a run have its selector, so a row that is replaced pays for what changed of its attributes only.
//
// # Invariants
//
//	F1   Once a reader has seen sequence N of a feed, nothing with a sequence <= N becomes visible later. Sequences have no
//	     gaps, and belong to their feed alone.
//	F2   Proposals that one goroutine submits are logged in that order. A batch is what waits, at most 256 groups or 8 MiB.
//	F3   A group is logged whole or not at all, and a refused one neither fails its neighbours nor leaves anything.
//	F4   What was acknowledged is durable, once, at the acknowledged sequence. An unknown outcome is resolved by the group's
//	     key under the head lock, never by repeating blindly; a key keeps its place for ever.
//	F5   At every sequence the rows, their postings and the counters are what the log up to it says; at most one version of an
//	     outpoint is live. What a row says, who may read it and whether it is hidden are part of its version.
//	F6   The queue is bounded and holds submitters back. One who gives up is told whether the group was taken back or its
//	     outcome is not known.
//	F7   Run ends when nothing of ours runs; everyone who waited has an answer by then. A lost notification, listener or
//	     connection costs time and nothing else.
//	F8   Order keys sort as (order bytes, txid, index) and are unique; any order of selectors gives the same rows.
//	F9   A log record has one spelling and one reading, frozen by a golden test; a record that does not read is an error.
//	F10  What a statement costs depends on what it returns, not on the size of the feed, also when it was planned on empty
//	     tables. A page or a read that examined its budget says so and moves.
//	F11  A position outside the retained log, with another tag, or before a hole is Reset, never a shorter or an empty answer
//	     (tests of rows S9 and L10).
//	F12  T is the database's clock, never below the last evaluated time; every timer up to that time is in the log, each as its
//	     own group in (deadline, order key) order, and in front of an edit that touches its row (tests of rows T1, T2, T5). (For the moment of one
//	     commit Advance can pass a row that is being put: pages therefore judge expiry by T themselves.) However long the backlog, no
//	     transaction logs more than 250 timers, groups are appended between them, and [Feed.Drain] waits for about as many as it asks for.
//	F13  The floor passes no watermark that was promised in a transaction that holds [Feed.Pin]. Nothing above the floor is removed,
//	     and nothing below it before the floor is committed, so that a read is whole or Reset (tests of rows S4, L10, O7). Group
//	     keys stay for ever (tests of row L11).
//	F14  Evidence is stored while a retained row version or group refers to it, also when it is brought again just as it is
//	     being removed; it is removed after.
//	F15  Space of removed rows is used again, without anybody waiting for it.
//	F16  An epoch turns under the head lock, once per key, and none comes back. A break reaches every waiter of every node; a
//	     retirement wakes nobody (tests of row O12).
//	F17  A database that holds less than this process has seen in it breaks the feed's epoch, once, before anything is appended
//	     to it and before a guarded connection to it is used. Growth never does, whatever is committed while a check is under
//	     way; nor does a read-only database (tests of row O12).
//	F18  After a break a node hears of every later commit, also below the head that it had announced before (tests of row O12).
//	F19  Of a row whose readers became fewer there is a record of whom that left, from the commit of that group until it is at or
//	     below the floor; a row that comes back with readers counts as one (tests of row A7).
//	F20  What [Feed.Follow] answers is what [Feed.Log] would have answered at an instant after the call began or, for one who
//	     waits, at an earlier one, with all that was announced by then: for one who was woken less than a second old, for one who is
//	     registered only where nothing was for it. T does not run back from answer to answer. However many wait, another process's
//	     commit is read once.
//	F21  What [Store.OnEvidence] shows is stored, and is shown before anybody is woken for it.
//
// # Compaction
//
// [Feed.Compact] moves the floor under an exclusive advisory lock, and asks what is promised in the statement after; then it removes
// groups with seq <= floor and versions with valid_to <= floor in transactions of their own, and lists the evidence that may be idle.
// A step takes idle evidence and all heads, so that no committer is between finding it stored and referring to it.
// [Store.Vacuum] makes the space usable. [Store.Compactable] says, in one statement for all feeds, of which of them a round would find
// something to do; it takes no lock, so that it may only ever send a round where there is nothing left, or be late by one look.
//
// Batched DELETE, not partitions, by measurement (BenchmarkRetention, 200 000 groups, 2 loaded cores): batches write 231 bytes of WAL a
// group at 2 900 groups/s, dropped partitions 1 byte at 112 000, but a sparse read then touches 63 buffers instead of 4.
//
// What a read sees of a loss that is nobody's compaction: a log read sees every missing group, a page the missing group at W, the
// missing row it goes on after, and, when it reads by a selector, a missing version by the posting that leads to it; whoever
// reads evidence sees that it is missing. No read sees a version that is gone together with all its postings, a posting that is gone
// while its version is not, or, reading all rows, a version that is gone: rows lost one by one are for [Store.Verify]'s
// witnesses of a whole history that was replaced, and for the database's own checksums.
//
// # The tail
//
// Of each feed the last groups stay in memory, at most Config.TailGroups and TailBytes, decoded once for all readers. They come from
// the committer after its commit returned, or from a look: one statement for everybody who asks meanwhile, which checks floor, head
// and the tag of every group from the lowest position asked for, as the log's own read does. What does not fit (a gap, another tag, a
// break, a floor above it) drops the tail, and the log is read itself. A position more than 256 groups before the head is read
// from the log, where a sparse reader pays for its matches alone.
//
// # Epochs and the witness
//
//	epoch  turn 0 --Retire--> 1 --Break--> 2 --lost history--> 3    broken: 0, 0, 2, 3
//	       what was promised at turn t is void once broken > t; sequences of different breaks (eras) are not comparable
//
// [Feed.Rotate] turns an epoch for an operator, [Feed.Suspect] breaks it for a position that the feed denies, and a [Witness] for
// a database that lost something. The witness remembers per feed: number, epoch, turn, head with its tag, revision of the
// prohibitions, evaluated time, and the marks of the feed's users. It looks at the start, on every new connection, and with the
// heads; it compares with a copy from before the question, and asks again under the head lock before it breaks anything. Of
// nodes that were there, the first breaks and the others adopt.
//
// What it cannot see: a loss of less than it remembers (its file is up to a second old after kill -9; a file that was
// lost remembers nothing). Then a client's position is what proves it, through Suspect.
//
// # Ownership
//
// [Store.Run] owns every goroutine: per feed a committer (the only one that appends, and the owner of every Pending it
// took) and a follower (which announces what other processes commit, unless a notification already said whom it concerns, and keeps the
// tail up with it); per store a listener, a backstop that reads all heads
// in one query, a timer worker, and the writer of the witness's file. The committer takes a connection of Config.Writer per transaction. The listener and the
// timer worker each hold one connection of their own. Of all processes one timer worker works for a feed: the holder of an
// advisory lock. Reads run on the caller's connection, in one statement each, and start nothing; of those who
// [Feed.Follow] at once, one asks for all.
//
// Several processes may append to one feed: the head lock orders them. Who listens says so in feed_listener, and then locks each head
// once: a commit that saw nobody else listen is not notified, and has ended by then.
//
// Locks: head rows in ascending feed id, each in its own statement, before any other row of the feed. [Feed.Drain] waits for
// the committer, so it is not called by a transaction that holds a head or clock row.
//
// # Failure
//
// Errors are [*Error], with public text and the cause behind it; others say that the database could not be asked. A lost
// connection is retried for 10 s, then the groups are told Unavailable, and whether their outcome is known. When the
// database refuses a batch, its groups are tried one by one. synchronous_commit stays on.
//
// # Non-goals
//
// Proofs and scripts (a put's BEEF is checked for structure and target only), deriving what a query observes, sessions, and
// deciding when to compact and what is still promised.
package livefeed
