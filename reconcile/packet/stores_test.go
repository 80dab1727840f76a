package packet_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
)

// keeper opens the store of one case, again and again.
type keeper interface {
	open(ctx context.Context) (reconcile.Backend, error)
	// volatile reports whether a store that is opened again has forgotten everything.
	volatile() bool
	// partition is whose knowledge the store has.
	partition() reconcile.Partition
}

var local = reconcile.Partition{Application: "packet", Account: "a", Access: "local"}

type inMemory struct{}

func (inMemory) open(context.Context) (reconcile.Backend, error) { return memstore.New(), nil }
func (inMemory) volatile() bool                                  { return true }
func (inMemory) partition() reconcile.Partition                  { return local }

type inSQLite struct{ dir string }

func (s inSQLite) open(ctx context.Context) (reconcile.Backend, error) {
	return sqlitestore.Open(ctx, s.dir, sqlitestore.Options{})
}
func (inSQLite) volatile() bool                 { return false }
func (inSQLite) partition() reconcile.Partition { return local }

type inPostgres struct {
	pool  *pgxpool.Pool
	whose reconcile.Partition
}

func (p inPostgres) open(ctx context.Context) (reconcile.Backend, error) {
	return pgstore.Open(ctx, p.pool, pgstore.Options{Partition: p.whose})
}
func (inPostgres) volatile() bool                   { return false }
func (p inPostgres) partition() reconcile.Partition { return p.whose }

// onEveryStore runs a test on each kind of store. keep makes a place for one case.
func onEveryStore(t *testing.T, run func(t *testing.T, keep func(t *testing.T) keeper)) {
	t.Helper()
	kinds := map[string]func(t *testing.T) func(t *testing.T) keeper{
		"memory": func(*testing.T) func(*testing.T) keeper {
			return func(*testing.T) keeper { return inMemory{} }
		},
		"sqlite": func(*testing.T) func(*testing.T) keeper {
			return func(t *testing.T) keeper { return inSQLite{t.TempDir()} }
		},
		"postgres": func(t *testing.T) func(*testing.T) keeper {
			pool := pgtest.NewEmpty(t).Pool
			var cases atomic.Int64
			return func(*testing.T) keeper {
				whose := local
				whose.Account = fmt.Sprintf("case %d", cases.Add(1))
				return inPostgres{pool, whose}
			}
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			run(t, kinds[kind](t))
		})
	}
}
