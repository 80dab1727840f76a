package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// wholeGroupsOnly: nothing of a group is published before all of it is verified,
// and then all of it in one revision.
func wholeGroupsOnly(_ *testing.T, k *Kit) {
	a, b := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	s := k.Source("a")
	before := k.Revision()
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", a, 0), k.Lists("2", b, 0))))
	k.Want("received", k.Revision(), reconcile.Revision{Received: before.Received + 1, Accepted: before.Accepted})
	k.Want("status", k.Status(a), "pending")
	k.Verify(a)
	k.Want("accepted for a half", k.Settle(), 0)
	k.Want("rows", k.Rows(nil), []string(nil))
	k.Want("status of the verified half", k.Status(a), "pending")
	k.Verify(b)
	k.Want("accepted", k.Settle(), 1)
	k.Want("revision", k.Revision(), reconcile.Revision{Received: before.Received + 2, Accepted: before.Accepted + 1})
	names := map[spend.Outpoint]string{a.Out(0): "a", b.Out(0): "b"}
	k.Want("rows", k.Rows(names), []string{"1/1/a/present/1 partial", "1/1/b/present/1 partial"})
	for _, x := range []Tx{a, b} {
		k.Want("status", k.Status(x), "selected-final")
		k.Want("output", k.Output(x.Out(0)).State, reconcile.Current)
	}
	// An accept by hand must say what is recorded, of every candidate.
	c := k.Spend(a.Out(0))
	k.Commit(k.Live(s, G("h", 2, k.Spends("3", c), k.Withdraws("4", a.Out(0)))))
	k.Verify()
	ms, err := k.Store.Settled(k.ctx, 10)
	if err != nil || len(ms) != 1 {
		k.Fatalf("%v, %v", ms, err)
	}
	accept := ms[0].(reconcile.Accept)
	for _, change := range []func(*reconcile.Accept){
		func(a *reconcile.Accept) { a.Results = nil },
		func(a *reconcile.Accept) { a.Results[0].Status = reconcile.Invalid },
		func(a *reconcile.Accept) { a.Results[0].Variant[0] ^= 1 },
		func(a *reconcile.Accept) { a.Context = "view-1" },
		func(a *reconcile.Accept) { a.GroupID = "other" },
	} {
		other := accept
		other.Results = slices.Clone(accept.Results)
		change(&other)
		k.Refused(other, reconcile.StatusContextChanged)
	}
	k.Commit(accept)
	k.Want("output", k.Output(a.Out(0)).State, reconcile.Spent)
	k.Want("rows", k.Rows(names), []string{"1/1/a/absent/2 partial", "1/1/b/present/1 partial"})
	// A group without evidence is accepted like any other, in its turn.
	k.Commit(k.Live(s, G("i", 3, k.Withdraws("5", b.Out(0)))))
	k.Want("rows before", k.Rows(names), []string{"1/1/a/absent/2 partial", "1/1/b/present/1 stale partial"})
	k.Want("accepted", k.Settle(), 1)
	k.Want("rows after", k.Rows(names), []string{"1/1/a/absent/2 partial", "1/1/b/absent/3 partial"})
}

// invalidQuarantines: one wrong member takes its whole group and ends that source's
// generation; other sources go on, and what they prove stands.
func invalidQuarantines(_ *testing.T, k *Kit) {
	good, bad := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	k.Bad[bad.ID] = true
	liar, honest := k.Source("liar"), k.Source("honest")
	k.Commit(k.Live(liar, G("g", 1, k.Lists("1", good, 0), k.Lists("2", bad, 0))))
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", good, 0))))
	before := k.Revision()
	var quarantined int
	for _, j := range k.Jobs() {
		for _, r := range k.Record(k.Check(j)) {
			if r.Quarantined {
				quarantined++
			}
		}
	}
	k.Want("quarantined", quarantined, 1)
	k.Want("revision", k.Revision(), before)
	g := k.Generation(liar)
	if g.Ending == nil || g.Ending.Code != string(reconcile.Invalid) {
		k.Fatalf("the generation of the liar: %+v", g)
	}
	k.Refused(k.Batch(liar, 1, reconcile.PhaseLive, false, G("h", 2)), reconcile.StatusContextChanged)
	k.Work()
	k.Want("good", k.Status(good), "selected-final")
	k.Want("bad", k.Status(bad), "invalid")
	k.Want("rows", k.Rows(map[spend.Outpoint]string{good.Out(0): "good", bad.Out(0): "bad"}), []string{"2/1/good/present/1 partial"})
	if q := k.Quarantine(liar); len(q) != 1 || q[0].ID != "2" || q[0].Code != string(reconcile.Invalid) || len(q[0].Bytes) == 0 {
		k.Errorf("quarantine: %+v", q)
	}
	k.Want("quarantine of the honest one", len(k.Quarantine(honest)), 0)
	k.Want("ended", k.Generation(honest).Ending == nil, true)
}

// unresolvedStays: a group that lacks something stays pending, without an end, and
// goes on by itself when the missing bytes come.
func unresolvedStays(_ *testing.T, k *Kit) {
	parent := k.Spend(Roots[0].Out(0))
	child := k.Spend(parent.Out(0))
	s, other := k.Source("a"), k.Source("b")
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", child, 0))))
	k.Want("work", len(k.Jobs()), 0)
	k.Work()
	k.Want("status", k.Status(child), "unresolved")
	k.Read(func(s reconcile.Snapshot) {
		n := 0
		for g, err := range s.PendingGroups() {
			n++
			if err != nil || g.Open != 1 || !slices.Equal(g.Waiting, []spend.Outpoint{parent.Out(0)}) {
				k.Errorf("%+v, %v", g, err)
			}
		}
		k.Want("pending groups", n, 1)
	})
	// Whoever tries it anyway is told, and it is kept.
	j := reconcile.Job{Source: s, Generation: 1, Group: 1, Context: "view-0", Target: child.ID}
	e, err := k.Store.Load(k.ctx, j)
	if err != nil || !slices.Equal(e.Missing, []spend.Outpoint{parent.Out(0)}) {
		k.Fatalf("%+v, %v", e, err)
	}
	r := reconcile.Result{Source: s, Generation: 1, Group: 1, Variant: k.Lists("1", child, 0).Variant, Context: "view-0", Status: reconcile.Unresolved}
	r.Dependencies = e.Missing
	k.Want("kept", k.Record(r)[0].Kept, true)
	k.Work()
	k.Want("status", k.Status(child), "unresolved")
	k.Commit(k.Live(other, G("g", 1, k.Lists("1", parent, 0))))
	k.Work()
	k.Want("child", k.Status(child), "selected-final")
	k.Want("parent", k.Status(parent), "selected-final")
	k.Want("ended", k.Generation(s).Ending == nil, true)
	k.Want("pending", k.Generation(s).Pending, reconcile.PendingCount{})
}

// barrierLifts: when evidence turns out invalid there is no accept, and still what
// waited behind it goes on (T7).
func barrierLifts(_ *testing.T, k *Kit) {
	first, second := k.Spend(Roots[0].Out(0)), k.Spend(Roots[0].Out(0))
	k.Bad[first.ID] = true
	a, b := k.Source("a"), k.Source("b")
	k.Commit(k.Live(a, G("g", 1, k.Spends("1", first))))
	k.Commit(k.Live(b, G("g", 1, k.Spends("1", second))))
	k.Verify(second)
	k.Settle()
	k.Want("second behind the barrier", k.Status(second), "pending")
	k.Read(func(s reconcile.Snapshot) {
		n := 0
		for c, err := range s.PendingComponents() {
			n++
			if err != nil || c.Reason != spend.BarrierOpen || len(c.Members) != 2 {
				k.Errorf("%+v, %v", c, err)
			}
		}
		k.Want("components", n, 1)
	})
	k.Verify(first)
	ms, err := k.Store.Settled(k.ctx, 10)
	if err != nil || len(ms) != 1 {
		k.Fatalf("%v, %v", ms, err)
	}
	if _, ok := ms[0].(reconcile.Reconcile); !ok {
		k.Fatalf("%T is ready", ms[0])
	}
	k.Settle()
	k.Want("second", k.Status(second), "selected-final")
	k.Want("first", k.Status(first), "invalid")
}

// limitedHoldsNothing: a budget's decision is recorded, holds no barrier, and what
// it would spend is not shown as current.
func limitedHoldsNothing(_ *testing.T, k *Kit) {
	first, second := k.Spend(Roots[0].Out(0)), k.Spend(Roots[0].Out(0), Roots[1].Out(0))
	a, b := k.Source("a"), k.Source("b")
	k.Commit(k.Live(a, G("g", 1, k.Spends("1", first))))
	k.Commit(k.Live(b, G("g", 1, k.Spends("1", second))))
	k.Verify(first)
	k.Settle()
	k.Want("first", k.Status(first), "pending")
	for _, j := range k.Jobs() {
		r := k.Check(j)
		r.Status, r.Facts, r.Reason = reconcile.Limited, nil, "too much"
		k.Record(r)
	}
	k.Settle()
	k.Want("first", k.Status(first), "selected-final")
	k.Want("second", k.Status(second), "limited")
	k.Want("taken", k.Output(Roots[0].Out(0)).State, reconcile.Spent)
	k.Want("what it would spend", k.Output(Roots[1].Out(0)).State, reconcile.Unknown)
	k.Want("pending", k.Generation(b).Pending.Groups, 1)
}

// crowded: placements that are only claimed keep none out that holds.
func crowded(_ *testing.T, k *Kit) {
	k.Options.Budget.Claims = 4
	k.Open(k.instance.Backend)
	x := k.Spend(Roots[0].Out(0))
	liar, honest := k.Source("liar"), k.Source("honest")
	for i := range uint32(5) {
		k.Commit(k.Live(liar, G(fmt.Sprint("g", i), uint64(i+1), k.Lists(fmt.Sprint(i), x, 0, claim(x, 200+i, byte(i), false)))))
	}
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", x, 0, claim(x, 100, 77, true)))))
	k.Work()
	k.Want("status", k.Status(x), "included")
	k.Want("of the honest one waits", k.Generation(honest).Pending.Groups, 0)
	k.Want("of the liar waits", k.Generation(liar).Pending.Groups, 1)
}

// stuckIsNoBarrier: a group that cannot end holds back nobody else's facts, also not
// those that it carries itself.
func stuckIsNoBarrier(_ *testing.T, k *Kit) {
	x, y := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	rival := k.Spend(Roots[0].Out(0))
	liar, honest := k.Source("liar"), k.Source("honest")
	k.Commit(k.Live(liar, G("g", 1, k.Lists("1", x, 0), k.Lists("2", y, 0))))
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", rival, 0))))
	k.Verify(x, rival)
	k.Settle()
	k.Want("behind the barrier", k.Status(rival), "pending")
	for _, j := range k.Jobs() {
		r := k.Check(j)
		r.Status, r.Facts, r.Reason = reconcile.Unresolved, nil, "it never ends"
		k.Record(r)
	}
	k.Settle()
	k.Want("rival", k.Status(rival), "selected-final")
	k.Want("of a group that waits", k.Status(x), "unresolved")
	before := k.Dump()
	k.View("view-1", 101, 1_600_000_000, 100, nil) // it is looked at again, and that alone holds nobody
	k.Want("rival", k.Status(rival), "selected-final")
	k.Want("jobs", len(k.Jobs()), 2)
	for _, j := range k.Jobs() {
		r := k.Check(j)
		if j.Target == y.ID {
			r.Status, r.Facts = reconcile.Unresolved, nil
		}
		k.Record(r)
	}
	k.Settle()
	k.Want("rival", k.Status(rival), "selected-final")
	if before == k.Dump() {
		k.Error("the view is not in the snapshot")
	}
	// When what it named comes, it is one like any other again.
	missing := k.Spend(Roots[2].Out(0))
	late := k.Spend(Roots[3].Out(0))
	k.Commit(k.Live(liar, G("h", 2, k.Lists("3", late, 0))))
	for _, j := range k.Jobs() {
		r := k.Check(j)
		r.Status, r.Facts, r.Dependencies = reconcile.Unresolved, nil, []spend.Outpoint{missing.Out(0)}
		k.Record(r)
	}
	k.Settle()
	k.Want("late", k.Status(late), "unresolved")
	k.Commit(k.Live(honest, G("h", 2, k.Lists("2", missing, 0))))
	k.Settle()
	k.Want("late", k.Status(late), "pending, was unresolved")
	k.Verify(late)
	k.Settle()
	k.Want("late", k.Status(late), "selected-final")
	k.Work()
}

// evidenceBudgets: evidence over a bound is limited, never invalid, and its source
// goes on.
func evidenceBudgets(_ *testing.T, k *Kit) {
	k.Options.Budget = reconcile.Budget{Transactions: 2, Candidate: 400, Dependencies: 1}
	k.Open(k.instance.Backend)
	s := k.Source("a")
	p := k.Spend(Roots[0].Out(0))
	q := k.Spend(p.Out(0))
	r := k.Spend(q.Out(0))
	k.Commit(k.Live(s, G("many", 1, k.Lists("1", r.With(q, p), 0))))
	long := make([]spend.Outpoint, 9)
	for i := range long {
		long[i] = Roots[1].Out(uint32(i))
	}
	k.Commit(k.Live(s, G("large", 2, k.Lists("2", k.Spend(long...), 0))))
	two := k.Spend(Roots[2].Out(0))
	k.Commit(k.Live(s, G("needs", 3, k.Lists("3", two, 0))))
	jobs := k.Jobs()
	k.Want("jobs", len(jobs), 1)
	over := k.Check(jobs[0])
	over.Status, over.Facts, over.Dependencies = reconcile.Unresolved, nil, []spend.Outpoint{p.Out(9), q.Out(9)}
	k.Record(over)
	k.Want("ended", k.Generation(s).Ending == nil, true)
	k.Read(func(s reconcile.Snapshot) {
		n := 0
		for g, err := range s.PendingGroups() {
			if n++; err != nil || g.Open != 1 || g.Reason == "" {
				k.Errorf("%+v, %v", g, err)
			}
		}
		k.Want("groups", n, 3)
	})
	k.Settle()
	k.Want("accepts", k.Settle(), 0)
}
