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
// While shared, what freeze returned has blocks in common with what goes on, so a
// block of an older age is copied before it is changed.
type rows struct {
	blocks []*block
	age    uint64
	shared bool
}

type block struct {
	entries []reconcile.Entry
	age     uint64
}

// freeze returns the rows as they are now, and leaves them to be changed beside it.
func (r *rows) freeze() *rows {
	frozen := &rows{blocks: r.blocks}
	r.blocks, r.age, r.shared = slices.Clone(r.blocks), r.age+1, true
	return frozen
}

func compare(e reconcile.Entry, key []byte) int { return bytes.Compare(e.Key, key) }

// find returns where key is or would be.
func (r *rows) find(key []byte) (at, i int, found bool) {
	at, found = slices.BinarySearchFunc(r.blocks, key, func(b *block, key []byte) int { return compare(b.entries[0], key) })
	if found {
		return at, 0, true
	}
	if at == 0 {
		return 0, 0, false
	}
	at--
	i, found = slices.BinarySearchFunc(r.blocks[at].entries, key, compare)
	return at, i, found
}

func (r *rows) get(key []byte) []byte {
	if at, i, ok := r.find(key); ok {
		return r.blocks[at].entries[i].Value
	}
	return nil
}

// own returns a block that may be changed.
func (r *rows) own(at int) *block {
	b := r.blocks[at]
	if r.shared && b.age != r.age {
		entries := make([]reconcile.Entry, len(b.entries), most+1)
		copy(entries, b.entries)
		b = &block{entries, r.age}
		r.blocks[at] = b
	}
	return b
}

func (r *rows) put(key, value []byte) {
	e := reconcile.Entry{Key: key, Value: value}
	at, i, found := r.find(key)
	if len(r.blocks) == 0 {
		r.blocks = []*block{{[]reconcile.Entry{e}, r.age}}
		return
	}
	b := r.own(at)
	if found {
		b.entries[i] = e
		return
	}
	if b.entries = slices.Insert(b.entries, i, e); len(b.entries) <= most {
		return
	}
	cut := most / 2
	if i == most && at == len(r.blocks)-1 { // keys that only grow fill their blocks
		cut = most
	}
	rest := make([]reconcile.Entry, len(b.entries)-cut, most+1)
	copy(rest, b.entries[cut:])
	clear(b.entries[cut:])
	b.entries = b.entries[:cut]
	r.blocks = slices.Insert(r.blocks, at+1, &block{rest, r.age})
}

func (r *rows) remove(key []byte) {
	at, i, found := r.find(key)
	if !found {
		return
	}
	b := r.own(at)
	if b.entries = slices.Delete(b.entries, i, i+1); len(b.entries) == 0 {
		r.blocks = slices.Delete(r.blocks, at, at+1)
	}
}

// from gives the entries at and after key.
func (r *rows) from(key []byte) iter.Seq[reconcile.Entry] {
	return func(yield func(reconcile.Entry) bool) {
		if len(r.blocks) == 0 {
			return
		}
		at, i, _ := r.find(key)
		for ; at < len(r.blocks); at, i = at+1, 0 {
			for _, e := range r.blocks[at].entries[i:] {
				if !yield(e) {
					return
				}
			}
		}
	}
}
