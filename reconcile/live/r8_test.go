package live_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

// court is an honest source and one that lies, both followed by one wallet. Both
// began with the same rows; the honest one then said, with proof, that row 0 is spent.
type court struct {
	*wallet
	honest, liar *provider
	rows         []*verifytest.Tx
	spender      *verifytest.Tx
	told         int // rows the honest one has said since
	end          func() error
}

func newCourt(t testing.TB, budget reconcile.Budget) *court {
	c := verifytest.NewChain(t)
	k := &court{honest: newProvider(t, "honest"), liar: newProvider(t, "liar"), rows: coins(c, 0, 40)}
	for _, tx := range k.rows[:4] {
		k.honest.seed(row(c, tx, 0, verifytest.Evidence{}))
		k.liar.seed(row(c, tx, 0, verifytest.Evidence{}))
	}
	k.wallet = walletOver(t, openOver(t, memstore.New(), budget), c, k.honest, k.liar)
	k.patience = long
	k.end = k.start()
	k.await("both snapshots", func() bool {
		return k.id(k.honest) != 0 && k.id(k.liar) != 0 && len(k.present(k.id(k.honest))) == 4 && len(k.present(k.id(k.liar))) == 4
	})
	k.spender = verifytest.Pay(verifytest.Payment{From: []verifytest.Out{k.rows[0].Out(0)}})
	k.spend(k.honest)
	k.await("row 0 is spent", func() bool { return k.output(k.rows[0].Outpoint(0)).State == reconcile.Spent })
	return k
}

func (k *court) id(p *provider) reconcile.SourceID { return k.source(p).ID }

// spend has a provider say that row 0 is replaced.
func (k *court) spend(p *provider) {
	beef := k.chain.BEEF(k.spender, verifytest.Evidence{})
	o := k.rows[0].Outpoint(0)
	p.say(p.spends(o, k.spender, beef), p.withdraws(o, "spent"), lists(wire.Output{Evidence: wire.Evidence{TxID: k.spender.ID.String(), BEEF: beef}}))
}

// judge checks that the lie changed nothing: the honest source goes on, and what was
// proved spent was not current at any revision.
func (k *court) judge(what string) {
	k.t.Helper()
	next := k.rows[10+k.told]
	k.told++
	began := time.Now()
	k.honest.say(lists(row(k.chain, next, 0, verifytest.Evidence{})))
	k.await(what+": the honest source goes on", func() bool { return k.output(next.Outpoint(0)).State == reconcile.Current })
	if late := time.Since(began); late > 2*time.Second {
		k.t.Errorf("%s: the honest source was held up for %v", what, late)
	}
	if got, want := k.present(k.id(k.honest)), k.honest.truth(); !slices.Equal(got, want) {
		k.t.Errorf("%s: the honest source lists %v, want %v", what, got, want)
	}
	o := k.rows[0].Outpoint(0)
	if got := k.output(o); got.State != reconcile.Spent || got.By != k.spender.ID {
		k.t.Errorf("%s: the spent output is %+v", what, got)
	}
	spent := false
	for _, a := range of[live.Accepted](k.wallet) {
		for _, c := range a.Outputs {
			if c.Outpoint != o {
				continue
			}
			if spent && c.State == reconcile.Current {
				k.t.Errorf("%s: at revision %d the spent output is current", what, a.Revision.Accepted)
			}
			spent = spent || c.State == reconcile.Spent
		}
	}
	if st := k.source(k.liar); st.Quarantined > 64 {
		k.t.Errorf("%s: %d claims are in quarantine", what, st.Quarantined)
	}
	k.audit()
}

// overFor awaits the end of a generation of the liar's.
func (k *court) overFor(generation uint64, code client.Code) {
	k.t.Helper()
	k.await(fmt.Sprintf("generation %d ends for %s", generation, code), func() bool {
		return slices.ContainsFunc(of[live.SourceReset](k.wallet), func(e live.SourceReset) bool {
			return e.Source.Key.Base == k.liar.base && e.Generation == generation && e.Code == code
		})
	})
	if !slices.ContainsFunc(of[live.Quarantined](k.wallet), func(e live.Quarantined) bool { return e.Generation == generation }) {
		k.t.Errorf("nobody was told of the quarantine of generation %d", generation)
	}
}

func inCourt(t *testing.T, budget reconcile.Budget, lie func(k *court)) {
	synctest.Test(t, func(t *testing.T) {
		k := newCourt(t, budget)
		lie(k)
		if err := k.end(); err != nil {
			t.Errorf("the run: %v", err)
		}
	})
}

// TestR8_LyingProvider has one of two sources lie in every way it can. What the other
// one proved stands, what it says goes on, and what the liar leaves behind is bounded.
func TestR8_LyingProvider(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(k *court){
		"withdraws what is there": func(k *court) {
			k.liar.say(k.liar.withdraws(k.rows[1].Outpoint(0), "changed"))
			k.await("it is withdrawn", func() bool { return len(k.present(k.id(k.liar))) == 3 })
			if got := k.output(k.rows[1].Outpoint(0)); got.State != reconcile.Current || !slices.Equal(got.Sources, []reconcile.SourceID{k.id(k.honest)}) {
				k.t.Errorf("%+v", got)
			}
		},
		"lists what is spent again": func(k *court) {
			k.spend(k.liar)
			k.liar.say(lists(row(k.chain, k.rows[0], 0, verifytest.Evidence{})))
			k.await("it is listed", func() bool { return received(k.wallet, k.liar) == k.liar.head && k.unsettled() == 0 })
			got := k.output(k.rows[0].Outpoint(0))
			if !slices.Equal(got.Sources, []reconcile.SourceID{k.id(k.liar)}) {
				k.t.Errorf("%+v", got)
			}
		},
		"gives one id two meanings": func(k *court) {
			k.liar.sayAs("twice", k.liar.withdraws(k.rows[1].Outpoint(0), "changed"))
			k.await("the first meaning", func() bool { return received(k.wallet, k.liar) == k.liar.head })
			k.liar.sayAs("twice", k.liar.withdraws(k.rows[2].Outpoint(0), "changed"))
			k.overFor(1, client.CodeEquivocation)
			if st := k.source(k.liar); st.Quarantined != 1 {
				k.t.Errorf("%+v", st)
			}
		},
		"does not answer": func(k *court) {
			k.liar.edit(func() {
				k.liar.before = func(ctx context.Context, _ string, _ int, _ []byte) { <-ctx.Done() }
			})
		},
		"forges a placement": func(k *court) {
			other := verifytest.NewChain(k.t)
			tx := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{k.chain.Fund.Out(50)}})
			other.Mine(tx)
			k.liar.say(lists(row(other, tx, 0, verifytest.Evidence{})))
			k.overFor(1, "invalid")
			if got := k.output(tx.Outpoint(0)); got.State == reconcile.Current {
				k.t.Errorf("%+v", got)
			}
		},
		"forges a signature": func(k *court) {
			tx := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{k.rows[1].Out(0)}, Forged: true})
			beef := k.chain.BEEF(tx, verifytest.Evidence{})
			k.liar.say(k.liar.spends(k.rows[1].Outpoint(0), tx, beef), k.liar.withdraws(k.rows[1].Outpoint(0), "spent"))
			k.overFor(1, "invalid")
			k.await("the row is current", func() bool { return k.output(k.rows[1].Outpoint(0)).State == reconcile.Current })
		},
		"names an output that is not there": func(k *court) {
			k.liar.say(lists(row(k.chain, k.rows[1], 7, verifytest.Evidence{})))
			k.overFor(1, "invalid")
		},
		"withholds a parent for ever": func(k *court) {
			k.liar.say(lists(row(k.chain, k.orphan(0), 0, verifytest.Evidence{RawOnly: true})))
			k.liar.say(k.liar.withdraws(k.rows[1].Outpoint(0), "changed"))
			k.await("it is received", func() bool { return received(k.wallet, k.liar) == k.liar.head })
			if len(k.present(k.id(k.liar))) != 4 {
				k.t.Errorf("a later change was published: %v%s", k.present(k.id(k.liar)), k.describe())
			}
		},
		"breaks the protocol": func(k *court) {
			k.liar.edit(func() {
				k.liar.bend = func(_ string, _ int, b *wire.Batch) { b.ExpiresAt++ }
			})
			k.await("it is noticed", func() bool {
				return slices.ContainsFunc(of[live.Waiting](k.wallet), func(e live.Waiting) bool {
					_, broke := errors.AsType[*client.ViolationError](e.Err)
					return broke && e.For >= time.Second
				})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inCourt(t, reconcile.Budget{}, func(k *court) {
				lie(k)
				k.judge(name)
			})
		})
	}
}

// orphan is a transaction whose parent nobody has.
func (k *court) orphan(n int) *verifytest.Tx {
	parent := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{k.chain.Fund.Out(60)}, Values: []uint64{uint64(1000 + n)}})
	return verifytest.Pay(verifytest.Payment{From: []verifytest.Out{parent.Out(0)}})
}

// A liar floods with evidence that nobody can resolve: receipt of it stops at its
// budget, and only of it.
func TestR8_FloodIsBounded(t *testing.T) {
	t.Parallel()
	inCourt(t, reconcile.Budget{PendingGroups: 32}, func(k *court) {
		for n := range 200 {
			k.liar.say(lists(row(k.chain, k.orphan(n), 0, verifytest.Evidence{RawOnly: true})))
		}
		k.await("it waits", func() bool {
			return slices.ContainsFunc(of[live.Waiting](k.wallet), func(e live.Waiting) bool {
				_, full := errors.AsType[*live.BudgetError](e.Err)
				return full
			})
		})
		for range 20 {
			k.judge("flood")
		}
		// One batch of a source that had nothing waiting gets in whole; nothing after it.
		if st := k.source(k.liar); st.Latest.Pending.Groups > 256 || st.Latest.Pending.Groups == 0 {
			k.t.Errorf("%d groups are pending", st.Latest.Pending.Groups)
		}
	})
}

// A liar that gives an id two meanings in every generation is believed later and later,
// and keeps nothing but its newest claims; goroutines do not grow.
func TestR8_EquivocationForEver(t *testing.T) {
	t.Parallel()
	const lives, claims = 13, 5
	inCourt(t, reconcile.Budget{Quarantine: claims}, func(k *court) {
		k.liar.edit(func() {
			k.liar.bend = func(endpoint string, _ int, b *wire.Batch) {
				if endpoint == "read" && len(b.Groups) == 0 { // something new each time, under one id
					b.Through++
					b.HighWater++
					k.liar.head = b.Through // so that the next snapshot is not older
					o := k.liar.withdraws(k.rows[1].Outpoint(0), fmt.Sprint("reason of ", b.Session))
					o.ID, o.Scope = "same", b.Scope
					b.Groups = append(b.Groups, wire.Group{ID: "same", Sequence: b.Through, Observations: []wire.Observation{o}})
					b.Cursor += "0"
				}
			}
		})
		k.patience = lives * 15 * time.Minute
		goroutines := runtime.NumGoroutine()
		began := time.Now()
		k.await("many lives", func() bool { return len(of[live.SourceReset](k.wallet)) >= lives })
		if lasted := time.Since(began); lasted < (1+2+4+8+16+32+64+128+256+512+600+600)*time.Second {
			k.t.Errorf("%d lives lasted %v: the pause does not grow to ten minutes", lives, lasted)
		}
		if more := runtime.NumGoroutine() - goroutines; more > 50 {
			k.t.Errorf("%d goroutines more than before", more)
		}
		st := k.source(k.liar)
		if st.Quarantined != claims {
			k.t.Errorf("%d claims are in quarantine", st.Quarantined)
		}
		bytes := 0
		for q, err := range k.store.Quarantine(context.Background(), st.ID) {
			if err != nil {
				k.t.Fatal(err)
			}
			bytes += len(q.Bytes)
		}
		if bytes == 0 || bytes > 4<<20 {
			k.t.Errorf("%d bytes are in quarantine", bytes)
		}
	})
}
