package bench

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
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
th:first-child, td:first-child { text-align: left; }
.baseline { color: #666; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>overlayd bench {{.R.Command}}</h1>
<p>Began {{.R.Began.Format "2006-01-02 15:04:05 MST"}}, took {{number .R.Seconds}} s{{if .R.Version}}, overlayd {{.R.Version}}{{end}}; generator on {{.R.Machine.OS}}/{{.R.Machine.Arch}} with {{.R.Machine.CPUs}} processors, {{.R.Machine.Go}}{{if .R.Machine.Local}}, the provider on the same machine{{end}}.</p>
{{if .R.Interrupted}}<p><strong>The run was interrupted: this is what it had measured.</strong></p>{{end}}
{{if or .R.Lost .R.Doubled}}<p><strong>Lost: {{.R.Lost}}, doubled: {{.R.Doubled}}. Both must be 0.</strong></p>{{end}}
<table>
<tr><th>case</th><th>rounds</th><th>count</th><th>a second</th><th>p50 ms</th><th>p90 ms</th><th>p99 ms</th><th>max ms</th></tr>
{{range .R.Cases}}{{if .Medians.Count}}<tr{{if .Baseline}} class="baseline"{{end}}><td>{{.Name}}</td><td>{{len .Rounds}}</td><td>{{.Medians.Count}}</td><td>{{number .Medians.PerSecond}}</td><td>{{number .Medians.P50Ms}}</td><td>{{number .Medians.P90Ms}}</td><td>{{number .Medians.P99Ms}}</td><td>{{number .Medians.MaxMs}}</td></tr>
{{end}}{{end}}</table>
<p>Figures are medians of the rounds, count and maximum of all of them; baselines of the same run are grey.</p>
{{if .R.Ratios}}<table>
<tr><th>ratio of</th><th>to</th><th>by</th><th>median</th><th>rounds</th></tr>
{{range .R.Ratios}}<tr><td>{{.Case}}</td><td>{{.To}}</td><td>{{.Figure}}</td><td>{{number .Median}}</td><td>{{range $i, $x := .Rounds}}{{if $i}}, {{end}}{{number $x}}{{end}}</td></tr>
{{end}}</table>{{end}}
{{if .R.Facts}}<table>
{{range .R.Facts}}<tr><td>{{.Name}}</td><td>{{number .Value}}</td><td>{{.Unit}}</td></tr>
{{end}}</table>{{end}}
{{range .Pictures}}<h2>{{.Title}}</h2>
{{.SVG}}
{{end}}
<h2>Settings</h2>
<table>
{{range $name, $value := .R.Settings}}<tr><td>{{$name}}</td><td>{{$value}}</td></tr>
{{end}}</table>
</body>
</html>
`))

type picture struct {
	Title string
	SVG   template.HTML // of our own drawing
}

// WriteHTML writes the report as one page for people (Y7).
func (r *Report) WriteHTML(w io.Writer) error {
	var pictures []picture
	for _, make := range []func() (picture, error){r.distribution, r.overTime, r.intervals} {
		p, err := make()
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
	p := newPlot()
	p.X.Label.Text, p.Y.Label.Text = "at most so many milliseconds (logarithmic)", "share"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	drawn := 0
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
		if len(line) == 0 {
			continue
		}
		drawn++
		if err := add(p, i, c.Name, c.Baseline, line); err != nil {
			return picture{}, err
		}
	}
	if drawn == 0 {
		return picture{}, nil
	}
	if p.X.Min == p.X.Max {
		p.X.Max *= 2
	}
	// Whole decades, so that there are ticks.
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(p.X.Min))), math.Pow(10, math.Ceil(math.Log10(p.X.Max)))
	p.Legend.Left, p.Legend.Top = true, true
	return render("Latency distribution", p)
}

// overTime draws how many of each case ended in a second, over the run. A case that pauses has a gap.
func (r *Report) overTime() (picture, error) {
	p := newPlot()
	p.X.Label.Text, p.Y.Label.Text = "seconds of the run", "a second"
	p.Y.Min = 0
	drawn := 0
	for i, c := range r.Cases {
		name := c.Name
		var line plotter.XYs
		flush := func() error {
			if len(line) == 0 {
				return nil
			}
			drawn++
			err := add(p, i, name, c.Baseline, line)
			name, line = "", nil // one entry in the legend
			return err
		}
		for _, m := range c.OverTime {
			if n := len(line); n > 0 && m.Second-line[n-1].X > 4*tick.Seconds() {
				if err := flush(); err != nil {
					return picture{}, err
				}
			}
			line = append(line, plotter.XY{X: m.Second, Y: m.PerSecond})
		}
		if err := flush(); err != nil {
			return picture{}, err
		}
	}
	if drawn == 0 {
		return picture{}, nil
	}
	p.Legend.Top = true
	p.Y.Max *= 1.3 // room for the legend
	return render("Throughput over time", p)
}

// intervals draws a soak's latency.
func (r *Report) intervals() (picture, error) {
	if len(r.Intervals) == 0 {
		return picture{}, nil
	}
	p := newPlot()
	p.X.Label.Text, p.Y.Label.Text = "seconds of the run", "milliseconds"
	p.Y.Min = 0
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
		if err := add(p, i, of.name, false, line); err != nil {
			return picture{}, err
		}
	}
	p.Legend.Top = true
	p.Y.Max *= 1.3 // room for the legend
	return render("Latency over time", p)
}

// newPlot is an empty plot in the page's kind of letters.
func newPlot() *plot.Plot {
	p := plot.New()
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Legend.Padding = vg.Points(3)
	return p
}

// add draws a line, dashed for a baseline; a point alone gets a mark.
func add(p *plot.Plot, i int, name string, baseline bool, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
	if baseline {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	p.Add(line)
	if len(points) == 1 {
		marks.Color, marks.Shape = plotutil.Color(i), draw.CircleGlyph{}
		p.Add(marks)
	}
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}

// render draws a plot as SVG that can stand in a page.
func render(title string, p *plot.Plot) (picture, error) {
	c := vgsvg.New(pictureWidth, pictureHeight)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return picture{}, err
	}
	_, svg, found := strings.Cut(b.String(), "<svg")
	if !found {
		return picture{}, fmt.Errorf("the plot %q is no SVG", title)
	}
	return picture{title, template.HTML("<svg" + svg)}, nil
}
