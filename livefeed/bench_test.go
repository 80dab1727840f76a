package livefeed

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// BenchmarkAppend appends groups of one replaced row, with two attributes, from 1, 16 and 64 submitters, in turn with
// bare INSERT + COMMIT of one row from as many connections, which are open: compare the two inside one line only. x-of-bare is the median
// of the rounds. On a server without fsync the bare insert is flattered.
func BenchmarkAppend(b *testing.B) {
	for _, submitters := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(submitters), func(b *testing.B) {
			db := pgtest.New(b)
			n := startStore(b, db)
			f := n.ensure(b, "f")
			bare := pgtest.NewPool(b, db, func(c *pgxpool.Config) { c.MaxConns = int32(submitters) })
			exec(b, n, "create table bare (id bigint generated always as identity primary key, body bytea not null)")
			body := make([]byte, 600)
			each := max(10, 64/submitters)
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
			rounds := 0
			insert := func(int, int) error {
				_, err := bare.Exec(b.Context(), "insert into bare (body) values ($1)", body)
				return err
			}
			appendOne := func(s, i int) error {
				e := put(s*100+i%5, attr("artist", fmt.Sprint(s)), attr("genre", "jazz"), beefOf(fmt.Sprintf("%0600d", rounds*each+i)))
				_, err := f.Append(b.Context(), group(fmt.Sprintf("%d-%d-%d", rounds, s, i), e))
				return err
			}
			round(insert) // connects
			round(appendOne)
			var ratios []float64
			var appended, inserted time.Duration
			for b.Loop() {
				for range benchRounds {
					rounds++
					bare, ours := round(insert), round(appendOne)
					inserted, appended = inserted+bare, appended+ours
					ratios = append(ratios, bare.Seconds()/ours.Seconds())
				}
			}
			total := float64(rounds * submitters * each)
			b.ReportMetric(total/appended.Seconds(), "groups/s")
			b.ReportMetric(total/inserted.Seconds(), "inserts/s")
			b.ReportMetric(median(ratios), "x-of-bare")
		})
	}
}

// BenchmarkAppendWake appends as BenchmarkAppend does to a feed that 1000 waiters of this node and a listener of another hear of, one in ten
// of the waiters woken by each group, in turn with the same feed announced to nobody. Goal: on-of-off, the median of its rounds, at least
// 0.9. Followers' reads are not part of it.
func BenchmarkAppendWake(b *testing.B) {
	for _, submitters := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(submitters), func(b *testing.B) {
			db := pgtest.New(b)
			n, far := startStore(b, db), startStore(b, db)
			far.ensure(b, "f")
			far.listening(b)
			f := n.ensure(b, "f")
			for i := range 1000 {
				w := f.Watch(AttributeSelector("artist", fmt.Sprint(i%10)))
				defer w.Close()
				// Whoever sleeps here takes its wake-ups, and reads nothing.
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				go func() {
					for {
						select {
						case <-w.C():
						case <-ctx.Done():
							return
						}
					}
				}()
			}
			each, rounds := max(10, 64/submitters), 0
			round := func() time.Duration {
				rounds++
				began := time.Now()
				var wg sync.WaitGroup
				for s := range submitters {
					wg.Go(func() {
						for i := range each {
							e := put(s*100+i%5, attr("artist", fmt.Sprint(i%10)), attr("genre", "jazz"), beefOf(fmt.Sprintf("%0600d", rounds*each+i)))
							if _, err := f.Append(b.Context(), group(fmt.Sprintf("%d-%d-%d", rounds, s, i), e)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				return time.Since(began)
			}
			round() // warms up
			var ratios []float64
			var on, off time.Duration
			for b.Loop() {
				for range benchRounds {
					f.hooks.mute = true // nothing is being appended
					silent := round()
					f.hooks.mute = false
					announced := round()
					on, off = on+announced, off+silent
					ratios = append(ratios, float64(silent)/float64(announced))
				}
			}
			total := float64(len(ratios) * submitters * each)
			b.ReportMetric(total/on.Seconds(), "groups/s-on")
			b.ReportMetric(total/off.Seconds(), "groups/s-off")
			b.ReportMetric(median(ratios), "on-of-off")
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
