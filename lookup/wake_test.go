package lookup

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestW1_CommitBetweenCheckAndSleepWakes(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{"match":{"genre":"jazz"}}`)
	for i := range 5 {
		// The pause: the poll has looked and found nothing, and has not yet gone to sleep. The commit is complete in it.
		var once sync.Once
		n.during(beforeSleep, func() {
			once.Do(func() { n.append(mint(fmt.Sprint("pause", i), 0).put(genre(0), "")) })
		})
		began := time.Now()
		b = n.read(b, wait(25000))
		if len(b.Groups) != 1 || time.Since(began) > 20*time.Second {
			t.Fatalf("%d groups after %s", len(b.Groups), time.Since(began))
		}
	}
}

func TestW2_CommitOfAnotherNodeWakes(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	b := n.live(`{"match":{"genre":"rock"}}`)
	for i := range 5 {
		var once sync.Once
		n.during(beforeSleep, func() {
			once.Do(func() { m.append(mint(fmt.Sprint("there", i), 0).put(genre(1), "")) })
		})
		began := time.Now()
		b = n.read(b, wait(25000))
		if len(b.Groups) != 1 || time.Since(began) > 20*time.Second {
			t.Fatalf("%d groups after %s", len(b.Groups), time.Since(began))
		}
	}
}

func TestW3_QuietPoll(t *testing.T) {
	t.Parallel()
	n := start(t, setup{service: func(s *Service) { s.MaxWaitMs = 700 }})
	b := n.live(`{"match":{"genre":"jazz"}}`)
	// Irrelevant commits do not end it early, and its watermarks are the head's at the end.
	slept := 0
	stop := n.during(beforeSleep, func() {
		if slept++; slept <= 3 {
			n.append(mint(fmt.Sprint("irrelevant", slept), 0).put(genre(1), ""))
		}
	})
	began := time.Now()
	got := n.read(b, wait(25000))
	if took := time.Since(began); took < 650*time.Millisecond || len(got.Groups) != 0 || got.Phase != wire.PhaseLive {
		t.Fatalf("%d groups after %s", len(got.Groups), took)
	}
	if got.Through != got.HighWater || got.Through != b.Through+uint64(slept) && slept <= 3 || got.Limits.WaitMs != 700 {
		t.Fatalf("through %d highWater %d waitMs %d", got.Through, got.HighWater, got.Limits.WaitMs)
	}
	stop()
	// The session expires before the body is sent: reset-required, never an expired promise.
	n.during(beforeGate, func() { n.advance(b.ExpiresAt) })
	n.request(readPath, readBody(got.Session, got.Cursor, wide)).refused(t, wire.ResetRequired)
}

func TestW4_DepartureFreesTheWaiter(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{"match":{"genre":"jazz"}}`)
	digest := capabilityHeader(n.capability())
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		n.during(beforeSleep, cancel)
		if _, err := n.try(ctx, readPath, readBody(b.Session, b.Cursor, wait(25000)), digest); err == nil {
			t.Fatal("an answer came")
		}
	}
	n.during(0, func() {})
	testkit.Eventually(t, "every waiter is freed", func() bool {
		stats, err := n.feed.Stats(t.Context())
		return err == nil && stats.Waiters == 0
	})
	testkit.Eventually(t, "every connection is back", func() bool { return n.pool.Stat().AcquiredConns() == 0 })
	testkit.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
	// Nothing was consumed.
	n.append(mint("kept", 0).put(genre(0), ""))
	if got := n.read(b, wide); len(got.Groups) != 1 {
		t.Fatalf("%d groups", len(got.Groups))
	}
}

func TestW6_NoWait(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(3)
	n.during(beforeSleep, func() { t.Error("a request slept") })
	b := n.open(ask{limits: wire.Limits{MaxBytes: 1 << 20, MaxObservations: 2, WaitMs: 25000}})
	b = n.read(b, wire.Limits{MaxBytes: 1 << 20, MaxObservations: 2, WaitMs: 25000}) // snapshot pages never wait
	if got := n.read(b, wide); len(got.Groups) != 0 || got.Phase != wire.PhaseLive {
		t.Fatalf("%+v", got)
	}
}

func TestW7_StopAnswersWaitingPolls(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{}`)
	n.during(beforeSleep, n.provider.Stop)
	if got := n.read(b, wait(25000)); len(got.Groups) != 0 || got.Cursor == "" {
		t.Fatalf("%+v", got)
	}
}
