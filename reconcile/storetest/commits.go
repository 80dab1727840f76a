package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
)

// lostReply: after a lost reply the key says what became of a commit, and it is in
// the store once.
func lostReply(_ *testing.T, k *Kit) {
	faults := &Faults{}
	x := k.Spend(Roots[0].Out(0))
	k.Open(Faulty(k.instance.Backend, faults))
	s := k.Source("a")
	m := k.Live(s, G("g", 1, k.Lists("1", x, 0)))
	at := k.Revision()

	faults.Before = 1 // nothing was written
	if c, err := k.Store.Commit(k.ctx, at.Received, m); err == nil || errors.Is(err, reconcile.ErrUnknown) {
		k.Fatalf("%+v, %v", c, err)
	}
	if _, found, err := k.Store.Mutation(k.ctx, m.Key()); found || err != nil {
		k.Fatalf("found %v, %v", found, err)
	}
	k.Want("revision", k.Revision(), at)

	faults.After = 1 // it was, and nobody knows
	if c, err := k.Store.Commit(k.ctx, at.Received, m); !errors.Is(err, reconcile.ErrUnknown) {
		k.Fatalf("%+v, %v", c, err)
	}
	c, found, err := k.Store.Mutation(k.ctx, m.Key())
	if !found || err != nil || c.Status != reconcile.StatusReplayed || c.Revision.Received != at.Received+1 {
		k.Fatalf("%+v, %v, %v", c, found, err)
	}
	k.Want("again", k.Commit(m), c)
	k.Want("revision", k.Revision().Received, at.Received+1)

	for _, after := range []bool{false, true} { // Settle does all that
		if after {
			faults.After = 1
		}
		if n, err := reconcile.Settle(k.ctx, k.Store, k.Live(s, G(fmt.Sprint("s", after), 2))); err != nil || !n.Took() {
			k.Fatalf("%+v, %v", n, err)
		}
	}
	k.Work()
	faults.After = 1
	k.Commit(k.Live(s, G("last", 3, k.Withdraws("w", x.Out(0)))))
	k.Settle()
	k.Want("received", k.Revision().Received, at.Received+8)
}

// replayAndConflict: the same body answers with the revisions it had, and another
// expectation writes nothing.
func replayAndConflict(_ *testing.T, k *Kit) {
	x := k.Spend(Roots[0].Out(0))
	s := k.Source("a")
	m := k.Live(s, G("g", 1, k.Lists("1", x, 0)))
	first := k.Commit(m)
	k.Work()
	now := k.Revision()
	for _, expected := range []uint64{0, first.Revision.Received, now.Received, now.Received + 7} {
		c, err := k.Store.Commit(k.ctx, expected, m)
		if err != nil || c.Status != reconcile.StatusReplayed || c.Revision != first.Revision {
			k.Errorf("a replay at %d: %+v, %v", expected, c, err)
		}
	}
	other := k.Live(s, G("h", 2))
	for _, expected := range []uint64{0, now.Received - 1, now.Received + 1, 1<<64 - 1} {
		c, err := k.Store.Commit(k.ctx, expected, other)
		if err != nil || c.Status != reconcile.StatusConflict || c.Revision != now {
			k.Errorf("a commit at %d: %+v, %v", expected, c, err)
		}
	}
	k.Want("revision", k.Revision(), now)
	if _, err := k.Store.Read(k.ctx, now.Accepted+1); !errors.Is(err, reconcile.ErrRevision) {
		k.Errorf("another revision: %v", err)
	}
	// Attachments go in with the batch, or not at all.
	other.Attach = reconcile.Attach{Put: []reconcile.Entry{{Key: []byte("k"), Value: []byte("v")}}}
	refused := k.Batch(s, 7, reconcile.PhaseLive, false, G("z", 9))
	refused.Attach = reconcile.Attach{Put: []reconcile.Entry{{Key: []byte("n"), Value: []byte("v")}}}
	k.Refused(refused, reconcile.StatusContextChanged)
	k.Commit(other)
	var keys []string
	for e, err := range k.Store.Attachments(k.ctx, nil) {
		if err != nil {
			k.Fatal(err)
		}
		keys = append(keys, string(e.Key)+"="+string(e.Value))
	}
	k.Want("attachments", keys, []string{"k=v"})
	// CommitAll stops at the first refusal and keeps what came before.
	third, fourth := k.Live(s, G("i", 3)), k.Live(s, G("j", 4))
	list, err := k.Store.CommitAll(k.ctx, k.Revision().Received, []reconcile.Mutation{third, refused, fourth})
	if err != nil || len(list) != 2 || list[0].Status != reconcile.StatusCommitted || list[1].Status != reconcile.StatusContextChanged {
		k.Errorf("%+v, %v", list, err)
	}
	if _, found, err := k.Store.Mutation(k.ctx, fourth.Key()); found || err != nil {
		k.Errorf("what came after the refusal: %v, %v", found, err)
	}
	k.Settle()
}

// equivocationIsBounded: an id with other bytes ends its generation; however many of
// them fill no store, and the honest source does not notice.
func equivocationIsBounded(_ *testing.T, k *Kit) {
	const rounds = 100
	liar, honest := k.Source("liar"), k.Source("honest")
	x := k.Spend(Roots[0].Out(0))
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", x, 0))))
	k.Work()
	for i := range rounds {
		id, seq := fmt.Sprint("g", i), uint64(i+1)
		k.Commit(k.Live(liar, G(id, seq, k.Withdraws(id, x.Out(0)))))
		k.Settle()
		long := k.said(id, "note", x.Out(1), reconcile.None, nil, nil)
		long.Canonical = fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, bytes.Repeat([]byte("x"), 70_000+i))
		m := k.Live(liar, G("other"+id, seq+1000, long))
		if i%2 == 0 {
			m = k.Live(liar, G(id, seq+1000, k.Withdraws("other"+id, x.Out(1))))
		}
		before := k.Revision()
		c, err := reconcile.Settle(k.ctx, k.Store, m)
		if err != nil || c.Status != reconcile.StatusEquivocation || k.Revision() != before {
			k.Fatalf("%+v, %v", c, err)
		}
		if e := k.Generation(liar).Ending; e == nil || e.Code != string(reconcile.StatusEquivocation) {
			k.Fatalf("ending: %+v", e)
		}
		k.Begin(liar)
		// Ids of live groups are those of the scope: in a new generation they say the same.
		k.Commit(k.Snapshot(liar, true))
		k.Settle()
	}
	list := k.Quarantine(liar)
	k.Want("claims", len(list), 64)
	for _, q := range list {
		if len(q.Bytes) > 64<<10 || q.Length == 0 || q.Digest == ([32]byte{}) {
			k.Errorf("a claim of %d bytes, %d kept", q.Length, len(q.Bytes))
		}
	}
	k.Want("the newest are kept", list[63].Generation, rounds)
	k.Want("ended", k.Generation(honest).Ending == nil, true)
	k.Want("output", k.Output(x.Out(0)).State, reconcile.Current)
	k.Read(func(s reconcile.Snapshot) {
		sources, err := s.Sources()
		if err != nil || len(sources) != 2 || sources[0].Quarantined != 64 || sources[1].Quarantined != 0 {
			k.Errorf("%+v, %v", sources, err)
		}
	})
}

// pendingBudgets: what waits is bounded for each source, and what one uses up is
// not missing to another.
func pendingBudgets(_ *testing.T, k *Kit) {
	k.Options.Budget = reconcile.Budget{PendingGroups: 3, PendingBytes: 4096, StoreBytes: 1 << 20, Sources: 3}
	k.Open(k.instance.Backend)
	liar, honest := k.Source("liar"), k.Source("honest")
	for i := range uint64(3) {
		orphan := k.Spend(k.Spend(Roots[0].Out(0)).Out(0))
		k.Commit(k.Live(liar, G(fmt.Sprint("g", i), i+1, k.Lists(fmt.Sprint(i), orphan, 0))))
	}
	fourth := k.Live(liar, G("g4", 4, k.Withdraws("4", Roots[0].Out(0))))
	c := k.Refused(fourth, reconcile.StatusLimited)
	k.Want("may fit later", c.Waiting, true)
	k.Read(func(s reconcile.Snapshot) {
		sources, err := s.Sources()
		if err != nil || !sources[0].Limited || sources[1].Limited || sources[0].Latest.Pending.Groups != 3 {
			k.Errorf("%+v, %v", sources, err)
		}
	})
	x := k.Spend(Roots[1].Out(0))
	k.Commit(k.Live(honest, G("g", 1, k.Lists("1", x, 0))))
	k.Work()
	k.Want("honest", k.Status(x), "selected-final")
	// A batch larger than the bound gets in when nothing else waits: it could never otherwise.
	big := k.said("big", "note", x.Out(0), reconcile.None, nil, nil)
	big.Canonical = fmt.Appendf(nil, `{"text":%q}`, bytes.Repeat([]byte("y"), 5000))
	k.Commit(k.Live(honest, G("b", 2, big)))
	k.Want("and no other beside it", k.Refused(k.Live(honest, G("c", 3, k.Withdraws("c", x.Out(0)))), reconcile.StatusLimited).Waiting, true)
	k.Settle()
	k.Commit(k.Live(honest, G("c", 3, k.Withdraws("c", x.Out(0)))))
	// A new generation retires what waited, with its claim on the budget.
	k.Reset(liar)
	k.Commit(k.Snapshot(liar, true))
	k.Settle()
	k.Want("pending", k.Generation(liar).Pending.Groups, 0)
	k.Commit(k.Live(liar, G("g4", 4, k.Withdraws("4", Roots[0].Out(0)))))
	k.Source("third")
	var limit *reconcile.LimitError
	if _, err := k.Store.Source(k.ctx, reconcile.SourceKey{Kind: "test", Label: "fourth"}); !errors.As(err, &limit) {
		k.Errorf("a fourth source: %v", err)
	}
	k.Settle()
}

// failedProjection: a projector that fails keeps its place and shows its lag; one
// that is set back begins with the whole.
func failedProjection(t *testing.T, k *Kit) {
	s := k.Source("a")
	x := k.Spend(Roots[0].Out(0))
	k.Commit(k.Live(s, G("g", 1, k.Lists("1", x, 0))))
	k.Work()
	k.Commit(k.Live(s, G("h", 2, k.Withdraws("2", x.Out(0)))))
	k.Settle()
	var seen []string
	apply := func(_ context.Context, c reconcile.Change, _ reconcile.ProjectTx) error {
		seen = append(seen, fmt.Sprintf("%s@%d", c.Kind, c.Revision.Accepted))
		return nil
	}
	project := func(f func(context.Context, reconcile.Change, reconcile.ProjectTx) error) (uint64, error) {
		return k.Store.Project(k.ctx, "p", f)
	}
	status := func() (p reconcile.ProjectorStatus) {
		k.Helper()
		k.Read(func(s reconcile.Snapshot) {
			c, err := s.Counts()
			if err != nil || len(c.Projectors) != 1 {
				k.Fatalf("%+v, %v", c, err)
			}
			p = c.Projectors[0]
		})
		return p
	}
	at := k.Revision().Accepted
	broken := errors.New("no room")
	n, err := project(func(context.Context, reconcile.Change, reconcile.ProjectTx) error { return broken })
	if n != 0 || !errors.Is(err, broken) {
		k.Fatalf("%d, %v", n, err)
	}
	k.Want("lag", status(), reconcile.ProjectorStatus{Name: "p", Lag: at, Failure: "no room"})
	k.Restart(t)
	for range 2 {
		if n, err = project(apply); err != nil || n != at {
			k.Fatalf("%d, %v", n, err)
		}
	}
	k.Want("changes", seen, []string{fmt.Sprint("snapshot@", at)})
	k.Want("lag", status(), reconcile.ProjectorStatus{Name: "p", Projected: at})
	k.Commit(k.Live(s, G("i", 3, k.Lists("3", x, 1))))
	k.Work()
	k.Want("lag", status().Lag, 1)
	if n, err = project(func(context.Context, reconcile.Change, reconcile.ProjectTx) error { return broken }); n != at || err == nil {
		k.Fatalf("%d, %v", n, err)
	}
	k.Want("the place is kept", status(), reconcile.ProjectorStatus{Name: "p", Projected: at, Lag: 1, Failure: "no room"})
	ctx, cancel := context.WithCancel(k.ctx)
	if _, err = k.Store.Project(ctx, "p", func(context.Context, reconcile.Change, reconcile.ProjectTx) error {
		cancel() // while it is at work
		return nil
	}); !errors.Is(err, context.Canceled) {
		k.Fatalf("a late publication: %v", err)
	}
	if got, err := k.Store.Projected(k.ctx, "p"); err != nil || got != at {
		k.Fatalf("%d, %v", got, err)
	}
	if n, err = project(apply); err != nil || n != at+1 {
		k.Fatalf("%d, %v", n, err)
	}
	k.Want("changes", seen[1:], []string{fmt.Sprint("accept@", at+1)})
	k.Want("failure", status().Failure, "")
	if err := k.Store.Rebuild(k.ctx, "p"); err != nil {
		k.Fatal(err)
	}
	if n, err = project(apply); err != nil || n != at+1 {
		k.Fatalf("%d, %v", n, err)
	}
	k.Want("changes", seen[2:], []string{fmt.Sprint("snapshot@", at+1)})
}

// watchIsContiguous: a watch gives every accepted revision once, waits for more,
// and says when its place is forgotten.
func watchIsContiguous(_ *testing.T, k *Kit) {
	const kept = 8
	k.Options.Budget.Changes = kept
	k.Open(k.instance.Backend)
	s := k.Source("a")
	x := k.Spend(Roots[0].Out(0))
	commit := func(i int) {
		k.Helper()
		k.Commit(k.Live(s, G(fmt.Sprint("g", i), uint64(i+1), k.Withdraws(fmt.Sprint("w", i), x.Out(uint32(i%2))))))
		k.Settle()
	}
	commit(0)
	want, i := uint64(1), 1
	for c, err := range k.Store.Watch(k.ctx, 0) {
		if err != nil || c.Revision.Accepted != want {
			k.Fatalf("revision %d: %+v, %v", want, c, err)
		}
		want++
		if i == 3*kept {
			break
		}
		commit(i) // while a change is handled
		i++
	}
	var reset *reconcile.ResetError
	for _, err := range k.Store.Watch(k.ctx, 1) {
		if !errors.As(err, &reset) {
			k.Fatalf("a forgotten place: %v", err)
		}
	}
	n := 0
	for c, err := range k.Store.Watch(k.ctx, reset.Earliest-1) {
		if err != nil {
			k.Fatal(err)
		}
		if n++; c.Revision.Accepted == k.Revision().Accepted {
			break
		}
	}
	k.Want("changes kept", n, kept)
	ctx, cancel := context.WithCancel(k.ctx)
	done := make(chan error, 1)
	go func() {
		for _, err := range k.Store.Watch(ctx, k.Revision().Accepted) {
			done <- err
			return
		}
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		k.Errorf("a cancelled watch: %v", err)
	}
	for _, err := range k.Store.Watch(k.ctx, k.Revision().Accepted+1) {
		if !errors.As(err, &reset) {
			k.Errorf("a place that never was: %v", err)
		}
	}
}

// reopening: everything is in the store; a memory of the process has no part in it.
func reopening(t *testing.T, k *Kit) {
	if k.instance.Reopen == nil {
		t.Log("this store cannot be opened again: its journal is replayed by others")
		return
	}
	s := k.Source("a")
	x := k.Spend(Roots[0].Out(0))
	y := k.Spend(x.Out(0))
	z := k.Locked(150, spend0(x))
	for _, do := range []func(){
		func() { k.Commit(k.Snapshot(s, true, G("p", 1, k.Lists("1", x, 0)))) },
		func() { k.Verify() },
		func() { k.Settle() },
		func() {
			k.Commit(k.Live(s, G("g", 2, k.Spends("2", y), k.Withdraws("3", x.Out(0)), k.Lists("4", y, 0))))
		},
		func() { k.Commit(k.Live(s, G("h", 3, k.Lists("5", z, 0)))) },
		func() { k.Verify() },
		func() { k.View("v1", 160, 1_600_000_000, 100, nil) },
		func() { k.Work() },
		func() { k.Reset(s) },
		func() { k.Commit(k.Snapshot(s, true, G("p", 9, k.Lists("6", y, 0)))) },
		func() { k.Work() },
	} {
		do()
		before := k.Dump()
		k.Restart(t)
		k.Want("after a restart", k.Dump(), before)
		k.Audit()
	}
	if _, err := reconcile.Open(k.ctx, k.instance.Reopen(t), reconcile.Options{
		Partition: reconcile.Partition{Application: "storetest", Account: "b", Access: "local"},
	}); !errors.Is(err, reconcile.ErrPartition) {
		k.Errorf("another partition: %v", err)
	}
	k.Restart(t)
}
