package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress is a bar on a terminal, and nothing elsewhere. It is used by one
// goroutine.
type progress struct {
	bar    *progressbar.ProgressBar // nil: not a terminal
	start  time.Time
	groups int64
	what   string
}

// newProgress counts groups up to total; -1 means nobody knows how many.
func newProgress(w io.Writer, total int64, what string) *progress {
	p := &progress{start: time.Now(), what: what}
	if !isTerminal(w) {
		return p
	}
	p.bar = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("groups"),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish(),
	)
	return p
}

// newByteProgress counts bytes of a file whose groups nobody has counted.
func newByteProgress(w io.Writer, bytes int64, what string) *progress {
	p := &progress{start: time.Now(), what: what}
	if !isTerminal(w) {
		return p
	}
	p.bar = progressbar.NewOptions64(bytes,
		progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish(),
	)
	return p
}

func (p *progress) add(n int64) {
	p.groups++
	if p.bar == nil {
		return
	}
	if p.groups%256 == 0 {
		p.bar.Describe(fmt.Sprintf("%s: %d groups, %.0f/s", p.what, p.groups, p.rate()))
	}
	_ = p.bar.Add64(n) // a terminal that went away loses its bar, nothing else
}

// rate is groups a second since the beginning.
func (p *progress) rate() float64 {
	return float64(p.groups) / max(time.Since(p.start).Seconds(), 1e-3)
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
