package sqlitestore_test

import (
	"testing"

	"github.com/overlayd/overlayd/reconcile/storetest"
)

func load(b *testing.B) *storetest.Load {
	l, err := storetest.NewLoad(b.Context(), open(b, b.TempDir()), storetest.Partition)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkReconcileUpdate is one commit of 256 groups at the level of keys.
func BenchmarkReconcileUpdate(b *testing.B) { storetest.BenchmarkUpdate(b, open(b, b.TempDir())) }

func BenchmarkReconcileObservations(b *testing.B) { storetest.BenchmarkObservations(b, load) }
