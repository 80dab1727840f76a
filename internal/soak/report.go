package soak

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// latencies are how long pages took.
type latencies struct {
	mu   sync.Mutex
	list []time.Duration
}

func (l *latencies) note(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, d)
}

func (l *latencies) add(o *latencies) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l.list = append(l.list, o.list...)
}

// summary is what is told of latencies.
type summary struct {
	Count    int
	P50, P99 time.Duration
}

func (l *latencies) summary() summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return summary{}
	}
	slices.Sort(l.list)
	at := func(q float64) time.Duration { return l.list[int(q*float64(len(l.list)-1))] }
	return summary{len(l.list), at(0.5), at(0.99)}
}

func (s summary) String() string {
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms (%d pages)", milli(s.P50), milli(s.P99), s.Count)
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sample is the state of things at a moment of the run.
type sample struct {
	at                                  time.Duration
	groups                              int64 // appended since the load began
	rate                                float64
	pages                               summary
	table, index                        int64 // bytes of the tables that compaction keeps small
	keys                                int64 // bytes of those that only grow: group keys and fences
	versions, logged, sessions, retries int64
	lag                                 int64 // how far the floor is behind the head
}

const sizes = `
select sum(pg_table_size(c)) filter (where not kept)::bigint, sum(pg_indexes_size(c)) filter (where not kept)::bigint,
       sum(pg_total_relation_size(c)) filter (where kept)::bigint, (select count(*) from lookup_session)
from (values ('row_version'::regclass, false), ('posting', false), ('feed_group', false), ('group_selector', false), ('group_evidence', false),
             ('blob', false), ('blob_idle', false), ('lookup_session', false), ('group_key', true), ('open_fence', true)) t(c, kept)`

func (s *soak) sample(ctx context.Context, at time.Duration) (sample, error) {
	now := sample{at: at, groups: s.groups.Load(), retries: s.retried.Load()}
	if err := s.pool.QueryRow(ctx, sizes).Scan(&now.table, &now.index, &now.keys, &now.sessions); err != nil {
		return now, fmt.Errorf("ask for sizes: %w", err)
	}
	stats, err := s.feed.Stats(ctx)
	if err != nil {
		return now, err
	}
	now.versions, now.logged, now.lag = stats.Versions, stats.Groups, int64(stats.Head-stats.Floor)
	return now, nil
}

// Report is what a run measured.
type Report struct {
	Config             Config
	Idle, Load, After  summary // pages before, under and after the load
	Size, Versions     float64 // last minute over first, means
	Sessions, Compared int64   // sessions that lived their lives, snapshots that were complete and the same twice
	Live               int64   // groups delivered live

	samples []sample
	load    *latencies
	faults  []error
}

// Flat is what Size and Versions may be at most.
const Flat = 1.2

func (r *Report) header(w io.Writer) {
	_, _ = fmt.Fprintf(w, "idle: %s\n%6s %9s %9s %9s %9s %9s %9s %9s %8s %8s %8s %7s\n", r.Idle, "time", "groups/s", "tables", "indexes", "kept",
		"versions", "log", "sessions", "p50", "p99", "pages", "retries")
}

func (r *Report) line(w io.Writer, s sample) {
	_, _ = fmt.Fprintf(w, "%5.0fs %9.0f %6.1f MB %6.1f MB %6.1f MB %9d %9d %9d %5.1f ms %5.0f ms %8d %7d\n", s.at.Seconds(), s.rate, mega(s.table), mega(s.index), mega(s.keys),
		s.versions, s.logged, s.sessions, milli(s.pages.P50), milli(s.pages.P99), s.pages.Count, s.retries)
}

func mega(n int64) float64 { return float64(n) / 1e6 }

// judge compares the last minute with the first.
func (r *Report) judge() {
	mean := func(from, to time.Duration, of func(sample) int64) float64 {
		sum, n := 0.0, 0
		for _, s := range r.samples {
			if s.at > from && s.at <= to {
				sum, n = sum+float64(of(s)), n+1
			}
		}
		return sum / float64(n)
	}
	window := min(time.Minute, r.Config.Time/2)
	end := r.Config.WarmUp + r.Config.Time + r.Config.Every
	ratio := func(of func(sample) int64) float64 {
		return mean(end-r.Config.Every-window, end, of) / mean(r.Config.WarmUp, r.Config.WarmUp+window, of)
	}
	r.Size = ratio(func(s sample) int64 { return s.table + s.index })
	r.Versions = ratio(func(s sample) int64 { return s.versions })
	for what, x := range map[string]float64{"size": r.Size, "row versions": r.Versions} {
		if math.IsNaN(x) || x > Flat {
			r.faults = append(r.faults, fmt.Errorf("%s of the last minute over the first: %.2f, at most %.1f", what, x, Flat))
		}
	}
	if r.Compared == 0 || r.Live == 0 {
		r.faults = append(r.faults, fmt.Errorf("%d snapshots compared and %d groups followed: the run showed nothing", r.Compared, r.Live))
	}
}

// Print writes what the run came to.
func (r *Report) Print(w io.Writer) {
	_, _ = fmt.Fprintf(w, `size, last minute over first:      %.2f
versions, last minute over first:  %.2f
pages idle before:                 %s
pages under load:                  %s
pages idle after:                  %s
under load over idle:              p50 %.1f, p99 %.1f
sessions lived to their close:     %d
snapshots complete, the same twice: %d
groups followed live, none missed: %d
`, r.Size, r.Versions, r.Idle, r.Load, r.After, float64(r.Load.P50)/float64(r.Idle.P50), float64(r.Load.P99)/float64(r.Idle.P99), r.Sessions, r.Compared, r.Live)
}
