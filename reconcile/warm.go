package reconcile

import (
	"bytes"
	"context"
	"iter"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// RangeReader is a [Reader] that reads many small ranges in one round trip. A
// backend for which a round trip costs nothing has no need of it.
type RangeReader interface {
	Reader
	// Ranges gives, for each prefix, the entries whose keys begin with it, in
	// order, at most limit of them.
	Ranges(ctx context.Context, prefixes [][]byte, limit int) ([][]Entry, error)
}

const (
	// rangeMost is how many entries a range may have to be remembered whole.
	rangeMost = 64
	// rangesMost bounds how many ranges one look at the store remembers.
	rangesMost = 1 << 16
)

// base scans what the reader has, and remembers small ranges that were read whole.
func (t *txn) base(from, to []byte, limit int) iter.Seq2[Entry, error] {
	if !bytes.Equal(to, after(from)) {
		return t.r.Scan(t.ctx, from, to, limit)
	}
	return func(yield func(Entry, error) bool) {
		if list, ok := t.known(from); ok {
			for _, e := range list {
				if bytes.HasPrefix(e.Key, from) && !yield(e, nil) {
					return
				}
			}
			return
		}
		var list []Entry
		n := 0
		for e, err := range t.r.Scan(t.ctx, from, to, limit) {
			if n++; err == nil && n < rangeMost {
				list = append(list, e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
		if n < rangeMost && (limit <= 0 || n < limit) {
			t.remember(from, list)
		}
	}
}

// known returns the entries of a range that holds all that begins with prefix.
func (t *txn) known(prefix []byte) ([]Entry, bool) {
	list, ok := t.ranges[string(prefix)]
	if !ok && len(prefix) > 33 { // what is about one output, among what is about its transaction
		list, ok = t.ranges[string(prefix[:33])]
	}
	return list, ok
}

func (t *txn) remember(prefix []byte, list []Entry) {
	if t.ranges == nil {
		t.ranges = map[string][]Entry{}
	}
	if len(t.ranges) < rangesMost {
		t.ranges[string(prefix)] = list
	}
}

// ahead gathers what will be read soon, so that it is read together. It is a hint:
// what was not foreseen is read when it is needed.
type ahead struct {
	*txn
	keys     [][]byte
	prefixes [][]byte
}

func (a *ahead) row(space byte, parts ...any) { a.keys = append(a.keys, key(space, parts...)) }

func (a *ahead) all(space byte, parts ...any) { a.prefixes = append(a.prefixes, key(space, parts...)) }

// read reads what was gathered.
func (a *ahead) read() {
	a.fetch(a.keys...)
	a.keys = a.keys[:0]
	r, ok := a.r.(RangeReader)
	var missing [][]byte
	seen := map[string]bool{}
	for _, p := range a.prefixes {
		if _, have := a.known(p); !have && !seen[string(p)] {
			seen[string(p)] = true
			missing = append(missing, p)
		}
	}
	a.prefixes = a.prefixes[:0]
	if !ok || len(missing) == 0 || a.err != nil {
		return
	}
	lists, err := r.Ranges(a.ctx, missing, rangeMost)
	if err != nil {
		a.fail(err)
		return
	}
	for i, list := range lists {
		if len(list) < rangeMost {
			a.remember(missing[i], list)
		}
	}
}

// node gathers a transaction and what stands around it.
func (a *ahead) node(id spend.TxID, inputs []spend.Input) {
	a.row(spaceTx, id)
	a.all(spaceCarrier, id)
	a.all(spaceSpend, id)
	a.all(spaceOutput, id)
	for _, in := range inputs {
		a.row(spaceTx, in.TxID)
		a.row(spaceOutput, in.Outpoint)
		a.all(spaceSpend, in.Outpoint)
	}
}

// neighbours gathers who spends what the transaction spends or makes.
func (a *ahead) neighbours(id spend.TxID, inputs []spend.Input) {
	near := func(prefix []byte) {
		list, _ := a.known(prefix)
		for _, e := range list {
			if bytes.HasPrefix(e.Key, prefix) {
				if other := txidAt(e.Key, 37); other != id {
					a.row(spaceTx, other)
					a.all(spaceCarrier, other)
					a.all(spaceSpend, other)
				}
			}
		}
	}
	near(key(spaceSpend, id))
	for _, in := range inputs {
		near(key(spaceSpend, in.Outpoint))
		a.all(spaceCarrier, in.TxID)
		a.all(spaceSpend, in.TxID)
	}
}

// aheadOf reads what commits of these mutations will want.
func (t *txn) aheadOf(ms []Mutation, keys []Key) {
	a := &ahead{txn: t}
	var accepts []Accept
	for i, m := range ms {
		a.row(spaceMutation, keys[i][:])
		switch m := m.(type) {
		case Receive:
			a.receive(&m)
		case Accept:
			accepts = append(accepts, m)
		}
	}
	if len(accepts) > 0 {
		a.accepts(accepts)
	}
	a.read()
}

func (a *ahead) receive(m *Receive) {
	b := &m.Batch
	a.row(spaceSource, uint32(b.Source))
	a.row(spaceGeneration, uint32(b.Source), b.Generation)
	spaces := [][]byte{namespace(b.Scope, b.Generation), namespace(b.Scope, 0)}
	for i := range b.Groups {
		for _, space := range spaces {
			a.keys = append(a.keys, idKey(uint32(b.Source), space, 0, b.Groups[i].ID))
			for j := range b.Groups[i].Observations {
				a.keys = append(a.keys, idKey(uint32(b.Source), space, 1, b.Groups[i].Observations[j].ID))
			}
		}
	}
	inputs := map[spend.TxID][]spend.Input{}
	for i := range m.Plan {
		for _, x := range m.Plan[i].Txs {
			if _, ok := inputs[x.ID]; ok {
				continue
			}
			if tx, err := parseTx(x.Raw); err == nil {
				inputs[x.ID] = tx.inputs
				a.node(x.ID, tx.inputs)
				a.row(spaceWaiters, x.ID)
			}
		}
	}
	a.read()
	for id, list := range inputs {
		a.neighbours(id, list)
	}
}

func (a *ahead) accepts(list []Accept) {
	for _, m := range list {
		a.row(spaceSource, uint32(m.Source))
		a.row(spaceGeneration, uint32(m.Source), m.Generation)
		for _, space := range [][]byte{namespace(m.Scope, m.Generation), namespace(m.Scope, 0)} {
			a.keys = append(a.keys, idKey(uint32(m.Source), space, 0, m.GroupID))
		}
	}
	a.read()
	var groups []uint64
	for _, m := range list {
		for _, space := range [][]byte{namespace(m.Scope, m.Generation), namespace(m.Scope, 0)} {
			if row, ok := plain[idRow](a.txn, a.get(idKey(uint32(m.Source), space, 0, m.GroupID))); ok {
				groups = append(groups, row.Group)
				a.row(spaceGroup, row.Group)
				a.row(spaceCarried, row.Group)
			}
		}
	}
	a.read()
	for _, n := range groups {
		group := a.group(n)
		if group == nil {
			continue
		}
		a.row(spaceQueue, group.Source, group.Generation, group.Ord)
		for index := range group.Count {
			a.row(spaceCandidate, n, index)
			a.row(spaceObservation, n, index)
		}
		for _, id := range (graph{a.txn}).Carried(spend.GroupID(n)) {
			a.row(spaceCarrier, id, n)
			a.row(spaceTx, id)
		}
	}
	a.read()
	inputs := map[spend.TxID][]spend.Input{}
	for _, n := range groups {
		group := a.group(n)
		if group == nil {
			continue
		}
		for index := range group.Count {
			if o, ok := plain[observationRow](a.txn, a.get(key(spaceObservation, n, index))); ok {
				a.row(spaceMember, group.Source, group.Generation, o.Outpoint)
				a.row(spaceOutput, o.Outpoint)
				a.row(spaceTx, o.Outpoint.TxID)
				a.all(spaceListing, o.Outpoint)
				a.all(spaceSpend, o.Outpoint)
			}
		}
		for _, id := range (graph{a.txn}).Carried(spend.GroupID(n)) {
			if row := a.tx(id); row != nil && inputs[id] == nil {
				inputs[id] = row.Inputs
				a.node(id, row.Inputs)
				for _, in := range row.Inputs {
					a.all(spaceListing, in.Outpoint)
				}
			}
		}
	}
	a.read()
	for id, list := range inputs {
		a.neighbours(id, list)
	}
}

// aheadOfResults reads what keeping these results will want.
func (t *txn) aheadOfResults(results []Result) {
	a := &ahead{txn: t}
	for i := range results {
		r := &results[i]
		a.row(spaceGroup, r.Group)
		a.row(spaceCandidate, r.Group, uint32(r.Index))
		a.row(spaceJob, uint32(r.Source), r.Group, uint32(r.Index))
		for _, f := range r.Facts {
			a.row(spaceTx, f.TxID)
		}
	}
	a.read()
	for i := range results {
		if c := t.candidate(results[i].Group, uint32(results[i].Index)); c != nil {
			a.row(spaceTx, c.Target)
		}
	}
	a.read()
}

// aheadOfReady reads what listing these groups will want.
func (t *txn) aheadOfReady(ready []Entry) {
	a := &ahead{txn: t}
	for _, e := range ready {
		a.row(spaceGroup, u64At(e.Key, 1))
	}
	a.read()
	for _, e := range ready {
		n := u64At(e.Key, 1)
		if group := t.group(n); group != nil && group.Candidates > 0 {
			for index := range group.Count {
				a.row(spaceCandidate, n, index)
			}
		}
	}
	a.read()
}
