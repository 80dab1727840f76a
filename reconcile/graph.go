package reconcile

import (
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// graph answers spend's questions from a store. Errors stay in the txn.
type graph struct{ *txn }

var _ spend.Prefetcher = graph{}

func (g graph) Prefetch(ids []spend.TxID) {
	keys := make([][]byte, 0, len(ids))
	for _, id := range ids {
		if k := key(spaceTx, id); g.typed[string(k)] == nil {
			keys = append(keys, k)
		}
	}
	g.fetch(keys...)
}

func (g graph) Tx(id spend.TxID) (*spend.Node, bool) {
	row := g.tx(id)
	if row == nil {
		return nil, false
	}
	n := &spend.Node{
		ID: id, Inputs: row.Inputs, LockTime: row.LockTime, FirstRaw: row.FirstRaw, Trusted: row.Trusted,
		Received: row.Received, ReceivedAt: row.ReceivedAt, Ready: row.Ready, ReadyAt: row.ReadyAt, Depth: row.Depth,
		Result: spend.Result(row.Result), Settled: row.Settled, Covered: row.Covered, Included: row.included(), Proved: row.proved(),
	}
	n.AnchoredAt, n.Anchored = row.anchor()
	if row.Ready && !row.Settled && !row.Trusted {
		n.Stuck = g.stuck(id)
	}
	return n, true
}

// stuck reports whether every group that could settle it has a member recorded as
// limited or unresolved.
func (g graph) stuck(id spend.TxID) bool {
	found := false
	for _, n := range g.Carriers(id) {
		group := g.group(uint64(n))
		if group == nil || group.Stuck == 0 {
			return false
		}
		found = true
	}
	return found
}

// anchor is the first position at which a proof of it held.
func (t *txRow) anchor() (at uint64, ok bool) {
	for i := range t.Claims {
		if p := &t.Claims[i]; p.Held && p.Group != 0 && (!ok || p.HeldAt < at) {
			at, ok = p.HeldAt, true
		}
	}
	return at, ok
}

// included reports whether a proof of it, from a group that was verified whole,
// holds in the context in force.
func (t *txRow) included() bool {
	return slices.ContainsFunc(t.Claims, func(p claimRow) bool { return p.Holds && p.Settled && p.Group != 0 })
}

// proved reports whether any proof of it holds in the context in force.
func (t *txRow) proved() bool {
	return slices.ContainsFunc(t.Claims, func(p claimRow) bool { return p.Holds && p.Group != 0 })
}

// anchored reports whether the context in force stands for it.
func (t *txRow) anchored() bool { return t.Covered || t.proved() }

func (g graph) Children(id spend.TxID) []spend.TxID {
	var list []spend.TxID
	for e := range g.prefix(key(spaceSpend, id), 0) {
		list = append(list, txidAt(e.Key, 37))
	}
	return list
}

func (g graph) Spenders(o spend.Outpoint) []spend.TxID {
	var list []spend.TxID
	for e := range g.prefix(key(spaceSpend, o), 0) {
		list = append(list, txidAt(e.Key, 37))
	}
	return list
}

func (g graph) Carriers(id spend.TxID) []spend.GroupID {
	var list []spend.GroupID
	for e := range g.prefix(key(spaceCarrier, id), 0) {
		n := u64At(e.Key, 33)
		if group := g.group(n); group != nil && group.supports() {
			list = append(list, spend.GroupID(n))
		}
	}
	return list
}

// supports reports whether what a group brought may be rested on.
func (g *groupRow) supports() bool { return g.Status != groupQuarantined && g.Status != groupRetired }

func (g graph) Carried(group spend.GroupID) []spend.TxID {
	ids, ok := plain[idsRow](g.txn, g.get(key(spaceCarried, uint64(group))))
	if !ok {
		return nil
	}
	return ids.IDs
}

func (g graph) Targets(group spend.GroupID) (uint64, []spend.TxID) {
	if row := g.group(uint64(group)); row != nil {
		return row.Position, row.Targets
	}
	return 0, nil
}

// assign writes readiness down. It returns whose raw ancestry became complete.
func (t *txn) assign(list []spend.Readiness) (received []spend.TxID) {
	for _, r := range list {
		row := t.tx(r.ID)
		if row == nil {
			return nil
		}
		if r.Received && !row.Received {
			received = append(received, r.ID)
		}
		row.Received, row.ReceivedAt = r.Received, r.ReceivedAt
		row.Ready, row.ReadyAt, row.Depth = r.Ready, r.ReadyAt, r.Depth
		row.ReadyView = 0
		if r.Ready {
			row.ReadyView = t.viewAt(r.ReadyAt).At
		}
		t.saveTx(r.ID, row)
	}
	return received
}

// cover keeps the ancestor closure of what is included and returns whose bit
// changed.
func (t *txn) cover(changed []spend.TxID) []spend.TxID {
	var flipped []spend.TxID
	for _, c := range spend.Cover(graph{t}, changed) {
		row := t.tx(c.ID)
		if row == nil {
			return nil
		}
		row.Covered = c.Covered
		t.saveTx(c.ID, row)
		flipped = append(flipped, c.ID)
	}
	return flipped
}

// views returns the contexts as finality sees them, ascending by position. They
// are few: one for each change of the chain's view.
func (t *txn) views() []spend.View {
	have := t.contexts
	next := uint64(0)
	if n := len(have); n > 0 {
		next = have[n-1].At + 1
	}
	if next <= t.meta.ContextAt {
		for e := range t.scan(key(spaceContext, next), after([]byte{spaceContext}), 0) {
			c, ok := plain[Context](t, e.Value)
			if !ok {
				return nil
			}
			have = append(have, viewOf(u64At(e.Key, 1), c))
		}
		t.contexts = slices.Clip(have)
	}
	return t.contexts
}

func viewOf(at uint64, c Context) spend.View {
	return spend.View{At: at, NextHeight: c.View.TipHeight + 1, MTP: c.View.MedianTimePast}
}

// viewAt returns the view in force at a position.
func (t *txn) viewAt(position uint64) spend.View {
	views := t.views()
	i, found := slices.BinarySearchFunc(views, position, func(v spend.View, at uint64) int {
		switch {
		case v.At < at:
			return -1
		case v.At > at:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		t.fail(ErrDamaged)
		return spend.View{}
	}
	return views[i]
}
