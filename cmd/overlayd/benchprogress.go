package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/schollz/progressbar/v3"

	"github.com/overlayd/overlayd/internal/bench"
)

// benchProgress is a bar on a terminal, and elsewhere a line for each part. It is safe for concurrent use.
type benchProgress struct {
	out io.Writer

	mu   sync.Mutex
	bar  *progressbar.ProgressBar // nil: no terminal
	last string
}

func newBenchProgress(w io.Writer) *benchProgress {
	p := &benchProgress{out: w}
	if isTerminal(w) {
		p.bar = progressbar.NewOptions(1,
			progressbar.OptionSetWriter(w), progressbar.OptionShowCount(), progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// tell says what begins: done of all parts are over.
func (p *benchProgress) tell(done, all int, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil {
		if what != p.last {
			fmt.Fprintln(p.out, "overlayd:", what)
		}
		p.last = what
		return
	}
	// A terminal that went away loses its bar, nothing else. A bar that is full would end itself.
	p.bar.ChangeMax(max(all, done+1))
	p.bar.Describe(what)
	_ = p.bar.Set(done)
}

func (p *benchProgress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// intervalLines prints a soak's intervals as they end.
func intervalLines(e *env) func(bench.Interval) {
	head := false
	return func(i bench.Interval) {
		if !head {
			fmt.Fprintf(e.stderr, "%8s %10s %12s %9s %9s %9s %12s %10s %7s\n", "time", "appends/s", "delivered/s", "p50 ms", "p99 ms", "max ms", "bare p50 ms", "server MB", "cores")
			head = true
		}
		fmt.Fprintf(e.stderr, "%7.0fs %10.1f %12.1f %9.2f %9.2f %9.2f %12.2f %10.1f %7.2f\n",
			i.Second, i.AppendsPerSec, i.PerSecond, i.P50Ms, i.P99Ms, i.MaxMs, i.BareP50Ms, i.ServerMB, i.ServerCores)
	}
}

// writeReport writes a file whole or not at all.
func writeReport(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := writeFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("the report: %w", err)
	}
	return nil
}
