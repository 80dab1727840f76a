package sqlitestore_test

import (
	"testing"

	"github.com/overlayd/overlayd/reconcile/storetest"
)

// BenchmarkReconcileUpdate is one commit of 256 groups at the level of keys.
func BenchmarkReconcileUpdate(b *testing.B) { storetest.BenchmarkUpdate(b, open(b, b.TempDir())) }
