package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func plan(rounds int) *Plan {
	return &Plan{Rounds: rounds, Time: time.Second, Count: 3, WarmUp: time.Millisecond}
}

func emptyReport() *Report { return begin("test", &Target{}, map[string]any{}) }

func TestY3_EveryCaseOnceInARoundAndNoneAlwaysFirst(t *testing.T) {
	t.Parallel()
	var ran []string
	of := func(name string) oneCase {
		return oneCase{name: name, run: func(_ context.Context, _ time.Duration, _ int, rec *Recorder) error {
			ran = append(ran, name)
			rec.Start()
			rec.Note(time.Duration(len(ran)) * time.Millisecond)
			rec.Stop()
			return nil
		}}
	}
	r := emptyReport()
	var told []string
	p := plan(3)
	p.Progress = func(done, all int, what string) { told = append(told, fmt.Sprintf("%d/%d %s", done, all, what)) }
	if err := p.measure(t.Context(), r, []oneCase{of("a"), of("b"), of("c")}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ran, ""), "abc"+"abc"+"bca"+"cab"; got != want {
		t.Errorf("the order was %s, want %s", got, want)
	}
	for i, want := range [][]float64{{4, 9, 11}, {5, 7, 12}, {6, 8, 10}} { // what came after the warm-up
		c := r.Cases[i]
		for round, ms := range want {
			if got := c.Rounds[round].MaxMs; got != ms {
				t.Errorf("round %d of %s has %g ms, want %g", round, c.Name, got, ms)
			}
		}
		if c.Medians.Count != 3 || c.Medians.MaxMs != slices.Max(want) || math.Abs(c.Medians.P50Ms-want[1]) > 0.2 {
			t.Errorf("%s comes to %+v", c.Name, c.Medians)
		}
	}
	if len(told) != 12 || told[0] != "0/12 warm-up: a" || told[11] != "11/12 round 3 of 3: b" {
		t.Errorf("told %q", told)
	}
}

func TestY4_CryptoFloorIsOfTheSameRound(t *testing.T) {
	t.Parallel()
	processors := float64(runtime.NumCPU())
	r := emptyReport()
	r.Cases = []*CaseReport{
		{Name: "signed", Rounds: []Round{{P50Ms: 30}, {P50Ms: 80}, {P50Ms: 50}}},
		{Name: "public", Rounds: []Round{{P50Ms: 10}, {P50Ms: 20}, {}}},
		// 10 readers x 2 x ms / processors: 10, 20 and 5 ms.
		{Name: bareCrypto, Rounds: []Round{{P50Ms: processors / 2}, {P50Ms: processors}, {P50Ms: processors / 4}}, Medians: Round{Count: 3, P50Ms: processors / 2}},
	}
	r.cryptoFloor("signed", "public", 10, 200)
	if len(r.Ratios) != 2 || !slices.Equal(r.Ratios[0].Rounds, []float64{3, 4, 10}) || !slices.Equal(r.Ratios[1].Rounds, []float64{1.5, 2}) {
		t.Errorf("the ratios are %+v, want 3, 4, 10 of the floor alone and 1.5, 2 of public and floor", r.Ratios)
	}
	if len(r.Facts) != 2 || r.Facts[0].Value != 10 || r.Facts[1].Value != 2 {
		t.Errorf("the facts are %+v, want 10 ms a change and 2 times the processors", r.Facts)
	}
}

func TestY4_RatioIsTakenWithinARound(t *testing.T) {
	t.Parallel()
	a := &CaseReport{Name: "a", Rounds: []Round{{Count: 1, P50Ms: 10}, {Count: 1, P50Ms: 200}, {Count: 0}, {Count: 1, P50Ms: 6}, {Count: 1, P50Ms: 5}}}
	b := &CaseReport{Name: "b", Rounds: []Round{{Count: 1, P50Ms: 5}, {Count: 1, P50Ms: 100}, {Count: 1, P50Ms: 1}, {Count: 1, P50Ms: 2}}}
	q := ratio(a, b, figureP50)
	if !slices.Equal(q.Rounds, []float64{2, 2, 3}) || q.Median != 2 {
		t.Errorf("the ratio is %+v", q)
	}
	r := emptyReport()
	r.Cases = []*CaseReport{a, b, {Name: "none"}}
	r.compare("a", "none", figureP50)
	r.compare("a", "nobody", figureP50)
	if len(r.Ratios) != 0 {
		t.Errorf("a ratio to nothing is there: %+v", r.Ratios)
	}
}

func TestY6_AnInterruptedRunTellsWhatItMeasured(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	c := oneCase{name: "a", run: func(ctx context.Context, _ time.Duration, _ int, rec *Recorder) error {
		if runs++; runs == 4 { // the third round, after one measurement
			rec.Note(time.Millisecond)
			cancel()
			return nil
		}
		rec.Note(time.Second)
		return nil
	}}
	idle := oneCase{name: "b", run: func(context.Context, time.Duration, int, *Recorder) error { return nil }}
	r := emptyReport()
	if err := plan(5).measure(ctx, r, []oneCase{c, idle}); err != nil {
		t.Fatal(err)
	}
	if !r.Interrupted || !r.Measured() || len(r.Cases[0].Rounds) != 3 || r.Cases[0].Medians.Count != 3 {
		t.Errorf("interrupted %t, %d rounds, %+v", r.Interrupted, len(r.Cases[0].Rounds), r.Cases[0].Medians)
	}
	none := emptyReport()
	if err := plan(5).measure(ctx, none, []oneCase{c}); err != nil || none.Measured() || !none.Interrupted {
		t.Errorf("with nothing measured: %v, measured %t, interrupted %t", err, none.Measured(), none.Interrupted)
	}
}

func TestMeasure_TheFirstErrorEndsIt(t *testing.T) {
	t.Parallel()
	fault := errors.New("a fault")
	r := emptyReport()
	err := plan(5).measure(t.Context(), r, []oneCase{{name: "a", run: func(context.Context, time.Duration, int, *Recorder) error { return fault }}})
	if !errors.Is(err, fault) || r.Measured() {
		t.Errorf("%v, measured %t", err, r.Measured())
	}
}

func TestPlan_Check(t *testing.T) {
	t.Parallel()
	good := DefaultPlan()
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(*Plan){
		func(p *Plan) { p.Rounds = 0 }, func(p *Plan) { p.Time = 0 }, func(p *Plan) { p.Count = 0 }, func(p *Plan) { p.WarmUp = -1 },
	} {
		p := DefaultPlan()
		spoil(&p)
		if err := p.Check(); err == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}
