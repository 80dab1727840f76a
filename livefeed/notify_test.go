package livefeed

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// planOf is a plan that logs groups posted under these selectors.
func planOf(head, era uint64, selectors ...[]Selector) *plan {
	return &plan{head: head, era: era, groups: make([]Group, len(selectors)), selectors: selectors}
}

// TestW2_ANotificationSaysWhomItConcerns, as long as it fits, and what is not one is told apart.
func TestW2_ANotificationSaysWhomItConcerns(t *testing.T) {
	t.Parallel()
	many := func(from, n int) (list []Selector) {
		for i := range n {
			list = append(list, AttributeSelector("n", fmt.Sprint(from+i)))
		}
		return list
	}
	one := many(0, 1)[0]
	for name, c := range map[string]struct {
		plan *plan
		want heard
	}{
		"one":      {planOf(7, 0, []Selector{one}), heard{feed: 5, head: 7, groups: 1, selectors: []Selector{one}}},
		"none":     {planOf(7, 2, nil), heard{feed: 5, head: 7, era: 2, groups: 1}},
		"repeated": {planOf(9, 0, []Selector{one, All}, []Selector{one}), heard{feed: 5, head: 9, groups: 2, selectors: sortSelectors([]Selector{one, All})}},
		"most":     {planOf(maxSequence, maxSequence, many(0, 100), many(100, 156)), heard{feed: 5, head: maxSequence, era: maxSequence, groups: 2, selectors: sortSelectors(many(0, 256))}},
		"too many": {planOf(9, 0, many(0, 100), many(100, 157)), heard{feed: 5, head: 9}},
		"far more": {planOf(9, 0, many(0, 1000), many(0, 1000)), heard{feed: 5, head: 9}},
	} {
		text := c.plan.payload(5)
		got, ok := parsePayload(text)
		if !ok || !reflect.DeepEqual(got, c.want) || len(text) >= 8000 {
			t.Errorf("%s: %d bytes, %+v, %v", name, len(text), got, ok)
		}
	}
	if h, ok := parsePayload("5:!"); !ok || !h.broken || h.feed != 5 {
		t.Errorf("a break: %+v, %v", h, ok)
	}
	good := planOf(7, 0, []Selector{one}).payload(5)
	for _, bad := range []string{"", ":", "5", "5:", "5:x", "x:!", "5:7", "5:7:", "5:-7:0", "5:7:0:1", "5:7:0:0:", "5:7:0:8:", "5:7:0:x:", "99999999999:7:0",
		good[:len(good)-1], good + "AAAA", good + ":", good + "=", strings.Replace(good, ":7:", ":9223372036854775808:", 1)} {
		if h, ok := parsePayload(bad); ok {
			t.Errorf("%q is read as %+v", bad, h)
		}
	}
}

// FuzzNotification: whatever arrives on the channel is read in one way or not at all.
func FuzzNotification(f *testing.F) {
	for _, s := range []string{"5:!", "5:7:0", planOf(7, 0, []Selector{All, {1}}).payload(5), "5:7:0:1:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, ok := parsePayload(text)
		if !ok || h.broken || h.groups == 0 || h.groups > 1000 || len(h.selectors) > notifySelectors || !slices.IsSortedFunc(h.selectors, compareSelectors) {
			return
		}
		again := planOf(h.head, h.era, append(make([][]Selector, h.groups-1), h.selectors)...).payload(h.feed)
		if back, ok := parsePayload(again); !ok || !reflect.DeepEqual(back.selectors, slices.Compact(h.selectors)) || back.head != h.head || back.groups != h.groups || back.era != h.era {
			t.Errorf("%q is read as %+v and written as %q", text, h, again)
		}
	})
}

// TestW2_AWakeUpWaitsForNoStatement: another node's commit wakes whom it concerns, though nothing can be read of it yet.
func TestW2_AWakeUpWaitsForNoStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, func(c *Config) { c.Backstop = patience }), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	near.listening(t)
	s := AttributeSelector("n", "1")
	c := f.cut(t)
	one, other, all := f.Watch(s), f.Watch(AttributeSelector("n", "2")), f.Watch()
	defer one.Close()
	defer other.Close()
	defer all.Close()
	near.follow(t, f, c, Here, s)
	block := pgtest.Conn(t, db)
	for _, sql := range []string{"begin", "lock table feed_floor in access exclusive mode"} { // every read asks for the floor
		if _, err := block.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	g.mustAppend(t, group("1", put(1, attr("n", "1"))))
	await(t, "the wake-up", one.C())
	await(t, "the wake-up of who waits for everything", all.C())
	silent(t, "the wake-up of a waiter for something else", other.C())
	g.mustAppend(t, group("2", invalidate("x")))
	await(t, "the wake-up by an invalidate", other.C())
	if _, err := block.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	if p := near.follow(t, f, c, Woken, s); len(p.Groups) != 2 {
		t.Errorf("%+v", p)
	}
}

// TestW2_ALostNotificationIsMadeUpFor by the next one: groups in between are read, and wake whom they concern.
func TestW2_ALostNotificationIsMadeUpFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, deaf), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	var waiters []*Waiter
	var payload string
	for i := range 3 {
		w := f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		defer w.Close()
		waiters = append(waiters, w)
	}
	for i := range 2 {
		s := AttributeSelector("n", fmt.Sprint(i))
		r := g.mustAppend(t, group(fmt.Sprint(i), put(i, attr("n", fmt.Sprint(i)))))
		payload = planOf(r.Sequence, 0, []Selector{s}).payload(f.id)
	}
	near.notified(0, payload)
	await(t, "the wake-up by the second", waiters[1].C())
	await(t, "the wake-up by the first", waiters[0].C())
	silent(t, "the wake-up of a waiter for something else", waiters[2].C())
	// Told again, of what is announced already.
	testkit.Eventually(t, "both are announced", func() bool { _, published := f.hub.announced(); return published == g.cut(t).W })
	select {
	case <-waiters[1].C():
	default:
	}
	near.notified(0, payload)
	silent(t, "a second wake-up", waiters[1].C())
}

// TestW2_WhoListensAloneIsToldNothing: a node's own commits are notified only while somebody else listens.
func TestW2_WhoListensAloneIsToldNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near := newStore(t, db, func(c *Config) { c.Backstop = 5 * time.Millisecond })
	near.listenIdle = 5 * time.Millisecond // forgets who is gone as often
	hints := make(chan struct{}, 1)
	near.OnHint(func(string) { hints <- struct{}{} })
	f := near.run(t).ensure(t, "f")
	near.listening(t)
	appends := 0
	// told appends, and returns how many notifications came of it: a hint that is sent after them is heard after them.
	told := func() int {
		t.Helper()
		before := metricValue(near.metrics.notifications)
		appends++
		f.mustAppend(t, group(fmt.Sprint(appends), put(appends)))
		if err := near.Hint(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		await(t, "the hint", hints)
		return int(metricValue(near.metrics.notifications) - before)
	}
	if n := told(); n != 0 {
		t.Errorf("nobody else listens: %d notifications", n)
	}
	far := startStore(t, db, func(c *Config) { c.Backstop = time.Hour })
	g := far.ensure(t, "f")
	far.listening(t)
	w := g.Watch()
	if n := told(); n != 1 {
		t.Errorf("another node listens: %d notifications", n)
	}
	await(t, "the wake-up there", w.C())
	w.Close()
	far.stop()
	if n := told(); n != 0 {
		t.Errorf("the other node has ended: %d notifications", n)
	}
	// One that ends without a word: its server process is there, then gone, or another one.
	ends := pgtest.Conn(t, db)
	if _, err := ends.Exec(t.Context(), "insert into feed_listener (node, pid) values ('ends', pg_backend_pid())"); err != nil {
		t.Fatal(err)
	}
	if n := told(); n != 1 {
		t.Errorf("nobody knows that another has ended: %d notifications", n)
	}
	exec(t, near, "insert into feed_listener (node, pid, since) values ('ended', $1, '2001-01-01')", ends.PgConn().PID())
	testkit.Eventually(t, "whose process is another one is forgotten", func() bool { return countRows(t, db, "feed_listener") == 2 })
	if err := ends.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "whose process is gone is forgotten", func() bool { return countRows(t, db, "feed_listener") == 1 })
	if n := told(); n != 0 {
		t.Errorf("the others are gone: %d notifications", n)
	}
	near.stop()
	if n := countRows(t, db, "feed_listener"); n != 0 {
		t.Errorf("%d listeners are left", n)
	}
}

// TestW2_ACommitUnderWayIsFound by who begins to listen while it is: it was not notified.
func TestW2_ACommitUnderWayIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near := startStore(t, db)
	f := near.ensure(t, "f")
	far := newStore(t, db, func(c *Config) { c.Backstop = time.Hour })
	g := far.ensure(t, "f")
	// Somebody brings the same evidence, and is slow: the write of the group waits, and has asked who listens.
	e := put(1)
	sum := sha256.Sum256(e.BEEF)
	block := pgtest.Conn(t, db)
	if _, err := block.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	if _, err := block.Exec(t.Context(), "insert into blob (sha, bytes) values ($1, $2)", sum[:], e.BEEF); err != nil {
		t.Fatal(err)
	}
	pending := f.Submit(t.Context(), group("1", e))
	awaitWaiting(t, db, 1)
	far.run(t)
	awaitWaiting(t, db, 2)
	if _, err := block.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	if _, err := pending.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is announced", func() bool { _, published := g.hub.announced(); return published == 1 })
}
