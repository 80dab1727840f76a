package livefeed

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// BenchmarkAppend appends groups of one replaced row, with two attributes, from 1, 16 and 64 submitters, in turn with
// bare INSERT + COMMIT of one row from as many connections: compare the two inside one line only. On a server without
// fsync the bare insert is flattered.
func BenchmarkAppend(b *testing.B) {
	for _, submitters := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(submitters), func(b *testing.B) {
			db := pgtest.New(b)
			n := startStore(b, db)
			f := n.ensure(b, "f")
			bare := pgtest.NewPool(b, db, func(c *pgxpool.Config) { c.MaxConns = int32(submitters) })
			exec(b, n, "create table bare (id bigint generated always as identity primary key, body bytea not null)")
			body := make([]byte, 600)
			const each = 10
			round := func(work func(submitter, i int) error) time.Duration {
				began := time.Now()
				var wg sync.WaitGroup
				for s := range submitters {
					wg.Go(func() {
						for i := range each {
							if err := work(s, i); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				return time.Since(began)
			}
			var appended, inserted time.Duration
			rounds := 0
			for b.Loop() {
				rounds++
				inserted += round(func(int, int) error {
					_, err := bare.Exec(b.Context(), "insert into bare (body) values ($1)", body)
					return err
				})
				appended += round(func(s, i int) error {
					e := put(s*100+i%5, attr("artist", fmt.Sprint(s)), attr("genre", "jazz"), beefOf(fmt.Sprintf("%0600d", rounds*each+i)))
					_, err := f.Append(b.Context(), group(fmt.Sprintf("%d-%d-%d", rounds, s, i), e))
					return err
				})
			}
			total := float64(rounds * submitters * each)
			b.ReportMetric(total/appended.Seconds(), "groups/s")
			b.ReportMetric(total/inserted.Seconds(), "inserts/s")
			b.ReportMetric(inserted.Seconds()/appended.Seconds(), "x-of-bare")
		})
	}
}

// BenchmarkPage reads pages of 256 rows out of 5000 with two versions each.
func BenchmarkPage(b *testing.B) {
	db := pgtest.New(b)
	n := startStore(b, db)
	f := n.ensure(b, "f")
	for i := range 20 {
		var edits []Edit
		for j := range 500 {
			edits = append(edits, put(i%10*500+j, attr("genre", "jazz"), beefOf(fmt.Sprint(i, j))))
		}
		f.mustAppend(b, group(fmt.Sprint(i), edits...))
	}
	exec(b, n, "vacuum analyze")
	c := f.cut(b)
	for name, selectors := range map[string][]Selector{"all": nil, "selector": {AttributeSelector("genre", "jazz")}} {
		b.Run(name, func(b *testing.B) {
			q := PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 256, Selectors: selectors}
			for b.Loop() {
				p, err := f.Page(b.Context(), n.pool, q)
				if err != nil {
					b.Fatal(err)
				}
				if q.After = p.Last; !p.More {
					q.After = 0
				}
			}
		})
	}
}
