package spendtest

import (
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// World is everything that a store of one partition has been told. The zero value of a field means what it says; make one
// with [NewWorld].
type World struct {
	NonFinal bool
	// Literal computes by the published reducer alone: readiness by bytes only, and the barrier goes on through included
	// transactions when Through is set too.
	Literal, Through bool

	position uint64
	roots    map[spend.TxID]bool
	facts    map[spend.TxID]*fact
	views    []placed
	groups   []*held
}

type fact struct {
	tx       Tx
	firstRaw spend.Position
	result   spend.Result
	kept     *ready // of an invalid one: what it had when it was found invalid, for good
}

type placed struct {
	at   uint64
	view View
}

type held struct {
	Group
	at                            uint64
	settled, stalled, quarantined bool
}

// ready is what readiness says of one transaction.
type ready struct {
	received, ready     bool
	receivedAt, readyAt uint64
	depth               uint32
}

// NewWorld starts a journal: roots are trusted, and the view is in force at position 0.
func NewWorld(nonFinal bool, roots []Tx, view View) *World {
	w := &World{NonFinal: nonFinal, roots: map[spend.TxID]bool{}, facts: map[spend.TxID]*fact{}}
	for _, t := range roots {
		w.roots[t.ID] = true
	}
	w.views = []placed{{0, view}}
	return w
}

// Position is the last position that was taken.
func (w *World) Position() uint64 { return w.position }

// Receive takes a position for a batch: txs are all raw transactions in it, known ones too. Groups are numbered by
// [Group].ID, which must be new.
func (w *World) Receive(groups []Group, txs []Tx) {
	w.position++
	fresh := slices.DeleteFunc(slices.Clone(txs), func(t Tx) bool { return w.roots[t.ID] || w.facts[t.ID] != nil })
	slices.SortFunc(fresh, func(a, b Tx) int { return a.ID.Compare(b.ID) })
	fresh = slices.CompactFunc(fresh, func(a, b Tx) bool { return a.ID == b.ID })
	for i, t := range fresh {
		w.facts[t.ID] = &fact{tx: t, firstRaw: spend.Position{At: w.position, Index: uint32(i)}}
	}
	for _, g := range groups {
		w.groups = append(w.groups, &held{Group: g, at: w.position})
	}
	w.keep()
}

// View takes a position for another view.
func (w *World) View(v View) {
	w.position++
	w.views = append(w.views, placed{w.position, v})
	w.keep()
}

// Reveal says what a transaction's scripts are.
func (w *World) Reveal(id spend.TxID, r spend.Result) {
	f := w.facts[id]
	f.result = r
	w.keep()
}

// Settle says that a group was verified whole.
func (w *World) Settle(g spend.GroupID) { w.group(g).settled = true }

// Stall says that a member of a group is limited or unresolved for now.
func (w *World) Stall(g spend.GroupID, stalled bool) { w.group(g).stalled = stalled }

// Quarantine takes the support of a group away.
func (w *World) Quarantine(g spend.GroupID) { w.group(g).quarantined = true }

func (w *World) group(id spend.GroupID) *held {
	for _, g := range w.groups {
		if g.ID == id {
			return g
		}
	}
	panic("spendtest: no such group")
}

// keep freezes the readiness of what is invalid.
func (w *World) keep() {
	a := w.answers()
	for id, f := range w.facts {
		if f.result == spend.Invalid && (f.kept == nil || !f.kept.ready) {
			f.kept = new(a.of(id))
		}
	}
}

// carriers are the groups whose support counts.
func (w *World) carriers(id spend.TxID) []*held {
	var list []*held
	for _, g := range w.groups {
		if !g.quarantined && slices.Contains(g.Carries, id) {
			list = append(list, g)
		}
	}
	return list
}

// settled reports whether a group that carries it was verified whole. Literally there are no groups.
func (w *World) settled(id spend.TxID) bool {
	return w.Literal || slices.ContainsFunc(w.carriers(id), func(g *held) bool { return g.settled })
}

// stuck reports whether no group can settle it before something else comes.
func (w *World) stuck(id spend.TxID) bool {
	list := w.carriers(id)
	return !w.Literal && !w.settled(id) && len(list) > 0 && !slices.ContainsFunc(list, func(g *held) bool { return !g.stalled })
}

// now is the view in force.
func (w *World) now() View { return w.views[len(w.views)-1].view }

// in is the view in force at a position.
func (w *World) in(position uint64) View {
	v := w.views[0].view
	for _, p := range w.views {
		if p.at <= position {
			v = p.view
		}
	}
	return v
}

// included reports whether a proof of it, from a group that was verified whole, holds in the view in force.
func (w *World) included(id spend.TxID) bool {
	return w.proof(id, func(g *held) bool { return g.settled || w.Literal })
}

// proved reports whether any proof of it holds in the view in force.
func (w *World) proved(id spend.TxID) bool { return w.proof(id, func(*held) bool { return true }) }

func (w *World) proof(id spend.TxID, from func(*held) bool) bool {
	for _, g := range w.groups {
		if g.quarantined || !from(g) {
			continue
		}
		for _, c := range g.Claims {
			if c.TxID == id && w.now().Holds(c) {
				return true
			}
		}
	}
	return false
}

// anchoredAt is the least position at which a proof was there and held.
func (w *World) anchoredAt(id spend.TxID) (least uint64, ok bool) {
	for _, g := range w.groups {
		if g.quarantined {
			continue
		}
		for _, c := range g.Claims {
			if c.TxID != id {
				continue
			}
			for p := g.at; p <= w.position; p++ {
				if w.in(p).Holds(c) {
					if !ok || p < least {
						least, ok = p, true
					}
					break
				}
			}
		}
	}
	return least, ok
}

// answers computes readiness from nothing and remembers what it computed.
type answers struct {
	w        *World
	received map[spend.TxID]ready // only what the name says
	ready    map[spend.TxID]ready
}

func (w *World) answers() *answers {
	return &answers{w, map[spend.TxID]ready{}, map[spend.TxID]ready{}}
}

// of is what readiness says of one transaction.
func (a *answers) of(id spend.TxID) ready {
	f, known := a.w.facts[id]
	switch {
	case a.w.roots[id]:
		return ready{received: true, ready: true}
	case !known:
		return ready{}
	}
	r, ok := a.ready[id]
	if !ok {
		switch {
		case a.w.Literal:
			r = a.literal(f)
		case f.kept != nil && f.kept.ready:
			r = *f.kept
		default:
			r = a.full(f)
		}
		a.ready[id] = r
	}
	return r
}

// literal is section 4.1 of the published reducer.
func (a *answers) literal(f *fact) ready {
	r := ready{received: true, ready: true, readyAt: f.firstRaw.At}
	for _, in := range f.tx.Inputs {
		p := a.of(in.TxID)
		if !p.ready {
			return ready{}
		}
		r.readyAt = max(r.readyAt, p.readyAt)
	}
	for _, in := range f.tx.Inputs {
		if p := a.of(in.TxID); p.readyAt == r.readyAt && !a.w.roots[in.TxID] {
			r.depth = max(r.depth, p.depth+1)
		}
	}
	return r
}

// known is the first half of full: what groups stand on.
func (a *answers) known(id spend.TxID) ready {
	f, known := a.w.facts[id]
	switch {
	case a.w.roots[id]:
		return ready{received: true}
	case !known:
		return ready{}
	}
	if r, ok := a.received[id]; ok {
		return r
	}
	r := ready{received: true, receivedAt: f.firstRaw.At}
	for _, in := range f.tx.Inputs {
		p := a.known(in.TxID)
		r.received, r.receivedAt = r.received && p.received, max(r.receivedAt, p.receivedAt)
	}
	if at, ok := a.w.anchoredAt(id); ok && (!r.received || at < r.receivedAt) {
		r.received, r.receivedAt = true, at
	}
	if !r.received {
		r = ready{}
	}
	if f.kept != nil && f.kept.received {
		r = ready{received: true, receivedAt: f.kept.receivedAt}
	}
	a.received[id] = r
	return r
}

// full is readiness with anchors and groups.
func (a *answers) full(f *fact) ready {
	r := a.known(f.tx.ID)
	path, at := true, f.firstRaw.At
	for _, in := range f.tx.Inputs {
		p := a.of(in.TxID)
		path, at = path && p.ready, max(at, p.readyAt)
	}
	anchorAt, anchored := a.w.anchoredAt(f.tx.ID)
	if anchored && (!path || anchorAt < at) {
		path, at = true, anchorAt
	}
	group, groupAt := false, uint64(0)
	for _, g := range a.w.carriers(f.tx.ID) {
		all, last := true, g.at
		for _, target := range g.Targets {
			t := a.known(target)
			all, last = all && t.received, max(last, t.receivedAt)
		}
		if all && (!group || last < groupAt) {
			group, groupAt = true, last
		}
	}
	if !path || !group {
		return r
	}
	r.ready, r.readyAt = true, max(at, groupAt)
	if anchored && anchorAt <= r.readyAt {
		return r
	}
	for _, in := range f.tx.Inputs {
		if a.w.roots[in.TxID] {
			continue
		}
		anchor, ok := a.w.anchoredAt(in.TxID)
		if p := a.of(in.TxID); p.readyAt == r.readyAt && (!ok || anchor > r.readyAt) {
			r.depth = max(r.depth, p.depth+1)
		}
	}
	return r
}
