package livefeed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

const (
	retainedGroups    = 200_000
	retainedSelectors = 3
	partitionGroups   = 10_000
)

// retainedRecord is a group of a put with as many selectors, one of them its own.
func retainedRecord(n int) []Change {
	return []Change{{Op: Put, Outpoint: outpoint(n), After: &State{
		Evidence:   Evidence{Size: 1},
		Attributes: []Attribute{{Name: "all", Values: []string{"x"}}, {Name: "hundred", Values: []string{fmt.Sprint(n % 100)}}, {Name: "one", Values: []string{fmt.Sprint(n)}}},
		Context:    &Context{Schema: "urn:x", Bytes: make([]byte, 300)},
	}}}
}

// fillLog copies the groups and their selectors into tables of those shapes.
func fillLog(b *testing.B, pool *pgxpool.Pool, feed int32, groups, selectors string) {
	b.Helper()
	n := 0
	if _, err := pool.CopyFrom(b.Context(), pgx.Identifier{groups}, []string{"feed_id", "seq", "tag", "committed_at", "changes"}, pgx.CopyFromFunc(func() ([]any, error) {
		if n++; n > retainedGroups {
			return nil, nil
		}
		return []any{feed, int64(n), []byte("12345678"), int64(1), appendRecord(nil, retainedRecord(n))}, nil
	})); err != nil {
		b.Fatal(err)
	}
	n = -1
	if _, err := pool.CopyFrom(b.Context(), pgx.Identifier{selectors}, []string{"feed_id", "selector", "seq"}, pgx.CopyFromFunc(func() ([]any, error) {
		if n++; n == retainedGroups*retainedSelectors {
			return nil, nil
		}
		s := groupSelectors(retainedRecord(n/retainedSelectors + 1))[n%retainedSelectors]
		return []any{feed, s[:], int64(n/retainedSelectors + 1)}, nil
	})); err != nil {
		b.Fatal(err)
	}
}

// appenders runs work from 8 goroutines until stop is called, which returns how many a second were done, and the longest.
func appenders(b *testing.B, work func(ctx context.Context, i int64) error) (stop func() (rate float64, longest time.Duration)) {
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	var done, longest atomic.Int64
	began := time.Now()
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				if err := work(ctx, done.Add(1)); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
				for took := int64(time.Since(start)); ; {
					if old := longest.Load(); took <= old || longest.CompareAndSwap(old, took) {
						break
					}
				}
			}
		})
	}
	return func() (float64, time.Duration) {
		rate := float64(done.Load()) / time.Since(began).Seconds()
		most := time.Duration(longest.Load())
		cancel()
		wg.Wait()
		return rate, most
	}
}

// walBytes is where the server's log of writes ends: use a server of the benchmark's own.
func walBytes(b *testing.B, pool *pgxpool.Pool) (at float64) {
	b.Helper()
	if err := pool.QueryRow(b.Context(), "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8").Scan(&at); err != nil {
		b.Fatal(err)
	}
	return at
}

// BenchmarkRetention forgets 200 000 groups with 3 selectors each, by batched DELETE as [Feed.Compact] does it and by dropping partitions
// of 10 000 groups on tables of the same shape, alone and while 8 goroutines append to the same tables. Both begin with the log just
// written and a checkpoint done. Also: what a sparse read touches in each layout. Run it on a server of its own, for the WAL:
//
//	env -u OVERLAYD_TEST_DATABASE_URL go test ./livefeed -run '^$' -bench Retention -benchtime 1x
func BenchmarkRetention(b *testing.B) {
	for _, busy := range []bool{false, true} {
		name := map[bool]string{false: "alone", true: "appending"}[busy]
		b.Run("batches/"+name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				db := pgtest.New(b)
				n := startStore(b, db)
				f := n.ensure(b, "f")
				fillLog(b, n.pool, f.id, "feed_group", "group_selector")
				exec(b, n, "update feed_head set head = $2 where feed_id = $1", f.id, retainedGroups)
				s := AttributeSelector("one", "199990")
				measureSparse(b, n.pool, "group_selector", f.id, s)
				measureRetention(b, n.pool, busy, func(ctx context.Context, i int64) error {
					_, err := f.Append(ctx, group(fmt.Sprint(i), put(int(i%50), attr("all", "x"), attr("hundred", "1"), attr("one", fmt.Sprint(i)), beefOf(fmt.Sprint(i)))))
					return err
				}, func() {
					for removed := int64(0); removed < retainedGroups; {
						c, err := f.Compact(b.Context(), until(retainedGroups))
						if err != nil {
							b.Fatal(err)
						}
						removed += c.Groups
					}
				})
			}
		})
		b.Run("partitions/"+name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				db := pgtest.New(b)
				n := newStore(b, db)
				exec(b, n, `create table p_group (like feed_group, primary key (feed_id, seq)) partition by range (seq)`)
				exec(b, n, `create table p_selector (like group_selector, primary key (feed_id, selector, seq)) partition by range (seq)`)
				parts := retainedGroups / partitionGroups
				for i := range parts + 1 { // the last one is appended to
					for _, table := range []string{"p_group", "p_selector"} {
						to := fmt.Sprint((i+1)*partitionGroups + 1)
						if i == parts {
							to = "maxvalue"
						}
						exec(b, n, fmt.Sprintf("create table %s_%d partition of %s for values from (%d) to (%s)", table, i, table, i*partitionGroups+1, to))
					}
				}
				fillLog(b, n.pool, 1, "p_group", "p_selector")
				measureSparse(b, n.pool, "p_selector", 1, AttributeSelector("one", "199990"))
				measureRetention(b, n.pool, busy, func(ctx context.Context, i int64) error {
					return pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) error {
						seq, record := retainedGroups+i, retainedRecord(int(i))
						if _, err := tx.Exec(ctx, "insert into p_group values (1, $1, '12345678', 1, $2)", seq, appendRecord(nil, record)); err != nil {
							return err
						}
						for _, s := range groupSelectors(record) {
							if _, err := tx.Exec(ctx, "insert into p_selector values (1, $1, $2)", s[:], seq); err != nil {
								return err
							}
						}
						return nil
					})
				}, func() {
					for i := range parts {
						exec(b, n, fmt.Sprintf("drop table p_group_%d, p_selector_%d", i, i))
					}
				})
			}
		})
	}
}

func measureSparse(b *testing.B, pool *pgxpool.Pool, table string, feed int32, s Selector) {
	b.Helper()
	if _, err := pool.Exec(b.Context(), "analyze "+table); err != nil {
		b.Fatal(err)
	}
	sql := "select seq from " + table + " where feed_id = $1 and selector = $2 and seq > 0 order by seq limit 256"
	touched, _ := buffers(b, pool, sql, []any{feed, s[:]})
	b.ReportMetric(float64(touched), "buffers/sparse-read")
}

func measureRetention(b *testing.B, pool *pgxpool.Pool, busy bool, work func(context.Context, int64) error, forget func()) {
	b.Helper()
	if _, err := pool.Exec(b.Context(), "checkpoint"); err != nil {
		b.Fatal(err)
	}
	var before float64
	if busy {
		stop := appenders(b, work)
		pause(b.Context(), 2*time.Second)
		before, _ = stop()
	}
	var stop func() (float64, time.Duration)
	wal := walBytes(b, pool)
	if busy {
		stop = appenders(b, func(ctx context.Context, i int64) error { return work(ctx, 1_000_000+i) })
	}
	began := time.Now()
	b.StartTimer()
	forget()
	b.StopTimer()
	took := time.Since(began)
	if busy {
		rate, longest := stop()
		b.ReportMetric(before, "appends/s-before")
		b.ReportMetric(rate, "appends/s-during")
		b.ReportMetric(float64(longest.Milliseconds()), "ms-longest-append")
	} else {
		b.ReportMetric((walBytes(b, pool)-wal)/retainedGroups, "wal-B/group")
	}
	b.ReportMetric(retainedGroups/took.Seconds(), "groups/s")
	b.StartTimer()
}
