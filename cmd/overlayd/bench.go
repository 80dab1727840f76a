package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/bench"
)

const benchLong = `Bench puts a provider under load from another process, next to baselines that are measured in the
same run, and prints medians of the rounds. Cases take turns within each round, so that what disturbs
the machine disturbs all of them.

By default it starts a provider of its own with a private Postgres, and leaves nothing behind. With
--target it measures one that runs: it appends rows to --feed, which it withdraws at the end, and opens
sessions of --service, which it closes. Quotas of that provider hold; all readers come from one address.
Its operator API is the one of --operator and --token-file, else of the environment, else of the
` + "`overlayd dev`" + ` in --data. The baselines of the database are left out there, unless --database-url names
it: they then get a schema of their own in it for the time of the run.

  bare INSERT+COMMIT     as many bytes in one line, through the driver, from as many connections
  primary-key page       256 rows of as many bytes, by their key
  bare NOTIFY round trip such a line with a notification, from the call to a listening connection
  unsigned echo          one HTTP round trip to a process that does nothing, with as many bytes
  sign + verify          what the curve alone takes (--signed)

A private Postgres flushes every commit; a database that does not is named in the report.

A delivery's time is from the append call to the body that was verified at the reader, as the protocol
asks of a client. stdout gets the tables (--json - puts JSON there instead), stderr the progress. Ctrl-C
ends a run early: what was measured is printed.

Exit codes: 0; 1 when it could not be measured, or a change was lost or came twice; 2 usage.`

// benchFlags are what all runs have.
type benchFlags struct {
	operatorOptions
	target, service, feed, attribute, identity, database string
	json, html                                           string
	signed                                               bool
	evidence                                             int
	plan                                                 bench.Plan
}

func newBenchCommand(e *env) *cobra.Command {
	f := benchFlags{plan: bench.DefaultPlan()}
	c := &cobra.Command{
		Use:   "bench append|open|page|poll|fanout|soak",
		Short: "Measure a provider under load, next to baselines of the same run",
		Long:  benchLong,
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("name what to measure") },
	}
	flags := c.PersistentFlags()
	f.register(c, true)
	flags.StringVar(&f.target, "target", "", "public base `URL` of a provider that runs (default: one of its own)")
	flags.StringVar(&f.service, "service", "", "`name` of the target's service (default "+devService+", with --signed "+devMembers+")")
	flags.StringVar(&f.feed, "feed", devFeed, "`name` of the target's feed that the service shows")
	flags.StringVar(&f.attribute, "attribute", "", "`name` of an attribute that the service's rules declare: readers ask for the rows of the run alone by it (default: for all)")
	flags.StringVar(&f.identity, "identity", "", "`file` with the private key that signs for all readers (default: a new one for each)")
	flags.StringVar(&f.database, "database-url", "", "Postgres `URL`: of the target's database for the baselines, or of an empty one to use instead of a private Postgres")
	flags.BoolVar(&f.signed, "signed", false, "measure a service that knows its callers (brc103)")
	flags.IntVar(&f.evidence, "bytes", 400, "size of each row's transaction, in bytes")
	flags.IntVar(&f.plan.Rounds, "rounds", f.plan.Rounds, "rounds that medians are taken of")
	flags.DurationVar(&f.plan.Time, "time", f.plan.Time, "length of a case in a round, where it has one")
	flags.IntVar(&f.plan.Count, "count", f.plan.Count, "repetitions of a case in a round, where it repeats")
	flags.DurationVar(&f.plan.WarmUp, "warm-up", f.plan.WarmUp, "length of what precedes and is not counted")
	flags.StringVar(&f.json, "json", "", "write the report as JSON to a `file`; - is stdout")
	flags.StringVar(&f.html, "html", "", "write the report with plots to a `file`, which needs no other")
	c.AddCommand(
		newBenchAppendCommand(e, &f), newBenchOpenCommand(e, &f), newBenchPageCommand(e, &f),
		newBenchPollCommand(e, &f), newBenchFanoutCommand(e, &f), newBenchSoakCommand(e, &f), newBenchEchoCommand(e),
	)
	return c
}

func newBenchAppendCommand(e *env, f *benchFlags) *cobra.Command {
	var submitters []int
	c := &cobra.Command{
		Use: "append", Short: "Appends of one row through the operator API, from several submitters at once", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("submitters", submitters...); err != nil {
				return err
			}
			return f.run(c.Context(), e, func(ctx context.Context, s bench.Setup) (*bench.Report, error) {
				return bench.Append(ctx, s, submitters)
			})
		},
	}
	c.Flags().IntSliceVar(&submitters, "submitters", []int{1, 16, 64}, "how many at once")
	return c
}

func newBenchOpenCommand(e *env, f *benchFlags) *cobra.Command {
	var rows []int
	c := &cobra.Command{
		Use: "open", Short: "Opens of sessions, of queries that select few and many rows", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.needsAttribute("rows", rows...); err != nil {
				return err
			}
			return f.run(c.Context(), e, func(ctx context.Context, s bench.Setup) (*bench.Report, error) {
				return bench.Open(ctx, s, rows)
			})
		},
	}
	c.Flags().IntSliceVar(&rows, "rows", []int{1000, 20000}, "rows that the queries select")
	return c
}

func newBenchPageCommand(e *env, f *benchFlags) *cobra.Command {
	var rows int
	c := &cobra.Command{
		Use: "page", Short: "Pages of 256 rows at the start and at 90 % of a query", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.needsAttribute("rows", rows); err != nil {
				return err
			}
			return f.run(c.Context(), e, func(ctx context.Context, s bench.Setup) (*bench.Report, error) {
				return bench.Page(ctx, s, rows)
			})
		},
	}
	c.Flags().IntVar(&rows, "rows", 20000, "rows that the query selects; more than 256")
	return c
}

func newBenchPollCommand(e *env, f *benchFlags) *cobra.Command {
	return &cobra.Command{
		Use: "poll", Short: "Delivery of one change at a time to one reader", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), e, bench.Poll) },
	}
}

func newBenchFanoutCommand(e *env, f *benchFlags) *cobra.Command {
	var readers []int
	var rate float64
	c := &cobra.Command{
		Use: "fanout", Short: "Delivery of changes at a fixed rate to several numbers of readers", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("readers", readers...); err != nil {
				return err
			}
			if !(rate > 0) {
				return usagef("--rate is %g; use a positive number", rate)
			}
			return f.run(c.Context(), e, func(ctx context.Context, s bench.Setup) (*bench.Report, error) {
				return bench.Fanout(ctx, s, readers, rate)
			})
		},
	}
	c.Flags().IntSliceVar(&readers, "readers", []int{1, 100, 500}, "how many at once")
	c.Flags().Float64Var(&rate, "rate", 50, "appends a second")
	return c
}

func newBenchSoakCommand(e *env, f *benchFlags) *cobra.Command {
	var load bench.Load
	var every time.Duration
	c := &cobra.Command{
		Use: "soak", Short: "A fan-out for long, told interval by interval", Args: cobra.NoArgs,
		Long: "Soak delivers changes at a fixed rate to readers for as long as --for says, or until Ctrl-C, and prints a line an\n" +
			"interval; it keeps a bit for each change and reader, to tell what was lost or came twice.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("readers", load.Readers); err != nil {
				return err
			}
			if !(load.Rate > 0) || load.Time <= 0 || every <= 0 {
				return usagef("--rate, --for and --every are to be positive")
			}
			load.WarmUp = f.plan.WarmUp
			return f.run(c.Context(), e, func(ctx context.Context, s bench.Setup) (*bench.Report, error) {
				return bench.Soak(ctx, s, load, every, intervalLines(e))
			})
		},
	}
	c.Flags().IntVar(&load.Readers, "readers", 50, "how many at once")
	c.Flags().Float64Var(&load.Rate, "rate", 50, "appends a second")
	c.Flags().DurationVar(&load.Time, "for", 5*time.Minute, "how long")
	c.Flags().DurationVar(&every, "every", 10*time.Second, "length of an interval")
	return c
}

// newBenchEchoCommand is the baseline's server, which a run starts for itself.
func newBenchEchoCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "serve-echo", Short: "Be the echo of a run", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error { return bench.ServeEcho(c.Context(), e.stdin, e.stdout) },
	}
}

// positive refuses lists of numbers that cannot be counts.
func positive(flag string, values ...int) error {
	if len(values) == 0 || slices.Min(values) < 1 {
		return usagef("--%s wants positive numbers", flag)
	}
	return nil
}

// needsAttribute is for runs whose queries must not select rows of others.
func (f *benchFlags) needsAttribute(flag string, values ...int) error {
	if f.target != "" && f.attribute == "" {
		return usagef("this run asks for its own rows alone: give --attribute, the name of one that the rules of the target's service declare")
	}
	return positive(flag, values...)
}

// run starts a provider, unless there is one, measures, and tells what was measured.
func (f *benchFlags) run(ctx context.Context, e *env, measure func(context.Context, bench.Setup) (*bench.Report, error)) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program cannot be found, to be started as the provider: %w", err)
	}
	progress := newBenchProgress(e.stderr)
	f.plan.Progress = progress.tell
	s := bench.Setup{Plan: f.plan, Echo: bench.EchoCommand{Program: program, Args: []string{"bench", "serve-echo"}, Environ: e.environ}}
	if f.target != "" {
		s.Target, err = f.running(e)
	} else {
		progress.tell(0, 1, "starting a provider")
		var p *bench.Provider
		if p, err = bench.StartProvider(ctx, bench.ProviderOptions{Program: program, Environ: e.environ, DatabaseURL: f.database}); err == nil {
			defer func() { err = errors.Join(err, p.Stop()) }()
			s.Target = p.Target(f.signed)
		}
	}
	if err != nil {
		progress.end()
		return err
	}
	s.Target.EvidenceBytes = f.evidence
	if f.identity != "" {
		if s.Target.Identity, err = signingKey(f.identity); err != nil {
			progress.end()
			return err
		}
	}
	defer bench.CollectSeldom(e.environ)()
	report, err := measure(ctx, s)
	progress.end()
	if report == nil || !report.Measured() {
		if err == nil {
			err = errors.New("the run was interrupted before anything was measured")
		}
		return err
	}
	report.Version, _ = buildVersion()
	return errors.Join(f.tell(e, report), err)
}

// check judges the flags before anything is started.
func (f *benchFlags) check() error {
	if f.plan.Rounds < 1 || f.plan.Count < 1 || f.plan.Time <= 0 || f.plan.WarmUp < 0 {
		return usagef("--rounds, --count and --time are to be positive, and --warm-up not negative")
	}
	if f.evidence < 100 || f.evidence > 1<<16 {
		return usagef("--bytes is %d; use 100 to 65536", f.evidence)
	}
	if f.target == "" && (f.operator != "" || f.token != "" || f.tokenFile != "" || f.service != "" || f.attribute != "") {
		return usagef("--operator, --token, --token-file, --service and --attribute are about a target: give --target URL too")
	}
	if f.identity != "" && !f.signed {
		return usagef("--identity signs: give --signed too")
	}
	for flag, path := range map[string]string{"json": f.json, "html": f.html} {
		if path == "" || flag == "json" && path == "-" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
			return usagef("--%s: there is no folder %s", flag, filepath.Dir(path))
		}
	}
	return nil
}

// running is a provider that was there before.
func (f *benchFlags) running(e *env) (*bench.Target, error) {
	if err := f.resolve(e); err != nil {
		return nil, err
	}
	service := f.service
	if service == "" {
		service = devService
		if f.signed {
			service = devMembers
		}
	}
	return &bench.Target{
		BaseURL: f.target, OperatorURL: f.operator, Token: f.token, DatabaseURL: f.database,
		Service: service, Feed: f.feed, Signed: f.signed, Attribute: f.attribute,
	}, nil
}

// tell prints the report and writes its files.
func (f *benchFlags) tell(e *env, r *bench.Report) error {
	var err error
	if f.json == "-" {
		err = r.WriteJSON(e.stdout)
	} else {
		err = r.Print(e.stdout)
	}
	if f.json != "" && f.json != "-" {
		err = errors.Join(err, writeReport(f.json, r.WriteJSON))
	}
	if f.html != "" {
		err = errors.Join(err, writeReport(f.html, r.WriteHTML))
	}
	return err
}
