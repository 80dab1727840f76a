package spend_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// shapes of components by size. Every member is received at a position of its own, so that there are as many frontiers.
var shapes = map[string]func(n int) []spend.Tx{
	// Each spends the one before it.
	"chain": func(n int) []spend.Tx {
		return txs(n, func(i int) []spend.Input {
			return []spend.Input{{Outpoint: spend.Outpoint{TxID: id(i)}, Sequence: sealed}}
		})
	},
	// All want one output.
	"conflict": func(n int) []spend.Tx {
		return txs(n, func(int) []spend.Input { return []spend.Input{{Sequence: sealed}} })
	},
	// Each replaces the one before it.
	"versions": func(n int) []spend.Tx {
		list := txs(n, func(i int) []spend.Input { return []spend.Input{{Sequence: uint32(i)}} })
		for i := range list {
			list[i].LockTime = 1 << 20
		}
		return list
	},
	// Each has two inputs: of a member at random, and of the one before it.
	"mesh": func(n int) []spend.Tx {
		return txs(n, func(i int) []spend.Input {
			return []spend.Input{
				{Outpoint: spend.Outpoint{TxID: id(i * 7919 % (i + 1))}, Sequence: sealed},
				{Outpoint: spend.Outpoint{TxID: id(i), Index: uint32(i % 2)}, Sequence: sealed},
			}
		})
	},
}

// id is zero for the root, which is trusted.
func id(i int) (id spend.TxID) {
	binary.BigEndian.PutUint64(id[:], uint64(i))
	return id
}

func txs(n int, inputs func(i int) []spend.Input) []spend.Tx {
	list := make([]spend.Tx, n)
	for i := range list {
		at := uint64(i + 1)
		list[i] = spend.Tx{
			ID: id(i + 1), Inputs: inputs(i), FirstRaw: spend.Position{At: at}, Ready: true, ReadyAt: at,
			Result: spend.Valid, Usable: true, SupportedToday: true,
		}
	}
	return list
}

// Views change height back and forth, and no finality with it: contexts of a long life that concern nobody here.
func component(members []spend.Tx) *spend.Component {
	c := &spend.Component{Members: members, NonFinal: true, Trusted: func(id spend.TxID) bool { return id == spend.TxID{} }}
	for at := range uint64(100) {
		c.Views = append(c.Views, spend.View{At: at, NextHeight: 1000 + at%2, MTP: 1_600_000_000})
	}
	c.Now = c.Views[99]
	return c
}

// What a member costs stays nearly the same from a hundred to a hundred thousand, whatever the shape.
func BenchmarkSelect(b *testing.B) {
	for _, shape := range []string{"chain", "conflict", "versions", "mesh"} {
		for _, n := range []int{1, 10, 100, 1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", shape, n), func(b *testing.B) {
				c := component(shapes[shape](n))
				b.ReportAllocs()
				for b.Loop() {
					if sel := spend.Select(c); len(sel.Outcomes) != n || sel.Barrier {
						b.Fatal("not selected")
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/member")
			})
		}
	}
}
