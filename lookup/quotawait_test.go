package lookup

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// refusedBy asserts that an error is a quota's refusal under load, to be tried again.
func refusedBy(t *testing.T, err error, want quota) {
	t.Helper()
	r, ok := errors.AsType[*refusal](err)
	if !ok || r.quota != want || r.public.Code != wire.Unavailable || !r.public.Retryable || r.public.RetryAfterMs == nil {
		t.Fatalf("%+v, want a refusal by %s", err, want)
	}
}

func (s *slots) slot(who int) *slot { return &slot{slots: s, who: nth(who)} }

// idle asserts that nothing is left of any request.
func (s *slots) idle(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken != 0 || s.waiting != 0 || len(s.queues) != 0 || s.turns.Len() != 0 {
		t.Fatalf("%d taken, %d waiting, %d queues, %d turns", s.taken, s.waiting, len(s.queues), s.turns.Len())
	}
}

// TestO10_ClientsHaveTheirTurns: a request waits for one body of each other client, however many they have sent before it.
func TestO10_ClientsHaveTheirTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, 1000, time.Minute)
		first := s.slot(9)
		if err := first.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		var order []int // guarded by the one slot
		var all sync.WaitGroup
		queue := func(who int) {
			all.Go(func() {
				h := s.slot(who)
				if err := h.take(t.Context()); err != nil {
					t.Error(err)
				}
				order = append(order, who)
				h.leave()
			})
			synctest.Wait()
		}
		for range 100 {
			queue(0)
		}
		queue(1)
		queue(2)
		queue(1)
		first.leave()
		all.Wait()
		if !slices.Equal(order[:6], []int{0, 1, 2, 0, 1, 0}) || len(order) != 103 {
			t.Fatalf("%v", order[:6])
		}
		s.idle(t)
	})
}

// TestO10_WaitingForATurnIsBounded: in number and in time, and who leaves makes room.
func TestO10_WaitingForATurnIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, 2, 5*time.Second)
		holder := s.slot(0)
		if err := holder.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		results := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { results <- s.slot(1).take(ctx) }()
		go func() { results <- s.slot(1).take(t.Context()) }()
		synctest.Wait()
		refusedBy(t, s.slot(2).take(t.Context()), quotaRequestsWaiting)
		// One departs: there is room for another, who waits his time and no longer.
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		go func() { results <- s.slot(2).take(t.Context()) }()
		synctest.Wait()
		if _, waiting := s.count(); waiting != 2 {
			t.Fatalf("%d wait", waiting)
		}
		for _, after := range []time.Duration{5 * time.Second, 6 * time.Second} {
			refusedBy(t, <-results, quotaRequests)
			if took := time.Since(began); took != after {
				t.Fatalf("refused after %s, not %s", took, after)
			}
		}
		// A poll that slept waits until its own deadline, and has room whoever waits.
		go func() { results <- s.slot(1).take(t.Context()) }()
		go func() { results <- s.slot(1).take(t.Context()) }()
		synctest.Wait()
		began = time.Now()
		refusedBy(t, s.slot(3).retake(t.Context(), time.Now().Add(20*time.Second)), quotaRequests)
		if took := time.Since(began); took != 20*time.Second {
			t.Fatalf("a poll was refused after %s", took)
		}
		refusedBy(t, <-results, quotaRequests)
		refusedBy(t, <-results, quotaRequests)
		began = time.Now()
		refusedBy(t, s.slot(3).retake(t.Context(), time.Now().Add(-time.Hour)), quotaRequests)
		if took := time.Since(began); took != 5*time.Second {
			t.Fatalf("a poll past its deadline was refused after %s", took)
		}
		holder.leave()
		holder.leave() // harmless
		s.idle(t)
	})
}

// TestO10_NoSlotIsLost: whatever way requests leave, and whenever, never more are built than may, and all places come back.
func TestO10_NoSlotIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		s := newSlots(most, 20, 40*time.Millisecond)
		var mu sync.Mutex
		building, built, left := 0, 0, 0
		var all sync.WaitGroup
		for i := range 3000 {
			r := rand.New(rand.NewPCG(uint64(i), 5))
			all.Go(func() {
				time.Sleep(time.Duration(r.IntN(30_000)) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(60))*time.Millisecond)
				defer cancel()
				h := s.slot(r.IntN(5))
				defer h.leave()
				err := h.take(ctx)
				for err == nil && r.IntN(3) > 0 {
					mu.Lock()
					building++
					if building > most {
						t.Errorf("%d are built at once", building)
					}
					mu.Unlock()
					time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
					mu.Lock()
					building--
					built++
					mu.Unlock()
					h.leave()
					err = h.retake(ctx, time.Now().Add(50*time.Millisecond))
				}
				if err != nil {
					mu.Lock()
					left++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if built < 1000 || left < 1000 {
			t.Fatalf("%d built, %d left early: nothing was shown", built, left)
		}
		s.idle(t)
	})
}

// TestO10_ASlotIsHandedOnOnce: who is handed a slot at the moment in which he gives up has it, and gives it back.
func TestO10_ASlotIsHandedOnOnce(t *testing.T) {
	t.Parallel()
	for range 200 {
		s := newSlots(1, 10, time.Minute)
		holder, w := s.slot(0), s.slot(1)
		if err := holder.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.take(ctx) }()
		testkit.Eventually(t, "one waits", func() bool { _, waiting := s.count(); return waiting == 1 })
		s.mu.Lock()
		cancel() // it gives up, and finds the lock taken
		for range 100 {
			runtime.Gosched()
		}
		s.handOn()
		s.mu.Unlock()
		if err := <-done; err != nil || !w.held {
			t.Fatalf("%v, held %v", err, w.held)
		}
		w.leave()
		s.idle(t)
	}
}
