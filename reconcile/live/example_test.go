package live_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// exampleTB lends the providers of the tests to an example.
type exampleTB struct {
	testing.TB
	cleanup []func()
}

func (e *exampleTB) Helper()          {}
func (e *exampleTB) Cleanup(f func()) { e.cleanup = append(e.cleanup, f) }
func (e *exampleTB) Fatal(v ...any)   { log.Fatal(v...) }
func (e *exampleTB) stop() {
	for _, f := range e.cleanup {
		f()
	}
}

// exampleWorld is a chain, and a provider on this machine that lists one coin.
func exampleWorld() (c *verifytest.Chain, coin *verifytest.Tx, p *provider, stop func()) {
	tb := &exampleTB{}
	c = verifytest.NewChain(tb)
	coin = coins(c, 0, 1)[0]
	p = newProvider(tb, "example").seed(row(c, coin, 0, verifytest.Evidence{}))
	p.serve()
	return c, coin, p, tb.stop
}

// Run keeps a store of knowledge up to date with what sources say and transactions
// prove. UntilLive ends the run once everything there is was read and accepted; the
// next run over the same store only fetches what is new.
func ExampleRun() {
	chain, coin, provider, stop := exampleWorld()
	defer stop()
	ctx := context.Background()
	store, err := reconcile.Open(ctx, memstore.New(), reconcile.Options{
		Partition: reconcile.Partition{Application: "shop", Account: "main", Access: "local"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	config := live.Config{
		Store: store, Chain: chain.Headers, UntilLive: true,
		Sources: []live.Source{{BaseURL: provider.base, Service: "ls_test", OnReset: live.Reopen}},
		On: func(_ context.Context, e live.Event) error {
			if a, ok := e.(live.Accepted); ok {
				for _, o := range a.Outputs {
					fmt.Println(o.Outpoint.Index, "of", o.Outpoint.TxID.String()[:8], "is", o.State)
				}
			}
			return nil
		},
	}
	if err := live.Run(ctx, config); err != nil {
		log.Fatal(err)
	}
	// The provider sees the coin spent, and lists what it became.
	spender := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coin.Out(0)}})
	beef := chain.BEEF(spender, verifytest.Evidence{})
	provider.say(
		provider.spends(coin.Outpoint(0), spender, beef), provider.withdraws(coin.Outpoint(0), "spent"),
		lists(wire.Output{Evidence: wire.Evidence{TxID: spender.ID.String(), BEEF: beef}}),
	)
	if err := live.Run(ctx, config); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 of e473d43d is current
	// 0 of 49036d81 is current
	// 0 of e473d43d is spent
}

// A source that only answers is a [live.Finite]: each answer takes the place of the one
// before, and what it leaves out is not listed any more.
func ExampleFinite() {
	chain, coin, _, stop := exampleWorld()
	defer stop()
	ctx := context.Background()
	store, err := reconcile.Open(ctx, memstore.New(), reconcile.Options{
		Partition: reconcile.Partition{Application: "shop", Account: "main", Access: "local"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	err = live.Run(ctx, live.Config{
		Store: store, Chain: chain.Headers, UntilLive: true,
		Finite: []live.Finite{{Label: "a file of mine", Fetch: func(context.Context) ([]live.Listed, error) {
			return []live.Listed{{TxID: coin.ID, OutputIndex: 0, BEEF: chain.BEEF(coin, verifytest.Evidence{})}}, nil
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := store.Read(ctx, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Close()
	output, err := snapshot.Output(coin.Outpoint(0))
	fmt.Println(output.State, err)
	// Output: current <nil>
}
