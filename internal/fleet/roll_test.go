package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestN4_ARollingRestart under polls and new clients: the limits of the services change, or the base URL does. New clients come
// all the while, each on a connection that stays at one node, or moves when that node stops: while nodes disagree about the
// service, an Open at another node than the one that gave the manifest is context-changed.
func TestN4_ARollingRestart(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]settings{
		"limits":   {service: "maxObservations: 7, maxWaitMs: 2000"},
		"base URL": {host: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 2, settings{})
			shelves := shelvesOf(2)
			l := &ledger{}
			followers := newCrowd(t, f.base(), 6, shelves)
			followers.follow()
			followers.bell(l, f.operator, shelves, 0, testkit.Patience)
			_, before := f.nodes[0].caller().Capabilities()

			ctx, cancel := context.WithCancel(t.Context())
			var coming sync.WaitGroup
			defer coming.Wait()
			defer cancel()
			came := make(chan struct{}, 1)
			if to.host == "" { // a provider that moved is another one to who has not heard of it
				coming.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						if err := visit(ctx, f.base(), t.TempDir()); err != nil && ctx.Err() == nil {
							t.Errorf("client %d that came meanwhile: %v", i, err)
						}
						select {
						case came <- struct{}{}:
						default:
						}
					}
				})
			}
			for i, n := range f.nodes {
				n.stop()
				followers.bell(l, f.operator, shelves, 10+2*i, testkit.Patience)
				f.configure(n, to)
				n.start()
				followers.bell(l, f.operator, shelves, 11+2*i, testkit.Patience)
				if to.host == "" {
					<-came // one that began before may be done now,
					<-came // and this one met the nodes as they are
				}
			}
			cancel()
			coming.Wait()
			for _, err := range followers.errorsSeen() {
				t.Error(err)
			}
			if v := l.judge(followers.held()...); !v.clean() {
				t.Errorf("%+v", v)
			}

			m, after := f.nodes[0].caller().Capabilities()
			_, other := f.nodes[1].caller().Capabilities()
			if string(after.Body) == string(before.Body) || string(after.Body) != string(other.Body) {
				t.Errorf("the manifest was\n%s\nand is\n%s\nand on the other node\n%s", before.Body, after.Body, other.Body)
			}
			if err := visit(t.Context(), m.BaseURL, t.TempDir()); err != nil {
				t.Errorf("a client of the new manifest: %v", err)
			}
			b := caughtUp(t, f.nodes[0].caller(), forAll)
			if to.host == "" && (b.Limits.MaxObservations != 7 || b.Limits.WaitMs != 0) {
				t.Errorf("the limits are %+v", b.Limits)
			}
		})
	}
}

// visit follows a service with a new state until it is live.
func visit(ctx context.Context, base, dir string) (err error) {
	store, err := sqlitestate.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return client.Follow(ctx, client.Options{BaseURL: base, Service: forAll, State: store, UntilLive: true, CloseSession: true})
}

// TestN4_OpensWhileNodesDisagree: a client whose connections do not last takes the manifest of one node to the other for as long
// as these differ. It asks again, each time says why, and is through once they agree.
func TestN4_OpensWhileNodesDisagree(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, settings{})
	roll := func(n *node) {
		n.stop()
		f.configure(n, settings{service: "maxObservations: 7"})
		n.start()
	}
	roll(f.nodes[0])
	store, err := sqlitestate.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	told := make(chan error, 100)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		done <- client.Follow(ctx, client.Options{
			BaseURL: f.base(), Service: forAll, State: store, UntilLive: true,
			Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true},
			On: func(_ context.Context, e client.Event) error {
				if w, ok := e.(client.Waiting); ok {
					select {
					case told <- w.Err:
					default:
					}
				}
				return nil
			},
		})
	})
	for range 4 {
		select {
		case why := <-told:
			if answer, ok := errors.AsType[*client.ProviderError](why); !ok || answer.Code != client.CodeContextChanged {
				t.Fatalf("the client waits because of %v", why)
			}
		case err := <-done:
			t.Fatalf("the client ended while the nodes disagree: %v", err)
		case <-time.After(testkit.Patience):
			t.Fatal("the client says nothing")
		}
	}
	roll(f.nodes[1])
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("the client does not get through")
	}
}

// TestN3_ANodeIsKilledUnderPolls: both nodes have polls, one is killed, and what is committed through the other while it is
// away reaches everybody, also those that had nothing else to go to.
func TestN3_ANodeIsKilledUnderPolls(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, settings{})
	shelves := shelvesOf(3)
	l := &ledger{}
	followers := newCrowd(t, f.base(), 8, shelves)
	followers.follow()
	followers.bell(l, f.operator, shelves, 0, testkit.Patience)
	for i, n := range []*node{f.nodes[0], f.nodes[1], f.nodes[0]} {
		other := f.nodes[1]
		if n == other {
			other = f.nodes[0]
		}
		testkit.Eventually(t, "followers wait", func() bool {
			return n.of().feed().Waiters+other.of().feed().Waiters == len(followers.followers)
		})
		n.kill()
		followers.bell(l, other.of(), shelves, 1+i, testkit.Patience)
		n.start()
	}
	for _, err := range followers.errorsSeen() {
		t.Error(err)
	}
	if followers.retries.Load() == 0 {
		t.Error("no follower lost a poll: nothing was shown")
	}
	if v := l.judge(followers.held()...); !v.clean() || v.delivered == 0 {
		t.Errorf("%+v", v)
	}
}

// TestN5_TheDatabaseRestarts under polls, once in good order and once by a crash. Nodes stay; a poll that was waiting, and an
// append that meets the gap, cost a retry.
func TestN5_TheDatabaseRestarts(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	f := newFleet(t, 2, settings{database: d.url})
	shelves := shelvesOf(3)
	l := &ledger{}
	followers := newCrowd(t, f.base(), 8, shelves)
	followers.follow()
	followers.bell(l, f.operator, shelves, 0, testkit.Patience)
	number := 1
	for _, down := range []func(){d.stop, d.crash} {
		before := f.operator.feed().Head
		down()
		// Committed when the database is back, by whoever asks often enough.
		key := fmt.Sprintf("fleet-gap-0123456789-%d", number)
		e := edit{row: key, shelves: shelves, mark: "gap"}
		done := make(chan error, 1)
		go func() {
			sequence, replayed, err := f.operator.append(t.Context(), key, e)
			l.note(committed{sequence, key, []edit{e}}, replayed)
			done <- err
		}()
		testkit.Eventually(t, "the nodes notice", func() bool { return !f.nodes[0].serves() && !f.nodes[1].serves() })
		d.start()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		followers.bell(l, f.operator, shelves, number, 2*time.Minute)
		number++
		if got := f.operator.feed().Head; got != before+2 {
			t.Errorf("the head was %d and is %d", before, got)
		}
	}
	for _, err := range followers.errorsSeen() {
		t.Error(err)
	}
	if v := l.judge(followers.held()...); !v.clean() || v.delivered == 0 {
		t.Errorf("%+v", v)
	}
}
