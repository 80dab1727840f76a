package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Append measures appends through the operator API, one group of one new row each, from several submitters at a time that each
// wait for their answer. The baseline commits the same evidence by INSERT, from as many connections.
func Append(ctx context.Context, s Setup, submitters []int) (*Report, error) {
	b, err := s.start(ctx, "append", slices.Max(submitters), map[string]any{"submitters": submitters})
	if err != nil {
		return nil, err
	}
	a := &appends{bench: b, run: newRun(s.Target.evidence())}
	var cases []oneCase
	for _, n := range submitters {
		cases = append(cases, oneCase{name: a.name(n), run: a.through(n)})
		if b.bare != nil {
			cases = append(cases, oneCase{name: bareName(n), baseline: true, run: a.bare(n)})
		}
	}
	cases = append(cases, b.echoCase(echoAnswer))
	err = s.Plan.measure(ctx, b.report, cases)
	for _, n := range submitters {
		b.report.compare(a.name(n), bareName(n), figureRate)
		b.report.compare(a.name(n), bareName(n), figureP50)
	}
	b.report.caseFacts()
	err = errors.Join(err, a.run.clear(ctx, s.Target, appendPart, 0, a.rows.Load()))
	return b.end(ctx, err)
}

// The parts of an append's run: rows of the feed, and lines of the baseline, which are made in the same way.
const (
	appendPart = "a"
	barePart   = "b"
)

// appends is a run of Append.
type appends struct {
	*bench
	run *run
	// Numbers given out: of rows, and of the baseline's lines.
	rows, bareRows atomic.Uint64
}

func (a *appends) name(n int) string { return fmt.Sprintf("append, %s", count(n, "submitter")) }

func bareName(n int) string { return fmt.Sprintf("%s, %s", bareInsert, count(n, "submitter")) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *appends) through(n int) func(context.Context, time.Duration, int, *Recorder) error {
	return func(ctx context.Context, load time.Duration, _ int, rec *Recorder) error {
		return a.watch(ctx, rec, func() error {
			return submit(ctx, n, load, rec, func() (func(context.Context) error, func(), error) {
				o, err := a.Target.operator()
				if err != nil {
					return nil, nil, err
				}
				return func(ctx context.Context) error {
					number := a.rows.Add(1) - 1
					_, err := o.append(ctx, a.run.group(appendPart, number, a.Target.Attribute, a.run.name))
					return err
				}, o.close, nil
			})
		})
	}
}

func (a *appends) bare(n int) func(context.Context, time.Duration, int, *Recorder) error {
	return func(ctx context.Context, load time.Duration, _ int, rec *Recorder) error {
		return submit(ctx, n, load, rec, func() (func(context.Context) error, func(), error) {
			return func(ctx context.Context) error {
				_, body := a.run.row(barePart, a.bareRows.Add(1))
				return a.bench.bare.insert(ctx, body)
			}, func() {}, nil
		})
	}
}

// submit has n submitters do something again and again for a time, or until ctx ends, but each at least once. What was begun is
// finished.
func submit(ctx context.Context, n int, load time.Duration, rec *Recorder, join func() (do func(context.Context) error, leave func(), err error)) error {
	over, cancel := context.WithTimeoutCause(ctx, load, errOver)
	defer cancel()
	whole := context.WithoutCancel(ctx)
	faults := make([]error, n)
	var all sync.WaitGroup
	rec.Start()
	for i := range n {
		all.Go(func() {
			do, leave, err := join()
			if err != nil {
				faults[i] = err
				return
			}
			defer leave()
			for first := ctx.Err() == nil; first || over.Err() == nil; first = false {
				began := time.Now()
				if err := do(whole); err != nil {
					faults[i] = err
					cancel()
					return
				}
				rec.Note(time.Since(began))
			}
		})
	}
	all.Wait()
	rec.Stop()
	return errors.Join(faults...)
}

var errOver = errors.New("the time of the round is over")
