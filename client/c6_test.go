package client_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// timed runs f on a fake clock against a provider without sockets.
func timed(t *testing.T, f func(t *testing.T, p *fake, r *run)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newFake(t).seed(2)
		p.base = "https://overlay.test"
		p.issue()
		s, err := sqlitestate.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := follower(p.base, s)
		r.options.Transport = local{p}
		f(t, p, r)
	})
}

func unavailable(after uint32) *wire.Error {
	return &wire.Error{Code: wire.Unavailable, Message: "busy", Retryable: true, RetryAfterMs: &after}
}

// The wait is never shorter than retryAfterMs, and never the same for everyone.
func TestC6_RetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	distinct := make(map[time.Duration]bool)
	for range 4 {
		timed(t, func(t *testing.T, p *fake, r *run) {
			p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
				if endpoint == "open" && n == 1 {
					refuse(w, unavailable(7000))
					return true
				}
				return false
			}
			start := time.Now()
			r.must(t)
			took := time.Since(start)
			if took < 7*time.Second || took > 9*time.Second {
				t.Errorf("took %v after being asked to wait 7 s", took)
			}
			if w, ok := r.events[0].(client.Waiting); !ok || w.For != took {
				t.Errorf("first event %+v, took %v", r.events[0], took)
			}
			distinct[took] = true
		})
	}
	if len(distinct) < 2 {
		t.Error("there is no jitter")
	}
}

// Failures in a row wait longer and longer, up to a bound; a good answer starts
// over.
func TestC6_Backoff(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
			switch {
			case endpoint == "capabilities" && n <= 12:
				w.WriteHeader(http.StatusBadGateway) // a proxy, in its own words
				_, _ = w.Write([]byte("<html>"))
				return true
			case endpoint == "read" && n == 1:
				panic(http.ErrAbortHandler)
			}
			return false
		}
		r.must(t)
		var waits []time.Duration
		for _, e := range r.events {
			if w, ok := e.(client.Waiting); ok {
				waits = append(waits, w.For)
			}
		}
		if len(waits) != 13 {
			t.Fatalf("%d waits, want 13", len(waits))
		}
		for i, w := range waits {
			full := min(250*time.Millisecond<<i, 30*time.Second)
			if i == 12 {
				full = 250 * time.Millisecond // after a good answer
			}
			if w < full/2 || w > full {
				t.Errorf("wait %d is %v, want %v to %v", i, w, full/2, full)
			}
		}
	})
}

func TestC6_GivesUpWhenToldTo(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
			if endpoint == "read" {
				refuse(w, unavailable(0))
				return true
			}
			return false
		}
		r.options.RetryFor = time.Minute
		start := time.Now()
		err := r.follow(t)
		if _, ok := errors.AsType[*client.GaveUpError](err); !ok {
			t.Fatalf("error %v", err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("gave up after %v", took)
		}
		p.edit(func() { p.answer = nil })
		r.must(t) // and nothing is lost
	})
}

// An error that says it will not pass is not tried again.
func TestC6_FinalErrors(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		p.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
			if endpoint == "read" {
				refuse(w, &wire.Error{Code: wire.Unavailable, Message: "gone for good"})
				return true
			}
			return false
		}
		if e, ok := errors.AsType[*client.ProviderError](r.follow(t)); !ok || e.Code != wire.Unavailable {
			t.Fatalf("error %v", e)
		}
		if n := len(p.seen("read")); n != 1 {
			t.Errorf("%d reads", n)
		}
	})
}

// A 402, whatever it says, ends the run.
func TestC6_NeverPays(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"capabilities", "open", "read"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, p *fake, r *run) {
				p.answer = func(w http.ResponseWriter, e string, n int) bool {
					if e != endpoint {
						return false
					}
					w.Header().Set("x-bsv-payment-version", "1.0")
					w.Header().Set("x-bsv-payment-satoshis-required", "1")
					w.WriteHeader(http.StatusPaymentRequired)
					return true
				}
				if _, ok := errors.AsType[*client.PaymentError](r.follow(t)); !ok {
					t.Fatal("a payment was not refused")
				}
				if n := len(p.seen(endpoint)); n != 1 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// Quiet polls wait at the provider; a provider that does not wait is not
// hammered.
func TestC6_Pace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		waitMs uint32
		most   int // reads in ten minutes
	}{{"waits", 20000, 40}, {"does not wait", 0, 250}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, p *fake, r *run) {
				p.maxima.WaitMs = c.waitMs
				p.issue()
				r.options.UntilLive = false
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := client.Follow(ctx, r.options); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("error %v", err)
				}
				if n := len(p.seen("read")); n > c.most || n < 20 {
					t.Errorf("%d reads in 10 minutes, want 20 to %d", n, c.most)
				}
			})
		})
	}
}

// A change that arrives during a quiet poll is shown at once.
func TestC6_QuietPollWakes(t *testing.T) {
	t.Parallel()
	timed(t, func(t *testing.T, p *fake, r *run) {
		r.options.UntilLive = false
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var at time.Time
		r.options.On = func(_ context.Context, e client.Event) error {
			if g, ok := e.(client.Group); ok && !g.Snapshot {
				at = time.Now()
				cancel()
			}
			return nil
		}
		start := time.Now()
		time.AfterFunc(13*time.Second, func() { p.put(7) })
		if err := client.Follow(ctx, r.options); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if took := at.Sub(start); took != 13*time.Second {
			t.Errorf("shown after %v, want 13 s", took)
		}
	})
}
