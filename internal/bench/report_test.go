package bench

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// sampleReport is one with everything in it, and text that would be markup.
func sampleReport(t *testing.T) *Report {
	t.Helper()
	r := emptyReport()
	r.Settings = map[string]any{"service": `<script src="https://example.com/x.js">`}
	for i, name := range []string{"delivery", "baseline & more"} {
		c := &CaseReport{Name: name, Baseline: i == 1}
		for range 5 {
			rec := NewRecorder(time.Now().Add(-time.Minute))
			rec.Start()
			for n := range 100 {
				rec.Note(time.Duration(n*(i+1)) * time.Millisecond)
			}
			rec.Stop()
			rec.Fact(factCores, 0.5)
			c.add(rec)
		}
		c.finish()
		r.Cases = append(r.Cases, c)
	}
	r.Cases = append(r.Cases, &CaseReport{Name: "unmeasured"})
	r.Cases[2].finish()
	r.compare("delivery", "baseline & more", figureP50)
	r.caseFacts()
	for n := range 9 {
		r.Intervals = append(r.Intervals, Interval{Second: float64(n), P50Ms: 2, P99Ms: float64(n + 1), ServerMB: 40})
	}
	r.trend()
	return r
}

func TestY7_PageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := sampleReport(t).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if n := strings.Count(page, "<svg"); n != 3 {
		t.Errorf("%d pictures, want 3", n)
	}
	for _, want := range []string{"Latency distribution", "Throughput over time", "Latency over time", "delivery", "baseline &amp; more", "&lt;script"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "unmeasured") {
		t.Error("a case that measured nothing is shown")
	}
	// The names of XML's own are no addresses.
	rest := regexp.MustCompile(`xmlns(:\w+)?="[^"]*"`).ReplaceAllString(page, "")
	if bad := regexp.MustCompile(`(?i)<(script|link|img|iframe|object)|<[^>]*\b(src|href)=|url\(|@import`).FindAllString(rest, -1); bad != nil {
		t.Errorf("the page has %q", bad)
	}
}

func TestY7_PageOfLittle(t *testing.T) {
	t.Parallel()
	one := emptyReport()
	one.Cases = []*CaseReport{{Name: "a"}}
	rec := NewRecorder(time.Now())
	rec.Note(0) // a logarithm has no 0
	one.Cases[0].add(rec)
	one.Cases[0].finish()
	for name, r := range map[string]*Report{"nothing": emptyReport(), "one that took no time": one} {
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(b.String(), "NaN") {
			t.Errorf("%s: the page has a NaN", name)
		}
	}
}

func TestReport_JSONIsReadBackTheSame(t *testing.T) {
	t.Parallel()
	r := sampleReport(t)
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got Report
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases { // what a program does not get
		c.all, c.rate = Histogram{}, nil
	}
	if !reflect.DeepEqual(&got, r) {
		t.Errorf("read back\n%+v\nwant\n%+v", got, *r)
	}
}

func TestReport_Tables(t *testing.T) {
	t.Parallel()
	r := sampleReport(t)
	r.Interrupted = true
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"case", "\ndelivery ", "\n(baseline & more) ", "\nratio of", "delivery: provider cores", "0.5 cores",
		"last third over first, p99", "4.00", "was interrupted",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "unmeasured") {
		t.Error("a case that measured nothing is shown")
	}
	if head, _, _ := strings.Cut(b.String(), "\n\n"); len(regexp.MustCompile(`(?m) 5 +500 `).FindAllString(head, -1)) != 2 {
		t.Errorf("5 rounds of 100 are not in the first table:\n%s", head)
	}
}

func TestEnded_LossIsAFailure(t *testing.T) {
	t.Parallel()
	for _, r := range []*Report{{Lost: 1}, {Doubled: 1}} {
		if _, err := ended(r, nil); err == nil || !strings.Contains(err.Error(), "both must be 0") {
			t.Errorf("%+v ends with %v", r, err)
		}
	}
	if _, err := ended(&Report{}, nil); err != nil {
		t.Error(err)
	}
}
