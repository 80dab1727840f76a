package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Subject is a system that delivers changes to many readers. Overlayd is one; the module bench/compare has others.
type Subject interface {
	// Name is short, for tables.
	Name() string
	// Begin makes n readers wait for changes and returns when all of them do. From then on each calls deliver, on one goroutine
	// of its own, for every change it has received and verified, in the moment it has. Readers outlive ctx, up to End.
	Begin(ctx context.Context, n int, deliver func(reader int, change uint64)) (Fan, error)
}

// Fan is a subject with its readers waiting.
type Fan interface {
	// Append makes change number n and returns when it is durable. Appender says which of the generator's connections to use:
	// calls of one do not overlap.
	Append(ctx context.Context, appender int, n uint64) error
	// Failed is closed, or gets the error, when a reader cannot go on.
	Failed() <-chan error
	// End ends the readers, whatever the state of ctx, and returns when they have.
	End(ctx context.Context) error
}

// Appenders is how many appends of a fan-out can be under way at once.
const Appenders = 16

// Load is what a fan-out is put to.
type Load struct {
	Readers int
	Rate    float64       // appends a second, at fixed times
	WarmUp  time.Duration // appended and delivered before Time, and not counted
	Time    time.Duration
}

// Tally is what came of a load, all of it, warm-up included.
type Tally struct {
	Appended, Delivered, Lost, Doubled int64
	// Late is how long after their times appends began, the wait for an appender included; Answered how long they took. Warm-up is
	// counted in both.
	Late, Answered Histogram
}

// tailTime is how long what was appended may take to arrive after the load.
const tailTime = 60 * time.Second

// pour is one load under way.
type pour struct {
	load    Load
	rec     *Recorder                // is told when the load begins and ends
	note    func(took time.Duration) // gets every delivery that counts
	started func()                   // is told when the warm-up is over; nil: nobody asks
	stopped func()                   // is told when the last append is answered; nil: nobody asks
	began   time.Time
	warm    uint64         // changes before this number are not counted
	starts  []atomic.Int64 // by change: when its append began, nanoseconds from began; 0 not yet
	acked   []atomic.Bool  // by change: it was acknowledged
	seen    []bitset       // by reader, used by its goroutine alone until the end

	first, again atomic.Int64 // deliveries, each reader's first of a change, and others
	progress     chan struct{}
}

type bitset []uint64

// set returns whether n was absent.
func (b bitset) set(n uint64) bool {
	was := b[n/64]>>(n%64)&1 == 1
	b[n/64] |= 1 << (n % 64)
	return !was
}

// Pour puts a load on a subject and records each delivery. When ctx ends it appends no more and waits for what it appended (Y6).
func Pour(ctx context.Context, s Subject, load Load, rec *Recorder) (Tally, error) {
	return (&pour{load: load, rec: rec, note: rec.Note}).run(ctx, s)
}

func (p *pour) run(ctx context.Context, s Subject) (t Tally, err error) {
	p.warm = uint64(math.Ceil(p.load.Rate * p.load.WarmUp.Seconds()))
	all := p.warm + uint64(max(1, math.Round(p.load.Rate*p.load.Time.Seconds())))
	p.starts, p.acked = make([]atomic.Int64, all), make([]atomic.Bool, all)
	p.seen = make([]bitset, p.load.Readers)
	for i := range p.seen {
		p.seen[i] = make(bitset, (all+63)/64)
	}
	p.progress = make(chan struct{}, 1)
	p.began = time.Now()
	fan, err := s.Begin(ctx, p.load.Readers, p.deliver)
	if err != nil {
		if ctx.Err() != nil {
			return t, nil
		}
		return t, fmt.Errorf("%d readers: %w", p.load.Readers, err)
	}
	ended := false
	end := func() error {
		if ended {
			return nil
		}
		ended = true
		return fan.End(ctx)
	}
	defer func() { err = errors.Join(err, end()) }()
	err = p.append(ctx, fan, all, &t)
	p.rec.Stop()
	if p.stopped != nil {
		p.stopped()
	}
	if err == nil {
		err = p.await(fan)
	}
	if fault := end(); fault != nil {
		err = errors.Join(err, fault)
	}
	p.count(&t)
	return t, err
}

// deliver is called by readers.
func (p *pour) deliver(reader int, change uint64) {
	if change >= uint64(len(p.starts)) {
		return // of another run
	}
	if !p.seen[reader].set(change) {
		p.again.Add(1)
		return
	}
	took := time.Since(p.began) - time.Duration(p.starts[change].Load())
	if change >= p.warm {
		p.note(took)
	}
	p.first.Add(1)
	select {
	case p.progress <- struct{}{}:
	default:
	}
}

// append begins all appends at their times, until ctx ends.
func (p *pour) append(ctx context.Context, fan Fan, all uint64, t *Tally) error {
	// An append that was begun is finished: its outcome must be known.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	type job struct {
		n   uint64
		due time.Time
	}
	work := make(chan job, all)
	faults := make(chan error, Appenders)
	var lates, answers [Appenders]Histogram
	var running sync.WaitGroup
	for i := range Appenders {
		running.Go(func() {
			for j := range work {
				if ctx.Err() != nil {
					continue // it was due and not begun
				}
				began := time.Now()
				p.starts[j.n].Store(int64(began.Sub(p.began)))
				lates[i].Add(began.Sub(j.due))
				if err := fan.Append(whole, i, j.n); err != nil {
					faults <- err
					return
				}
				answers[i].Add(time.Since(began))
				p.acked[j.n].Store(true)
			}
		})
	}
	err := p.pace(ctx, fan, all, faults, func(n uint64, due time.Time) { work <- job{n, due} })
	close(work)
	if err != nil {
		cancel()
	}
	running.Wait()
	for i := range lates {
		t.Late.Merge(&lates[i])
		t.Answered.Merge(&answers[i])
	}
	close(faults)
	for fault := range faults {
		if err == nil {
			err = fault
		}
	}
	return err
}

// pace hands out the changes at their times. Work that nobody takes at once waits, and begins late.
func (p *pour) pace(ctx context.Context, fan Fan, all uint64, faults <-chan error, hand func(n uint64, due time.Time)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	from := time.Now()
	for n := range all {
		due := from.Add(time.Duration(float64(n) / p.load.Rate * float64(time.Second)))
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return nil
		case err := <-faults:
			return err
		case err := <-fan.Failed():
			return err
		case <-timer.C:
		}
		if n == p.warm {
			p.rec.Start()
			if p.started != nil {
				p.started()
			}
		}
		hand(n, due)
	}
	return nil
}

// await returns when all readers have what was acknowledged, or when that takes too long: then it is counted as lost.
func (p *pour) await(fan Fan) error {
	want := int64(0)
	for i := range p.acked {
		if p.acked[i].Load() {
			want += int64(p.load.Readers)
		}
	}
	late := time.NewTimer(tailTime)
	defer late.Stop()
	for p.first.Load() < want {
		select {
		case <-p.progress:
		case err := <-fan.Failed():
			return err
		case <-late.C:
			return nil
		}
	}
	return nil
}

// count compares what readers saw with what was acknowledged (Y5). No reader runs any more.
func (p *pour) count(t *Tally) {
	acked := make(bitset, (len(p.acked)+63)/64)
	for n := range p.acked {
		if p.acked[n].Load() {
			acked.set(uint64(n))
			t.Appended++
		}
	}
	for _, seen := range p.seen {
		for i, word := range acked {
			t.Lost += int64(bits.OnesCount64(word &^ seen[i]))
			t.Delivered += int64(bits.OnesCount64(seen[i]))
		}
	}
	t.Doubled = p.again.Load()
}
