package livefeed

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one store. Labels are feed names, which operators choose: their number is bounded.
type metrics struct {
	groups, retries, drained *prometheus.CounterVec
	batch, commitSeconds     *prometheus.HistogramVec
	compacted, compactBusy   *prometheus.CounterVec
	compactSeconds           *prometheus.HistogramVec
	floorLag                 *prometheus.GaugeVec
	collected, vacuums       prometheus.Counter
	wakes, looks, followed   *prometheus.CounterVec
	tailGroups, tailBytes    *prometheus.GaugeVec
	notifications            prometheus.Counter
	listenerRestarts         prometheus.Counter
	listening, waiters       prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, pool, writer *pgxpool.Pool, w *Witness) (*metrics, error) {
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
		compacted: prometheus.NewCounterVec(counter("compacted_total", "Rows removed by this process, by kind: groups or versions."), []string{"feed", "kind"}),
		compactBusy: prometheus.NewCounterVec(counter("compact_busy_total",
			"Times that compaction did not get a lock in time and left the rest to its next round."), feed),
		compactSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "compact_seconds",
			Help: "Seconds of a round of compaction.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, feed),
		floorLag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "floor_lag_groups",
			Help: "Groups between the feed's floor and its head when it was last compacted: what sessions hold."}, feed),
		collected:        prometheus.NewCounter(counter("evidence_collected_total", "Evidence removed by this process because nothing referred to it.")),
		vacuums:          prometheus.NewCounter(counter("vacuums_total", "Explicit vacuums by this process.")),
		notifications:    prometheus.NewCounter(counter("notifications_total", "Notifications received.")),
		listenerRestarts: prometheus.NewCounter(counter("listener_restarts_total", "Listening connections lost and replaced.")),
		listening: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "listening",
			Help: "1 while the listening connection is up and a probe was heard on it."}),
		waiters: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "waiters",
			Help: "Waiters registered in this process."}),
	}
	m.wakes = prometheus.NewCounterVec(counter("wakes_total", "Wake-ups of waiters by this process; those that merged into one count once."), feed)
	m.looks = prometheus.NewCounterVec(counter("looks_total", "Statements that brought the end of a log up to date for all who asked."), feed)
	m.followed = prometheus.NewCounterVec(counter("followed_total",
		"Reads of the end of a log, by where the answer came from: memory, shared (one statement for all who asked) or alone."), []string{"feed", "source"})
	m.tailGroups = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tail_groups",
		Help: "Last groups of the feed that are kept in memory."}, feed)
	m.tailBytes = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tail_bytes",
		Help: "Bytes that the last groups of the feed take in memory, about."}, feed)
	list := []prometheus.Collector{m.wakes, m.looks, m.followed, m.tailGroups, m.tailBytes, m.groups, m.retries, m.drained, m.batch, m.commitSeconds,
		m.compacted, m.compactBusy, m.compactSeconds, m.floorLag, m.collected, m.vacuums, m.notifications, m.listenerRestarts, m.listening, m.waiters}
	list = append(list, prometheus.NewCounterFunc(counter("history_lost_total", "Epochs that this process broke because the database had lost history."),
		func() float64 { return float64(w.broke.Load()) }))
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

// begin shows a feed's counters from the start: the first failure of a series that is not there yet is no rise of it.
func (m *metrics) begin(feed string) {
	for _, c := range []*prometheus.CounterVec{m.groups, m.retries, m.drained, m.compactBusy, m.wakes, m.looks} {
		c.WithLabelValues(feed)
	}
	for _, source := range []string{"memory", "shared", "alone"} {
		m.followed.WithLabelValues(feed, source)
	}
}
