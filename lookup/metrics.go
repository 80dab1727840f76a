package lookup

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what the provider does. No label holds anything a client chose.
type metrics struct {
	opens      *prometheus.CounterVec // by kind: new, repeated
	refusals   *prometheus.CounterVec // by endpoint and code
	sessions   *prometheus.GaugeVec   // by service
	retained   *prometheus.GaugeVec   // by service
	gates      prometheus.Histogram   // bodies asked for, by statement of the gate
	gatesAgain prometheus.Counter
	gatesWhole prometheus.Counter
}

func newMetrics(r prometheus.Registerer, q *quotas, t *turnstile) (*metrics, error) {
	m := &metrics{
		opens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_opens_total", Help: "Opens answered with a first batch, by kind: new or repeated.",
		}, []string{"kind"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_refusals_total", Help: "Requests refused, by endpoint and error code.",
		}, []string{"endpoint", "code"}),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "overlayd_lookup_sessions", Help: "Sessions held in the whole deployment, a few seconds ago, by service.",
		}, []string{"service"}),
		retained: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "overlayd_lookup_retained_bytes", Help: "First bodies and requests that those sessions keep, in bytes, by service.",
		}, []string{"service"}),
		gates: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "overlayd_lookup_gate_batch", Help: "Bodies asked for in one statement of the gate.", Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		gatesAgain: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "overlayd_lookup_gate_again_total", Help: "Bodies asked for by themselves, after the statement that they shared with others failed.",
		}),
		gatesWhole: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "overlayd_lookup_gate_whole_total", Help: "Bodies for which the gate looked at the session itself: it was new here, something of its service had ended, or its feed has prohibitions or narrowed readers.",
		}),
	}
	turns := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "overlayd_lookup_signatures_waiting", Help: "Requests and answers that wait for a processor to verify or sign them.",
	}, func() float64 { return float64(t.waiting()) })
	if r == nil {
		return m, nil
	}
	for _, c := range append(q.collectors(), m.opens, m.refusals, m.sessions, m.retained, m.gates, m.gatesAgain, m.gatesWhole, turns) {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("lookup: register metrics: %w", err)
		}
	}
	return m, nil
}
