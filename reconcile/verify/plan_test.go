package verify_test

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

func TestR9_TargetByTxid(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	b := pay(a.Out(0))
	other := pay(c.Fund.Out(1))
	view := c.View(c.Tip())
	ids := func(txs ...*verifytest.Tx) (out []spend.TxID) {
		for _, tx := range txs {
			out = append(out, tx.ID)
		}
		return out
	}
	for name, row := range map[string]struct {
		target  *verifytest.Tx
		e       verifytest.Evidence
		of      *verifytest.Tx // the BEEF is made for it; nil: target
		status  reconcile.ResultStatus
		txs     []spend.TxID
		missing []spend.TxID
	}{
		"target first":             {target: b, txs: ids(c.Fund, a, b)},
		"target last":              {target: b, e: verifytest.Evidence{TargetLast: true}, txs: ids(c.Fund, a, b)},
		"V1":                       {target: b, e: verifytest.Evidence{V1: true, TargetLast: true}, txs: ids(c.Fund, a, b)},
		"atomic":                   {target: b, e: verifytest.Evidence{Atomic: true, TargetLast: true}, txs: ids(c.Fund, a, b)},
		"aggregate":                {target: b, e: verifytest.Evidence{Also: []*verifytest.Tx{other}}, txs: ids(c.Fund, a, b)},
		"aggregate, the other":     {target: other, of: b, e: verifytest.Evidence{Also: []*verifytest.Tx{other}}, txs: ids(c.Fund, other)},
		"an ancestor of the rest":  {target: a, of: b, txs: ids(c.Fund, a)},
		"alone":                    {target: b, e: verifytest.Evidence{RawOnly: true}, txs: ids(b), missing: ids(a)},
		"txid-only parent":         {target: b, e: verifytest.Evidence{TxIDOnly: []*verifytest.Tx{a}}, txs: ids(b), missing: ids(a)},
		"txid-only target":         {target: b, e: verifytest.Evidence{TxIDOnly: []*verifytest.Tx{b}}, status: reconcile.Unresolved},
		"atomic, txid-only target": {target: b, e: verifytest.Evidence{Atomic: true, TxIDOnly: []*verifytest.Tx{b}}, status: reconcile.Unresolved},
		"atomic, txid-only other":  {target: a, of: b, e: verifytest.Evidence{Atomic: true, TxIDOnly: []*verifytest.Tx{b}}, status: reconcile.Invalid},
		"atomic about another":     {target: a, of: b, e: verifytest.Evidence{Atomic: true}, status: reconcile.Invalid},
		"not in the bundle":        {target: other, of: b, status: reconcile.Invalid},
		"a mined target":           {target: c.Fund, txs: ids(c.Fund)},
		"ancestors beyond a proof": {target: a, e: verifytest.Evidence{Unproved: true}, txs: ids(c.Genesis.Txs[0], c.Fund, a)},
	} {
		of := row.of
		if of == nil {
			of = row.target
		}
		data := c.BEEF(of, row.e)
		p := verify.Plan(data, row.target.ID, view, reconcile.Budget{})
		var have []spend.TxID
		for _, tx := range p.Txs {
			have = append(have, tx.ID)
			if m, err := beef.ParseTx(tx.Raw); err != nil || m.TxID != tx.ID || len(m.Inputs) != len(tx.Inputs) || len(m.Outputs) != tx.Outputs || m.LockTime != tx.LockTime {
				t.Errorf("%s: %s is not what its raw bytes say", name, tx.ID)
			}
		}
		if p.Fault.Status != row.status || (p.Fault.Reason == "") != (row.status == "") {
			t.Errorf("%s: fault %+v", name, p.Fault)
		}
		if !slices.Equal(have, row.txs) || !slices.Equal(p.Missing, row.missing) {
			t.Errorf("%s: transactions %v, missing %v", name, have, p.Missing)
		}
		if p.Variant != sha256.Sum256(data) || p.Target != row.target.ID {
			t.Errorf("%s: another variant or target", name)
		}
	}
}

func TestR9_UnreadableEvidenceIsInvalid(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	good := c.BEEF(a, verifytest.Evidence{})
	view := c.View(c.Tip())
	for name, data := range map[string][]byte{
		"nothing":     nil,
		"text":        []byte("not a BEEF"),
		"cut":         good[:len(good)-1],
		"a byte more": append(bytes.Clone(good), 0),
	} {
		p := verify.Plan(data, a.ID, view, reconcile.Budget{})
		if p.Fault.Status != reconcile.Invalid || p.Fault.Reason == "" || len(p.Txs) > 0 {
			t.Errorf("%s: %+v", name, p.Fault)
		}
	}
}

func TestR9_ForeignBranchIsNotForged(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	root := c.Tip()
	a := pay(c.Fund.Out(0))
	with := c.Mine(a)
	c.Fork(root.Height)
	c.Mine()
	without := c.Mine()
	data := c.BEEF(a, verifytest.Evidence{In: with})
	forged := bytes.Clone(data)
	sibling := display(with.Txs[0].ID) // the coinbase beside it
	copy(forged[bytes.Index(forged, sibling[:]):], bytes.Repeat([]byte{7}, 32))

	for name, row := range map[string]struct {
		data         []byte
		view         verify.View
		status       reconcile.ResultStatus
		holds, known bool
	}{
		"in its own branch":        {data, c.View(with), "", true, true},
		"another branch":           {data, c.View(without), "", false, true},
		"above the tip":            {data, c.View(root), "", false, true},
		"forged":                   {forged, c.View(with), reconcile.Invalid, false, false},
		"forged, elsewhere":        {forged, c.View(without), reconcile.Invalid, false, false},
		"forged, but above":        {forged, c.View(root), "", false, false},
		"in a view of height only": {data, verify.Override{View: c.View(root), Height: 500}, "", false, true},
	} {
		p := verify.Plan(row.data, a.ID, row.view, reconcile.Budget{})
		if p.Fault.Status != row.status {
			t.Errorf("%s: fault %+v", name, p.Fault)
		}
		if len(p.Claims) != 1 || p.Claims[0].Holds != row.holds || p.Claims[0].Known != row.known || p.Claims[0].Height != with.Height {
			t.Errorf("%s: claims %+v", name, p.Claims)
		}
		if len(p.Txs) != 1 {
			t.Errorf("%s: %d transactions are received", name, len(p.Txs))
		}
		if wants := !row.holds; wants != slices.Contains(p.Missing, c.Fund.ID) {
			t.Errorf("%s: missing %v", name, p.Missing)
		}
	}

	// What a proof cannot show, the parents can.
	s := newStore(t, c.Fund)
	r := s.alone(t, verify.New(verify.Config{}), data, a, c.View(without), output(0))
	if r.Status != reconcile.Verified || len(r.Facts) != 1 {
		t.Errorf("a foreign path, parents known: %+v", r)
	}
	r = newStore(t).alone(t, verify.New(verify.Config{}), data, a, c.View(without), output(0))
	if r.Status != reconcile.Unresolved || !slices.Equal(r.Dependencies, []spend.Outpoint{c.Fund.Outpoint(0)}) {
		t.Errorf("a foreign path, parents unknown: %+v", r)
	}
}

func TestR9_CoinbasesMature(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	coinbase := c.Genesis.Txs[0]
	data := c.BEEF(coinbase, verifytest.Evidence{})
	at := func(height uint64) reconcile.Claim {
		v := verify.Override{View: c.View(c.Tip()), Height: height}
		p := verify.Plan(data, coinbase.ID, v, reconcile.Budget{})
		if p.Fault.Status != "" || len(p.Claims) != 1 || !p.Claims[0].Coinbase {
			t.Fatalf("%+v", p)
		}
		return p.Claims[0]
	}
	if c := at(100); !c.Holds {
		t.Error("a coinbase under a hundred blocks does not count")
	}
	if c := at(99); c.Holds || !c.Known {
		t.Errorf("a coinbase under 99 blocks: %+v", c)
	}
	p := verify.Plan(data, coinbase.ID, verify.Override{View: c.View(c.Tip()), Height: 99}, reconcile.Budget{})
	s := newStore(t)
	s.receive(t, p)
	if r := verify.New(verify.Config{}).Check(t.Context(), s.load(p, output(0))); r.Status != reconcile.Unresolved || len(r.Facts) > 0 {
		t.Errorf("an immature coinbase: %+v", r)
	}
}

func TestR9_BudgetsAreLimitedNotInvalid(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	tx := pay(c.Fund.Out(0))
	for range 9 {
		tx = pay(tx.Out(0))
	}
	data := c.BEEF(tx, verifytest.Evidence{})
	view := c.View(c.Tip())
	for name, row := range map[string]struct {
		b       reconcile.Budget
		bound   string
		limited bool
	}{
		"all fits":          {reconcile.Budget{Transactions: 11, Candidate: len(data)}, "", false},
		"a transaction off": {reconcile.Budget{Transactions: 10}, "Transactions", true},
		"a byte off":        {reconcile.Budget{Candidate: len(data) - 1}, "Candidate", true},
	} {
		p := verify.Plan(data, tx.ID, view, row.b)
		switch {
		case !row.limited && p.Fault.Status != "":
			t.Errorf("%s: %+v", name, p.Fault)
		case row.limited && (p.Fault.Status != reconcile.Limited || !strings.Contains(p.Fault.Reason, row.bound)):
			t.Errorf("%s: %+v", name, p.Fault)
		}
	}
	// A transaction with more inputs than a result lists is verified all the same.
	var many []verifytest.Out
	for i := range uint32(20) {
		many = append(many, c.Fund.Out(i))
	}
	wide := pay(many...)
	v := verify.New(verify.Config{Dependencies: 7})
	r := newStore(t).alone(t, v, c.BEEF(wide, verifytest.Evidence{}), wide, view, output(0))
	if r.Status != reconcile.Verified || len(r.Dependencies) != 7 || r.Dependencies[6] != c.Fund.Outpoint(6) {
		t.Errorf("%+v", r)
	}
	// A script that asks for too much says nothing about its transaction.
	greedy := verifytest.Pay(verifytest.Payment{
		From: []verifytest.Out{c.Fund.Out(30)}, Scripts: map[int][]byte{0: append([]byte{0x51}, bytes.Repeat([]byte{0x76, 0x7e}, 40)...)},
	})
	child := pay(greedy.Out(0))
	r = newStore(t).alone(t, v, c.BEEF(child, verifytest.Evidence{}), child, view, output(0))
	if r.Status != reconcile.Limited || slices.ContainsFunc(r.Facts, func(f reconcile.Fact) bool { return f.TxID == child.ID || !f.Valid }) {
		t.Errorf("a greedy script: %+v", r)
	}
}

// FuzzR9_Plan feeds any bytes as evidence for any target that they hold.
func FuzzR9_Plan(f *testing.F) {
	c := verifytest.NewChain(f)
	a := pay(c.Fund.Out(0))
	b := pay(a.Out(0), c.Fund.Out(1))
	for _, e := range []verifytest.Evidence{{}, {V1: true, TargetLast: true}, {Atomic: true}, {RawOnly: true}, {Also: []*verifytest.Tx{pay(c.Fund.Out(2))}}} {
		f.Add(c.BEEF(b, e))
	}
	f.Add(c.BEEF(c.Genesis.Txs[0], verifytest.Evidence{}))
	view := c.View(c.Tip())
	v := verify.New(verify.Config{Cache: -1})
	f.Fuzz(func(t *testing.T, data []byte) {
		targets := []spend.TxID{a.ID, b.ID}
		if bundle, err := beef.Parse(data); err == nil {
			for _, id := range bundle.TxIDs() {
				targets = append(targets, id)
			}
		}
		for _, target := range targets[:min(len(targets), 6)] {
			p := verify.Plan(data, target, view, reconcile.Budget{Transactions: 32})
			again := verify.Plan(data, target, view, reconcile.Budget{Transactions: 32})
			if p.Fault != again.Fault || len(p.Txs) != len(again.Txs) {
				t.Fatal("one input, two plans")
			}
			if p.Fault.Status == "" && (len(p.Txs) == 0 || p.Txs[len(p.Txs)-1].ID != target) {
				t.Fatalf("no fault, and the target is not the last of %d", len(p.Txs))
			}
			s := newStore(t)
			s.receive(t, p)
			r := v.Check(t.Context(), s.load(p, output(0)))
			for _, fact := range r.Facts {
				if _, ours := s.raws[fact.TxID]; !ours {
					t.Fatalf("a fact about %s, which was not received", fact.TxID)
				}
			}
		}
	})
}

func display(b [32]byte) [32]byte {
	slices.Reverse(b[:])
	return b
}
