package pgstore_test

import (
	"flag"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// retained adds a size to BenchmarkReconcileChange: -args -retained 1000000. To
// fill that many takes a while.
var retained = flag.Uint64("retained", 0, "outputs that BenchmarkReconcileChange retains in a further store")

func load(b *testing.B) *storetest.Load {
	l, err := storetest.NewLoad(b.Context(), open(b, pgtest.NewEmpty(b).Pool), storetest.Partition)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkReconcileUpdate is one commit of 256 groups at the level of keys.
func BenchmarkReconcileUpdate(b *testing.B) {
	storetest.BenchmarkUpdate(b, open(b, pgtest.NewEmpty(b).Pool))
}

func BenchmarkReconcileObservations(b *testing.B) { storetest.BenchmarkObservations(b, load) }

func BenchmarkReconcileChange(b *testing.B) {
	sizes := []uint64{1_000, 100_000}
	if *retained > 0 {
		sizes = append(sizes, *retained)
	}
	storetest.BenchmarkChange(b, sizes, func(b *testing.B) reconcile.Backend { return open(b, pgtest.NewEmpty(b).Pool) })
}
