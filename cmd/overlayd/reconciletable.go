package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// shownOutputs is how many of the last changes a table has.
const shownOutputs = 20

// tableViewer draws a table, again at each look, over the one before.
type tableViewer struct {
	out     io.Writer
	size    func() (width, height int)
	notes   *notes
	title   string
	noChain bool

	sources map[string]*sourceLive
	last    []outputRow // newest first
	drawn   int         // lines on the screen
}

// sourceLive is what only the events of this run say of a source.
type sourceLive struct {
	highWater, through uint64
	heard              bool
	trouble            string
}

// outputRow is one line of the last changes.
type outputRow struct {
	at    spend.Outpoint
	state reconcile.OutputState
	by    string
}

// tableFrame is what one drawing shows.
type tableFrame struct {
	revision reconcile.Revision
	context  reconcile.Context
	counts   reconcile.Counts
	sources  []reconcile.SourceStatus
}

// notes keeps the last line that was logged: written to a terminal it would tear the
// table.
type notes struct {
	mu   sync.Mutex
	last string
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := bytes.Split(bytes.TrimRight(p, "\n"), []byte("\n"))
	n.last = string(lines[len(lines)-1])
	return len(p), nil
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

func newTableViewer(f *os.File, title string, noChain bool, n *notes) *tableViewer {
	return &tableViewer{
		out: f, title: title, noChain: noChain, notes: n, sources: map[string]*sourceLive{},
		size: func() (int, int) {
			w, h, err := term.GetSize(int(f.Fd()))
			if err != nil || w <= 0 || h <= 0 {
				return 80, 24
			}
			return w, h
		},
	}
}

func (v *tableViewer) event(e live.Event, names sourceNames) error {
	switch e := e.(type) {
	case live.Received:
		s := v.source(names.origin(e.Source))
		s.through, s.highWater, s.heard, s.trouble = e.Through, e.HighWater, true, ""
	case live.Accepted:
		for i := range e.Outputs {
			v.changed(&e.Outputs[i])
		}
	case live.SourceReset:
		v.source(names.origin(e.Source)).trouble = string(e.Code) + ": " + e.Reason
	case live.SourceStale:
		v.source(names.origin(e.Source)).trouble = "stopped: " + e.Err.Error()
	case live.Waiting:
		if e.Source == (live.Origin{}) {
			_, _ = fmt.Fprintln(v.notes, e.Err)
			break
		}
		v.source(names.origin(e.Source)).trouble = "waiting: " + e.Err.Error()
	case live.Lagging:
		_, _ = fmt.Fprintln(v.notes, e.Err)
	}
	return nil
}

func (v *tableViewer) source(name string) *sourceLive {
	s := v.sources[name]
	if s == nil {
		s = &sourceLive{}
		v.sources[name] = s
	}
	return s
}

// changed puts an output at the top.
func (v *tableViewer) changed(o *reconcile.OutputChange) {
	v.last = slices.DeleteFunc(v.last, func(r outputRow) bool { return r.at == o.Outpoint })
	row := outputRow{at: o.Outpoint, state: o.State}
	if spender(o.State, o.By) {
		row.by = o.By.String()
	}
	v.last = slices.Insert(v.last, 0, row)
	v.last = v.last[:min(len(v.last), shownOutputs)]
}

func (v *tableViewer) look(s reconcile.Snapshot, names sourceNames) error {
	f := tableFrame{revision: s.Revision(), context: s.Context()}
	var err error
	if f.counts, err = s.Counts(); err != nil {
		return err
	}
	if f.sources, err = s.Sources(); err != nil {
		return err
	}
	// What waits changes without a change.
	for i := range v.last {
		r := &v.last[i]
		o, err := s.Output(r.at)
		if err != nil {
			return err
		}
		r.state, r.by = o.State, ""
		if spender(o.State, o.By) {
			r.by = o.By.String()
		}
	}
	return v.draw(v.lines(&f, names))
}

// draw replaces what is on the screen. A table longer than the screen loses its end.
func (v *tableViewer) draw(lines []string) error {
	width, height := v.size()
	lines = lines[:min(len(lines), max(height-1, 1))]
	var b bytes.Buffer
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	b.WriteString("\r\x1b[J")
	for _, line := range lines {
		b.WriteString(line[:min(len(line), width)] + "\n")
	}
	v.drawn = len(lines)
	if _, err := v.out.Write(b.Bytes()); err != nil {
		return fmt.Errorf("draw the table: %w", err)
	}
	return nil
}

// lines are the table, in ASCII, no line cut yet.
func (v *tableViewer) lines(f *tableFrame, names sourceNames) []string {
	width, _ := v.size()
	out := []string{plainText(fmt.Sprintf("%s   height %d   received %d   accepted %d", v.title, f.context.View.TipHeight, f.revision.Received, f.revision.Accepted))}
	if v.noChain {
		out = append(out, "no header chain: nothing can be proved (--headers or --roots)")
	}
	if n := v.notes.String(); n != "" {
		out = append(out, plainText("note: "+n))
	}
	out = append(out, "")
	out = append(out, v.sourceLines(f, names, width)...)
	count := f.counts.Outputs
	out = append(out, "", fmt.Sprintf("current %d   spent %d   pending %d   conflicting %d   unknown %d",
		count[reconcile.Current], count[reconcile.Spent], count[reconcile.Pending], count[reconcile.Conflicting], count[reconcile.Unknown]), "")
	if len(v.last) == 0 {
		return append(out, "no output changed yet in this run")
	}
	room := shortOutpoint
	if width >= fullOutpoint+wideOutputs {
		room = fullOutpoint
	}
	out = append(out, fmt.Sprintf("%-*s %-11s %s", room, "OUTPUT", "STATE", "SPENT BY"))
	for _, r := range v.last {
		at, by := r.at.String(), r.by
		if room == shortOutpoint {
			at, by = short(r.at.TxID.String())+fmt.Sprintf(".%d", r.at.Index), short(by)
		}
		out = append(out, strings.TrimRight(fmt.Sprintf("%-*s %-11s %s", room, at, r.state, by), " "))
	}
	return out
}

// Widths of columns.
const (
	shortOutpoint = 34
	fullOutpoint  = 71
	wideOutputs   = 77 // what else a line with whole txids has
	besideSource  = 56 // what a source's line has beside its name, with room for a word on its state
)

// sourceLines are a head and a line for each source.
func (v *tableViewer) sourceLines(f *tableFrame, names sourceNames, width int) []string {
	rows := [][6]string{{"SOURCE", "GEN", "PHASE", "SEQUENCE", "PENDING", "STATE"}}
	known := map[string]bool{}
	for i := range f.sources {
		name := names.of(f.sources[i].ID)
		known[name] = true
		rows = append(rows, v.sourceRow(name, &f.sources[i]))
	}
	for _, name := range slices.Sorted(maps.Keys(v.sources)) { // those that have no row in the store yet
		if !known[name] {
			rows = append(rows, [6]string{name, "-", "-", "-", "-", v.sources[name].trouble})
		}
	}
	room := 0
	for _, r := range rows {
		room = max(room, len(r[0]))
	}
	room = min(room, max(width-besideSource, 20))
	var out []string
	for _, r := range rows {
		if n := len(r[0]); n > room {
			r[0] = ".." + r[0][n-room+2:]
		}
		out = append(out, plainText(fmt.Sprintf("%-*s %3s  %-8s %13s %7s  %s", room, r[0], r[1], r[2], r[3], r[4], r[5])))
	}
	return out
}

func (v *tableViewer) sourceRow(name string, s *reconcile.SourceStatus) [6]string {
	g := &s.Latest
	l := cmp.Or(v.sources[name], &sourceLive{})
	sequence := fmt.Sprint(g.Through)
	if l.heard {
		sequence = fmt.Sprintf("%d/%d", l.through, l.highWater)
	}
	var state []string
	if s.Stale {
		state = append(state, "stale")
	}
	if s.Limited {
		state = append(state, "limited")
	}
	if s.Quarantined > 0 {
		state = append(state, fmt.Sprintf("%d quarantined", s.Quarantined))
	}
	if l.trouble != "" {
		state = append(state, l.trouble)
	}
	return [6]string{
		name, fmt.Sprint(g.Number), phaseOf(g), sequence, fmt.Sprint(g.Pending.Groups), cmp.Or(strings.Join(state, ", "), "ok"),
	}
}

// phaseOf is where a generation stands, in a word.
func phaseOf(g *reconcile.Generation) string {
	switch {
	case g.Number == 0:
		return "-"
	case g.Ending != nil:
		return "over"
	case g.Received:
		return "live"
	}
	return "snapshot"
}

// short keeps both ends of a txid.
func short(txid string) string {
	if len(txid) != 64 {
		return txid
	}
	return txid[:12] + ".." + txid[56:]
}

// plainText keeps what others wrote from steering the terminal, and to one column a
// character.
func plainText(s string) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s), " ")
}
