package live_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// dawdling is a store whose evidence takes its time: jobs finish in an order of its
// own.
type dawdling struct {
	reconcile.Store
	seed uint64
}

func (d dawdling) Load(ctx context.Context, j reconcile.Job) (reconcile.Evidence, error) {
	e, err := d.Store.Load(ctx, j)
	order := rand.New(rand.NewPCG(d.seed, j.Group<<8|j.Index))
	late := time.NewTimer(time.Duration(order.Int64N(int64(time.Second))))
	defer late.Stop()
	select {
	case <-late.C:
	case <-ctx.Done():
	}
	return e, err
}

// outcome is everything that was decided, without names that are random.
func (w *wallet) outcome() (out []string) {
	w.t.Helper()
	w.read(func(s reconcile.Snapshot) {
		for tx, err := range s.Transactions() {
			if err != nil {
				w.t.Fatal(err)
			}
			line := fmt.Sprintf("%s %s %s %s replaces %v", tx.ID, tx.Status, tx.Reason, tx.Other, tx.Replaces)
			if tx.Order != nil {
				line += fmt.Sprintf(" order %d.%d.%d at %d", tx.Order.ReadyAt, tx.Order.Depth, tx.Order.FirstRaw.Index, tx.FirstRaw.Position)
			}
			if tx.Eligible != nil {
				line += fmt.Sprintf(" eligible %d", tx.Eligible.At)
			}
			out = append(out, line)
		}
		for o, err := range s.Outputs("") {
			if err != nil {
				w.t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s %s by %s of %v", o.Outpoint, o.State, o.By, o.Sources))
		}
	})
	for _, m := range w.memberships() {
		out = append(out, fmt.Sprintf("%s %v %d %s", m.Outpoint, m.Present, m.Sequence, m.Observation))
	}
	return out
}

// TestR3_WorkersFinishInAnyOrder follows one history, with double spends, chains and a
// replaced version, while checks finish in many orders and on any number of workers:
// the outcome is one.
func TestR3_WorkersFinishInAnyOrder(t *testing.T) {
	t.Parallel()
	var want []string
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			c := verifytest.NewChain(t)
			rows := coins(c, 0, 3)
			p := newProvider(t, "one")
			for _, tx := range rows {
				p.seed(row(c, tx, 0, verifytest.Evidence{}))
			}
			var before func(context.Context, string, int, []byte)
			said := false
			before = func(_ context.Context, endpoint string, n int, _ []byte) {
				if endpoint == "read" && !said {
					said = true
					double(p, c, rows)
				}
			}
			p.before = before
			store := openOver(t, memstore.New(), reconcile.Budget{})
			w := walletOver(t, dawdling{store, seed}, c, p)
			w.config.Workers = 1 + int(seed)%8
			w.config.Sources[0].Limits.MaxObservations = 3
			if err := w.untilLive(); err != nil {
				t.Fatal(err)
			}
			got := w.outcome()
			if want == nil {
				want = got
			}
			if len(got) != len(want) || len(got) < 20 {
				t.Fatalf("seed %d: %d lines, want %d", seed, len(got), len(want))
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("seed %d:\n%s\nwas\n%s", seed, got[i], want[i])
				}
			}
			w.audit()
		})
	}
}

// double has the provider report rivals for each of three coins, children of both, and
// a version that replaces another.
func double(p *provider, c *verifytest.Chain, rows []*verifytest.Tx) {
	report := func(coin, tx *verifytest.Tx) {
		beef := c.BEEF(tx, verifytest.Evidence{})
		p.say(p.spends(coin.Outpoint(0), tx, beef), lists(row(c, tx, 0, verifytest.Evidence{})))
	}
	for i, coin := range rows {
		value := coin.Outputs[0].Satoshis
		first := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coin.Out(0)}, Values: []uint64{value - 20}})
		rival := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coin.Out(0)}, Values: []uint64{value - 30}})
		if i == 2 {
			wait := func(sequence uint32, fee uint64) *verifytest.Tx {
				return verifytest.Pay(verifytest.Payment{
					From: []verifytest.Out{coin.Out(0)}, Values: []uint64{value - fee}, Sequences: []uint32{sequence}, LockTime: 500_000,
				})
			}
			first, rival = wait(1, 20), wait(2, 30)
		}
		report(coin, first)
		report(coin, rival)
		for _, parent := range []*verifytest.Tx{rival, first} {
			report(parent, verifytest.Pay(verifytest.Payment{From: []verifytest.Out{parent.Out(0)}}))
		}
	}
}
