package lookup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// Usage is what clients hold of what [Quotas] let them.
type Usage struct {
	Services []ServiceUsage // of the whole deployment, by service and feed
	// Unavailable are the feeds of databases that did not answer, sorted: what their services hold is not among Services.
	Unavailable []string
	Node        NodeUsage // of this node alone
}

// ServiceUsage is what the sessions of one service retain. A service that is not offered any more, or that showed another
// feed before, is listed as long as sessions of it are held.
type ServiceUsage struct {
	Service, Feed                   string
	Sessions, MaxSessions           int64
	RetainedBytes, MaxRetainedBytes int64
}

// NodeUsage is what is going on at one node.
type NodeUsage struct {
	Waiters, MaxWaiters                 int               // polls that sleep
	Requests, MaxRequests               int               // bodies being built
	RequestsWaiting, MaxRequestsWaiting int               // requests that wait for their turn
	BodyBytes, MaxBodyBytes             int               // of bodies that their peers have not taken yet
	Clients, MaxClients                 int               // clients of whom it is remembered how fast they open
	Refusals                            map[string]uint64 // by the name of the quota in the configuration, since start
	Quotas                              Quotas            // all that are in force
}

// usageEvery is how often the gauges of what lasts are brought up to date: a scrape asks no database.
const usageEvery = 5 * time.Second

// usageWithin is how long a database may take where others are asked too.
const usageWithin = 10 * time.Second

// Usage reads what is in use. It costs one row a service, not one a session. It fails when no database answers.
func (p *Provider) Usage(ctx context.Context) (Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageWithin)
	defer cancel()
	services, errs := make([][]ServiceUsage, len(p.shards)), make([]error, len(p.shards))
	p.each(func(i int, d *shard) { services[i], errs[i] = d.usage(ctx) })
	if !slices.Contains(errs, nil) {
		return Usage{}, errors.Join(errs...)
	}
	all := Usage{Node: p.quotas.usage(), Services: slices.Concat(services...)}
	for i, d := range p.shards {
		if errs[i] == nil {
			continue
		}
		for _, feed := range d.feeds {
			all.Unavailable = append(all.Unavailable, feed.Name())
		}
	}
	slices.Sort(all.Unavailable)
	slices.SortStableFunc(all.Services, func(a, b ServiceUsage) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Feed, b.Feed))
	})
	return all, nil
}

// usage is that of the services of one database.
func (p *shard) usage(ctx context.Context) ([]ServiceUsage, error) {
	var names []string
	var feeds []int32
	for _, name := range p.names {
		if s := p.services[name]; s.shard == p {
			names, feeds = append(names, name), append(feeds, s.feed.ID())
		}
	}
	rows, err := p.pool.Query(ctx, `select coalesce(o.service, l.service), f.name, coalesce(l.sessions, 0), coalesce(l.bytes, 0)
		from unnest($1::text[], $2::integer[]) o (service, feed_id)
		full join lookup_ledger l on l.feed_id = o.feed_id and l.service = o.service
		join feed f on f.id = coalesce(o.feed_id, l.feed_id)
		where o.service is not null or l.sessions > 0
		order by coalesce(o.service, l.service) collate "C", f.name collate "C"`, names, feeds)
	if err != nil {
		return nil, fmt.Errorf("lookup: read the ledger: %w", err)
	}
	services, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (ServiceUsage, error) {
		u := ServiceUsage{MaxSessions: p.quotas.Sessions, MaxRetainedBytes: p.quotas.RetainedBytes}
		return u, r.Scan(&u.Service, &u.Feed, &u.Sessions, &u.RetainedBytes)
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: read the ledger: %w", err)
	}
	return services, nil
}

func (q *quotas) usage() NodeUsage {
	n := NodeUsage{
		Waiters: q.waiters.count(), MaxWaiters: q.Waiters,
		BodyBytes: q.bodies.count(), MaxBodyBytes: q.BodyBytes,
		Clients: q.opens.tracked(), MaxClients: q.Clients, Refusals: make(map[string]uint64), Quotas: q.Quotas,
	}
	n.Requests, n.RequestsWaiting = q.building()
	n.MaxRequests, n.MaxRequestsWaiting = q.mostBuilding()
	for name, count := range q.refused {
		n.Refusals[string(name)] = count.Load()
	}
	return n
}

// gaugeLoop keeps those of what lasts in the shard's database.
func (p *shard) gaugeLoop(ctx context.Context) {
	tick := time.NewTicker(usageEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := p.gauges(ctx); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "what sessions retain could not be read; its metrics are old", "database", p.label(), "cause", err.Error())
		}
	}
}

func (p *shard) gauges(ctx context.Context) error {
	services, err := p.usage(ctx)
	if err != nil {
		return err
	}
	sessions, bytes := make(map[string]int64), make(map[string]int64)
	for _, s := range services {
		sessions[s.Service] += s.Sessions
		bytes[s.Service] += s.RetainedBytes
	}
	for service := range sessions {
		p.metrics.sessions.WithLabelValues(service).Set(float64(sessions[service]))
		p.metrics.retained.WithLabelValues(service).Set(float64(bytes[service]))
	}
	return nil
}

// collectors are the metrics of the quotas, read as they stand when they are scraped.
func (q *quotas) collectors() []prometheus.Collector {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	all := []prometheus.Collector{
		gauge("overlayd_lookup_waiting_polls", "Long polls now waiting for a change.", q.waiters.count),
		gauge("overlayd_lookup_requests", "Bodies now being built.", func() int { taken, _ := q.building(); return taken }),
		gauge("overlayd_lookup_requests_waiting", "Requests now waiting for their turn to be built.", func() int { _, w := q.building(); return w }),
		gauge("overlayd_lookup_body_bytes", "Bytes of finished bodies that their peers have not taken yet.", q.bodies.count),
		gauge("overlayd_lookup_clients", "Clients of whom it is remembered how fast they open sessions.", q.opens.tracked),
	}
	for name, count := range q.refused {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "overlayd_lookup_quota_refusals_total", Help: "Requests refused by a quota, by its name in the configuration.",
			ConstLabels: prometheus.Labels{"quota": string(name)},
		}, func() float64 { return float64(count.Load()) }))
	}
	for name, limit := range q.limits() {
		g := prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "overlayd_lookup_quota_limit", Help: "The quotas in force, by their names in the configuration.",
			ConstLabels: prometheus.Labels{"quota": name},
		})
		g.Set(limit)
		all = append(all, g)
	}
	return all
}

func (q Quotas) limits() map[string]float64 {
	return map[string]float64{
		"opensPerSecond": q.OpensPerSecond, "openBurst": float64(q.OpenBurst),
		"serviceOpensPerSecond": q.ServiceOpensPerSecond, "serviceOpenBurst": float64(q.ServiceOpenBurst),
		"clients": float64(q.Clients), "waiters": float64(q.Waiters), "waitersPerClient": float64(q.WaitersPerClient),
		"requests": float64(q.Requests), "requestsWaiting": float64(q.RequestsWaiting), "requestWaitMs": float64(q.RequestWaitMs),
		"bodyBytes": float64(q.BodyBytes), "bodyBytesPerClient": float64(q.BodyBytesPerClient), "bodyBytesPerSecond": float64(q.BodyBytesPerSecond),
		"sessionsPerClient": float64(q.SessionsPerClient), "sessions": float64(q.Sessions), "retainedBytes": float64(q.RetainedBytes),
	}
}
