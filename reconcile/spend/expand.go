package spend

import "slices"

// Covering is a changed bit of the ancestor closure.
type Covering struct {
	ID      TxID
	Covered bool
}

// Cover keeps the ancestor closure of what the current view includes: changed are transactions that became known, or whose
// Included is another now. It lists, by ascending id, those whose Covered must change.
func Cover(g Graph, changed []TxID) []Covering {
	c := read(g)
	was := map[TxID]bool{}
	for level := unique(changed); len(level) > 0; {
		c.level(level)
		var next []TxID
		for _, id := range level {
			n := c.node(id)
			if n == nil || n.Trusted {
				continue
			}
			covered := n.Included || c.any(g.Children(id), func(child *Node) bool { return child.Covered })
			if covered == n.Covered {
				continue
			}
			if _, ok := was[id]; !ok {
				was[id] = n.Covered
			}
			n.Covered = covered
			next = append(next, n.parents()...)
		}
		level = unique(next)
	}
	var list []Covering
	for id, covered := range was {
		if now := c.seen[id].Covered; now != covered {
			list = append(list, Covering{ID: id, Covered: now})
		}
	}
	slices.SortFunc(list, func(a, b Covering) int { return a.ID.Compare(b.ID) })
	return list
}

// Piece is one component as [Expand] found it. Members and Border are in ascending order of ids; Views, Now and NonFinal are
// left to the caller.
type Piece struct {
	Component
	// Over says that the component is larger than the limit: it was not gathered whole and must not be selected from.
	Over bool
}

// Expand gathers the components of the seeds, in the graph as it is now, with at most limit members each (zero or less: no
// limit). Seeds are all transactions of which something changed: facts, readiness, results, finality, coverage. Of one that is
// forced now the components around it are gathered, so that a component which it held together is there in all its
// parts; one that is forced no longer is a member and joins them. Every seed is in at least one piece, also one that
// has no neighbours. Trusted and unknown seeds are ignored.
//
// Components that wait for a [Contradiction] must be among the seeds when the view changes: what ends it can be far away.
func Expand(g Graph, seeds []TxID, limit int) []Piece {
	e := expander{cache: read(g), limit: limit, piece: map[TxID]int{}, broken: map[TxID]bool{}}
	queue := unique(seeds)
	e.level(queue)
	for _, id := range e.enlarge(queue) {
		n := e.node(id)
		if n == nil || n.Trusted {
			continue
		}
		if !n.Forced() {
			e.gather(id)
			continue
		}
		alone := true
		for _, neighbour := range e.neighbours(n) {
			if x := e.node(neighbour); x != nil && !x.Trusted && !x.Forced() {
				e.gather(neighbour)
				alone = false
			}
		}
		if alone {
			e.pieces = append(e.pieces, Piece{Component: Component{Border: []Tx{e.tx(n)}}})
		}
	}
	for i := range e.pieces {
		e.pieces[i].Trusted = e.trusted
	}
	return e.pieces
}

type expander struct {
	cache
	limit  int
	pieces []Piece
	piece  map[TxID]int // which one a member is in
	broken map[TxID]bool
}

func (e *expander) trusted(id TxID) bool {
	n := e.node(id)
	return n != nil && n.Trusted
}

// enlarge adds the forced ones that a seed contradicts: all that is around them waits too.
func (e *expander) enlarge(seeds []TxID) []TxID {
	list := slices.Clone(seeds)
	for _, id := range seeds {
		n := e.node(id)
		switch {
		case n == nil || n.Trusted:
		case n.Forced():
			list = append(list, e.rivals(n)...)
		case n.Result == Invalid:
			children := e.g.Children(id)
			e.prefetch(children)
			for _, child := range children {
				if x := e.node(child); x != nil && x.Forced() {
					list = append(list, child)
				}
			}
		}
	}
	return unique(list)
}

// rivals lists the other forced transactions that consume an input of n.
func (e *expander) rivals(n *Node) []TxID {
	var list []TxID
	for i := range n.Inputs {
		list = append(list, e.g.Spenders(n.Inputs[i].Outpoint)...)
	}
	e.prefetch(list)
	return slices.DeleteFunc(list, func(id TxID) bool {
		x := e.node(id)
		return id == n.ID || x == nil || !x.Forced()
	})
}

// contradicted reports whether a forced transaction cannot be in one chain with what else is forced.
func (e *expander) contradicted(n *Node) bool {
	broken, ok := e.broken[n.ID]
	if !ok {
		broken = len(e.rivals(n)) > 0 || e.any(n.parents(), func(p *Node) bool { return p.Result == Invalid })
		e.broken[n.ID] = broken
	}
	return broken
}

// neighbours lists parents, children and who shares an input, ascending.
func (e *expander) neighbours(n *Node) []TxID {
	list := append(n.parents(), e.g.Children(n.ID)...)
	for i := range n.Inputs {
		list = append(list, e.g.Spenders(n.Inputs[i].Outpoint)...)
	}
	list = slices.DeleteFunc(unique(list), func(id TxID) bool { return id == n.ID })
	e.prefetch(list)
	return list
}

// gather walks one component from any member of it.
func (e *expander) gather(start TxID) {
	if _, ok := e.piece[start]; ok {
		return
	}
	at := len(e.pieces)
	e.pieces = append(e.pieces, Piece{})
	p := &e.pieces[at]
	e.piece[start] = at
	border := map[TxID]bool{}
	members := []TxID{start}
	for k := 0; k < len(members); k++ {
		if e.limit > 0 && len(members) > e.limit {
			p.Over = true
			break
		}
		for _, id := range e.neighbours(e.node(members[k])) {
			switch x := e.node(id); {
			case x == nil || x.Trusted:
			case x.Forced():
				border[id] = true
			default:
				other, taken := e.piece[id]
				if !taken {
					e.piece[id] = at
					members = append(members, id)
				} else if other != at {
					p.Over = true // the rest of one that was cut off
				}
			}
		}
	}
	for _, id := range unique(members) {
		p.Members = append(p.Members, e.tx(e.node(id)))
	}
	for id := range border {
		n := e.node(id)
		p.Border = append(p.Border, e.tx(n))
	}
	slices.SortFunc(p.Border, func(a, b Tx) int { return a.ID.Compare(b.ID) })
}

// tx is a node as selection sees it.
func (e *expander) tx(n *Node) Tx {
	t := Tx{
		ID: n.ID, Inputs: n.Inputs, LockTime: n.LockTime, FirstRaw: n.FirstRaw,
		Ready: n.Ready, ReadyAt: n.ReadyAt, Depth: n.Depth,
		Result: n.Result, Usable: n.Usable(), Forced: n.Forced(),
	}
	t.Contradicted = t.Forced && e.contradicted(n)
	known := true
	for _, id := range n.parents() {
		if e.node(id) == nil {
			known, t.Missing = false, id
			break
		}
	}
	t.SupportedToday = (known || n.Proved || n.Included || n.Covered) && !n.Stuck
	switch {
	case n.Ready && n.Stuck:
		t.Why = GroupWaits
	case n.Ready || !known:
	case len(e.g.Carriers(n.ID)) == 0:
		t.Why = GroupQuarantined
	}
	return t
}
