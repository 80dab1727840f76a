package lookup

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// poll is a Read that is under way.
type poll struct {
	reply chan reply // receives once, unless the poll was cancelled
	leave func()
}

// poll sends a Read and waits until the provider is at a moment of it.
func (n *node) poll(at moment, who string, b *wire.Batch, l wire.Limits) *poll {
	n.t.Helper()
	there := make(chan struct{}, 1)
	stop := n.during(at, func() {
		select {
		case there <- struct{}{}:
		default:
		}
	})
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	n.t.Cleanup(cancel)
	p := &poll{reply: make(chan reply, 1), leave: cancel}
	go func() {
		if r, err := n.try(ctx, readPath, readBody(b.Session, b.Cursor, l), from(who)); err == nil {
			p.reply <- r
		}
	}()
	select {
	case <-there:
	case r := <-p.reply:
		n.t.Fatalf("the poll was answered: %d %s", r.status, r.body)
	case <-time.After(20 * time.Second):
		n.t.Fatal("the poll did not come that far")
	}
	return p
}

// within receives what must come soon.
func within[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(20 * time.Second):
		t.Fatalf("never: %s", what)
	}
	return v
}

func (n *node) sleeping(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d polls sleep", want), func() bool { return n.metric("overlayd_lookup_waiting_polls", "") == float64(want) })
}

// TestW8_WaitersAreBounded: a poll that would have to sleep when all places are taken is told so, and nobody else is.
func TestW8_WaitersAreBounded(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{Waiters: 3, WaitersPerClient: 2}})
	n.stock(3)
	behind := n.live(`{}`)
	n.append(mint("more", 0).put(genre(0), ""))
	b := n.live(`{}`)
	page := n.open(ask{limits: few(1)})
	refused := func(who string, q quota) {
		t.Helper()
		e := toldBy(t, n.request(readPath, readBody(b.Session, b.Cursor, wait(25000)), from(who)), q, false)
		if *e.RetryAfterMs != 5000 {
			t.Errorf("retryAfterMs %d", *e.RetryAfterMs)
		}
	}
	first, second := n.poll(beforeSleep, alice, b, wait(25000)), n.poll(beforeSleep, alice, b, wait(25000))
	refused(alice, quotaWaitersPerClient)
	third := n.poll(beforeSleep, bob, b, wait(25000))
	refused(bob, quotaWaiters)
	refused(carol, quotaWaiters)
	refused(alice, quotaWaitersPerClient)
	if got := n.refusals(); len(got) != 2 || got["waiters"] != 2 || got["waitersPerClient"] != 2 {
		t.Errorf("%v", got)
	}
	// A poll that has something to deliver does not sleep, nor does one with waitMs 0, nor a page of a snapshot.
	for _, who := range []string{alice, carol} {
		r := n.request(readPath, readBody(behind.Session, behind.Cursor, wait(25000)), from(who))
		if got := r.batch(t); len(got.Groups) != 1 {
			t.Errorf("%d groups", len(got.Groups))
		}
		n.request(readPath, readBody(b.Session, b.Cursor, wide), from(who)).batch(t)
		waiting := few(1)
		waiting.WaitMs = 25000
		n.request(readPath, readBody(page.Session, page.Cursor, waiting), from(who)).batch(t)
		n.openAs(whence{who, testService}, ask{}).batch(t)
	}
	// Who leaves makes room at once, for his own and for others.
	n.sleeping(t, 3)
	first.leave()
	n.sleeping(t, 2)
	fourth := n.poll(beforeSleep, carol, b, wait(25000))
	refused(bob, quotaWaiters)
	fourth.leave()
	n.sleeping(t, 2)
	fifth := n.poll(beforeSleep, alice, b, wait(25000))
	// A commit ends them with what they waited for.
	n.append(mint("at last", 0).put(genre(0), ""))
	for _, p := range []*poll{second, third, fifth} {
		if got := within(t, "the poll is answered", p.reply).batch(t); len(got.Groups) != 1 {
			t.Errorf("%d groups", len(got.Groups))
		}
	}
	n.sleeping(t, 0)
	// A deadline, a close and a stop give the place back too.
	b = n.live(`{}`)
	n.request(readPath, readBody(b.Session, b.Cursor, wait(1)), from(alice)).batch(t)
	n.sleeping(t, 0)
	closed := n.live(`{}`)
	p := n.poll(beforeSleep, alice, closed, wait(25000))
	n.request(closePath, closeBody(closed.Session))
	within(t, "the poll is answered", p.reply).refused(t, wire.Expired)
	n.sleeping(t, 0)
	p = n.poll(beforeSleep, alice, b, wait(25000))
	n.provider.Stop()
	within(t, "the poll is answered", p.reply).batch(t)
	n.sleeping(t, 0)
	if w := n.provider.quotas.waiters; len(w.of) != 0 {
		t.Errorf("%d clients are remembered", len(w.of))
	}
}

// TestO10_RequestsAreBounded: how many bodies are built at once, and how many requests wait for that.
func TestO10_RequestsAreBounded(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{Requests: 1, RequestsWaiting: 1, RequestWaitMs: 60_000}})
	n.stock(2)
	kept := ask{id: newID()}
	saved := n.openAs(whence{alice, testService}, kept)
	live := n.live(`{}`)
	asleep := n.poll(beforeSleep, alice, live, wait(25000)) // builds nothing
	// One is being built: it stays at the moment before that.
	there, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var once sync.Once
	stop := n.during(beforeBuild, func() { once.Do(func() { close(there); <-goOn }) })
	replies := make(chan reply, 2)
	send := func() {
		r, err := n.try(context.Background(), readPath, readBody(live.Session, live.Cursor, wide), from(alice))
		if err != nil {
			t.Error(err)
		}
		replies <- r
	}
	go send()
	within(t, "the first is being built", there)
	go send()
	testkit.Eventually(t, "one waits", func() bool { return n.metric("overlayd_lookup_requests_waiting", "") == 1 })
	if got := n.metric("overlayd_lookup_requests", ""); got != 1 {
		t.Errorf("%v are being built", got)
	}
	for _, who := range []string{alice, bob} {
		e := toldBy(t, n.request(readPath, readBody(live.Session, live.Cursor, wide), from(who)), quotaRequestsWaiting, false)
		if *e.RetryAfterMs != 1000 {
			t.Errorf("retryAfterMs %d", *e.RetryAfterMs)
		}
	}
	again := ask{id: newID()}
	toldBy(t, n.openAs(whence{bob, testService}, again), quotaRequestsWaiting, false)
	// What builds nothing goes on: an existing fence, a close, discovery.
	if r := n.openAs(whence{alice, testService}, kept); r.status != http.StatusOK || string(r.body) != string(saved.body) {
		t.Errorf("%d %s", r.status, r.body)
	}
	n.request(closePath, closeBody(saved.batch(t).Session))
	n.manifest()
	release()
	for range 2 {
		within(t, "both are answered", replies).batch(t)
	}
	stop()
	n.openAs(whence{bob, testService}, again).batch(t)
	if got := n.refusals(); len(got) != 1 || got["requestsWaiting"] != 3 {
		t.Errorf("%v", got)
	}
	n.append(mint("wakes", 0).put(genre(0), ""))
	if got := within(t, "the poll is answered", asleep.reply).batch(t); len(got.Groups) != 1 {
		t.Errorf("%d groups", len(got.Groups))
	}
	testkit.Eventually(t, "nothing is being built", func() bool { return n.metric("overlayd_lookup_requests", "") == 0 })
}

// TestO10_WaitingForASlotEnds: a request whose turn does not come is told so in time, and the next one has it. A body that is built has its
// slot until it is checked.
func TestO10_WaitingForASlotEnds(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]moment{"built": beforeBuild, "checked": beforeGate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waitingForASlotEnds(t, at)
		})
	}
}

func waitingForASlotEnds(t *testing.T, at moment) {
	n := shops(t, setup{quotas: Quotas{Requests: 1, RequestWaitMs: 20}})
	b := n.live(`{}`)
	there, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var once sync.Once
	stop := n.during(at, func() { once.Do(func() { close(there); <-goOn }) })
	done := make(chan reply, 1)
	go func() {
		r, err := n.try(context.Background(), readPath, readBody(b.Session, b.Cursor, wide), from(alice))
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	within(t, "one is under way", there)
	toldBy(t, n.openAs(whence{bob, testService}, ask{}), quotaRequests, false)
	e := toldBy(t, n.request(readPath, readBody(b.Session, b.Cursor, wide), from(bob)), quotaRequests, false)
	if *e.RetryAfterMs != 1000 {
		t.Errorf("retryAfterMs %d", *e.RetryAfterMs)
	}
	release()
	within(t, "it is answered", done).batch(t)
	stop()
	n.openAs(whence{bob, testService}, ask{}).batch(t)
}

// TestO10_ALookGivesWayToACommit: where requests wait for a slot, a poll that would look while its node commits looks after it, and need
// not sleep; it does not wait for ever.
func TestO10_ALookGivesWayToACommit(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{Requests: 1, RequestWaitMs: 60_000}})
	n.provider.courtesy = time.Minute // before anybody asks
	live := n.live(`{}`)
	built, goOn, gaveWay := make(chan struct{}), make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var first, once sync.Once
	var slept atomic.Int32
	pause := func(at moment) {
		switch at {
		case beforeBuild:
			first.Do(func() { close(built); <-goOn })
		case givesWay:
			once.Do(func() { close(gaveWay) })
		case beforeSleep:
			slept.Add(1)
		}
	}
	n.provider.pause.Store(&pause)
	done := make(chan *wire.Batch, 2)
	poll := func() { done <- n.read(live, wait(25_000)) }
	go poll()
	within(t, "one is under way", built)
	go poll()
	testkit.Eventually(t, "one waits", func() bool { return n.metric("overlayd_lookup_requests_waiting", "") == 1 })
	tx, err := n.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is to stay
	if _, err := tx.Exec(t.Context(), `select from feed_head for update`); err != nil {
		t.Fatal(err)
	}
	appended := make(chan struct{})
	go func() { defer close(appended); n.append(mint("under way", 0).put(genre(0), "")) }()
	testkit.Eventually(t, "a commit is under way", func() bool { return n.feed.Committing() != nil })
	release()
	within(t, "the look gives way", gaveWay)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "the append", appended)
	for range 2 {
		if b := within(t, "an answer", done); len(b.Groups) != 1 {
			t.Errorf("%d groups", len(b.Groups))
		}
	}
	if got := slept.Load(); got != 0 {
		t.Errorf("%d polls slept", got)
	}
	if n.feed.Committing() != nil {
		t.Error("a commit is still under way")
	}
}

// TestA8_QuotasTellNothing: no address, identity or digest of them in logs, metrics or errors.
func TestA8_QuotasTellNothing(t *testing.T) {
	t.Parallel()
	n := members(t, setup{quotas: Quotas{SessionsPerClient: 1, OpensPerSecond: 0.001, OpenBurst: 3}})
	p := n.person(1)
	p.open("ls_anyone", ask{})
	var told []byte
	for range 3 {
		told = append(told, p.ask(openPath, ask{}.at("ls_anyone"), from(alice)).body...)
		told = append(told, n.request(openPath, ask{}.body(), from(alice)).body...)
	}
	if err := n.provider.main.gauges(t.Context()); err != nil {
		t.Fatal(err)
	}
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		told = append(told, f.String()...)
	}
	told = append(told, n.log.String()...)
	var clients [][]byte
	rows, err := n.pool.Query(t.Context(), `select distinct client from lookup_session`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var c []byte
		if err := rows.Scan(&c); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	if rows.Err() != nil || len(clients) != 2 {
		t.Fatalf("%d clients, %v", len(clients), rows.Err())
	}
	secrets := []string{alice, hexOf(p.identity[:])}
	for _, c := range clients {
		secrets = append(secrets, hexOf(c), string(c))
	}
	for _, secret := range secrets {
		if strings.Contains(string(told), secret) {
			t.Errorf("%q is told", secret)
		}
	}
	for _, seen := range []string{"sessionsPerClient", "opensPerSecond", "overlayd_lookup_quota_refusals_total", "X-Forwarded-For"} {
		if !strings.Contains(string(told), seen) {
			t.Errorf("there was no %s to look at", seen)
		}
	}
}

// TestO10_CountingCostsOneClient: what a client holds is counted along an index, whatever others hold, also when the statement
// was planned while there were no sessions.
func TestO10_CountingCostsOneClient(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{})
	conn, err := n.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	statements := map[string]string{"held": countHeld, "spent": lookSpent}
	for name, sql := range statements {
		if _, err := conn.Exec(t.Context(), `prepare `+name+` (bytea, text, bigint, integer) as `+sql); err != nil {
			t.Fatal(err)
		}
	}
	touched := func(name string) (buffers int, plan string) {
		rows, err := conn.Query(t.Context(), fmt.Sprintf(`explain (analyze, buffers, timing off) execute %s ('\x00', '%s', 256, %d)`, name, testService, n.feed.ID()))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for first := true; rows.Next(); {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			var hit, read int
			if l := strings.TrimSpace(line); first && strings.HasPrefix(l, "Buffers: shared") {
				fmt.Sscanf(l, "Buffers: shared hit=%d read=%d", &hit, &read)
				buffers, first = hit+read, false
			}
			plan += line + "\n"
		}
		return buffers, plan
	}
	for name := range statements {
		if _, plan := touched(name); !strings.Contains(plan, "lookup_session_client") {
			t.Fatalf("%s", plan)
		}
	}
	n.open(ask{})
	_, err = conn.Exec(context.Background(), `insert into lookup_session select r.*
		from lookup_session s, generate_series(1, 5000) i, lateral jsonb_populate_record(s, jsonb_build_object(
			'id', '\x' || md5(i::text) || md5('a' || i), 'fence', '\x' || md5('f' || i), 'ref', gen_random_uuid(),
			'client', case when i <= 300 then '\x00' else '\x' || md5('c' || i % 100) end)) r`)
	if err != nil {
		t.Fatal(err)
	}
	for name := range statements {
		// A step down the index and at most 256 of the client's own sessions.
		if buffers, plan := touched(name); buffers > 256+40 {
			t.Errorf("%d buffers\n%s", buffers, plan)
		}
	}
}
