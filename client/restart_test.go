package client_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
)

// waits are the pauses that a run told of, in order.
func (r *run) waits() (out []time.Duration) {
	for _, e := range r.events {
		if w, ok := e.(client.Waiting); ok {
			out = append(out, w.For)
		}
	}
	return out
}

// later checks the pauses between generations: none before the first new one, then longer and longer, up to 30 s, each with jitter.
func later(t *testing.T, waits []time.Duration) {
	t.Helper()
	for i, w := range waits {
		if full := min(500*time.Millisecond<<i, 30*time.Second); w < full/2 || w > full {
			t.Errorf("pause %d is %v, want %v to %v", i, w, full/2, full)
		}
	}
}

// Nodes that disagree about a service, as in a rolling restart, refuse Opens that name the other's manifest. However long that
// takes, the follower asks again, later and later, says why each time, and gets there.
func TestC6_OpensAreRefusedForAWhile(t *testing.T) {
	t.Parallel()
	for _, code := range []wire.Code{wire.ContextChanged, wire.ResetRequired, wire.Expired} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, p *fake, r *run) {
				const refused = 10
				p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
					if endpoint == "open" && n <= refused {
						refuse(w, &wire.Error{Code: code, Message: "nodes disagree"})
						return true
					}
					return false
				}
				start := time.Now()
				r.must(t)
				waits := r.waits()
				if len(waits) != refused-1 {
					t.Fatalf("%d pauses after %d refused Opens", len(waits), refused)
				}
				later(t, waits)
				var sum time.Duration
				for _, w := range waits {
					sum += w
				}
				if took := time.Since(start); took != sum {
					t.Errorf("took %v, and told of pauses of %v", took, sum)
				}
				told, ended := 0, 0
				for _, e := range r.events {
					switch e := e.(type) {
					case client.Waiting:
						if answer, ok := errors.AsType[*client.ProviderError](e.Err); ok && answer.Code == code {
							told++
						}
					case client.Ended:
						if e.Code == code {
							ended++
						}
					}
				}
				if told != refused-1 || ended != refused {
					t.Errorf("%d endings and %d pauses name the code, of %d refused Opens", ended, told, refused)
				}
			})
		})
	}
}

// One that is never taken is given up in the time allowed, and not before.
func TestC6_GivesUpOpensWhenToldTo(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		p.answer = func(w http.ResponseWriter, endpoint string, _ int) bool {
			if endpoint == "open" {
				refuse(w, &wire.Error{Code: wire.ContextChanged, Message: "nodes disagree"})
				return true
			}
			return false
		}
		r.options.RetryFor = 5 * time.Minute
		start := time.Now()
		err := r.follow(t)
		if gaveUp, ok := errors.AsType[*client.GaveUpError](err); !ok || gaveUp.Err == nil {
			t.Fatalf("error %v", err)
		}
		if answer, ok := errors.AsType[*client.ProviderError](err); !ok || answer.Code != wire.ContextChanged {
			t.Errorf("the error does not say what was answered: %v", err)
		}
		if took := time.Since(start); took > 5*time.Minute || took < 4*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		later(t, r.waits())
		p.edit(func() { p.answer = nil })
		r.must(t) // and nothing is lost
	})
}

// What an Open asks for is raised a few times at most, and an Open refused for good is not tried again.
func TestC6_OpensRefusedForGood(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(n int) *wire.Error
		opens  int
	}{
		"unsupported": {func(int) *wire.Error { return &wire.Error{Code: wire.Unsupported, Message: "no"} }, 1},
		"always more": {func(n int) *wire.Error {
			more := uint32(1<<20 + n)
			return &wire.Error{Code: wire.Limited, Message: "too small", Limit: &wire.Limit{Kind: wire.LimitGroup, MinimumBytes: &more}}
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, p *fake, r *run) {
				p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
					if endpoint == "open" {
						refuse(w, c.answer(n))
						return true
					}
					return false
				}
				want := c.answer(1).Code
				if e, ok := errors.AsType[*client.ProviderError](r.follow(t)); !ok || e.Code != want {
					t.Fatalf("error %v", e)
				}
				if n := len(p.seen("open")); n != c.opens {
					t.Errorf("%d Opens, want %d", n, c.opens)
				}
			})
		})
	}
}

// Generations that end as soon as they are live are as bad as those that never open: each new one costs the provider a snapshot.
// One that lasts makes the next one begin at once again.
func TestC6_GenerationsThatDoNotLast(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		r.options.OnReset = client.Reopen
		r.options.UntilLive = false
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const short = 9
		lives := 0
		r.options.On = func(_ context.Context, e client.Event) error {
			r.events = append(r.events, e)
			if _, ok := e.(client.Live); ok {
				switch lives++; {
				case lives <= short:
					p.endAll(wire.ResetRequired)
				case lives == short+1:
					time.AfterFunc(time.Minute, func() { p.endAll(wire.ResetRequired) })
				default:
					cancel()
				}
			}
			return nil
		}
		if err := client.Follow(ctx, r.options); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		waits := r.waits()
		if len(waits) != short-1 {
			t.Fatalf("%d pauses, want %d: none before the first new generation, and none after one that lasted: %v", len(waits), short-1, waits)
		}
		later(t, waits)
	})
}
