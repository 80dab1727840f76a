package livefeed

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one store. Labels are feed names, which operators choose: their number is bounded.
type metrics struct {
	groups, retries, drained *prometheus.CounterVec
	batch, commitSeconds     *prometheus.HistogramVec
	notifications            prometheus.Counter
	listenerRestarts         prometheus.Counter
	listening, waiters       prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, pool, writer *pgxpool.Pool) (*metrics, error) {
	const ns, sub = "overlayd", "livefeed"
	feed := []string{"feed"}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}
	}
	m := &metrics{
		groups:  prometheus.NewCounterVec(counter("groups_total", "Groups committed by this process, expiries included."), feed),
		retries: prometheus.NewCounterVec(counter("commit_retries_total", "Commits that failed and were tried again."), feed),
		drained: prometheus.NewCounterVec(counter("timers_drained_total", "Row expiries logged by this process."), feed),
		batch: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "batch_groups",
			Help: "Groups in one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 11)}, feed),
		commitSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "commit_seconds",
			Help: "Seconds from taking a batch of groups to its commit, retries included.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}, feed),
		notifications:    prometheus.NewCounter(counter("notifications_total", "Notifications received.")),
		listenerRestarts: prometheus.NewCounter(counter("listener_restarts_total", "Listening connections lost and replaced.")),
		listening: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "listening",
			Help: "1 while the listening connection is up."}),
		waiters: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "waiters",
			Help: "Waiters registered in this process."}),
	}
	list := []prometheus.Collector{m.groups, m.retries, m.drained, m.batch, m.commitSeconds, m.notifications, m.listenerRestarts, m.listening, m.waiters}
	for name, p := range map[string]*pgxpool.Pool{"reads": pool, "writer": writer} {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "pool_waits_total",
			Help: "Acquisitions that had to wait for a free connection.", ConstLabels: prometheus.Labels{"pool": name}},
			func() float64 { return float64(p.Stat().EmptyAcquireCount()) }))
	}
	if r == nil {
		return m, nil
	}
	for i, c := range list {
		if err := r.Register(c); err != nil {
			for _, done := range list[:i] {
				r.Unregister(done)
			}
			return nil, err
		}
	}
	return m, nil
}
