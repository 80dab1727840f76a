package lookup

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// rotate begins a new epoch of the node's feed.
func (n *node) rotate(mode livefeed.Mode) livefeed.Rotation {
	r, err := n.feed.Rotate(context.Background(), newID(), mode, "the operator's reason")
	if err != nil || r.Replayed {
		n.t.Errorf("%+v, %v", r, err)
	}
	return r
}

// epoch is what the node's manifest says.
func (n *node) epoch() string {
	n.t.Helper()
	epochs, err := wire.Epochs(n.manifest())
	if err != nil {
		n.t.Fatal(err)
	}
	return epochs[testService]
}

func twoNodes(t *testing.T, s setup) (n, m *node) {
	t.Helper()
	s.identity = identityKey(t)
	n = start(t, s)
	s.db, s.base = n.db, n.provider.baseURL
	return n, start(t, s)
}

// TestO12_RetireLetsTheOldLiveOn: sessions and exact retries of a retired epoch live on, byte for byte, on every node and past
// compaction; what is new comes under the new epoch and must name it.
func TestO12_RetireLetsTheOldLiveOn(t *testing.T) {
	t.Parallel()
	n, m := twoNodes(t, setup{})
	n.stock(5)
	before, old := n.epoch(), capabilityHeader(n.capability())
	a := ask{id: newID(), limits: few(2)}
	first := n.request(openPath, a.body(), old)
	snapshot := first.batch(t)
	page := m.request(readPath, readBody(snapshot.Session, snapshot.Cursor, few(2)), old)
	live := n.live(`{}`)

	// While a poll sleeps on the other node: it is not disturbed, and ends with what is committed later.
	c := mint("later", 0)
	var once sync.Once
	var turned livefeed.Rotation
	stop := m.during(beforeSleep, func() {
		once.Do(func() {
			turned = n.rotate(livefeed.Retire)
			n.append(c.put(genre(0), ""))
		})
	})
	polled := m.request(readPath, readBody(live.Session, live.Cursor, wait(20000)), old).batch(t)
	stop()
	if got := tellAll(observations(polled)); !slices.Equal(got, []string{"output " + c.short()}) || polled.Scope.Epoch != before {
		t.Fatalf("%v under epoch %s", got, polled.Scope.Epoch)
	}
	if turned.Epoch == before || turned.Turn != 1 {
		t.Fatalf("%+v", turned)
	}
	again := func(when string) {
		t.Helper()
		for _, on := range []*node{n, m} {
			if r := on.request(openPath, a.body(), old); !bytes.Equal(r.body, first.body) {
				t.Fatalf("%s: the retry differs: %s", when, r.body)
			}
			if r := on.request(readPath, readBody(snapshot.Session, snapshot.Cursor, few(2)), old).batch(t); !slices.Equal(ids(r), ids(page.batch(t))) {
				t.Fatalf("%s: the page differs", when)
			}
			if r := on.request(readPath, readBody(live.Session, live.Cursor, wide), old).batch(t); !slices.Equal(ids(r), ids(polled)) {
				t.Fatalf("%s: the log differs", when)
			}
			on.request(openPath, ask{}.body(), old).refused(t, wire.ResetRequired)
			if got := on.epoch(); got != turned.Epoch {
				t.Fatalf("%s: a manifest names epoch %s, want %s", when, got, turned.Epoch)
			}
		}
		if n.capability() != m.capability() {
			t.Fatalf("%s: two nodes serve different manifests", when)
		}
	}
	again("at once")
	fences := n.count("open_fence")
	if done := n.retain(); done.Void != 0 || done.Sessions != 0 {
		t.Fatalf("%+v", done)
	}
	again("after compaction")
	if got := n.count("open_fence"); got != fences {
		t.Fatal("a refused Open left a fence")
	}
	// The same key is answered as before, and nothing turns.
	key := newID()
	once1, err := n.feed.Rotate(t.Context(), key, livefeed.Retire, "")
	if err != nil {
		t.Fatal(err)
	}
	once2, err := m.feed.Rotate(t.Context(), key, livefeed.Retire, "")
	if err != nil || !once2.Replayed || once2.Epoch != once1.Epoch {
		t.Fatalf("%+v, %v", once2, err)
	}
	turned = once1
	again("after the next epoch")

	// Under the new epoch everything has new names: the same group, seen by the same query, is another observation.
	fresh := m.open(ask{query: `{}`})
	if fresh.Scope.Epoch != once1.Epoch || fresh.Through != 6 {
		t.Fatalf("%+v", fresh)
	}
	d := mint("last", 0)
	n.append(d.put(genre(0), ""))
	was := n.request(readPath, readBody(polled.Session, polled.Cursor, wide), old).batch(t)
	is := n.read(fresh, wide)
	if was.Groups[0].Sequence != is.Groups[0].Sequence || slices.ContainsFunc(ids(was), func(id string) bool { return slices.Contains(ids(is), id) }) {
		t.Fatalf("%v\n%v", ids(was), ids(is))
	}
	n.halt()
	n = start(t, setup{db: m.db, identity: n.provider.identity, base: m.provider.baseURL})
	if r := n.request(openPath, a.body(), old); !bytes.Equal(r.body, first.body) {
		t.Fatalf("after a restart: %s", r.body)
	}
}

// TestO12_BreakVoidsEverything: from the moment the operator is answered, every manifest, session, cursor and retry of a
// broken epoch is reset-required, on every node, at every moment of a request, before and after the clean-up.
func TestO12_BreakVoidsEverything(t *testing.T) {
	t.Parallel()
	n, m := twoNodes(t, setup{})
	coins := n.stock(4)
	before, old := n.epoch(), capabilityHeader(n.capability())
	a, closedAsk := ask{id: newID(), limits: few(2)}, ask{id: newID()}
	snapshot := n.request(openPath, a.body(), old).batch(t)
	live := n.live(`{}`)
	jazz := n.live(`{"match":{"genre":"jazz"}}`)
	n.shut(n.request(openPath, closedAsk.body(), old).batch(t))
	n.append(coins[0].withdrawn("gone"))
	wake := n.request(readPath, readBody(live.Session, live.Cursor, wide), old).batch(t)

	// While polls sleep: one on the node that is asked, one on another.
	sleepers := map[*node]*wire.Batch{n: wake, m: jazz}
	jazzNow := n.request(readPath, readBody(jazz.Session, jazz.Cursor, wide), old).batch(t)
	sleepers[m] = jazzNow
	var asleep sync.WaitGroup
	asleep.Add(2)
	var stops []func()
	for on := range sleepers {
		var once sync.Once
		stops = append(stops, on.during(beforeSleep, func() { once.Do(asleep.Done) }))
	}
	type end struct {
		r    reply
		took time.Duration
	}
	ends := make(chan end, 2)
	for on, b := range sleepers {
		go func() {
			began := time.Now()
			r, err := on.try(context.Background(), readPath, readBody(b.Session, b.Cursor, wait(25000)), old)
			if err != nil {
				t.Error(err)
			}
			ends <- end{r, time.Since(began)}
		}()
	}
	asleep.Wait()
	turned := n.rotate(livefeed.Break)
	for range sleepers {
		e := <-ends
		e.r.refused(t, wire.ResetRequired)
		if e.took > 15*time.Second {
			t.Errorf("a poll slept through the break, for %s", e.took)
		}
	}
	for _, stop := range stops {
		stop()
	}
	void := func(when string) {
		t.Helper()
		for _, on := range []*node{n, m} {
			on.request(openPath, a.body(), old).refused(t, wire.ResetRequired)
			on.request(openPath, closedAsk.body(), old).refused(t, wire.ResetRequired)
			on.request(openPath, ask{}.body(), old).refused(t, wire.ResetRequired)
			on.request(readPath, readBody(snapshot.Session, snapshot.Cursor, few(2)), old).refused(t, wire.ResetRequired)
			on.request(readPath, readBody(live.Session, live.Cursor, wide), old).refused(t, wire.ResetRequired)
			on.request(readPath, readBody(wake.Session, wake.Cursor, wide), old).refused(t, wire.ResetRequired)
			if got := on.epoch(); got != turned.Epoch || got == before {
				t.Fatalf("%s: a manifest names epoch %s, want %s", when, got, turned.Epoch)
			}
		}
	}
	void("at once")
	if done := n.retain(); done.Void != 3 || n.floor() != 5 {
		t.Fatalf("%+v, floor %d: the void still hold back", done, n.floor())
	}
	if done := n.retain(); done.Void != 0 {
		t.Fatalf("%+v again", done)
	}
	void("after the clean-up")
	n.shut(snapshot)
	void("after a close")

	// What begins now is of the new epoch, also by the same words.
	fresh := n.open(ask{})
	if fresh.Scope.Epoch != turned.Epoch || len(outputs(fresh)) != 3 {
		t.Fatalf("%+v", fresh)
	}
	n.append(mint("new", 0).put(genre(0), ""))
	if got := n.read(fresh, wide); len(got.Groups) != 1 {
		t.Fatalf("%d groups", len(got.Groups))
	}
	n.halt()
	n = start(t, setup{db: m.db, identity: n.provider.identity, base: m.provider.baseURL})
	void("after a restart")
	m.read(fresh, wide)
	m.advance(fresh.ReplayUntil) // the last of them
	if done := m.retain(); done.Sessions < 4 {
		t.Fatalf("%+v", done)
	}
	// The records are gone; the fences are not.
	m.request(openPath, a.body(), old).refused(t, wire.Expired)
	m.request(readPath, readBody(live.Session, live.Cursor, wide), old).refused(t, wire.ResetRequired)
}

// TestO12_BreakAtEveryMoment breaks the epoch at each moment of an Open, a page and a live read, by this node and by another: no
// success of the old epoch leaves after the operator's answer.
func TestO12_BreakAtEveryMoment(t *testing.T) {
	t.Parallel()
	n, m := twoNodes(t, setup{})
	for _, by := range []*node{n, m} {
		for _, on := range []moment{afterClaim, afterFirst, afterCommit, arrived, beforeBuild, beforeGate} {
			secret := mint(fmt.Sprint("secret", on, by.base), 0)
			old := capabilityHeader(n.capability())
			opened := n.request(openPath, ask{}.body(), old).batch(t)
			paged := n.request(openPath, ask{limits: few(1)}.body(), old).batch(t)
			n.append(secret.put(genre(0), `,"order":"0"`), mint(fmt.Sprint("more", on, by.base), 0).put(genre(0), ""))
			a := ask{id: newID(), limits: few(1)}
			requests := map[string]func() reply{
				"open": func() reply { return n.request(openPath, a.body(), old) },
				"live": func() reply { return n.request(readPath, readBody(opened.Session, opened.Cursor, wide), old) },
				"page": func() reply { return n.request(readPath, readBody(paged.Session, paged.Cursor, few(1)), old) },
			}
			name := "live"
			if on < arrived {
				name = "open"
			} else if on == beforeGate && !paged.SnapshotComplete {
				name = "page"
			}
			var once sync.Once
			stop := n.during(on, func() { once.Do(func() { by.rotate(livefeed.Break) }) })
			r := requests[name]()
			stop()
			if r.refused(t, wire.ResetRequired); bytes.Contains(r.body, []byte(secret.hex())) {
				t.Fatalf("%s at %d: a byte of the old epoch left", name, on)
			}
			for _, where := range []*node{n, m} {
				where.request(openPath, a.body(), old).refused(t, wire.ResetRequired)
			}
			n.audit()
		}
	}
}

// TestO12_ACursorProvesARewrittenHistory: a group that a session holds was replaced behind everybody's back. The read that finds out
// breaks the epoch for all, on both nodes; a forged cursor cannot.
func TestO12_ACursorProvesARewrittenHistory(t *testing.T) {
	t.Parallel()
	for name, rewrite := range map[string]string{
		"another group at a cursor":     `update feed_group set tag = '\x0102030405060708' where seq = 3`,
		"another group at the snapshot": `update feed_group set tag = '\x0102030405060708' where seq = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, m := twoNodes(t, setup{})
			before, old := n.epoch(), capabilityHeader(n.capability())
			n.stock(2)
			paged := n.open(ask{limits: few(1)})
			held := n.live(`{}`)
			n.append(mint("three", 0).put(genre(0), ""))
			held = n.read(held, wide)
			n.append(mint("four", 0).put(genre(0), ""))
			untouched := n.open(ask{})
			if held.Through != 3 || paged.Through != 2 {
				t.Fatalf("through %d and %d", held.Through, paged.Through)
			}
			// Forgeries prove nothing.
			forged := cursorSealer{secret: make([]byte, 32)}.seal([32]byte{}, before, position{live: true, after: 3, tag: [8]byte{9}})
			m.request(readPath, readBody(held.Session, forged, wide), old).refused(t, wire.ResetRequired)
			if m.epoch() != before {
				t.Fatal("a forged cursor broke the epoch")
			}
			if _, err := n.db.Pool.Exec(t.Context(), rewrite); err != nil {
				t.Fatal(err)
			}
			b := held
			if name == "another group at the snapshot" {
				b = paged
			}
			m.request(readPath, readBody(b.Session, b.Cursor, wide), old).refused(t, wire.ResetRequired)
			for _, on := range []*node{n, m} {
				if got := on.epoch(); got == before {
					t.Fatal("the epoch stands")
				}
				for _, b := range []*wire.Batch{held, paged, untouched} {
					on.request(readPath, readBody(b.Session, b.Cursor, wide), old).refused(t, wire.ResetRequired)
				}
				on.request(openPath, ask{}.body(), old).refused(t, wire.ResetRequired)
			}
			var turn, broken int
			if err := n.pool.QueryRow(t.Context(), `select turn, broken from feed`).Scan(&turn, &broken); err != nil || turn != 1 || broken != 1 {
				t.Fatalf("turn %d, broken %d (%v): broken more than once", turn, broken, err)
			}
			if got := outputs(m.open(ask{})); len(got) != 4 {
				t.Fatalf("%v", got)
			}
		})
	}
}

// TestL13_AReorganisation: what a chain reorganisation undoes reaches clients as one group of an invalidation and the outputs that
// stand again, whole and in order, and never as a confirmed spend; or it is a broken epoch.
func TestL13_AReorganisation(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	a, b := mint("a", 0), mint("b", 0)
	n.append(a.put(genre(0), `,"order":"1"`), b.put(genre(0), `,"order":"2"`))
	spender := mint("spender", 0, a.point())
	n.append(a.spent(spender), spender.put(genre(0), `,"order":"1"`))
	snapshot := n.open(ask{limits: few(1)})
	at := n.live(`{}`)
	// The spend was on the branch that lost: a stands again, its successor does not, b has another proof.
	anew := b
	anew.beef = append(append([]byte{0x02, 0x00, 0xbe, 0xef, 0, 2, 0}, b.raw...), append([]byte{0}, a.raw...)...)
	seq := n.append(invalidated("block-7", "reorganised"), spender.withdrawn("reorganised"), a.put(genre(0), `,"order":"1"`), anew.put(genre(0), `,"order":"2"`))
	n.append(mint("other", 0).put(genre(0), ""))
	want := []string{
		"invalidated block-7 reorganised", "withdraw " + spender.short() + " reorganised", "output " + a.short(), "output " + b.short(),
	}
	got := n.read(at, few(4))
	if len(got.Groups) != 1 || got.Groups[0].Sequence != seq || !slices.Equal(tellAll(observations(got)), want) {
		t.Fatalf("%v", tellAll(observations(got)))
	}
	for _, o := range observations(got) {
		if o.Spend != nil {
			t.Fatal("a reorganisation is dressed as a spend")
		}
	}
	// It is never split: what does not take it whole is told so, and the cursor stays.
	if e := n.request(readPath, readBody(at.Session, at.Cursor, few(3))).refused(t, wire.Limited); e.Limit == nil || *e.Limit.MinimumObservations != 4 {
		t.Fatalf("%+v", e)
	}
	// Every query hears of it, whatever it selects, and the snapshot from before stays what it was.
	if rows, _ := n.rest(snapshot, few(1)); !slices.Equal(rows, []string{spender.hex(), b.hex()}) {
		t.Fatalf("%v", rows)
	}
	// Or the provider says that it cannot tell: the epoch is broken, and clients begin anew with what stands now.
	old := capabilityHeader(n.capability())
	n.rotate(livefeed.Break)
	n.request(readPath, readBody(got.Session, got.Cursor, wide), old).refused(t, wire.ResetRequired)
	fresh := n.open(ask{})
	if rows := outputs(fresh); !slices.Equal(rows[:2], []string{a.hex(), b.hex()}) && len(rows) != 3 {
		t.Fatalf("%v", rows)
	}
}
