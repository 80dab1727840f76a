package verifytest

import (
	"encoding/binary"
	"slices"

	"github.com/overlayd/overlayd/internal/beef"
)

// Evidence says how a BEEF is written. The zero value is V2 with the target, its
// ancestors back to mined ones, and the paths of these.
type Evidence struct {
	V1         bool
	Atomic     bool   // around V2
	RawOnly    bool   // the target alone, without a path
	TxIDOnly   []*Tx  // transactions reduced to their txid
	Also       []*Tx  // further targets: an aggregate. They stand last
	In         *Block // where paths are taken from when a transaction stands in several blocks; nil: the newest
	Unproved   bool   // no paths: ancestors back to the first block
	TargetLast bool   // otherwise the target stands first
}

// BEEF makes the evidence of a transaction.
func (c *Chain) BEEF(target *Tx, e Evidence) []byte {
	c.t.Helper()
	w := &writer{c: c, e: e, met: map[*Tx]bool{}}
	w.add(target)
	if e.TargetLast {
		slices.Reverse(w.entries)
	}
	for _, t := range e.Also {
		w.add(t)
	}
	var out []byte
	if e.Atomic {
		out = append(out, 1, 1, 1, 1)
		out = append(out, target.wire[:]...)
	}
	version := uint32(0xEFBE0002)
	if e.V1 {
		version = 0xEFBE0001
	}
	out = binary.LittleEndian.AppendUint32(out, version)
	out = beef.AppendCompactSize(out, uint64(len(w.paths)))
	for _, p := range w.paths {
		out = append(out, p...)
	}
	out = beef.AppendCompactSize(out, uint64(len(w.entries)))
	for _, n := range w.entries {
		switch {
		case slices.Contains(e.TxIDOnly, n.tx):
			out = append(append(out, 2), n.tx.wire[:]...)
		case e.V1 && n.path < 0:
			out = append(append(out, n.tx.Raw...), 0)
		case e.V1:
			out = append(append(out, n.tx.Raw...), 1)
			out = beef.AppendCompactSize(out, uint64(n.path))
		case n.path < 0:
			out = append(append(out, 0), n.tx.Raw...)
		default:
			out = beef.AppendCompactSize(append(out, 1), uint64(n.path))
			out = append(out, n.tx.Raw...)
		}
	}
	return out
}

type entry struct {
	tx   *Tx
	path int // -1: none
}

type writer struct {
	c       *Chain
	e       Evidence
	met     map[*Tx]bool
	entries []entry
	paths   [][]byte
}

func (w *writer) add(t *Tx) {
	if w.met[t] {
		return
	}
	w.met[t] = true
	if w.e.RawOnly {
		w.entries = append(w.entries, entry{t, -1})
		return
	}
	if b := w.block(t); b != nil && !w.e.Unproved {
		w.entries = append(w.entries, entry{t, len(w.paths)})
		w.paths = append(w.paths, b.Path(t))
		return
	}
	w.entries = append(w.entries, entry{t, -1})
	for _, p := range t.parents {
		w.add(p)
	}
}

func (w *writer) block(t *Tx) *Block {
	in := w.c.where[t]
	if slices.Contains(in, w.e.In) {
		return w.e.In
	}
	if len(in) == 0 {
		return nil
	}
	return in[len(in)-1]
}

// Path is the Merkle path (BRC-74) of a transaction of the block.
func (b *Block) Path(t *Tx) []byte {
	place := slices.Index(b.Txs, t)
	levels := b.tree[:max(len(b.tree)-1, 1)]
	out := beef.AppendCompactSize(nil, uint64(b.Height))
	out = append(out, byte(len(levels)))
	for level, nodes := range levels {
		own := place >> level
		sibling := own ^ 1
		leaf := func(at int, flags byte) {
			out = beef.AppendCompactSize(out, uint64(at))
			if at >= len(nodes) {
				out = append(out, 1)
				return
			}
			out = append(append(out, flags), nodes[at][:]...)
		}
		switch {
		case len(nodes) == 1:
			out = append(out, 1)
			leaf(0, 2)
		case level == 0:
			out = append(out, 2)
			if sibling < own {
				leaf(sibling, 0)
			}
			leaf(own, 2)
			if sibling > own {
				leaf(sibling, 0)
			}
		default:
			out = append(out, 1)
			leaf(sibling, 0)
		}
	}
	return out
}
