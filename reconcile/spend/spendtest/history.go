package spendtest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// Tx is a transaction with real bytes: they parse, and their double hash is the id. Scripts are empty; Result is what a
// verifier is to say of it.
type Tx struct {
	Name     string
	ID       spend.TxID
	Raw      []byte
	Inputs   []spend.Input
	LockTime uint32
	Outputs  int
	Result   spend.Result // Valid, Invalid or Limited
}

// Seal writes the bytes of a transaction and hashes them to its id. Lock scripts push eight bytes, which salt makes differ
// between twins. There are at most 252 inputs and outputs.
func Seal(t Tx, salt uint64) Tx {
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, byte(len(t.Inputs)))
	for _, in := range t.Inputs {
		previous := in.TxID
		slices.Reverse(previous[:])
		raw = append(raw, previous[:]...)
		raw = binary.LittleEndian.AppendUint32(raw, in.Index)
		raw = append(raw, 0)
		raw = binary.LittleEndian.AppendUint32(raw, in.Sequence)
	}
	raw = append(raw, byte(t.Outputs))
	for i := range t.Outputs {
		raw = binary.LittleEndian.AppendUint64(raw, 1)
		raw = append(raw, 9, 8)
		raw = binary.LittleEndian.AppendUint64(raw, salt+uint64(i))
	}
	t.Raw = binary.LittleEndian.AppendUint32(raw, t.LockTime)
	once := sha256.Sum256(t.Raw)
	t.ID = sha256.Sum256(once[:])
	slices.Reverse(t.ID[:])
	return t
}

// Claim is a proof of inclusion: it holds in a view whose header at Height has this root.
type Claim struct {
	TxID   spend.TxID
	Height uint32
	Root   [32]byte
}

// View is a selected chain.
type View struct {
	Name        string
	Height, MTP uint64 // of the tip
	Roots       map[uint32][32]byte
}

// Holds reports whether a proof holds in the view.
func (v View) Holds(c Claim) bool { root, ok := v.Roots[c.Height]; return ok && root == c.Root }

// Selection is the view as selection sees it, in force from a position on.
func (v View) Selection(at uint64) spend.View {
	return spend.View{At: at, NextHeight: v.Height + 1, MTP: v.MTP}
}

// Group is what a source reports at once. It carries its targets and those of their ancestors that came with them.
type Group struct {
	ID      spend.GroupID
	Source  int
	Targets []spend.TxID
	Carries []spend.TxID // ascending, with the targets
	Claims  []Claim      // about what it carries
}

// Event is one place of the journal: a batch of groups of one source, or another view.
type Event struct {
	Groups []Group
	View   *View
}

// History is a script of facts, without the results of verification.
type History struct {
	Seed     uint64
	NonFinal bool
	Roots    []Tx
	Txs      []Tx // parents before children
	First    View // in force at position 0
	Events   []Event
}

// Tx finds a transaction by its id.
func (h *History) Tx(id spend.TxID) (Tx, bool) {
	for _, list := range [][]Tx{h.Txs, h.Roots} {
		for _, t := range list {
			if t.ID == id {
				return t, true
			}
		}
	}
	return Tx{}, false
}

// Carried lists the transactions whose bytes groups carry, each once, by ascending id.
func (h *History) Carried(groups []Group) []Tx {
	var ids []spend.TxID
	for _, g := range groups {
		ids = append(ids, g.Carries...)
	}
	slices.SortFunc(ids, spend.TxID.Compare)
	var list []Tx
	for _, id := range slices.Compact(ids) {
		if t, ok := h.Tx(id); ok {
			list = append(list, t)
		}
	}
	return list
}

// Shape says what kind of histories to make. Zero fields mean what they say.
type Shape struct {
	Txs            int  // how many transactions at most; zero means 10
	Sources        int  // zero means 3
	Alone          bool // each transaction is a group of its own and carries nothing else
	NoProofs       bool // no view includes anything
	AllProofs      bool // whoever carries a transaction carries the proofs of both branches
	Contradictions bool // views may include what excludes each other
	NoLimits       bool // nothing is Limited
}

// Generate makes the history of a number.
func Generate(seed uint64, s Shape) *History {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x5eed)), s: s, h: &History{Seed: seed}}
	g.h.NonFinal = g.IntN(4) > 0
	for i := range 1 + g.IntN(2) {
		// A root spends what nobody knows: a transaction has an input.
		outside := spend.Input{Outpoint: spend.Outpoint{TxID: sha256.Sum256([]byte("outside"))}, Sequence: 0xffffffff}
		g.h.Roots = append(g.h.Roots, g.seal(Tx{Name: fmt.Sprintf("root%d", i), Inputs: []spend.Input{outside}, Outputs: 6, Result: spend.Valid}))
	}
	if g.s.Txs == 0 {
		g.s.Txs = 10
	}
	if g.s.Sources == 0 {
		g.s.Sources = 3
	}
	for i := range 3 + g.IntN(max(1, g.s.Txs-2)) {
		g.h.Txs = append(g.h.Txs, g.tx(i))
	}
	g.h.First = g.view(0)
	g.events()
	return g.h
}

type generator struct {
	*rand.Rand
	s      Shape
	h      *History
	groups spend.GroupID
	views  int
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// pool bounds heights and times, so that finality flips often. Lock times lie within.
const (
	lowHeight = 1000
	lowTime   = 1_600_000_000
	span      = 6
)

func (g *generator) tx(i int) Tx {
	t := Tx{Name: fmt.Sprintf("t%d", i), Outputs: 1 + g.IntN(3), Result: spend.Valid}
	switch {
	case g.chance(8):
		t.Result = spend.Invalid
	case g.chance(4) && !g.s.NoLimits:
		t.Result = spend.Limited
	}
	switch g.IntN(6) {
	case 0, 1:
		t.LockTime = uint32(lowHeight + g.IntN(span))
	case 2:
		t.LockTime = uint32(lowTime + g.IntN(span))
	}
	sequence := func() uint32 {
		if g.chance(30) {
			return 0xffffffff
		}
		return uint32(g.IntN(4))
	}
	// Another version of an earlier one, or nearly.
	if len(g.h.Txs) > 0 && g.chance(40) {
		old := g.h.Txs[g.IntN(len(g.h.Txs))]
		t.Inputs = slices.Clone(old.Inputs)
		if g.chance(70) {
			t.LockTime = old.LockTime
		}
		for k := range t.Inputs {
			if g.chance(60) && t.Inputs[k].Sequence < 1<<32-2 {
				t.Inputs[k].Sequence += uint32(g.IntN(3))
			}
		}
		if g.chance(15) {
			t.Inputs[g.IntN(len(t.Inputs))].Sequence = sequence()
		}
		switch {
		case g.chance(12):
			t.Inputs = t.Inputs[:1+g.IntN(len(t.Inputs))]
		case g.chance(5):
			slices.Reverse(t.Inputs)
		}
		return g.seal(t)
	}
	for len(t.Inputs) == 0 || len(t.Inputs) < 3 && g.chance(30) {
		from := g.h.Roots[g.IntN(len(g.h.Roots))]
		if len(g.h.Txs) > 0 && g.chance(60) {
			from = g.h.Txs[g.IntN(len(g.h.Txs))]
		}
		o := spend.Outpoint{TxID: from.ID, Index: uint32(g.IntN(from.Outputs))}
		if !slices.ContainsFunc(t.Inputs, func(in spend.Input) bool { return in.Outpoint == o }) {
			t.Inputs = append(t.Inputs, spend.Input{Outpoint: o, Sequence: sequence()})
		}
	}
	return g.seal(t)
}

func (g *generator) seal(t Tx) Tx { return Seal(t, g.Uint64()) }

// claim is the proof of a transaction in a block of its own. Two branches exist of each height.
func (g *generator) claim(i, branch int) Claim {
	id := g.h.Txs[i].ID
	return Claim{TxID: id, Height: uint32(100 + i), Root: sha256.Sum256(append(id[:], byte(branch)))}
}

// view makes a view that includes, with their ancestors, some transactions that go together.
func (g *generator) view(percent int) View {
	v := View{
		Name:   fmt.Sprintf("v%d", g.views),
		Height: uint64(lowHeight - 2 + g.IntN(span)), MTP: uint64(lowTime - 1 + g.IntN(span)),
		Roots: map[uint32][32]byte{},
	}
	g.views++
	spent := map[spend.Outpoint]bool{}
	in := map[spend.TxID]bool{}
	for _, t := range g.h.Roots {
		in[t.ID] = true
	}
	for i, t := range g.h.Txs {
		// Also what is not included has a block at its height: on the other branch, which nobody proves.
		v.Roots[uint32(100+i)] = g.claim(i, 2).Root
		fits := t.Result != spend.Invalid
		for _, input := range t.Inputs {
			fits = fits && in[input.TxID] && !spent[input.Outpoint]
		}
		if !fits && (!g.s.Contradictions || !g.chance(15)) || !g.chance(percent) {
			continue
		}
		in[t.ID] = true
		for _, input := range t.Inputs {
			spent[input.Outpoint] = true
		}
		v.Roots[uint32(100+i)] = g.claim(i, g.IntN(2)).Root
	}
	return v
}

// events deals the transactions out to groups, some of them several times, and puts views between them.
func (g *generator) events() {
	order := g.Perm(len(g.h.Txs))
	for range g.IntN(3) {
		order = append(order, g.IntN(len(g.h.Txs)))
	}
	if g.chance(50) {
		slices.Sort(order) // parents first
	}
	for len(order) > 0 {
		if g.chance(25) {
			percent := g.IntN(2) * 60
			if g.s.NoProofs {
				percent = 0
			}
			g.h.Events = append(g.h.Events, Event{View: new(g.view(percent))})
			continue
		}
		var e Event
		source := g.IntN(g.s.Sources)
		for range 1 + g.IntN(2) {
			n := 1
			if !g.s.Alone {
				n += g.IntN(2)
			}
			n = min(n, len(order))
			if n > 0 {
				e.Groups = append(e.Groups, g.group(source, order[:n]))
			}
			order = order[n:]
		}
		g.h.Events = append(g.h.Events, e)
	}
}

func (g *generator) group(source int, targets []int) Group {
	g.groups++
	group := Group{ID: g.groups, Source: source}
	index := map[spend.TxID]int{}
	for i, t := range g.h.Txs {
		index[t.ID] = i
	}
	var carry func(i int)
	carry = func(i int) {
		t := g.h.Txs[i]
		if slices.Contains(group.Carries, t.ID) {
			return
		}
		group.Carries = append(group.Carries, t.ID)
		switch {
		case g.s.AllProofs:
			group.Claims = append(group.Claims, g.claim(i, 0), g.claim(i, 1))
		case !g.s.NoProofs && g.chance(50):
			group.Claims = append(group.Claims, g.claim(i, g.IntN(2)))
		}
		for _, in := range t.Inputs {
			if p, ok := index[in.TxID]; ok && !g.s.Alone && g.chance(50) {
				carry(p)
			}
		}
	}
	for _, i := range targets {
		if id := g.h.Txs[i].ID; !slices.Contains(group.Targets, id) {
			group.Targets = append(group.Targets, id)
		}
		carry(i)
	}
	slices.SortFunc(group.Carries, spend.TxID.Compare)
	return group
}
