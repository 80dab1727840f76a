package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// Plan says how a run is measured. Every field must be set; [DefaultPlan] has what the command uses.
type Plan struct {
	Rounds int           // at least 1; medians want 5 or more
	Time   time.Duration // the load of one case in one round; a case that counts instead ends when it has counted
	Count  int           // what is done one after the other, in one round of a case that counts
	WarmUp time.Duration // as Time, before what is kept
	// Progress is told what begins: done of all parts are over. It may be nil.
	Progress func(done, all int, what string)
}

// DefaultPlan is the plan of the command.
func DefaultPlan() Plan {
	return Plan{Rounds: 5, Time: 3 * time.Second, Count: 200, WarmUp: time.Second}
}

// generatorGC is GOGC of a process that generates a load: what it does for itself is to take little of the processors that it shares
// with what it measures.
const generatorGC = 400

// CollectSeldom makes the garbage collector of this process a generator's, unless GOGC of its environment says otherwise, until back is
// called.
func CollectSeldom(environ []string) (back func()) {
	for _, e := range environ {
		if strings.HasPrefix(e, "GOGC=") {
			return func() {}
		}
	}
	was := debug.SetGCPercent(generatorGC)
	return func() { debug.SetGCPercent(was) }
}

// Check says what is wrong with a plan.
func (p *Plan) Check() error {
	switch {
	case p.Rounds < 1:
		return fmt.Errorf("%d rounds measure nothing; use at least 1", p.Rounds)
	case p.Time <= 0 || p.Count < 1:
		return errors.New("a round without time or count measures nothing; use positive ones")
	case p.WarmUp < 0:
		return fmt.Errorf("a warm-up of %s does not exist; use 0 or more", p.WarmUp)
	}
	return nil
}

// oneCase is something that is measured in each round.
type oneCase struct {
	name     string
	baseline bool
	// run measures until ctx ends or its part is over: load for that long, or so many. An end by ctx is no error.
	run func(ctx context.Context, load time.Duration, count int, rec *Recorder) error
}

// measure runs the warm-up and the rounds (Y3). When ctx ends, what was measured is in the report, which says so (Y6).
func (p *Plan) measure(ctx context.Context, report *Report, cases []oneCase) error {
	began := time.Now()
	parts, all := 0, len(cases)*p.Rounds
	if p.WarmUp > 0 {
		all += len(cases)
	}
	tell := func(what string) {
		if p.Progress != nil {
			p.Progress(parts, all, what)
		}
		parts++
	}
	for _, c := range cases {
		report.Cases = append(report.Cases, &CaseReport{Name: c.name, Baseline: c.baseline})
	}
	defer func() {
		for _, c := range report.Cases {
			c.finish()
		}
		report.Interrupted = report.Interrupted || ctx.Err() != nil
	}()
	if p.WarmUp > 0 {
		for _, c := range cases {
			if ctx.Err() != nil {
				return nil
			}
			tell("warm-up: " + c.name)
			share := max(1, int(float64(p.Count)*min(1, p.WarmUp.Seconds()/p.Time.Seconds())))
			if err := c.run(ctx, p.WarmUp, share, NewRecorder(began)); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for round := range p.Rounds {
		for i := range cases {
			at := (i + round) % len(cases)
			if ctx.Err() != nil {
				return nil
			}
			tell(fmt.Sprintf("round %d of %d: %s", round+1, p.Rounds, cases[at].name))
			rec := NewRecorder(began)
			if err := cases[at].run(ctx, p.Time, p.Count, rec); err != nil {
				return fmt.Errorf("%s: %w", cases[at].name, err)
			}
			if rec.hist.Count() > 0 || ctx.Err() == nil { // one that measured nothing keeps its place (Y4)
				report.Cases[at].add(rec)
			}
		}
	}
	return nil
}

// begin makes the report of a command.
func begin(command string, t *Target, settings map[string]any) *Report {
	return &Report{
		Command: command, Began: time.Now().UTC(), Machine: thisMachine(t.provider != nil), Settings: settings,
		Ratios: []Ratio{}, Facts: []Fact{},
	}
}

// ended is what a command returns: the report, and an error when the run failed or showed a fault of the provider.
func ended(r *Report, err error) (*Report, error) {
	r.Seconds = time.Since(r.Began).Seconds()
	r.Machine.noteLoad()
	if r.Lost > 0 || r.Doubled > 0 {
		err = errors.Join(err, fmt.Errorf("of what was acknowledged %d changes did not come to a reader, and %d came twice; both must be 0", r.Lost, r.Doubled))
	}
	return r, err
}
