package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// BenchmarkK2_Change measures one live replacement (a spend, a withdrawal and the
// new output: received, recorded, accepted) among retained outputs.
func BenchmarkK2_Change(b *testing.B) {
	for _, retained := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(retained), func(b *testing.B) {
			k := storetest.NewKit(b, storetest.Instance{Backend: memstore.New()}, storetest.Trust(storetest.Roots...))
			s := k.Source("a")
			begun := time.Now()
			kept := prefill(k, s, retained)
			b.ReportMetric(float64(retained)/time.Since(begun).Seconds(), "prefill-rows/s")
			b.ResetTimer()
			for i := range b.N {
				tip := kept[i%len(kept)]
				next := k.Spend(tip.Out(uint32(i / len(kept))))
				id := fmt.Sprint("l", i)
				k.Commit(k.Live(s, storetest.G(id, uint64(i+2), k.Spends(id+"s", next), k.Withdraws(id+"w", tip.Out(0)), k.Lists(id+"o", next, 0))))
				k.Work()
			}
		})
	}
}

// prefill lists outputs of mined transactions, in pages of 256.
func prefill(k *storetest.Kit, s reconcile.SourceID, retained int) (kept []storetest.Tx) {
	var groups []storetest.Group
	for i := range retained {
		x := k.Spend(spend.Outpoint{Index: uint32(i + 1)})
		id := fmt.Sprint("p", i)
		claim := reconcile.Claim{TxID: x.ID, Height: uint32(i % 90), Root: [32]byte{1}, Holds: true, Known: true}
		groups = append(groups, storetest.G(id, 1, k.Lists(id, x, 0, claim)))

		kept = append(kept, x)
		if len(groups) == 256 || i == retained-1 {
			k.Commit(k.Snapshot(s, i == retained-1, groups...))
			k.Work()
			groups = nil
		}
	}
	return kept
}
