package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Report is what a run measured. As JSON its fields are for programs.
type Report struct {
	Command     string         `json:"command"` // append, open, page, poll, fanout or soak
	Version     string         `json:"version,omitempty"`
	Began       time.Time      `json:"began"`
	Seconds     float64        `json:"seconds"`         // the whole run
	Interrupted bool           `json:"interrupted"`     // it was ended before it was done
	Machine     Machine        `json:"machine"`         // where the generator ran
	Notes       []string       `json:"notes,omitempty"` // what must be known to read the figures
	Settings    map[string]any `json:"settings"`
	Cases       []*CaseReport  `json:"cases"`
	Ratios      []Ratio        `json:"ratios"`
	Facts       []Fact         `json:"facts"`
	Intervals   []Interval     `json:"intervals,omitempty"` // of a soak
	Lost        int64          `json:"lost"`                // acknowledged changes that a reader did not get
	Doubled     int64          `json:"doubled"`             // changes that a reader got again
	Retries     int64          `json:"retries"`             // requests that had to be sent again
}

// Machine is where the generator ran.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	CPUs  int    `json:"cpus"`
	Go    string `json:"go"`
	Local bool   `json:"local"` // the provider was started by this run, on the same machine
	// Load is the load of the last minute when the run began and when it ended, where the system tells: above the number of
	// processors the figures wait for each other.
	Load []float64 `json:"load,omitempty"`
}

func thisMachine(local bool) Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(), Local: local}
	m.noteLoad()
	return m
}

func (m *Machine) noteLoad() {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return // not a Linux
	}
	first, _, _ := strings.Cut(string(text), " ")
	if load, err := strconv.ParseFloat(first, 64); err == nil {
		m.Load = append(m.Load, load)
	}
}

// String is one line.
func (m Machine) String() string {
	text := fmt.Sprintf("%s/%s with %d processors, %s", m.OS, m.Arch, m.CPUs, m.Go)
	if m.Local {
		text += ", the provider on the same machine"
	}
	if len(m.Load) == 2 {
		text += fmt.Sprintf(", load %.1f before and %.1f after", m.Load[0], m.Load[1])
	}
	return text
}

// Round is what one case gave in one round. Times are milliseconds.
type Round struct {
	Count     int64              `json:"count"`
	Seconds   float64            `json:"seconds"`
	PerSecond float64            `json:"perSecond"`
	P50Ms     float64            `json:"p50Ms"`
	P90Ms     float64            `json:"p90Ms"`
	P99Ms     float64            `json:"p99Ms"`
	MaxMs     float64            `json:"maxMs"`
	Facts     map[string]float64 `json:"facts,omitempty"`
}

// CaseReport is what one case gave in all rounds.
type CaseReport struct {
	Name     string  `json:"name"`
	Baseline bool    `json:"baseline"`
	Rounds   []Round `json:"rounds"`
	Medians  Round   `json:"medians"` // of the rounds; count, seconds and the maximum are those of all
	// Distribution is of all rounds together.
	Distribution []Point `json:"distribution"`
	// OverTime has how many a second ended, at seconds from the run's begin.
	OverTime []Moment `json:"overTime"`

	all  Histogram
	rate map[int]int64
}

// Moment is a point of the throughput over time.
type Moment struct {
	Second    float64 `json:"second"`
	PerSecond float64 `json:"perSecond"`
}

// Ratio compares two cases by one figure.
type Ratio struct {
	Case   string    `json:"case"`
	To     string    `json:"to"`
	Figure string    `json:"figure"` // perSecond, p50 or p99
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
}

// Fact is a figure that is no duration of a case.
type Fact struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Interval is a line of a soak.
type Interval struct {
	Second        float64 `json:"second"`
	AppendsPerSec float64 `json:"appendsPerSecond"`
	PerSecond     float64 `json:"deliveriesPerSecond"`
	P50Ms         float64 `json:"p50Ms"`
	P99Ms         float64 `json:"p99Ms"`
	MaxMs         float64 `json:"maxMs"`
	BareP50Ms     float64 `json:"bareP50Ms"`   // a bare NOTIFY round trip meanwhile; 0 without a database
	ServerMB      float64 `json:"serverMB"`    // resident, of the provider's process
	ServerCores   float64 `json:"serverCores"` // processor seconds a second
}

// add takes a round of the case.
func (c *CaseReport) add(r *Recorder) {
	c.Rounds = append(c.Rounds, r.round())
	c.all.Merge(&r.hist)
	if c.rate == nil {
		c.rate = map[int]int64{}
	}
	for at, n := range r.rate {
		c.rate[at] += n
	}
}

// finish fills what follows from the rounds.
func (c *CaseReport) finish() {
	m := Round{Count: c.all.Count(), MaxMs: millis(c.all.Max())}
	of := func(figure func(Round) float64) float64 {
		var values []float64
		for _, r := range c.Rounds {
			if r.Count > 0 {
				values = append(values, figure(r))
			}
		}
		return Median(values)
	}
	for _, r := range c.Rounds {
		m.Seconds += r.Seconds
		for name := range r.Facts {
			if m.Facts == nil {
				m.Facts = map[string]float64{}
			}
			m.Facts[name] = 0
		}
	}
	for name := range m.Facts {
		m.Facts[name] = of(func(r Round) float64 { return r.Facts[name] })
	}
	m.PerSecond, m.P50Ms = of(func(r Round) float64 { return r.PerSecond }), of(func(r Round) float64 { return r.P50Ms })
	m.P90Ms, m.P99Ms = of(func(r Round) float64 { return r.P90Ms }), of(func(r Round) float64 { return r.P99Ms })
	c.Medians = m
	c.Distribution = c.all.Points()
	c.OverTime = []Moment{}
	for _, at := range slices.Sorted(maps.Keys(c.rate)) {
		c.OverTime = append(c.OverTime, Moment{float64(at) * tick.Seconds(), float64(c.rate[at]) / tick.Seconds()})
	}
}

// The figures that a ratio compares.
const (
	figureRate = "perSecond"
	figureP50  = "p50"
	figureP99  = "p99"
)

// ratio compares two cases, round by round (Y4).
func ratio(of, to *CaseReport, figure string) Ratio {
	read := map[string]func(Round) float64{
		figureRate: func(r Round) float64 { return r.PerSecond },
		figureP50:  func(r Round) float64 { return r.P50Ms },
		figureP99:  func(r Round) float64 { return r.P99Ms },
	}[figure]
	out := Ratio{Case: of.Name, To: to.Name, Figure: figure, Rounds: []float64{}}
	for i := range min(len(of.Rounds), len(to.Rounds)) {
		if above, below := read(of.Rounds[i]), read(to.Rounds[i]); above > 0 && below > 0 {
			out.Rounds = append(out.Rounds, above/below)
		}
	}
	out.Median = Median(out.Rounds)
	return out
}

// compare adds the ratio of two cases by name; it adds nothing when one of them measured nothing.
func (r *Report) compare(of, to, figure string) {
	a, b := r.find(of), r.find(to)
	if a == nil || b == nil {
		return
	}
	if q := ratio(a, b, figure); len(q.Rounds) > 0 {
		r.Ratios = append(r.Ratios, q)
	}
}

func (r *Report) find(name string) *CaseReport {
	for _, c := range r.Cases {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (r *Report) fact(name string, value float64, unit string) {
	r.Facts = append(r.Facts, Fact{name, value, unit})
}

// Measured reports whether there is anything to tell.
func (r *Report) Measured() bool {
	return len(r.Intervals) > 0 || slices.ContainsFunc(r.Cases, func(c *CaseReport) bool { return c.Medians.Count > 0 })
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// Print writes the tables.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	cases := grid{{"case", "rounds", "count", "a second", "p50 ms", "p90 ms", "p99 ms", "max ms"}}
	for _, c := range r.Cases {
		if c.Medians.Count == 0 {
			continue
		}
		name, m := c.Name, c.Medians
		if c.Baseline {
			name = "(" + name + ")"
		}
		cases.add(name, fmt.Sprint(len(c.Rounds)), fmt.Sprint(m.Count), number(m.PerSecond), number(m.P50Ms), number(m.P90Ms), number(m.P99Ms), number(m.MaxMs))
	}
	cases.write(&b, 1)
	if len(r.Ratios) > 0 {
		ratios := grid{{"ratio of", "to", "by", "median", "least", "most"}}
		for _, q := range r.Ratios {
			ratios.add(q.Case, q.To, q.Figure, number(q.Median), number(slices.Min(q.Rounds)), number(slices.Max(q.Rounds)))
		}
		b.WriteByte('\n')
		ratios.write(&b, 3)
	}
	if len(r.Facts) > 0 {
		var facts grid
		for _, f := range r.Facts {
			facts.add(f.Name, number(f.Value)+" "+f.Unit)
		}
		b.WriteByte('\n')
		facts.write(&b, 2)
	}
	b.WriteString("\nFigures are medians of the rounds, count and max of all of them; (in brackets) a baseline of the same run.\n")
	fmt.Fprintf(&b, "Generator on %s.\n", r.Machine)
	for _, note := range r.Notes {
		b.WriteString(note + "\n")
	}
	if r.Interrupted {
		b.WriteString("The run was interrupted: this is what it had measured.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// grid is a table of ASCII text.
type grid [][]string

func (g *grid) add(cells ...string) { *g = append(*g, cells) }

// write pads the cells; words, the first so many columns, to the right, and numbers to the left.
func (g grid) write(b *strings.Builder, words int) {
	var widths []int
	for _, row := range g {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range g {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len(cell))
			if i < words {
				line += cell + pad + "  "
			} else {
				line += pad + cell + "  "
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// number has three digits that say something.
func number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
