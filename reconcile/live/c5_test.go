package live_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// TestC5_ResetsAreGenerations resets a source whose rows changed meanwhile: the end is
// told, the old rows stay and are stale until the whole new snapshot is accepted, and
// the swap is one revision.
func TestC5_ResetsAreGenerations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		p := newProvider(t, "one")
		rows := coins(c, 0, 6)
		for _, tx := range rows[:4] {
			p.seed(row(c, tx, 0, verifytest.Evidence{}))
		}
		held := make(chan struct{}) // the second page of the second snapshot
		p.before = func(ctx context.Context, endpoint string, _ int, body []byte) {
			if q, err := wire.ParseRead(body); endpoint == "read" && err == nil && q.Cursor == "session-2 snapshot 2" {
				select {
				case <-held:
				case <-ctx.Done():
				}
			}
		}
		w := newWallet(t, c, p)
		w.patience = long
		w.config.Sources[0].Limits.MaxObservations = 2
		w.start()
		w.await("four rows", func() bool { return w.source(p).Latest.Complete })
		old := w.present(0)

		p.edit(func() {
			p.rows = append(p.rows[2:], row(c, rows[4], 0, verifytest.Evidence{}), row(c, rows[5], 0, verifytest.Evidence{}))
			p.head++
		})
		p.endAll(wire.ResetRequired)
		w.await("the first page of the second snapshot", func() bool {
			got := of[live.Received](w)
			return got[len(got)-1].Generation == 2 && w.unsettled() == 0
		})
		if got := w.present(0); !slices.Equal(got, old) {
			t.Errorf("while the snapshot arrives %v are present, were %v", got, old)
		}
		for _, m := range w.memberships() {
			if m.Generation != 1 || !m.Stale {
				t.Errorf("%s of generation %d is not an old stale row (stale %v)", m.Outpoint, m.Generation, m.Stale)
			}
		}
		if st := w.source(p); st.Active != 1 || !st.Stale || st.Latest.State != reconcile.Staged {
			t.Errorf("the source stands at %+v", st)
		}
		close(held)
		w.await("the swap", func() bool { return w.source(p).Active == 2 })
		if got, want := w.present(0), p.truth(); !slices.Equal(got, want) {
			t.Errorf("present are %v, want %v", got, want)
		}
		resets := of[live.SourceReset](w)
		if len(resets) != 1 || resets[0].Generation != 1 || resets[0].Code != client.CodeResetRequired || resets[0].At == 0 {
			t.Errorf("told %+v", resets)
		}
		swaps := 0
		for _, a := range of[live.Accepted](w) {
			gone, new := 0, 0
			for _, m := range a.Memberships {
				if m.Gone {
					gone++
				}
				if m.Generation == 2 && m.Present {
					new++
				}
			}
			if gone == 0 && new == 0 {
				continue
			}
			if swaps++; gone != 2 || new != 4 {
				t.Errorf("revision %d takes %d rows away and has %d of the new generation: %+v", a.Revision.Accepted, gone, new, a.Memberships)
			}
		}
		if swaps != 1 {
			t.Errorf("the swap is %d revisions", swaps)
		}
		w.audit()
	})
}

// unsettled counts groups that wait for results.
func (w *wallet) unsettled() (n int) {
	w.read(func(s reconcile.Snapshot) {
		for g, err := range s.PendingGroups() {
			if err != nil {
				w.t.Fatal(err)
			}
			if !g.Settled {
				n++
			}
		}
	})
	return n
}

// Each ending is durable and told; without a policy that reopens, or for lost access,
// the source stops and the run says why. The other sources are what a run is for: it
// goes on while one is left.
func TestC5_EndingsStopOrReopen(t *testing.T) {
	t.Parallel()
	for _, code := range []wire.Code{wire.ResetRequired, wire.Expired, wire.Unauthorized, wire.ContextChanged} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := verifytest.NewChain(t)
				rows := coins(c, 0, 2)
				p, other := newProvider(t, "one"), newProvider(t, "other")
				p.seed(row(c, rows[0], 0, verifytest.Evidence{}))
				other.seed(row(c, rows[1], 0, verifytest.Evidence{}))
				w := newWallet(t, c, p, other)
				w.patience = long
				w.config.Sources[0].OnReset = live.Stop
				stop := w.start()
				w.await("both are there", func() bool { return w.source(p).Latest.Complete && w.source(other).Latest.Complete })
				p.endAll(code)
				w.await("it stopped", func() bool { return len(of[live.SourceStale](w)) == 1 })
				stale := of[live.SourceStale](w)[0]
				if e, ok := errors.AsType[*client.EndedError](stale.Err); !ok || e.Ending.Code != code {
					t.Errorf("it stopped with %v", stale.Err)
				}
				if got := of[live.SourceReset](w); len(got) != 1 || got[0].Code != code {
					t.Errorf("told %+v", got)
				}
				if st := w.source(p); !st.Stale || st.Latest.Ending == nil || st.Latest.Ending.Code != string(code) {
					t.Errorf("the source stands at %+v", st)
				}
				for _, m := range w.memberships() {
					if m.Stale != (m.Source == stale.Source.ID) {
						t.Errorf("%+v", m)
					}
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}

				// Alone, it ends the run. What was told is not told again.
				alone := walletOver(t, w.store, c, p)
				alone.config.Sources[0].OnReset = live.Stop
				if _, ok := errors.AsType[*client.EndedError](live.Run(t.Context(), alone.config)); !ok {
					t.Error("the run did not end for the only source")
				}
				if got := of[live.SourceReset](alone); len(got) != 0 {
					t.Errorf("told again %+v", got)
				}
				reopened := walletOver(t, w.store, c, p)
				if err := reopened.untilLive(); err != nil {
					t.Fatalf("reopening: %v", err)
				}
				if st := reopened.source(p); st.Active != 2 || st.Stale {
					t.Errorf("the source stands at %+v", st)
				}
			})
		})
	}
}

// An ending that was recorded and not told, because the process died between, is told
// by the next run.
func TestC5_EndingIsToldAtLeastOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		p := newProvider(t, "one").seed(row(c, coins(c, 0, 1)[0], 0, verifytest.Evidence{}))
		w := newWallet(t, c, p)
		died := errors.New("died")
		told := 0
		w.config.On = func(ctx context.Context, e live.Event) error {
			if _, ok := e.(live.SourceReset); ok {
				told++
				return died
			}
			return w.on(ctx, e)
		}
		if err := w.untilLive(); err != nil {
			t.Fatal(err)
		}
		p.endAll(wire.ResetRequired)
		if err := live.Run(t.Context(), w.config); !errors.Is(err, died) || told != 1 {
			t.Fatalf("%v, told %d times", err, told)
		}
		again := walletOver(t, w.store, c, p)
		if err := again.untilLive(); err != nil {
			t.Fatal(err)
		}
		if got := of[live.SourceReset](again); len(got) != 1 || got[0].Generation != 1 {
			t.Errorf("told %+v", got)
		}
	})
}

// The promised life of a session ends: the rows are stale at that second, the timer
// publishes it, and the source begins anew by itself.
func TestC5_Expiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		p := newProvider(t, "one")
		p.life = 60
		p.issue()
		p.seed(row(c, coins(c, 0, 1)[0], 0, verifytest.Evidence{}))
		w := newWallet(t, c, p)
		w.patience = long
		began := time.Now()
		w.start()
		w.await("three lives", func() bool { return w.source(p).Active == 3 })
		if lived := time.Since(began); lived < 2*time.Minute || lived > 3*time.Minute {
			t.Errorf("two lives of a minute took %v", lived)
		}
		resets := of[live.SourceReset](w)
		if len(resets) != 2 || resets[0].Code != client.CodeExpired || resets[1].Generation != 2 {
			t.Errorf("told %+v", resets)
		}
		w.audit()
	})
}

// The store is pinned to a chain, and a source to an identity.
func TestC5_AnotherChainIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 2)
		p, foreign := newProvider(t, "one"), newProvider(t, "foreign")
		p.seed(row(c, rows[0], 0, verifytest.Evidence{}))
		foreign.chain.Network = "another"
		foreign.issue()
		store := openOver(t, memstore.New(), reconcile.Budget{})
		if err := walletOver(t, store, c, p).untilLive(); err != nil {
			t.Fatal(err)
		}
		w := walletOver(t, store, c, foreign)
		e, ok := errors.AsType[*client.PinError](w.untilLive())
		if !ok || e.What != "chain" || foreign.seen("open") != 0 {
			t.Errorf("error %v, %d opens", e, foreign.seen("open"))
		}
	})
}
