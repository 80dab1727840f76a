package lookup

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

func TestL1_GroupsComeOnceInOrder(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	b := n.live(`{}`)
	const writers, each = 6, 20
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				if _, err := []*node{n, m}[w%2].tryAppend(mint(fmt.Sprint("w", w, i), 0).put(genre(i), "")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var sequences []uint64
	for len(sequences) < writers*each {
		next := []*node{n, m}[len(sequences)%2].read(b, wait(5000))
		last := b.Through
		for _, g := range next.Groups {
			if g.Sequence <= last {
				t.Fatalf("sequence %d after %d", g.Sequence, last)
			}
			last = g.Sequence
			sequences = append(sequences, g.Sequence)
		}
		if next.Through < last || next.HighWater < next.Through {
			t.Fatalf("last %d through %d highWater %d", last, next.Through, next.HighWater)
		}
		b = next
	}
	writing.Wait()
	for i, s := range sequences {
		if s != uint64(i+1) {
			t.Fatalf("the %dth group is %d", i, s)
		}
	}
}

func TestL2_AGroupIsOneUnit(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	old := n.stock(1)[0]
	b := n.live(`{}`)
	next := mint("successor", 0, old.point())
	n.append(old.spent(next), next.put(genre(0), ""))
	n.append(mint("other", 0).put(genre(0), ""))
	got := n.read(b, wire.Limits{MaxBytes: 1 << 20, MaxObservations: 3})
	want := []string{"spend " + old.short(), "withdraw " + old.short() + " spent", "output " + next.short()}
	if len(got.Groups) != 1 || !slices.Equal(tellAll(observations(got)), want) {
		t.Fatalf("%v", tellAll(observations(got)))
	}
	if got.Groups[0].Observations[0].Spend.SpendingTxID != next.hex() {
		t.Fatal("another spending transaction")
	}
	// One observation less than the group needs: the group waits whole and the cursor does not move.
	e := n.request(readPath, readBody(b.Session, b.Cursor, few(2))).refused(t, wire.Limited)
	if e.Limit == nil || e.Limit.Kind != wire.LimitGroup || e.Limit.MinimumObservations == nil || *e.Limit.MinimumObservations != 3 {
		t.Fatalf("%+v", e.Limit)
	}
}

// TestL3_EveryEditToItsObservations is the whole table of what an edit is to a viewer of genre jazz.
func TestL3_EveryEditToItsObservations(t *testing.T) {
	t.Parallel()
	q := newAttributesQuery(map[string]string{"genre": "jazz"})
	me, other := [33]byte{2, 1}, [33]byte{2, 2}
	jazz := func(edit ...func(*livefeed.State)) *livefeed.State {
		s := &livefeed.State{Attributes: []livefeed.Attribute{{Name: "genre", Values: []string{"funk", "jazz"}}}}
		for _, e := range edit {
			e(s)
		}
		return s
	}
	rock := &livefeed.State{Attributes: []livefeed.Attribute{{Name: "genre", Values: []string{"rock"}}}}
	evidence := func(s *livefeed.State) { s.Evidence.SHA256[0] = 1 }
	order := func(s *livefeed.State) { s.Order = []byte("2") }
	context := func(s *livefeed.State) { s.Context = &livefeed.Context{Schema: "urn:x", Bytes: []byte("1")} }
	expiry := func(s *livefeed.State) { s.ExpiresAt = 9 }
	label := func(s *livefeed.State) {
		s.Attributes = append(s.Attributes, livefeed.Attribute{Name: "year", Values: []string{"1"}})
	}
	hidden := func(s *livefeed.State) { s.Hidden = true }
	mine := func(s *livefeed.State) { s.Readers = [][33]byte{me} }
	theirs := func(s *livefeed.State) { s.Readers = [][33]byte{other} }
	change := func(op livefeed.Op, before, after *livefeed.State) livefeed.Change {
		return livefeed.Change{Op: op, Before: before, After: after, Reason: "own", ContextID: "ctx"}
	}
	for name, c := range map[string]struct {
		change    livefeed.Change
		anonymous string
		reader    string // "=" means the same
	}{
		"enters":                   {change(livefeed.Put, nil, jazz()), "output", "="},
		"enters beside the query":  {change(livefeed.Put, nil, rock), "", "="},
		"begins to match":          {change(livefeed.Put, rock, jazz()), "output", "="},
		"no longer matches":        {change(livefeed.Put, jazz(), rock), "withdraw changed", "="},
		"stays beside the query":   {change(livefeed.Put, rock, rock), "", "="},
		"identical put":            {change(livefeed.Put, jazz(), jazz()), "", "="},
		"unrelated attribute":      {change(livefeed.Put, jazz(), jazz(label)), "", "="},
		"evidence changed":         {change(livefeed.Put, jazz(), jazz(evidence)), "output", "="},
		"order changed":            {change(livefeed.Put, jazz(), jazz(order)), "output", "="},
		"context appears":          {change(livefeed.Put, jazz(), jazz(context)), "output", "="},
		"context goes":             {change(livefeed.Put, jazz(context), jazz()), "output", "="},
		"context stays":            {change(livefeed.Put, jazz(context), jazz(context)), "", "="},
		"expiry changed":           {change(livefeed.Put, jazz(), jazz(expiry)), "output", "="},
		"spent":                    {change(livefeed.Spend, jazz(), nil), "spend,withdraw spent", "="},
		"spent beside the query":   {change(livefeed.Spend, rock, nil), "", "="},
		"spent while absent":       {change(livefeed.Spend, nil, nil), "", "="},
		"spent while hidden":       {change(livefeed.Spend, jazz(hidden), nil), "", "="},
		"withdrawn":                {change(livefeed.Withdraw, jazz(), nil), "withdraw own", "="},
		"withdrawn while absent":   {change(livefeed.Withdraw, nil, nil), "", "="},
		"expired":                  {change(livefeed.Expire, jazz(expiry), nil), "withdraw expired", "="},
		"expired beside the query": {change(livefeed.Expire, rock, nil), "", "="},
		"prohibited":               {change(livefeed.Put, jazz(), jazz(hidden)), "withdraw prohibited", "="},
		"put while prohibited":     {change(livefeed.Put, jazz(hidden), jazz(hidden, evidence)), "", "="},
		"prohibition lifted":       {change(livefeed.Put, jazz(hidden), jazz()), "output", "="},
		"enters for one reader":    {change(livefeed.Put, nil, jazz(mine)), "", "output"},
		"enters for another":       {change(livefeed.Put, nil, jazz(theirs)), "", ""},
		"becomes one reader's":     {change(livefeed.Put, jazz(), jazz(mine)), "withdraw audience", ""},
		"becomes another's":        {change(livefeed.Put, jazz(), jazz(theirs)), "withdraw audience", "="},
		"handed to another":        {change(livefeed.Put, jazz(mine), jazz(theirs)), "", "withdraw audience"},
		"opened to everyone":       {change(livefeed.Put, jazz(theirs), jazz()), "output", "="},
		"one reader's spent":       {change(livefeed.Spend, jazz(mine), nil), "", "spend,withdraw spent"},
		"invalidate":               {change(livefeed.Invalidate, nil, nil), "assessment-invalidated ctx", "="},
	} {
		if c.reader == "=" {
			c.reader = c.anonymous
		}
		for who, v := range map[string]struct {
			viewer viewer
			want   string
		}{"anonymous": {viewer{query: q}, c.anonymous}, "reader": {viewer{query: q, reader: &me}, c.reader}} {
			var got []string
			for _, f := range v.viewer.observe(nil, &c.change) {
				got = append(got, strings.TrimSpace(f.kind+" "+map[string]string{kindWithdraw: f.reason, kindInvalidated: f.contextID}[f.kind]))
			}
			if strings.Join(got, ",") != v.want {
				t.Errorf("%s, %s: %v, want %q", name, who, got, v.want)
			}
		}
	}
}

// TestL3_OverHTTP walks the commonest rows of the table through the whole server.
func TestL3_OverHTTP(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	a, b, c := mint("a", 0), mint("b", 0), mint("c", 0)
	n.append(a.put(`{"genre":["jazz"]}`, ""))
	at := n.live(`{"match":{"genre":"jazz"}}`)
	step := func(want []string, edits ...string) {
		t.Helper()
		n.append(edits...)
		at = n.read(at, wide)
		if got := tellAll(observations(at)); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	step([]string{"output " + b.short()}, b.put(`{"genre":["jazz","rock"]}`, ""))
	step(nil, c.put(`{"genre":["rock"]}`, ""))
	step([]string{"output " + c.short()}, c.put(`{"genre":["jazz"]}`, ""))
	step([]string{"withdraw " + b.short() + " changed"}, b.put(`{"genre":["rock"]}`, ""))
	step([]string{"output " + a.short()}, a.put(`{"genre":["jazz"]}`, `,"context":{"schema":"urn:x","bytes":"AAAA"}`))
	step(nil, a.put(`{"genre":["jazz"],"artist":["z"]}`, `,"context":{"schema":"urn:x","bytes":"AAAA"}`))
	step([]string{"withdraw " + a.short() + " evicted \x00\" ü"}, a.withdrawn("evicted \x00\" ü"))
	step(nil, a.withdrawn("again"))
	step([]string{"invalidated view-1 reorg"}, invalidated("view-1", "reorg"))
	step([]string{"spend " + c.short(), "withdraw " + c.short() + " spent"}, c.spent(mint("by", 0, c.point())))
	// Entering and leaving in one group is observed, in edit order.
	d := mint("d", 0)
	step([]string{"output " + d.short(), "withdraw " + d.short() + " at once"}, d.put(`{"genre":["jazz"]}`, ""), d.withdrawn("at once"))
	// One row under a reader is invisible to a public service, for ever.
	e := mint("e", 0)
	reader := `,"readers":["` + n.manifest().Identity + `"]`
	step(nil, e.put(`{"genre":["jazz"]}`, reader))
	step([]string{"output " + e.short()}, e.put(`{"genre":["jazz"]}`, ""))
	step([]string{"withdraw " + e.short() + " audience"}, e.put(`{"genre":["jazz"]}`, reader))
	if got := outputs(n.scan(ask{})...); slices.Contains(got, e.hex()) {
		t.Fatal("a row with readers is in a public snapshot")
	}
}

func TestL4_LiveIdentitiesDoNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	coins := n.stock(3)
	one, two := n.live(`{}`), n.live(`{}`)
	jazz := n.live(`{"match":{"genre":"jazz"}}`)
	n.append(coins[0].withdrawn("x"), coins[1].withdrawn("y"))
	n.append(mint("z", 0).put(genre(0), ""))
	a := n.read(one, wide)
	first := n.read(two, few(2))
	second := n.read(first, few(5))
	if !slices.Equal(ids(a), ids(first, second)) || len(ids(a)) != 5 {
		t.Fatalf("%v\n%v", ids(a), ids(first, second))
	}
	for _, o := range observations(a) {
		if o.Scope != a.Scope {
			t.Fatal("an observation of another scope")
		}
	}
	if other := ids(n.read(jazz, wide)); slices.ContainsFunc(other, func(id string) bool { return slices.Contains(ids(a), id) }) {
		t.Fatal("two queries share an id")
	}
	// Groups without observations are never sent, and the first Batch has highWater = W.
	if got := n.read(jazz, wide); len(got.Groups) != 2 {
		t.Fatalf("%d groups", len(got.Groups))
	}
	opened := n.open(ask{limits: few(1)})
	if opened.HighWater != opened.Through {
		t.Fatalf("first batch: through %d highWater %d", opened.Through, opened.HighWater)
	}
	n.append(mint("zz", 0).put(genre(0), ""))
	if got := n.read(opened, few(1)); got.HighWater != opened.HighWater+1 || got.Through != opened.Through {
		t.Fatalf("later page: through %d highWater %d", got.Through, got.HighWater)
	}
}

func TestL5_Through(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{"match":{"genre":"jazz"}}`)
	put := func(i int, g string) uint64 {
		return n.append(mint(fmt.Sprint(g, i), 0).put(`{"genre":["`+g+`"]}`, ""))
	}
	for i := range 5 {
		put(i, "rock")
	}
	// Irrelevant groups move it to the head.
	at := n.read(b, wide)
	if at.Through != 5 || at.HighWater != 5 || len(at.Groups) != 0 {
		t.Fatalf("through %d of %d", at.Through, at.HighWater)
	}
	put(1, "jazz") // 6
	put(5, "rock") // 7
	put(6, "rock") // 8
	put(2, "jazz") // 9
	put(7, "rock") // 10
	// A prefix ends before the first relevant group that was not delivered, over the irrelevant ones.
	first := n.read(at, few(1))
	if len(first.Groups) != 1 || first.Groups[0].Sequence != 6 || first.Through != 8 || first.HighWater != 10 {
		t.Fatalf("group %d through %d highWater %d", first.Groups[0].Sequence, first.Through, first.HighWater)
	}
	second := n.read(first, few(1))
	if len(second.Groups) != 1 || second.Groups[0].Sequence != 9 || second.Through != 10 {
		t.Fatalf("through %d", second.Through)
	}
	if again := n.read(at, few(1)); again.Cursor != first.Cursor || !slices.Equal(ids(again), ids(first)) {
		t.Fatal("a re-read gave another prefix")
	}
	// Invisible rows move it too.
	reader := `,"readers":["` + n.manifest().Identity + `"]`
	for i := range 4 {
		n.append(mint(fmt.Sprint("hidden", i), 0).put(`{"genre":["jazz"]}`, reader))
	}
	if got := n.read(second, wide); got.Through != 14 || len(got.Groups) != 0 {
		t.Fatalf("through %d with %d groups", got.Through, len(got.Groups))
	}
	// A scan of nothing relevant beyond the budget is an empty page whose cursor moved.
	all := n.live(`{"match":{"artist":"nobody","genre":"rock"}}`)
	if at := n.read(all, wide); at.Through != at.HighWater {
		t.Fatalf("through %d of %d", at.Through, at.HighWater)
	}
}

func TestL6_LimitedKinds(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	big := mint("big", 60_000)
	n.append(big.put(genre(0), ""))
	e := n.request(openPath, ask{limits: wire.Limits{MaxBytes: 10, MaxObservations: 1, WaitMs: 25000}}.body()).refused(t, wire.Limited)
	if e.Limit == nil || e.Limit.Kind != wire.LimitEnvelope || e.Limit.MinimumBytes == nil {
		t.Fatalf("%+v", e.Limit)
	}
	b := n.live(`{"match":{"genre":"rock"}}`)
	// Decided before waiting.
	began := time.Now()
	e = n.request(readPath, readBody(b.Session, b.Cursor, wire.Limits{MaxBytes: 20, MaxObservations: 1, WaitMs: 25000})).refused(t, wire.Limited)
	if e.Limit.Kind != wire.LimitEnvelope || time.Since(began) > 15*time.Second {
		t.Fatalf("%+v after %s", e.Limit, time.Since(began))
	}
	if got := n.read(b, wire.Limits{MaxBytes: *e.Limit.MinimumBytes, MaxObservations: 1}); len(got.Groups) != 0 {
		t.Fatal("groups came")
	}
	// While a service is narrower than that, such a group is refused at admission, by every node.
	n.append(big.withdrawn("evicted"))
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL, service: func(s *Service) { s.MaxResponseBytes = 65536 }})
	for _, node := range []*node{n, m} {
		_, err := node.tryAppend(mint("big2", 60_000).put(genre(0), ""))
		if livefeed.CodeOf(err) != livefeed.Limited {
			t.Fatalf("admitted: %v", err)
		}
	}
	if _, err := n.tryAppend(mint("small", 100).put(genre(0), "")); err != nil {
		t.Fatal(err)
	}
	// What came past it all the same is above the session's own maxima: permanent.
	if _, err := n.pool.Exec(t.Context(), `delete from feed_limits`); err != nil {
		t.Fatal(err)
	}
	n.append(mint("big3", 60_000).put(`{"genre":["big"]}`, ""))
	e = m.request(openPath, ask{query: `{"match":{"genre":"big"}}`}.body()).refused(t, wire.Limited)
	if e.Limit.Kind != wire.LimitPermanentGroup || e.Retryable {
		t.Fatalf("%+v", e)
	}
}

// TestL6_WhatIsAdmittedCanBeDelivered appends groups up to the very edge of admission and reads every one of them under
// exactly the maxima.
func TestL6_WhatIsAdmittedCanBeDelivered(t *testing.T) {
	t.Parallel()
	n := start(t, setup{service: func(s *Service) { s.MaxResponseBytes, s.MaxObservations = 65536, 40 }})
	b := n.live(`{}`)
	most := wire.Limits{MaxBytes: 65536, MaxObservations: 40}
	admitted := 0
	for pad := 40_000; pad < 48_000; pad += 97 {
		c := mint(fmt.Sprint("edge", pad), pad)
		if _, err := n.tryAppend(c.put(genre(0), `,"context":{"schema":"urn:x:é","bytes":"AAAA"}`), c.withdrawn("\x01\x02")); err == nil {
			admitted++
		} else if livefeed.CodeOf(err) != livefeed.Limited {
			t.Fatal(err)
		}
	}
	if admitted == 0 || admitted > 80 {
		t.Fatalf("%d admitted: the edge was not met", admitted)
	}
	coins := make([]string, 41)
	for i := range coins {
		coins[i] = mint(fmt.Sprint("many", i), 0).put(genre(0), "")
	}
	if _, err := n.tryAppend(coins...); livefeed.CodeOf(err) != livefeed.Limited {
		t.Fatalf("41 observations: %v", err)
	}
	n.append(coins[:40]...)
	for got := 0; got < admitted+1; {
		b = n.read(b, most)
		if len(b.Groups) == 0 {
			t.Fatalf("%d of %d groups came", got, admitted+1)
		}
		got += len(b.Groups)
	}
}

func TestL7_ExactFit(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(3)
	snap := n.open(ask{limits: few(1)})
	live := n.live(`{}`)
	for i := range 3 {
		n.append(mint(fmt.Sprint("live", i), 10*i).put(genre(i), ""))
	}
	for name, at := range map[string]*wire.Batch{"snapshot": snap, "live": live} {
		for _, observations := range []uint32{1, 2, 3} {
			size := uint32(0)
			for probe := uint32(99999); ; probe = size { // maxBytes is echoed: settle where the size repeats
				r := n.request(readPath, readBody(at.Session, at.Cursor, wire.Limits{MaxBytes: probe, MaxObservations: observations}))
				r.batch(t)
				if uint32(len(r.body)) == size {
					break
				}
				size = uint32(len(r.body))
			}
			exact := n.read(at, wire.Limits{MaxBytes: size, MaxObservations: observations})
			less := n.request(readPath, readBody(at.Session, at.Cursor, wire.Limits{MaxBytes: size - 1, MaxObservations: observations}))
			if len(exact.Groups) == 1 {
				if e := less.refused(t, wire.Limited); e.Limit.Kind != wire.LimitGroup {
					t.Fatalf("%s: %+v", name, e.Limit)
				}
			} else if got := less.batch(t); len(got.Groups) != len(exact.Groups)-1 {
				t.Fatalf("%s: a byte less gave %d groups of %d", name, len(got.Groups), len(exact.Groups))
			}
		}
	}
}

func TestL9_EveryWrongCursorIsTheSameReset(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(4)
	mine, other := n.open(ask{limits: few(1)}), n.open(ask{limits: few(1)})
	mineDigest := n.capability()
	live := n.live(`{}`)
	digest, _ := n.provider.sessionDigest(mine.Session)
	s, err := n.provider.main.load(t.Context(), mine.Session, digest)
	if err != nil {
		t.Fatal(err)
	}
	seal := func(p position) string { return n.provider.main.cursors.seal(digest, s.epoch, p) }
	foreign := cursorSealer{secret: make([]byte, 32)}.seal(digest, s.epoch, position{live: true, after: s.w, tag: s.wTag})
	flip := func(i int) string {
		b := []byte(mine.Cursor)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	bodies := make(map[string]bool)
	for name, cursor := range map[string]string{
		"another session's": other.Cursor, "another session's live one": live.Cursor,
		"tampered position": flip(5), "tampered phase": flip(0), "tampered mac": flip(40),
		"truncated": mine.Cursor[:43], "longer": mine.Cursor + "A", "with newline": mine.Cursor[:20] + "\n" + mine.Cursor[20:],
		"another deployment's": foreign, "another epoch's": n.provider.main.cursors.seal(digest, "other", position{live: true, after: s.w, tag: s.wTag}),
		"a version never made": seal(position{after: 1 << 40, tag: s.wTag}),
		"text":                 "cursor", "unicode": "späť\x00",
	} {
		r := n.request(readPath, readBody(mine.Session, cursor, wide))
		r.refused(t, wire.ResetRequired)
		bodies[string(r.body)] = true
		t.Log(name)
	}
	r := n.request(readPath, readBody("unknown", "x", wide))
	r.refused(t, wire.ResetRequired)
	bodies[string(r.body)] = true
	n.read(mine, few(1)) // the right one still works

	// What only this deployment can have sealed, and its log denies, is as indistinguishable; and it proves that history was
	// rewritten, so that afterwards nothing from before works (conformance row O12).
	old := capabilityHeader(mineDigest)
	for _, p := range []position{
		{live: true, after: s.w - 1, tag: s.wTag}, {live: true, after: s.w + 10, tag: s.wTag}, {live: true, after: s.w, tag: [8]byte{1, 2, 3}},
	} {
		r := n.request(readPath, readBody(mine.Session, seal(p), wide), old)
		r.refused(t, wire.ResetRequired)
		bodies[string(r.body)] = true
	}
	if len(bodies) != 1 {
		t.Fatalf("%d distinguishable answers", len(bodies))
	}
	n.request(readPath, readBody(mine.Session, mine.Cursor, few(1)), old).refused(t, wire.ResetRequired)
}

func TestL12_InvalidateReachesEveryQuery(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(2)
	for _, query := range []string{`{}`, `{"match":{"genre":"jazz"}}`, `{"match":{"artist":"nobody"}}`} {
		b := n.live(query)
		var once sync.Once
		stop := n.during(beforeSleep, func() { once.Do(func() { n.append(invalidated("view-2", "reorg")) }) })
		got := n.read(b, wait(20000))
		stop()
		if tells := tellAll(observations(got)); !slices.Equal(tells, []string{"invalidated view-2 reorg"}) {
			t.Fatalf("%s: %v", query, tells)
		}
		if again := n.read(b, wide); !slices.Equal(ids(again), ids(got)) {
			t.Fatal("a replay differs")
		}
	}
}

func TestT1_TimeIsTheDatabasesAndNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	lead := n.clockNow() + 100_000
	n.advance(lead)
	b := n.open(ask{})
	if b.ExpiresAt != lead+3600 {
		t.Fatalf("expiresAt %d, want %d", b.ExpiresAt, lead+3600)
	}
	n.advance(5) // an earlier time changes nothing
	n.halt()
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	if again := m.request(openPath, ask{}.body(), capabilityHeader(m.capability())).batch(t); again.ExpiresAt != lead+3600 {
		t.Fatalf("expiresAt %d after a restart", again.ExpiresAt)
	}
	// Once a session was told to have expired it stays so.
	stop := m.during(beforeGate, func() { m.advance(b.ExpiresAt) })
	m.request(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(m.capability())).refused(t, wire.ResetRequired)
	stop()
	m.request(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(m.capability())).refused(t, wire.ResetRequired)
}

func TestT2_TimersComeBeforeLiveCompleteness(t *testing.T) {
	t.Parallel()
	n := start(t, setup{service: func(s *Service) { s.SessionSeconds = 100_000 }})
	base := n.clockNow() + 10_000
	var want []string
	for i, order := range []string{"b", "a", "c"} {
		c := mint(fmt.Sprint("row", order), 0)
		n.append(c.put(genre(0), fmt.Sprintf(`,"order":"%s","expiresAt":"%d"`, order, base+uint64(i/2))))
		want = append(want, "withdraw "+c.short()+" expired")
	}
	want[0], want[1] = want[1], want[0] // (deadline, key): a, b, then c
	b := n.live(`{}`)
	n.advance(base + 1)
	got := n.read(b, wide)
	if tells := tellAll(observations(got)); !slices.Equal(tells, want) || len(got.Groups) != 3 {
		t.Fatalf("%v, want %v", tells, want)
	}
	if got.Through != got.HighWater || got.Through != b.Through+3 {
		t.Fatalf("through %d highWater %d", got.Through, got.HighWater)
	}
}
