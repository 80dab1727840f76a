package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

// exampleProvider is a provider on this machine with two outputs.
func exampleProvider() (base string, p *fake, stop func()) {
	tb := &exampleTB{}
	p = newFake(tb).seed(2)
	return p.serve(), p, tb.stop
}

// exampleTB lends the test provider its cleanup.
type exampleTB struct {
	testing.TB
	cleanup []func()
}

func (e *exampleTB) Cleanup(f func()) { e.cleanup = append(e.cleanup, f) }
func (e *exampleTB) Fatal(v ...any)   { log.Fatal(v...) }
func (e *exampleTB) stop() {
	for _, f := range e.cleanup {
		f()
	}
}

// Follow a service until everything it has is recorded; a later run with the
// same directory only fetches what is new.
func ExampleFollow() {
	base, provider, stop := exampleProvider()
	defer stop()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	run := func() error {
		state, err := sqlitestate.Open(ctx, dir)
		if err != nil {
			return err
		}
		defer state.Close()
		return client.Follow(ctx, client.Options{
			BaseURL: base, Service: "ls_test", State: state, UntilLive: true,
			On: func(_ context.Context, e client.Event) error {
				switch e := e.(type) {
				case client.Group:
					fmt.Println("group at", e.Sequence, "with", len(e.Observations), "observations")
				case client.SnapshotComplete:
					fmt.Println("snapshot complete at", e.W)
				}
				return nil
			},
		})
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
	provider.remove(1) // the provider sees a listed output spent
	if err := run(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// group at 2 with 1 observations
	// group at 2 with 1 observations
	// snapshot complete at 2
	// group at 3 with 2 observations
}

// Events is Follow as a loop.
func ExampleEvents() {
	base, _, stop := exampleProvider()
	defer stop()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	state, err := sqlitestate.Open(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	defer state.Close()

	for e, err := range client.Events(ctx, client.Options{BaseURL: base, Service: "ls_test", State: state, OnReset: client.Reopen}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%T\n", e)
		if _, live := e.(client.Live); live {
			break
		}
	}
	// Output:
	// client.Opened
	// client.Group
	// client.Group
	// client.SnapshotComplete
	// client.Live
}

// A provider's manifest says which services can be followed.
func ExampleDiscover() {
	base, _, stop := exampleProvider()
	defer stop()
	m, err := client.Discover(context.Background(), client.Options{BaseURL: base})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Services, "on chain", m.Chain.Network)
	// Output: [ls_test ls_signed] on chain test
}
