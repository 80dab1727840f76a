package livefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestW1_ACommitBetweenTheReadAndTheSleep wakes the waiter: it registered before it read. The committer is held in
// between commit and announcement, which is where a waiter that read first would be lost.
func TestW1_ACommitBetweenTheReadAndTheSleep(t *testing.T) {
	t.Parallel()
	// The backstop would announce it, within its period.
	_, n, f := startFeed(t, func(c *Config) { c.Backstop = time.Hour })
	n.listening(t)
	g := newGate(t)
	f.hooks.committed = func(uint64) error { g.stop(); return nil }

	selector := AttributeSelector("a", "b")
	w := f.Watch(selector)
	defer w.Close()
	p, err := f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Selectors: []Selector{selector}, Limit: 1})
	if err != nil || len(p.Groups) != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	pending := f.Submit(t.Context(), group("1", put(1, attr("a", "b")))) // after the read
	await(t, "the commit", g.reached)

	// Registered after the commit and before its announcement: this one's read sees the group.
	late := f.Watch(selector)
	defer late.Close()
	if p, err = f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Selectors: []Selector{selector}, Limit: 1}); err != nil || len(p.Groups) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	silent(t, "a wake-up before the announcement", w.C())
	g.goOn()
	await(t, "the wake-up", w.C())
	if _, err := pending.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestW1_EveryCommitIsAnnounced: also groups of another node that are appended while the missing ones before them are
// being read.
func TestW1_EveryCommitIsAnnounced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")
	var wg sync.WaitGroup
	for i := range 60 {
		s := attr("n", fmt.Sprint(i))
		w := near.Watch(AttributeSelector("n", fmt.Sprint(i)))
		wg.Go(func() {
			defer w.Close()
			await(t, fmt.Sprintf("the wake-up by group %d", i), w.C())
		})
		f := []*Feed{near, far, far}[i%3]
		wg.Go(func() { f.mustAppend(t, group(fmt.Sprint(i), put(i, s))) })
	}
	wg.Wait()
}

// TestW2_AnotherNodesCommit wakes by its notification: the backstop is out of reach.
func TestW2_AnotherNodesCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, func(c *Config) { c.Backstop = time.Hour }), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	near.listening(t)
	for i := range 20 {
		w := f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		other := f.Watch(AttributeSelector("n", "other"))
		g.mustAppend(t, group(fmt.Sprint(i), put(i, attr("n", fmt.Sprint(i)))))
		await(t, "the wake-up", w.C())
		silent(t, "the wake-up of a waiter for something else", other.C())
		w.Close()
		other.Close()
	}
}

func metricValue(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		return -1
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

// listening waits until notifications arrive.
func (n *node) listening(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "the store listens", func() bool { return metricValue(n.metrics.listening) == 1 })
}

// TestW2_PollOnly: without any notification a commit of another node costs the backstop's period.
func TestW2_PollOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := startStore(t, db, func(c *Config) { c.NoListen = true; c.Backstop = 20 * time.Millisecond }).ensure(t, "f")
	g := startStore(t, db).ensure(t, "f")
	for i := range 10 {
		w := f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		other := f.Watch(AttributeSelector("n", "other"))
		g.mustAppend(t, group(fmt.Sprint(i), put(i, attr("n", fmt.Sprint(i)))))
		await(t, "the wake-up", w.C())
		silent(t, "the wake-up of a waiter for something else", other.C())
		w.Close()
		other.Close()
	}
}

// TestW2_ADeadListenerIsReplaced: noticed, counted, and what was committed meanwhile is announced.
func TestW2_ADeadListenerIsReplaced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near := startStore(t, db, func(c *Config) { c.Backstop = time.Hour })
	f, g := near.ensure(t, "f"), startStore(t, db, func(c *Config) { c.NoListen = true }).ensure(t, "f")
	for i := range 3 {
		near.listening(t)
		w := f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		var killed bool
		// The listener reads the heads after its LISTEN, if there are feeds yet. Pooled connections that did so too go with it.
		if err := db.Pool.QueryRow(t.Context(), `select bool_or(pg_terminate_backend(pid, 10000)) from pg_stat_activity
			where datname = current_database() and query in ($1, 'select 1')`, witnessRead).Scan(&killed); err != nil || !killed {
			t.Fatalf("no listener was found: %v", err)
		}
		g.mustAppend(t, group(fmt.Sprint(i), put(i, attr("n", fmt.Sprint(i)))))
		await(t, "the wake-up", w.C())
		w.Close()
	}
	if got := metricValue(near.metrics.listenerRestarts); got < 3 {
		t.Errorf("%v restarts were counted", got)
	}
}

// TestW2_FarBehind: whoever missed more than it wants to read wakes everybody.
func TestW2_FarBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	f.mustAppendWith(t, startStore(t, db).ensure(t, "f"), 1)
	w := f.Watch(AttributeSelector("n", "nobody"))
	defer w.Close()
	f.hub.see(0, followGroups+2)
	if err := f.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the wake-up", w.C())
	if r := f.hub.reach(); r.published != followGroups+2 {
		t.Errorf("announced up to %d", r.published)
	}
}

// mustAppendWith appends through another node.
func (f *Feed) mustAppendWith(t testing.TB, other *Feed, n int) {
	t.Helper()
	for i := range n {
		other.mustAppend(t, group(fmt.Sprint("with-", i), put(i)))
	}
}

// TestW2_AHoleWakesEverybody: what cannot be read is for the reader to find out.
func TestW2_AHoleWakesEverybody(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"hole":       "delete from feed_group where seq = 2",
		"end":        "delete from feed_group where seq >= 2",
		"unreadable": `update feed_group set changes = '\x07' where seq = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			n := newStore(t, db)
			f := n.ensure(t, "f")
			f.mustAppendWith(t, startStore(t, db).ensure(t, "f"), 3)
			exec(t, n, damage)
			w := f.Watch(AttributeSelector("n", "nobody"))
			defer w.Close()
			f.hub.see(0, 3)
			if err := f.follow(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, "the wake-up", w.C())
		})
	}
}

// TestW3_IrrelevantCommitsDoNotWake, though they are announced.
func TestW3_IrrelevantCommitsDoNotWake(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	f.mustAppend(t, group("0", put(1, attr("genre", "jazz"))))
	jazz, rock, everything := f.Watch(AttributeSelector("genre", "jazz")), f.Watch(AttributeSelector("genre", "rock")), f.Watch()
	defer jazz.Close()
	defer rock.Close()
	defer everything.Close()
	both := f.Watch(AttributeSelector("genre", "jazz"), AttributeSelector("genre", "rock"))
	defer both.Close()

	f.mustAppend(t, group("1", put(2, attr("genre", "polka")), withdraw(3)))
	await(t, "the wake-up of who waits for everything", everything.C())
	silent(t, "a wake-up by an irrelevant group", jazz.C())
	silent(t, "a wake-up by an irrelevant group", rock.C())
	f.mustAppend(t, group("2", put(1, attr("genre", "rock")))) // leaves jazz, enters rock
	await(t, "the wake-up of who loses the row", jazz.C())
	await(t, "the wake-up of who gains it", rock.C())
	await(t, "the wake-up", both.C())
	await(t, "the wake-up", everything.C())
	silent(t, "a second wake-up", both.C())
	f.mustAppend(t, group("3", invalidate("c")))
	for _, w := range []*Waiter{jazz, rock, both, everything} {
		await(t, "the wake-up by an invalidate", w.C())
	}
}

// TestW4_AClosedWaiterIsForgotten, and closing is harmless at any time.
func TestW4_AClosedWaiterIsForgotten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			w := f.Watch(AttributeSelector("n", fmt.Sprint(i%5)), AttributeSelector("m", "x"))
			if i%2 == 0 {
				f.mustAppend(t, group(fmt.Sprint(i), put(i, attr("m", "x"))))
				await(t, "the wake-up", w.C())
			}
			w.Close()
			w.Close()
		})
	}
	wg.Wait()
	s, err := f.Stats(t.Context())
	if err != nil || s.Waiters != 0 || len(f.hub.waiters) != 0 || metricValue(n.metrics.waiters) != 0 {
		t.Errorf("%+v, %v, %d selectors, gauge %v", s, err, len(f.hub.waiters), metricValue(n.metrics.waiters))
	}
}

// TestW5_ACommitWakesOnlyWhoMatches of ten thousand, without any of them asking the database.
func TestW5_ACommitWakesOnlyWhoMatches(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	var waiters []*Waiter
	for i := range 10_000 {
		w := f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		defer w.Close()
		waiters = append(waiters, w)
	}
	f.mustAppend(t, group("1", put(1, attr("n", "17", "4711"))))
	for i, w := range waiters {
		if i == 17 || i == 4711 {
			await(t, "the wake-up", w.C())
		} else {
			silent(t, "the wake-up of a waiter for something else", w.C())
		}
	}
}

// TestF7_MetricsAreCounted and registered once.
func TestF7_MetricsAreCounted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	registry := prometheus.NewRegistry()
	n := startStore(t, db, func(c *Config) { c.Metrics = registry; c.Log = nil })
	f := n.ensure(t, "f")
	f.mustAppend(t, group("1", put(1)))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, family := range families {
		names[family.GetName()] = true
	}
	for _, name := range []string{"groups_total", "batch_groups", "commit_seconds", "notifications_total", "listener_restarts_total", "waiters", "pool_waits_total", "timers_drained_total", "history_lost_total", "wakes_total", "tail_groups", "tail_bytes"} {
		if !names["overlayd_livefeed_"+name] {
			t.Errorf("%s is missing", name)
		}
	}
	if _, err := NewStore(t.Context(), Config{Pool: n.pool, Writer: n.writer, Metrics: registry}); err == nil {
		t.Error("two stores share one registry")
	}
	if _, err := NewStore(t.Context(), Config{}); err == nil {
		t.Error("a store without pools was made")
	}
}

// TestF4_AVolatileWriterIsRefused: with synchronous_commit off an acknowledged group can be lost.
func TestF4_AVolatileWriterIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	pool := pgtest.NewPool(t, db)
	exec(t, n, "alter database "+pool.Config().ConnConfig.Database+" set synchronous_commit = off")
	if _, err := NewStore(t.Context(), Config{Pool: n.pool, Writer: pgtest.NewPool(t, db)}); err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("%v", err)
	}
	if _, err := NewStore(t.Context(), Config{Pool: n.pool, Writer: pgtest.NewPool(t, db, Configure)}); err != nil {
		t.Errorf("Configure leaves it off: %v", err)
	}
}

// recorder counts log records by level.
type recorder struct {
	slog.Handler
	warnings atomic.Int32
}

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	if rec.Level >= slog.LevelWarn {
		r.warnings.Add(1)
	}
	return nil
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

// TestF4_AnOutageIsRiddenOut: while every connection is refused groups wait; what does not come back in time is told to
// ask again, and everything goes on afterwards.
func TestF4_AnOutageIsRiddenOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &recorder{Handler: slog.DiscardHandler}
	n := startStore(t, db, func(c *Config) { c.Log = slog.New(log) })
	f := n.ensure(t, "f")
	f.mustAppend(t, group("0", put(0)))
	admin := pgtest.Conn(t, &pgtest.DB{URL: pgtest.URL(t)})
	name := n.pool.Config().ConnConfig.Database
	retried := func() float64 { return metricValue(n.metrics.retries.WithLabelValues("f")) }
	must := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	must("alter database " + name + " allow_connections false")
	must("select pg_terminate_backend(pid) from pg_stat_activity where datname = '" + name + "'")
	pending := f.Submit(t.Context(), group("1", put(1)))
	deadline := time.Now().Add(patience)
	for retried() < 3 && time.Now().Before(deadline) {
		if !pause(t.Context(), time.Millisecond) {
			t.Fatal("the test ended")
		}
	}
	must("alter database " + name + " allow_connections true")
	if r, err := pending.Wait(t.Context()); err != nil || r.Sequence != 2 || r.Replayed {
		t.Errorf("%+v, %v", r, errors.Unwrap(err))
	}
	w := f.Watch()
	defer w.Close()
	f.mustAppend(t, group("2", put(2)))
	await(t, "the wake-up", w.C())
	n.listening(t)
	if got := log.warnings.Load(); got == 0 || got > 20 {
		t.Errorf("%d warnings for one outage", got)
	}
	n.pool.Reset() // whoever was idle when it was ended does not know of it
	f.checkStored(t)
}

// TestW1_ACallIsAWakeUp: who is woken by calls misses nothing that comes between two of them, and hears of what came while he had not
// asked to be called.
func TestW1_ACallIsAWakeUp(t *testing.T) {
	t.Parallel()
	f := &Feed{}
	f.hub.init(func(int) {}, prometheus.NewCounter(prometheus.CounterOpts{Name: "woken"}))
	sequence := uint64(0)
	commit := func() {
		sequence++
		f.hub.publish(0, sequence, sequence, announcement{selectors: map[Selector]struct{}{AttributeSelector("a", "b"): {}}})
	}
	w := f.Watch(AttributeSelector("a", "b"))
	calls := 0
	call := func() { calls++ }
	heard := func(want int) {
		t.Helper()
		if calls != want {
			t.Fatalf("called %d times, not %d", calls, want)
		}
	}
	w.Call(func() { t.Error("a call that was replaced") })
	w.Call(call)
	heard(0)
	commit()
	heard(1)
	commit() // nobody asks to be called meanwhile: these two are one
	commit()
	heard(1)
	w.Call(call)
	heard(2)
	w.Call(call)
	heard(2)
	w.Close()
	commit()
	heard(2)

	late := f.Watch()
	commit()
	await(t, "what came before anybody asked for C", late.C())
	commit()
	late.Close()
	late.Call(call)
	heard(2)
}
