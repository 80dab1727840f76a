package pgstore_test

import (
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

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
