package reconcile

import (
	"context"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// Work lists jobs; see Store.
func (e *engine) Work(ctx context.Context, from Cursor, limit int) (jobs []Job, next Cursor, err error) {
	limit = min(max(limit, 1), 4096)
	err = e.view(ctx, func(t *txn) error {
		current := t.context().ID
		first := []byte{spaceJob}
		if from != (Cursor{}) {
			first = append(key(spaceJob, uint32(from.Source), from.Group, uint32(from.Index)), 0)
		}
		open := slices.Collect(t.scan(first, after([]byte{spaceJob}), limit))
		a := &ahead{txn: t}
		for _, e := range open {
			a.keys = append(a.keys, key(spaceGroup, u64At(e.Key, 5)), append([]byte{spaceCandidate}, e.Key[5:]...))
		}
		a.read()
		for _, e := range open {
			at := Cursor{SourceID(u32At(e.Key, 1)), u64At(e.Key, 5), uint64(u32At(e.Key, 13))}
			row, ok := plain[jobRow](t, e.Value)
			group, c := t.group(at.Group), t.candidate(at.Group, uint32(at.Index))
			if !ok || group == nil || c == nil {
				return ErrDamaged
			}
			j := Job{
				Source: at.Source, Generation: group.Generation, Group: at.Group, Index: at.Index, Target: c.Target, Variant: c.Variant,
				Context: current, Bytes: int(c.Size),
			}
			if row.Target != nil {
				j.Target = *row.Target
			}
			jobs = append(jobs, j)
			next = at
		}
		if len(jobs) < limit {
			next = Cursor{}
		}
		return nil
	})
	return jobs, next, err
}

// Load gathers what a job needs; see Store.
func (e *engine) Load(ctx context.Context, j Job) (ev Evidence, err error) {
	err = e.view(ctx, func(t *txn) error {
		ev = Evidence{Job: j}
		group, c := t.group(j.Group), t.candidate(j.Group, uint32(j.Index))
		o, ok := plain[observationRow](t, t.get(key(spaceObservation, j.Group, uint32(j.Index))))
		if group == nil || c == nil || !ok {
			return ErrDamaged
		}
		from := []spend.TxID{c.Target}
		if row, open := plain[jobRow](t, t.get(key(spaceJob, group.Source, j.Group, uint32(j.Index)))); open && row.Target != nil {
			// It was accepted for a proof; now whatever of the group has no result is run.
			from = (graph{t}).Carried(spend.GroupID(j.Group))
		} else {
			switch Effect(o.Effect) {
			case SpendOf:
				ev.Want.Previous = &o.Outpoint
			case Present:
				ev.Want.Output = &o.Outpoint.Index
			}
		}
		t.gather(&ev, from)
		return nil
	})
	return ev, err
}

// gather walks from some transactions to whatever of their ancestry has a result,
// an anchor or trust, and lists the rest, ancestors first. The target is listed in
// any case.
func (t *txn) gather(ev *Evidence, from []spend.TxID) {
	wanted := spend.TxID{}
	if len(from) == 1 {
		wanted = from[0]
	}
	const (
		entered = 1
		left    = 2
	)
	state := map[spend.TxID]byte{}
	missing := map[spend.Outpoint]bool{}
	type frame struct {
		id   spend.TxID
		next int // input to look at
	}
	enter := func(id spend.TxID) (push bool) {
		if state[id] != 0 {
			return false
		}
		row := t.tx(id)
		if row == nil {
			return false
		}
		state[id] = entered
		switch {
		case row.Trusted || row.Result == byte(spend.Valid):
			ev.Decided = append(ev.Decided, Fact{TxID: id, Valid: true})
			t.present(ev, id, wanted)
		case row.Result == byte(spend.Invalid):
			ev.Decided = append(ev.Decided, Fact{TxID: id})
			t.present(ev, id, wanted)
		case row.anchored():
			ev.Txs = append(ev.Txs, Prepared{ID: id, Raw: slices.Clone(t.get(key(spaceRaw, id))), Anchored: true})
		default:
			return true
		}
		state[id] = left
		return false
	}
	for _, id := range from {
		if !enter(id) {
			continue
		}
		for stack := []frame{{id: id}}; len(stack) > 0 && t.err == nil; {
			f := &stack[len(stack)-1]
			row := t.tx(f.id)
			if f.next < len(row.Inputs) {
				in := row.Inputs[f.next]
				f.next++
				switch {
				case t.tx(in.TxID) == nil:
					if !missing[in.Outpoint] {
						missing[in.Outpoint] = true
						ev.Missing = append(ev.Missing, in.Outpoint)
					}
				case enter(in.TxID):
					stack = append(stack, frame{id: in.TxID})
				}
				continue
			}
			ev.Txs = append(ev.Txs, t.prepare(f.id, row))
			state[f.id] = left
			stack = stack[:len(stack)-1]
		}
	}
}

// present lists the target though it has a result: what is said about it is judged
// by its bytes.
func (t *txn) present(ev *Evidence, id, target spend.TxID) {
	if row := t.tx(id); id == target && row != nil {
		ev.Txs = append(ev.Txs, t.prepare(id, row))
	}
}

// prepare puts the outputs that a transaction consumes beside it.
func (t *txn) prepare(id spend.TxID, row *txRow) Prepared {
	p := Prepared{ID: id, Raw: slices.Clone(t.get(key(spaceRaw, id))), Parents: make([]Coin, len(row.Inputs))}
	keys := make([][]byte, len(row.Inputs))
	for i, in := range row.Inputs {
		keys[i] = key(spaceRaw, in.TxID)
	}
	t.fetch(keys...)
	parsed := map[spend.TxID][]Coin{}
	for i, in := range row.Inputs {
		outputs, ok := parsed[in.TxID]
		if !ok {
			if raw := t.get(keys[i]); raw != nil {
				tx, err := parseTx(raw)
				if err != nil {
					t.fail(ErrDamaged)
				}
				outputs = tx.outputs
			}
			parsed[in.TxID] = outputs
		}
		if uint64(in.Index) < uint64(len(outputs)) {
			c := outputs[in.Index]
			c.Script = slices.Clone(c.Script)
			p.Parents[i] = c
		}
	}
	return p
}

// Settled lists what is ready; see Store.
func (e *engine) Settled(ctx context.Context, limit int) (list []Mutation, err error) {
	limit = min(max(limit, 1), 4096)
	err = e.view(ctx, func(t *txn) error {
		current := t.context().ID
		ready := slices.Collect(t.prefix([]byte{spaceReady}, limit))
		t.aheadOfReady(ready)
		for _, e := range ready {
			n := u64At(e.Key, 1)
			group := t.group(n)
			if group == nil {
				return ErrDamaged
			}
			g := t.generation(group.Source, group.Generation)
			if g == nil {
				return ErrDamaged
			}
			list = append(list, Accept{
				Source: SourceID(group.Source), Scope: g.Scope, GroupID: group.ID, Generation: group.Generation, Context: current,
				Results: t.results(n, group),
			})
		}
		if t.meta.Due > 0 && len(list) < limit {
			list = append(list, Reconcile{Context: current, Reason: "facts changed without an accept", Received: t.meta.Revision.Received})
		}
		return nil
	})
	return list, err
}
