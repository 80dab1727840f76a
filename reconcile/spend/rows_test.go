package spend_test

import (
	"math/rand/v2"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

func TestR3_OrderIgnoresCompletion(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"A", "B"}, {"B", "A"}} {
		s := newScene(t, true)
		s.tx("A", 0, "root:0")
		s.tx("B", 0, "root:0")
		s.receive("A", "B")
		s.verify(order[0])
		s.want("A pending", "B pending")
		s.verify(order[1])
		s.want("A selected-final", "B conflicting A")
	}
}

// What is published in the end depends on what was received and in which order, and on nothing else.
func TestR3_HistoriesEndAlikeInEveryOrder(t *testing.T) {
	t.Parallel()
	compared := 0
	for seed := range *histories {
		h := spendtest.Generate(seed, spendtest.Shape{})
		var first *pair
		for run := range uint64(4) {
			p := newPair(h, false)
			r := rand.New(rand.NewPCG(seed, run))
			for _, e := range h.Events {
				p.event(e)
				for r.IntN(2) == 0 && p.finishOne(r) {
				}
			}
			for p.finishOne(r) {
			}
			if first == nil {
				first = p
				continue
			}
			for _, x := range p.known {
				a, b := first.m.published[x.ID], p.m.published[x.ID]
				if a.Status != b.Status || a.Eligible != b.Eligible || a.EligibleAt != b.EligibleAt || a.Replaces != b.Replaces || a.Reason != b.Reason || a.Other != b.Other {
					t.Fatalf("%s: %+v in one order, %+v in another\n%s\n---\n%s", x.Name, a, b, first.describe(), p.describe())
				}
				compared++
			}
		}
	}
	t.Logf("histories 0 to %d in 4 orders: %d states compared", *histories-1, compared)
}

// finishOne reveals a transaction or settles a group whose members are known; groups with another result stay open.
func (p *pair) finishOne(r *rand.Rand) bool {
	var can []func()
	for _, x := range p.known {
		if !p.revealed[x.ID] {
			can = append(can, func() { p.reveal(x) })
		}
	}
	for k, id := range p.open {
		whole := true
		for _, carried := range p.m.groups[id].Carries {
			whole = whole && p.m.nodes[carried].Result == spend.Valid
		}
		if whole {
			can = append(can, func() { p.finish(k, "settle") })
		}
	}
	if len(can) == 0 {
		return false
	}
	can[r.IntN(len(can))]()
	return true
}

func TestR4_IncompleteReservesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("X", 0, "root:4")
	s.tx("E", 0, "root:0", "X:0")
	s.tx("B", 0, "root:0")
	s.receive("E")
	s.verify("E")
	s.want("E unresolved X")
	s.receive("B")
	s.verify("B")
	s.want("E unresolved X", "B selected-final")
	s.receive("X")
	s.verify("X")
	s.want("E conflicting B", "B selected-final", "X selected-final")
	if n := s.m.nodes[s.txs["E"].ID]; n.ReadyAt != 3 || n.FirstRaw.At != 1 {
		t.Errorf("E is ready at %d, received at %d", n.ReadyAt, n.FirstRaw.At)
	}
}

func TestR4_SuccessorBeforeParent(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("Q", 0, "root:3")
	s.tx("QC", 0, "Q:0")
	s.receive("QC")
	s.verify("QC")
	s.want("QC unresolved Q")
	s.receive("Q")
	s.want("QC pending", "Q pending")
	s.verify("Q")
	s.want("QC selected-final", "Q selected-final")
	before := s.outcome("Q")
	s.batch(s.group("Q")) // the same again from somewhere else
	s.want("QC selected-final", "Q selected-final")
	if after := s.outcome("Q"); after.EligibleAt != before.EligibleAt {
		t.Errorf("a duplicate moved Q from %d to %d", before.EligibleAt, after.EligibleAt)
	}
}

// One group is ready when all of it is: what came with something unknown reserves nothing, until another source has it whole.
func TestR4_AGroupIsReadyAsAWhole(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("gone", 0, "root:9")
	s.tx("orphan", 0, "gone:0")
	s.tx("A", 0, "root:0")
	s.tx("B", 0, "root:0")
	s.batch(s.group("A", "orphan"))
	s.receive("B")
	s.verify("B")
	s.want("A unresolved", "orphan unresolved gone", "B selected-final")
	s.receive("A")
	s.verify("A")
	s.want("A conflicting B", "B selected-final")
	if n := s.m.nodes[s.txs["A"].ID]; n.ReadyAt != 3 {
		t.Errorf("A is ready at %d, want 3, where a whole group brought it", n.ReadyAt)
	}
}

func TestR5_InclusionOverridesAndReorgRestores(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("A", 0, "root:0")
	s.tx("B", 0, "root:0")
	s.tx("AC", 0, "A:0")
	s.tx("BC", 0, "B:0")
	s.receive("A", "AC")
	s.batch(s.group("B*"))
	s.receive("BC")
	s.verify("A", "AC", "B", "BC")
	s.want("A selected-final", "AC selected-final", "B conflicting A", "BC dependent-conflict B")
	s.later(101, "B")
	s.want("A conflicting B", "AC dependent-conflict A", "B included", "BC selected-final")
	if r := s.outcome("A").Reason; r != spend.IncludedElsewhere {
		t.Errorf("A lost for %s", r)
	}
	s.later(101)
	s.want("A selected-final", "AC selected-final", "B conflicting A", "BC dependent-conflict B")
}

// A block that holds the child holds the parent, also where nobody brought the parent's proof.
func TestR5_AncestorsOfIncludedAreIncluded(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("rival", 0, "root:0")
	s.tx("P", 0, "root:0")
	s.tx("C", 0, "P:0")
	s.receive("rival", "P")
	s.verify("rival", "P")
	s.want("rival selected-final", "P conflicting rival")
	s.batch(s.group("C*"))
	s.verify("C")
	s.later(101, "C")
	s.want("rival conflicting P", "P included", "C included")
	s.later(102)
	s.want("rival selected-final", "P conflicting rival", "C dependent-conflict P")
}

func TestR5_ContradictionSelectsNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("A", 0, "root:0")
	s.tx("B", 0, "root:0")
	s.tx("AC", 0, "A:0")
	s.tx("BC", 0, "B:0")
	s.tx("far", 0, "root:5")
	s.batch(s.group("A*"))
	s.batch(s.group("B*"))
	s.receive("AC", "BC", "far")
	s.verify("A", "B", "AC", "BC", "far")
	s.later(101, "A")
	s.want("A included", "AC selected-final", "B conflicting", "far selected-final")
	s.later(102, "A", "B")
	s.want("A pending", "B pending", "AC pending", "BC pending", "far selected-final")
	for _, name := range []string{"A", "B", "AC", "BC"} {
		if o := s.outcome(name); o.Reason != spend.Contradiction {
			t.Errorf("%s waits for %s", name, o.Reason)
		}
	}
	s.later(103, "B")
	s.want("A conflicting B", "B included", "AC dependent-conflict A", "BC selected-final", "far selected-final")
}

func TestR5_IncludedChildOfInvalidParentSelectsNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("P", 0, "root:0")
	s.tx("C", 0, "P:0", "root:1")
	s.tx("rival", 0, "root:1")
	s.receive("rival", "P")
	s.batch(s.group("C*"))
	s.verify("rival", "C")
	s.later(101, "C")
	s.want("C included", "rival conflicting C")
	s.refuse("P")
	s.want("C pending", "rival pending", "P pending")
	s.later(102)
	s.want("C dependent-conflict P", "P invalid", "rival selected-final")
}

func TestR6_BothSettings(t *testing.T) {
	t.Parallel()
	for _, nonFinal := range []bool{true, false} {
		s := newScene(t, nonFinal)
		s.tx("N", 110, "root:1/1", "root:2/7")
		s.tx("NC", 0, "N:0")
		s.tx("R", 110, "root:1/2", "root:2/7")
		s.tx("F", 0, "root:2")
		s.receive("N", "NC")
		s.verify("N", "NC")
		if nonFinal {
			s.want("N selected-non-final", "NC dependent-conflict N")
			if r := s.outcome("NC").Reason; r != spend.ParentNonFinal {
				t.Errorf("NC waits for %s", r)
			}
		} else {
			s.want("N unsupported", "NC dependent-conflict N")
		}
		s.receive("R", "F")
		s.verify("R", "F")
		if nonFinal {
			s.want("N conflicting R", "R selected-non-final", "F conflicting R", "NC dependent-conflict N")
			if o := s.outcome("R"); !o.Replaced || o.Replaces != s.txs["N"].ID {
				t.Errorf("R replaces %+v", o)
			}
		} else {
			// What is not final keeps no priority: F was there first among the final ones.
			s.want("N unsupported", "R unsupported", "F selected-final")
		}
		s.later(110)
		if nonFinal {
			s.want("N conflicting R", "R selected-final", "F conflicting R", "NC dependent-conflict N")
		} else {
			s.want("N conflicting F", "R conflicting F", "F selected-final", "NC dependent-conflict N")
		}
	}
}

func TestR6_AMatureVersionIsNotReplaced(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("N", 105, "root:1/1")
	s.tx("R", 105, "root:1/2")
	s.receive("N")
	s.verify("N")
	s.later(105)
	s.receive("R")
	s.verify("R")
	s.want("N selected-final", "R conflicting N")
	// The reorganisation takes the block away again, but the one that came first had been final when R came.
	s.later(104)
	s.want("N selected-non-final", "R conflicting N")
}

// Who lost to a final version has lost for good in the history, also when a reorganisation leaves that version behind its
// lock time and not its rival.
func TestR6_ALostReservationIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	s.tx("N", 105, "root:1/1")
	s.tx("R", 103, "root:1/2")
	s.receive("N")
	s.verify("N")
	s.later(105)
	s.receive("R")
	s.verify("R")
	s.later(101)
	s.later(103)
	s.want("N selected-non-final", "R conflicting N")
	if o := s.outcome("R"); o.Replaced {
		t.Error("R replaced a version that had been final when it came")
	}
}
