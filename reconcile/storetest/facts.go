package storetest

import (
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// completionOrder: of two that exclude each other the one received first wins,
// whoever was verified first.
func completionOrder(_ *testing.T, k *Kit) {
	for i, last := range []bool{false, true} {
		first, second := k.Spend(Roots[i].Out(0)), k.Spend(Roots[i].Out(0))
		a, b := k.Source(fmt.Sprint("a", i)), k.Source(fmt.Sprint("b", i))
		k.Commit(k.Live(a, G("g", 1, k.Spends("1", first))))
		k.Commit(k.Live(b, G("g", 1, k.Spends("1", second))))
		k.Want("what both would spend", k.Output(Roots[i].Out(0)).State, reconcile.Pending)
		if last {
			k.Verify(second)
			k.Settle()
		}
		k.Work()
		k.Want("first", k.Status(first), "selected-final")
		k.Want("second", k.Status(second), "conflicting")
		k.Read(func(s reconcile.Snapshot) {
			tx, _, err := s.Transaction(second.ID)
			if err != nil || tx.Reason != spend.FirstSeen || tx.Other != first.ID || tx.Order == nil || len(tx.ConflictsWith) != 1 {
				k.Errorf("%+v, %v", tx, err)
			}
		})
	}
}

// incompleteReservesNothing: a spend whose parent is missing does not hold an
// output against one that came later and is whole.
func incompleteReservesNothing(_ *testing.T, k *Kit) {
	parent := k.Spend(Roots[1].Out(0))
	early, late := k.Spend(Roots[0].Out(0), parent.Out(0)), k.Spend(Roots[0].Out(0))
	a, b := k.Source("a"), k.Source("b")
	k.Commit(k.Live(a, G("g", 1, k.Spends("1", early))))
	k.Commit(k.Live(b, G("g", 1, k.Spends("1", late))))
	k.Work()
	k.Want("late", k.Status(late), "selected-final")
	k.Want("early", k.Status(early), "unresolved")
	k.Commit(k.Live(b, G("h", 2, k.Lists("2", parent, 0))))
	k.Work()
	k.Want("late", k.Status(late), "selected-final")
	k.Want("early", k.Status(early), "conflicting")
	// A child and its parent in one evidence are one batch.
	p := k.Spend(Roots[2].Out(0))
	c := k.Spend(p.Out(0))
	k.Commit(k.Live(b, G("i", 3, k.Lists("3", c.With(p), 0))))
	k.Work()
	k.Want("child", k.Status(c), "selected-final")
	k.Want("parent", k.Status(p), "selected-final")
	k.Read(func(s reconcile.Snapshot) {
		tx, _, err := s.Transaction(c.ID)
		if err != nil || tx.Order == nil || tx.Order.Depth != 1 {
			k.Errorf("%+v, %v", tx, err)
		}
	})
}

func claim(x Tx, height uint32, root byte, holds bool) reconcile.Claim {
	return reconcile.Claim{TxID: x.ID, Height: height, Root: [32]byte{root}, Holds: holds, Known: true}
}

// inclusionAndReorg: what the chain includes wins, and what it includes no longer
// loses that, with everybody's old place.
func inclusionAndReorg(t *testing.T, k *Kit) {
	first, mined := k.Spend(Roots[0].Out(0)), k.Spend(Roots[0].Out(0))
	child := k.Spend(first.Out(0))
	s := k.Source("a")
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", first, 0))))
	k.Commit(k.Live(s, G("h", 2, k.Lists("2", mined, 0, claim(mined, 101, 7, false)))))
	k.Commit(k.Live(s, G("i", 3, k.Lists("3", child, 0))))
	k.Work()
	states := func(want ...string) {
		k.Helper()
		k.Want("first", k.Status(first), want[0])
		k.Want("mined", k.Status(mined), want[1])
		k.Want("child", k.Status(child), want[2])
	}
	states("selected-final", "conflicting", "selected-final")
	holds := func(c reconcile.Claim) (bool, bool) { return c.Root[0] == 7, true }
	k.View("view-1", 101, 1_600_000_100, 100, holds)
	states("conflicting", "included", "dependent-conflict")
	k.Want("output", k.Output(mined.Out(0)).State, reconcile.Current)
	k.Want("lost output", k.Output(first.Out(0)).State, reconcile.Conflicting)
	k.Audit()
	k.Restart(t)
	k.View("view-2", 102, 1_600_000_100, 100, func(reconcile.Claim) (bool, bool) { return false, true })
	states("selected-final", "conflicting", "selected-final")
	k.View("view-3", 102, 1_600_000_100, 100, holds)
	states("conflicting", "included", "dependent-conflict")
	// A view that concerns nobody moves nothing but the revision.
	at := k.Revision()
	k.View("view-4", 103, 1_600_000_100, 102, holds)
	k.Want("revision", k.Revision(), reconcile.Revision{Received: at.Received + 1, Accepted: at.Accepted + 1})
	for c, err := range k.Store.Watch(k.ctx, at.Accepted) {
		if err != nil || len(c.Transactions)+len(c.Outputs)+len(c.Memberships) > 0 || c.Kind != "context" || c.Context != "view-4" {
			k.Errorf("%+v, %v", c, err)
		}
		break
	}
	// A context that was prepared for another one, or without every answer, is refused.
	next := reconcile.Context{ID: "view-5", View: reconcile.ChainView{TipHeight: 104}}
	k.Refused(reconcile.ContextChange{Context: next, Prepared: "view-3"}, reconcile.StatusContextChanged)
	k.Refused(reconcile.ContextChange{Context: next, Prepared: "view-4", Fork: 100}, reconcile.StatusContextChanged)
	// A proof is an inclusion once its group is accepted.
	late := k.Spend(Roots[2].Out(0))
	k.Commit(k.Live(s, G("k", 5, k.Lists("5", late, 0))))
	k.Work()
	k.Commit(k.Live(s, G("l", 6, k.Lists("6", late, 1, claim(late, 100, 8, true)))))
	k.Want("before its group is accepted", k.Status(late), "selected-final")
	k.Work()
	k.Want("after", k.Status(late), "included")
	// A coinbase counts once it is mature.
	k.Want("claims", k.claims(103, 150), 0)
	base := k.Spend(Roots[1].Out(0))
	young := claim(base, 90, 9, false)
	young.Coinbase = true
	k.Commit(k.Live(s, G("j", 7, k.Lists("4", base, 0, young))))
	k.Want("claims of an old coinbase", k.claims(103, 189), 0)
	k.Want("claims of a coinbase that matures", k.claims(103, 190), 1)
	k.Work()
}

func (k *Kit) claims(from, to uint32) int {
	k.Helper()
	list, err := k.Store.Claims(k.ctx, from, to)
	if err != nil {
		k.Fatal(err)
	}
	return len(list)
}

// lostAnchor: what was accepted for a proof alone is run when the proof goes, and
// waits for that.
func lostAnchor(_ *testing.T, k *Kit) {
	for _, bad := range []bool{false, true} {
		x := k.Spend(Roots[0].Out(0))
		if bad {
			x = k.Spend(Roots[1].Out(0))
		}
		k.Bad[x.ID] = bad
		s := k.Source(fmt.Sprint(bad))
		height := uint32(100)
		k.Commit(k.Live(s, G("g", 1, k.Lists("1", x, 0, claim(x, height, 5, true)))))
		k.Work()
		k.Want("status", k.Status(x), "included")
		view := k.Options.Context.View
		k.View("lost"+fmt.Sprint(bad), view.TipHeight, view.MedianTimePast, 99, func(reconcile.Claim) (bool, bool) { return false, true })
		k.Want("status", k.Status(x), "pending, was included")
		k.Want("output", k.Output(x.Out(0)).State, reconcile.Pending)
		k.Want("jobs", len(k.Jobs()), 1)
		k.Work()
		if bad {
			k.Want("status", k.Status(x), "invalid")
			k.Want("output", k.Output(x.Out(0)).State, reconcile.Unknown)
		} else {
			k.Want("status", k.Status(x), "selected-final")
		}
		k.View("back"+fmt.Sprint(bad), view.TipHeight, view.MedianTimePast, 99, func(reconcile.Claim) (bool, bool) { return !bad, true })
	}
}

// finalityFollows: equality is not final, and what a view makes final it can take
// back.
func finalityFollows(_ *testing.T, k *Kit) {
	in := spend.Input{Outpoint: Roots[0].Out(0), Sequence: 1}
	old := k.Locked(102, in)
	s := k.Source("a")
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", old, 0))))
	k.Work()
	k.Want("at 101", k.Status(old), "selected-non-final")
	k.Want("its output", k.Output(old.Out(0)).State, reconcile.Pending)
	k.Want("its input", k.Output(Roots[0].Out(0)).State, reconcile.Current)
	in.Sequence = 2
	next := k.Locked(102, in)
	k.Commit(k.Live(s, G("h", 2, k.Lists("2", next, 0))))
	k.Work()
	k.Want("replaced", k.Status(old), "conflicting")
	k.Want("replacing", k.Status(next), "selected-non-final")
	k.View("h101", 101, 1_600_000_000, 100, nil)
	k.Want("at 102", k.Status(next), "selected-non-final")
	k.View("h102", 102, 1_600_000_000, 101, nil)
	k.Want("at 103", k.Status(next), "selected-final")
	k.Want("its input", k.Output(Roots[0].Out(0)).State, reconcile.Spent)
	k.View("h101b", 101, 1_600_000_000, 100, nil)
	k.Want("back at 102", k.Status(next), "selected-non-final")
	k.Want("replaced for ever", k.Status(old), "conflicting")
	k.Read(func(s reconcile.Snapshot) {
		n := 0
		for r, err := range s.Replacements() {
			n++
			if err != nil || r.Previous != old.ID || r.Next != next.ID || r.Context != "view-0" {
				k.Errorf("%+v, %v", r, err)
			}
		}
		k.Want("replacements", n, 1)
	})
}

// neverByWord: no word of a source makes an output current, and none unspent.
func neverByWord(_ *testing.T, k *Kit) {
	x := k.Spend(Roots[0].Out(0))
	spender := k.Spend(x.Out(0))
	honest, liar := k.Source("honest"), k.Source("liar")
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", x, 0))))
	k.Work()
	k.Commit(k.Live(honest, G("h", 2, k.Spends("2", spender), k.Withdraws("3", x.Out(0)))))
	k.Want("while it waits", k.Output(x.Out(0)).State, reconcile.Pending)
	k.Work()
	k.Want("spent", k.Output(x.Out(0)).State, reconcile.Spent)
	k.Want("by", k.Output(x.Out(0)).By, spender.ID)
	for i := range uint64(3) { // in, out, in
		k.Commit(k.Live(liar, G(fmt.Sprint("in", i), 2*i+1, k.Lists(fmt.Sprint("in", i), x, 0))))
		k.Want("while the liar's word waits", k.Output(x.Out(0)).State, reconcile.Spent)
		k.Work()
		k.Want("listed and spent", k.Output(x.Out(0)).State, reconcile.Spent)
		k.Want("sources", k.Output(x.Out(0)).Sources, []reconcile.SourceID{liar})
		k.Commit(k.Live(liar, G(fmt.Sprint("out", i), 2*i+2, k.Withdraws(fmt.Sprint("out", i), x.Out(0)))))
		k.Work()
	}
	// A withdrawal alone spends nothing.
	k.Commit(k.Live(honest, G("i", 3, k.Lists("4", spender, 1))))
	k.Work()
	k.Commit(k.Live(honest, G("j", 4, k.Withdraws("5", spender.Out(1)))))
	k.Work()
	k.Want("withdrawn", k.Output(spender.Out(1)).State, reconcile.Current)
	k.Want("no such output", k.Output(spender.Out(3)).State, reconcile.Unknown)
	k.Want("no such transaction", k.Output(k.Spend(x.Out(2)).Out(0)).State, reconcile.Unknown)
	k.Read(func(s reconcile.Snapshot) {
		c, err := s.Counts()
		if err != nil || c.Outputs[reconcile.Spent] != 1 || c.Outputs[reconcile.Current] != 1 {
			k.Errorf("%+v, %v", c, err)
		}
		for _, state := range []reconcile.OutputState{"", reconcile.Spent, reconcile.Current, reconcile.Pending} {
			n := 0
			for o, err := range s.Outputs(state) {
				n++
				if err != nil || state != "" && o.State != state {
					k.Errorf("%+v, %v", o, err)
				}
			}
			k.Want("outputs "+string(state), n, map[reconcile.OutputState]int{"": 2, reconcile.Spent: 1, reconcile.Current: 1}[state])
		}
	})
}

// contextIsChecked: a result of another view is dropped, and what was verified
// under the old one is verified again before it is accepted (trace 4).
func contextIsChecked(_ *testing.T, k *Kit) {
	x, y := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	s := k.Source("a")
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", x, 0))))
	k.Commit(k.Live(s, G("h", 2, k.Lists("2", y, 0))))
	k.Verify(x)
	ms, err := k.Store.Settled(k.ctx, 10)
	if err != nil || len(ms) != 1 {
		k.Fatalf("%v, %v", ms, err)
	}
	var stale reconcile.Result
	for _, j := range k.Jobs() {
		stale = k.Check(j)
	}
	other := k.Source("b") // an accept without results has nothing but its context to be late by
	k.Commit(k.Live(other, G("g", 1, k.Withdraws("1", x.Out(1)))))
	empty, err := k.Store.Settled(k.ctx, 10)
	if err != nil || len(empty) != 2 {
		k.Fatalf("%v, %v", empty, err)
	}
	planned := k.Live(s, G("i", 3))
	k.View("view-1", 101, 1_600_000_000, 100, nil)
	k.Refused(planned, reconcile.StatusContextChanged)
	k.Refused(ms[0], reconcile.StatusContextChanged)
	k.Refused(empty[1], reconcile.StatusContextChanged)
	k.Want("the withdrawal", k.Settle(), 1)
	k.Want("stale result", k.Record(stale)[0].Kept, false)
	k.Want("ready", k.Settle(), 0)
	k.Want("to verify", len(k.Jobs()), 2)
	k.Work()
	k.Want("x", k.Status(x), "selected-final")
	k.Want("y", k.Status(y), "selected-final")
}

// workIsListed: a list of work has pages, and every candidate is on one of them,
// sources apart and in the order of receipt.
func workIsListed(_ *testing.T, k *Kit) {
	a, b := k.Source("a"), k.Source("b")
	var want []string
	for i := range uint32(7) {
		x := k.Spend(Roots[0].Out(0), Roots[1].Out(i%3))
		k.Commit(k.Live(b, G(fmt.Sprint("g", i), uint64(i+1), k.Lists(fmt.Sprint(i), x, 0))))
		k.Commit(k.Live(a, G(fmt.Sprint("g", i), uint64(i+1), k.Lists(fmt.Sprint(i), x, 0))))
		want = append(want, x.ID.String())
	}
	var got [3][]string
	var last reconcile.SourceID
	for _, j := range k.Jobs() {
		if j.Source < last {
			k.Errorf("source %d after %d", j.Source, last)
		}
		last = j.Source
		got[j.Source] = append(got[j.Source], j.Target.String())
	}
	k.Want("of a", got[a], want)
	k.Want("of b", got[b], want)
	k.Work()
	k.Want("work", len(k.Jobs()), 0)
}
