package reconcile

import (
	"bytes"
	"context"
	"iter"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// txn is one look at the store, or one commit of it: a reader, what was read, and
// what will be written. Get and Scan see this commit's own writes (T14 of the
// tests). Typed rows (meta, sources, generations, groups, transactions) are kept
// decoded and are written at the end; their spaces are never scanned by a commit.
type txn struct {
	ctx    context.Context
	r      Reader
	read   map[string][]byte  // values as the reader has them; nil: absent
	ranges map[string][]Entry // small ranges as the reader has them, by prefix; see warm.go
	typed  map[string]*typedRow
	spaces [256]*space // own writes
	meta   *metaRow
	budget Budget
	// contexts are the views known so far; nobody changes the elements.
	contexts []spend.View
	swapped  []spend.TxID // what a swap left to be published
	err      error        // the first one; whatever came after it means nothing
}

type typedRow struct {
	row   record // nil: absent
	dirty bool
}

// space holds the writes of one space; nil is a deletion.
type space struct {
	rows   map[string][]byte
	sorted []string // when as long as rows
}

func newTxn(ctx context.Context, r Reader) (*txn, error) {
	t := &txn{ctx: ctx, r: r, read: map[string][]byte{}, typed: map[string]*typedRow{}}
	t.meta = load[metaRow](t, key(spaceMeta))
	if t.err == nil && t.meta == nil {
		t.meta = &metaRow{}
	}
	return t, t.err
}

// fail keeps the first error.
func (t *txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// fetch reads keys that are needed soon, together.
func (t *txn) fetch(keys ...[]byte) {
	var missing [][]byte
	for _, k := range keys {
		if s := t.spaces[k[0]]; s != nil {
			if _, own := s.rows[string(k)]; own {
				continue
			}
		}
		if _, ok := t.read[string(k)]; !ok {
			t.read[string(k)] = nil
			missing = append(missing, k)
		}
	}
	if len(missing) == 0 || t.err != nil {
		return
	}
	values, err := t.r.Get(t.ctx, missing...)
	if err != nil {
		t.fail(err)
		return
	}
	for i, k := range missing {
		t.read[string(k)] = values[i]
	}
}

func (t *txn) get(k []byte) []byte {
	if s := t.spaces[k[0]]; s != nil {
		if v, own := s.rows[string(k)]; own {
			return v
		}
	}
	t.fetch(k)
	return t.read[string(k)]
}

func (t *txn) put(k, v []byte) {
	if v == nil {
		v = []byte{}
	}
	t.set(k, v)
}

func (t *txn) del(k []byte) { t.set(k, nil) }

func (t *txn) set(k, v []byte) {
	s := t.spaces[k[0]]
	if s == nil {
		s = &space{rows: map[string][]byte{}}
		t.spaces[k[0]] = s
	}
	s.rows[string(k)] = v
}

// own returns this commit's keys of a range, in order.
func (t *txn) own(from, to []byte) []string {
	s := t.spaces[from[0]]
	if s == nil {
		return nil
	}
	if len(s.sorted) != len(s.rows) {
		s.sorted = s.sorted[:0]
		for k := range s.rows {
			s.sorted = append(s.sorted, k)
		}
		slices.Sort(s.sorted)
	}
	at, _ := slices.BinarySearch(s.sorted, string(from))
	end := len(s.sorted)
	if to != nil {
		end, _ = slices.BinarySearch(s.sorted, string(to))
	}
	return slices.Clone(s.sorted[at:max(at, end)])
}

// scan gives the entries of [from, to), which lie in one space, at most limit of
// them (0: all). Writes made meanwhile may or may not be seen.
func (t *txn) scan(from, to []byte, limit int) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if t.err != nil {
			return
		}
		own := t.own(from, to)
		n := 0
		give := func(k, v []byte) bool {
			if v == nil {
				return true
			}
			n++
			return yield(Entry{k, v}) && (limit <= 0 || n < limit)
		}
		readers := limit
		if limit > 0 {
			readers += len(own) // so many of them may be deleted
		}
		for e, err := range t.base(from, to, readers) {
			if err != nil {
				t.fail(err)
				return
			}
			for len(own) > 0 && own[0] < string(e.Key) {
				k := own[0]
				own = own[1:]
				if !give([]byte(k), t.spaces[from[0]].rows[k]) {
					return
				}
			}
			if len(own) > 0 && own[0] == string(e.Key) {
				e.Value = t.spaces[from[0]].rows[own[0]]
				own = own[1:]
			}
			if !give(e.Key, e.Value) {
				return
			}
		}
		for _, k := range own {
			if !give([]byte(k), t.spaces[from[0]].rows[k]) {
				return
			}
		}
	}
}

// prefix scans everything that begins with p.
func (t *txn) prefix(p []byte, limit int) iter.Seq[Entry] { return t.scan(p, after(p), limit) }

// load reads a typed row; nil when there is none. The row may be changed when
// dirty is called for it.
func load[T any, P interface {
	*T
	record
}](t *txn, k []byte) *T {
	if have, ok := t.typed[string(k)]; ok {
		if have.row == nil {
			return nil
		}
		return have.row.(P)
	}
	v := t.get(k)
	if t.err != nil {
		return nil
	}
	if v == nil {
		t.typed[string(k)] = &typedRow{}
		return nil
	}
	row := P(new(T))
	if err := decode(v, row); err != nil {
		t.fail(err)
		return nil
	}
	t.typed[string(k)] = &typedRow{row: row}
	return row
}

// save makes a typed row, or marks one that was loaded and changed.
func (t *txn) save(k []byte, row record) { t.typed[string(k)] = &typedRow{row: row, dirty: true} }

// plain decodes a row that is kept as bytes.
func plain[T any, P interface {
	*T
	record
}](t *txn, v []byte) (row T, ok bool) {
	if v == nil || t.err != nil {
		return row, false
	}
	if err := decode(v, P(&row)); err != nil {
		t.fail(err)
		return row, false
	}
	return row, true
}

// writes is everything that this commit changed.
func (t *txn) writes() Writes {
	var w Writes
	t.save(key(spaceMeta), t.meta)
	for k, row := range t.typed {
		if row.dirty {
			t.put([]byte(k), encode(row.row))
		}
	}
	for _, s := range t.spaces {
		if s == nil {
			continue
		}
		for k, v := range s.rows {
			old, known := t.read[k]
			switch {
			case v == nil && (!known || old != nil):
				w.Delete = append(w.Delete, []byte(k))
			case v != nil && !(known && old != nil && bytes.Equal(old, v)):
				w.Put = append(w.Put, Entry{[]byte(k), v})
			}
		}
	}
	slices.SortFunc(w.Put, func(a, b Entry) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortFunc(w.Delete, bytes.Compare)
	return w
}

// Rows by their keys.

func (t *txn) source(id uint32) *sourceRow { return load[sourceRow](t, key(spaceSource, id)) }

func (t *txn) saveSource(id uint32, s *sourceRow) { t.save(key(spaceSource, id), s) }

func (t *txn) generation(source uint32, n uint64) *generationRow {
	return load[generationRow](t, key(spaceGeneration, source, n))
}

func (t *txn) saveGeneration(source uint32, n uint64, g *generationRow) {
	t.save(key(spaceGeneration, source, n), g)
}

func (t *txn) group(n uint64) *groupRow { return load[groupRow](t, key(spaceGroup, n)) }

func (t *txn) saveGroup(n uint64, g *groupRow) { t.save(key(spaceGroup, n), g) }

func (t *txn) candidate(group uint64, index uint32) *candidateRow {
	return load[candidateRow](t, key(spaceCandidate, group, index))
}

func (t *txn) saveCandidate(group uint64, index uint32, c *candidateRow) {
	t.save(key(spaceCandidate, group, index), c)
}

func (t *txn) tx(id spend.TxID) *txRow { return load[txRow](t, key(spaceTx, id)) }

func (t *txn) saveTx(id spend.TxID, row *txRow) { t.save(key(spaceTx, id), row) }

// context returns the one in force at a position.
func (t *txn) contextAt(position uint64) Context {
	c := load[Context](t, key(spaceContext, position))
	if c == nil {
		if t.err == nil {
			t.fail(ErrDamaged)
		}
		return Context{}
	}
	return *c
}

func (t *txn) context() Context { return t.contextAt(t.meta.ContextAt) }
