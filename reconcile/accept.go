package reconcile

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// accept publishes one whole group.
func (t *txn) accept(m Accept, p *publication) (swapped bool, no *refusal, err error) {
	source := uint32(m.Source)
	s, g := t.source(source), t.generation(source, m.Generation)
	switch {
	case t.err != nil:
		return false, nil, t.err
	case s == nil:
		return false, nil, errSource
	case g == nil || g.Retired || m.Generation <= s.Closed:
		return false, refuse(StatusContextChanged, "the generation is retired"), nil
	case m.Context != t.context().ID:
		return false, refuse(StatusContextChanged, "the view of the chain moved"), t.err
	case !bytes.Equal(g.Scope, m.Scope):
		return false, nil, errScope
	}
	n, group := t.find(source, m.Generation, g.Scope, m.GroupID)
	switch {
	case group == nil:
		return false, refuse(StatusContextChanged, "there is no such group"), t.err
	case group.Status != groupWaiting:
		return false, refuse(StatusContextChanged, "the group waits no longer"), nil
	case group.Open > 0 || !t.sameResults(n, group, m):
		return false, refuse(StatusContextChanged, "the results are not those that are recorded"), t.err
	}
	group.Status = groupSettled
	t.saveGroup(n, group)
	t.del(key(spaceReady, n))
	for index := range group.Count {
		t.del(key(spaceVerified, n, index))
	}
	seeds := t.confirm(n)
	seeds = append(seeds, t.cover(seeds)...)
	swapped = t.flush(source, s, m.Generation, g, p)
	t.publish(append(seeds, t.swapped...), p)
	t.swapped = nil
	return swapped, nil, t.err
}

// find looks a group up by its id.
func (t *txn) find(source uint32, generation uint64, scope []byte, id string) (uint64, *groupRow) {
	for _, space := range [][]byte{namespace(scope, generation), namespace(scope, 0)} {
		row, ok := plain[idRow](t, t.get(idKey(source, space, 0, id)))
		if !ok {
			continue
		}
		if g := t.group(row.Group); g != nil && g.Generation == generation {
			return row.Group, g
		}
	}
	return 0, nil
}

// sameResults compares an accept with what is recorded.
func (t *txn) sameResults(n uint64, group *groupRow, m Accept) bool {
	have := t.results(n, group)
	return slices.EqualFunc(have, m.Results, func(a, b Result) bool {
		return a.Index == b.Index && a.Variant == b.Variant && a.Context == b.Context && a.Context == m.Context && a.Status == b.Status &&
			a.Reason == b.Reason && slices.Equal(a.Dependencies, b.Dependencies)
	})
}

// results are those of every candidate of a group.
func (t *txn) results(n uint64, group *groupRow) []Result {
	keys := make([][]byte, group.Count)
	for i := range keys {
		keys[i] = key(spaceCandidate, n, uint32(i))
	}
	if group.Candidates > 0 {
		t.fetch(keys...)
	}
	var list []Result
	for i := uint32(0); i < group.Count && group.Candidates > 0; i++ {
		if c := t.candidate(n, i); c != nil {
			list = append(list, Result{
				Source: SourceID(group.Source), Generation: group.Generation, Group: n, Index: uint64(i), Variant: c.Variant,
				Context: c.Context, Status: resultStatuses[c.Status], Reason: c.Reason, Dependencies: c.Dependencies,
			})
		}
	}
	return list
}

// confirm makes facts of what a group carries and returns what changed by it.
func (t *txn) confirm(n uint64) []spend.TxID {
	ids := (graph{t}).Carried(spend.GroupID(n))
	graph{t}.Prefetch(ids)
	keys := make([][]byte, len(ids))
	for i, id := range ids {
		keys[i] = key(spaceCarrier, id, n)
	}
	t.fetch(keys...)
	var changed []spend.TxID
	for i, id := range ids {
		row := t.tx(id)
		if row == nil {
			return nil
		}
		if row.Trusted {
			continue
		}
		moved := !row.Settled
		row.Settled = true
		x, ok := plain[carrierRow](t, t.get(keys[i]))
		for j := range row.Claims {
			p := &row.Claims[j]
			if ok && !p.Settled && slices.Contains(x.Claims, claimKey{id, p.Height, p.Root}) {
				p.Settled, moved = true, true
			}
		}
		if moved {
			t.saveTx(id, row)
			changed = append(changed, id)
		}
	}
	return changed
}

// flush publishes the membership of the settled groups at the head of the queue.
func (t *txn) flush(source uint32, s *sourceRow, generation uint64, g *generationRow, p *publication) (swapped bool) {
	active := s.Active == generation
	for ; g.Head < g.Tail && t.err == nil; g.Head++ {
		place := key(spaceQueue, source, generation, g.Head)
		v := t.get(place)
		if len(v) != 8 {
			t.fail(ErrDamaged)
			return false
		}
		n := binary.BigEndian.Uint64(v)
		group := t.group(n)
		if group == nil || group.Status != groupSettled {
			break
		}
		t.apply(source, generation, n, group, active, p)
		t.del(place)
		group.Status = groupPublished
		t.saveGroup(n, group)
		g.Through, g.Any = group.Sequence, true
		g.Complete = g.Complete || group.Last
		t.count(source, s, g, -1, -int64(group.Bytes))
	}
	t.saveGeneration(source, generation, g)
	if active || !g.Complete || generation < s.Active {
		return false
	}
	t.swap(source, s, generation, p)
	return true
}

// apply plays the observations of one group, in their order.
func (t *txn) apply(source uint32, generation, n uint64, group *groupRow, active bool, p *publication) {
	keys := make([][]byte, group.Count)
	for i := range keys {
		keys[i] = key(spaceObservation, n, uint32(i))
	}
	t.fetch(keys...)
	for _, k := range keys {
		o, ok := plain[observationRow](t, t.get(k))
		if !ok {
			return
		}
		if Effect(o.Effect) != Present && Effect(o.Effect) != Absent {
			continue
		}
		row := membershipRow{Present: Effect(o.Effect) == Present, Phase: group.Phase, Sequence: group.Sequence, Observation: o.ID}
		place := key(spaceMember, source, generation, o.Outpoint)
		if t.get(place) == nil {
			t.put(key(spaceListing, o.Outpoint, source, generation), nil)
			t.meta.Memberships++
		}
		t.put(place, encode(&row))
		switch {
		case active:
			p.sources(o.Outpoint)
			p.change.Memberships = append(p.change.Memberships, MembershipChange{
				Source: SourceID(source), Generation: generation, Outpoint: o.Outpoint, Present: row.Present, Sequence: row.Sequence,
				Observation: row.Observation,
			})
		case t.get(key(spaceOutput, o.Outpoint)) == nil:
			p.look(o.Outpoint)
		}
	}
}

// swap makes a complete generation the source's answer and retires all before it.
func (t *txn) swap(source uint32, s *sourceRow, generation uint64, p *publication) {
	old := s.Active
	s.Active = generation
	t.compare(source, old, generation, p)
	var lost []uint64
	for n := s.Closed + 1; n < generation; n++ {
		g := t.generation(source, n)
		if g == nil {
			continue
		}
		g.Retired = true
		for ; g.Head < g.Tail; g.Head++ {
			place := key(spaceQueue, source, n, g.Head)
			v := t.get(place)
			t.del(place)
			if len(v) != 8 {
				t.fail(ErrDamaged)
				return
			}
			number := binary.BigEndian.Uint64(v)
			group := t.group(number)
			switch {
			case group == nil:
				return
			case group.Status == groupWaiting:
				t.drop(number, group, groupRetired)
				lost = append(lost, number)
				t.count(source, s, g, -1, -int64(group.Bytes))
			case group.Status == groupSettled:
				t.count(source, s, g, -1, -int64(group.Bytes))
			}
		}
		t.saveGeneration(source, n, g)
		t.put(key(spaceSweep, source, n), nil)
		t.meta.Sweeping = true
	}
	s.Closed = generation - 1
	t.saveSource(source, s)
	if len(lost) > 0 {
		t.retract(lost...)
		t.swapped = append(t.swapped, t.takeDue(0)...)
	}
}

// compare walks the rows of two generations side by side and tells what is
// another one now.
func (t *txn) compare(source uint32, old, now uint64, p *publication) {
	next, stop := pullRows(t, key(spaceMember, source, old))
	defer stop()
	before, ok := next()
	change := func(e Entry, generation uint64, gone bool) {
		m, valid := plain[membershipRow](t, e.Value)
		if !valid {
			return
		}
		o := outpointAt(e.Key, 13)
		p.sources(o)
		p.change.Memberships = append(p.change.Memberships, MembershipChange{
			Source: SourceID(source), Generation: generation, Outpoint: o, Present: m.Present && !gone, Gone: gone, Sequence: m.Sequence,
			Observation: m.Observation,
		})
	}
	for e := range t.prefix(key(spaceMember, source, now), 0) {
		for ok && bytes.Compare(before.Key[13:], e.Key[13:]) < 0 {
			change(before, old, true)
			before, ok = next()
		}
		if ok && bytes.Equal(before.Key[13:], e.Key[13:]) {
			was, _ := plain[membershipRow](t, before.Value)
			is, _ := plain[membershipRow](t, e.Value)
			if was.Present != is.Present || was.Observation != is.Observation {
				change(e, now, false)
			}
			before, ok = next()
			continue
		}
		change(e, now, false)
	}
	for ; ok; before, ok = next() {
		change(before, old, true)
	}
}

// takeDue takes at most limit marks (0: all) of what must be recomputed.
func (t *txn) takeDue(limit int) []spend.TxID {
	if t.meta.Due == 0 {
		return nil
	}
	var ids []spend.TxID
	for e := range t.prefix([]byte{spaceDue}, limit) {
		ids = append(ids, txidAt(e.Key, 1))
	}
	for _, id := range ids {
		t.del(key(spaceDue, id))
		t.meta.Due--
	}
	return ids
}

// sweep removes rows of retired generations, a bounded number with each commit.
func (t *txn) sweep() {
	if !t.meta.Sweeping || t.err != nil {
		return
	}
	const most = 2048
	for e := range t.prefix([]byte{spaceSweep}, 1) {
		source, generation := u32At(e.Key, 1), u64At(e.Key, 5)
		n := 0
		for row := range t.prefix(key(spaceMember, source, generation), most) {
			n++
			o := outpointAt(row.Key, 13)
			t.del(row.Key)
			t.del(key(spaceListing, o, source, generation))
			t.meta.Memberships--
		}
		if n < most {
			t.del(e.Key)
		}
		return
	}
	t.meta.Sweeping = false
}

// canonical puts an observation's bytes together again.
func (t *txn) canonical(o *observationRow) []byte {
	b := slices.Clone(o.Head)
	if o.Spliced {
		b = base64.StdEncoding.AppendEncode(b, t.get(key(spaceEvidence, o.Variant[:])))
	}
	return append(b, o.Tail...)
}

// pullRows reads a prefix row by row.
func pullRows(t *txn, prefix []byte) (next func() (Entry, bool), stop func()) {
	return iter.Pull(t.prefix(prefix, 0))
}
