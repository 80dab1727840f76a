package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

// childVariable holds the orders of a follower that is a process of its own.
const childVariable = "OVERLAYD_CLIENT_TEST_CHILD"

// orders are what a child is to do.
type orders struct {
	Base, Dir, Output string
	Limits            client.Limits
	KillPoint         string // "" for none
	KillAt            int
	Reopen            bool
	Signed            bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child follows until it is live, and writes the id of every observation it is
// shown to a file; at its kill point it kills itself as kill -9 would.
func child(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	store, err := sqlitestate.Open(ctx, o.Dir)
	if err != nil {
		return err
	}
	defer store.Close()
	output, err := os.OpenFile(o.Output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	reach := func(point string, n int) {
		if point == o.KillPoint && n == o.KillAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal takes its time
		}
	}
	shown := 0
	options := client.Options{
		BaseURL: o.Base, Service: service, State: hook(store, reach), Limits: o.Limits, UntilLive: true,
		On: func(_ context.Context, e client.Event) error {
			g, ok := e.(client.Group)
			if !ok {
				return nil
			}
			for _, observation := range g.Observations {
				if _, err := fmt.Fprintln(output, observation.ID); err != nil {
					return err
				}
				shown++
				reach("shown", shown)
			}
			return nil
		},
	}
	if o.Signed {
		options.Key, options.Service = newKey(1), signedService
	}
	if o.Reopen {
		options.OnReset = client.Reopen
	}
	return client.Follow(ctx, options)
}
