package shuffle

import (
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

// A transaction whose only group waits for a member that is too large holds nothing back. When another group brings it, it was
// there first again: a later rival must wait, from the moment of receipt on.
func TestR4_ANewCarrierHoldsTheBarrier(t *testing.T) {
	t.Parallel()
	outside := []spend.Input{{Outpoint: spend.Outpoint{TxID: spend.TxID{1}}}}
	root := spendtest.Seal(spendtest.Tx{Name: "root", Inputs: outside, Outputs: 2, Result: spend.Valid}, 0)
	spender := func(name string, index uint32, salt uint64, r spend.Result) spendtest.Tx {
		in := spend.Input{Outpoint: spend.Outpoint{TxID: root.ID, Index: index}, Sequence: 0xffffffff}
		return spendtest.Seal(spendtest.Tx{Name: name, Inputs: []spend.Input{in}, Outputs: 1, Result: r}, salt)
	}
	heavy, first, rival := spender("heavy", 0, 1, spend.Limited), spender("first", 1, 2, spend.Valid), spender("rival", 1, 3, spend.Valid)
	group := func(id spend.GroupID, targets ...spend.TxID) spendtest.Event {
		return spendtest.Event{Groups: []spendtest.Group{{ID: id, Targets: targets, Carries: targets}}}
	}
	p := newRun(t, &spendtest.History{
		Roots: []spendtest.Tx{root}, Txs: []spendtest.Tx{heavy, first, rival}, First: spendtest.View{Name: "v", Height: 10, MTP: 10},
	}, 0, false)
	work := func(only spend.TxID) {
		for _, j := range p.jobs() {
			if only == (spend.TxID{}) || j.Target == only {
				p.record(p.check(j))
			}
		}
		for _, m := range p.settled() {
			p.accept(m)
		}
	}
	status := func(id spend.TxID) (spend.Status, bool) {
		s, err := p.store.Read(p.ctx, 0)
		p.must(err)
		defer func() { p.must(s.Close()) }()
		tx, _, err := s.Transaction(id)
		p.must(err)
		return tx.Status, tx.Pending
	}

	p.event(group(1, heavy.ID, first.ID))
	work(spend.TxID{})
	if s, pending := status(first.ID); s != spend.Unresolved || pending {
		t.Fatalf("in a group that waits, it is %s, pending %v", s, pending)
	}
	p.event(group(2, first.ID))
	if _, pending := status(first.ID); !pending {
		t.Error("brought by another group, it holds nothing back")
	}
	p.event(group(3, rival.ID))
	work(rival.ID)
	if s, pending := status(rival.ID); !pending {
		t.Errorf("the rival is %s before the first is decided", s)
	}
	work(spend.TxID{})
	if s, pending := status(first.ID); s != spend.SelectedFinal || pending {
		t.Errorf("the first is %s, pending %v", s, pending)
	}
	p.end()
}
