package reconcile

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// maturity is how many blocks a coinbase needs on top before its placement counts.
const maturity = 100

// Claims lists placements; see Store.
func (e *engine) Claims(ctx context.Context, from, to uint32) (list []Claim, err error) {
	err = e.view(ctx, func(t *txn) error {
		list = t.placements(from, t.context().View.TipHeight, uint64(to))
		return nil
	})
	return list, err
}

// placements are the claims that a view with another tip may answer otherwise:
// those above the fork that hold or lie within the new view, and coinbases whose
// maturity the new height decides.
func (t *txn) placements(fork uint32, old, now uint64) []Claim {
	var list []Claim
	seen := map[claimKey]bool{}
	take := func(id spend.TxID, want func(*claimRow) bool) {
		row := t.tx(id)
		if row == nil {
			return
		}
		for i := range row.Claims {
			p := &row.Claims[i]
			if k := (claimKey{id, p.Height, p.Root}); want(p) && !seen[k] {
				seen[k] = true
				list = append(list, Claim{TxID: id, Height: p.Height, Root: p.Root, Coinbase: p.Coinbase, Holds: p.Holds, Known: p.Known})
			}
		}
	}
	for e := range t.scan(key(spaceClaim, fork), after([]byte{spaceClaim}), 0) {
		take(txidAt(e.Key, 5), func(p *claimRow) bool { return p.Height >= fork && (p.Holds || uint64(p.Height) <= now) })
	}
	low, high := min(old, now), max(old, now)
	if high >= maturity {
		from := uint32(0)
		if low >= maturity {
			from = uint32(min(low-maturity, math.MaxUint32))
		}
		to := min(high-maturity, math.MaxUint32)
		for e := range t.scan(key(spaceClaim, from), after(key(spaceClaim, uint32(to))), 0) {
			if len(e.Value) == 1 && e.Value[0] == 1 {
				take(txidAt(e.Key, 5), func(p *claimRow) bool { return p.Coinbase && p.Height >= from && uint64(p.Height) <= to })
			}
		}
	}
	slices.SortFunc(list, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Height, b.Height), a.TxID.Compare(b.TxID), slices.Compare(a.Root[:], b.Root[:]))
	})
	return list
}

// changeContext installs another view (BRC-192 s10.4): it answers the placements, flips
// finality, and recomputes what that reaches, in one accepted revision.
func (t *txn) changeContext(m ContextChange, p *publication) (*refusal, error) {
	was, c := t.context(), m.Context
	if c.ID == "" || len(c.ID) > 256 {
		return nil, errContext
	}
	if m.Prepared != "" && m.Prepared != was.ID {
		return refuse(StatusContextChanged, "the view of the chain moved"), t.err
	}
	answers := map[claimKey]*Claim{}
	for i := range m.Claims {
		a := &m.Claims[i]
		answers[claimKey{a.TxID, a.Height, a.Root}] = a
	}
	asked := t.placements(m.Fork, was.View.TipHeight, c.View.TipHeight)
	for i := range asked {
		if answers[claimKey{asked[i].TxID, asked[i].Height, asked[i].Root}] == nil {
			return refuse(StatusContextChanged, "a placement came meanwhile: ask for the claims again"), t.err
		}
	}
	before := viewOf(t.meta.ContextAt, was)
	t.meta.Position++
	at := t.meta.Position
	t.meta.ContextAt = at
	t.put(key(spaceContext, at), encode(&c))

	var anchored, changed []spend.TxID
	for i := range asked {
		q := &asked[i]
		a := answers[claimKey{q.TxID, q.Height, q.Root}]
		row := t.tx(q.TxID)
		j := slices.IndexFunc(row.Claims, func(x claimRow) bool { return x.Height == q.Height && x.Root == q.Root })
		x := &row.Claims[j]
		if x.Holds == a.Holds && x.Known == (a.Known || a.Holds) {
			continue
		}
		if x.Holds != a.Holds {
			changed = append(changed, q.TxID)
		}
		x.Holds, x.Known = a.Holds, a.Known || a.Holds
		if x.Holds && !x.Held {
			x.Held, x.HeldAt = true, at
			anchored = append(anchored, q.TxID)
		}
		t.saveTx(q.TxID, row)
	}
	seeds := append(slices.Clone(changed), t.flip(before, viewOf(at, c), at)...)
	ready := spend.Advance(graph{t}, anchored, nil)
	t.wake(t.assign(ready))
	for _, r := range ready {
		seeds = append(seeds, r.ID)
	}
	seeds = append(seeds, t.cover(changed)...)
	t.again(c)
	for _, id := range slices.Concat(changed, seeds) {
		t.recheck(id)
	}
	for e := range t.prefix([]byte{spacePending}, 0) {
		if len(e.Value) == 1 && spend.Reason(e.Value[0]) == spend.Contradiction {
			seeds = append(seeds, txidAt(e.Key, 1))
		}
	}
	seeds = append(seeds, t.takeDue(0)...)
	t.publish(seeds, p)
	return nil, t.err
}

// flip notes whose finality is another now and returns them.
func (t *txn) flip(was, now spend.View, at uint64) []spend.TxID {
	var ids []spend.TxID
	between := func(from, to uint64, kind byte) {
		low, high := min(from, to), max(from, to)
		if low == high || low > math.MaxUint32 {
			return
		}
		first := key(spaceLock, kind, uint32(low))
		end := after(key(spaceLock, kind))
		if high <= math.MaxUint32 {
			end = key(spaceLock, kind, uint32(high))
		}
		for e := range t.scan(first, end, 0) {
			id := txidAt(e.Key, 6)
			row := t.tx(id)
			if row == nil {
				return
			}
			row.Flips = append(row.Flips, flipRow{At: at, Final: to > from})
			t.saveTx(id, row)
			ids = append(ids, id)
		}
	}
	between(was.NextHeight, now.NextHeight, 0)
	between(was.MTP, now.MTP, 1)
	return ids
}

// again has everything verified under the old context and not accepted verified
// under the new one, and looks again at what may be resolved by it.
func (t *txn) again(c Context) {
	var list []candidateKey
	for e := range t.prefix([]byte{spaceVerified}, 0) {
		list = append(list, candidateKey{u64At(e.Key, 1), u32At(e.Key, 9)})
	}
	for e := range t.prefix([]byte{spaceForeign}, 0) {
		k := candidateKey{u64At(e.Key, 1), u32At(e.Key, 9)}
		if t.forged(k, c.View.TipHeight) {
			t.invalid(k, "the root of a proof is on no branch of the chain", c.Now)
			continue
		}
		list = append(list, k)
	}
	for _, k := range list {
		t.reopen(k, false)
	}
}

// forged reports whether a placement of a candidate lies within the view and is on
// no branch that is known.
func (t *txn) forged(k candidateKey, tip uint64) bool {
	c := t.candidate(k.Group, k.Index)
	if c == nil {
		return false
	}
	return slices.ContainsFunc(c.Claims, func(claim claimKey) bool {
		row := t.tx(claim.TxID)
		return row != nil && uint64(claim.Height) <= tip && slices.ContainsFunc(row.Claims, func(p claimRow) bool {
			return p.Height == claim.Height && p.Root == claim.Root && !p.Known && !p.Holds
		})
	})
}

// recheck has the scripts of a transaction run that was accepted for a proof alone,
// when the proof holds no longer and its parents are known.
func (t *txn) recheck(id spend.TxID) {
	row := t.tx(id)
	if row == nil || row.Trusted || !row.Settled || row.Result != byte(spend.None) || row.anchored() {
		return
	}
	for _, in := range row.Inputs {
		if t.tx(in.TxID) == nil {
			return
		}
	}
	for e := range t.prefix(key(spaceCarrier, id), 0) {
		x, ok := plain[carrierRow](t, e.Value)
		n := u64At(e.Key, 33)
		group := t.group(n)
		if !ok || group == nil {
			return
		}
		if group.Status == groupSettled || group.Status == groupPublished {
			t.put(key(spaceJob, group.Source, n, x.Via), encode(&jobRow{Target: &id}))
			return
		}
	}
}

// reconcile recomputes what is due, or everything.
func (t *txn) reconcile(m Reconcile, p *publication) (*refusal, error) {
	if m.Context != t.context().ID {
		return refuse(StatusContextChanged, "the view of the chain moved"), t.err
	}
	seeds := t.takeDue(0)
	if m.All {
		for e := range t.prefix([]byte{spaceTx}, 0) {
			seeds = append(seeds, txidAt(e.Key, 1))
		}
	}
	t.publish(seeds, p)
	return nil, t.err
}

// invalidate has nothing to change: see Invalidate.
func (t *txn) invalidate(Invalidate) (*refusal, error) { return nil, t.err }
