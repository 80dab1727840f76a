package storetest

import (
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// membershipTable plays the rules of one generation: order, re-entry, last write,
// several observations of one group.
func membershipTable(_ *testing.T, k *Kit) {
	x := k.Spend(Roots[0].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "0", x.Out(1): "1"}
	s := k.Source("a")
	step := func(want []string, m reconcile.Mutation) {
		k.Helper()
		k.Commit(m)
		k.Work()
		k.Want("rows", k.Rows(names), want)
	}
	step([]string{"1/1/0/present/5 partial"}, k.Snapshot(s, false, G("p1", 5, k.Lists("p1", x, 0))))
	step([]string{"1/1/0/present/5", "1/1/1/present/5"}, k.Snapshot(s, true, G("p2", 5, k.Lists("p2", x, 1))))
	step([]string{"1/1/0/absent/6", "1/1/1/present/5"}, k.Live(s, G("l6", 6, k.Withdraws("l6", x.Out(0)))))
	step([]string{"1/1/0/present/7", "1/1/1/present/5"}, k.Live(s, G("l7", 7, k.Lists("l7", x, 0))))
	step([]string{"1/1/0/present/7", "1/1/1/absent/9"}, k.Live(s,
		G("l8", 8, k.Withdraws("l8a", x.Out(1)), k.Lists("l8b", x, 1)), G("l9", 9, k.Lists("l9a", x, 1), k.Withdraws("l9b", x.Out(1)))))
	g := k.Generation(s)
	k.Want("through", g.Through, 9)
	k.Want("W", g.W, 5)
	k.Want("complete", g.Received && g.Complete, true)
	// What breaks the order changes nothing.
	k.Refused(k.Live(s, G("l12", 12), G("l11", 11)), reconcile.StatusInvalid)
	k.Refused(k.Snapshot(s, false, G("p3", 20)), reconcile.StatusInvalid)
	again := k.Live(s, G("l9", 9, k.Lists("l9a", x, 1), k.Withdraws("l9b", x.Out(1))))
	again.Fresh = true
	k.Refused(again, reconcile.StatusInvalid)
	again = k.Live(s, G("l10", 10, k.Lists("l9a", x, 1)))
	again.Fresh = true
	k.Refused(again, reconcile.StatusInvalid)
	// Whose row a membership is, its observation says; two sources do not meet.
	b := k.Source("b")
	k.Commit(k.Live(b, G("g", 1, k.Lists("b1", x, 0))))
	k.Work()
	out := k.Output(x.Out(0))
	k.Want("sources", out.Sources, []reconcile.SourceID{s, b})
	k.Want("state", out.State, reconcile.Current)
	k.Commit(k.Live(b, G("h", 2, k.Withdraws("b2", x.Out(0)))))
	k.Work()
	k.Want("sources", k.Output(x.Out(0)).Sources, []reconcile.SourceID{s})
}

// staleReplay: what was read before changes nothing, and a position passes.
func staleReplay(_ *testing.T, k *Kit) {
	x := k.Spend(Roots[0].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "0", x.Out(1): "1"}
	s := k.Source("a")
	first, second := G("l5", 5, k.Lists("l5", x, 0)), G("l6", 6, k.Withdraws("l6", x.Out(0)))
	k.Commit(k.Live(s, first, second))
	k.Work()
	want := k.Rows(names)
	for _, groups := range [][]Group{
		{first}, {second}, {first, second},
		{G("other", 5, k.Lists("other", x, 1))}, // at or below what was read: not even recorded
		{G("other", 6, k.Lists("other", x, 1))},
	} {
		before := k.Revision()
		k.Commit(k.Live(s, groups...))
		k.Want("work", len(k.Jobs()), 0)
		k.Want("accepts", k.Settle(), 0)
		k.Want("rows", k.Rows(names), want)
		k.Want("revision", k.Revision(), reconcile.Revision{Received: before.Received + 1, Accepted: before.Accepted})
	}
	k.Commit(k.Live(s, G("other", 7, k.Lists("other", x, 1)))) // so that its id is free
	k.Work()
	k.Want("rows", k.Rows(names), []string{"1/1/0/absent/6 partial", "1/1/1/present/7 partial"})
}

// retiredIsFenced: nothing of a generation that was replaced ever comes back.
func retiredIsFenced(t *testing.T, k *Kit) {
	x, y := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "x", y.Out(0): "y"}
	s := k.Source("a")
	k.Commit(k.Snapshot(s, true, G("p", 1, k.Lists("1", x, 0))))
	k.Work()
	k.Commit(k.Live(s, G("late", 2, k.Lists("2", y, 0)))) // its result is not there when the generation goes
	jobs := k.Jobs()
	k.Want("jobs", len(jobs), 1)
	late := k.Check(jobs[0])
	if _, err := k.Store.Begin(k.ctx, s, reconcile.Attach{}); err == nil {
		k.Error("a generation began while another goes on")
	}
	k.Reset(s)
	k.Want("state", k.Generation(s).State, reconcile.Staged)
	k.Refused(k.Batch(s, 1, reconcile.PhaseLive, false, G("z", 3)), reconcile.StatusContextChanged)
	k.Commit(k.Snapshot(s, true, G("q", 9, k.Lists("3", x, 0))))
	k.Verify(x)
	k.Settle()
	k.Want("rows", k.Rows(names), []string{"1/2/x/present/9"})
	k.Want("late result", k.Record(late)[0].Kept, false)
	k.Restart(t)
	k.Want("late result", k.Record(late)[0].Kept, false)
	k.Settle()
	k.Refused(k.Batch(s, 1, reconcile.PhaseLive, false, G("z", 4)), reconcile.StatusContextChanged)
	k.Refused(reconcile.Accept{Source: s, Generation: 1, GroupID: "late", Scope: []byte(`{"epoch":"1"}`), Context: "view-0"}, reconcile.StatusContextChanged)
	k.Want("rows", k.Rows(names), []string{"1/2/x/present/9"})
	k.Want("what nobody says any more", k.Status(y), "unresolved")
	k.Want("pending", k.Generation(s).Pending, reconcile.PendingCount{})
	k.Read(func(s reconcile.Snapshot) {
		c, err := s.Counts()
		if err != nil || c.Pending != (reconcile.PendingCount{}) || c.Memberships != 1 {
			k.Errorf("%+v, %v", c, err)
		}
	})
}

// pendingBlocksMembership: a group without its result holds back later membership
// of its own generation, neither receipt nor facts nor other sources.
func pendingBlocksMembership(_ *testing.T, k *Kit) {
	missing := k.Spend(Roots[3].Out(0))
	stuck, x, y := k.Spend(missing.Out(0)), k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "x", y.Out(0): "y", stuck.Out(0): "stuck"}
	a, b := k.Source("a"), k.Source("b")
	k.Commit(k.Live(a, G("g1", 1, k.Lists("1", stuck, 0))))
	k.Commit(k.Live(a, G("g2", 2, k.Lists("2", x, 0))))
	k.Commit(k.Live(b, G("g1", 1, k.Lists("1", y, 0))))
	k.Work()
	k.Want("rows", k.Rows(names), []string{"2/1/y/present/1 partial"})
	k.Want("the fact does not wait", k.Status(x), "selected-final")
	k.Want("pending", k.Generation(a).Pending.Groups, 2)
	k.Commit(k.Live(a, G("g3", 3, k.Withdraws("3", x.Out(0)))))
	k.Work()
	k.Want("rows", k.Rows(names), []string{"2/1/y/present/1 partial"})
	at := k.Revision().Accepted
	k.Commit(k.Live(b, G("g2", 2, k.Lists("2", missing, 0))))
	k.Work()
	k.Want("rows", k.Rows(names), []string{"1/1/stuck/present/1 partial", "1/1/x/absent/3 partial", "2/1//present/2 partial", "2/1/y/present/1 partial"})
	k.Want("revisions for both groups", k.Revision().Accepted-at, 2)
	// A snapshot that is not accepted whole lets nothing live be published.
	c := k.Source("c")
	late := k.Spend(Roots[2].Out(0))
	k.Commit(k.Snapshot(c, true, G("p", 1, k.Lists("1", late, 0))))
	k.Commit(k.Live(c, G("l", 2, k.Withdraws("2", late.Out(0)))))
	k.Settle()
	k.Want("complete", k.Generation(c).Complete, false)
	k.Want("rows", len(k.Rows(names)), 4)
	k.Work()
	k.Want("rows", len(k.Rows(names)), 5)
}

// absentRowsKeep: a row that is absent keeps its last sequence until its generation
// is retired.
func absentRowsKeep(_ *testing.T, k *Kit) {
	x, y := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "x", y.Out(0): "y"}
	s := k.Source("a")
	k.Commit(k.Snapshot(s, true, G("p", 1, k.Lists("1", x, 0), k.Lists("2", y, 0))))
	k.Commit(k.Live(s, G("l", 4, k.Withdraws("3", x.Out(0)))))
	k.Work()
	k.Want("rows", k.Rows(names), []string{"1/1/x/absent/4", "1/1/y/present/1"})
	k.EndOf(s)
	k.Want("stale rows", k.Rows(names), []string{"1/1/x/absent/4 stale", "1/1/y/present/1 stale"})
	k.Begin(s)
	k.Commit(k.Snapshot(s, false, G("p", 8, k.Lists("4", x, 0))))
	k.Work()
	k.Want("rows while another is staged", k.Rows(names), []string{"1/1/x/absent/4 stale", "1/1/y/present/1 stale"})
	k.Want("sources of what is staged", len(k.Output(x.Out(0)).Sources), 0)
	k.Commit(k.Snapshot(s, true))
	k.Want("an empty last page is accepted", k.Settle(), 1)
	k.Want("rows", k.Rows(names), []string{"1/2/x/present/8"})
}

// swapIsOne: a swap, with everything that appears and goes by it, is one revision.
func swapIsOne(_ *testing.T, k *Kit) {
	x, y, z := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0)), k.Spend(Roots[2].Out(0))
	s, other := k.Source("a"), k.Source("b")
	k.Commit(k.Snapshot(s, true, G("p", 1, k.Lists("1", x, 0), k.Lists("2", y, 0))))
	k.Commit(k.Snapshot(other, true, G("p", 1, k.Lists("1", y, 0))))
	k.Work()
	k.Reset(s)
	k.Commit(k.Snapshot(s, true, G("q", 7, k.Lists("3", x, 0), k.Lists("4", z, 0))))
	k.Verify()
	at := k.Revision().Accepted
	k.Want("accepts", k.Settle(), 1)
	k.Want("accepted", k.Revision().Accepted, at+1)
	for c, err := range k.Store.Watch(k.ctx, at) {
		if err != nil {
			k.Fatal(err)
		}
		var lines []string
		for _, m := range c.Memberships {
			what := map[spend.Outpoint]string{x.Out(0): "x", y.Out(0): "y", z.Out(0): "z"}[m.Outpoint]
			switch {
			case m.Gone:
				what += " gone"
			case m.Present:
				what += " present"
			}
			lines = append(lines, what)
		}
		k.Want("memberships", len(lines), 3)
		sources := map[spend.Outpoint]int{}
		for _, o := range c.Outputs {
			sources[o.Outpoint] = len(o.Sources)
		}
		k.Want("sources of what is gone", sources[y.Out(0)], 1)
		k.Want("sources of what came", sources[z.Out(0)], 1)
		break
	}
	g := k.Generation(s)
	k.Want("state", g.State, reconcile.Active)
	k.Want("sources of y", k.Output(y.Out(0)).Sources, []reconcile.SourceID{other})
	// The rows of the old generation are removed with later commits.
	k.Commit(k.Live(s, G("l", 8)))
	k.Commit(k.Live(s, G("m", 9)))
	k.Read(func(s reconcile.Snapshot) {
		c, err := s.Counts()
		if err != nil || c.Memberships != 3 {
			k.Errorf("%+v, %v", c, err)
		}
	})
}

// finiteGenerations: each answer of a finite source is a generation of its own;
// what the next one does not have is gone, and spent by that it is not.
func finiteGenerations(_ *testing.T, k *Kit) {
	x, y := k.Spend(Roots[0].Out(0)), k.Spend(Roots[1].Out(0))
	names := map[spend.Outpoint]string{x.Out(0): "x", y.Out(0): "y"}
	s := k.Source("finite")
	answer := func(n uint64, said ...Said) {
		k.Helper()
		k.Commit(k.Batch(s, n, reconcile.PhaseFinite, true, G("answer", 0, said...)))
		k.EndOf(s)
		k.Work()
	}
	answer(1, k.Lists("1", x, 0), k.Lists("2", y, 0))
	k.Want("rows", k.Rows(names), []string{"1/1/x/present/0 stale", "1/1/y/present/0 stale"})
	k.Begin(s)
	answer(2, k.Lists("1", y, 0))
	k.Want("rows", k.Rows(names), []string{"1/2/y/present/0 stale"})
	k.Want("what is gone is not spent", k.Output(x.Out(0)).State, reconcile.Current)
	k.Want("and has no source", len(k.Output(x.Out(0)).Sources), 0)
	k.Begin(s)
	answer(3)
	k.Want("rows", k.Rows(names), []string(nil))
	k.Want("generation", k.Generation(s).Number, 3)
	k.Refused(k.Batch(s, 2, reconcile.PhaseFinite, true, G("answer", 0)), reconcile.StatusContextChanged)
}
