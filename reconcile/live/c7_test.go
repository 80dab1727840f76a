package live_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// TestC7_SeveralSourcesFairly follows one source with a long snapshot in small pages,
// one that stalls, and three small ones: each small one is done after about as many
// commits of the large one as it has pages itself. Each has one request in flight.
func TestC7_SeveralSourcesFairly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 60)
		large, stalled := newProvider(t, "large"), newProvider(t, "stalled")
		for _, tx := range rows {
			large.seed(row(c, tx, 0, verifytest.Evidence{}))
		}
		for i := range 240 { // pages cost nothing to verify
			o := row(c, c.Fund, uint32(i%64), verifytest.Evidence{})
			o.Context = &wire.Context{Schema: "urn:test:context", Bytes: []byte{byte(i)}}
			large.seed(o)
		}
		for i := range 10 {
			stalled.seed(row(c, rows[i], 0, verifytest.Evidence{}))
		}
		held := make(chan struct{})
		stalled.before = stallAt("read", 2, held)
		small := []*provider{newProvider(t, "a"), newProvider(t, "b"), newProvider(t, "c")}
		for i, p := range small {
			for n := range 8 {
				p.seed(row(c, rows[10+8*i+n], 0, verifytest.Evidence{}))
			}
		}
		w := newWallet(t, c, append([]*provider{large, stalled}, small...)...)
		w.patience = long
		for i := range w.config.Sources {
			w.config.Sources[i].Limits.MaxObservations = 2
		}
		stop := w.start()
		w.await("the small ones are live", func() bool {
			return !slices.ContainsFunc(small, func(p *provider) bool { return !w.source(p).Latest.Complete })
		})
		// Every source was served in its turn.
		batches := map[string]int{}
		for _, e := range of[live.Received](w) {
			batches[e.Source.Key.Base]++
			for _, p := range small {
				if e.Source.Key.Base == p.base && e.Complete {
					if n := batches[large.base]; n > 4*batches[p.base]+8 {
						t.Errorf("%s had %d batches of its own while the large one had %d", p.base, batches[p.base], n)
					}
				}
			}
		}
		if w.source(stalled).Latest.Received {
			t.Error("the stalled source is complete")
		}
		close(held)
		w.await("all", func() bool { return w.source(large).Latest.Complete && w.source(stalled).Latest.Complete })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for _, p := range append(small, large, stalled) {
			if p.most != 1 {
				t.Errorf("%s had %d requests in flight", p.base, p.most)
			}
		}
	})
}

// The same output of two providers is two memberships and one output; a withdrawal by
// one of them is not one by the other. Two followers of the same thing are refused.
func TestC7_TwoSourcesOneOutput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		tx := coins(c, 0, 1)[0]
		a, b := newProvider(t, "a"), newProvider(t, "b")
		a.seed(row(c, tx, 0, verifytest.Evidence{}))
		b.seed(row(c, tx, 0, verifytest.Evidence{}))
		w := newWallet(t, c, a, b)
		if err := w.untilLive(); err != nil {
			t.Fatal(err)
		}
		if got := w.output(tx.Outpoint(0)); got.State != reconcile.Current || len(got.Sources) != 2 {
			t.Errorf("%+v", got)
		}
		a.say(a.withdraws(tx.Outpoint(0), "changed"))
		if err := w.untilLive(); err != nil {
			t.Fatal(err)
		}
		if got := w.output(tx.Outpoint(0)); got.State != reconcile.Current || !slices.Equal(got.Sources, []reconcile.SourceID{w.source(b).ID}) {
			t.Errorf("%+v", got)
		}
		twice := walletOver(t, w.store, c, a, a)
		if err := twice.untilLive(); !errors.Is(err, client.ErrBusy) {
			t.Errorf("the same source twice: %v", err)
		}
	})
}

// A source whose follower cannot go on stops alone, and the run says why at its end.
func TestC7_OneSourceFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 2)
		good, public := newProvider(t, "good"), newProvider(t, "public")
		good.seed(row(c, rows[0], 0, verifytest.Evidence{}))
		w := newWallet(t, c, good, public)
		w.config.Sources[1].Service = "ls_unknown"
		err := w.untilLive()
		if _, ok := errors.AsType[*client.ManifestError](err); !ok {
			t.Errorf("error %v", err)
		}
		if got := of[live.SourceStale](w); len(got) != 1 || got[0].Source.Key.Base != public.base {
			t.Errorf("told %+v", got)
		}
		if got := w.output(rows[0].Outpoint(0)); got.State != reconcile.Current {
			t.Errorf("%+v", got)
		}
		key, err := secp256k1.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		w.config.Sources[1].Service, w.config.Sources[1].Key = service, key
		began := time.Now()
		w.config.RetryFor = 30 * time.Second
		if err := w.untilLive(); err == nil {
			t.Error("a key was shown to a service for everybody")
		} else if time.Since(began) > time.Minute {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}
