package bench

import (
	"math"
	"slices"
	"time"
)

// growth is the ratio of two neighbouring bounds of a histogram, from smallest on: 1 percent (Y1).
const (
	growth   = 1.01
	smallest = time.Microsecond
)

// Histogram counts durations in memory that does not grow with their number. Bucket i holds what is above the bound of
// bucket i-1 and at most its own, smallest x growth^i. The zero value is empty. It is not safe for concurrent use.
type Histogram struct {
	buckets []int64
	count   int64
	sum     float64 // seconds
	max     time.Duration
}

func bucketOf(d time.Duration) int {
	if d <= smallest {
		return 0
	}
	i := int(math.Ceil(math.Log(float64(d)/float64(smallest)) / math.Log(growth)))
	for bound(i) < d { // a logarithm is not exact
		i++
	}
	for bound(i-1) >= d {
		i--
	}
	return i
}

func bound(i int) time.Duration {
	return time.Duration(float64(smallest) * math.Pow(growth, float64(i)))
}

// Add counts one duration.
func (h *Histogram) Add(d time.Duration) {
	i := bucketOf(d)
	if i >= len(h.buckets) {
		h.buckets = append(h.buckets, make([]int64, i+1-len(h.buckets))...)
	}
	h.buckets[i]++
	h.count++
	h.sum += d.Seconds()
	h.max = max(h.max, d)
}

// Merge adds what other counted (Y2).
func (h *Histogram) Merge(other *Histogram) {
	if n := len(other.buckets) - len(h.buckets); n > 0 {
		h.buckets = append(h.buckets, make([]int64, n)...)
	}
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
	h.sum += other.sum
	h.max = max(h.max, other.max)
}

// Count is how many durations were added.
func (h *Histogram) Count() int64 { return h.count }

// Max is the longest, 0 of an empty one.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is the duration that the share q of all, 0..1, is not above (nearest rank, Y1); 0 of an empty one.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(int64(math.Ceil(q*float64(h.count))), 1)
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 {
			return min(bound(i), h.max)
		}
	}
	return h.max
}

// Point is a bucket that is not empty.
type Point struct {
	UpToMs float64 `json:"upToMs"` // its bound, in milliseconds
	Count  int64   `json:"count"`
}

// Points are the buckets that are not empty, in order.
func (h *Histogram) Points() []Point {
	points := []Point{}
	for i, n := range h.buckets {
		if n > 0 {
			points = append(points, Point{millis(min(bound(i), h.max)), n})
		}
	}
	return points
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Median is the middle of the values, or the mean of the two middle ones; 0 of none.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	switch n := len(sorted); {
	case n == 0:
		return 0
	case n%2 == 1:
		return sorted[n/2]
	default:
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
}
