package livefeed

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestT1_TNeverFallsBack: below what was evaluated, for reads, for edits, and on another node.
func TestT1_TNeverFallsBack(t *testing.T) {
	t.Parallel()
	db, n, f := startQuietFeed(t)
	other := startStore(t, db).ensure(t, "catalogue")
	now := f.cut(t).Now
	for _, ahead := range []uint64{1000, 10, 0} {
		if err := f.Advance(t.Context(), n.pool, now+ahead); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*Feed{f, other} {
			if c := f.cut(t); c.Now != now+1000 || c.Evaluated != now+1000 || c.Due {
				t.Errorf("after advancing by %d: %+v, want T %d", ahead, c, now+1000)
			}
			p, err := f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Limit: 1})
			if err != nil || p.Now != now+1000 {
				t.Errorf("%+v, %v", p, err)
			}
		}
	}
	other.refuse(t, Invalid, group("1", put(1, expires(now+1000))))
	r := other.mustAppend(t, group("2", put(1, expires(now+1001))))
	if g := f.readLog(t, 0, f.start(t))[r.Sequence-1]; g.CommittedAt != now+1000 {
		t.Errorf("committed at %d, want %d", g.CommittedAt, now+1000)
	}
	if err := f.Advance(t.Context(), n.pool, 1<<63); err == nil {
		t.Error("a time out of range was taken")
	}
}

// TestT1_CommitsMoveTheClock: T never falls below the time of a group, unless a due timer still has to be logged.
func TestT1_CommitsMoveTheClock(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	f.mustAppend(t, group("1", put(1)))
	g := f.readLog(t, 0, f.start(t))[0]
	c := f.cut(t)
	if c.Evaluated < g.CommittedAt {
		t.Errorf("evaluated %d, group at %d", c.Evaluated, g.CommittedAt)
	}
	f.mustAppend(t, group("2", put(1, expires(c.Now+50))))
	exec(t, n, "update feed_clock set evaluated = evaluated + 60")
	before := f.cut(t)
	if !before.Due {
		t.Fatalf("%+v", before)
	}
	exec(t, n, "update feed_clock set evaluated = evaluated - 1")
	f.mustAppend(t, group("3", put(2)))
	if c := f.cut(t); c.Evaluated != before.Evaluated-1 || !c.Due {
		t.Errorf("%+v: evaluated moved over a timer that is due", c)
	}
}

func exec(t testing.TB, n *node, sql string, args ...any) {
	t.Helper()
	if _, err := n.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// TestT2_EachExpiryIsItsOwnGroup, in (deadline, order key) order, many in a transaction; then nothing is due.
func TestT2_EachExpiryIsItsOwnGroup(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	now := f.cut(t).Now
	deadlines := []uint64{30, 10, 20, 10, 20, 30, 10, 0, 40}
	var edits []Edit
	for i, d := range deadlines {
		if d > 0 {
			d += now + 100
		}
		edits = append(edits, put(i, expires(d), attr("a", fmt.Sprint(i))))
	}
	f.mustAppend(t, group("1", edits...))
	var transactions atomic.Int32
	f.hooks.planned = func() { transactions.Add(1) }

	if remaining, err := f.Drain(t.Context(), now+200, 0); err != nil || remaining {
		t.Errorf("%v, %v", remaining, err)
	}
	if c := f.cut(t); c.W != 1 {
		t.Fatalf("a timer was logged before the feed's time reached it: %+v", c)
	}
	if err := f.Advance(t.Context(), n.pool, now+130); err != nil {
		t.Fatal(err)
	}
	if c := f.cut(t); !c.Due || c.Now != now+130 {
		t.Fatalf("%+v", c)
	}
	if s, err := f.Stats(t.Context()); err != nil || s.DueTimers != 7 {
		t.Errorf("%+v, %v", s, err)
	}
	before := transactions.Load()
	if remaining, err := f.Drain(t.Context(), now+130, 3); err != nil || !remaining {
		t.Errorf("%v, %v", remaining, err)
	}
	if c := f.cut(t); !c.Due || c.W != 4 {
		t.Errorf("%+v", c)
	}
	// Up to an earlier time than T.
	if remaining, err := f.Drain(t.Context(), now+120, 100); err != nil || remaining {
		t.Errorf("%v, %v", remaining, err)
	}
	if c := f.cut(t); !c.Due || c.W != 6 {
		t.Errorf("%+v", c)
	}
	if remaining, err := f.Drain(t.Context(), now+200, 100); err != nil || remaining {
		t.Errorf("%v, %v", remaining, err)
	}
	if c := f.cut(t); c.Due || c.W != 8 || c.Now != now+130 {
		t.Errorf("%+v", c)
	}
	if got := transactions.Load() - before; got != 3 {
		t.Errorf("%d transactions, want 3", got)
	}
	var order []string
	for _, g := range f.readLog(t, 1, groupTag(t, f, 1)) {
		c := g.Changes[0]
		if len(g.Changes) != 1 || c.Op != Expire || c.Before == nil || c.After != nil || g.CommittedAt < c.Before.ExpiresAt {
			t.Errorf("%+v", g)
		}
		order = append(order, c.Before.Attributes[0].Values[0])
	}
	if fmt.Sprint(order) != fmt.Sprint([]string{"1", "3", "6", "2", "4", "0", "5"}) {
		t.Errorf("expired in the order %v", order)
	}
	f.checkStored(t)
}

// TestT2_DueRowsExpireBeforeTheyAreEdited: a group never shows a row changed after its deadline, and the expiry has its
// own sequence in front of the group's.
func TestT2_DueRowsExpireBeforeTheyAreEdited(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	now := f.cut(t).Now
	f.mustAppend(t, group("1", put(1, expires(now+20)), put(2, expires(now+10)), put(3, expires(now+10)), put(4, expires(now+99))))
	if err := f.Advance(t.Context(), n.pool, now+20); err != nil {
		t.Fatal(err)
	}
	refused := group("refused", withdraw(3), put(9, expires(now+20)))
	f.refuse(t, Invalid, refused)
	if c := f.cut(t); c.W != 1 {
		t.Errorf("a refused group logged something: %+v", c)
	}
	r := f.mustAppend(t, group("2", put(1), spend(2), withdraw(4), withdraw(2)))
	if r.Sequence != 4 {
		t.Errorf("%+v", r)
	}
	log := f.readLog(t, 1, groupTag(t, f, 1))
	if len(log) != 3 || log[0].Changes[0].Outpoint != outpoint(2) || log[0].Changes[0].Op != Expire ||
		log[1].Changes[0].Outpoint != outpoint(1) || log[1].Changes[0].Op != Expire {
		t.Fatalf("%+v", log)
	}
	for i, hadRow := range []bool{false, false, true, false} {
		if c := log[2].Changes[i]; (c.Before != nil) != hadRow {
			t.Errorf("change %d: %+v", i, c)
		}
	}
	if c := f.cut(t); !c.Due { // row 3 is due and was not touched
		t.Errorf("%+v", c)
	}
	f.checkStored(t)
}

// TestT5_TheWorkerDrains with nobody reading, while groups go on being appended, and one worker of two nodes does it.
func TestT5_TheWorkerDrains(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	feeds := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")}
	f := feeds[0]
	now := f.cut(t).Now
	w := f.Watch(AttributeSelector("expires", "yes"))
	defer w.Close()
	const rows = 2500
	for i := range 5 {
		var edits []Edit
		for j := range rows / 5 {
			edits = append(edits, put(i*1000+j, expires(now+500)))
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	f.mustAppend(t, group("last", put(9999, attr("expires", "yes"), expires(now+501))))
	await(t, "the wake-up by the put", w.C())
	if err := f.Advance(t.Context(), f.store.cfg.Pool, now+501); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 5 {
				feeds[i%2].mustAppend(t, group(fmt.Sprintf("%d-%d", i, j), put(20000+10*i+j)))
			}
		})
	}
	await(t, "the wake-up by the expiry", w.C())
	wg.Wait()
	c := f.cut(t)
	if c.Due || c.W != 6+20+rows+1 {
		t.Errorf("%+v, want %d groups", c, 6+20+rows+1)
	}
	f.checkStored(t)
}

// TestT5_AnotherWorkerTakesOver when the one that held the lock is gone.
func TestT5_AnotherWorkerTakesOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startStore(t, db)
	f := first.ensure(t, "f")
	now := f.cut(t).Now
	second := startStore(t, db).ensure(t, "f")
	second.mustAppend(t, group("1", put(1, attr("a", "b"), expires(now+100)), put(2, attr("c", "d"), expires(now+200))))
	for i, s := range []Selector{AttributeSelector("a", "b"), AttributeSelector("c", "d")} {
		w := second.Watch(s)
		defer w.Close()
		if err := second.Advance(t.Context(), second.store.cfg.Pool, now+uint64(i+1)*100); err != nil {
			t.Fatal(err)
		}
		await(t, "the expiry", w.C())
		first.stop()
	}
	second.checkStored(t)
}

// TestT5_NobodyPaysForTheWholeBacklog: one who asks for a few rows while another drains a backlog is answered when those are logged, also
// if they were the other's, and does not join the rest.
func TestT5_NobodyPaysForTheWholeBacklog(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	now := f.cut(t).Now
	const rows = 3*drainRows + 250 // whole groups of 500
	for i := range rows / 500 {
		var edits []Edit
		for j := range 500 {
			edits = append(edits, put(i*500+j, expires(now+100)))
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	before := f.cut(t).W
	if err := f.Advance(t.Context(), n.pool, now+100); err != nil {
		t.Fatal(err)
	}
	first, third := newGate(t), newGate(t)
	var transactions atomic.Int32
	f.hooks.planned = func() {
		switch transactions.Add(1) {
		case 1:
			first.stop()
		case 3:
			third.stop()
		}
	}
	type answer struct {
		remaining bool
		err       error
	}
	drain := func(budget int) chan answer {
		c := make(chan answer, 1)
		go func() {
			remaining, err := f.Drain(t.Context(), now+100, budget)
			c <- answer{remaining, err}
		}()
		return c
	}
	all := drain(100 * drainRows)
	await(t, "the first transaction", first.reached)
	few := drain(7)
	for f.queue.draining() == 0 { // it waits behind the transaction that runs
		runtime.Gosched()
	}
	first.goOn()
	await(t, "the third transaction", third.reached)
	select {
	case a := <-few:
		if a.err != nil || !a.remaining {
			t.Errorf("%+v", a)
		}
	case <-time.After(patience):
		t.Fatal("one who asked for 7 rows waits for the whole backlog")
	}
	if c := f.cut(t); c.W != before+2*drainRows || !c.Due {
		t.Errorf("%+v, after two transactions", c)
	}
	third.goOn()
	if a := <-all; a.err != nil || a.remaining {
		t.Errorf("%+v", a)
	}
	if c := f.cut(t); c.W != before+rows || c.Due {
		t.Errorf("%+v", c)
	}
	f.checkStored(t)
}

func (q *queue) draining() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.drains)
}

// TestT5_TheWorkerAsksForOneDeadline of all there are, planned when there was none.
func TestT5_TheWorkerAsksForOneDeadline(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	conn, err := pgx.ConnectConfig(t.Context(), n.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	next := prepare(t, conn, timerNext, "int[]")
	ids := "'{" + number(f.id) + "}'"
	next.touched(t, ids)
	now := f.cut(t).Now
	for i := range 6 {
		var edits []Edit
		for j := range 500 {
			edits = append(edits, put(i*500+j, expires(now+100)))
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	if touched, plan := next.touched(t, ids); touched > 10 {
		t.Errorf("%d buffers touched:\n%s", touched, plan)
	}
}

// TestT5_ABacklogIsTakenOver: the worker that drains a backlog is lost in the middle of it, and the other one goes on; every row expires
// once, in order, and nobody notices but by the time.
func TestT5_ABacklogIsTakenOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startStore(t, db)
	f := first.ensure(t, "f")
	g := newGate(t)
	var transactions atomic.Int32
	f.hooks.planned = func() {
		if transactions.Load() < 0 && transactions.Add(1) == -1 { // the third of the drain
			g.stop()
		}
	}
	now := f.cut(t).Now
	const rows = 3*drainRows + 250 // whole groups of 500
	for i := range rows / 500 {
		var edits []Edit
		for j := range 500 {
			edits = append(edits, put(i*500+j, expires(now+100+uint64(i%3))))
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	before := f.cut(t)
	testkit.Eventually(t, "the first is the one that works", func() (held bool) {
		if err := db.Pool.QueryRow(t.Context(), "select exists (select from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()) and classid = $1 and objid = $2 and granted)",
			timerLockClass, f.id).Scan(&held); err != nil {
			t.Fatal(err)
		}
		return held
	})
	other := startStore(t, db).ensure(t, "f")
	w := other.Watch(AttributeSelector("last", "yes"))
	defer w.Close()
	other.mustAppend(t, group("last", put(99_999, attr("last", "yes"), expires(now+103))))
	await(t, "the wake-up by the put", w.C())
	transactions.Store(-4)
	if err := other.Advance(t.Context(), other.store.cfg.Pool, now+103); err != nil {
		t.Fatal(err)
	}
	await(t, "the third transaction of the backlog", g.reached)
	first.cancel()
	g.goOn()
	first.stop()
	if c := other.cut(t); !c.Due {
		t.Fatalf("nothing was left to take over: %+v", c)
	}
	await(t, "the expiry of the last row", w.C())
	if c := other.cut(t); c.Due || c.W != before.W+1+rows+1 {
		t.Errorf("%+v", c)
	}
	var deadline uint64
	var key []byte
	for _, g := range other.readLog(t, before.W+1, groupTag(t, other, before.W+1)) {
		b := g.Changes[0].Before
		k := orderKey(b.Order, g.Changes[0].Outpoint)
		if len(g.Changes) != 1 || g.Changes[0].Op != Expire || b.ExpiresAt < deadline || b.ExpiresAt == deadline && bytes.Compare(k, key) <= 0 {
			t.Fatalf("%+v", g)
		}
		deadline, key = b.ExpiresAt, k
	}
	other.checkStored(t)
}
