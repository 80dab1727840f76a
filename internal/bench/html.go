package bench

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of a picture.
const (
	pictureWidth  = 24 * vg.Centimeter
	pictureHeight = 11 * vg.Centimeter
)

var page = template.Must(template.New("report").Funcs(template.FuncMap{"number": number}).Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>overlayd bench {{.R.Command}}</title>
<style>
body { font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
.baseline { color: #666; }
svg { max-width: 100%; height: auto; }
.legend { columns: 2; list-style: none; padding: 0; }
.legend span { display: inline-block; width: 2em; margin-right: .6em; vertical-align: middle; border-top: 3px solid; }
.legend .dashed { border-top-style: dashed; }
</style>
</head>
<body>
<h1>overlayd bench {{.R.Command}}</h1>
<p>Began {{.R.Began.Format "2006-01-02 15:04:05 MST"}}, took {{number .R.Seconds}} s{{if .R.Version}}, overlayd {{.R.Version}}{{end}}; generator on {{.R.Machine}}.</p>
{{range .R.Notes}}<p><strong>{{.}}</strong></p>
{{end}}{{if .R.Interrupted}}<p><strong>The run was interrupted: this is what it had measured.</strong></p>{{end}}
{{if or .R.Lost .R.Doubled}}<p><strong>Lost: {{.R.Lost}}, doubled: {{.R.Doubled}}. Both must be 0.</strong></p>{{end}}
<table>
<tr><th>case</th><th>rounds</th><th>count</th><th>a second</th><th>p50 ms</th><th>p90 ms</th><th>p99 ms</th><th>max ms</th></tr>
{{range .R.Cases}}{{if .Medians.Count}}<tr{{if .Baseline}} class="baseline"{{end}}><td>{{.Name}}</td><td>{{len .Rounds}}</td><td>{{.Medians.Count}}</td><td>{{number .Medians.PerSecond}}</td><td>{{number .Medians.P50Ms}}</td><td>{{number .Medians.P90Ms}}</td><td>{{number .Medians.P99Ms}}</td><td>{{number .Medians.MaxMs}}</td></tr>
{{end}}{{end}}</table>
<p>Figures are medians of the rounds, count and maximum of all of them; baselines of the same run are grey.</p>
{{if .R.Ratios}}<table class="words">
<tr><th>ratio of</th><th>to</th><th>by</th><th>median</th><th>rounds</th></tr>
{{range .R.Ratios}}<tr><td>{{.Case}}</td><td>{{.To}}</td><td>{{.Figure}}</td><td>{{number .Median}}</td><td>{{range $i, $x := .Rounds}}{{if $i}}, {{end}}{{number $x}}{{end}}</td></tr>
{{end}}</table>{{end}}
{{if .R.Facts}}<table class="words">
{{range .R.Facts}}<tr><td>{{.Name}}</td><td>{{number .Value}}</td><td>{{.Unit}}</td></tr>
{{end}}</table>{{end}}
{{range .Pictures}}<h2>{{.Title}}</h2>
{{.SVG}}
<ul class="legend">
{{range .Legend}}<li><span{{if .Dashed}} class="dashed"{{end}} style="border-color: {{.Color}}"></span>{{.Name}}</li>
{{end}}</ul>
{{end}}
<h2>Settings</h2>
<table class="words">
{{range $name, $value := .R.Settings}}<tr><td>{{$name}}</td><td>{{$value}}</td></tr>
{{end}}</table>
</body>
</html>
`))

// picture is a plot. Its legend is text of the page: the plot does not know how wide the browser's letters are.
type picture struct {
	Title  string
	SVG    template.HTML // of our own drawing
	Legend []entry
}

type entry struct {
	Name   string
	Color  string
	Dashed bool
}

// palette has a colour for each case of a usual run.
var palette = []color.RGBA{
	{0x1f, 0x77, 0xb4, 0xff}, {0xff, 0x7f, 0x0e, 0xff}, {0x2c, 0xa0, 0x2c, 0xff}, {0xd6, 0x27, 0x28, 0xff}, {0x94, 0x67, 0xbd, 0xff}, {0x8c, 0x56, 0x4b, 0xff},
	{0xe3, 0x77, 0xc2, 0xff}, {0x7f, 0x7f, 0x7f, 0xff}, {0xbc, 0xbd, 0x22, 0xff}, {0x17, 0xbe, 0xcf, 0xff}, {0x00, 0x00, 0x00, 0xff}, {0x1b, 0x2a, 0x8c, 0xff},
}

// WriteHTML writes the report as one page for people (Y7).
func (r *Report) WriteHTML(w io.Writer) error {
	var pictures []picture
	for _, draw := range []func() (picture, error){r.distribution, r.overTime, r.intervals} {
		p, err := draw()
		if err != nil {
			return fmt.Errorf("draw the report: %w", err)
		}
		if p.SVG != "" {
			pictures = append(pictures, p)
		}
	}
	if err := page.Execute(w, struct {
		R        *Report
		Pictures []picture
	}{r, pictures}); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// distribution draws what share of a case took at most how long.
func (r *Report) distribution() (picture, error) {
	d := newDrawing("Latency distribution", "at most so many milliseconds (logarithmic)", "share")
	d.plot.Y.Min, d.plot.Y.Max = 0, 1
	for i, c := range r.Cases {
		var line plotter.XYs
		sum := int64(0)
		for _, at := range c.Distribution {
			x := max(at.UpToMs, 1e-3) // a logarithm needs more than 0
			if len(line) == 0 {
				line = append(line, plotter.XY{X: x, Y: 0})
			}
			sum += at.Count
			line = append(line, plotter.XY{X: x, Y: float64(sum) / float64(c.Medians.Count)})
		}
		if err := d.add(i, c.Name, c.Baseline, line); err != nil {
			return picture{}, err
		}
	}
	logarithmic(&d.plot.X)
	return d.render()
}

// overTime draws how many of each case ended in a second, over the run. A case that pauses has a gap.
func (r *Report) overTime() (picture, error) {
	d := newDrawing("Throughput over time", "seconds of the run", "a second (logarithmic)")
	for i, c := range r.Cases {
		var line plotter.XYs
		for _, m := range c.OverTime {
			if n := len(line); n > 0 && m.Second-line[n-1].X > 4*tick.Seconds() {
				if err := d.add(i, c.Name, c.Baseline, line); err != nil {
					return picture{}, err
				}
				line = nil
			}
			line = append(line, plotter.XY{X: m.Second, Y: m.PerSecond})
		}
		if err := d.add(i, c.Name, c.Baseline, line); err != nil {
			return picture{}, err
		}
	}
	logarithmic(&d.plot.Y)
	return d.render()
}

// intervals draws a soak's latency.
func (r *Report) intervals() (picture, error) {
	d := newDrawing("Latency over time", "seconds of the run", "milliseconds")
	d.plot.Y.Min = 0
	for i, of := range []struct {
		name  string
		value func(Interval) float64
	}{
		{"p50", func(i Interval) float64 { return i.P50Ms }},
		{"p99", func(i Interval) float64 { return i.P99Ms }},
		{bareNotify + ", p50", func(i Interval) float64 { return i.BareP50Ms }},
	} {
		var line plotter.XYs
		for _, at := range r.Intervals {
			line = append(line, plotter.XY{X: at.Second, Y: of.value(at)})
		}
		if err := d.add(i, of.name, i == 2, line); err != nil {
			return picture{}, err
		}
	}
	return d.render()
}

// drawing is a picture that is being made.
type drawing struct {
	title  string
	plot   *plot.Plot
	legend []entry
}

// newDrawing is an empty one in the page's kind of letters.
func newDrawing(title, x, y string) *drawing {
	p := plot.New()
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant = "Sans"
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Add(plotter.NewGrid())
	return &drawing{title: title, plot: p}
}

// logarithmic makes an axis of whole decades, so that there are ticks.
func logarithmic(a *plot.Axis) {
	if a.Min > a.Max || a.Min <= 0 {
		return // nothing was drawn
	}
	if a.Min == a.Max {
		a.Max *= 2
	}
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	a.Min, a.Max = math.Pow(10, math.Floor(math.Log10(a.Min))), math.Pow(10, math.Ceil(math.Log10(a.Max)))
}

// add draws a line of case i, dashed for a baseline; a point alone gets a mark. A case may have several lines.
func (d *drawing) add(i int, name string, baseline bool, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	colour := palette[i%len(palette)]
	line.Color, line.Width = colour, vg.Points(1.5)
	if baseline {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	d.plot.Add(line)
	if len(points) == 1 {
		marks.Color, marks.Shape = colour, draw.CircleGlyph{}
		d.plot.Add(marks)
	}
	if of := (entry{name, fmt.Sprintf("#%02x%02x%02x", colour.R, colour.G, colour.B), baseline}); !slices.Contains(d.legend, of) {
		d.legend = append(d.legend, of)
	}
	return nil
}

// render makes SVG that can stand in a page; of an empty plot nothing.
func (d *drawing) render() (picture, error) {
	if len(d.legend) == 0 {
		return picture{}, nil
	}
	c := vgsvg.New(pictureWidth, pictureHeight)
	margin := vg.Points(18) // half of the last number on the axis
	d.plot.Draw(draw.Crop(draw.New(c), 0, -margin, 0, -vg.Points(6)))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return picture{}, err
	}
	_, svg, found := strings.Cut(b.String(), "<svg")
	if !found {
		return picture{}, fmt.Errorf("the plot %q is no SVG", d.title)
	}
	return picture{d.title, template.HTML("<svg" + svg), d.legend}, nil
}
