package lookup

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/internal/testkit"
)

// spare is how many turns nobody has.
func (t *turnstile) spare() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}

// TestL8_TurnsAreInOrder: who ends a request goes before who begins one, and otherwise who came first.
func TestL8_TurnsAreInOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newTurnstile(1)
	if err := s.enter(ctx, beginning); err != nil {
		t.Fatal(err)
	}
	var order []string // guarded by the turn
	var all sync.WaitGroup
	for i, who := range []struct {
		name  string
		queue int
	}{{"first to begin", beginning}, {"second to begin", beginning}, {"first to end", ending}, {"second to end", ending}} {
		all.Go(func() {
			if err := s.pass(ctx, who.queue, func() { order = append(order, who.name) }); err != nil {
				t.Error(err)
			}
		})
		testkit.Eventually(t, "it waits", func() bool { return s.waiting() == i+1 })
	}
	s.leave()
	all.Wait()
	if want := []string{"first to end", "second to end", "first to begin", "second to begin"}; !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
	func() {
		defer func() { _ = recover() }()
		_ = s.pass(ctx, ending, func() { panic("of the work") })
	}()
	if s.spare() != 1 || s.waiting() != 0 {
		t.Errorf("%d free, %d wait", s.spare(), s.waiting())
	}
}

// TestL8_NoTurnIsLost: also when those who wait give up in the moment of their turn.
func TestL8_NoTurnIsLost(t *testing.T) {
	t.Parallel()
	const turns, callers = 3, 50
	s := newTurnstile(turns)
	left := errors.New("has left")
	var mu sync.Mutex
	within, most, went, gaveUp := 0, 0, 0, 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		within += n
		most = max(most, within)
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range 200 {
				ctx, leave := context.WithCancelCause(context.Background())
				if n%2 == 0 {
					go leave(left)
				}
				err := s.pass(ctx, (i+n)%2, func() {
					count(1)
					runtime.Gosched()
					count(-1)
				})
				if err != nil && !errors.Is(err, left) {
					t.Error(err)
				}
				leave(nil)
				mu.Lock()
				if err == nil {
					went++
				} else {
					gaveUp++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if free, waiting := s.spare(), s.waiting(); free != turns || waiting != 0 || most > turns || went+gaveUp != callers*200 {
		t.Errorf("%d free, %d wait, %d at once, %d went and %d gave up", free, waiting, most, went, gaveUp)
	}
}
