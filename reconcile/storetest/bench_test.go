package storetest_test

import (
	"flag"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// retained adds a size to BenchmarkReconcileChange: -args -retained 1000000, for
// which it takes about half an hour.
var retained = flag.Uint64("retained", 0, "outputs that BenchmarkReconcileChange retains in a further store")

// BenchmarkReconcileChange is what one change costs in both stores on disk.
func BenchmarkReconcileChange(b *testing.B) {
	sizes := []uint64{1_000, 100_000}
	if *retained > 0 {
		sizes = append(sizes, *retained)
	}
	closed := func(backend reconcile.Backend, err error) reconcile.Backend {
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := backend.Close(); err != nil {
				b.Error(err)
			}
		})
		return backend
	}
	storetest.BenchmarkChange(b, sizes,
		storetest.Opener{Name: "sqlite", Open: func(b *testing.B) reconcile.Backend {
			return closed(sqlitestore.Open(b.Context(), b.TempDir(), sqlitestore.Options{}))
		}},
		storetest.Opener{Name: "postgres", Open: func(b *testing.B) reconcile.Backend {
			return closed(pgstore.Open(b.Context(), pgtest.NewEmpty(b).Pool, pgstore.Options{
				Partition: storetest.Partition,
			}))
		}})
}
