package lookup

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// retain does one round of retention, to its end, and checks the ledger.
func (n *node) retain() Retained {
	n.t.Helper()
	all, err := n.provider.Retain(context.Background())
	for more := all.More; err == nil && more; {
		var next Retained
		next, err = n.provider.Retain(context.Background())
		all.Sessions, all.Void, all.Manifests = all.Sessions+next.Sessions, all.Void+next.Void, all.Manifests+next.Manifests
		all.Groups, all.Versions, more = all.Groups+next.Groups, all.Versions+next.Versions, next.More
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.audit()
	return all
}

// audit compares the ledger with what is stored.
func (n *node) audit() {
	n.t.Helper()
	var wrong int
	err := n.pool.QueryRow(context.Background(), `select count(*) from (
			select feed_id, service, count(*) as sessions, sum(retained) as bytes from lookup_session where state = 1 group by feed_id, service
		) s full join (select * from lookup_ledger where sessions <> 0 or bytes <> 0) l using (feed_id, service)
		where s.sessions is distinct from l.sessions or s.bytes is distinct from l.bytes`).Scan(&wrong)
	if err != nil {
		n.t.Fatal(err)
	}
	if wrong != 0 {
		n.t.Fatalf("%d services of the ledger are not what is stored", wrong)
	}
	err = n.pool.QueryRow(context.Background(), `select count(*) from lookup_session where retained <>
		octet_length(first_batch) + octet_length(disclosed) + octet_length(request)`).Scan(&wrong)
	if err != nil || wrong != 0 {
		n.t.Fatalf("%d sessions retain another size than they say (%v)", wrong, err)
	}
}

// floor is how far the feed was compacted.
func (n *node) floor() uint64 {
	n.t.Helper()
	stats, err := n.feed.Stats(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	return stats.Floor
}

// shut closes a session.
func (n *node) shut(b *wire.Batch) {
	n.t.Helper()
	if r := n.request(closePath, closeBody(b.Session)); !bytes.Equal(r.body, closed) {
		n.t.Fatalf("close answered %s", r.body)
	}
}

// rest pages from a batch to the end of its snapshot and returns the outputs, those of the batch first.
func (n *node) rest(b *wire.Batch, l wire.Limits) (out []string, last *wire.Batch) {
	n.t.Helper()
	out = outputs(b)
	for !b.SnapshotComplete {
		b = n.read(b, l)
		out = append(out, outputs(b)...)
	}
	return out, b
}

func TestS4_CompactionKeepsWhatIsPromised(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	coins := n.stock(6)
	again := coins[0].put(genre(0), `,"order":"5000"`)
	n.append(again) // versions that nobody was promised
	whole := n.open(ask{})
	want := outputs(whole)
	n.shut(whole)
	first := n.open(ask{limits: few(1)})
	jazz := n.open(ask{query: `{"match":{"genre":"jazz"}}`, limits: few(1)})
	if done := n.retain(); done.Versions == 0 || n.floor() != first.Through {
		t.Fatalf("%+v, floor %d: what nobody was promised stays", done, n.floor())
	}

	n.append(coins[1].withdrawn("evicted"))
	n.append(coins[2].spent(mint("spender", 0, coins[2].point())))
	n.append(coins[3].put(genre(1), `,"order":"9999"`))
	n.append(coins[4].put(genre(1), `,"order":"0004"`))
	second := n.open(ask{limits: few(1)})
	whole = n.open(ask{})
	wantSecond := outputs(whole)
	n.shut(whole)
	n.append(coins[5].withdrawn("late"))
	n.append(mint("new", 0).put(genre(0), ""))
	n.retain()
	if n.floor() != first.Through {
		t.Fatalf("floor %d above the watermark %d", n.floor(), first.Through)
	}
	n.halt()

	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	got, end := m.rest(first, few(2))
	if !slices.Equal(got, want) {
		t.Fatalf("%v\n%v", got, want)
	}
	// And then everything that happened since, in its order.
	wantLive := []string{
		"withdraw " + coins[1].short() + " evicted", "spend " + coins[2].short(), "withdraw " + coins[2].short() + " spent",
		"output " + coins[3].short(), "withdraw " + coins[5].short() + " late", "output " + mint("new", 0).short(),
	}
	if live := tellAll(observations(m.read(end, wide))); !slices.Equal(live, wantLive) {
		t.Fatalf("%v\n%v", live, wantLive)
	}
	if rows, _ := m.rest(jazz, few(1)); len(rows) != 3 {
		t.Fatalf("%v", rows)
	}

	// When the first is over, its versions go; the second still has its own.
	m.shut(first)
	m.shut(jazz)
	if done := m.retain(); done.Versions == 0 || m.floor() != second.Through {
		t.Fatalf("%+v, floor %d, want %d", done, m.floor(), second.Through)
	}
	m.request(readPath, readBody(first.Session, first.Cursor, wide)).refused(t, wire.Expired)
	if got, _ := m.rest(second, few(3)); !slices.Equal(got, wantSecond) {
		t.Fatalf("%v\n%v", got, wantSecond)
	}
}

// TestO4_TheFenceOutlivesEverything walks an Open's whole afterlife: what is left of it can go piece by piece, and a repeated Open is
// never a new session, on any node.
func TestO4_TheFenceOutlivesEverything(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	n.stock(3)
	digest := n.capability()
	named := func(a ask, on *node, capability string) reply {
		return on.request(openPath, a.body(), capabilityHeader(capability))
	}
	lived, ended := ask{id: newID()}, ask{id: newID()}
	first := named(lived, n, digest)
	b := first.batch(t)
	c := named(ended, n, digest).batch(t)
	n.shut(c)
	check := func(when string, live, closed bool) {
		t.Helper()
		for _, on := range []*node{n, m} {
			if r := named(lived, on, digest); live && !bytes.Equal(r.body, first.body) {
				t.Fatalf("%s: %s", when, r.body)
			} else if !live {
				r.refused(t, wire.Expired)
			}
			named(ended, on, digest).refused(t, wire.Expired)
			for _, a := range []ask{lived, ended} {
				other := a
				other.query = `{"match":{"genre":"jazz"}}`
				named(other, on, digest).refused(t, wire.Conflict)
				named(other, on, strings.Repeat("ab", 32)).refused(t, wire.Conflict)
				named(a, on, strings.Repeat("ab", 32)).refused(t, wire.ContextChanged)
			}
			r := on.request(readPath, readBody(c.Session, c.Cursor, wide), capabilityHeader(digest))
			if closed {
				r.refused(t, wire.Expired)
			} else {
				r.refused(t, wire.ResetRequired)
			}
		}
		if got := n.count("open_fence"); got != 2 {
			t.Fatalf("%s: %d fences", when, got)
		}
	}
	check("at once", true, true)
	n.append(mint("later", 0).put(genre(0), ""))
	n.retain()
	check("after compaction", true, true)
	n.advance(b.ExpiresAt - 1)
	check("a second before expiry", true, true)
	n.advance(b.ExpiresAt)
	check("at expiry", false, true)
	n.advance(b.ReplayUntil - 1)
	if done := n.retain(); done.Sessions != 0 || n.count("lookup_session") != 2 {
		t.Fatalf("%+v a second before replayUntil", done)
	}
	check("a second before replayUntil", false, true)
	n.advance(max(b.ReplayUntil, c.ReplayUntil)) // the second may have turned between the two
	if done := n.retain(); done.Sessions != 2 || n.count("lookup_session") != 0 || n.floor() != 4 {
		t.Fatalf("%+v at replayUntil, floor %d", done, n.floor())
	}
	check("after the sessions are removed", false, false)
	// The manifest is kept for a while, so that who holds on to it hears that it is old, and then goes.
	manifest := n.manifest()
	n.advance(manifest.ExpiresAt)
	named(ask{}, n, digest).refused(t, wire.Expired)
	n.advance(manifest.ExpiresAt + manifestKept - 1)
	if done := n.retain(); done.Manifests != 0 {
		t.Fatalf("%+v a second early", done)
	}
	n.advance(manifest.ExpiresAt + manifestKept)
	if done := n.retain(); done.Manifests != 1 {
		t.Fatalf("%+v when the manifest's time has come", done)
	}
	named(ask{}, n, digest).refused(t, wire.ContextChanged)
	check("after its manifest is gone", false, false)
	n.halt()
	n = start(t, setup{db: m.db, identity: key, base: m.provider.baseURL})
	check("after a restart", false, false)
}

// TestO1_AManifestStaysWhileASessionNamesIt: the exact answer to a repeated Open outlives its manifest by far.
func TestO1_AManifestStaysWhileASessionNamesIt(t *testing.T) {
	t.Parallel()
	n := start(t, setup{manifest: 60, service: func(s *Service) { s.SessionSeconds = 2 * manifestKept }})
	digest := n.capability()
	a := ask{id: newID(), limits: few(1)}
	n.stock(3)
	first := n.request(openPath, a.body(), capabilityHeader(digest))
	b := first.batch(t)
	n.advance(b.ExpiresAt - 1)
	if done := n.retain(); done.Manifests != 0 {
		t.Fatalf("%+v: a session's manifest is removed", done)
	}
	if again := n.request(openPath, a.body(), capabilityHeader(digest)); !bytes.Equal(again.body, first.body) {
		t.Fatalf("%s", again.body)
	}
	n.request(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(digest)).batch(t)
	n.request(openPath, ask{}.body(), capabilityHeader(digest)).refused(t, wire.Expired)
	n.advance(b.ReplayUntil)
	if done := n.retain(); done.Sessions != 1 || done.Manifests == 0 {
		t.Fatalf("%+v", done)
	}
}

// TestO7_AWatermarkThatWasCompactedAway forces what the pin rules out: a compactor without the lock moves the floor between the
// cut and the commit. The Open fails and leaves nothing; so does one that finds W gone when it reads its first page.
func TestO7_AWatermarkThatWasCompactedAway(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]moment{"before the cut": afterClaim, "before the commit": afterFirst} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, setup{})
			n.stock(4)
			a := ask{id: newID()}
			stop := n.during(m, func() {
				if m == afterFirst {
					n.append(mint(name, 0).put(genre(0), ""))
				}
				if _, err := n.db.Pool.Exec(context.Background(), `update feed_floor set floor = (select head from feed_head) + $1`,
					map[moment]int{afterClaim: 1, afterFirst: 0}[m]); err != nil {
					t.Error(err)
				}
			})
			n.request(openPath, a.body()).refused(t, wire.ResetRequired)
			stop()
			if n.count("open_fence") != 0 || n.count("lookup_session") != 0 || n.count("lookup_ledger") != 0 {
				t.Fatal("something was left behind")
			}
			if _, err := n.db.Pool.Exec(t.Context(), `update feed_floor set floor = 0`); err != nil {
				t.Fatal(err)
			}
			n.open(a) // the same requestId may be opened when that is over
		})
	}
}

// TestO7_ThePinHoldsTheCompactorOff: while an Open is between its cut and its commit the compactor waits, and then keeps what the
// session was promised. Without the pin it would not: the session before it is gone.
func TestO7_ThePinHoldsTheCompactorOff(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	coins := n.stock(4)
	compacted := make(chan Retained, 1)
	waits := func() bool {
		var waiting bool
		err := n.db.Pool.QueryRow(context.Background(), `select exists (select from pg_locks where locktype = 'advisory' and not granted
			and database = (select oid from pg_database where datname = current_database()))`).Scan(&waiting)
		if err != nil {
			t.Error(err)
		}
		return waiting
	}
	stop := n.during(afterFirst, func() {
		n.append(coins[1].withdrawn("gone"))
		go func() {
			done, err := n.provider.Retain(context.Background())
			if err != nil {
				t.Error(err)
			}
			compacted <- done
		}()
		testkit.Eventually(t, "the compactor waits for the Open", waits)
	})
	b := n.open(ask{limits: few(1)})
	stop()
	<-compacted
	if n.floor() > b.Through {
		t.Fatalf("floor %d, W %d", n.floor(), b.Through)
	}
	if got, _ := n.rest(b, few(1)); !slices.Equal(got, []string{coins[0].hex(), coins[1].hex(), coins[2].hex(), coins[3].hex()}) {
		t.Fatalf("%v", got)
	}
}

// TestA9_WhatEndsASessionFreesItsPins: a compaction right after a close, a removal, a revocation or a reset moves the floor, and the
// session's bytes count no more.
func TestA9_WhatEndsASessionFreesItsPins(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	p := n.person(1)
	n.stock(2)
	for name, end := range map[string]struct {
		act  func(b *wire.Batch)
		want wire.Code
	}{
		"close":    {func(b *wire.Batch) { p.ask(closePath, closeBody(b.Session)) }, wire.Expired},
		"remove":   {func(b *wire.Batch) { n.removeAll() }, wire.Unauthorized},
		"revoke":   {func(b *wire.Batch) { revokeOnce(t, n, p) }, wire.Unauthorized},
		"prohibit": {func(b *wire.Batch) { n.hideFirst(p, b) }, wire.ResetRequired},
	} {
		n.grant(p, membersService)
		c := mint(name, 0)
		n.append(c.put(genre(0), `,"order":"!"`))
		b := p.open(membersService, ask{limits: few(1)})
		n.append(c.put(genre(0), `,"order":"0"`))
		n.retain()
		if n.floor() != b.Through {
			t.Fatalf("%s: floor %d before, want %d", name, n.floor(), b.Through)
		}
		end.act(b)
		p.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, end.want)
		n.retain()
		stats, err := n.feed.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Floor != stats.Head {
			t.Fatalf("%s: floor %d of %d: the pin stays", name, stats.Floor, stats.Head)
		}
		p.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, end.want)
		var kept int64
		if err := n.pool.QueryRow(t.Context(), `select sum(retained) from lookup_session`).Scan(&kept); err != nil || kept != 0 {
			t.Fatalf("%s: %d bytes are kept (%v)", name, kept, err)
		}
	}
}

// removeAll removes every open session as an operator would.
func (n *node) removeAll() {
	list, err := n.provider.ListSessions(context.Background(), SessionFilter{})
	if err != nil {
		n.t.Error(err)
	}
	for _, s := range list {
		if _, err := n.provider.RemoveSession(context.Background(), s.Ref); err != nil {
			n.t.Error(err)
		}
	}
}

// hideFirst prohibits a row that the session has yet to read, and has it read.
func (n *node) hideFirst(p *person, b *wire.Batch) {
	for _, c := range []coin{mint(n.t.Name()+"0", 0), mint(n.t.Name()+"1", 0)} {
		if changed, err := n.feed.Prohibit(context.Background(), c.point(), "a court said so"); err != nil || !changed {
			n.t.Errorf("%v, %v", changed, err)
		}
	}
	p.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(n.t, wire.ResetRequired)
}

// TestA9_ACloseThatCannotBeStoredClosesNothing.
func TestA9_ACloseThatCannotBeStoredClosesNothing(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(2)
	b := n.open(ask{limits: few(1)})
	// The database takes no change of a session: the close is not told as done, and is not done.
	if _, err := n.db.Pool.Exec(t.Context(), `create function refuse() returns trigger language plpgsql as 'begin raise ''no space left''; end';
		create trigger refuse before update on lookup_session execute function refuse()`); err != nil {
		t.Fatal(err)
	}
	if e := n.request(closePath, closeBody(b.Session)).refused(t, wire.Unavailable); !e.Retryable || e.RetryAfterMs == nil {
		t.Fatalf("%+v", e)
	}
	if r := n.request(closePath, closeBody("unknown")); !bytes.Equal(r.body, closed) {
		t.Fatalf("%s", r.body)
	}
	n.read(b, few(1))
	n.audit()
	if _, err := n.db.Pool.Exec(t.Context(), `drop trigger refuse on lookup_session`); err != nil {
		t.Fatal(err)
	}
	n.shut(b)
	n.shut(b)
	n.request(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Expired)
	n.audit()
}

// TestT3_ExpiryIsExactToTheSecond: a row, a session and a manifest are there at their last second and gone at the next.
func TestT3_ExpiryIsExactToTheSecond(t *testing.T) {
	t.Parallel()
	n := start(t, setup{manifest: 5000})
	stays, due := mint("stays", 0), mint("due", 0)
	base := n.clockNow() + 10_000
	n.advance(base)
	manifest := n.manifest()
	if manifest.IssuedAt != base || manifest.ExpiresAt != base+5000 {
		t.Fatalf("a manifest of %d to %d at %d", manifest.IssuedAt, manifest.ExpiresAt, base)
	}
	old := capabilityHeader(manifest.Digest())
	n.append(stays.put(genre(0), `,"order":"1"`), due.put(genre(0), `,"order":"2","expiresAt":"`+decimal(base+100)+`"`))

	n.advance(base + 99)
	if got := outputs(n.request(openPath, ask{}.body(), old).batch(t)); len(got) != 2 {
		t.Fatalf("a second before: %v", got)
	}
	n.advance(base + 100)
	b := n.request(openPath, ask{}.body(), old).batch(t)
	if got := outputs(b); !slices.Equal(got, []string{stays.hex()}) {
		t.Fatalf("at the row's expiry: %v", got)
	}
	n.advance(base + 100 + 3599)
	n.request(readPath, readBody(b.Session, b.Cursor, wide), old).batch(t)
	n.advance(base + 100 + 3600)
	n.request(readPath, readBody(b.Session, b.Cursor, wide), old).refused(t, wire.ResetRequired)
	n.advance(base + 4999)
	n.request(openPath, ask{}.body(), old).batch(t)
	n.advance(base + 5000)
	n.request(openPath, ask{}.body(), old).refused(t, wire.Expired)
	// What was judged a moment ago is judged again where T is established.
	next := n.manifest()
	stop := n.during(afterClaim, func() { n.advance(next.ExpiresAt) })
	n.request(openPath, ask{}.body(), capabilityHeader(next.Digest())).refused(t, wire.Expired)
	stop()
	if got := n.manifest(); got.IssuedAt < next.ExpiresAt {
		t.Fatalf("an expired manifest is served: %d to %d", got.IssuedAt, got.ExpiresAt)
	}
}

// TestS4_OneNodeForgets: of two nodes one does the rounds, and the other takes over when it goes; a round that fails is told, and
// tried again.
func TestS4_OneNodeForgets(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	often := Retention{Every: 5 * time.Millisecond}
	n := start(t, setup{identity: key, retention: often})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL, retention: often})
	rounds := func(on *node, outcome string) float64 {
		return on.metric("overlayd_lookup_retention_rounds_total", outcome)
	}
	testkit.Eventually(t, "somebody does rounds", func() bool { return rounds(n, "done")+rounds(m, "done") > 2 })
	leader, other := n, m
	if rounds(m, "done") > 0 {
		leader, other = m, n
	}
	c := leader.stock(1)[0]
	b := leader.open(ask{})
	leader.append(c.put(genre(1), ""))
	leader.shut(b)
	testkit.Eventually(t, "the floor rises by itself", func() bool { return leader.floor() == 2 })

	if _, err := n.db.Pool.Exec(t.Context(), `alter table manifest rename to elsewhere`); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a round fails", func() bool { return rounds(leader, "failed") > 0 })
	at := rounds(leader, "failed")
	testkit.Eventually(t, "and is tried again", func() bool { return rounds(leader, "failed") > at })
	if _, err := n.db.Pool.Exec(t.Context(), `alter table elsewhere rename to manifest`); err != nil {
		t.Fatal(err)
	}
	at = rounds(leader, "done")
	testkit.Eventually(t, "and succeeds", func() bool { return rounds(leader, "done") > at })
	if got := strings.Count(leader.log.String(), "what is no longer promised could not all be removed"); got != 1 {
		t.Fatalf("told %d times", got)
	}
	if rounds(other, "done") != 0 {
		t.Fatal("both do rounds")
	}
	leader.halt()
	testkit.Eventually(t, "the other takes over", func() bool { return rounds(other, "done") > 0 })
}

func decimal(v uint64) string { return strconv.FormatUint(v, 10) }
