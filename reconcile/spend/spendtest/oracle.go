package spendtest

import (
	"cmp"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// State is what the world says of one transaction.
type State struct {
	Status     spend.Status
	Eligible   bool
	EligibleAt uint64
	Ready      bool
	ReadyAt    uint64
	Depth      uint32
}

// Snapshot is the state of everything that was received.
type Snapshot struct {
	States       map[spend.TxID]State
	Replacements map[spend.TxID]spend.Replacement // by Next, of what is not pending
}

// run is one computation of a snapshot.
type run struct {
	w       *World
	ids     []spend.TxID // in total order
	rank    map[spend.TxID]int
	ready   map[spend.TxID]ready
	covered map[spend.TxID]bool
	forced  map[spend.TxID]bool
	waits   map[spend.TxID]bool

	selected map[spend.TxID]bool
	holder   map[spend.Outpoint]spend.TxID
	eligible map[spend.TxID]uint64
	replaced map[spend.TxID]bool
	links    map[spend.TxID]spend.Replacement
}

// Snapshot computes the state from the whole history.
func (w *World) Snapshot() Snapshot {
	r := &run{
		w: w, rank: map[spend.TxID]int{}, ready: map[spend.TxID]ready{}, covered: map[spend.TxID]bool{}, forced: map[spend.TxID]bool{},
		eligible: map[spend.TxID]uint64{}, replaced: map[spend.TxID]bool{}, links: map[spend.TxID]spend.Replacement{},
	}
	a := w.answers()
	for id := range w.facts {
		r.ids = append(r.ids, id)
		r.ready[id] = a.of(id)
	}
	slices.SortFunc(r.ids, r.before)
	for i, id := range r.ids {
		r.rank[id] = i
	}
	r.force()
	r.sweep()
	r.history()
	return r.today()
}

func (r *run) before(a, b spend.TxID) int {
	x, y := r.ready[a], r.ready[b]
	if x.ready != y.ready {
		if x.ready {
			return -1
		}
		return 1
	}
	f, g := r.w.facts[a].firstRaw, r.w.facts[b].firstRaw
	if !x.ready {
		return a.Compare(b)
	}
	return cmp.Or(
		cmp.Compare(x.readyAt, y.readyAt), cmp.Compare(x.depth, y.depth),
		cmp.Compare(f.At, g.At), cmp.Compare(f.Index, g.Index), a.Compare(b),
	)
}

// force finds what the current view selects: what it includes, and the ancestors of that. Literally, only the first.
func (r *run) force() {
	var cover func(spend.TxID)
	cover = func(id spend.TxID) {
		f, known := r.w.facts[id]
		if !known || r.covered[id] {
			return
		}
		r.covered[id] = true
		for _, in := range f.tx.Inputs {
			if !r.w.Literal {
				cover(in.TxID)
			}
		}
	}
	for _, id := range r.ids {
		valid := !r.w.Literal || r.w.facts[id].result == spend.Valid
		if valid && r.w.settled(id) && r.w.included(id) {
			cover(id)
		}
	}
	for id := range r.covered {
		r.forced[id] = r.w.settled(id) && r.w.facts[id].result != spend.Invalid
	}
}

// usable is a fact that selection may use.
func (r *run) usable(id spend.TxID) bool {
	f := r.w.facts[id]
	if r.w.Literal {
		return f.result == spend.Valid
	}
	proved := r.covered[id] || r.w.included(id)
	return r.w.settled(id) && (f.result == spend.Valid || proved && f.result != spend.Invalid)
}

// opens reports whether a transaction starts a barrier.
func (r *run) opens(id spend.TxID) bool {
	f := r.w.facts[id]
	if !r.ready[id].ready || r.usable(id) || f.result == spend.Invalid || f.result == spend.Limited || r.w.stuck(id) {
		return false
	}
	known := true
	for _, in := range f.tx.Inputs {
		known = known && (r.w.roots[in.TxID] || r.w.facts[in.TxID] != nil)
	}
	return known || r.covered[id] || r.w.proved(id)
}

// near reports whether two transactions are connected.
func (r *run) near(a, b spend.TxID) bool {
	x, y := r.w.facts[a].tx, r.w.facts[b].tx
	for _, in := range x.Inputs {
		if in.TxID == b {
			return true
		}
		for _, other := range y.Inputs {
			if in.Outpoint == other.Outpoint {
				return true
			}
		}
	}
	return slices.ContainsFunc(y.Inputs, func(in spend.Input) bool { return in.TxID == a })
}

// sweep finds what waits: the components of barriers, and those around what contradicts itself.
func (r *run) sweep() {
	r.waits = map[spend.TxID]bool{}
	blocked := func(id spend.TxID) bool { return r.forced[id] && !(r.w.Literal && r.w.Through) }
	for _, id := range r.ids {
		if r.opens(id) {
			r.waits[id] = true
		}
	}
	broken := map[spend.TxID]bool{}
	for _, a := range r.ids {
		for _, b := range r.ids {
			if r.w.Literal || a == b || !r.forced[a] || !r.near(a, b) {
				continue
			}
			shared := r.forced[b] && slices.ContainsFunc(r.w.facts[a].tx.Inputs, func(x spend.Input) bool {
				return slices.ContainsFunc(r.w.facts[b].tx.Inputs, func(y spend.Input) bool { return x.Outpoint == y.Outpoint })
			})
			child := slices.ContainsFunc(r.w.facts[a].tx.Inputs, func(x spend.Input) bool { return x.TxID == b })
			if shared || child && r.w.facts[b].result == spend.Invalid {
				broken[a] = true
			}
		}
	}
	for a := range broken {
		for _, b := range r.ids {
			if !r.forced[b] && r.near(a, b) {
				r.waits[b] = true
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for _, a := range r.ids {
			for _, b := range r.ids {
				if r.waits[a] && !r.waits[b] && !blocked(a) && !blocked(b) && r.near(a, b) {
					r.waits[b], grown = true, true
				}
			}
		}
	}
	for a := range broken {
		r.waits[a] = true
	}
}

func (r *run) final(id spend.TxID, v View) bool {
	t := r.w.facts[id].tx
	last := true
	for _, in := range t.Inputs {
		last = last && in.Sequence == 1<<32-1
	}
	if t.LockTime == 0 || last {
		return true
	}
	if t.LockTime < 500000000 {
		return uint64(t.LockTime) < v.Height+1
	}
	return uint64(t.LockTime) < v.MTP
}

// parents reports whether every parent can be built on, and whether one of them is not selected.
func (r *run) parents(id spend.TxID, v View) bool {
	for _, in := range r.w.facts[id].tx.Inputs {
		p := in.TxID
		if r.w.roots[p] || r.forced[p] {
			continue
		}
		if !r.selected[p] || !r.final(p, v) {
			return false
		}
	}
	return true
}

func (r *run) start() {
	r.selected, r.holder = map[spend.TxID]bool{}, map[spend.Outpoint]spend.TxID{}
	for _, id := range r.ids {
		if r.forced[id] {
			r.hold(id)
		}
	}
}

func (r *run) hold(id spend.TxID) {
	r.selected[id] = true
	for _, in := range r.w.facts[id].tx.Inputs {
		r.holder[in.Outpoint] = id
	}
}

// history is section 4.4.
func (r *run) history() {
	r.start()
	lost := map[spend.TxID]bool{}
	frontiers := []uint64{r.w.position}
	for _, id := range r.ids {
		if r.ready[id].ready {
			frontiers = append(frontiers, r.ready[id].readyAt)
		}
	}
	for _, v := range r.w.views {
		frontiers = append(frontiers, v.at)
	}
	slices.Sort(frontiers)
	for _, f := range slices.Compact(frontiers) {
		v := r.w.in(f)
		for again := true; again; {
			again = false
			for _, id := range r.ids {
				switch {
				case r.selected[id], r.forced[id], lost[id], r.replaced[id], r.waits[id]:
					continue
				case !r.ready[id].ready, r.ready[id].readyAt > f, !r.usable(id):
					continue
				case !r.parents(id, v), !r.w.NonFinal && !r.final(id, v):
					continue
				}
				if _, ok := r.eligible[id]; !ok {
					r.eligible[id] = f
				}
				if !r.admit(id, f, v) {
					lost[id] = true
				}
				if !r.w.Literal {
					again = true // the least one first, again from the start
					break
				}
			}
		}
	}
}

// admit takes free inputs, or those of the one version that it replaces.
func (r *run) admit(id spend.TxID, f uint64, v View) bool {
	holders := map[spend.TxID]bool{}
	for _, in := range r.w.facts[id].tx.Inputs {
		if h, held := r.holder[in.Outpoint]; held {
			holders[h] = true
		}
	}
	if len(holders) > 1 {
		return false
	}
	for h := range holders {
		if r.forced[h] || r.final(h, v) || !increases(r.w.facts[h].tx, r.w.facts[id].tx) {
			return false
		}
		r.selected[h], r.replaced[h] = false, true
		for _, in := range r.w.facts[h].tx.Inputs {
			delete(r.holder, in.Outpoint)
		}
		r.links[id] = spend.Replacement{Previous: h, Next: id, At: f}
	}
	r.hold(id)
	return true
}

func increases(old, next Tx) bool {
	if len(old.Inputs) != len(next.Inputs) {
		return false
	}
	higher := 0
	for i := range old.Inputs {
		if old.Inputs[i].Outpoint != next.Inputs[i].Outpoint || next.Inputs[i].Sequence < old.Inputs[i].Sequence {
			return false
		}
		if next.Inputs[i].Sequence > old.Inputs[i].Sequence {
			higher++
		}
	}
	return higher > 0
}

// today is section 4.5.
func (r *run) today() Snapshot {
	const last = 1<<64 - 1
	r.start()
	base := func(id spend.TxID) spend.TxID {
		for {
			link, ok := r.links[id]
			if !ok {
				return id
			}
			id = link.Previous
		}
	}
	at := func(id spend.TxID) uint64 {
		if f, ok := r.eligible[id]; ok {
			return f
		}
		return last
	}
	left := slices.Clone(r.ids)
	slices.SortFunc(left, func(a, b spend.TxID) int {
		x, y := base(a), base(b)
		return cmp.Or(cmp.Compare(at(x), at(y)), cmp.Compare(r.rank[x], r.rank[y]), cmp.Compare(r.rank[a], r.rank[b]))
	})
	snap := Snapshot{States: map[spend.TxID]State{}, Replacements: map[spend.TxID]spend.Replacement{}}
	for len(left) > 0 {
		k := 0
		if !r.w.Literal {
			// The first whose parents have all been decided: ancestors before descendants.
			k = slices.IndexFunc(left, func(id spend.TxID) bool {
				return !slices.ContainsFunc(r.w.facts[id].tx.Inputs, func(in spend.Input) bool {
					_, decided := snap.States[in.TxID]
					return r.w.facts[in.TxID] != nil && !r.forced[in.TxID] && !decided
				})
			})
		}
		id := left[k]
		left = slices.Delete(left, k, k+1)
		x := r.ready[id]
		s := State{Status: r.status(id), Ready: x.ready, ReadyAt: x.readyAt, Depth: x.depth}
		if s.Status != spend.Pending {
			s.EligibleAt, s.Eligible = r.eligible[id]
			if link, ok := r.links[id]; ok {
				snap.Replacements[id] = link
			}
		}
		snap.States[id] = s
	}
	return snap
}

func (r *run) status(id spend.TxID) spend.Status {
	f, v := r.w.facts[id], r.w.now()
	switch {
	case r.waits[id]:
		return spend.Pending
	case r.forced[id]:
		return spend.Included
	case !r.ready[id].ready:
		return spend.Unresolved
	case f.result == spend.Invalid:
		return spend.InvalidTx
	case f.result == spend.Limited:
		return spend.LimitedTx
	case !r.usable(id):
		return spend.Unresolved // its anchor is lost, or its groups are stuck
	case r.replaced[id]:
		return spend.Conflicting
	case slices.ContainsFunc(f.tx.Inputs, func(in spend.Input) bool { return !r.w.roots[in.TxID] && r.w.facts[in.TxID] == nil }):
		return spend.Unresolved
	case !r.parents(id, v):
		return spend.DependentConflict
	case !r.w.NonFinal && !r.final(id, v):
		return spend.Unsupported
	case slices.ContainsFunc(f.tx.Inputs, func(in spend.Input) bool { _, held := r.holder[in.Outpoint]; return held }):
		return spend.Conflicting
	}
	r.hold(id)
	if r.final(id, v) {
		return spend.SelectedFinal
	}
	return spend.SelectedNonFinal
}
