package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

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

// A service that knows its callers is followed with a key. Every request is signed,
// and no answer is believed that the named provider has not signed.
func ExampleFollow_signed() {
	base, provider, stop := exampleProvider()
	defer stop()
	provider.signing()
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
	key, err := secp256k1.GeneratePrivateKey() // keep it: it is who you are
	if err != nil {
		log.Fatal(err)
	}

	err = client.Follow(ctx, client.Options{
		BaseURL: base, Service: "ls_signed", State: state, UntilLive: true,
		Key: key, Identity: provider.caps.Identity,
		On: func(_ context.Context, e client.Event) error {
			if e, ok := e.(client.SnapshotComplete); ok {
				fmt.Println("snapshot complete at", e.W)
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	sources, err := state.Sources(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("told to", len(sources[0].Principal)/2, "bytes of public key")
	// Output:
	// snapshot complete at 2
	// told to 33 bytes of public key
}

// A new generation begins when the caller allows it; until its snapshot is whole,
// the rows of the old one stay, visibly stale.
func ExampleFollow_reset() {
	base, provider, stop := exampleProvider()
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

	options := client.Options{
		BaseURL: base, Service: "ls_test", State: state, UntilLive: true,
		On: func(_ context.Context, e client.Event) error {
			if e, ok := e.(client.SnapshotComplete); ok {
				fmt.Println("generation", e.Generation, "replaces", e.Replaces)
			}
			return nil
		},
	}
	if err := client.Follow(ctx, options); err != nil {
		log.Fatal(err)
	}
	provider.endAll(client.CodeResetRequired) // the provider cannot go on from here
	err = client.Follow(ctx, options)
	if ended, ok := errors.AsType[*client.EndedError](err); ok {
		fmt.Println("ended:", ended.Ending.Code)
	}
	options.OnReset = client.Reopen
	if err := client.Follow(ctx, options); err != nil {
		log.Fatal(err)
	}
	// Output:
	// generation 1 replaces 0
	// ended: reset-required
	// generation 2 replaces 1
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
