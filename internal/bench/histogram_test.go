package bench

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var durations = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
	// As likely short as long.
	exponent := rapid.Float64Range(0, 12).Draw(t, "exponent")
	return time.Duration(math.Pow(10, exponent))
}), 1, 400)

func histogramOf(values []time.Duration) *Histogram {
	var h Histogram
	for _, d := range values {
		h.Add(d)
	}
	return &h
}

// nearestRank is the value that at least the share q is not above.
func nearestRank(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}

func TestY1_QuantileIsNearlyTheNearestRank(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := durations.Draw(t, "values")
		q := rapid.SampledFrom([]float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1}).Draw(t, "q")
		h := histogramOf(values)
		sorted := slices.Sorted(slices.Values(values))
		want, got := nearestRank(sorted, q), h.Quantile(q)
		if most := max(time.Duration(float64(want)*1.01)+1, time.Microsecond); got < want || got > most {
			t.Fatalf("quantile %g is %v, want %v to %v", q, got, want, most)
		}
		if h.Max() != sorted[len(sorted)-1] || h.Quantile(1) != h.Max() || h.Count() != int64(len(values)) {
			t.Fatalf("max %v, quantile of all %v, count %d of %v", h.Max(), h.Quantile(1), h.Count(), sorted)
		}
	})
}

func TestY1_EmptyHistogram(t *testing.T) {
	t.Parallel()
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 || len(h.Points()) != 0 {
		t.Errorf("an empty histogram says %v, %v, %v", h.Quantile(0.5), h.Max(), h.Points())
	}
}

func TestY2_MergedIsRecordedIntoOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := durations.Draw(t, "a"), durations.Draw(t, "b")
		merged, one := histogramOf(a), histogramOf(append(slices.Clone(a), b...))
		merged.Merge(histogramOf(b))
		if !slices.Equal(merged.Points(), one.Points()) || merged.Count() != one.Count() || merged.Max() != one.Max() {
			t.Fatalf("merged %v, in one %v", merged.Points(), one.Points())
		}
		sum := int64(0)
		for _, p := range merged.Points() {
			sum += p.Count
		}
		if sum != merged.Count() {
			t.Fatalf("%d in points, %d counted", sum, merged.Count())
		}
	})
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		before := slices.Clone(c.values)
		if got := Median(c.values); got != c.want || !slices.Equal(before, c.values) {
			t.Errorf("the median of %v is %g, want %g; afterwards they are %v", before, got, c.want, c.values)
		}
	}
}
