package live_test

import (
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/testkit/statetest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// TestC2_C3_C4_C5_C7_RecordIsAState runs the suite of client.State over the records in
// a store of knowledge.
func TestC2_C3_C4_C5_C7_RecordIsAState(t *testing.T) {
	t.Parallel()
	statetest.Run(t, func(t *testing.T) statetest.Instance {
		c, b := verifytest.NewChain(t), memstore.New()
		open := func() client.State {
			s, err := live.RecordsOf(t.Context(), live.Config{Store: openOver(t, b, reconcile.Budget{}), Chain: c.Headers})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		return statetest.Instance{State: open(), Reopen: open, OneSpace: true}
	})
}
