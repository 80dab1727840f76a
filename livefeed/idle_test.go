package livefeed

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// statements counts what connections are asked, by text.
type statements struct {
	ended func(*pgx.Conn, string) // if given

	mu   sync.Mutex
	seen map[string]int // guarded by mu
}

type statementKey struct{}

func (s *statements) count(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]int{}
	}
	s.seen[sql]++
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.count(d.SQL)
	return context.WithValue(ctx, statementKey{}, d.SQL)
}

func (s *statements) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(statementKey{}).(string); s.ended != nil {
		s.ended(conn, sql)
	}
}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		s.count(q.SQL)
	}
	return ctx
}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (s *statements) so(sql string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[sql]
}

func (s *statements) all() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seen)
}

// traced makes every connection of a store count its statements.
func traced(t testing.TB, db *pgtest.DB, s *statements) option {
	return func(c *Config) {
		with := func(p *pgxpool.Config) { Configure(p); p.ConnConfig.Tracer = s }
		c.Pool, c.Writer = pgtest.NewPool(t, db, with), pgtest.NewPool(t, db, with)
	}
}

const (
	idleWaiters = 10_000
	idlePeriods = 10 // of the backstop
)

// TestW5_IdleWaitersCostNoStatement: with ten thousand of them a node asks what it asks with none, and one statement for another node's
// commit, of which only those wake whom it concerns. Its own commit costs them none.
func TestW5_IdleWaitersCostNoStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var asked statements
	near := startStore(t, db, traced(t, db, &asked), func(c *Config) { c.Backstop = 10 * time.Millisecond })
	far := startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	near.listening(t)
	waiters := make([]*Waiter, idleWaiters)
	for i := range waiters {
		waiters[i] = f.Watch(AttributeSelector("n", fmt.Sprint(i)))
		defer waiters[i].Close()
	}
	// The heads are read once a period for the process, deadlines once a second; nothing else is.
	housekeeping := map[string]bool{probeSend: true, witnessRead: true, listenersForget: true, timerNext: true, timerLock: true}
	during := func(work func()) map[string]int {
		before := asked.all()
		work()
		after := asked.all()
		for sql := range after {
			if after[sql] -= before[sql]; after[sql] == 0 || housekeeping[sql] {
				delete(after, sql)
			}
		}
		return after
	}
	if extra := during(func() {
		from := asked.so(witnessRead)
		testkit.Eventually(t, "some periods have passed", func() bool { return asked.so(witnessRead) >= from+idlePeriods })
	}); len(extra) != 0 {
		t.Errorf("idle waiters ask %v", extra)
	}
	woken := func(want ...int) {
		t.Helper()
		for _, i := range want {
			await(t, "the wake-up", waiters[i].C())
		}
		for _, w := range waiters {
			silent(t, "the wake-up of a waiter for something else", w.C())
		}
	}
	if extra := during(func() {
		looks := asked.so(logTail)
		g.mustAppend(t, group("far", put(1, attr("n", "17", "4711"))))
		woken(17, 4711)
		testkit.Eventually(t, "the group is read", func() bool { at := f.tail.latest(); return asked.so(logTail) > looks && at.head == 1 && at.epoch != "" })
	}); len(extra) != 1 || extra[logTail] != 1 {
		t.Errorf("another node's commit costs %v", extra)
	}
	// The backstop, which is in a hurry here, may see the head of a commit before its committer announces it, and then looks.
	for attempt := 1; ; attempt++ {
		extra := during(func() {
			f.mustAppend(t, group(fmt.Sprint("near", attempt), put(1+attempt, attr("n", "3"))))
			woken(3)
		})
		if extra["commit"] != 1 || extra[followRead] != 0 || extra[logAll] != 0 || extra[logTail] > 1 || extra[logTail] == 1 && attempt == 5 {
			t.Errorf("this node's commit costs %v", extra)
		}
		if extra[logTail] != 1 || attempt == 5 {
			break
		}
	}
}

// TestW2_ADeafListenerIsReplaced: a connection that is up, but on which nothing is heard. Until another one hears, other nodes' commits are
// seen by polling.
func TestW2_ADeafListenerIsReplaced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var mu sync.Mutex
	deaf := true
	asked := statements{ended: func(conn *pgx.Conn, sql string) {
		mu.Lock()
		defer mu.Unlock()
		if deaf && strings.HasPrefix(sql, "listen overlayd_probe_") {
			if _, err := conn.PgConn().Exec(context.Background(), "unlisten *").ReadAll(); err != nil {
				t.Error(err)
			}
		}
	}}
	n := newStore(t, db, traced(t, db, &asked), func(c *Config) { c.Backstop = 20 * time.Millisecond })
	n.listenProbe = 500 * time.Millisecond
	f, g := n.run(t).ensure(t, "f"), startStore(t, db).ensure(t, "f")
	testkit.Eventually(t, "a deaf listener was replaced", func() bool { return metricValue(n.metrics.listenerRestarts) >= 2 })
	if metricValue(n.metrics.listening) != 0 {
		t.Error("a deaf listener counts as listening")
	}
	w := f.Watch()
	defer w.Close()
	g.mustAppend(t, group("1", put(1)))
	await(t, "the wake-up by polling", w.C())
	mu.Lock()
	deaf = false
	mu.Unlock()
	n.listening(t)
	heard := metricValue(n.metrics.notifications)
	g.mustAppend(t, group("2", put(2)))
	await(t, "the wake-up", w.C())
	testkit.Eventually(t, "a notification is heard", func() bool { return metricValue(n.metrics.notifications) > heard })
}

// TestW2_AQuietListenerIsProbed, again and again, and stays.
func TestW2_AQuietListenerIsProbed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var asked statements
	n := newStore(t, db, traced(t, db, &asked), func(c *Config) { c.Backstop = time.Hour })
	n.listenIdle = 5 * time.Millisecond
	n.run(t)
	testkit.Eventually(t, "some probes", func() bool { return asked.so(probeSend) > 4 })
	if metricValue(n.metrics.listening) != 1 || metricValue(n.metrics.listenerRestarts) != 0 {
		t.Errorf("listening %v, restarts %v", metricValue(n.metrics.listening), metricValue(n.metrics.listenerRestarts))
	}
}
