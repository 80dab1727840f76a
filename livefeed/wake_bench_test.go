package livefeed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// benchRounds is how many rounds a benchmark of ratios interleaves; it compares medians, and one line with itself only.
const benchRounds = 7

func median[T int | int64 | float64 | time.Duration](list []T) T {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkWakeWork is what a commit costs this process for its waiters, from the end of the commit to the decoded group in the hands of
// the one waiter that it concerns, with 1 000 and 10 000 waiters in turn. Goal: 10k-of-1k at most 2.
func BenchmarkWakeWork(b *testing.B) {
	type side struct {
		f    *Feed
		one  *Waiter
		seq  uint64
		took []time.Duration
	}
	changes := []Change{{Op: Put, Outpoint: outpoint(1), After: &State{Attributes: []Attribute{{Name: "n", Values: []string{"7"}}}}}}
	selectors := []Selector{AttributeSelector("n", "7")}
	sides := map[int]*side{1000: {}, 10_000: {}}
	for waiters, s := range sides {
		s.f = &Feed{}
		s.f.hub.init(func(int) {}, prometheus.NewCounter(prometheus.CounterOpts{}))
		s.f.tail.init(defaultTailGroups, defaultTailBytes, [2]prometheus.Gauge{prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewGauge(prometheus.GaugeOpts{})})
		s.f.tail.begin(0, 0, [8]byte{})
		for i := range waiters {
			if w := s.f.Watch(AttributeSelector("n", fmt.Sprint(i))); i == 7 {
				s.one = w
			}
		}
	}
	commit := func(s *side) {
		l := LogQuery{After: s.seq, Selectors: selectors, Limit: 256}
		g := Group{Sequence: s.seq + 1, Changes: changes}
		pl := &plan{first: s.seq, head: s.seq + 1, epoch: "e", groups: []Group{g}, records: [][]byte{appendRecord(nil, changes)}, selectors: [][]Selector{selectors}}
		s.seq++
		s.f.tail.commit(pl, true)
		var a announcement
		a.add(pl.selectors[0])
		s.f.hub.publish(0, g.Sequence, g.Sequence, a)
		<-s.one.C()
		if p, ok := s.f.tail.page(s.f.tail.latest(), l, defaultScanBytes); !ok || len(p.Groups) != 1 {
			b.Fatalf("%+v, %v", p, ok)
		}
	}
	const each = 2000
	for b.Loop() {
		for range benchRounds {
			for _, s := range sides {
				began := time.Now()
				for range each {
					commit(s)
				}
				s.took = append(s.took, time.Since(began)/each)
			}
		}
	}
	few, many := median(sides[1000].took), median(sides[10_000].took)
	b.ReportMetric(float64(few.Nanoseconds()), "ns/commit-1k")
	b.ReportMetric(float64(many.Nanoseconds()), "ns/commit-10k")
	b.ReportMetric(float64(many)/float64(few), "10k-of-1k")
}

// BenchmarkWakeLatency is how long after the append's reply the waiter is awake, and how long until it has the decoded group, on this node
// and on another one, in turn with a bare NOTIFY round trip from connection to connection, each p50. Less than 0 means that the waiter
// was first. Goals: same-group-of-notify at most 0.5, other-wake-of-notify at most 1.
func BenchmarkWakeLatency(b *testing.B) {
	db := pgtest.New(b)
	near, far := startStore(b, db, func(c *Config) { c.Backstop = time.Hour }), startStore(b, db)
	f, g := near.ensure(b, "f"), far.ensure(b, "f")
	near.listening(b)
	sender, receiver := pgtest.Conn(b, db), pgtest.Conn(b, db)
	if _, err := receiver.Exec(b.Context(), "listen bench"); err != nil {
		b.Fatal(err)
	}
	notify := func() time.Duration {
		got := make(chan time.Time, 1)
		go func() {
			if _, err := receiver.WaitForNotification(b.Context()); err != nil {
				b.Error(err)
			}
			got <- time.Now()
		}()
		began := time.Now()
		if _, err := sender.Exec(b.Context(), "select pg_notify('bench', 'x')", pgx.QueryExecModeCacheStatement); err != nil {
			b.Fatal(err)
		}
		return (<-got).Sub(began)
	}
	n := 0
	selectors := []Selector{AttributeSelector("n", "7")}
	wake := func(through *Feed) (awake, inHand time.Duration) {
		n++
		c := f.cut(b)
		w := f.Watch(selectors...)
		defer w.Close()
		l := LogQuery{After: c.W, AfterTag: c.Tag, Selectors: selectors, Limit: 256}
		if p, err := f.Follow(b.Context(), near.pool, l, Here); err != nil || len(p.Groups) != 0 {
			b.Fatalf("%+v, %v", p, err)
		}
		got := make(chan [2]time.Time, 1)
		go func() {
			<-w.C()
			awake := time.Now()
			if p, err := f.Follow(b.Context(), near.pool, l, Woken); err != nil || len(p.Groups) != 1 {
				b.Errorf("%+v, %v", p, err)
			}
			got <- [2]time.Time{awake, time.Now()}
		}()
		p := group(fmt.Sprint(n), put(n%50, attr("n", "7"), beefOf(fmt.Sprint(n))))
		if _, err := through.Append(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		replied := time.Now()
		at := <-got
		return at[0].Sub(replied), at[1].Sub(replied)
	}
	p50s := map[string][]float64{} // ms
	add := func(name string, list []time.Duration) {
		p50s[name] = append(p50s[name], float64(median(list))/float64(time.Millisecond))
	}
	for b.Loop() {
		for range benchRounds {
			took := map[string][]time.Duration{}
			for range 40 {
				took["notify"] = append(took["notify"], notify())
				for name, at := range map[string]*Feed{"same": f, "other": g} {
					awake, inHand := wake(at)
					took[name+"-wake"] = append(took[name+"-wake"], awake)
					took[name+"-group"] = append(took[name+"-group"], inHand)
				}
			}
			for name, list := range took {
				add(name, list)
			}
		}
	}
	bare := median(p50s["notify"])
	for name, list := range p50s {
		b.ReportMetric(median(list), "ms-"+name)
		if name != "notify" {
			b.ReportMetric(median(list)/bare, name+"-of-notify")
		}
	}
}
