package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Poll measures the delivery of one change at a time to one reader that waits for it: the next is appended when the one before has
// arrived and its append is answered.
func Poll(ctx context.Context, s Setup) (*Report, error) {
	b, err := s.start(ctx, "poll", 4, map[string]any{})
	if err != nil {
		return nil, err
	}
	baselines, end, err := b.deliveryBaselines(ctx)
	if err != nil {
		return b.end(ctx, err)
	}
	subject := s.Target.Subject()
	name := "poll, " + s.Target.kind()
	cases := append([]oneCase{{name: name, run: func(ctx context.Context, _ time.Duration, count int, rec *Recorder) error {
		return b.pingPong(ctx, subject, count, rec)
	}}}, baselines...)
	err = errors.Join(s.Plan.measure(ctx, b.report, cases), end(), subject.Clear(ctx))
	for _, c := range baselines {
		b.report.compare(name, c.name, figureP50)
	}
	return b.end(ctx, err)
}

// pingPong appends and awaits count changes, one after the other.
func (b *bench) pingPong(ctx context.Context, s Subject, count int, rec *Recorder) (err error) {
	type arrival struct {
		change uint64
		at     time.Time
	}
	arrivals := make(chan arrival, count+1)
	fan, err := s.Begin(ctx, 1, func(_ int, change uint64) { arrivals <- arrival{change, time.Now()} })
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, fan.End(ctx)) }()
	whole := context.WithoutCancel(ctx)
	late := time.NewTimer(tailTime)
	defer late.Stop()
	rec.Start()
	defer rec.Stop()
	for n := uint64(0); n < uint64(count) && ctx.Err() == nil; n++ {
		began := time.Now()
		if err := fan.Append(whole, 0, n); err != nil {
			return err
		}
		late.Reset(tailTime)
		select {
		case a := <-arrivals:
			switch {
			case a.change < n:
				b.report.Doubled++
			case a.change > n:
				b.report.Lost++
			}
			rec.Note(a.at.Sub(began))
		case err := <-fan.Failed():
			return err
		case <-late.C:
			b.report.Lost++
			return nil
		}
	}
	return nil
}

// Fanout measures the delivery of changes that are appended at fixed times to each of several numbers of readers.
func Fanout(ctx context.Context, s Setup, readers []int, rate float64) (*Report, error) {
	if rate <= 0 {
		return nil, errors.New("a fan-out without appends delivers nothing; use a positive rate")
	}
	b, err := s.start(ctx, "fanout", 4, map[string]any{"readers": readers, "rate": rate})
	if err != nil {
		return nil, err
	}
	baselines, end, err := b.deliveryBaselines(ctx)
	if err != nil {
		return b.end(ctx, err)
	}
	subject := s.Target.Subject()
	var cases []oneCase
	for _, n := range readers {
		cases = append(cases, b.fan(subject, n, rate))
	}
	err = errors.Join(s.Plan.measure(ctx, b.report, append(cases, baselines...)), end(), subject.Clear(ctx))
	for _, c := range cases {
		b.report.compare(c.name, bareNotify, figureP50)
	}
	if s.Target.Signed {
		for _, n := range readers {
			b.report.cryptoFloor(fanName(subject, n), "", n, rate)
		}
	}
	b.report.caseFacts()
	return b.end(ctx, err)
}

// fanName names the case of so many readers of a subject.
func fanName(s Subject, n int) string { return fmt.Sprintf("%s, %s", s.Name(), count(n, "reader")) }

func (b *bench) fan(s Subject, n int, rate float64) oneCase {
	return oneCase{name: fanName(s, n), run: func(ctx context.Context, load time.Duration, _ int, rec *Recorder) error {
		return b.watch(ctx, rec, func() error {
			return b.report.fan(ctx, s, Load{Readers: n, Rate: rate, WarmUp: b.Plan.WarmUp, Time: load}, rec)
		})
	}}
}

// fan puts a load on a subject and adds what came of it.
func (r *Report) fan(ctx context.Context, s Subject, load Load, rec *Recorder) error {
	t, err := Pour(ctx, s, load, rec)
	r.Lost += t.Lost
	r.Doubled += t.Doubled
	rec.Fact(factLate, millis(t.Late.Quantile(0.99)))
	rec.Fact(factAnswered, millis(t.Answered.Quantile(0.5)))
	return err
}

// cryptoFloor compares a signed case with what signing and verifying alone take of a change that goes to all readers at once: each
// of them signs its next request and has the answer signed, and both are verified, on all processors. If public is a case too, the
// floor is also added to it.
func (r *Report) cryptoFloor(signed, public string, readers int, rate float64) {
	curve, of, plain := r.find(bareCrypto), r.find(signed), r.find(public)
	if curve == nil || of == nil || curve.Medians.Count == 0 {
		return
	}
	floor := func(ms float64) float64 { return float64(readers) * 2 * ms / float64(runtime.NumCPU()) }
	floors := &CaseReport{Name: "crypto floor, " + count(readers, "reader")}
	above := &CaseReport{Name: "public + crypto floor, " + count(readers, "reader")}
	for i, round := range curve.Rounds {
		floors.Rounds = append(floors.Rounds, Round{P50Ms: floor(round.P50Ms)})
		if plain != nil && i < len(plain.Rounds) && plain.Rounds[i].P50Ms > 0 {
			above.Rounds = append(above.Rounds, Round{P50Ms: plain.Rounds[i].P50Ms + floor(round.P50Ms)})
		} else {
			above.Rounds = append(above.Rounds, Round{})
		}
	}
	for _, to := range []*CaseReport{floors, above} {
		if q := ratio(of, to, figureP50); len(q.Rounds) > 0 {
			r.Ratios = append(r.Ratios, q)
		}
	}
	one := floor(curve.Medians.P50Ms)
	r.fact(floors.Name, one, "ms a change")
	if busy := one * rate / 1000; busy > 1 {
		r.fact(floors.Name+", of all processors", busy, "(above 1: what comes meanwhile must be batched)")
	}
}

// Compare measures several subjects under the same load, in the same rounds; the last is the one that the others are compared
// with. It is for modules that have other systems as subjects.
func Compare(ctx context.Context, p Plan, subjects []Subject, readers []int, rate float64) (*Report, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if rate <= 0 || len(subjects) == 0 || len(readers) == 0 {
		return nil, errors.New("a comparison wants subjects, readers and a positive rate")
	}
	r := begin("compare", &Target{}, map[string]any{
		"readers": readers, "rate": rate, "rounds": p.Rounds, "seconds": p.Time.Seconds(), "warmUpSeconds": p.WarmUp.Seconds(),
	})
	r.Machine.Local = true
	var cases []oneCase
	for _, n := range readers {
		for _, s := range subjects {
			cases = append(cases, oneCase{name: fanName(s, n), run: func(ctx context.Context, load time.Duration, _ int, rec *Recorder) error {
				return r.fan(ctx, s, Load{Readers: n, Rate: rate, WarmUp: p.WarmUp, Time: load}, rec)
			}})
		}
	}
	public, signed := services(subjects)
	if signed != nil {
		curve, err := newSignVerify()
		if err != nil {
			return nil, err
		}
		cases = append(cases, counted(bareCrypto, true, func(context.Context) (time.Duration, error) { return curve.once() }))
	}
	err := p.measure(ctx, r, cases)
	last := subjects[len(subjects)-1] // what the others are compared with
	for _, n := range readers {
		for _, s := range subjects[:len(subjects)-1] {
			r.compare(fanName(s, n), fanName(last, n), figureP50)
			r.compare(fanName(s, n), fanName(last, n), figureP99)
		}
	}
	if signed != nil {
		for _, n := range readers {
			beside := ""
			if public != nil {
				beside = fanName(public, n)
			}
			r.cryptoFloor(fanName(signed, n), beside, n, rate)
		}
	}
	r.caseFacts()
	return ended(r, err)
}

// services are the public and the signed provider among the subjects; nil: there is none.
func services(subjects []Subject) (public, signed *Overlay) {
	for _, s := range subjects {
		switch o, ok := s.(*Overlay); {
		case !ok:
		case o.t.Signed:
			signed = o
		default:
			public = o
		}
	}
	return public, signed
}
