package spend

import "slices"

// GroupID names a received group of observations.
type GroupID uint64

// Node is a transaction whose raw bytes are known, with what readiness and inclusion have assigned to it so far.
type Node struct {
	ID       TxID
	Inputs   []Input
	LockTime uint32
	FirstRaw Position

	Trusted bool // a root of local trust: ready at 0 and always usable; no other field is read

	Anchored   bool   // a proof of it held in the context in force at AnchoredAt
	AnchoredAt uint64 // the least such position, over proofs whose group is not quarantined

	Received   bool   // its own raw bytes and those of its ancestors, up to anchors, are known since ReceivedAt
	ReceivedAt uint64 // meaningful when Received

	Ready   bool   // and so is every target of a group that carries it
	ReadyAt uint64 // meaningful when Ready
	Depth   uint32 // meaningful when Ready

	Result   Result
	Settled  bool // a group that carries it was verified whole
	Proved   bool // a proof of it holds in the current view, whatever becomes of the group that brought it
	Included bool // Proved, and a group that brought the proof was verified whole
	Covered  bool // Included, or a child is Covered: the ancestor closure of the current view's choices

	// Stuck says that it is not Settled and that every group which could still settle it waits for a member whose result is
	// limited or unresolved. It holds no barrier then: a group that never ends must not stop what others prove.
	Stuck bool
}

// Forced reports whether the current view selects the transaction, whatever else is known.
func (n *Node) Forced() bool { return !n.Trusted && n.Covered && n.Settled && n.Result != Invalid }

// Usable reports whether it is a fact that selection may use.
func (n *Node) Usable() bool {
	return n.Trusted || n.Settled && n.Result != Invalid && (n.Result == Valid || n.Included || n.Covered)
}

// Graph answers what [Advance], [Retract], [Cover] and [Expand] ask. Answers need no order and may hold repetitions; they
// are sorted here. A graph that reads from a store keeps its first error, answers that nothing is known from then on, and
// its owner drops what came out.
type Graph interface {
	Tx(TxID) (*Node, bool)                       // false: its raw bytes are not known. The node is read, neither changed nor kept
	Children(TxID) []TxID                        // known transactions that consume any output of it
	Spenders(Outpoint) []TxID                    // known transactions that consume this output
	Carriers(TxID) []GroupID                     // groups that carry it, as a target or as an ancestor of one; quarantined ones, and retired ones that never settled, are none
	Carried(GroupID) []TxID                      // the other direction: targets and the ancestors that came with them
	Targets(GroupID) (at uint64, targets []TxID) // its ingress position, and what its candidates assert
}

// Prefetcher is a Graph that likes to read many nodes at once: it is told which ones come next.
type Prefetcher interface {
	Graph
	Prefetch(ids []TxID)
}

// cache reads each node once.
type cache struct {
	g    Graph
	seen map[TxID]*Node // copies, which a run may change; nil: not known
}

func read(g Graph) cache { return cache{g: g, seen: map[TxID]*Node{}} }

func (c *cache) node(id TxID) *Node {
	n, ok := c.seen[id]
	if !ok {
		if known, found := c.g.Tx(id); found {
			own := *known
			n = &own
		}
		c.seen[id] = n
	}
	return n
}

// prefetch tells a graph that cares which nodes are read next.
func (c *cache) prefetch(ids []TxID) {
	p, ok := c.g.(Prefetcher)
	if !ok {
		return
	}
	list := make([]TxID, 0, len(ids))
	for _, id := range ids {
		if _, read := c.seen[id]; !read {
			list = append(list, id)
		}
	}
	if list = unique(list); len(list) > 0 {
		p.Prefetch(list)
	}
}

// any reports whether one of the known nodes among ids is as asked.
func (c *cache) any(ids []TxID, is func(*Node) bool) bool {
	c.prefetch(ids)
	return slices.ContainsFunc(ids, func(id TxID) bool {
		n := c.node(id)
		return n != nil && is(n)
	})
}

// level prefetches some nodes and their parents.
func (c *cache) level(ids []TxID) {
	if _, ok := c.g.(Prefetcher); !ok {
		return
	}
	c.prefetch(ids)
	var parents []TxID
	for _, id := range ids {
		if n := c.node(id); n != nil {
			parents = append(parents, n.parents()...)
		}
	}
	c.prefetch(parents)
}

// parents lists the creators of the inputs; what follows itself is listed once.
func (n *Node) parents() []TxID {
	list := make([]TxID, 0, len(n.Inputs))
	for i := range n.Inputs {
		if i == 0 || n.Inputs[i].TxID != n.Inputs[i-1].TxID {
			list = append(list, n.Inputs[i].TxID)
		}
	}
	return list
}

// unique sorts and drops repetitions, in a slice of its own.
func unique(ids []TxID) []TxID {
	list := slices.Clone(ids)
	slices.SortFunc(list, TxID.Compare)
	return slices.Compact(list)
}
