package live_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// partition is whose knowledge the tests keep.
var partition = reconcile.Partition{Application: "test", Account: "main", Access: "local"}

// openOver makes the store over a backend; closing it is the test's business when
// the backend is to be opened again.
func openOver(t testing.TB, b reconcile.Backend, budget reconcile.Budget) reconcile.Store {
	t.Helper()
	s, err := reconcile.Open(context.Background(), b, reconcile.Options{Partition: partition, NonFinal: true, Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wallet is one run over one store in a test.
type wallet struct {
	t        testing.TB
	store    reconcile.Store
	chain    *verifytest.Chain
	config   live.Config
	patience time.Duration // how long it waits for what must happen

	mu     sync.Mutex
	events []live.Event  // guarded by mu
	grown  chan struct{} // guarded by mu; closed by the next event
}

func newWallet(t testing.TB, c *verifytest.Chain, providers ...*provider) *wallet {
	t.Helper()
	return walletOver(t, openOver(t, memstore.New(), reconcile.Budget{}), c, providers...)
}

func walletOver(t testing.TB, s reconcile.Store, c *verifytest.Chain, providers ...*provider) *wallet {
	w := &wallet{t: t, store: s, chain: c, patience: testkit.Patience, grown: make(chan struct{})}
	w.config = live.Config{Store: s, Chain: c.Headers, Workers: 2, On: w.on}
	for _, p := range providers {
		w.config.Sources = append(w.config.Sources, live.Source{BaseURL: p.base, Service: service, Transport: p, OnReset: live.Reopen, Label: p.base})
	}
	return w
}

func (w *wallet) on(_ context.Context, e live.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	close(w.grown)
	w.grown = make(chan struct{})
	return nil
}

func (w *wallet) all() []live.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// start runs in the background; stop ends the run and gives its error.
func (w *wallet) start() (stop func() error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- live.Run(ctx, w.config) }()
	stopped := sync.OnceValue(func() error {
		cancel()
		err := <-done
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	w.t.Cleanup(func() {
		if err := stopped(); err != nil {
			w.t.Errorf("the run: %v", err)
		}
	})
	return stopped
}

// untilLive runs until everything is read and accepted.
func (w *wallet) untilLive() error {
	c := w.config
	c.UntilLive = true
	return live.Run(w.t.Context(), c)
}

// long is the patience of a test that runs on the clock of its bubble.
const long = 10 * time.Minute

// await returns when holds says yes, which is asked again after every event.
func (w *wallet) await(what string, holds func() bool) {
	w.t.Helper()
	end := time.NewTimer(w.patience)
	defer end.Stop()
	for {
		w.mu.Lock()
		grown := w.grown
		w.mu.Unlock()
		if holds() {
			return
		}
		again := time.NewTimer(w.patience / 3000)
		select {
		case <-grown:
		case <-again.C:
		case <-end.C:
			w.t.Fatalf("not within %v: %s\nevents: %s", w.patience, what, w.describe())
		}
		again.Stop()
	}
}

func (w *wallet) describe() (s string) {
	for _, e := range w.all() {
		s += fmt.Sprintf("\n  %T %+v", e, e)
	}
	return s
}

// read calls f with a snapshot.
func (w *wallet) read(f func(reconcile.Snapshot)) {
	w.t.Helper()
	snap, err := w.store.Read(context.Background(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	f(snap)
	if err := snap.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// output is what is known of an outpoint.
func (w *wallet) output(o spend.Outpoint) (out reconcile.Output) {
	w.t.Helper()
	w.read(func(s reconcile.Snapshot) {
		var err error
		if out, err = s.Output(o); err != nil {
			w.t.Fatal(err)
		}
	})
	return out
}

// present is the present memberships of one source, or of all with 0.
func (w *wallet) present(id reconcile.SourceID) (out []string) {
	w.t.Helper()
	for _, m := range w.memberships() {
		if m.Present && (id == 0 || m.Source == id) {
			out = append(out, m.Outpoint.String())
		}
	}
	slices.Sort(out)
	return out
}

func (w *wallet) memberships() (out []reconcile.Membership) {
	w.t.Helper()
	w.read(func(s reconcile.Snapshot) {
		for m, err := range s.Memberships() {
			if err != nil {
				w.t.Fatal(err)
			}
			out = append(out, m)
		}
	})
	return out
}

// source is how a provider's source stands.
func (w *wallet) source(p *provider) (st reconcile.SourceStatus) {
	w.t.Helper()
	w.read(func(s reconcile.Snapshot) {
		list, err := s.Sources()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, one := range list {
			if one.Key.Base == p.base {
				st = one
			}
		}
	})
	return st
}

// audit finds nothing in a sound store.
func (w *wallet) audit() {
	w.t.Helper()
	list, err := w.store.Audit(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range list {
		w.t.Errorf("audit: %+v", d)
	}
}

// events of one type.
func of[E live.Event](w *wallet) (out []E) {
	for _, e := range w.all() {
		if one, ok := e.(E); ok {
			out = append(out, one)
		}
	}
	return out
}

// coins makes n mined transactions with one output each, in one block.
func coins(c *verifytest.Chain, first, n int) []*verifytest.Tx {
	var out []*verifytest.Tx
	for i := range n {
		out = append(out, verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(uint32(first + i))}}))
	}
	c.Mine(out...)
	return out
}

// stallAt is a hook that keeps the n-th request to an endpoint, and those after it,
// waiting until released.
func stallAt(endpoint string, n int, released <-chan struct{}) func(context.Context, string, int, []byte) {
	return func(ctx context.Context, e string, at int, _ []byte) {
		if e == endpoint && at >= n {
			select {
			case <-released:
			case <-ctx.Done():
			}
		}
	}
}
