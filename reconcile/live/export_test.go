package live

import (
	"context"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// RecordsOf are the records that a run keeps in its store, without the run around
// them. The store's pool, acceptor and keeper do not run.
func RecordsOf(ctx context.Context, c Config) (client.State, error) {
	if err := c.normalise(); err != nil {
		return nil, err
	}
	r := &runner{
		config: c, store: c.Store, turn: make(chan struct{}, 1), byID: map[reconcile.SourceID]*source{},
		expires: map[reconcile.SourceID]uint64{}, cancel: func(error) {},
	}
	r.pool = verify.NewPool(verify.New(verify.Config{Workers: 1, Log: c.Log}), verify.PoolOptions{Recorded: r.recorded})
	return records{r}, r.prepare(ctx)
}

// records gives every key a source of its own, as a configuration would.
type records struct{ runner *runner }

func (r records) Acquire(ctx context.Context, key client.Key) (client.Record, error) {
	return (&source{runner: r.runner, live: &Source{BaseURL: key.Base, Service: key.Service}}).Acquire(ctx, key)
}
