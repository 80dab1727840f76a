package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Soak is a fan-out for a long time, told interval by interval, with a bare NOTIFY round trip ten times a second beside it. It
// fails when a change was lost or doubled. Each gets the intervals as they end; it may be nil. Of the plan only the warm-up counts.
func Soak(ctx context.Context, s Setup, load Load, every time.Duration, each func(Interval)) (*Report, error) {
	if load.Rate <= 0 || load.Readers < 1 || load.Time <= 0 || every <= 0 {
		return nil, errors.New("a soak wants readers, a rate, a time and an interval, all positive")
	}
	b, err := s.start(ctx, "soak", 4, map[string]any{
		"readers": load.Readers, "rate": load.Rate, "soakSeconds": load.Time.Seconds(), "intervalSeconds": every.Seconds(),
	})
	if err != nil {
		return nil, err
	}
	subject := s.Target.Subject()
	began := time.Now()
	k := &soak{bench: b, load: load, every: every, each: each, now: NewRecorder(began), bareNow: NewRecorder(began), began: began}
	k.delivery, k.notify = &CaseReport{Name: fanName(subject, load.Readers)}, &CaseReport{Name: bareNotify, Baseline: true}
	b.report.Cases = []*CaseReport{k.delivery}
	if b.bare != nil {
		b.report.Cases = append(b.report.Cases, k.notify)
	}
	err = errors.Join(k.run(ctx, subject), subject.Clear(ctx))
	k.delivery.finish()
	k.notify.finish()
	b.report.Interrupted = ctx.Err() != nil
	b.report.compare(k.delivery.Name, bareNotify, figureP50)
	b.report.trend()
	return b.end(ctx, err)
}

// soak is one run.
type soak struct {
	*bench
	load             Load
	every            time.Duration
	each             func(Interval)
	began            time.Time
	delivery, notify *CaseReport

	mu           sync.Mutex
	now, bareNow *Recorder // of this interval; guarded by mu
	appended     int64     // in this interval; guarded by mu
}

func (k *soak) run(ctx context.Context, subject Subject) error {
	before, err := k.usage.usage(ctx)
	if err != nil {
		return err
	}
	beside, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ready := make(chan struct{})
	var working sync.WaitGroup
	faults := make(chan error, 2)
	whole := NewRecorder(k.began)
	p := &pour{load: k.load, rec: whole, note: k.note, started: sync.OnceFunc(func() { close(ready) })}
	working.Go(func() {
		select {
		case <-ready:
		case <-beside.Done():
			return
		}
		if err := k.tick(beside, before); err != nil {
			faults <- err
		}
	})
	if k.bare != nil {
		working.Go(func() {
			if err := k.trips(beside); err != nil && beside.Err() == nil {
				faults <- err
			}
		})
	}
	p.stopped = cancel // what arrives after the load belongs to no interval
	tally, err := p.run(ctx, appendCounter{subject, k})
	cancel()
	working.Wait()
	close(faults)
	for fault := range faults {
		err = errors.Join(err, fault)
	}
	k.report.Lost, k.report.Doubled = tally.Lost, tally.Doubled
	k.report.fact("appended", float64(tally.Appended), "changes")
	k.report.fact("delivered", float64(tally.Delivered), "changes to readers")
	k.report.fact(factLate, millis(tally.Late.Quantile(0.99)), "ms")
	return err
}

// note takes a delivery.
func (k *soak) note(took time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now.Note(took)
}

// trips does a bare round trip ten times a second.
func (k *soak) trips(ctx context.Context) error {
	n, err := k.bare.notifier(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = n.close(ctx) }()
	_, body := newRun(k.Target.evidence()).row(barePart, 0)
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		took, err := n.trip(ctx, body)
		if err != nil {
			return fmt.Errorf("%s: %w", bareNotify, err)
		}
		k.mu.Lock()
		k.bareNow.Note(took)
		k.mu.Unlock()
	}
}

// fresh begins an interval and returns what the one before it had.
func (k *soak) fresh() (now, bareNow *Recorder, appended int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, bareNow, appended = k.now, k.bareNow, k.appended
	k.now, k.bareNow, k.appended = NewRecorder(k.began), NewRecorder(k.began), 0
	k.now.Start()
	k.bareNow.Start()
	now.Stop()
	bareNow.Stop()
	return now, bareNow, appended
}

// tick ends an interval again and again; the last one may be short, and counts when it is not very short or the only one.
func (k *soak) tick(ctx context.Context, before usage) error {
	t := time.NewTicker(k.every)
	defer t.Stop()
	k.fresh()
	last := time.Now()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		case <-t.C:
		}
		took := time.Since(last)
		if over && took < k.every/2 && len(k.report.Intervals) > 0 {
			return nil
		}
		last = time.Now()
		now, bareNow, appended := k.fresh()
		after, err := k.usage.usage(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		round := now.round()
		i := Interval{
			Second: time.Since(k.began).Seconds(), AppendsPerSec: float64(appended) / took.Seconds(), PerSecond: float64(round.Count) / took.Seconds(),
			P50Ms: round.P50Ms, P99Ms: round.P99Ms, MaxMs: round.MaxMs, BareP50Ms: bareNow.round().P50Ms,
			ServerMB: after.residentBytes / 1e6, ServerCores: (after.cpuSeconds - before.cpuSeconds) / took.Seconds(),
		}
		before = after
		k.report.Intervals = append(k.report.Intervals, i)
		k.delivery.add(now)
		k.notify.add(bareNow)
		if k.each != nil {
			k.each(i)
		}
	}
	return nil
}

// appendCounter counts the appends of a soak's interval.
type appendCounter struct {
	Subject
	k *soak
}

func (a appendCounter) Begin(ctx context.Context, n int, deliver func(int, uint64)) (Fan, error) {
	f, err := a.Subject.Begin(ctx, n, deliver)
	if err != nil {
		return nil, err
	}
	return countedFan{f, a.k}, nil
}

type countedFan struct {
	Fan
	k *soak
}

func (f countedFan) Append(ctx context.Context, appender int, n uint64) error {
	err := f.Fan.Append(ctx, appender, n)
	f.k.mu.Lock()
	f.k.appended++
	f.k.mu.Unlock()
	return err
}

// trend compares the last third of a soak's intervals with the first.
func (r *Report) trend() {
	third := len(r.Intervals) / 3
	if third == 0 {
		return
	}
	for _, of := range []struct {
		name  string
		value func(Interval) float64
	}{
		{"p50", func(i Interval) float64 { return i.P50Ms }},
		{"p99", func(i Interval) float64 { return i.P99Ms }},
		{"provider memory", func(i Interval) float64 { return i.ServerMB }},
	} {
		var first, last []float64
		for n := range third {
			first = append(first, of.value(r.Intervals[n]))
			last = append(last, of.value(r.Intervals[len(r.Intervals)-1-n]))
		}
		if below := Median(first); below > 0 {
			r.fact("last third over first, "+of.name, Median(last)/below, "")
		}
	}
}
