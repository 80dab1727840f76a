package spend_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

var (
	firstHistory = flag.Uint64("first", 1, "number of the first random history")
	histories    = flag.Uint64("histories", 30, "how many random histories of each shape to compare")
)

// pair drives the model and the oracle alike.
type pair struct {
	h     *spendtest.History
	names map[spend.TxID]string
	m     *model
	w     *spendtest.World
	log   []string

	known    []spendtest.Tx
	revealed map[spend.TxID]bool
	open     []spend.GroupID // neither settled nor gone
	eager    bool            // everything is verified before the next event, in any order
	stalled  map[spend.GroupID]bool
}

func newPair(h *spendtest.History, literal bool) *pair {
	p := &pair{
		h: h, names: map[spend.TxID]string{}, m: newModel(h, literal), w: spendtest.NewWorld(h.NonFinal, h.Roots, h.First),
		revealed: map[spend.TxID]bool{}, stalled: map[spend.GroupID]bool{},
	}
	p.w.Literal = literal
	for _, t := range slices.Concat(h.Roots, h.Txs) {
		p.names[t.ID] = t.Name
	}
	return p
}

func (p *pair) did(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

func (p *pair) event(e spendtest.Event) {
	if e.View != nil {
		p.did("view %s height %d mtp %d", e.View.Name, e.View.Height, e.View.MTP)
		p.w.View(*e.View)
		p.m.view(*e.View)
		return
	}
	txs := p.h.Carried(e.Groups)
	for _, g := range e.Groups {
		p.did("receive group %d targets %s carries %s, %d claims", g.ID, p.name(g.Targets...), p.name(g.Carries...), len(g.Claims))
		p.open = append(p.open, g.ID)
	}
	for _, t := range txs {
		if !slices.ContainsFunc(p.known, func(k spendtest.Tx) bool { return k.ID == t.ID }) {
			p.known = append(p.known, t)
		}
	}
	p.w.Receive(e.Groups, txs)
	p.m.receive(e.Groups, txs)
}

func (p *pair) reveal(t spendtest.Tx) {
	p.did("reveal %s %s", t.Name, t.Result)
	p.revealed[t.ID] = true
	p.w.Reveal(t.ID, t.Result)
	p.m.reveal(t.ID, t.Result)
}

// finish makes something of a group that is open.
func (p *pair) finish(k int, what string) {
	g := p.open[k]
	p.did("%s group %d", what, g)
	switch what {
	case "stall":
		p.stalled[g] = !p.stalled[g]
		p.w.Stall(g, p.stalled[g])
		p.m.stall(g, p.stalled[g])
		return
	case "settle":
		p.w.Settle(g)
		p.m.settle(g)
	case "quarantine":
		p.w.Quarantine(g)
		p.m.quarantine(g)
	}
	p.open = slices.Delete(p.open, k, k+1)
}

func (p *pair) name(ids ...spend.TxID) string {
	var list []string
	for _, id := range ids {
		list = append(list, p.names[id])
	}
	return strings.Join(list, "+")
}

// step does one thing of those that can be done next.
func (p *pair) step(r *rand.Rand, events []spendtest.Event) (rest []spendtest.Event, done bool) {
	var hidden []spendtest.Tx
	for _, t := range p.known {
		if !p.revealed[t.ID] {
			hidden = append(hidden, t)
		}
	}
	for {
		switch n := r.IntN(10); {
		case n < 3 && len(events) > 0 && !(p.eager && (len(hidden) > 0 || len(p.open) > 0 && !p.m.literal)):
			p.event(events[0])
			return events[1:], false
		case n < 6 && len(hidden) > 0:
			p.reveal(hidden[r.IntN(len(hidden))])
			return events, false
		case n >= 6 && len(p.open) > 0 && !p.m.literal:
			what := "settle"
			switch {
			case n == 8 && !p.eager:
				what = "stall"
			case n == 9 && r.IntN(4) == 0:
				what = "quarantine"
			}
			p.finish(r.IntN(len(p.open)), what)
			return events, false
		case len(events) == 0 && len(hidden) == 0 && (len(p.open) == 0 || p.m.literal):
			return nil, true
		}
	}
}

// compare checks what the model keeps against the whole history.
func (p *pair) compare() error {
	if p.m.broken != nil {
		return p.m.broken
	}
	snap := p.w.Snapshot()
	for _, t := range p.known {
		want, have := snap.States[t.ID], p.m.published[t.ID]
		n := p.m.nodes[t.ID]
		got := spendtest.State{Status: have.Status, Eligible: have.Eligible, EligibleAt: have.EligibleAt, Ready: n.Ready, ReadyAt: n.ReadyAt, Depth: n.Depth}
		if got != want {
			return fmt.Errorf("%s: have %+v, want %+v (%s %s)", t.Name, got, want, have.Reason, p.name(have.Other))
		}
		link, replaces := snap.Replacements[t.ID]
		if replaces != have.Replaced || p.m.replacements[t.ID] != link || have.Replaces != link.Previous {
			return fmt.Errorf("%s: replaces %s, want %s at %d", t.Name, p.name(have.Replaces), p.name(link.Previous), link.At)
		}
	}
	return nil
}

func (p *pair) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "history %d, nonFinal %v, height %d mtp %d\n", p.h.Seed, p.h.NonFinal, p.h.First.Height, p.h.First.MTP)
	for _, t := range p.h.Txs {
		fmt.Fprintf(&b, "  %s lock %d %s:", t.Name, t.LockTime, t.Result)
		for _, in := range t.Inputs {
			fmt.Fprintf(&b, " %s.%d/%d", p.names[in.TxID], in.Index, in.Sequence)
		}
		b.WriteString("\n")
	}
	return b.String() + "  " + strings.Join(p.log, "\n  ")
}

// against runs histories step by step and compares after each.
func against(t *testing.T, literal bool, shape spendtest.Shape) {
	t.Helper()
	first, count := *firstHistory, *histories
	checks, links, seen := 0, 0, map[spend.Status]int{}
	for seed := first; seed < first+count; seed++ {
		p := newPair(spendtest.Generate(seed, shape), literal)
		p.eager = seed%2 == 0
		r := rand.New(rand.NewPCG(seed, 1))
		for events, done := p.h.Events, false; !done; {
			if events, done = p.step(r, events); done {
				break
			}
			checks++
			if err := p.compare(); err != nil {
				t.Fatalf("%v\n%s", err, p.describe())
			}
			for _, o := range p.m.published {
				seen[o.Status]++
			}
			links += len(p.m.replacements)
		}
	}
	t.Logf("histories %d to %d: %d moments compared, %d replacements among %v", first, first+count-1, checks, links, seen)
	if links == 0 {
		t.Error("no history has a replacement: the generator has lost it")
	}
	for s := range spend.Pending {
		if seen[s] == 0 && !(s == spend.LimitedTx && shape.NoLimits) && !(s == spend.Included && shape.NoProofs) {
			t.Errorf("no history has anything %s: the generator has lost it", s)
		}
	}
}

func TestG1_ComponentsGiveWhatTheWholeHistoryGives(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		literal bool
		shape   spendtest.Shape
	}{
		"published reducer":            {true, spendtest.Shape{Alone: true, NoProofs: true, NoLimits: true}},
		"published reducer, inclusion": {true, spendtest.Shape{Alone: true, AllProofs: true, NoLimits: true}},
		"groups":                       {false, spendtest.Shape{NoProofs: true}},
		"groups and proofs":            {false, spendtest.Shape{}},
		"contradictions":               {false, spendtest.Shape{AllProofs: true, Contradictions: true}},
		"large":                        {false, spendtest.Shape{Txs: 24}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			against(t, c.literal, c.shape)
		})
	}
}

// generateAny makes a history of the shape that its number says.
func generateAny(seed uint64) *spendtest.History {
	return spendtest.Generate(seed, spendtest.Shape{NoProofs: seed%4 == 0, AllProofs: seed%4 == 1, Contradictions: seed%8 == 1})
}
