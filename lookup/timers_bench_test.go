package lookup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// timerCount is how many rows BenchmarkTimersDueAtOnce lets expire: go test -bench TimersDueAtOnce -benchtime 1x ./lookup -timers 100000
var timerCount = flag.Int("timers", 20_000, "how many rows expire at once in BenchmarkTimersDueAtOnce")

// backlog is a feed of rows that expire at one second, and what was seen by those who read on while they did.
type backlog struct {
	n        *node
	timers   int
	deadline uint64
	before   uint64 // the head when all rows were there

	client   *http.Client
	failures atomic.Int64
	mu       sync.Mutex
	answers  map[string][]time.Duration // by kind of request, its own wait taken off; guarded by mu
}

// stockTimers puts rows of a genre that all expire at the deadline, through the queue as fast as it takes them.
func stockTimers(t testing.TB, n *node, genre string, timers int, deadline uint64) *backlog {
	t.Helper()
	b := &backlog{n: n, timers: timers, deadline: deadline, answers: make(map[string][]time.Duration),
		client: &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}}
	t.Cleanup(b.client.CloseIdleConnections)
	const each = 250
	var waiting []*livefeed.Pending
	for from := 0; from < timers; from += each {
		p := &livefeed.Proposal{Key: fmt.Sprintf("backlog-0123456789-%s-%d", genre, from), Digest: [16]byte{1}}
		for i := from; i < min(from+each, timers); i++ {
			// The evidence need not be real where DecodeGroup is passed by.
			p.Edits = append(p.Edits, livefeed.Edit{
				Op: livefeed.Put, Outpoint: livefeed.Outpoint{TxID: sha256.Sum256(fmt.Append(nil, genre, i))}, BEEF: fmt.Append(nil, "evidence of ", i),
				Order: fmt.Appendf(nil, "%08d", timers-i), ExpiresAt: deadline,
				Attributes: []livefeed.Attribute{{Name: "genre", Values: []string{genre}}},
			})
		}
		waiting = append(waiting, n.feed.Submit(t.Context(), p))
	}
	for _, p := range waiting {
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatalf("%v: with a deadline %d s away", err, deadline-n.clockNow())
		}
	}
	cut, err := n.feed.Cut(t.Context(), n.pool)
	if err != nil {
		t.Fatal(err)
	}
	b.before = cut.W
	return b
}

func (b *backlog) ask(path string, body []byte) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, b.n.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	header("Content-Type", "application/json")(req)
	header("Cache-Control", "no-store")(req)
	header(wire.HeaderProfile, wire.Profile)(req)
	header(wire.HeaderCapability, b.n.digest)(req)
	res, err := b.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	all, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, all}, err
}

// timed makes a request that must succeed and remembers how long it took beyond its own wait.
func (b *backlog) timed(kind, path string, body []byte, waited time.Duration) *wire.Batch {
	began := time.Now()
	r, err := b.ask(path, body)
	took := time.Since(began)
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.status, r.body)
	}
	if err != nil {
		b.failures.Add(1)
		b.n.t.Errorf("%s: %v", kind, err)
		return nil
	}
	b.mu.Lock()
	b.answers[kind] = append(b.answers[kind], max(took-waited, 0))
	b.mu.Unlock()
	if path == closePath {
		return nil
	}
	batch, err := wire.ParseBatch(r.body)
	if err != nil {
		b.failures.Add(1)
		b.n.t.Errorf("%s: %v", kind, err)
	}
	return batch
}

// readers opens, pages and polls until stop is closed; followers end when they have seen every row of their snapshot expire.
func (b *backlog) readers(count int, stop <-chan struct{}) *sync.WaitGroup {
	var work []func()
	paced := func(f func()) {
		work = append(work, func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for b.failures.Load() == 0 {
				select {
				case <-stop:
					return
				case <-tick.C:
					f()
				}
			}
		})
	}
	few := wire.Limits{MaxBytes: 65536, MaxObservations: 20}
	for i := range count {
		switch i % 4 {
		case 0: // opens and closes
			paced(func() {
				if s := b.timed("open", openPath, ask{limits: few}.body(), 0); s != nil {
					b.timed("close", closePath, closeBody(s.Session), 0)
				}
			})
		case 1: // pages, over and over
			first := b.n.open(ask{limits: few})
			at := first
			paced(func() {
				next := b.timed("page", readPath, readBody(at.Session, at.Cursor, few), 0)
				if at = next; next == nil || next.SnapshotComplete {
					at = first
				}
			})
		case 2: // polls what never changes
			at := b.n.live(`{"match":{"genre":"none"}}`)
			limits := wire.Limits{MaxBytes: 65536, MaxObservations: 20, WaitMs: uint32(i%8) * 50}
			paced(func() {
				next := b.timed("quiet poll", readPath, readBody(at.Session, at.Cursor, limits), time.Duration(limits.WaitMs)*time.Millisecond)
				if next != nil {
					at = next
				}
			})
		case 3: // follows the rows out, one by one and in order
			all := b.n.scan(ask{query: `{"match":{"genre":"timed"}}`})
			at, rows := all[len(all)-1], len(observations(all...))
			limits := wire.Limits{MaxBytes: 4 << 20, MaxObservations: 1024, WaitMs: 500}
			work = append(work, func() {
				for last := at.Through; rows > 0 && b.failures.Load() == 0; {
					next := b.timed("follow", readPath, readBody(at.Session, at.Cursor, limits), 500*time.Millisecond)
					if next == nil {
						return
					}
					for _, g := range next.Groups {
						if len(g.Observations) != 1 || g.Observations[0].Withdraw == nil || g.Observations[0].Withdraw.Reason != "expired" || g.Sequence <= last {
							b.failures.Add(1)
							b.n.t.Errorf("after %d: %+v", last, g)
							return
						}
						last = g.Sequence
						rows--
					}
					at = next
				}
			})
		}
	}
	var reading sync.WaitGroup
	for _, f := range work {
		reading.Go(f)
	}
	return &reading
}

// logged waits until every row has expired in the log.
func (b *backlog) logged(t testing.TB) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.failures.Load() == 0 {
		cut, err := b.n.feed.Cut(t.Context(), b.n.pool)
		if err != nil {
			t.Fatal(err)
		}
		if !cut.Due && cut.Now >= b.deadline && cut.W >= b.before+uint64(b.timers) {
			return
		}
		<-tick.C
	}
}

// check reads the log: every row expired once, each as its own group, in the order of (deadline, key).
func (b *backlog) check(t testing.TB) {
	t.Helper()
	at, err := b.n.feed.TagAt(t.Context(), b.n.pool, b.before)
	if err != nil {
		t.Fatal(err)
	}
	expired, longest, lastKey := 0, 0, ""
	for after := b.before; ; {
		page, err := b.n.feed.Log(t.Context(), b.n.pool, livefeed.LogQuery{After: after, AfterTag: at, Limit: livefeed.MaxLogGroups})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range page.Groups {
			after, at = g.Sequence, g.Tag
			for _, c := range g.Changes {
				if c.Op != livefeed.Expire {
					continue
				}
				expired++
				longest = max(longest, len(g.Changes))
				if key := string(c.Before.Order); key <= lastKey {
					t.Fatalf("group %d: row %q expired behind %q", g.Sequence, key, lastKey)
				} else {
					lastKey = key
				}
				if g.CommittedAt < b.deadline {
					t.Fatalf("group %d at %d, before the deadline %d", g.Sequence, g.CommittedAt, b.deadline)
				}
			}
		}
		if !page.Full {
			break
		}
	}
	if expired != b.timers || longest != 1 {
		t.Fatalf("%d of %d rows expired, the longest group has %d edits", expired, b.timers, longest)
	}
}

// worst prints the answers of every kind and returns the worst.
func (b *backlog) worst(t testing.TB, when string) (worst time.Duration) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, kind := range []string{"open", "page", "quiet poll", "follow", "close", "append"} {
		all := slices.Sorted(slices.Values(b.answers[kind]))
		if len(all) == 0 {
			continue
		}
		top := all[len(all)-1]
		worst = max(worst, top)
		t.Logf("%s: %-10s %6d answers, median %8s, 99 of 100 within %8s, worst %8s", when, kind, len(all),
			all[len(all)/2].Round(10*time.Microsecond), all[len(all)*99/100].Round(10*time.Microsecond), top.Round(10*time.Microsecond))
	}
	b.answers = make(map[string][]time.Duration)
	return worst
}

// TestT5_ReadersGoOnWhileManyRowsExpire at one second: no answer fails, each row is a group of its own, in order, and followers see every
// one of them leave.
func TestT5_ReadersGoOnWhileManyRowsExpire(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.digest = n.capability()
	n.stock(20)
	log := stockTimers(t, n, "timed", 3000, n.clockNow()+1000)
	stop := make(chan struct{})
	reading := log.readers(8, stop)
	n.advance(log.deadline - 1)
	n.advance(log.deadline)
	log.logged(t)
	close(stop)
	reading.Wait()
	log.check(t)
	log.worst(t, "due")
}

// TestT2_ASpentBudgetIsNoError: with nobody else logging timers an Open and a read log as many as they may, say what is logged, and go on.
func TestT2_ASpentBudgetIsNoError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// The advisory locks of the timer workers ("ovtm"): whoever holds them works.
	if _, err := pgtest.Conn(t, db).Exec(t.Context(), `select pg_advisory_lock(1870034029, n) from generate_series(1, 4) n`); err != nil {
		t.Fatal(err)
	}
	n := start(t, setup{db: db})
	n.digest = n.capability()
	log := stockTimers(t, n, "timed", 3*drainBudget, n.clockNow()+1000)
	all := n.scan(ask{query: `{"match":{"genre":"timed"}}`})
	at := all[len(all)-1]
	if len(observations(all...)) != log.timers {
		t.Fatalf("%d rows", len(observations(all...)))
	}
	n.advance(log.deadline)
	opened := n.open(ask{limits: few(1)})
	if opened.Through != log.before+drainBudget {
		t.Fatalf("an Open is at %d, %d behind the rows", opened.Through, opened.Through-log.before)
	}
	if observations(opened) != nil {
		t.Fatal("a row that expired at T is in S")
	}
	seen := 0
	for seen < log.timers {
		next := n.read(at, wide)
		if next.Through == at.Through {
			t.Fatalf("a read stands still at %d", at.Through)
		}
		seen += len(next.Groups)
		at = next
	}
	log.check(t)
}

// BenchmarkTimersDueAtOnce lets many rows expire at one second by the clock, while readers open, page, poll and follow, and groups are
// appended. A failed answer, a group of two expiries or a wrong order is a failure; times are printed.
func BenchmarkTimersDueAtOnce(b *testing.B) {
	for b.Loop() {
		n := start(b, setup{})
		n.digest = n.capability()
		n.stock(200)
		timers := *timerCount
		began := time.Now()
		// How long all of it will take is not known before some of it was done.
		const sample = 2000
		stockTimers(b, n, "sample", sample, n.clockNow()+100_000)
		n.scan(ask{query: `{"match":{"genre":"sample"}}`})
		estimate := time.Since(began) * time.Duration(timers) / sample
		log := stockTimers(b, n, "timed", timers, n.clockNow()+30+uint64(6*estimate.Seconds()))
		left := log.deadline - n.clockNow()
		b.Logf("%d rows were put within %s, %d s before they expire", timers, time.Since(began).Round(10*time.Millisecond), left)
		stop := make(chan struct{})
		var busy sync.WaitGroup
		var longest atomic.Int64 // microseconds
		reading := log.readers(16, stop)
		busy.Go(func() { log.append(stop) })
		busy.Go(func() { log.watch(stop, &longest) })
		if n.clockNow() >= log.deadline-2 {
			b.Fatal("the rows expired before everybody read: this machine is too busy")
		}
		awaitClock(b, log.deadline-1) // the idle times, for comparison
		log.worst(b, "idle")
		longest.Store(0)
		awaitClock(b, log.deadline)
		due := time.Now()
		log.logged(b)
		took := time.Since(due)
		worst := log.worst(b, "due")
		close(stop)
		busy.Wait()
		reading.Wait()
		log.check(b)
		b.Logf("all logged %s after they fell due (%.0f a second); longest transaction %s; %d failed answers",
			took.Round(time.Millisecond), float64(timers)/took.Seconds(), time.Duration(longest.Load())*time.Microsecond, log.failures.Load())
		b.ReportMetric(worst.Seconds()*1000, "worst-ms")
		b.ReportMetric(took.Seconds(), "logged-s")
		b.ReportMetric(float64(log.failures.Load()), "failures")
	}
	b.ReportMetric(0, "ns/op")
}

// awaitClock has the database say when its own clock has come to a second. It is asked from another database than the
// benchmark's, whose transactions are watched.
func awaitClock(b *testing.B, second uint64) {
	b.Helper()
	server := pgtest.Conn(b, &pgtest.DB{URL: pgtest.URL(b)})
	if _, err := server.Exec(b.Context(), `select pg_sleep_until(to_timestamp($1::bigint))`, second); err != nil {
		b.Fatal(err)
	}
}

// append adds a group now and then.
func (b *backlog) append(stop <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		began := time.Now()
		if _, err := b.n.tryAppend(mint(fmt.Sprint("append", i), 0).put(genre(i), "")); err != nil {
			b.failures.Add(1)
			b.n.t.Errorf("append: %v", err)
			return
		}
		b.mu.Lock()
		b.answers["append"] = append(b.answers["append"], time.Since(began))
		b.mu.Unlock()
	}
}

// watch asks the database how old its oldest transaction is.
func (b *backlog) watch(stop <-chan struct{}, longest *atomic.Int64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		var oldest int64
		err := b.n.pool.QueryRow(context.Background(), `select coalesce(max(extract(epoch from clock_timestamp() - xact_start) * 1e6), 0)::bigint
			from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`).Scan(&oldest)
		if err == nil && oldest > longest.Load() {
			longest.Store(oldest)
		}
	}
}
