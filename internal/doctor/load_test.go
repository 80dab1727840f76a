package doctor

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/livefeed"
)

// contextOf outlives the test: for what is cleaned up after it.
func contextOf(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// fill appends n rows to the feed of the tests, one a group.
func fill(t *testing.T, db *pgtest.DB, n int) {
	t.Helper()
	pool := pgtest.NewPool(t, db, livefeed.Configure)
	store, err := livefeed.NewStore(t.Context(), livefeed.Config{Pool: pool, Writer: pool})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(contextOf(t))
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	feed, err := store.Ensure(t.Context(), "catalogue", livefeed.Chain{Network: sample.SyntheticNetwork, Genesis: sample.SyntheticGenesis})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		return
	}
	var b bytes.Buffer
	if err := sample.Generate(t.Context(), &b, sample.Options{Seed: 5, Groups: n, PutsOnly: true}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		group, err := livefeed.DecodeGroup([]byte(strings.TrimSpace(line)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := feed.Append(t.Context(), group); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSessionsVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := settingsOf(t, db.URL)
	says(t, examined(t, c), "sessions", OK, "catalogue has 0 rows")
	fill(t, db, 300)
	// As if they had come one a second: what sessions pin of that fits any disk.
	if _, err := db.Pool.Exec(t.Context(), `update feed_group set committed_at = floor(extract(epoch from clock_timestamp()))::bigint - (301 - seq)`); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, c), "sessions", OK, "300 rows", "edits a second")

	// A client so slow that its session ends before its scan, or shortly after.
	c.Services[0].SessionSeconds = 100
	x := func(rate float64) func(*Options) { return func(o *Options) { o.limits.clientRate = rate } }
	says(t, examined(t, c, x(500)), "sessions", Failure, "ls_catalogue last 1m40s", "raise sessionSeconds")
	says(t, examined(t, c, x(1e12), func(o *Options) { o.limits.scanTimes = 1e9 }), "sessions", Warning, "raise sessionSeconds")
	says(t, examined(t, c, x(1e12)), "sessions", OK)

	// The room is known only where the database is; here it is given.
	if pins := examined(t, c, func(o *Options) { o.limits.editBytes = 1e18 }); pins["sessions"].Verdict == OK && strings.Contains(pins["disk"].Found, "not known") {
		t.Log("the database's disk is not seen from here")
	} else {
		says(t, pins, "sessions", Failure, "lower sessionSeconds")
		says(t, examined(t, c, func(o *Options) { o.limits.pinnedWarning = 0 }), "sessions", Warning, "lower sessionSeconds")
	}

	c.Chain.Network = "another"
	says(t, examined(t, c), "sessions", Failure, "holds outputs of chain "+sample.SyntheticNetwork)
}

func TestMeasure_RateIsOfTheRecentLog(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fill(t, db, 20)
	// The same 20 groups, as if they had been spread over 1000 s that end now.
	if _, err := db.Pool.Exec(t.Context(), `update feed_group set committed_at = floor(extract(epoch from clock_timestamp()))::bigint - 50 * (21 - seq)`); err != nil {
		t.Fatal(err)
	}
	l, err := measure(t.Context(), pgtest.Conn(t, db), "catalogue")
	if err != nil || l.rows != 20 || l.edits < 0.019 || l.edits > 0.021 || l.evidence < 50 || l.selectors < 1 || l.selectors > 10 || l.page <= 0 {
		t.Errorf("%+v, %v", l, err)
	}
	// Compacted to the head, only the feed's life is left to go by.
	if _, err := db.Pool.Exec(t.Context(), `delete from feed_group; update feed set created_at = clock_timestamp() - interval '200 seconds'`); err != nil {
		t.Fatal(err)
	}
	if l, err = measure(t.Context(), pgtest.Conn(t, db), "catalogue"); err != nil || l.edits < 0.09 || l.edits > 0.11 {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err = measure(t.Context(), pgtest.Conn(t, db), "unknown"); err != nil || l.rows != 0 || l.edits != 0 || l.takes(1) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestDiskVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := settingsOf(t, db.URL)
	c.StateFile = t.TempDir() + "/feeds.state" // always on this machine
	small := func(o *Options) {
		o.limits.freeWarning, o.limits.freeFailure, o.limits.freeWarningShare, o.limits.freeFailureShare = 0, 0, 0, 0
	}
	says(t, examined(t, c, small), "disk", OK, "holds")
	says(t, examined(t, c, small, func(o *Options) { o.limits.freeWarning = 1 << 62 }), "disk", Warning, "make room")
	says(t, examined(t, c, small, func(o *Options) { o.limits.freeWarningShare = 1.1 }), "disk", Warning, "make room")
	says(t, examined(t, c, small, func(o *Options) { o.limits.freeFailure = 1 << 62 }), "disk", Failure, "make room")
	// Somebody who may not see where the server keeps its data is told that.
	says(t, examined(t, settingsOf(t, role(t, db)), small), "disk", OK, "not known here")
}

func TestQuotasVerdicts(t *testing.T) {
	t.Parallel()
	c := settingsOf(t, "postgres://u@127.0.0.1:1/x")
	c.Quotas.Waiters = 100
	ask := func(change func(*limits)) Finding {
		l := defaultLimits()
		l.memoryWarning, l.memoryFailure = 1e9, 1e9
		change(l)
		f, err := (&examination{Options: Options{Config: c, limits: l}}).quotas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Check = "quotas"
		sentences(t, f)
		return f
	}
	is := func(f Finding, v Verdict, part string) {
		t.Helper()
		says(t, map[string]Finding{"quotas": f}, "quotas", v, part)
	}
	same := func(*limits) {}
	is(ask(same), OK, "80 requests at once for 20 connections")
	if _, known := memory(); known {
		is(ask(func(l *limits) { l.memoryWarning = 1e-9 }), Warning, "lower quotas.requests")
		is(ask(func(l *limits) { l.memoryFailure = 1e-9 }), Failure, "lower quotas.requests")
	}
	c.Quotas.Requests = 10
	is(ask(same), Warning, "the rest is never used")
	c.Quotas.Requests = 1000
	is(ask(same), Warning, "instead of for their turn")
	c.Quotas.Requests = 0
	c.Quotas.Waiters = 1000000
	if open, known := files(); known && open < 1000000 {
		is(ask(same), Warning, "ulimit")
	}
	c.Quotas.Waiters = 100
	f, err := (&examination{Options: Options{Config: c, limits: defaultLimits()}, room: &room{free: 1 << 30}}).quotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is(f, Warning, "a full disk is not")
}

func TestRoundedAndSize(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{1234567: "1.23ms", 12345678: "12.3ms", 1234567890: "1.23s", 999: "999ns", 0: "0s"} {
		if got := rounded(d).String(); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0 bytes", 999: "999 bytes", 1500: "1.5 kB", 2e9: "2.0 GB", 3e12: "3.0 TB"} {
		if got := size(n); got != want {
			t.Errorf("%f: %s, want %s", n, got, want)
		}
	}
}
