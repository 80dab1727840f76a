package livefeed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// followed returns how many answers came from where.
func (n *node) followed(f *Feed, source string) float64 {
	return metricValue(n.metrics.followed.WithLabelValues(f.name, source))
}

func (n *node) looked(f *Feed) float64 { return metricValue(n.metrics.looks.WithLabelValues(f.name)) }

// TestF20_TheTailSaysWhatTheLogSays: at every position, for every selector and limit, while two nodes edit, prohibit, expire, compact
// and turn epochs, and answers of commits are lost.
func TestF20_TheTailSaysWhatTheLogSays(t *testing.T) {
	t.Parallel()
	for name, bounds := range map[string]option{
		"roomy":     func(*Config) {},
		"few":       func(c *Config) { c.TailGroups = 5 },
		"small":     func(c *Config) { c.TailBytes = 6000 },
		"short log": func(c *Config) { c.ScanBytes = 700 },
		"off":       func(c *Config) { c.TailGroups = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			m := newTailModel(t, rand.New(rand.NewPCG(seed, 1)), bounds)
			for range 60 {
				m.step()
				m.compare()
			}
			memory, shared, alone := m.n.followed(m.f, "memory"), m.n.followed(m.f, "shared"), m.n.followed(m.f, "alone")
			t.Logf("%.0f answers from memory, %.0f shared, %.0f alone, %.0f looks", memory, shared, alone, m.n.looked(m.f))
			if off := name == "off"; off != (memory == 0) || off != (shared == 0) || alone == 0 {
				t.Errorf("%v answers from memory, %v shared, %v alone", memory, shared, alone)
			}
		})
	}
}

// tailModel edits a feed through two nodes and compares, on the first, what the tail and the log say.
type tailModel struct {
	t      *testing.T
	r      *rand.Rand
	n, far *node
	f, g   *Feed
	floor  uint64
	steps  int
	tags   map[uint64][8]byte
}

func newTailModel(t *testing.T, r *rand.Rand, o option) *tailModel {
	db := pgtest.New(t)
	stopTimers(t, db)
	m := &tailModel{t: t, r: r, n: startStore(t, db, o), far: startStore(t, db), tags: map[uint64][8]byte{}}
	m.f, m.g = m.n.ensure(t, "f"), m.far.ensure(t, "f")
	m.tags[0] = m.f.start(t)
	return m
}

func (m *tailModel) edit() Edit {
	row := m.r.IntN(12)
	switch m.r.IntN(10) {
	case 0:
		return spend(row)
	case 1:
		return withdraw(row)
	case 2:
		return invalidate(fmt.Sprint("c", m.steps))
	}
	e := put(row, attr("a", fmt.Sprint(m.r.IntN(3))), beefOf(fmt.Sprint("b", m.r.IntN(4))))
	if m.r.IntN(3) == 0 {
		attr("b", "x", "y")(&e)
	}
	if m.r.IntN(3) == 0 {
		readers(byte(1 + m.r.IntN(2)))(&e)
	}
	if m.r.IntN(4) == 0 {
		e.Context = &Context{Schema: "urn:s", Bytes: make([]byte, m.r.IntN(30))}
	}
	if m.r.IntN(6) == 0 {
		e.ExpiresAt = m.f.cut(m.t).Now + 1 + uint64(m.r.IntN(3))
	}
	return e
}

func (m *tailModel) step() {
	t, f := m.t, m.f
	m.steps++
	at := f
	if m.r.IntN(3) == 0 {
		at = m.g
	}
	var err error
	switch k := m.r.IntN(40); {
	case k < 28:
		for i := range 1 + m.r.IntN(4) {
			var edits []Edit
			for range 1 + m.r.IntN(3) {
				edits = append(edits, m.edit())
			}
			_, err = at.Append(t.Context(), group(fmt.Sprint(m.steps, "-", i), edits...))
		}
	case k < 31:
		_, err = at.Prohibit(t.Context(), outpoint(m.r.IntN(12)), "court")
	case k < 33:
		_, err = at.Allow(t.Context(), outpoint(m.r.IntN(12)))
	case k < 35:
		_, err = at.Drain(t.Context(), f.cut(t).Now, 1+m.r.IntN(3))
	case k < 37:
		head := f.cut(t).W
		m.floor = max(m.floor, head-min(head, uint64(m.r.IntN(9))))
		at.compactAll(t, until(m.floor))
	case k < 38:
		_, err = at.Rotate(t.Context(), fmt.Sprint("rotation-key-0123-", m.steps), Mode(1+m.r.IntN(2)), "")
	default: // a commit whose answer is lost
		lost := true
		f.hooks.committed = func(uint64) error {
			if lost {
				lost = false
				return errors.New("lost")
			}
			return nil
		}
		_, err = f.Append(t.Context(), group(fmt.Sprint(m.steps), m.edit()))
		f.hooks.committed = nil
	}
	if err != nil && CodeOf(err) != Invalid {
		t.Fatal(err)
	}
	head := f.cut(t).W
	for s := uint64(len(m.tags)); s <= head; s++ {
		m.tags[s] = m.stored(s)
	}
}

// stored is the tag of a group as it is now: of one that is forgotten already the floor may know it.
func (m *tailModel) stored(s uint64) [8]byte {
	tag, err := m.f.TagAt(m.t.Context(), m.n.pool, s)
	if err != nil && CodeOf(err) != Reset {
		m.t.Fatal(err)
	}
	return tag
}

func (m *tailModel) compare() {
	head := m.f.cut(m.t).W
	for range 12 {
		l := LogQuery{Limit: 1 + m.r.IntN(20)}
		switch m.r.IntN(8) {
		case 0:
			l.After = head + uint64(m.r.IntN(3))
		case 1:
			l.After = uint64(m.r.Uint64N(head + 1))
		default:
			l.After = head - min(head, uint64(m.r.IntN(8)))
		}
		if l.AfterTag = m.tags[l.After]; m.r.IntN(20) == 0 {
			l.AfterTag[0]++
		}
		for _, s := range []Selector{AttributeSelector("a", fmt.Sprint(m.r.IntN(3))), AttributeSelector("b", "x"), All} {
			if m.r.IntN(3) == 0 {
				l.Selectors = append(l.Selectors, s)
			}
		}
		m.same(l)
		m.waiting(l, Registered)
		m.waiting(l, Woken)
	}
}

// same compares what Follow and Log say now. Between the two a second may begin.
func (m *tailModel) same(l LogQuery) {
	m.t.Helper()
	for try := 0; ; try++ {
		got, gotErr := m.f.Follow(m.t.Context(), m.n.pool, l, Here)
		want, wantErr := m.f.Log(m.t.Context(), m.n.pool, l)
		if reflect.DeepEqual(got, want) && CodeOf(gotErr) == CodeOf(wantErr) && errors.Is(gotErr, ErrRewritten) == errors.Is(wantErr, ErrRewritten) {
			return
		}
		if got.Now == want.Now || try == 5 {
			m.t.Fatalf("%+v: the tail says\n%+v, %v\nand the log\n%+v, %v", l, got, gotErr, want, wantErr)
		}
	}
}

// waiting compares what a follower is told who waits: what the log says up to the head that it is told of.
func (m *tailModel) waiting(l LogQuery, waiting Waiting) {
	m.t.Helper()
	got, err := m.f.Follow(m.t.Context(), m.n.pool, l, waiting)
	if err != nil {
		m.same(l) // it was not from memory
		return
	}
	want, err := m.f.Log(m.t.Context(), m.n.pool, l)
	if err != nil {
		m.t.Fatalf("%+v: the tail says %+v and the log %v", l, got, err)
	}
	if got.Head < want.Head { // groups of the other node that are not announced yet
		for i, g := range want.Groups {
			if g.Sequence > got.Head {
				want.Groups = append([]Group(nil), want.Groups[:i]...)
				want.Full = false
				break
			}
		}
		if len(want.Groups) == 0 {
			want.Groups = nil
		}
		if !want.Full {
			want.Examined = got.Head
		}
		want.Head, want.HeadTag = got.Head, m.tags[got.Head]
	}
	if waiting == Woken && got.Head <= l.After && got.Head != want.Head || got.Now > want.Now {
		m.t.Fatalf("%+v: head %d at %d of %d at %d", l, got.Head, got.Now, want.Head, want.Now)
	}
	// The moment is an earlier one.
	want.Now, want.Due, want.Epoch, want.Broken = got.Now, got.Due, got.Epoch, got.Broken
	if !reflect.DeepEqual(got, want) {
		m.t.Fatalf("%+v: the tail says\n%+v\nand the log\n%+v", l, got, want)
	}
}

// TestF20_FollowersMissNothing: whoever registers, looks, sleeps and looks again sees each group once and in order, from whatever node it
// came and wherever the answers came from.
func TestF20_FollowersMissNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, func(c *Config) { c.TailGroups = 40 }), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	start := f.start(t)
	var writers, followers sync.WaitGroup
	for w, at := range []*Feed{f, f, g} {
		writers.Go(func() {
			for i := range 60 {
				at.mustAppend(t, group(fmt.Sprint(w, "-", i), put(w*100+i%7, attr("n", fmt.Sprint(i%3)), beefOf(fmt.Sprint(w, i)))))
			}
		})
	}
	seen, wanted := make([][]Group, 8), make([][]Selector, 8)
	for i := range seen {
		if i%2 == 1 {
			wanted[i] = []Selector{AttributeSelector("n", fmt.Sprint(i%3))}
		}
		followers.Go(func() { seen[i] = f.followToEnd(t, near.pool, start, wanted[i]) })
	}
	writers.Wait()
	g.mustAppend(t, group("end", invalidate("end")))
	followers.Wait()
	for i, got := range seen {
		var want []Group
		for _, h := range f.readLog(t, 0, start) {
			if posted := (&recent{selectors: groupSelectors(h.Changes)}); wanted[i] == nil || posted.posted(wanted[i][0]) || posted.posted(All) {
				want = append(want, h)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("follower %d saw %d groups that are not the %d of the log", i, len(got), len(want))
		}
	}
	t.Logf("%.0f answers from memory, %.0f shared, %.0f alone, %.0f looks", near.followed(f, "memory"), near.followed(f, "shared"), near.followed(f, "alone"), near.looked(f))
}

// followToEnd collects groups, poll by poll, until one holds an invalidate.
func (f *Feed) followToEnd(t *testing.T, q Querier, tag [8]byte, selectors []Selector) (out []Group) {
	at := uint64(0)
	poll := func() (ended bool) {
		w := f.Watch(selectors...)
		defer w.Close()
		for waiting := Registered; ; waiting = Woken {
			p, err := f.Follow(t.Context(), q, LogQuery{After: at, AfterTag: tag, Selectors: selectors, Limit: 5}, waiting)
			if err != nil {
				t.Error(err)
				return true
			}
			out = append(out, p.Groups...)
			at, tag = p.Head, p.HeadTag
			if n := len(p.Groups); n > 0 {
				last := p.Groups[n-1]
				if p.Full {
					at, tag = last.Sequence, last.Tag
				}
				return last.Changes[0].Op == Invalidate
			}
			select {
			case <-w.C():
			case <-time.After(patience):
				t.Error("nobody woke the follower")
				return true
			}
		}
	}
	for !poll() {
	}
	return out
}

// TestF20_OneStatementForAllWaiters of a node, when another node commits what they wait for.
func TestF20_OneStatementForAllWaiters(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, func(c *Config) { c.Backstop = time.Hour }), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	near.listening(t)
	f.tail.fresh = time.Hour
	const waiters = 1000
	s := attr("n", "1")
	selectors := []Selector{AttributeSelector("n", "1")}
	tag := f.start(t)
	first, err := f.Follow(t.Context(), near.pool, LogQuery{AfterTag: tag, Selectors: selectors, Limit: 10}, Here)
	if err != nil || len(first.Groups) != 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	for name, at := range map[string]*Feed{"near": f, "far": g} {
		before, alone := near.looked(f), near.followed(f, "alone")
		c := f.cut(t)
		var wg sync.WaitGroup
		for range waiters {
			w := f.Watch(selectors...)
			wg.Go(func() {
				defer w.Close()
				await(t, "the wake-up", w.C())
				p, err := f.Follow(t.Context(), near.pool, LogQuery{After: c.W, AfterTag: c.Tag, Selectors: selectors, Limit: 10}, Woken)
				if err != nil || len(p.Groups) != 1 {
					t.Errorf("%+v, %v", p, err)
				}
			})
		}
		at.mustAppend(t, group(name, put(1, s, beefOf(name))))
		wg.Wait()
		// The waiters' and the announcer's, which may miss each other, and a few more where they come in waves.
		most := map[string]float64{"near": 0, "far": 10}[name]
		if got := near.looked(f) - before; got > most || near.followed(f, "alone") != alone {
			t.Errorf("%s: %v statements for %d waiters, and %v read alone", name, got, waiters, near.followed(f, "alone")-alone)
		}
	}
}

// TestF20_ATimerThatIsDueIsNotOverlooked: what a commit said of the timers is not passed on once it says that one is due.
func TestF20_ATimerThatIsDueIsNotOverlooked(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	f.tail.fresh = time.Hour
	deadline := f.cut(t).Now + 1000
	f.mustAppend(t, group("1", put(1, expires(deadline))))
	if err := f.Advance(t.Context(), n.pool, deadline); err != nil { // the database's clock gets there
		t.Fatal(err)
	}
	c := f.cut(t)
	f.mustAppend(t, group("2", put(2)))
	p, err := f.Follow(t.Context(), n.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 10}, Woken)
	if err != nil || !p.Due || len(p.Groups) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	if got := n.followed(f, "memory"); got != 0 {
		t.Errorf("%v answers from memory", got)
	}
	if _, err := f.Drain(t.Context(), p.Now, 10); err != nil {
		t.Fatal(err)
	}
	p, err = f.Follow(t.Context(), n.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 10}, Woken)
	if err != nil || p.Due || len(p.Groups) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	if got := n.followed(f, "memory"); got != 1 {
		t.Errorf("%v answers from memory", got)
	}
}

// TestF20_ARewrittenLogIsNotServed, though the tail knows another one.
func TestF20_ARewrittenLogIsNotServed(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"a hole":                       "delete from feed_group where seq = 6",
		"another group in the middle":  `update feed_group set tag = '\x0102030405060708' where seq = 6`,
		"another group at the end":     `update feed_group set tag = '\x0102030405060708' where seq = 8; update feed_head set tag = '\x0102030405060708'`,
		"another group at the cursor":  `update feed_group set tag = '\x0102030405060708' where seq = 5`,
		"an end that is lost":          "delete from feed_group where seq = 8; update feed_head set head = 7, tag = (select tag from feed_group where seq = 7)",
		"a floor above":                "update feed_floor set floor = 7, tag = (select tag from feed_group where seq = 7)",
		"all of it":                    "delete from feed_group",
		"a hole in what is new":        "delete from feed_group where seq = 9",
		"a new end that is lost":       "delete from feed_group where seq = 10",
		"a record that cannot be read": `update feed_group set changes = '\x07' where seq = 9`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			// It does not find out by itself.
			n := startStore(t, db, func(c *Config) { c.Backstop = time.Hour })
			f := n.ensure(t, "f")
			for i := range 8 {
				f.mustAppend(t, group(fmt.Sprint(i), put(i)))
			}
			l := LogQuery{After: 5, AfterTag: groupTag(t, f, 5), Limit: 100}
			want, err := f.Follow(t.Context(), n.pool, l, Here)
			if err != nil || len(want.Groups) != 3 || n.followed(f, "shared") != 1 {
				t.Fatalf("%+v, %v", want, err)
			}
			if name == "a record that cannot be read" || strings.Contains(name, "new") {
				g := startStore(t, db).ensure(t, "f")
				for i := range 2 {
					g.mustAppend(t, group(fmt.Sprint("far", i), put(9+i)))
				}
			}
			if _, err := db.Pool.Exec(t.Context(), damage); err != nil {
				t.Fatal(err)
			}
			got, err := f.Follow(t.Context(), n.pool, l, Here)
			direct, directErr := f.Log(t.Context(), n.pool, l)
			if CodeOf(err) != CodeOf(directErr) || errors.Is(err, ErrRewritten) != errors.Is(directErr, ErrRewritten) || (err == nil) != (directErr == nil) {
				t.Errorf("the tail says %+v, %v and the log %v", got, err, directErr)
			}
			got.Now, direct.Now = 0, 0
			if !reflect.DeepEqual(got, direct) {
				t.Errorf("the tail says %+v and the log %+v", got, direct)
			}
			// What was found out holds for who is woken now, too.
			woken, err := f.Follow(t.Context(), n.pool, l, Woken)
			if woken.Now = 0; CodeOf(err) != CodeOf(directErr) || (err == nil) != (directErr == nil) || !reflect.DeepEqual(woken, direct) {
				t.Errorf("woken, the tail says %+v, %v and the log %+v, %v", woken, err, direct, directErr)
			}
		})
	}
}

// TestF20_WhoGivesUpHoldsNobody: the one whose statement others wait for is cancelled, and they are answered.
func TestF20_WhoGivesUpHoldsNobody(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t, func(c *Config) { c.Backstop = time.Hour })
	f.mustAppend(t, group("1", put(1)))
	l := LogQuery{AfterTag: f.start(t), Limit: 10}
	block := pgtest.Conn(t, db)
	for _, sql := range []string{"begin", "lock table feed_floor in access exclusive mode"} {
		if _, err := block.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	held, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := f.Follow(held, n.pool, l, Here)
		ended <- err
	}()
	waiting := func() (running, next bool) {
		f.tail.mu.RLock()
		defer f.tail.mu.RUnlock()
		return f.tail.running != nil, f.tail.next != nil
	}
	testkit.Eventually(t, "a statement is under way", func() bool { running, _ := waiting(); return running })
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if p, err := f.Follow(t.Context(), n.pool, l, Here); err != nil || len(p.Groups) != 1 {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
	testkit.Eventually(t, "others wait for the next", func() bool { _, next := waiting(); return next })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled read was answered")
	}
	if _, err := block.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n.followed(f, "shared") != 5 {
		t.Errorf("%v of 5 were answered by one statement", n.followed(f, "shared"))
	}
}

// TestF20_TheTailIsBounded by groups and by bytes, and says how much it holds.
func TestF20_TheTailIsBounded(t *testing.T) {
	t.Parallel()
	for name, bounds := range map[string]struct {
		groups int
		bytes  int64
	}{"groups": {10, 1 << 30}, "bytes": {1 << 20, 9000}, "nothing fits": {1 << 20, 1}} {
		var tl tail
		gauges := [2]prometheus.Gauge{prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewGauge(prometheus.GaugeOpts{})}
		tl.init(bounds.groups, bounds.bytes, gauges)
		tl.begin(0, 0, [8]byte{})
		for i := range 200 {
			changes := []Change{{Op: Put, After: &State{Context: &Context{Bytes: make([]byte, i*7%500)}}}}
			pl := &plan{first: uint64(i), head: uint64(i) + 1, epoch: "e", groups: []Group{{Sequence: uint64(i) + 1, Changes: changes}},
				records: [][]byte{appendRecord(nil, changes)}, selectors: [][]Selector{nil}}
			tl.commit(pl, false)
			var sum int64
			for _, g := range tl.groups {
				sum += g.weight
			}
			if len(tl.groups) > bounds.groups || tl.bytes > bounds.bytes || sum != tl.bytes || tl.at.head != uint64(i)+1 ||
				tl.start+uint64(len(tl.groups)) != tl.at.head || metricValue(gauges[0]) != float64(len(tl.groups)) || metricValue(gauges[1]) != float64(sum) {
				t.Fatalf("%s: %d groups, %d bytes (%d), %d after %d", name, len(tl.groups), tl.bytes, sum, tl.at.head, tl.start)
			}
			if cap(tl.groups) > 4*len(tl.groups)+16 {
				t.Fatalf("%s: room for %d groups of %d", name, cap(tl.groups), len(tl.groups))
			}
		}
	}
}
