package client_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// Each ending is recorded, told once, and goes no further without being asked.
func TestC5_EndingsAreDurable(t *testing.T) {
	t.Parallel()
	for _, code := range []wire.Code{wire.ResetRequired, wire.Expired, wire.Unauthorized, wire.ContextChanged} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			f := newFake(t).seed(3)
			s := openState(t, t.TempDir())
			r := follower(f.serve(), s)
			r.must(t)
			f.endAll(code)
			for i, want := range [][]string{{"Resumed", "ended " + string(code)}, nil} {
				e, ok := errors.AsType[*client.EndedError](r.follow(t))
				if !ok || e.Ending.Code != code {
					t.Fatalf("run %d: error %v", i, e)
				}
				if got := r.kinds(); !slices.Equal(got, want) {
					t.Fatalf("run %d: events %v, want %v", i, got, want)
				}
			}
			if got := sources(t, s)[0].Ended; got == nil || got.Code != code || got.At == 0 {
				t.Fatalf("recorded ending %+v", got)
			}
			if len(rows(t, s, sqlitestate.Stale)) != 3 || len(rows(t, s, sqlitestate.Current)) != 0 {
				t.Fatal("the rows are not stale")
			}
			if n := len(f.seen("open")); n != 1 {
				t.Fatalf("%d opens", n)
			}
			r.options.OnReset = client.Reopen // the caller asks
			r.must(t)
			if got := r.kinds(); got[0] != "Opened" || len(rows(t, s, sqlitestate.Current)) != 3 {
				t.Fatalf("events %v", got)
			}
		})
	}
}

// Within one run the policy reopens after a reset, but not after lost access.
func TestC5_Policy(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(2)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.OnReset = client.Reopen
	r.must(t)
	f.endAll(wire.ResetRequired)
	r.must(t)
	want := []string{"Resumed", "ended reset-required", "Opened", "group@2 output", "group@2 output", "SnapshotComplete", "Live"}
	if got := r.kinds(); !slices.Equal(got, want) {
		t.Fatalf("events %v, want %v", got, want)
	}
	f.endAll(wire.Unauthorized)
	if e, ok := errors.AsType[*client.EndedError](r.follow(t)); !ok || e.Ending.Code != wire.Unauthorized {
		t.Fatalf("error %v", e)
	}
}

// Old rows stay, stale, beside the partial replacement; when that is whole, the
// rows only the old generation had go in the same commit.
func TestC5_StaleUntilTheReplacementIsWhole(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(5)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.Limits.MaxObservations = 2
	r.options.OnReset = client.Reopen
	r.must(t)
	old := f.truth()
	f.edit(func() { f.rows = append(f.rows[2:], output(50)) }) // two rows vanish without a log, one appears
	f.endAll(wire.ResetRequired)

	var partial, stale, current []int
	note := func(string, int) {
		partial = append(partial, len(rows(t, s, sqlitestate.Partial)))
		stale = append(stale, len(rows(t, s, sqlitestate.Stale)))
		current = append(current, len(rows(t, s, sqlitestate.Current)))
		if len(rows(t, s, sqlitestate.Stale)) == 5 && !maps.Equal(present(rows(t, s, sqlitestate.Stale)), old) {
			t.Error("the stale rows changed")
		}
	}
	r.options.State = hook(s, func(point string, n int) {
		if point == "after commit" || point == "after end" {
			note(point, n)
		}
	})
	r.must(t)
	if want := []int{0, 2, 0, 0}; !slices.Equal(partial, want) {
		t.Errorf("partial rows %v, want %v", partial, want)
	}
	if want := []int{5, 5, 0, 0}; !slices.Equal(stale, want) {
		t.Errorf("stale rows %v, want %v", stale, want)
	}
	if want := []int{0, 0, 4, 4}; !slices.Equal(current, want) {
		t.Errorf("current rows %v, want %v", current, want)
	}
	for _, e := range r.events {
		if c, ok := e.(client.SnapshotComplete); ok && (c.Replaces != 1 || c.Unseen != 2) {
			t.Errorf("completion %+v", c)
		}
	}
	if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
		t.Errorf("state has %v", got)
	}
}

// A replacement that dies half-way leaves the old answer, and the next one
// takes its place.
func TestC5_ReplacementDiesHalfWay(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(5)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.Limits.MaxObservations = 2
	r.options.OnReset = client.Reopen
	r.must(t)
	f.endAll(wire.ResetRequired)
	r.options.MaxBatches = 2 // the open and one page of generation 2
	r.must(t)
	f.endAll(wire.Expired)
	r.options.OnReset, r.options.MaxBatches = client.Stop, 0
	if _, ok := errors.AsType[*client.EndedError](r.follow(t)); !ok {
		t.Fatal("went on")
	}
	if got := len(rows(t, s, sqlitestate.Stale)); got != 5 {
		t.Fatalf("%d stale rows, want 5", got)
	}
	r.options.OnReset = client.Reopen
	r.must(t)
	src := sources(t, s)[0]
	if src.Published != 3 || src.Latest != 3 || len(rows(t, s, sqlitestate.Current)) != 5 {
		t.Fatalf("source %+v", src)
	}
	f.put(9)
	r.must(t) // sweeps what no reader sees
	if got := len(rows(t, s, sqlitestate.Current)); got != 6 {
		t.Fatalf("%d rows", got)
	}
}

// A saved Open that the provider does not take any more is replaced: nothing
// was ever shown under it. That happens a bounded number of times.
func TestC5_SpentIntent(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	died := errors.New("died before sending")
	stop, cancel := context.WithCancelCause(t.Context())
	r.options.State = hook(s, func(point string, _ int) {
		if point == "after begin" {
			cancel(died)
		}
	})
	if err := client.Follow(stop, r.options); !errors.Is(err, died) {
		t.Fatalf("error %v", err)
	}
	f.edit(func() { f.caps.ExpiresAt++; f.sign() })
	r.options.State = s
	r.must(t)
	if got := r.kinds(); !slices.Equal(got, []string{"ended context-changed", "Opened", "group@1 output", "SnapshotComplete", "Live"}) {
		t.Fatalf("events %v", got)
	}
}

// The end of the promised life is seen here too; with Reopen the follower goes
// on by itself and says so. (On a fake clock, without a socket.)
func TestC5_Expiry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t).seed(2)
		f.base = "https://overlay.test/api"
		f.session = 60
		f.issue()
		s, err := sqlitestate.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := follower(f.base, s)
		r.options.Transport = local{f}
		r.options.OnReset = client.Reopen
		r.options.UntilLive = false
		ctx, cancel := context.WithTimeout(t.Context(), 130*time.Second)
		defer cancel()
		if err := client.Follow(ctx, r.options); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
		one := []string{"Opened", "group@2 output", "group@2 output", "SnapshotComplete", "Live"}
		want := slices.Concat(one, []string{"ended expired"}, one, []string{"ended expired"}, one)
		if got := r.kinds(); !slices.Equal(got, want) {
			t.Fatalf("events %v, want %v", got, want)
		}
		if n := len(f.seen("read")); n > 3*5 {
			t.Fatalf("%d reads in 130 s", n)
		}
	})
}
