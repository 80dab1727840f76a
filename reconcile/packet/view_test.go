package packet_test

import (
	"encoding/hex"
	"slices"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// chainView is one view under the id of a context.
type chainView struct {
	id     string
	tree   *tree
	chain  []*block
	height uint32
	mtp    uint64
	tip    string
}

var _ verify.View = (*chainView)(nil)

// view opens a view of the corpus.
func (w *world) view(name, id string) *chainView {
	w.t.Helper()
	of, ok := w.views[name]
	if !ok {
		w.t.Fatalf("the corpus has no view %q", name)
	}
	chain := w.headers.chain(of.tip)
	if len(chain) == 0 {
		w.t.Fatalf("view %s: no header %x", name, of.tip)
	}
	v := &chainView{id: id, tree: w.headers, chain: chain, height: chain[len(chain)-1].height, tip: hex.EncodeToString(of.tip[:])}
	var times []uint32
	for _, b := range chain[max(0, len(chain)-11):] {
		times = append(times, b.time)
	}
	slices.Sort(times)
	v.mtp = uint64(times[len(times)/2])
	if of.height != nil {
		v.height, v.tip = *of.height, name
	}
	if of.mtp != nil {
		v.mtp = *of.mtp
	}
	return v
}

func (v *chainView) ID() string { return v.id }

func (v *chainView) Context() reconcile.ChainView {
	return reconcile.ChainView{TipHash: v.tip, TipHeight: uint64(v.height), MedianTimePast: v.mtp}
}

func (v *chainView) Root(height uint32) ([32]byte, bool) {
	if uint64(height) >= uint64(len(v.chain)) {
		return [32]byte{}, false
	}
	return v.chain[height].root, true
}

func (v *chainView) Known(height uint32, root [32]byte) bool {
	for _, b := range v.tree.blocks {
		if b.height == height && b.root == root {
			return true
		}
	}
	return false
}

// fork is the height of the last block that two views share.
func fork(a, b *chainView) uint32 {
	last := uint32(0)
	for i := range min(len(a.chain), len(b.chain)) {
		if a.chain[i].hash != b.chain[i].hash {
			break
		}
		last = a.chain[i].height
	}
	return last
}
