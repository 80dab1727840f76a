package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// feed is a subject in memory. spoil may change what a reader is told of a change: how often.
type feed struct {
	spoil    func(reader int, n uint64) int
	onAppend func(n uint64) error
	failed   chan error

	mu      sync.Mutex
	readers []chan uint64
	running sync.WaitGroup
	ended   bool
}

func newFeed() *feed {
	return &feed{spoil: func(int, uint64) int { return 1 }, onAppend: func(uint64) error { return nil }, failed: make(chan error, 1)}
}

func (f *feed) Name() string { return "memory" }

func (f *feed) Begin(_ context.Context, n int, deliver func(int, uint64)) (Fan, error) {
	for i := range n {
		c := make(chan uint64, 10_000)
		f.readers = append(f.readers, c)
		f.running.Go(func() {
			for n := range c {
				for range f.spoil(i, n) {
					deliver(i, n)
				}
			}
		})
	}
	return f, nil
}

func (f *feed) Append(_ context.Context, _ int, n uint64) error {
	if err := f.onAppend(n); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.readers {
		c <- n
	}
	return nil
}

func (f *feed) Failed() <-chan error { return f.failed }

func (f *feed) End(context.Context) error {
	f.ended = true
	for _, c := range f.readers {
		close(c)
	}
	f.running.Wait()
	return nil
}

var small = Load{Readers: 3, Rate: 2000, WarmUp: 10 * time.Millisecond, Time: 50 * time.Millisecond}

const smallAll, smallWarm = 120, 20 // changes of it

func TestY5_EveryDeliveryIsCounted(t *testing.T) {
	t.Parallel()
	f, rec := newFeed(), NewRecorder(time.Now())
	tally, err := Pour(t.Context(), f, small, rec)
	if err != nil {
		t.Fatal(err)
	}
	if tally.Appended != smallAll || tally.Delivered != 3*smallAll || tally.Lost != 0 || tally.Doubled != 0 || tally.Late.Count() != smallAll || tally.Answered.Count() != smallAll {
		t.Errorf("appended %d, delivered %d, lost %d, doubled %d", tally.Appended, tally.Delivered, tally.Lost, tally.Doubled)
	}
	if got := rec.hist.Count(); got != 3*(smallAll-smallWarm) {
		t.Errorf("%d deliveries are recorded, want those after the warm-up", got)
	}
	if s := rec.seconds(); s <= 0 || s > 30 || !f.ended {
		t.Errorf("the load took %g s, ended %t", s, f.ended)
	}
}

func TestY5_DoubledIsFound(t *testing.T) {
	t.Parallel()
	f := newFeed()
	f.spoil = func(reader int, n uint64) int {
		if reader == 1 && (n == 64 || n == 70) {
			return 3
		}
		return 1
	}
	tally, err := Pour(t.Context(), f, small, NewRecorder(time.Now()))
	if err != nil || tally.Doubled != 4 || tally.Lost != 0 || tally.Delivered != 3*smallAll {
		t.Errorf("delivered %d, lost %d, doubled %d, %v", tally.Delivered, tally.Lost, tally.Doubled, err)
	}
}

func TestY5_LostIsFound(t *testing.T) {
	t.Parallel()
	// Counted at the end, without the wait for what does not come.
	p := &pour{load: small, starts: nil}
	p.acked = make([]atomic.Bool, 130)
	for n := range 128 {
		p.acked[n].Store(true)
	}
	p.seen = []bitset{make(bitset, 3), make(bitset, 3)}
	for n := range uint64(129) { // 128 was not acknowledged, and came: that is no fault
		p.seen[0].set(n)
		if n != 5 && n != 127 {
			p.seen[1].set(n)
		}
	}
	var tally Tally
	p.count(&tally)
	if tally.Lost != 2 || tally.Appended != 128 || tally.Delivered != 129+127 {
		t.Errorf("appended %d, delivered %d, lost %d", tally.Appended, tally.Delivered, tally.Lost)
	}
}

func TestY6_InterruptedLoadIsDeliveredAndCounted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	f := newFeed()
	f.onAppend = func(n uint64) error {
		if n == 30 {
			cancel()
		}
		return nil
	}
	tally, err := Pour(ctx, f, small, NewRecorder(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	// What was begun when it was interrupted, and no more.
	if tally.Appended < 1 || tally.Appended > 31+Appenders || tally.Delivered != 3*tally.Appended || tally.Lost != 0 || !f.ended {
		t.Errorf("appended %d, delivered %d, lost %d, ended %t", tally.Appended, tally.Delivered, tally.Lost, f.ended)
	}
}

func TestY9_TheWaitForAnAppenderIsLateness(t *testing.T) {
	t.Parallel()
	const busy = 50 * time.Millisecond
	f := newFeed()
	over := sync.OnceValue(func() <-chan time.Time { return time.After(busy) })
	released := make(chan struct{})
	f.onAppend = func(n uint64) error {
		switch {
		case n == 0: // as the others it holds its appender; this one lets them go
			<-over()
			close(released)
		case n < Appenders:
			<-released
		}
		return nil
	}
	tally, err := Pour(t.Context(), f, small, NewRecorder(time.Now()))
	if err != nil || tally.Appended != smallAll {
		t.Fatalf("appended %d, %v", tally.Appended, err)
	}
	// The first that found no appender was due when Appenders were handed out, and began when all of them had waited.
	due := time.Duration(float64(Appenders) / small.Rate * float64(time.Second))
	if got := tally.Late.Max(); got < busy-due-time.Millisecond {
		t.Errorf("at most %s late, want at least %s", got, busy-due)
	}
}

func TestPour_FaultsEndIt(t *testing.T) {
	t.Parallel()
	fault := errors.New("a fault")
	for name, prepare := range map[string]func(*feed){
		"of an append": func(f *feed) {
			f.onAppend = func(n uint64) error {
				if n == 7 {
					return fault
				}
				return nil
			}
		},
		"of a reader": func(f *feed) { f.failed <- fault },
	} {
		f := newFeed()
		prepare(f)
		if _, err := Pour(t.Context(), f, small, NewRecorder(time.Now())); !errors.Is(err, fault) || !f.ended {
			t.Errorf("a fault %s: %v, ended %t", name, err, f.ended)
		}
	}
}

func TestCompare_SubjectsUnderOneLoad(t *testing.T) {
	t.Parallel()
	p := Plan{Rounds: 2, Time: 20 * time.Millisecond, Count: 1, WarmUp: time.Millisecond}
	r, err := Compare(t.Context(), p, []Subject{&fresh{"one"}, &fresh{"two"}}, []int{1, 2}, 500)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 4 || len(r.Ratios) != 4 || r.Cases[3].Name != "two, 2 readers" || r.Cases[3].Medians.Count != 2*2*10 {
		t.Errorf("%d cases, %d ratios, the last case is %+v", len(r.Cases), len(r.Ratios), r.Cases[len(r.Cases)-1].Medians)
	}
	if _, err := Compare(t.Context(), p, nil, []int{1}, 1); err == nil || !strings.Contains(err.Error(), "wants subjects") {
		t.Errorf("without subjects: %v", err)
	}
}

// fresh is a new feed for each load.
type fresh struct{ name string }

func (f *fresh) Name() string { return f.name }

func (f *fresh) Begin(ctx context.Context, n int, deliver func(int, uint64)) (Fan, error) {
	return newFeed().Begin(ctx, n, deliver)
}
