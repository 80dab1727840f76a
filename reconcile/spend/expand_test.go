package spend_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

// announced is the model as a store that likes to know what is read next.
type announced struct {
	*model
	next          map[spend.TxID]bool
	told, unasked int
}

func (a *announced) Prefetch(ids []spend.TxID) {
	a.told++
	for _, id := range ids {
		a.next[id] = true
	}
}

func (a *announced) Tx(id spend.TxID) (*spend.Node, bool) {
	if !a.next[id] {
		a.unasked++
	}
	return a.model.Tx(id)
}

func TestG1_EveryReadIsAnnounced(t *testing.T) {
	t.Parallel()
	told := 0
	for seed := range *histories {
		p := newPair(generateAny(seed), false)
		r := rand.New(rand.NewPCG(seed, 3))
		for events, done := p.h.Events, false; !done; {
			if events, done = p.step(r, events); done {
				break
			}
			var all []spend.TxID
			for _, x := range p.known {
				all = append(all, x.ID)
			}
			a := &announced{model: p.m, next: map[spend.TxID]bool{}}
			fresh := func() { a.next = map[spend.TxID]bool{} }
			if have, want := spend.Expand(a, all, 0), spend.Expand(p.m, all, 0); !equalPieces(have, want) {
				t.Fatalf("pieces differ for one who asks what comes\n%s", p.describe())
			}
			fresh()
			spend.Cover(a, all)
			fresh()
			spend.Retract(a, all)
			fresh()
			spend.Advance(a, all, p.open)
			if a.unasked > 0 {
				t.Fatalf("%d nodes were read that were not announced\n%s", a.unasked, p.describe())
			}
			told += a.told
		}
	}
	t.Logf("%d announcements", told)
}

func equalPieces(a, b []spend.Piece) bool {
	return slices.EqualFunc(a, b, func(x, y spend.Piece) bool {
		x.Trusted, y.Trusted = nil, nil
		return reflect.DeepEqual(x, y)
	})
}

// Whatever has been computed already is what would be computed again: nothing is left to do, in any order of asking.
func TestG9_NothingIsLeftToDo(t *testing.T) {
	t.Parallel()
	for seed := range *histories {
		p := newPair(generateAny(seed), false)
		r := rand.New(rand.NewPCG(seed, 4))
		for events, done := p.h.Events, false; !done; {
			if events, done = p.step(r, events); done {
				break
			}
			var all []spend.TxID
			for _, x := range p.known {
				all = append(all, x.ID)
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			var groups []spend.GroupID
			for g := range p.m.groups {
				if !p.m.groups[g].gone {
					groups = append(groups, g)
				}
			}
			if left := spend.Advance(p.m, all, groups); len(left) > 0 {
				t.Fatalf("Advance has more: %+v\n%s", left, p.describe())
			}
			if left := spend.Retract(p.m, all); len(left) > 0 {
				t.Fatalf("Retract has more: %+v\n%s", left, p.describe())
			}
			if left := spend.Cover(p.m, all); len(left) > 0 {
				t.Fatalf("Cover has more: %+v\n%s", left, p.describe())
			}
		}
	}
}

// The pieces of all that is known are a partition, and a piece is the same from whichever member it is asked for.
func TestG1_PiecesPartitionTheGraph(t *testing.T) {
	t.Parallel()
	for seed := range *histories {
		p := newPair(generateAny(seed), false)
		r := rand.New(rand.NewPCG(seed, 5))
		for events, done := p.h.Events, false; !done; {
			if events, done = p.step(r, events); done {
				break
			}
		}
		var all []spend.TxID
		for _, x := range p.known {
			all = append(all, x.ID)
		}
		seen, border := map[spend.TxID]int{}, map[spend.TxID]bool{}
		for _, piece := range spend.Expand(p.m, all, 0) {
			for i := range piece.Members {
				id := piece.Members[i].ID
				seen[id]++
				if again := spend.Expand(p.m, []spend.TxID{id}, 0); len(again) != 1 || !equalPieces(again, []spend.Piece{piece}) {
					t.Fatalf("the component of %s is another when asked from there\n%s", p.names[id], p.describe())
				}
			}
			for i := range piece.Border {
				border[piece.Border[i].ID] = true
			}
		}
		for _, id := range all {
			forced := p.m.nodes[id].Forced()
			if forced != border[id] || forced == (seen[id] == 1) || seen[id] > 1 {
				t.Fatalf("%s is in %d pieces, border %v, forced %v\n%s", p.names[id], seen[id], border[id], forced, p.describe())
			}
		}
	}
}

func TestG1_ACutComponentIsMarkedInAllItsParts(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	previous := "root:0"
	var ids []spend.TxID
	for _, name := range []string{"A", "B", "C", "D", "E", "F", "G", "H"} {
		s.tx(name, 0, previous)
		s.receive(name)
		previous = name + ":0"
		ids = append(ids, s.txs[name].ID)
	}
	s.tx("far", 0, "root:5")
	s.receive("far")
	ids = append(ids, s.txs["far"].ID)
	for limit := 1; limit <= 9; limit++ {
		for _, piece := range spend.Expand(s.m, ids, limit) {
			want := limit < 8 && piece.Members[0].ID != s.txs["far"].ID
			if piece.Over != want {
				t.Errorf("limit %d: a piece of %d members is over %v", limit, len(piece.Members), piece.Over)
			}
		}
	}
}

// loop is a graph that no hash function allows, and a store with a fault might show: everything must still end.
func TestG1_ALoopEnds(t *testing.T) {
	t.Parallel()
	root := spendtest.Seal(spendtest.Tx{Name: "root", Outputs: 1}, 0)
	m := newModel(&spendtest.History{Roots: []spendtest.Tx{root}, First: spendtest.View{Height: 1}}, false)
	a, b := spend.TxID{1}, spend.TxID{2}
	m.receive([]spendtest.Group{{ID: 1, Targets: []spend.TxID{a}, Carries: []spend.TxID{a, b}}}, []spendtest.Tx{
		{ID: a, Inputs: []spend.Input{{Outpoint: spend.Outpoint{TxID: b}}}},
		{ID: b, Inputs: []spend.Input{{Outpoint: spend.Outpoint{TxID: a}}}},
	})
	for _, id := range []spend.TxID{a, b} {
		if o := m.published[id]; o.Status != spend.Unresolved {
			t.Errorf("%s is %s", id, o.Status)
		}
	}
}
