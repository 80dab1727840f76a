package spend_test

import (
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

// model is the smallest store that keeps the state of selection up to date by changes alone: it assigns readiness once,
// looks only at components of what changed, and never at the whole.
type model struct {
	nonFinal bool
	literal  bool // no anchors; a result settles by itself
	position uint64
	views    []spend.View
	now      spendtest.View

	nodes    map[spend.TxID]*spend.Node
	children map[spend.TxID][]spend.TxID
	spenders map[spend.Outpoint][]spend.TxID
	groups   map[spend.GroupID]*reported
	claims   []*claim

	published    map[spend.TxID]spend.Outcome
	replacements map[spend.TxID]spend.Replacement
	selected     int   // members that were selected from, over the whole run
	broken       error // the first selection that is none
}

type reported struct {
	spendtest.Group
	received               uint64
	settled, stalled, gone bool
}

type claim struct {
	spendtest.Claim
	group *reported
	held  bool // in some view since it came
	at    uint64
}

func newModel(h *spendtest.History, literal bool) *model {
	m := &model{
		nonFinal: h.NonFinal, literal: literal, now: h.First, views: []spend.View{h.First.Selection(0)},
		nodes: map[spend.TxID]*spend.Node{}, children: map[spend.TxID][]spend.TxID{}, spenders: map[spend.Outpoint][]spend.TxID{},
		groups: map[spend.GroupID]*reported{}, published: map[spend.TxID]spend.Outcome{}, replacements: map[spend.TxID]spend.Replacement{},
	}
	for _, t := range h.Roots {
		m.nodes[t.ID] = &spend.Node{ID: t.ID, Trusted: true}
	}
	return m
}

func (m *model) Tx(id spend.TxID) (*spend.Node, bool)   { n, ok := m.nodes[id]; return n, ok }
func (m *model) Children(id spend.TxID) []spend.TxID    { return m.children[id] }
func (m *model) Spenders(o spend.Outpoint) []spend.TxID { return m.spenders[o] }
func (m *model) Targets(g spend.GroupID) (uint64, []spend.TxID) {
	return m.groups[g].received, m.groups[g].Targets
}
func (m *model) Carried(g spend.GroupID) []spend.TxID { return m.groups[g].Carries }
func (m *model) Carriers(id spend.TxID) (list []spend.GroupID) {
	for g, group := range m.groups {
		if !group.gone && slices.Contains(group.Carries, id) {
			list = append(list, g)
		}
	}
	return list
}

// receive takes in a batch.
func (m *model) receive(groups []spendtest.Group, txs []spendtest.Tx) {
	m.position++
	var changed []spend.TxID
	var ids []spend.GroupID
	slices.SortFunc(txs, func(a, b spendtest.Tx) int { return a.ID.Compare(b.ID) })
	for _, t := range txs {
		if m.nodes[t.ID] != nil {
			continue
		}
		m.nodes[t.ID] = &spend.Node{
			ID: t.ID, Inputs: t.Inputs, LockTime: t.LockTime,
			FirstRaw: spend.Position{At: m.position, Index: uint32(len(changed))},
		}
		changed = append(changed, t.ID)
		for _, in := range t.Inputs {
			m.children[in.TxID] = append(m.children[in.TxID], t.ID)
			m.spenders[in.Outpoint] = append(m.spenders[in.Outpoint], t.ID)
		}
	}
	for _, g := range groups {
		group := &reported{Group: g, received: m.position}
		m.groups[g.ID] = group
		ids = append(ids, g.ID)
		changed = append(changed, g.Carries...)
		for _, c := range g.Claims {
			m.claims = append(m.claims, &claim{Claim: c, group: group})
		}
	}
	m.advance(append(changed, m.place()...), ids)
}

// place judges the proofs in the view in force and lists whose inclusion or anchor changed.
func (m *model) place() []spend.TxID {
	var changed []spend.TxID
	included, proved := map[spend.TxID]bool{}, map[spend.TxID]bool{}
	anchors := map[spend.TxID]uint64{}
	for _, c := range m.claims {
		if c.group.gone {
			continue
		}
		if m.now.Holds(c.Claim) {
			proved[c.TxID] = true
			if c.group.settled || m.literal {
				included[c.TxID] = true
			}
			if !c.held {
				c.held, c.at = true, m.position
			}
		}
		if at, ok := anchors[c.TxID]; c.held && (!ok || c.at < at) {
			anchors[c.TxID] = c.at
		}
	}
	for id, n := range m.nodes {
		at, anchored := anchors[id]
		if m.literal {
			at, anchored = 0, false
		}
		if n.Included != included[id] || n.Proved != proved[id] || n.Anchored != anchored || n.AnchoredAt != at {
			n.Included, n.Proved, n.Anchored, n.AnchoredAt = included[id], proved[id], anchored, at
			changed = append(changed, id)
		}
	}
	return changed
}

func (m *model) advance(changed []spend.TxID, groups []spend.GroupID) {
	m.assign(changed, spend.Advance(m, changed, groups))
}

// assign stores readiness and publishes what follows.
func (m *model) assign(changed []spend.TxID, list []spend.Readiness) {
	for _, r := range list {
		n := m.nodes[r.ID]
		n.Received, n.ReceivedAt, n.Ready, n.ReadyAt, n.Depth = r.Received, r.ReceivedAt, r.Ready, r.ReadyAt, r.Depth
		changed = append(changed, r.ID)
	}
	m.publish(changed)
}

func (m *model) reveal(id spend.TxID, r spend.Result) {
	m.nodes[id].Result = r
	if m.literal {
		m.nodes[id].Settled = true
	}
	m.publish([]spend.TxID{id})
}

func (m *model) settle(g spend.GroupID) {
	m.groups[g].settled = true
	m.standing(g)
	m.publish(append(m.place(), m.groups[g].Carries...))
}

func (m *model) stall(g spend.GroupID, stalled bool) {
	m.groups[g].stalled = stalled
	m.standing(g)
	m.publish(m.groups[g].Carries)
}

func (m *model) quarantine(g spend.GroupID) {
	m.groups[g].gone = true
	m.standing(g)
	changed := append(m.place(), m.groups[g].Carries...)
	m.assign(changed, spend.Retract(m, changed))
}

func (m *model) standing(g spend.GroupID) {
	for _, id := range m.groups[g].Carries {
		m.stand(m.nodes[id])
	}
}

// stand judges Settled and Stuck.
func (m *model) stand(n *spend.Node) {
	if m.literal {
		return
	}
	n.Settled, n.Stuck = false, len(m.Carriers(n.ID)) > 0
	for _, g := range m.Carriers(n.ID) {
		n.Settled = n.Settled || m.groups[g].settled
		n.Stuck = n.Stuck && m.groups[g].stalled
	}
	n.Stuck = n.Stuck && !n.Settled
}

func (m *model) view(v spendtest.View) {
	m.position++
	old, next := m.views[len(m.views)-1], v.Selection(m.position)
	m.views = append(m.views, next)
	m.now = v
	changed := m.place()
	for id, n := range m.nodes {
		if !n.Trusted && n.Final(old.NextHeight, old.MTP) != n.Final(next.NextHeight, next.MTP) {
			changed = append(changed, id)
		}
	}
	for id, o := range m.published {
		if o.Reason == spend.Contradiction {
			changed = append(changed, id)
		}
	}
	m.advance(changed, nil)
}

// publish selects again in the components of what changed.
func (m *model) publish(changed []spend.TxID) {
	for _, id := range changed {
		if n := m.nodes[id]; !n.Trusted {
			m.stand(n)
		}
	}
	for _, c := range spend.Cover(m, changed) {
		m.nodes[c.ID].Covered = c.Covered
		changed = append(changed, c.ID)
	}
	for _, p := range spend.Expand(m, changed, 0) {
		p.Views, p.Now, p.NonFinal = m.views, m.views[len(m.views)-1], m.nonFinal
		m.selected += len(p.Members)
		sel, err := checked(&p.Component)
		if err != nil && m.broken == nil {
			m.broken = err
		}
		for _, o := range sel.Outcomes {
			m.published[o.ID] = o
			delete(m.replacements, o.ID)
		}
		for _, r := range sel.Replacements {
			m.replacements[r.Next] = r
		}
	}
}
