package packet_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/testvectors"
)

// ownWorld reads a case of this project.
func ownWorld(t testing.TB, c testvectors.Case) (*world, []step) {
	t.Helper()
	w := newWorld(t)
	for name, tx := range c.Transactions {
		if f := w.add(name, mustHex(t, tx.Raw), tx.Valid); f.id.String() != tx.TxID {
			t.Fatalf("%s: txid %s", name, f.id)
		}
	}
	for _, h := range c.Headers {
		if _, err := w.headers.add(mustHex(t, h)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tip := range c.Views {
		w.views[name] = viewOf{tip: [32]byte(mustHex(t, tip))}
	}
	w.roots = c.Roots
	for name, e := range c.Evidence {
		b, err := base64.StdEncoding.DecodeString(e.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		w.beefs[name] = b
	}
	text, err := json.Marshal(c.Steps)
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	if err := json.Unmarshal(text, &steps); err != nil {
		t.Fatal(err)
	}
	return w, steps
}

func ownCases(t testing.TB) []testvectors.Case {
	t.Helper()
	var cases []testvectors.Case
	for c, err := range testvectors.Reconcile() {
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

// every plays all own cases on all stores. Without it a durable store gets every third: what tells stores apart is shown by the
// published scenarios, all of which are played everywhere.
var every = flag.Bool("every", false, "play every own case on every store")

// TestR9_OwnVectors plays this project's own cases.
func TestR9_OwnVectors(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, keep func(t *testing.T) keeper) {
		durable := !keep(t).volatile()
		for i, c := range ownCases(t) {
			if durable && !*every && i%3 != 0 {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				playOwn(t, c, keep(t), false)
			})
		}
	})
}

// TestV3_OwnVectorsReversed plays them with the results of each step in the opposite order.
func TestV3_OwnVectorsReversed(t *testing.T) {
	t.Parallel()
	for _, c := range ownCases(t) {
		t.Run(c.Name, func(t *testing.T) { playOwn(t, c, inMemory{}, true) })
	}
}

func playOwn(t *testing.T, c testvectors.Case, k keeper, reversed bool) {
	t.Helper()
	w, steps := ownWorld(t, c)
	p := newPlayer(t, w, k, c.NonFinal, func(o *reconcile.Options) { o.Budget.Transactions = c.MaxTransactions })
	defer p.close()
	p.watch, p.reversed = c.Watch, reversed
	if reversed {
		p.verifier = once
	}
	if got := p.play(steps); got != c.ExpectFailure {
		t.Errorf("the last step became %q, not %q", got, c.ExpectFailure)
	}
	p.audit()
	if c.ExpectFailure == "" {
		p.restart()
	}
}
