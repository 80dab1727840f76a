package spend_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// sequences makes a transaction that spends outputs 0, 1, ... of one parent.
func sequences(lock uint32, list ...uint32) *spend.Tx {
	t := &spend.Tx{LockTime: lock}
	for i, s := range list {
		t.Inputs = append(t.Inputs, spend.Input{Outpoint: spend.Outpoint{Index: uint32(i)}, Sequence: s})
	}
	return t
}

func TestR6_FinalityBoundaries(t *testing.T) {
	t.Parallel()
	const edge = spend.LockTimeThreshold
	for _, c := range []struct {
		name        string
		tx          *spend.Tx
		height, mtp uint64 // of the tip
		want        bool
	}{
		{"no lock time", sequences(0, 1), 0, 0, true},
		{"all sequences final", sequences(4294967295, sealed, sealed), 0, 0, true},
		{"one sequence not final", sequences(110, sealed, 7), 100, 0, false},
		{"height below the next", sequences(110, 1), 110, 0, true},
		{"height equal to the next", sequences(110, 1), 109, 0, false},
		{"height above the next", sequences(110, 1), 108, 0, false},
		{"time does not make a height final", sequences(110, 1), 109, 1 << 40, false},
		{"highest height", sequences(edge-1, 1), edge - 1, 0, true},
		{"highest height, equal", sequences(edge-1, 1), edge - 2, 1 << 40, false},
		{"lowest time", sequences(edge, 1), 0, edge + 1, true},
		{"lowest time, equal", sequences(edge, 1), 1 << 40, edge, false},
		{"time below the median", sequences(1_600_000_000, 1), 0, 1_600_000_001, true},
		{"time equal to the median", sequences(1_600_000_000, 1), 1 << 40, 1_600_000_000, false},
		{"time above the median", sequences(1_600_000_000, 1), 1 << 40, 1_599_999_999, false},
		{"greatest time", sequences(4294967295, 1), 0, 4294967296, true},
		{"a sequence one below final", sequences(110, sealed-1), 100, 0, false},
	} {
		if got := spend.Final(c.tx, c.height+1, c.mtp); got != c.want {
			t.Errorf("%s: final %v, want %v", c.name, got, c.want)
		}
	}
}

func TestR6_ReplacementComparesComponents(t *testing.T) {
	t.Parallel()
	old := sequences(110, 1, 7)
	reordered := sequences(110, 9, 9)
	slices.Reverse(reordered.Inputs)
	elsewhere := sequences(110, 2, 8)
	elsewhere.Inputs[0].TxID[31] = 1
	for _, c := range []struct {
		name string
		next *spend.Tx
		want bool
	}{
		{"one higher", sequences(110, 2, 7), true},
		{"both higher", sequences(110, 2, 8), true},
		{"equal", sequences(110, 1, 7), false},
		{"one lower", sequences(110, 3, 6), false},
		{"greater sum and maximum, one lower", sequences(110, 0, 100), false},
		{"unsigned", sequences(110, 1<<31, 7), true},
		{"final sequences", sequences(110, sealed, sealed), true},
		{"one final sequence", sequences(110, sealed, 7), true},
		{"without lock time, higher", sequences(0, 2, 7), true},
		{"another lock time alone", sequences(0, 1, 7), false},
		{"reordered", reordered, false},
		{"fewer inputs", sequences(110, 9), false},
		{"more inputs", sequences(110, 9, 9, 9), false},
		{"another outpoint", elsewhere, false},
	} {
		if got := spend.Increases(old, c.next); got != c.want {
			t.Errorf("%s: increases %v, want %v", c.name, got, c.want)
		}
	}
}

// A chain of versions is one: the last one stands, at the place of the first. None of them ever comes back.
func TestG2_ReplacedNeverReturns(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("N1", 110, "root:1/1", "root:2/1")
	s.tx("N2", 110, "root:1/2", "root:2/1")
	s.tx("N3", 110, "root:1/2", "root:2/2")
	s.tx("back", 110, "root:1/1", "root:2/9")
	s.tx("other", 0, "root:2", "root:3")
	s.receive("N1")
	s.verify("N1")
	s.receive("other")
	s.verify("other")
	s.want("N1 selected-non-final", "other conflicting N1")
	s.receive("N2", "N3", "back")
	s.verify("back", "N3", "N2")
	s.want("N1 conflicting N2", "N2 conflicting N3", "N3 selected-non-final", "back conflicting N3", "other conflicting N3")
	for _, height := range []uint64{110, 100, 111, 99} {
		s.later(height)
		s.want("N1 conflicting N2", "N2 conflicting N3", "back conflicting N3", "other conflicting N3")
	}
	// What is included has been there for ever, as far as today's history goes; without it the old one is as it was.
	s.batch(s.group("other*"))
	s.verify()
	s.later(101, "other")
	s.want("N1 conflicting other", "N2 conflicting other", "N3 conflicting other", "back conflicting other", "other included")
	s.later(100)
	s.want("N1 conflicting N2", "N2 conflicting N3", "N3 selected-non-final", "back conflicting N3", "other conflicting N3")
}

// The order of today's choice is inherited through a replacement, and a child of the new version stays behind it.
func TestG3_ChildrenFollowAReplacedParent(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("N", 105, "root:1/1")
	s.tx("R", 105, "root:1/2")
	s.tx("RC", 0, "R:0", "root:6")
	s.tx("rival", 0, "root:6")
	s.receive("N", "RC", "R")
	s.verify("N", "RC", "R")
	s.want("N conflicting R", "R selected-non-final", "RC dependent-conflict R")
	s.receive("rival")
	s.later(105)
	s.verify("rival")
	// RC was received first and could not be selected before R was final.
	s.want("R selected-final", "RC conflicting rival", "rival selected-final")
}

// One that a proof made ready before its parent was known sits before it in the order, and still is decided after it.
func TestG3_AncestorsAreDecidedFirst(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("P", 0, "root:0")
	s.tx("C", 0, "P:0", "root:1")
	s.tx("rival", 0, "root:1")
	s.later(101, "C")
	s.batch(s.group("C*"))
	s.want("C pending C") // its proof supports it, its group is not verified
	s.verify("C")
	s.want("C included")
	s.later(102)
	s.want("C unresolved P")
	if r := s.outcome("C").Reason; r != spend.AnchorLost {
		t.Errorf("C is unresolved for %s", r)
	}
	s.receive("P")
	s.want("C pending", "P pending")
	s.verify("P")
	s.receive("rival")
	s.verify("rival")
	c, p := s.m.nodes[s.txs["C"].ID], s.m.nodes[s.txs["P"].ID]
	if c.ReadyAt >= p.ReadyAt {
		t.Fatalf("C is ready at %d, P at %d: this shows nothing", c.ReadyAt, p.ReadyAt)
	}
	s.want("P selected-final", "C selected-final", "rival conflicting C")
}

func TestG4_IncludedKeepItsInputs(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("N", 110, "root:1/1")
	s.tx("R", 110, "root:1/2")
	s.batch(s.group("N*"))
	s.verify("N")
	s.later(101, "N")
	s.receive("R")
	s.verify("R")
	s.want("N included", "R conflicting N")
}

func TestG6_WhatIsStuckHoldsNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("A", 0, "root:0")
	s.tx("heavy", 0, "root:8")
	s.tx("B", 0, "root:0")
	s.batch(s.group("A", "heavy"))
	s.receive("B")
	s.verify("B", "A")
	s.want("A pending", "B pending", "heavy pending")
	s.finish(slices.Index(s.open, 1), "stall")
	s.want("A unresolved", "heavy unresolved", "B selected-final")
	if r := s.outcome("A").Reason; r != spend.GroupWaits {
		t.Errorf("A is unresolved for %s", r)
	}
	s.receive("A") // another source, whole
	s.want("A pending", "B pending")
	s.verify("A")
	s.want("A selected-final", "B conflicting A")
}

func TestG7_ABarrierHoldsItsComponentAndNoOther(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("A", 0, "root:0")
	s.tx("B", 0, "root:0", "root:1")
	s.tx("C", 0, "root:1", "root:2")
	s.tx("CC", 0, "C:1")
	s.tx("Q", 0, "root:3")
	s.receive("A", "C", "CC", "Q")
	s.verify("A", "C", "CC")
	s.receive("B")
	s.verify("Q")
	s.want("A pending B", "B pending B", "C pending B", "CC pending B", "Q selected-final")
	s.refuse("B")
	s.want("A selected-final", "B invalid", "C selected-final", "CC selected-final", "Q selected-final")
}

// What is included ends a component: one side does not wait for the other.
func TestG7_ABarrierEndsAtWhatIsIncluded(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("P", 0, "root:0")
	s.tx("left", 0, "P:0")
	s.tx("right", 0, "P:1")
	s.tx("loser", 0, "root:0")
	s.batch(s.group("P*"))
	s.receive("left", "right", "loser")
	s.verify("P", "left", "loser")
	s.want("P pending right", "left pending right", "loser pending right", "right pending right")
	s.later(101, "P")
	s.want("P included", "left selected-final", "loser conflicting P", "right pending right")
}

func TestG8_EligibleBeforeReservations(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("A", 0, "root:0")
	s.tx("B", 0, "root:0", "root:1")
	s.tx("C", 0, "root:1")
	s.receive("A", "B", "C")
	s.verify("A", "B", "C")
	s.want("A selected-final", "B conflicting A", "C selected-final")
	if o := s.outcome("B"); !o.Eligible || o.EligibleAt != 2 {
		t.Errorf("B was eligible %v at %d, want at 2", o.Eligible, o.EligibleAt)
	}
	// C could not have known: B lost to A before C came, and today B is before C again once A is gone.
	s.tx("Z", 0, "root:0")
	s.batch(s.group("Z*"))
	s.verify("Z")
	s.later(101, "Z")
	s.want("A conflicting Z", "B conflicting Z", "C selected-final")
}

func TestG9_ReadinessStays(t *testing.T) {
	t.Parallel()
	looked := 0
	for seed := range *histories {
		p := newPair(generateAny(seed), false)
		was := map[spend.TxID]spend.Node{}
		for _, e := range p.h.Events {
			p.event(e)
			for id, n := range p.m.nodes {
				old, ok := was[id]
				if ok && old.Ready && (!n.Ready || n.ReadyAt != old.ReadyAt || n.Depth != old.Depth) {
					t.Fatalf("%s was ready at %d, depth %d, and is at %d, %d\n%s", p.names[id], old.ReadyAt, old.Depth, n.ReadyAt, n.Depth, p.describe())
				}
				if ok && !old.Ready && n.Ready && n.ReadyAt != p.m.position {
					t.Fatalf("%s became ready at %d, and says %d\n%s", p.names[id], p.m.position, n.ReadyAt, p.describe())
				}
				was[id] = *n
				looked++
			}
		}
	}
	t.Logf("%d readings", looked)
}

// A parent that was a chain anchor has no place in its child's depth; when the proof goes with its group, it has.
func TestG9_ALostAnchorDeepensItsChildren(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("P", 0, "root:0")
	s.tx("C", 0, "P:0")
	s.later(101, "P")
	s.batch(s.group("P*"), s.group("C", "[P]"))
	c := s.m.nodes[s.txs["C"].ID]
	if !c.Ready || c.ReadyAt != 2 || c.Depth != 0 {
		t.Fatalf("C is ready at %d, depth %d", c.ReadyAt, c.Depth)
	}
	s.finish(0, "quarantine")
	s.check()
	if !c.Ready || c.ReadyAt != 2 || c.Depth != 1 {
		t.Errorf("C is ready at %d, depth %d, without its parent's proof", c.ReadyAt, c.Depth)
	}
}

// A group stands on all of its targets: when one loses the proof that stood for its ancestors, the others lose the group.
func TestG9_ALostProofTakesTheGroupAlong(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("gone", 0, "root:9")
	s.tx("C", 0, "gone:0")
	s.tx("A", 0, "root:0")
	s.later(101, "C")
	s.batch(s.group("C*"))
	s.batch(s.group("A", "C"))
	s.verify("A", "C")
	s.want("A selected-final", "C included")
	if n := s.m.nodes[s.txs["A"].ID]; !n.Ready || n.ReadyAt != 3 {
		t.Fatalf("A is ready at %d", n.ReadyAt)
	}
	s.open = []spend.GroupID{1}
	s.finish(0, "quarantine")
	s.check()
	s.want("A unresolved", "C unresolved gone")
}

func TestG9_OrderOfCandidates(t *testing.T) {
	t.Parallel()
	id := func(b byte) spend.TxID { return spend.TxID{0: b} }
	ordered := []spend.Tx{
		{Ready: true, ReadyAt: 1, Depth: 9, FirstRaw: spend.Position{At: 9, Index: 9}, ID: id(9)},
		{Ready: true, ReadyAt: 2, Depth: 0, FirstRaw: spend.Position{At: 9, Index: 9}, ID: id(9)},
		{Ready: true, ReadyAt: 2, Depth: 1, FirstRaw: spend.Position{At: 0, Index: 9}, ID: id(9)},
		{Ready: true, ReadyAt: 2, Depth: 1, FirstRaw: spend.Position{At: 1, Index: 0}, ID: id(9)},
		{Ready: true, ReadyAt: 2, Depth: 1, FirstRaw: spend.Position{At: 1, Index: 1}, ID: id(0)},
		{Ready: true, ReadyAt: 2, Depth: 1, FirstRaw: spend.Position{At: 1, Index: 1}, ID: id(0x80)},
		{ReadyAt: 0, ID: id(1)},
		{ReadyAt: 0, ID: id(2)},
	}
	for i := range ordered {
		for j := range ordered {
			if got := spend.Before(&ordered[i], &ordered[j]); got != cmp.Compare(i, j) {
				t.Errorf("%d before %d: %d", i, j, got)
			}
		}
	}
	mixed := slices.Clone(ordered)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	slices.SortFunc(mixed, func(a, b spend.Tx) int { return spend.Before(&a, &b) })
	for i := range mixed {
		if mixed[i].ID != ordered[i].ID || mixed[i].FirstRaw != ordered[i].FirstRaw {
			t.Fatalf("place %d holds %+v", i, mixed[i])
		}
	}
}
