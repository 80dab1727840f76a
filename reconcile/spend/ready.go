package spend

import "slices"

// Readiness is what [Advance] or [Retract] assigned: the node's new values of the fields of the same names.
type Readiness struct {
	ID         TxID
	Received   bool
	ReceivedAt uint64
	Ready      bool
	ReadyAt    uint64
	Depth      uint32
}

// Advance assigns readiness after facts came in: changed are transactions that became known or gained an anchor, groups are
// those that were received. Nothing that was assigned changes. Results are in ascending order of ids, one for each
// transaction that gained something.
//
//	received  its anchor's position, or the greatest of its own first position and its parents' received
//	ready     the greatest of: its anchor's position or (its own first position and its parents' ready), and the least
//	          position at which one group that carries it, and all targets of that group, had been received
func Advance(g Graph, changed []TxID, groups []GroupID) []Readiness {
	w := newWorker(g)
	w.receive(changed)
	w.complete(append(w.gained(), groups...))
	return w.results()
}

// Retract assigns readiness anew after support was taken away: changed are transactions that lost a carrier or a proof.
// Everything that rests on them is judged again, from the facts that are left and with their positions; what has as good
// a support elsewhere keeps its place. A transaction whose Result is Invalid keeps what it has, so that it stays invalid.
// Results are in ascending order of ids, one for each transaction whose readiness is another now.
func Retract(g Graph, changed []TxID) []Readiness {
	w := newWorker(g)
	w.again(changed)
	return w.results()
}

// worker is one run of Advance or Retract.
type worker struct {
	cache
	before map[TxID]Readiness // of what this run touched
	groups map[GroupID]completion
}

// completion is when a group and every target of it had been received. It is looked up only once received is settled.
type completion struct {
	at uint64
	ok bool
}

func newWorker(g Graph) *worker {
	return &worker{cache: read(g), before: map[TxID]Readiness{}, groups: map[GroupID]completion{}}
}

func (n *Node) readiness() Readiness {
	return Readiness{ID: n.ID, Received: n.Received, ReceivedAt: n.ReceivedAt, Ready: n.Ready, ReadyAt: n.ReadyAt, Depth: n.Depth}
}

// touch remembers what a node was before it is changed for the first time.
func (w *worker) touch(n *Node) {
	if _, ok := w.before[n.ID]; !ok {
		w.before[n.ID] = n.readiness()
	}
}

// results are those that are not what they were.
func (w *worker) results() []Readiness {
	var list []Readiness
	for id, was := range w.before {
		if now := w.seen[id].readiness(); now != was {
			list = append(list, now)
		}
	}
	slices.SortFunc(list, func(a, b Readiness) int { return a.ID.Compare(b.ID) })
	return list
}

// receivedAt is the position since which a transaction is known up to trusted roots or to anchors.
func (w *worker) receivedAt(n *Node) (at uint64, ok bool) {
	at, ok = n.FirstRaw.At, true
	for _, id := range n.parents() {
		p := w.node(id)
		if p == nil || !p.Trusted && !p.Received {
			ok = false
			break
		}
		if !p.Trusted {
			at = max(at, p.ReceivedAt)
		}
	}
	switch {
	case n.Anchored && (!ok || n.AnchoredAt < at):
		return n.AnchoredAt, true
	case !ok:
		return 0, false
	}
	return at, true
}

// completeAt is when a group and every target of it had been received.
func (w *worker) completeAt(group GroupID) completion {
	if c, ok := w.groups[group]; ok {
		return c
	}
	at, targets := w.g.Targets(group)
	w.prefetch(targets)
	c := completion{at: at, ok: true}
	for _, id := range targets {
		n := w.node(id)
		if n == nil || !n.Trusted && !n.Received {
			c = completion{}
			break
		}
		if !n.Trusted {
			c.at = max(c.at, n.ReceivedAt)
		}
	}
	w.groups[group] = c
	return c
}

// supportedAt is when the first of the groups that carry a transaction was complete.
func (w *worker) supportedAt(id TxID) completion {
	var first completion
	for _, group := range w.g.Carriers(id) {
		if c := w.completeAt(group); c.ok && (!first.ok || c.at < first.at) {
			first = c
		}
	}
	return first
}

// readyAt is the position of the first complete support set, and the depth among those that share it.
func (w *worker) readyAt(n *Node) (at uint64, depth uint32, ok bool) {
	at, ok = n.FirstRaw.At, true
	for _, id := range n.parents() {
		p := w.node(id)
		if p == nil || !p.Trusted && !p.Ready {
			ok = false
			break
		}
		if !p.Trusted {
			at = max(at, p.ReadyAt)
		}
	}
	if n.Anchored && (!ok || n.AnchoredAt < at) {
		at, ok = n.AnchoredAt, true
	}
	if !ok {
		return 0, 0, false
	}
	support := w.supportedAt(n.ID)
	if !support.ok {
		return 0, 0, false
	}
	at = max(at, support.at)
	if n.Anchored && n.AnchoredAt <= at {
		return at, 0, true
	}
	for _, id := range n.parents() {
		// What was a chain anchor by then has no place in this order.
		p := w.node(id)
		if !p.Trusted && p.ReadyAt == at && (!p.Anchored || p.AnchoredAt > at) {
			depth = max(depth, p.Depth+1)
		}
	}
	return at, depth, true
}

// receive notes what became known, and goes on to children that waited for it.
func (w *worker) receive(changed []TxID) {
	first := unique(changed)
	for level := first; len(level) > 0; {
		w.level(level)
		var next []TxID
		for _, id := range level {
			n := w.node(id)
			if n == nil || n.Trusted || n.Received {
				continue
			}
			if at, ok := w.receivedAt(n); ok {
				w.touch(n)
				n.Received, n.ReceivedAt = true, at
				next = append(next, w.g.Children(id)...)
			}
		}
		level = unique(next)
	}
	// One that gained an anchor can have been received long before.
	w.assign(first)
}

// gained lists the groups that a transaction received in this run may complete.
func (w *worker) gained() []GroupID {
	var groups []GroupID
	for id, was := range w.before {
		if !was.Received {
			groups = append(groups, w.g.Carriers(id)...)
		}
	}
	return groups
}

// complete makes ready what the groups carry, where every target of one has been received.
func (w *worker) complete(groups []GroupID) {
	groups = slices.Clone(groups)
	slices.Sort(groups)
	var candidates []TxID
	for _, group := range slices.Compact(groups) {
		if w.completeAt(group).ok {
			candidates = append(candidates, w.g.Carried(group)...)
		}
	}
	w.assign(unique(candidates))
}

// assign makes ready those of the candidates that have what it takes, and goes on to their children.
func (w *worker) assign(level []TxID) {
	for len(level) > 0 {
		w.level(level)
		var next []TxID
		for _, id := range level {
			n := w.node(id)
			if n == nil || n.Trusted || n.Ready {
				continue
			}
			if at, depth, ok := w.readyAt(n); ok {
				w.touch(n)
				n.Ready, n.ReadyAt, n.Depth = true, at, depth
				next = append(next, w.g.Children(id)...)
			}
		}
		level = unique(next)
	}
}

// again computes everything that can depend on the changed ones until nothing moves: first what was received, on which
// groups stand, then what is ready. The graph has no cycles, so that the end does not depend on the way.
func (w *worker) again(changed []TxID) {
	touched := unique(changed)
	w.until(touched, func(n *Node) bool {
		at, ok := w.receivedAt(n)
		if ok == n.Received && at == n.ReceivedAt {
			return false
		}
		w.touch(n)
		n.Received, n.ReceivedAt = ok, at
		return true
	})
	for _, id := range changed {
		// A parent that lost its anchor counts for the depth of its children, wherever it stands itself.
		touched = append(touched, w.g.Children(id)...)
	}
	for id := range w.before {
		touched = append(touched, id)
		for _, group := range w.g.Carriers(id) {
			touched = append(touched, w.g.Carried(group)...)
		}
	}
	w.until(unique(touched), func(n *Node) bool {
		at, depth, ok := w.readyAt(n)
		if ok == n.Ready && at == n.ReadyAt && depth == n.Depth {
			return false
		}
		w.touch(n)
		n.Ready, n.ReadyAt, n.Depth = ok, at, depth
		return true
	})
}

// until judges nodes, and the children of those that moved, as long as any moves.
func (w *worker) until(level []TxID, moves func(*Node) bool) {
	for len(level) > 0 {
		w.level(level)
		var next []TxID
		for _, id := range level {
			if n := w.node(id); n != nil && !n.Trusted && n.Result != Invalid && moves(n) {
				next = append(next, w.g.Children(id)...)
			}
		}
		level = unique(next)
	}
}
