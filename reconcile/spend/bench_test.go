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

// field is a graph of many small components: pairs of a transaction and the one that it spends.
type field struct {
	nodes    map[spend.TxID]*spend.Node
	children map[spend.TxID][]spend.TxID
	spenders map[spend.Outpoint][]spend.TxID
}

func (f *field) add(n *spend.Node) {
	f.nodes[n.ID] = n
	for _, in := range n.Inputs {
		f.children[in.TxID] = append(f.children[in.TxID], n.ID)
		f.spenders[in.Outpoint] = append(f.spenders[in.Outpoint], n.ID)
	}
}

func (f *field) remove(n *spend.Node) {
	delete(f.nodes, n.ID)
	for _, in := range n.Inputs {
		delete(f.children, in.TxID)
		delete(f.spenders, in.Outpoint)
	}
}

// A group of each transaction's own has the number of its id.
func (f *field) group(id spend.TxID) spend.GroupID {
	return spend.GroupID(binary.BigEndian.Uint64(id[:]))
}
func (f *field) Tx(id spend.TxID) (*spend.Node, bool)   { n, ok := f.nodes[id]; return n, ok }
func (f *field) Children(id spend.TxID) []spend.TxID    { return f.children[id] }
func (f *field) Spenders(o spend.Outpoint) []spend.TxID { return f.spenders[o] }
func (f *field) Carriers(id spend.TxID) []spend.GroupID { return []spend.GroupID{f.group(id)} }
func (f *field) Carried(g spend.GroupID) []spend.TxID   { return []spend.TxID{id(int(g))} }
func (f *field) Targets(g spend.GroupID) (uint64, []spend.TxID) {
	return uint64(g), []spend.TxID{id(int(g))}
}

// BenchmarkChange receives, verifies and selects one transaction that spends a retained one, among so many retained.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 30_000, 300_000} {
		b.Run(fmt.Sprintf("retained/%d", n), func(b *testing.B) {
			f := &field{map[spend.TxID]*spend.Node{{}: {Trusted: true}}, map[spend.TxID][]spend.TxID{}, map[spend.Outpoint][]spend.TxID{}}
			for i := range n {
				at := uint64(i + 1)
				f.add(&spend.Node{
					ID: id(i + 1), Inputs: []spend.Input{{Outpoint: spend.Outpoint{Index: uint32(i)}, Sequence: sealed}}, FirstRaw: spend.Position{At: at},
					Received: true, ReceivedAt: at, Ready: true, ReadyAt: at, Result: spend.Valid, Settled: true,
				})
			}
			view := spend.View{NextHeight: 1, MTP: 1}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				own := id(n + 1)
				node := &spend.Node{
					ID: own, FirstRaw: spend.Position{At: uint64(n + 1)},
					Inputs: []spend.Input{{Outpoint: spend.Outpoint{TxID: id(1 + i*7919%n)}, Sequence: sealed}},
				}
				f.add(node)
				for _, r := range spend.Advance(f, []spend.TxID{own}, []spend.GroupID{f.group(own)}) {
					node.Received, node.ReceivedAt, node.Ready, node.ReadyAt = r.Received, r.ReceivedAt, r.Ready, r.ReadyAt
				}
				node.Result, node.Settled = spend.Valid, true
				spend.Cover(f, []spend.TxID{own})
				pieces := spend.Expand(f, []spend.TxID{own}, 0)
				pieces[0].Views, pieces[0].Now = []spend.View{view}, view
				if sel := spend.Select(&pieces[0].Component); len(pieces) != 1 || len(sel.Outcomes) != 2 || sel.Outcomes[1].Status != spend.SelectedFinal {
					b.Fatalf("%+v", sel)
				}
				f.remove(node)
			}
		})
	}
}
