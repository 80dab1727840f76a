// Package lookup serves durable lookup sessions: an immutable snapshot, page by page, and then every later change in order,
// by long poll, with nothing lost between the two (BRC-193, profile lookup-live-v1).
//
// # Use
//
// New makes a Provider from a running livefeed.Store, a pool and a list of services; Mount puts its four endpoints on an
// Echo group that stands at the base URL's path, Echo gives a whole server. Run keeps the manifest fresh and forgets what is
// no longer promised. Stop lets waiting polls answer before the HTTP server is shut down.
//
// # A session
//
//	             commit of Open                 last snapshot page
//	(absent) -------------------> snapshot at W -------------------> live after W
//	                                  |                                  |
//	                                  +---- close ----> closed           |   reads: expired, its Open again: expired
//	                                  +---- now >= expiresAt -> expired  |   reads: reset-required, its Open again: expired
//	                                  +---- revoked, removed -> revoked  |   unauthorized
//	                                  +---- prohibited row   -> reset    |   reset-required, for ever
//	                                  +---- reader lost row  -> reset    |   reset-required, for ever, if a body would serve it
//	                                  +---- epoch broken     -> void     |   reset-required, for ever; then reset by retention
//	                                  +---- lost page, hole, forged cursor: reset-required, the session stays
//	                                  +---- now >= replayUntil: its records go, the fence never does:
//	                                        reads are reset-required, its Open again is expired
//
// Everything but the state is frozen at open: manifest, rules and query, W, T, deadlines, limits, the exact first body. What
// a later configuration says about the service does not touch it.
//
// # What is kept, and how long
//
//	fence            for ever: a hundred bytes of keyed digests
//	session          until replayUntil; its first body until it stops being open
//	manifest         until no session names it and it is a week past its expiry
//	log, versions    down to the smallest W of the sessions that are open and not past replayUntil (the feed's floor)
//	ledger           a row a service: what is retained, and a count of changes that only grows
//
// An Open holds the feed's pin from before it fixes W until its commit, and the compactor asks for the smallest W only behind the
// same lock: either it sees the session, or the session's W is not yet chosen. One node does the rounds of [Provider.Retain],
// whoever holds an advisory lock; any node may. A round looks first, in a few statements for all feeds, and works where it found something.
//
// Epochs are turned in package livefeed. A session remembers the turn it was opened at; load and gate compare it with the feed's
// last break in the statement that reads the session, so no clean-up has to happen first. A retired epoch changes nothing for
// it: its scope, its ids and its cursors keep the epoch's name. The witness of this node is told how far each ledger has come,
// so that a database that lost an Open, an end, a grant or a revocation is known by it.
//
// # Databases
//
// A feed may have a database of its own ([Config.Databases]). There is one shard a database, and everything of a feed is on one:
// rows, log, fences, sessions, ledger, grants, prohibitions, the floor and its pins, retention's rounds, the witness. The main
// one also has what belongs to the whole: the manifests, which a shard copies when a session first names one, the
// secrets of authenticated sessions, and the record of what lives where ([Settle]). An Open goes where its service lives, a
// Read or Close where the session id says. While a database is away the manifest names the epochs that were last seen in it;
// a hidden service of it is left out. To start, a node must reach them all.
//
// # A request
//
//	receive -> accept -> parse -> (fence | quotas, load) -> arrive -> build -> gate -> seal -> gate -> write
//
// Receive counts the headers and checks origin and method, accept the selection headers and the body's size; both echo the
// selection when it was well formed. A session arrives when it is asked whether what it was promised still stands; a live read
// that finds something at once, or after less than 50 ms of sleep, goes to the gate, which asks the same and more. Build reads the database and lays the body out whole. The gate is uncached: the snapshot
// of its last statement orders the sending against close, revocation and expiry. Whoever asks at the same moment shares it: it is
// sent after everybody in it has asked, for at most 256 bodies, with at most two statements on their way. It asks what the bodies have
// in common: T, the feed's revisions, evidence, and how much of their services has ended, which the transaction counts that ends it. Only
// where that number has moved since this node looked at a session, or rows may have been withdrawn, is the session itself looked at, in a
// second statement. Seal signs for authenticated callers; public services have none. There is one
// way out, Provider.respond, for errors too.
//
// What is being built has one of a node's slots until it is sealed; a poll gives its slot back while it sleeps, and has a place among the
// sleeping polls instead. A finished body has room at the node from before its evidence is read until its peer has taken it; where
// there is none left the request is unavailable, and a peer that takes too slowly is cut off. What is remembered of sessions and kept
// of evidence takes at most 32 MiB each, and what is shared of the last groups' layouts 8 MiB ([Config]).
//
// A new Open takes a token of its client's bucket and one of its service's, is refused early when what lasts is spent, and is
// counted exactly before it commits. The transaction of an Open takes, in this order: the shared pin of the feed, the fence, the
// session's rows, its client's advisory lock, the feed's clock, the ledger.
//
// # Invariants
//
//   - O1: an Open that is repeated gets the first body, byte for byte, whatever happened since, or a refusal.
//   - O4: a fence without a session is expired: no Open that was ever answered begins again.
//   - O6: fence, session, first body, clock and ledger commit together or not at all.
//   - O7: no session is committed whose W is below the floor: the pin keeps it, and the last statement looks.
//   - O10: every quota refuses by its name, load for now and what lasts until something ends; a refused Open leaves nothing, no
//     session is ended for another's sake, and an existing fence is answered before any quota. What bodies hold that their
//     peers have not taken is counted too, before the memory is taken.
//   - O12: after a break nothing promised before it is served, whoever asks what: turns are compared where sessions are read. A
//     position with a valid MAC that the log denies breaks the epoch; anything else that is presented breaks nothing.
//   - S1: T, "is a timer due" and W come from one statement, and every page is cut by version predicates at W.
//   - S4: nothing at or above the smallest W still promised is removed; what ends a session frees it in the same transaction.
//   - S7: a page's content is a function of session, position and limits alone. highWater, the one number that may grow,
//     never changes which groups a page holds.
//   - S10: a session is read by what was stored at its Open, or reset; a rules IRI derives the same for ever (testdata/rules).
//   - L4: live ids are digests of scope (which holds the epoch), sequence and index. Anonymous sessions that ask the same of the same
//     feed share the layout of its last groups; signed ones share none.
//   - L5: through never falls and never passes a relevant group that was not delivered.
//   - L7: a body of exactly maxBytes is delivered; groups are whole; H9: bodies are canonical, every byte counted.
//   - L9: every cursor that is not this session's is the same reset-required.
//   - L10: what a node has kept of evidence is served only while the database still holds it: the gate is asked. What an Open
//     stores is read for it.
//   - T3: rows, sessions and manifests expire at their second, all by the one clock of T.
//   - W1: a poll registers with the feed, then looks, then sleeps. For the end of its session it registers before it looks that up.
//   - W2: a session that ends on one node wakes its polls on every node that hears of commits by notification; elsewhere they end at
//     their deadlines, or with what they wait for. Either way the gate says how.
//   - W5: a sleeping poll costs no statement. One that finds nothing costs a read of the log, at its end, and two gates (three when
//     it is signed); one that is woken the gates, and its evidence unless somebody was served it before or a commit of this node
//     brought it, up to 64 KiB; one that is woken soon a gate less, and so one that finds a group when it comes, which costs a read
//     of the log. What happened long ago or on another node may cost one, too. Gates, reads, loads and evidence of the same moment share statements.
//   - W8: a poll needs a place only to sleep: what there is to deliver is delivered.
//   - D1: what a request on a feed reads and writes is in the feed's database, and every node finds it there.
//   - D2: a database that is away or hangs makes its own feeds unavailable; nothing of the others fails or waits for it.
//   - D3: feeds and services live where they began, and all nodes have one main database: what says otherwise is refused before
//     anything is made, recorded or served.
//   - A1: a request that carries any part of an authentication is valid or refused; a session never changes its mode.
//   - A5: a row that is prohibited is in no body whose gate began after the prohibition; the session that needed it is reset.
//   - A7: what somebody who is no longer among a row's readers was promised of it is in no body whose gate began after that.
//   - A6: no body is written whose gate did not pass after it was built, and again after it was signed.
//   - A8: no session id, cursor, request id or query in logs, metrics or errors; of an address no more than a keyed digest is
//     kept anywhere.
//
// # Goroutines
//
// A request runs on its own goroutine. A poll that sleeps is parked if the server offers that (package internal/parking): the
// request's goroutine ends, the poll sleeps without any, and is answered on one of the server's. What requests of the same moment ask together (gates, loads, evidence) is asked by at most
// two goroutines for each of the three and each database; each ends when nobody waits, and its statement is given up when all who
// asked have left. When one fails, times out or panics, everybody in it asks by himself, in his own time and on his own goroutine.
// Run blocks in its caller's, and has three beside it for each database: one that does the rounds of retention, on
// the pool and one connection of its own that holds the lock, one that reads the gauges, and one that tells the other nodes of
// sessions that ended here.
//
// # Failure
//
// Database faults are unavailable, to be tried again; a hole, a lost row or rewritten history is reset-required, never a
// shorter truth. A commit whose reply is lost is answered unavailable: the client's retry asks the fence. A round of retention that fails is
// told once and tried again each period; until it succeeds more is kept, never less.
//
// # Non-goals
//
// No order of its own and no removal of log or versions (package livefeed), no client (package client), no cryptography (package brc104: what it
// verifies becomes the caller's principal, what it signs is the seal). Identities cost nothing to make, so on a service that
// any identity may open only the quotas of the service and the node hold off a crowd of them.
package lookup
