package livefeed

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
)

var benchRows = flag.Int("benchrows", 1_000_000, "rows of the larger feed of BenchmarkPageScale, of five versions each")

// BenchmarkSparseRead reads the 20 matches among 200 000 groups, in turn with one group by its primary key. Goal: of-primary-key at most 3,
// which is asserted.
func BenchmarkSparseRead(b *testing.B) {
	db := pgtest.New(b)
	n := newStore(b, db)
	f := n.ensure(b, "f")
	fillBacklog(b, db.Pool, f)
	exec(b, n, "vacuum analyze")
	q := LogQuery{AfterTag: f.start(b), Selectors: []Selector{backlogRare}, Limit: 256}
	var key, sparse []time.Duration
	var seq uint64
	for b.Loop() {
		for range 40 * benchRounds {
			seq = (seq + 7919) % backlogGroups
			began := time.Now()
			var record []byte
			if err := n.pool.QueryRow(b.Context(), "select changes from feed_group where feed_id = $1 and seq = $2", f.id, int64(seq+1)).Scan(&record); err != nil {
				b.Fatal(err)
			}
			if _, err := decodeRecord(record); err != nil {
				b.Fatal(err)
			}
			middle := time.Now()
			if p, err := f.Log(b.Context(), n.pool, q); err != nil || len(p.Groups) != backlogGroups/backlogEvery || p.Examined != backlogGroups {
				b.Fatalf("%d groups, %v", len(p.Groups), err)
			}
			key, sparse = append(key, middle.Sub(began)), append(sparse, time.Since(middle))
		}
	}
	one, many := median(key), median(sparse)
	ratio := float64(many) / float64(one)
	b.ReportMetric(float64(one.Microseconds()), "us-primary-key")
	b.ReportMetric(float64(many.Microseconds()), "us-sparse")
	b.ReportMetric(ratio, "of-primary-key")
	if ratio > 3 {
		b.Errorf("a sparse read takes %.1f times a primary-key read, at most 3 expected", ratio)
	}
}

// BenchmarkPageScale reads pages of 256 rows of five versions each at the start, in the middle and near the end of 10 000 rows and of
// 1 000 000 (-benchrows), in turn. Buffers are asserted; times are medians. Goals: 1M-of-10k at most 1.5, 90%-of-start 0.7 to 1.5. It
// fills some 4 GB in some minutes:
//
//	go test ./livefeed -run '^$' -bench PageScale -benchtime 1x
func BenchmarkPageScale(b *testing.B) {
	type side struct {
		rows  int
		db    *pgtest.DB
		n     *node
		f     *Feed
		w     uint64
		tag   [8]byte
		costs map[string]int
		took  map[string][]time.Duration
	}
	sides := []*side{{rows: 10_000}, {rows: *benchRows}}
	for _, s := range sides {
		s.db, s.took = pgtest.New(b), map[string][]time.Duration{}
		s.n = newStore(b, s.db)
		s.f = s.n.ensure(b, "f")
		planPages(b, s.n, s.f)
		began := time.Now()
		s.w, s.tag = fillRows(b, s.db, s.f, s.rows)
		exec(b, s.n, "vacuum analyze")
		b.Logf("%d rows: filled in %v", s.rows, time.Since(began).Round(time.Second))
		s.costs = pageCosts(b, s.db, s.n, s.f, s.rows, s.w, s.tag)
	}
	name := func(kind string, place int) string { return fmt.Sprintf("%s at %d %%", kind, place) }
	for b.Loop() {
		for _, k := range pageKinds {
			for _, place := range pagePlaces {
				queries := make([]PageQuery, len(sides))
				for i, s := range sides {
					queries[i] = pageAt(b, s.db, s.f, s.rows, place, s.w, s.tag, k.selectors)
				}
				for range 10 * benchRounds {
					for i, s := range sides {
						began := time.Now()
						if p, err := s.f.Page(b.Context(), s.n.pool, queries[i]); err != nil || len(p.Rows) != 256 {
							b.Fatalf("%d rows, %v", len(p.Rows), err)
						}
						s.took[name(k.name, place)] = append(s.took[name(k.name, place)], time.Since(began))
					}
				}
			}
		}
	}
	few, many := sides[0], sides[1]
	for _, k := range pageKinds {
		label := map[string]string{"all rows": "all", "by attribute": "attribute", "by attribute, posted anew": "anew"}[k.name]
		for _, place := range pagePlaces {
			at := name(k.name, place)
			a, c := median(few.took[at]), median(many.took[at])
			b.Logf("%s: %d and %d buffers, %v and %v among %d and %d rows", at, few.costs[at], many.costs[at], a, c, few.rows, many.rows)
			b.ReportMetric(float64(c)/float64(a), fmt.Sprintf("%s-%d%%-1M-of-10k", label, place))
			if many.costs[at] > few.costs[at]+pageGrowth[k.name] {
				b.Errorf("%s: %d buffers among %d rows, %d among %d", at, few.costs[at], few.rows, many.costs[at], many.rows)
			}
		}
		b.ReportMetric(float64(median(many.took[name(k.name, 90)]))/float64(median(many.took[name(k.name, 0)])), label+"-90%-of-start")
	}
}
