package live_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// TestR11_NothingLiveBeforeTheSnapshot has a row in the middle of a snapshot whose
// parent is missing. Later pages and live changes are received; nothing after it is
// published as membership until another source brings the parent; then all of it is,
// in order.
func TestR11_NothingLiveBeforeTheSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 4)
		parent := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(40)}})
		child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{parent.Out(0)}})
		p, other := newProvider(t, "one"), newProvider(t, "other")
		p.seed(
			row(c, rows[0], 0, verifytest.Evidence{}), row(c, child, 0, verifytest.Evidence{RawOnly: true}), row(c, rows[1], 0, verifytest.Evidence{}),
		)
		w := newWallet(t, c, p, other)
		w.patience = long
		w.config.Sources[0].Limits.MaxObservations = 1
		w.start()
		w.await("the snapshot is received", func() bool { return w.source(p).Latest.Received })
		p.say(lists(row(c, rows[2], 0, verifytest.Evidence{})))
		p.say(p.withdraws(rows[0].Outpoint(0), "changed"))
		w.await("the live groups are received", func() bool { return received(w, p) == p.head })
		w.await("their facts are accepted", func() bool { return w.output(rows[2].Outpoint(0)).State == reconcile.Current })

		// What came before the pending row is there, partial; nothing after it.
		id := w.source(p).ID
		if got := w.present(id); !slices.Equal(got, []string{rows[0].Outpoint(0).String()}) {
			t.Errorf("present are %v", got)
		}
		for _, m := range w.memberships() {
			if m.Source == id && (!m.Partial || m.Phase != reconcile.PhaseSnapshot) {
				t.Errorf("%+v is published", m)
			}
		}
		if st := w.source(p); st.Latest.Complete {
			t.Error("the snapshot is complete")
		}
		if got := w.output(child.Outpoint(0)); got.State == reconcile.Current {
			t.Errorf("the child is %+v", got)
		}

		// The other source brings the parent.
		other.say(lists(row(c, parent, 0, verifytest.Evidence{})))
		w.await("everything", func() bool { return w.source(p).Latest.Through == p.head })
		want := p.truth()
		if got := w.present(id); !slices.Equal(got, want) {
			t.Errorf("present are %v, want %v", got, want)
		}
		if got := w.output(child.Outpoint(0)); got.State != reconcile.Current {
			t.Errorf("the child is %+v", got)
		}
		// In the order of the source, whoever was verified first.
		var order []string
		for _, a := range of[live.Accepted](w) {
			for _, m := range a.Memberships {
				if m.Source == id {
					order = append(order, m.Outpoint.String())
				}
			}
		}
		o := func(tx *verifytest.Tx) string { return tx.Outpoint(0).String() }
		inOrder := []string{o(rows[0]), o(child), o(rows[1]), o(rows[2]), o(rows[0])}
		if !slices.Equal(order, inOrder) && !slices.Equal(sorted(order[1:]), sorted(inOrder[1:])) {
			t.Errorf("published in the order\n%v\nwant\n%v", order, inOrder)
		}
		w.audit()
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// received is how far a source was received.
func received(w *wallet, p *provider) (through uint64) {
	for _, e := range of[live.Received](w) {
		if e.Source.Key.Base == p.base {
			through = e.Through
		}
	}
	return through
}

// A run until live does not hang on evidence that nobody can resolve: it says which.
func TestR11_UnresolvedEvidenceEndsUntilLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		parent := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0)}})
		child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{parent.Out(0)}})
		p := newProvider(t, "one").seed(row(c, child, 0, verifytest.Evidence{RawOnly: true}))
		w := newWallet(t, c, p)
		e, ok := errors.AsType[*live.PendingError](w.untilLive())
		if !ok || e.Groups != 1 || e.Source.Key.Base != p.base || len(e.Waiting) != 1 || e.Waiting[0] != parent.Outpoint(0) {
			t.Fatalf("error %+v", e)
		}
	})
}

// A source that is over its budget of pending work waits, alone, and goes on when
// there is room.
func TestR11_FullBudgetStopsReceiptOfThatSourceOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 12)
		parent := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(40)}})
		child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{parent.Out(0)}})
		stuck, other := newProvider(t, "stuck"), newProvider(t, "other")
		stuck.seed(row(c, child, 0, verifytest.Evidence{RawOnly: true}))
		for _, tx := range rows[:8] {
			stuck.seed(row(c, tx, 0, verifytest.Evidence{}))
		}
		w := walletOver(t, openOver(t, memstore.New(), reconcile.Budget{PendingGroups: 4}), c, stuck, other)
		w.patience = long
		w.config.Sources[0].Limits.MaxObservations = 2
		w.start()
		w.await("it waits for room", func() bool {
			for _, e := range of[live.Waiting](w) {
				if _, full := errors.AsType[*live.BudgetError](e.Err); full && e.Source.Key.Base == stuck.base {
					return true
				}
			}
			return false
		})
		if st := w.source(stuck); st.Latest.Pending.Groups > 4 {
			t.Errorf("%+v", st)
		}
		for _, tx := range rows[8:] { // the other source is not held up
			other.say(lists(row(c, tx, 0, verifytest.Evidence{})))
		}
		w.await("the other source", func() bool { return len(w.present(w.source(other).ID)) == 4 })
		if st := w.source(stuck); st.Latest.Received {
			t.Error("the source over its budget was received to the end")
		}
		other.say(lists(wire.Output{Evidence: wire.Evidence{TxID: parent.ID.String(), BEEF: c.BEEF(parent, verifytest.Evidence{})}}))
		w.await("the rest", func() bool { return w.source(stuck).Latest.Complete && len(w.present(w.source(stuck).ID)) == 9 })
		w.audit()
	})
}
