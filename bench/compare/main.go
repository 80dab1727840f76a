package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/bench"
)

// options are the flags.
type options struct {
	readers              []int
	rate                 float64
	bytes                int
	plan                 bench.Plan
	overlayd, json, html string
	shared               int
	etcdDir              string
}

var errUsage = errors.New("usage")

func parse(args []string) (*options, error) {
	o := &options{plan: bench.DefaultPlan()}
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	readers := f.String("readers", "1,100,500", "numbers of readers")
	f.Float64Var(&o.rate, "rate", 50, "appends a second")
	f.IntVar(&o.bytes, "bytes", 400, "size of a row's transaction, and of a value of etcd")
	f.IntVar(&o.plan.Rounds, "rounds", 5, "rounds that medians are taken of")
	f.DurationVar(&o.plan.Time, "time", 5*time.Second, "length of a case in a round")
	f.DurationVar(&o.plan.WarmUp, "warm-up", time.Second, "length of what precedes and is not counted")
	f.IntVar(&o.shared, "shared", 0, "measure etcd also with so many watches on one client; 0 is not")
	f.IntVar(&o.plan.Count, "count", o.plan.Count, "signatures that are made and verified in a round, for the crypto floor")
	f.StringVar(&o.overlayd, "overlayd", "", "an overlayd `program` (default: built from this tree)")
	f.StringVar(&o.json, "json", "", "write the report as JSON to a `file`")
	f.StringVar(&o.html, "html", "", "write the report with plots to a `file`")
	f.StringVar(&o.etcdDir, "serve-etcd", "", "be the etcd, in this `folder` (used by the program itself)")
	if err := f.Parse(args); err != nil {
		return nil, errors.Join(errUsage, err)
	}
	for text := range strings.SplitSeq(*readers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%w: -readers %q wants positive numbers", errUsage, *readers)
		}
		o.readers = append(o.readers, n)
	}
	if !(o.rate > 0) || o.bytes < 100 || o.bytes > 1<<16 || o.shared < 0 || f.NArg() > 0 {
		return nil, fmt.Errorf("%w: -rate is to be positive, -bytes 100 to 65536, -shared not negative, and there are no arguments", errUsage)
	}
	if err := o.plan.Check(); err != nil {
		return nil, errors.Join(errUsage, err)
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.etcdDir != "" {
		return serveEtcd(ctx, o.etcdDir, os.Stdin, os.Stdout)
	}
	dir, err := os.MkdirTemp("", "overlayd-compare-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.overlayd == "" {
		fmt.Fprintln(os.Stderr, "compare: building overlayd")
		o.overlayd = filepath.Join(dir, "overlayd")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.overlayd, "./cmd/overlayd")
		build.Dir, build.Stderr = filepath.Join("..", ".."), os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build overlayd: %w; run this in bench/compare, or name a program with -overlayd", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	e, err := bench.StartChild(ctx, self, []string{"-serve-etcd", filepath.Join(dir, "etcd")}, os.Environ())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	p, err := bench.StartProvider(ctx, bench.ProviderOptions{Program: o.overlayd, Environ: os.Environ()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	o.plan.Progress = func(_, _ int, what string) { fmt.Fprintln(os.Stderr, "compare:", what) }
	var subjects []bench.Subject
	for _, signed := range []bool{false, true} {
		t := p.Target(signed)
		t.EvidenceBytes = o.bytes
		subjects = append(subjects, t.Subject())
	}
	if o.shared > 1 {
		subjects = append(subjects, &etcd{url: e.Line, bytes: o.bytes, shared: o.shared})
	}
	defer bench.CollectSeldom(os.Environ())()
	r, err := bench.Compare(ctx, o.plan, append(subjects, &etcd{url: e.Line, bytes: o.bytes, shared: 1}), o.readers, o.rate)
	if r == nil || !r.Measured() {
		return errors.Join(err, errors.New("nothing was measured"))
	}
	r.Settings["evidenceBytes"] = o.bytes
	err = errors.Join(err, r.Print(os.Stdout))
	for path, write := range map[string]func(io.Writer) error{o.json: r.WriteJSON, o.html: r.WriteHTML} {
		if path == "" {
			continue
		}
		var b bytes.Buffer
		if fault := write(&b); fault != nil {
			err = errors.Join(err, fault)
		} else {
			err = errors.Join(err, os.WriteFile(path, b.Bytes(), 0o644))
		}
	}
	return err
}
