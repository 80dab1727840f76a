package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/overlayd/overlayd/internal/house"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	duration := flag.Duration("time", time.Minute, "how long each target runs")
	only := flag.String("only", "", "run only the targets whose name matches this regular expression")
	parallel := flag.Int("parallel", 0, "fuzzing processes at a time (0: one a processor)")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil || flag.NArg() > 0 || *duration <= 0 || *parallel < 0 {
		fmt.Fprintln(os.Stderr, "fuzz: usage: fuzz [-time 60s] [-only REGEXP] [-parallel N]")
		os.Exit(2)
	}
	results, err := run(ctx, *duration, *parallel, pattern)
	if len(results) > 0 {
		printTable(os.Stdout, results)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "fuzz: %v\n", err)
		os.Exit(2)
	}
	if slices.ContainsFunc(results, func(r result) bool { return r.failed }) {
		os.Exit(1)
	}
}

type target struct{ dir, name string }

type result struct {
	target
	seconds     float64
	executions  uint64
	interesting uint64 // new inputs kept
	corpus      uint64 // inputs in all
	failed      bool
	resident    uint64 // kB, high-water mark of one process
	anonymous   uint64 // kB, largest seen of one process
}

func run(ctx context.Context, duration time.Duration, parallel int, only *regexp.Regexp) ([]result, error) {
	targets, err := find(ctx, only)
	if err != nil {
		return nil, err
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("no fuzz target matches %q", only)
	}
	var results []result
	for _, t := range targets {
		r, err := fuzz(ctx, t, duration, parallel)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// find lists the fuzz targets as the built test programs know them.
func find(ctx context.Context, only *regexp.Regexp) ([]target, error) {
	root, err := house.Root()
	if err != nil {
		return nil, err
	}
	tree, err := house.Load(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, test := range tree.Tests() {
		if test.Fuzz() && only.MatchString(test.Name) && !slices.Contains(dirs, test.Dir) {
			dirs = append(dirs, test.Dir)
		}
	}
	var targets []target
	for _, dir := range dirs {
		cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-list", "^Fuzz", "./"+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the fuzz targets of %s: %w\n%s", dir, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Fuzz") && only.MatchString(name) {
				targets = append(targets, target{dir, name})
			}
		}
	}
	return targets, nil
}

var progress = regexp.MustCompile(`^fuzz: elapsed: \S+, execs: (\d+) \([^)]*\)(?:, new interesting: (\d+) \(total: (\d+)\))?`)

// fuzz runs one target and watches its memory.
func fuzz(ctx context.Context, t target, duration time.Duration, parallel int) (result, error) {
	fmt.Printf("%s %s, %s ...\n", t.dir, t.name, duration)
	r := result{target: t}
	args := []string{"test", "-vet=off", "-run", "^$", "-fuzz", "^" + t.name + "$", "-fuzzminimizetime", "10x", "-fuzztime", duration.String()}
	if parallel > 0 {
		args = append(args, "-parallel", strconv.Itoa(parallel))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+t.dir)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	cmd.Stderr = cmd.Stdout
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("start go test: %w", err)
	}
	watched, stopWatch := context.WithCancel(ctx)
	done := make(chan memory, 1)
	go func() { done <- watch(watched, cmd.Process.Pid, t.dir) }()

	var other bytes.Buffer
	readErr := read(pipe, &r, &other)
	err = cmd.Wait()
	stopWatch()
	m := <-done
	r.seconds, r.resident, r.anonymous = time.Since(started).Seconds(), m.resident, m.anonymous
	if ctx.Err() != nil {
		return r, fmt.Errorf("interrupted while %s ran", t.name)
	}
	if readErr != nil {
		return r, fmt.Errorf("read the output of %s: %w", t.name, readErr)
	}
	if err != nil && !outOfTime(other.String()) {
		r.failed = true
		fmt.Print(other.String())
	}
	return r, nil
}

// outOfTime reports whether a run ended with nothing but the fuzzer's own clock: it stops its workers at the end of the time and, on a
// busy machine, takes one that was stopped for one that failed. A finding always leaves its input.
func outOfTime(output string) bool {
	return strings.Contains(output, "context deadline exceeded") && !strings.Contains(output, "Failing input written to")
}

// read takes the counts from the progress lines and keeps the other ones.
func read(from io.Reader, r *result, other io.Writer) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		m := progress.FindStringSubmatch(lines.Text())
		if m == nil {
			fmt.Fprintln(other, lines.Text())
			continue
		}
		r.executions, _ = strconv.ParseUint(m[1], 10, 64)
		if m[2] != "" {
			r.interesting, _ = strconv.ParseUint(m[2], 10, 64)
			r.corpus, _ = strconv.ParseUint(m[3], 10, 64)
		}
	}
	return lines.Err()
}

func printTable(to io.Writer, results []result) {
	fmt.Fprintln(to)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "target\tseconds\texecutions\tnew inputs\tinputs\tfailed\tpeak heap MiB\tpeak resident MiB\t")
	var sum uint64
	failed := 0
	for _, r := range results {
		verdict := "no"
		if r.failed {
			verdict, failed = "YES", failed+1
		}
		sum += r.executions
		fmt.Fprintf(w, "%s %s\t%.0f\t%d\t%d\t%d\t%s\t%s\t%s\t\n", r.dir, r.name, r.seconds, r.executions, r.interesting, r.corpus, verdict, mib(r.anonymous), mib(r.resident))
	}
	w.Flush()
	fmt.Fprintln(to, "Peaks are of one process; about 100 MiB of each are the mutator's own buffer.")
	fmt.Fprintf(to, "%d targets, %d executions, %d failed\n", len(results), sum, failed)
}

func mib(kB uint64) string {
	if kB == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(kB)/1024, 'f', 0, 64)
}
