package verify_test

import (
	"crypto/sha256"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// store is the little of a store that a job needs: raw transactions and which of
// them are included.
type store struct {
	raws     map[spend.TxID]*beef.Member
	anchored map[spend.TxID]bool
	decided  []reconcile.Fact
}

func newStore(t testing.TB, roots ...*verifytest.Tx) *store {
	t.Helper()
	s := &store{raws: map[spend.TxID]*beef.Member{}, anchored: map[spend.TxID]bool{}}
	for _, tx := range roots {
		s.add(t, tx.Raw)
		s.anchored[tx.ID] = true
	}
	return s
}

func (s *store) add(t testing.TB, raw []byte) {
	t.Helper()
	m, err := beef.ParseTx(raw)
	if err != nil {
		t.Fatal(err)
	}
	s.raws[m.TxID] = m
}

// receive takes what a plan holds.
func (s *store) receive(t testing.TB, p reconcile.Planned) {
	t.Helper()
	for _, tx := range p.Txs {
		s.add(t, tx.Raw)
	}
	for _, c := range p.Claims {
		s.anchored[c.TxID] = s.anchored[c.TxID] || c.Holds
	}
}

// load builds the evidence of one candidate as a store does.
func (s *store) load(p reconcile.Planned, want reconcile.Want) reconcile.Evidence {
	e := reconcile.Evidence{
		Job:   reconcile.Job{Source: 1, Generation: 1, Group: 1, Target: p.Target, Variant: p.Variant, Context: "now"},
		Fault: p.Fault, Want: want, Decided: s.decided,
	}
	decided := map[spend.TxID]bool{}
	for _, f := range s.decided {
		decided[f.TxID] = true
	}
	met := map[spend.TxID]bool{}
	var walk func(id spend.TxID)
	walk = func(id spend.TxID) {
		m, ok := s.raws[id]
		if met[id] || !ok {
			return
		}
		met[id] = true
		out := reconcile.Prepared{ID: id, Raw: m.Raw, Anchored: s.anchored[id]}
		for _, in := range m.Inputs {
			o := spend.Outpoint{TxID: in.Prev, Index: in.Index}
			parent, known := s.raws[o.TxID]
			if !known || uint64(in.Index) >= uint64(len(parent.Outputs)) {
				out.Parents = append(out.Parents, reconcile.Coin{})
				if !out.Anchored && !decided[id] {
					e.Missing = append(e.Missing, o)
				}
				continue
			}
			if !out.Anchored && !decided[id] {
				walk(o.TxID)
			}
			out.Parents = append(out.Parents, reconcile.Coin{Script: parent.Outputs[in.Index].Script, Satoshis: parent.Outputs[in.Index].Satoshis, Known: true})
		}
		if !decided[id] || id == p.Target {
			e.Txs = append(e.Txs, out)
		}
	}
	walk(p.Target)
	return e
}

// alone plans, receives and checks one candidate in one go.
func (s *store) alone(t testing.TB, v *verify.Verifier, data []byte, target *verifytest.Tx, view verify.View, want reconcile.Want) reconcile.Result {
	t.Helper()
	p := verify.Plan(data, target.ID, view, reconcile.Budget{})
	s.receive(t, p)
	return v.Check(t.Context(), s.load(p, want))
}

func output(i uint32) reconcile.Want { return reconcile.Want{Output: &i} }

func previous(o spend.Outpoint) reconcile.Want { return reconcile.Want{Previous: &o} }

// pay spends outputs in the usual way.
func pay(from ...verifytest.Out) *verifytest.Tx {
	return verifytest.Pay(verifytest.Payment{From: from})
}

func doubleHash(b []byte) [32]byte {
	once := sha256.Sum256(b)
	return sha256.Sum256(once[:])
}
