package live_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// status is what is published of a transaction.
func (w *wallet) status(tx *verifytest.Tx) (s spend.Status) {
	w.t.Helper()
	w.read(func(snap reconcile.Snapshot) {
		got, found, err := snap.Transaction(tx.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		if found {
			s = got.Status
		}
	})
	return s
}

// TestR5_ViewFollowsTheChain has two rivals, one of them mined in one branch and one in
// another, and the chain go to and fro between the branches within one second: each
// view is put in force, each time the included one wins, and nothing is lost.
func TestR5_ViewFollowsTheChain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		coin := coins(c, 0, 1)[0]
		base := c.Tip()
		a := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coin.Out(0)}})
		b := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coin.Out(0)}, Values: []uint64{1000}})
		inA := c.Mine(a)
		c.Continue(base)
		inB := c.Mine(b)
		if err := c.Headers.Select(base.Hash); err != nil {
			t.Fatal(err)
		}
		p := newProvider(t, "one").seed(row(c, coin, 0, verifytest.Evidence{}))
		w := newWallet(t, c, p)
		w.patience = long
		stop := w.start()
		w.await("the snapshot", func() bool { return w.source(p).Latest.Complete })
		for _, tx := range []*verifytest.Tx{a, b} {
			p.say(p.spends(coin.Outpoint(0), tx, c.BEEF(tx, verifytest.Evidence{})))
		}
		// Both placements are above the tip or in no selected block: neither decides. The
		// coin is proved, so both are verified by their scripts when their parents are sent.
		w.await("both are received", func() bool { return received(w, p) == p.head })
		for i, in := range []*verifytest.Block{inA, inB, inA, inB, base, inA} {
			if err := c.Headers.Select(in.Hash); err != nil {
				t.Fatal(err)
			}
			w.await("the view is in force", func() bool {
				got := of[live.Context](w)
				return got[len(got)-1].ID == c.View(in).ID() && w.unsettled() == 0
			})
			wins, loses := a, b
			if in == inB {
				wins, loses = b, a
			}
			if in == base {
				continue
			}
			w.await("the included one wins", func() bool {
				return w.status(wins) == spend.Included && w.status(loses) == spend.Conflicting
			})
			if got := w.output(coin.Outpoint(0)); got.State != reconcile.Spent || got.By != wins.ID {
				t.Errorf("step %d: the coin is %+v", i, got)
			}
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		w.audit()
	})
}

// A proof in a block that is not known here yet waits for the block; it is no lie.
func TestR5_ProofAboveTheTipWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		base := c.Tip()
		tx := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0)}})
		c.Mine(tx)
		in := c.Mine()
		if err := c.Headers.Select(base.Hash); err != nil {
			t.Fatal(err)
		}
		p := newProvider(t, "one").seed(row(c, tx, 0, verifytest.Evidence{}))
		w := newWallet(t, c, p)
		w.patience = long
		w.start()
		w.await("it is received", func() bool { return w.source(p).Latest.Received })
		if got := w.output(tx.Outpoint(0)); got.State == reconcile.Current {
			t.Errorf("%+v", got)
		}
		if err := c.Headers.Select(in.Hash); err != nil {
			t.Fatal(err)
		}
		w.await("the block came", func() bool {
			return w.output(tx.Outpoint(0)).State == reconcile.Current && w.status(tx) == spend.Included
		})
		if got := of[live.SourceReset](w); len(got) != 0 {
			t.Errorf("told %+v", got)
		}
		w.audit()
	})
}

// Within one epoch a new snapshot is never older than what was read.
func TestC2_OlderSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 3)
		p := newProvider(t, "one").seed(row(c, rows[0], 0, verifytest.Evidence{}), row(c, rows[1], 0, verifytest.Evidence{}))
		w := newWallet(t, c, p)
		if err := w.untilLive(); err != nil {
			t.Fatal(err)
		}
		p.edit(func() { p.head = 1 })
		p.endAll(wire.ResetRequired)
		e, ok := errors.AsType[*client.ViolationError](w.untilLive())
		if !ok || e.Rule != client.RuleContinuation {
			t.Fatalf("error %v", e)
		}
		if got := w.present(0); len(got) != 2 {
			t.Errorf("present are %v", got)
		}
		p.edit(func() { p.epoch, p.head = "epoch-2", 1 })
		p.issue()
		if err := w.untilLive(); err != nil {
			t.Fatalf("another epoch counts anew: %v", err)
		}
	})
}
