package openfence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/openfence"
)

// asServed makes connections plan as those of the program do: once, whatever the tables held then.
func asServed(c *pgxpool.Config) {
	for name, value := range map[string]string{
		"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off",
	} {
		c.ConnConfig.RuntimeParams[name] = value
	}
}

// TestO5_TwoNodesClaimOneKey: 32 claims of one key from two pools, again and again. An exclusion constraint could deadlock where
// a unique index does not; ON CONFLICT DO NOTHING must let one win and the others wait for its commit.
func TestO5_TwoNodesClaimOneKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := load(t, db)
	wide := func(c *pgxpool.Config) { asServed(c); c.MaxConns = 16 }
	pools := []*pgxpool.Pool{pgtest.NewPool(t, db, wide), pgtest.NewPool(t, db, wide)}
	entry := f.Entry([]byte("{}"), "cap")
	for round := range 25 {
		key := f.Key("s", "", fmt.Sprint("request", round))
		var wins atomic.Int32
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 32 {
			wg.Go(func() {
				ctx := context.Background()
				<-begin
				err := pgx.BeginFunc(ctx, pools[i%2], func(tx pgx.Tx) error {
					won, err := f.Claim(ctx, tx, key, entry)
					if err != nil {
						return err
					}
					if won {
						wins.Add(1)
					}
					got, found, err := f.Find(ctx, tx, key)
					if err == nil && (!found || got != entry) {
						err = errors.New("the fence is not there in the next statement")
					}
					return err
				})
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d: %d claims won", round, wins.Load())
		}
	}
}

// TestO6_HowAClaimEndsDecidesWhoFollows: one who waits behind a claim takes the key when that is rolled back or its connection dies,
// and finds the fence when it is committed.
func TestO6_HowAClaimEndsDecidesWhoFollows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := load(t, db)
	for name, c := range map[string]struct {
		end   func(first *pgx.Conn, tx pgx.Tx) error
		freed bool
	}{
		"commit":   {func(_ *pgx.Conn, tx pgx.Tx) error { return tx.Commit(t.Context()) }, false},
		"rollback": {func(_ *pgx.Conn, tx pgx.Tx) error { return tx.Rollback(t.Context()) }, true},
		"crash": {func(first *pgx.Conn, _ pgx.Tx) error {
			_, err := db.Pool.Exec(t.Context(), "select pg_terminate_backend($1)", first.PgConn().PID())
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := pgtest.Conn(t, db), pgtest.Conn(t, db)
			key, entry := f.Key("s", "", name), f.Entry([]byte(name), "cap")
			tx, err := first.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if won, err := f.Claim(t.Context(), tx, key, entry); err != nil || !won {
				t.Fatalf("%v %v", won, err)
			}
			if _, found, err := f.Find(t.Context(), db.Pool, key); err != nil || found {
				t.Fatalf("an uncommitted claim is seen: %v, %v", found, err)
			}
			claimed := make(chan error, 1)
			var won, found bool
			go func() {
				claimed <- pgx.BeginFunc(context.Background(), second, func(tx pgx.Tx) (err error) {
					if won, err = f.Claim(context.Background(), tx, key, entry); err != nil {
						return err
					}
					_, found, err = f.Find(context.Background(), tx, key)
					return err
				})
			}()
			waits := func() (waits bool) {
				err := db.Pool.QueryRow(t.Context(), "select cardinality(pg_blocking_pids($1)) > 0", second.PgConn().PID()).Scan(&waits)
				if err != nil {
					t.Fatal(err)
				}
				return waits
			}
			for !waits() {
				select {
				case err := <-claimed:
					t.Fatalf("the second claim did not wait: %v", err)
				default:
				}
			}
			if err := c.end(first, tx); err != nil {
				t.Fatal(err)
			}
			if err := <-claimed; err != nil {
				t.Fatal(err)
			}
			if won != c.freed || !found {
				t.Fatalf("won %v, found %v", won, found)
			}
			if _, found, err := f.Find(t.Context(), db.Pool, key); err != nil || !found {
				t.Fatalf("%v, %v", found, err)
			}
		})
	}
}

// planned is a connection on which an Open's two statements were planned while there was no fence.
type planned struct{ *pgx.Conn }

func plan(t *testing.T, pool *pgxpool.Pool) planned {
	t.Helper()
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	p := planned{c.Conn()}
	for _, statement := range []string{
		"prepare find (bytea) as select params, selection from open_fence where key = $1",
		"prepare claim (bytea, bytea, bytea, smallint) as insert into open_fence (key, params, selection, key_id) values ($1, $2, $3, $4) on conflict do nothing",
	} {
		if _, err := p.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	p.buffers(t, openfence.Key{}) // planned for good, and what a connection reads once is read
	return p
}

// explain executes a statement and returns its plan and how many buffers it touched.
func (p planned) explain(t *testing.T, statement string) (string, int) {
	t.Helper()
	rows, err := p.Query(t.Context(), "explain (analyze, buffers, timing off, summary off) execute "+statement, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Buffers: shared ") {
			var hit, read int
			if n, _ := fmt.Sscanf(line, "Buffers: shared hit=%d read=%d", &hit, &read); n == 0 {
				_, _ = fmt.Sscanf(line, "Buffers: shared read=%d", &read)
			}
			return strings.Join(lines, "\n"), hit + read
		}
	}
	t.Fatalf("no buffers in %v", lines)
	return "", 0
}

// buffers is what one Open of a new key touches of the fences.
func (p planned) buffers(t *testing.T, key openfence.Key) int {
	t.Helper()
	found, a := p.explain(t, fmt.Sprintf(`find('\x%x')`, key))
	if !strings.Contains(found, "Index Scan using open_fence_key") {
		t.Fatalf("a fence is not found by its index:\n%s", found)
	}
	_, b := p.explain(t, fmt.Sprintf(`claim('\x%x', '\x%x', '\x%x', 1)`, key, make([]byte, 16), make([]byte, 8)))
	return a + b
}

// TestO11_FencesDoNotSlowAnOpen: what an Open touches is the same with no fence and with 60 thousand, planned when there was
// none. (The benchmark says so of ten million.)
func TestO11_FencesDoNotSlowAnOpen(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := load(t, db)
	p := plan(t, pgtest.NewPool(t, db, asServed))
	median := func(name string) int {
		var all []int
		for i := range 101 {
			all = append(all, p.buffers(t, f.Key("s", name, fmt.Sprint(i))))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	empty := median("empty")
	const many = 60_000
	n, err := db.Pool.CopyFrom(t.Context(), pgx.Identifier{"open_fence"}, []string{"key", "params", "selection", "key_id"},
		pgx.CopyFromSlice(many, func(i int) ([]any, error) {
			key, entry := f.Key("s", "many", fmt.Sprint(i)), f.Entry([]byte("{}"), "cap")
			return []any{key[:], entry.Params[:], entry.Selection[:], int16(1)}, nil
		}))
	if err != nil || n != many {
		t.Fatalf("%d, %v", n, err)
	}
	full := median("full")
	t.Logf("buffers touched: %d with no fence, %d with %d", empty, full, many)
	if full > empty+2 {
		t.Fatalf("an Open touches %d buffers of fences where it touched %d when there were none", full, empty)
	}
}
