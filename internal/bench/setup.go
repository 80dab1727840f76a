package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Setup is what every command needs.
type Setup struct {
	Target *Target
	Plan   Plan
	Echo   EchoCommand
}

// Sizes of what the echo is sent and answers, about those of a read with one row.
const (
	echoRequest = 600
	echoAnswer  = 2048
)

// bench is one command at work.
type bench struct {
	Setup
	report *Report
	bare   *bare // nil: the target's database is not known
	echo   *echo
	usage  *operator
}

// start connects what the baselines need, with at most conns connections to the database.
func (s Setup) start(ctx context.Context, command string, conns int, settings map[string]any) (_ *bench, err error) {
	if err := s.Plan.Check(); err != nil {
		return nil, err
	}
	b := &bench{Setup: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop(ctx))
		}
	}()
	for name, value := range map[string]any{
		"service": s.Target.Service, "signed": s.Target.Signed, "rounds": s.Plan.Rounds, "seconds": s.Plan.Time.Seconds(),
		"count": s.Plan.Count, "warmUpSeconds": s.Plan.WarmUp.Seconds(), "evidenceBytes": s.Target.evidence(),
	} {
		settings[name] = value
	}
	b.report = begin(command, s.Target, settings)
	if b.usage, err = s.Target.operator(); err != nil {
		return nil, err
	}
	if b.echo, err = startEcho(ctx, s.Echo); err != nil {
		return nil, err
	}
	if b.bare, err = newBare(ctx, s.Target.DatabaseURL, conns+4); err != nil {
		return nil, err
	}
	if b.bare != nil {
		settings["database"] = b.bare.server
		if !b.bare.durable {
			b.report.Notes = append(b.report.Notes, "The database does not flush its commits ("+b.bare.server+"): these are no figures of durable appends.")
		}
	}
	return b, nil
}

// stop gives everything back, whatever the state of ctx (Y8).
func (b *bench) stop(ctx context.Context) error {
	var err error
	if b.echo != nil {
		err = b.echo.stop()
	}
	if b.usage != nil {
		b.usage.close()
	}
	return errors.Join(err, b.bare.close(ctx))
}

// end is what a command returns.
func (b *bench) end(ctx context.Context, err error) (*Report, error) {
	err = errors.Join(err, b.stop(ctx))
	b.report.Retries = b.Target.retries.Load()
	if b.report.Retries > 0 {
		b.report.fact("requests sent again", float64(b.report.Retries), "")
	}
	return ended(b.report, err)
}

// counted is a case that does something count times, one after the other.
func counted(name string, baseline bool, once func(ctx context.Context) (time.Duration, error)) oneCase {
	return oneCase{name: name, baseline: baseline, run: func(ctx context.Context, _ time.Duration, count int, rec *Recorder) error {
		rec.Start()
		defer rec.Stop()
		for range count {
			took, err := once(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			rec.Note(took)
		}
		return nil
	}}
}

// timed makes a function tell how long it took.
func timed(do func(ctx context.Context) error) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := do(ctx)
		return time.Since(began), err
	}
}

// echoCase is the baseline of an answer of so many bytes.
func (b *bench) echoCase(answer int) oneCase {
	body := make([]byte, echoRequest)
	return counted(bareEcho, true, timed(func(ctx context.Context) error { return b.echo.trip(ctx, body, answer) }))
}

// deliveryBaselines are what a delivery is compared with. end gives back what they hold.
func (b *bench) deliveryBaselines(ctx context.Context) (cases []oneCase, end func() error, err error) {
	end = func() error { return nil }
	_, body := newRun(b.Target.evidence()).row(barePart, 0)
	if b.bare != nil {
		n, err := b.bare.notifier(ctx)
		if err != nil {
			return nil, end, err
		}
		end = func() error { return n.close(ctx) }
		cases = append(cases,
			counted(bareNotify, true, func(ctx context.Context) (time.Duration, error) { return n.trip(ctx, body) }),
			counted(bareInsert, true, timed(func(ctx context.Context) error { return b.bare.insert(ctx, body) })))
	}
	cases = append(cases, b.echoCase(echoAnswer))
	if b.Target.Signed {
		s, err := newSignVerify()
		if err != nil {
			return nil, end, err
		}
		cases = append(cases, counted(bareCrypto, true, func(context.Context) (time.Duration, error) { return s.once() }))
	}
	return cases, end, nil
}

// watch notes what the provider's process used during a round.
func (b *bench) watch(ctx context.Context, rec *Recorder, do func() error) error {
	before, err := b.usage.usage(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	after, err := b.usage.usage(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	if after.residentBytes > 0 {
		rec.Fact(factCores, (after.cpuSeconds-before.cpuSeconds)/took)
		rec.Fact(factMemory, after.residentBytes/1e6)
	}
	return nil
}

// The facts of a round. Those of the provider are its process's: Postgres is not in them.
const (
	factCores    = "provider cores"
	factMemory   = "provider memory"
	factLate     = "appends late, p99"
	factAnswered = "append call to its answer, p50"
)

var factUnits = map[string]string{factCores: "cores", factMemory: "MB", factLate: "ms", factAnswered: "ms"}

// caseFacts lists the facts of the cases' rounds.
func (r *Report) caseFacts() {
	for _, c := range r.Cases {
		for _, name := range []string{factCores, factMemory, factLate, factAnswered} {
			if value, ok := c.Medians.Facts[name]; ok {
				r.fact(fmt.Sprintf("%s: %s", c.Name, name), value, factUnits[name])
			}
		}
	}
}
