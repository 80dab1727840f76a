package memstore

import (
	"bytes"
	"iter"
	"slices"

	"github.com/overlayd/overlayd/reconcile"
)

// most is how many entries a block has before it is split.
const most = 256

// rows are entries in the order of their keys, in blocks that are never empty.
type rows struct{ blocks [][]reconcile.Entry }

func compare(e reconcile.Entry, key []byte) int { return bytes.Compare(e.Key, key) }

// find returns where key is or would be.
func (r *rows) find(key []byte) (block, at int, found bool) {
	block, found = slices.BinarySearchFunc(r.blocks, key, func(b []reconcile.Entry, key []byte) int { return compare(b[0], key) })
	if found {
		return block, 0, true
	}
	if block == 0 {
		return 0, 0, false
	}
	block--
	at, found = slices.BinarySearchFunc(r.blocks[block], key, compare)
	return block, at, found
}

func (r *rows) get(key []byte) []byte {
	if b, i, ok := r.find(key); ok {
		return r.blocks[b][i].Value
	}
	return nil
}

func (r *rows) put(key, value []byte) {
	e := reconcile.Entry{Key: key, Value: value}
	b, i, found := r.find(key)
	switch {
	case found:
		r.blocks[b][i] = e
		return
	case len(r.blocks) == 0:
		r.blocks = [][]reconcile.Entry{{e}}
		return
	}
	block := slices.Insert(r.blocks[b], i, e)
	if len(block) <= most {
		r.blocks[b] = block
		return
	}
	cut := most / 2
	if i == most && b == len(r.blocks)-1 { // keys that only grow fill their blocks
		cut = most
	}
	rest := make([]reconcile.Entry, len(block)-cut, most+1)
	copy(rest, block[cut:])
	clear(block[cut:])
	r.blocks[b] = block[:cut]
	r.blocks = slices.Insert(r.blocks, b+1, rest)
}

func (r *rows) remove(key []byte) {
	b, i, found := r.find(key)
	if !found {
		return
	}
	if r.blocks[b] = slices.Delete(r.blocks[b], i, i+1); len(r.blocks[b]) == 0 {
		r.blocks = slices.Delete(r.blocks, b, b+1)
	}
}

// from gives the entries at and after key.
func (r *rows) from(key []byte) iter.Seq[reconcile.Entry] {
	return func(yield func(reconcile.Entry) bool) {
		if len(r.blocks) == 0 {
			return
		}
		b, i, _ := r.find(key)
		for ; b < len(r.blocks); b, i = b+1, 0 {
			for _, e := range r.blocks[b][i:] {
				if !yield(e) {
					return
				}
			}
		}
	}
}
