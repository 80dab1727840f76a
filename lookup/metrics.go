package lookup

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what the provider does. No label holds anything a client chose.
type metrics struct {
	opens    *prometheus.CounterVec // by kind: new, repeated
	refusals *prometheus.CounterVec // by endpoint and code
	waiters  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		opens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_opens_total", Help: "Opens answered with a first batch, by kind: new or repeated.",
		}, []string{"kind"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_refusals_total", Help: "Requests refused, by endpoint and error code.",
		}, []string{"endpoint", "code"}),
		waiters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "overlayd_lookup_waiting_polls", Help: "Long polls now waiting for a change.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.opens, m.refusals, m.waiters} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("lookup: register metrics: %w", err)
		}
	}
	return m, nil
}
