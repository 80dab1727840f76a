package verify_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

func TestR9_ScriptsAndPathsAreReal(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	view := c.View(c.Tip())
	from := func(i uint32) []verifytest.Out { return []verifytest.Out{c.Fund.Out(i)} }
	value := c.Fund.Outputs[0].Satoshis
	hold := map[int][]byte{0: {0x93, 0x55, 0x87}} // OP_ADD 5 OP_EQUAL
	locked := verifytest.Pay(verifytest.Payment{From: from(9), Scripts: hold})
	for name, row := range map[string]struct {
		p      verifytest.Payment
		status reconcile.ResultStatus
		reason string
	}{
		"signed":                {verifytest.Payment{From: from(0)}, reconcile.Verified, ""},
		"two inputs":            {verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0), c.Fund.Out(5)}}, reconcile.Verified, ""},
		"every satoshi":         {verifytest.Payment{From: from(0), Values: []uint64{value}}, reconcile.Verified, ""},
		"waits for a height":    {verifytest.Payment{From: from(0), Sequences: []uint32{1}, LockTime: 1 << 20}, reconcile.Verified, ""},
		"a script of its own":   {verifytest.Payment{From: []verifytest.Out{locked.Out(0)}, Unlock: map[int][]byte{0: {0x52, 0x53}}}, reconcile.Verified, ""},
		"the wrong sum":         {verifytest.Payment{From: []verifytest.Out{locked.Out(0)}, Unlock: map[int][]byte{0: {0x52, 0x54}}}, reconcile.Invalid, "script of input 0"},
		"reckons while opening": {verifytest.Payment{From: []verifytest.Out{locked.Out(0)}, Unlock: map[int][]byte{0: {0x52, 0x53, 0x61}}}, reconcile.Invalid, "script of input 0"},
		"a forged signature":    {verifytest.Payment{From: from(0), Forged: true}, reconcile.Invalid, "script of input 0"},
		"a satoshi from nowhere": {
			verifytest.Payment{From: from(0), Values: []uint64{value, 1}}, reconcile.Invalid, "spends",
		},
		"values that overflow": {
			verifytest.Payment{From: from(0), Values: []uint64{1 << 63, 1 << 63}}, reconcile.Invalid, "overflow",
		},
		"one output twice": {verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0), c.Fund.Out(0)}}, reconcile.Invalid, "twice"},
	} {
		tx := verifytest.Pay(row.p)
		s := newStore(t)
		r := s.alone(t, verify.New(verify.Config{}), c.BEEF(tx, verifytest.Evidence{}), tx, view, output(0))
		if r.Status != row.status || !strings.Contains(r.Reason, row.reason) {
			t.Errorf("%s: %s %s", name, r.Status, r.Reason)
		}
		// Facts: what was run, the target last; nothing of what is included.
		last := len(r.Facts) - 1
		if last < 0 || r.Facts[last] != (reconcile.Fact{TxID: tx.ID, Valid: row.status == reconcile.Verified}) {
			t.Errorf("%s: facts %v", name, r.Facts)
		}
		for _, f := range r.Facts[:max(last, 0)] {
			if !f.Valid || f.TxID == c.Fund.ID {
				t.Errorf("%s: facts %v", name, r.Facts)
			}
		}
		for i, o := range r.Dependencies {
			if o != row.p.From[i].Tx.Outpoint(row.p.From[i].Index) {
				t.Errorf("%s: dependencies %v", name, r.Dependencies)
			}
		}
	}
	// A path alone does: scripts of what is included are not run.
	forged := verifytest.Pay(verifytest.Payment{From: from(0), Forged: true})
	b := c.Mine(forged)
	r := newStore(t).alone(t, verify.New(verify.Config{}), c.BEEF(forged, verifytest.Evidence{}), forged, c.View(b), output(0))
	if r.Status != reconcile.Verified || len(r.Facts) != 0 {
		t.Errorf("included: %+v", r)
	}
}

func TestR9_ABadVariantDoesNotPoison(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	view := c.View(c.Tip())
	v := verify.New(verify.Config{})
	s := newStore(t, c.Fund)
	good := c.BEEF(a, verifytest.Evidence{})
	for name, row := range map[string]struct {
		data []byte
		want reconcile.Want
	}{
		"bytes after the end":     {append(bytes.Clone(good), 0), output(0)},
		"atomic about another":    {c.BEEF(pay(c.Fund.Out(1)), verifytest.Evidence{Atomic: true}), output(0)},
		"no such output":          {good, output(1)},
		"spends something else":   {good, previous(c.Fund.Outpoint(1))},
		"spends another's output": {good, previous(spend.Outpoint{TxID: a.ID})},
	} {
		r := s.alone(t, v, row.data, a, view, row.want)
		if r.Status != reconcile.Invalid || len(r.Facts) != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := s.alone(t, v, good, a, view, output(0)); r.Status != reconcile.Verified {
		t.Errorf("the good variant afterwards: %+v", r)
	}
	if r := s.alone(t, v, good, a, view, previous(c.Fund.Outpoint(0))); r.Status != reconcile.Verified {
		t.Errorf("the spend afterwards: %+v", r)
	}
	// Something invalid beside the target in one bundle is not looked at.
	bad := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(2)}, Forged: true})
	both := c.BEEF(a, verifytest.Evidence{Also: []*verifytest.Tx{bad}})
	if r := s.alone(t, verify.New(verify.Config{}), both, a, view, output(0)); r.Status != reconcile.Verified {
		t.Errorf("beside an invalid one: %+v", r)
	}
}

func TestR9_AncestorsDecide(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	view := c.View(c.Tip())
	bad := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0)}, Forged: true})
	child := pay(bad.Out(0))
	data := c.BEEF(child, verifytest.Evidence{})
	want := []reconcile.Fact{{TxID: bad.ID}}
	s := newStore(t)
	r := s.alone(t, verify.New(verify.Config{}), data, child, view, output(0))
	if r.Status != reconcile.Invalid || !slices.Equal(r.Facts, want) {
		t.Errorf("an invalid parent: %+v", r)
	}
	// As a fact of the store, too: it is not run again, and the child is not called invalid itself.
	s.decided = want
	e := s.load(verify.Plan(data, child.ID, view, reconcile.Budget{}), output(0))
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Invalid || len(r.Facts) != 0 {
		t.Errorf("a parent that the store knows to be invalid: %+v", r)
	}
	// A decided parent is not run, a decided target neither.
	a := pay(c.Fund.Out(1))
	b := pay(a.Out(0))
	s = newStore(t)
	data = c.BEEF(b, verifytest.Evidence{})
	p := verify.Plan(data, b.ID, view, reconcile.Budget{})
	s.receive(t, p)
	s.decided = []reconcile.Fact{{TxID: a.ID, Valid: true}}
	if r := verify.New(verify.Config{}).Check(t.Context(), s.load(p, output(0))); r.Status != reconcile.Verified || !slices.Equal(r.Facts, []reconcile.Fact{{TxID: b.ID, Valid: true}}) {
		t.Errorf("a decided parent: %+v", r)
	}
	s.decided = []reconcile.Fact{{TxID: b.ID, Valid: true}}
	if r := verify.New(verify.Config{}).Check(t.Context(), s.load(p, output(0))); r.Status != reconcile.Verified || len(r.Facts) != 0 {
		t.Errorf("a decided target: %+v", r)
	}
	if r := verify.New(verify.Config{}).Check(t.Context(), s.load(p, output(4))); r.Status != reconcile.Invalid || len(r.Facts) != 0 {
		t.Errorf("a decided target without the output: %+v", r)
	}
}

// A store may ask about more than the target and its ancestors.
func TestR9_WhatStandsBesideIsDecidedToo(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a, b := pay(c.Fund.Out(0)), pay(c.Fund.Out(1))
	bad := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(2)}, Forged: true})
	lost := pay(pay(c.Fund.Out(3)).Out(0))
	s := newStore(t, c.Fund)
	for _, tx := range []*verifytest.Tx{a, b, bad, lost} {
		s.add(t, tx.Raw)
	}
	e := s.load(reconcile.Planned{Target: a.ID}, reconcile.Want{})
	for _, tx := range []*verifytest.Tx{bad, lost, b} {
		more := s.load(reconcile.Planned{Target: tx.ID}, reconcile.Want{})
		e.Txs, e.Missing = append(e.Txs, more.Txs...), append(e.Missing, more.Missing...)
	}
	want := []reconcile.Fact{{TxID: a.ID, Valid: true}, {TxID: bad.ID}, {TxID: b.ID, Valid: true}}
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Verified || !slices.Equal(r.Facts, want) {
		t.Errorf("%+v", r)
	}
	e.Job.Target = bad.ID
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Invalid || !slices.Equal(r.Facts, want) {
		t.Errorf("%+v", r)
	}
}

// The scripts of one transaction are run once, whatever view a job is for.
func TestR9_ResultsAreRemembered(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	view := c.View(c.Tip())
	a := pay(c.Fund.Out(0))
	p := verify.Plan(c.BEEF(a, verifytest.Evidence{}), a.ID, view, reconcile.Budget{})
	s := newStore(t)
	s.receive(t, p)
	v := verify.New(verify.Config{Cache: 1})
	if r := v.Check(t.Context(), s.load(p, output(0))); r.Status != reconcile.Verified {
		t.Fatalf("%+v", r)
	}
	// Other parents' scripts would fail now: what is remembered is not run.
	broken := s.load(p, output(0))
	broken.Job.Context = "later"
	broken.Txs = slices.Clone(broken.Txs)
	at := len(broken.Txs) - 1
	broken.Txs[at].Parents = []reconcile.Coin{{Script: []byte{0x00}, Satoshis: 1 << 50, Known: true}}
	if r := v.Check(t.Context(), broken); r.Status != reconcile.Verified || r.Context != "later" || !slices.Equal(r.Facts, []reconcile.Fact{{TxID: a.ID, Valid: true}}) {
		t.Errorf("remembered: %+v", r)
	}
	if r := verify.New(verify.Config{Cache: -1}).Check(t.Context(), broken); r.Status != reconcile.Invalid {
		t.Errorf("not remembered: %+v", r)
	}
	b := pay(c.Fund.Out(1))
	if r := newStore(t).alone(t, v, c.BEEF(b, verifytest.Evidence{}), b, view, output(0)); r.Status != reconcile.Verified {
		t.Fatalf("%+v", r)
	}
	if r := v.Check(t.Context(), broken); r.Status != reconcile.Invalid {
		t.Errorf("a memory of one keeps two: %+v", r)
	}
}

func TestR9_UnknownParentsAreNamedInOrder(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a, b := pay(c.Fund.Out(0)), pay(c.Fund.Out(1))
	child := pay(b.Out(0), c.Fund.Out(2), a.Out(0))
	s := newStore(t, c.Fund)
	p := verify.Plan(c.BEEF(child, verifytest.Evidence{RawOnly: true}), child.ID, c.View(c.Tip()), reconcile.Budget{})
	s.receive(t, p)
	want := []spend.Outpoint{b.Outpoint(0), a.Outpoint(0)}
	e := s.load(p, output(0))
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Unresolved || !slices.Equal(r.Dependencies, want) || len(r.Facts) != 0 {
		t.Errorf("%+v", r)
	}
	e.Missing = nil // the store did not say it: the inputs do
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Unresolved || !slices.Equal(r.Dependencies, want) {
		t.Errorf("%+v", r)
	}
	e.Txs = nil
	if r := verify.New(verify.Config{}).Check(t.Context(), e); r.Status != reconcile.Unresolved {
		t.Errorf("no target: %+v", r)
	}
}

func TestY7_JobsTakeBoundedTime(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	p := verify.Plan(c.BEEF(a, verifytest.Evidence{}), a.ID, c.View(c.Tip()), reconcile.Budget{})
	s := newStore(t)
	s.receive(t, p)
	e := s.load(p, output(0))
	r := verify.New(verify.Config{JobTimeout: time.Nanosecond}).Check(t.Context(), e)
	if r.Status != reconcile.Limited || !strings.Contains(r.Reason, "JobTimeout") || len(r.Facts) != 0 {
		t.Errorf("out of time: %+v", r)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if r := verify.New(verify.Config{}).Check(ctx, e); r.Status != reconcile.Cancelled || len(r.Facts) != 0 {
		t.Errorf("cancelled: %+v", r)
	}
	// Time is looked at between inputs.
	var many []verifytest.Out
	for i := range uint32(64) {
		many = append(many, c.Fund.Out(i))
	}
	wide := pay(many...)
	p = verify.Plan(c.BEEF(wide, verifytest.Evidence{}), wide.ID, c.View(c.Tip()), reconcile.Budget{})
	s.receive(t, p)
	if r := verify.New(verify.Config{JobTimeout: 2 * time.Millisecond}).Check(t.Context(), s.load(p, output(0))); r.Status != reconcile.Limited || len(r.Facts) != 0 {
		t.Errorf("64 inputs in two milliseconds: %s %s", r.Status, r.Reason)
	}
	// A caller's own deadline cancels: it says nothing of the evidence.
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		<-ctx.Done()
		if r := verify.New(verify.Config{}).Check(ctx, e); r.Status != reconcile.Cancelled {
			t.Errorf("the caller's deadline: %+v", r)
		}
	})
}
