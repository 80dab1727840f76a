package verifytest_test

import (
	"bytes"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// chain builds a little of everything.
func chain(t *testing.T) (c *verifytest.Chain, spend *verifytest.Tx, data [][]byte) {
	t.Helper()
	c = verifytest.NewChain(t)
	mined := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0), c.Fund.Out(1)}, Values: []uint64{7000, 8000, 9000}})
	c.Mine(mined, verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(2)}}))
	spend = verifytest.Pay(verifytest.Payment{From: []verifytest.Out{mined.Out(1), mined.Out(2)}, Sequences: []uint32{5}, LockTime: 900})
	for _, e := range []verifytest.Evidence{{}, {V1: true, TargetLast: true}, {Atomic: true}, {RawOnly: true}, {Unproved: true}} {
		data = append(data, c.BEEF(spend, e))
	}
	return c, spend, append(data, c.Tip().Bytes())
}

func TestT1_TheSameBytesEveryTime(t *testing.T) {
	t.Parallel()
	_, _, one := chain(t)
	_, _, two := chain(t)
	for i := range one {
		if !bytes.Equal(one[i], two[i]) {
			t.Errorf("piece %d differs", i)
		}
	}
}

func TestT2_WhatIsMadeIsValid(t *testing.T) {
	t.Parallel()
	c, spend, data := chain(t)
	view := c.View(c.Tip())
	for i, d := range data[:len(data)-1] {
		b, err := beef.Parse(d)
		if err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
		members, _, err := b.Closure(spend.ID, 100)
		if err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
		outputs := map[[32]byte][]beef.Output{}
		for _, m := range members {
			outputs[m.TxID] = m.Outputs
			if m.Proof != nil {
				if root, ok := view.Root(m.Proof.Height); !ok || root != m.Proof.Root {
					t.Errorf("piece %d: the path of %x leads elsewhere", i, m.TxID)
				}
				continue
			}
			p, err := beef.Prepare(m.Raw)
			if err != nil {
				t.Fatal(err)
			}
			for n, in := range m.Inputs {
				if from, here := outputs[in.Prev]; here && !m.Coinbase {
					if err := p.Execute(n, from[in.Index].Script, from[in.Index].Satoshis); err != nil {
						t.Errorf("piece %d: %v", i, err)
					}
				}
			}
		}
	}
}
