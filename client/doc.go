// Package client follows lookup-live services (BRC-193): it discovers a provider,
// opens a query, pages the snapshot and stays with the live feed, and keeps what
// it was told in a durable state. It believes nothing it has not checked, and uses
// no cursor whose observations are not on disk.
//
//	err := client.Follow(ctx, client.Options{
//		BaseURL: "https://overlay.example.com/api",
//		Service: "ls_catalogue",
//		State:   state, // of package sqlitestate
//		On:      func(ctx context.Context, e client.Event) error { ... },
//	})
//
// # A generation
//
// A source is what one service of one base URL says about one query to one
// principal: to nobody in particular, or to the owner of [Options.Key]. Its life is a
// row of generations, each with one Open and everything read under it:
//
//	none --discover, save intent--> saved --Open--> snapshot --last page--> complete --Read--> live
//	                                  |                |                       |                |
//	                                  +----------------+-----------+-----------+----------------+
//	                                                               v
//	            ended: reset-required, expired, unauthorized, context-changed, equivocation, cancelled
//
// A later generation is only begun when [Options.OnReset] or the caller says so;
// one that ended before its first batch is simply tried again. The nodes of a provider
// that is being changed may disagree about its manifest: an Open is then
// context-changed until both requests meet nodes that agree.
//
// # One answer
//
//	request sent -> whole body, signature of the pinned peer (with a key) -> status, echo,
//	  encoding, size -> JSON, schema -> scope -> deadlines -> limits -> continuation
//	  -> ONE commit (receipts, memberships, checkpoint) -> events -> delivery mark
//	  -> the next request
//
// With a key every request is signed in a BRC-104 session, which begins with a
// handshake at the root of the origin:
//
//	no session --handshake, the pinned peer answers--> session --unsigned 401--> no session
//	    |                                                 |
//	    +-- anything else: try again later                +-- signed answer: the checks above
//
// A session that the provider does not know any more is begun again once for a
// request, which is then sent again as it was; the second time in a row is a reason to
// wait.
//
// # Invariants
//
//   - C1: the checks above are made in that order, and nothing of an answer is
//     recorded, shown or acted on before all of them passed. An error body counts as
//     the provider's word only when its shape, status and echo are right; anything
//     else that is not a 200 is at most a reason to try again. No redirect is
//     followed, no content encoding accepted. With a key nothing whatever of an answer
//     is looked at before the signature of the pinned peer over all of it was verified,
//     and nothing is ever sent without one. (For public services the signature of C1 is
//     that of the manifest.)
//   - C2: chain, scope, session and deadlines never change within a generation: of a
//     signed one the identity speaks, and its access is that of the first batch; W
//     never changes; through never falls; live sequences increase, lie above what was
//     read and at most at through; no id comes twice; nothing of the snapshot comes
//     after its end; within one epoch a new snapshot is never older than what was read.
//   - C3: observations, memberships and checkpoint are one commit, made before the
//     cursor is used. Events follow the commit, and a mark follows the events: the
//     state has everything exactly once, the callback at least once.
//   - C4: request id (256 random bits), the exact Open and the signed manifest are
//     saved before the Open is sent; a dropped answer is asked for again with the same
//     bytes under the same digest, in whichever BRC-104 session.
//   - C5: the end of a generation is a durable event. Old rows stay, stale, until a
//     whole replacement snapshot is recorded; rows that only the old generation had go
//     in that same commit.
//   - C6: what may pass is tried again, later and later, with jitter and never before
//     retryAfterMs. So is an Open that is refused as reset-required, expired or
//     context-changed, and so are generations that end soon after they began: the first
//     new one begins at once, the others after pauses that grow up to 30 s and are told,
//     until one lasts. A 402 of the provider ends the run; there is nothing here that could pay.
//   - C7: one request at a time for each source: one goroutine sends them, handshakes
//     too, a record has one holder, and a state has one process. What is said to one
//     principal never becomes another's.
//
// # What is trusted
//
// A public service is known by the origin TLS gives, and its manifest by the
// identity that signed it: [Options.Identity], or the first one seen. A signed service
// is that identity, in the manifest and in every answer; TLS only keeps its words from
// others. No request to a public service is signed, and none to a signed one is not;
// discovery with a key tells the provider whose it is. The chain is pinned for the
// whole state at first use. The provider is trusted for which rows it lists and for
// nothing else; that it left no group out cannot be proved.
//
// # Ownership and failure
//
// [Follow] starts no goroutines: it runs, calls back and commits on the caller's,
// and returns when its context ends, after the commit under way. A failed commit
// ends the run with the state as it was.
//
// # Left for reconciliation
//
// Evidence is received, not verified: no BEEF is read here, no script run, no proof
// checked, and a spend is the provider's word. Receipts keep the order they came in
// (generation, page, group, index), and the exact canonical bytes, so that
// verification and reconciliation across sources can begin from the state as it is,
// with progress marks of their own beside the delivery mark. [State] and [Record]
// are the ports they grow from. Retention of old receipts is not here yet.
package client
