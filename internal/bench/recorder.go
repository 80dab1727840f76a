package bench

import (
	"sync"
	"time"
)

// tick is the width of a point of the throughput over time.
const tick = 250 * time.Millisecond

// Recorder takes what one case measures in one round. It is safe for concurrent use.
type Recorder struct {
	began time.Time // of the run: what times are counted from

	mu   sync.Mutex
	hist Histogram
	rate map[int]int64 // tick of the run -> how many ended in it
	// from and to bound the time the load took; what is counted is counted over that.
	from, to time.Time
	facts    map[string]float64
}

// NewRecorder is an empty one of a run that began then.
func NewRecorder(began time.Time) *Recorder {
	return &Recorder{began: began, rate: map[int]int64{}, facts: map[string]float64{}}
}

// Start says that what is measured begins now: after what had to be made ready.
func (r *Recorder) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = time.Now()
}

// Stop says that it has ended.
func (r *Recorder) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = time.Now()
}

// Note counts something that took so long and ended now.
func (r *Recorder) Note(took time.Duration) {
	at := int(time.Since(r.began) / tick)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hist.Add(took)
	r.rate[at]++
}

// Fact keeps another figure of this round.
func (r *Recorder) Fact(name string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts[name] = value
}

// seconds is how long the load took.
func (r *Recorder) seconds() float64 {
	from, to := r.from, r.to
	if from.IsZero() {
		return 0
	}
	if to.IsZero() {
		to = time.Now()
	}
	return to.Sub(from).Seconds()
}

// round is what the recorder comes to.
func (r *Recorder) round() Round {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seconds()
	out := Round{
		Count: r.hist.Count(), Seconds: s,
		P50Ms: millis(r.hist.Quantile(0.5)), P90Ms: millis(r.hist.Quantile(0.9)), P99Ms: millis(r.hist.Quantile(0.99)),
		MaxMs: millis(r.hist.Max()), Facts: r.facts,
	}
	if s > 0 {
		out.PerSecond = float64(out.Count) / s
	}
	return out
}
