package sqlitestate_test

import (
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/testkit/statetest"
)

// The contract of a client.State, which the record of a reconciling run keeps too.
func TestC2_C3_C4_C5_C7_Suite(t *testing.T) {
	t.Parallel()
	statetest.Run(t, func(t *testing.T) statetest.Instance {
		dir := t.TempDir()
		now := open(t, dir)
		t.Cleanup(func() {
			if err := now.Close(); err != nil {
				t.Error(err)
			}
		})
		reopen := func() client.State {
			if err := now.Close(); err != nil {
				t.Fatal(err)
			}
			now = open(t, dir)
			return now
		}
		return statetest.Instance{State: now, Reopen: reopen, Delivers: true}
	})
}

var _ client.State = (*sqlitestate.Store)(nil)
