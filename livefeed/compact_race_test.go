package livefeed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// promises makes a table of promised watermarks, and the horizon that reads it.
func promises(t testing.TB, db *pgtest.DB) Horizon {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), "create table promise (feed_id int not null, w bigint not null)"); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, tx pgx.Tx, f *Feed) (uint64, bool, error) {
		var w *int64
		if err := tx.QueryRow(ctx, "select min(w) from promise where feed_id = $1", f.id).Scan(&w); err != nil || w == nil {
			return 0, false, err
		}
		return uint64(*w), true, nil
	}
}

func promise(ctx context.Context, q Querier, f *Feed, w uint64) error {
	_, err := q.Exec(ctx, "insert into promise (feed_id, w) values ($1, $2)", f.id, int64(w))
	return err
}

// begin begins a transaction that ends with the test at the latest: a pool is not closed before.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // after a commit it does nothing
	return tx
}

// awaitWaiting waits until as many sessions of the database wait for a lock.
func awaitWaiting(t testing.TB, db *pgtest.DB, sessions int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d sessions wait for a lock", sessions), func() bool {
		var n int
		if err := db.Pool.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= sessions
	})
}

// TestO7_TheCompactorWaitsForAnOpen and then sees what it promised: asked in the statement that waits, the horizon would be older
// than the lock.
func TestO7_TheCompactorWaitsForAnOpen(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	horizon := promises(t, db)
	waited := 0
	for i := 0; waited < 3; i++ {
		if i == 50 {
			t.Fatal("compaction never waited for an open and got its lock")
		}
		f.mustAppend(t, group(fmt.Sprint(i, "a"), put(1, beefOf(fmt.Sprint(i)))))
		tx := begin(t, n.pool)
		if err := f.Pin(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		c, err := f.Cut(t.Context(), tx)
		if err != nil {
			t.Fatal(err)
		}
		f.mustAppend(t, group(fmt.Sprint(i, "b"), put(1, beefOf(fmt.Sprint(i, "b")))))
		done := make(chan Compacted, 1)
		go func() {
			c, err := f.Compact(t.Context(), horizon)
			if err != nil {
				t.Error(err)
			}
			done <- c
		}()
		awaitWaiting(t, db, 1)
		if err := promise(t.Context(), tx, f, c.W); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-done; !got.More {
			waited++
			if got.Floor != c.W {
				t.Errorf("the floor is %d, the open promised %d", got.Floor, c.W)
			}
		}
		p, err := f.Page(t.Context(), n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 5})
		if err != nil || len(p.Rows) != 1 {
			t.Fatalf("the snapshot at W: %+v, %v", p, err)
		}
		exec(t, n, "delete from promise")
	}
}

// TestO7_AnOpenWaitsForTheCompactor, and its watermark is not below the floor.
func TestO7_AnOpenWaitsForTheCompactor(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	horizon := promises(t, db)
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(1, beefOf(fmt.Sprint(i)))))
	}
	g := newGate(t)
	f.hooks.horizon = g.stop
	done := make(chan Compacted, 1)
	go func() {
		c, err := f.Compact(t.Context(), horizon)
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	await(t, "the question for the horizon", g.reached)
	opened := make(chan Cut, 1)
	go func() {
		var c Cut
		if err := pgx.BeginFunc(t.Context(), n.pool, func(tx pgx.Tx) (err error) {
			if err := f.Pin(t.Context(), tx); err != nil {
				return err
			}
			if c, err = f.Cut(t.Context(), tx); err != nil {
				return err
			}
			return promise(t.Context(), tx, f, c.W)
		}); err != nil {
			t.Error(err)
		}
		opened <- c
	}()
	awaitWaiting(t, db, 1)
	f.mustAppend(t, group("meanwhile", put(1, beefOf("meanwhile")))) // nobody who appends waits
	g.goOn()
	if c := <-done; c.Floor != 6 {
		t.Errorf("%+v", c)
	}
	c := <-opened
	if c.W != 6 || c.Floor != 6 {
		t.Errorf("%+v", c)
	}
	if p, err := f.Page(t.Context(), n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 5}); err != nil || len(p.Rows) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestO7_WithoutAPinTheSnapshotIsReset once the floor passed it, and never a shorter one.
func TestO7_WithoutAPinTheSnapshotIsReset(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	f.mustAppend(t, group("1", put(1, attr("a", "b")), put(2, attr("a", "b"))))
	c := f.cut(t)
	f.mustAppend(t, group("2", withdraw(1)))
	f.compactAll(t, nobody)
	for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
		if p, err := f.Page(t.Context(), n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 5, Selectors: s}); CodeOf(err) != Reset {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

// TestO7_NoSnapshotIsWrong: an Open with a pause between its watermark and its commit, compaction without pause by another process,
// and a writer that gives every row the number of its group. One Open at a time on each feed: the promise of one would guard those
// of others.
func TestO7_NoSnapshotIsWrong(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	horizon := promises(t, db)
	one, other := startStore(t, db), startStore(t, db)
	var wrong, opens, rounds atomic.Int64
	var all sync.WaitGroup
	for feed := range 3 {
		f, compacted := one.ensure(t, fmt.Sprint(feed)), other.ensure(t, fmt.Sprint(feed))
		ctx, cancel := context.WithCancel(t.Context())
		write := func(i int) {
			var edits []Edit
			for row := range 5 {
				edits = append(edits, put(row, attr("a", "b"), beefOf(fmt.Sprint(row, "/", i))))
			}
			if _, err := f.Append(ctx, group(fmt.Sprint(i), edits...)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		write(1)
		all.Go(func() {
			for i := 2; ctx.Err() == nil; i++ {
				write(i)
			}
		})
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := compacted.Compact(ctx, horizon); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				rounds.Add(1)
			}
		})
		all.Go(func() {
			defer cancel()
			random := rand.New(rand.NewPCG(7, uint64(feed)))
			for range 80 {
				var c Cut
				if err := pgx.BeginFunc(ctx, one.pool, func(tx pgx.Tx) (err error) {
					if err := f.Pin(ctx, tx); err != nil {
						return err
					}
					if c, err = f.Cut(ctx, tx); err != nil {
						return err
					}
					pause(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
					return promise(ctx, tx, f, c.W)
				}); err != nil {
					t.Error(err)
					return
				}
				opens.Add(1)
				for range 2 {
					if err := snapshotOf(ctx, f, one.pool, c); err != nil {
						wrong.Add(1)
						t.Error(err)
					}
				}
				if _, err := one.pool.Exec(ctx, "delete from promise where feed_id = $1", f.id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d opens, %d rounds of compaction, %d wrong", opens.Load(), rounds.Load(), wrong.Load())
}

// snapshotOf reads the five rows of a promised snapshot and the log after it. Group i gives each row evidence as long as its number.
func snapshotOf(ctx context.Context, f *Feed, q Querier, c Cut) error {
	for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
		p, err := f.Page(ctx, q, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 10, Selectors: s})
		if err != nil || len(p.Rows) != 5 {
			return fmt.Errorf("snapshot at %d: %d rows, %w", c.W, len(p.Rows), err)
		}
		for _, r := range p.Rows {
			if r.State.Evidence.Size != len(fmt.Sprint(0, "/", c.W)) {
				return fmt.Errorf("snapshot at %d has a row of another group", c.W)
			}
		}
	}
	_, err := f.Log(ctx, q, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 50})
	return err
}
