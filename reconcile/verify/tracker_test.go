package verify_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bsv-blockchain/go-sdk/chainhash"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// service is a chain tracker over one branch.
type service struct {
	mu     sync.Mutex
	roots  map[uint32][32]byte
	height uint32
	down   error
	asked  int
}

func (s *service) IsValidRootForHeight(_ context.Context, root *chainhash.Hash, height uint32) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.roots[height] == display(*root), s.down
}

func (s *service) CurrentHeight(context.Context) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.height, s.down
}

// grow changes the height.
func (s *service) grow(by uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.height += by
}

func TestR9_ChainTracker(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	b := c.Mine(a)
	s := &service{roots: map[uint32][32]byte{b.Height: b.Root, 0: c.Genesis.Root}, height: b.Height}
	tracker := verify.FromChainTracker(s, verify.TrackerOptions{Depth: 10})
	v, err := tracker.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.Context() != (reconcile.ChainView{TipHeight: uint64(b.Height)}) || v.ID() != "height:102" {
		t.Errorf("%s: %+v", v.ID(), v.Context())
	}
	data := c.BEEF(a, verifytest.Evidence{})
	p := verify.Plan(data, a.ID, v, reconcile.Budget{})
	if p.Fault.Status != "" || p.Claims[0].Holds || s.asked != 0 {
		t.Errorf("before it is asked: %+v, asked %d times", p, s.asked)
	}
	for range 2 {
		if err := tracker.Prefetch(t.Context(), v, p.Claims); err != nil {
			t.Fatal(err)
		}
	}
	if s.asked != 1 {
		t.Errorf("asked %d times", s.asked)
	}
	if p = verify.Plan(data, a.ID, v, reconcile.Budget{}); p.Fault.Status != "" || !p.Claims[0].Holds {
		t.Errorf("%+v", p)
	}
	// A root that the tracker does not know is forged only where nothing can be undone any more.
	wrong := []reconcile.Claim{{Height: b.Height, Root: [32]byte{1}}, {Height: b.Height - 10, Root: [32]byte{1}}, {Height: b.Height + 1, Root: b.Root}}
	if err := tracker.Prefetch(t.Context(), v, wrong); err != nil {
		t.Fatal(err)
	}
	for i, known := range []bool{true, false, true} {
		if c := verify.Ask(v, wrong)[i]; c.Holds || c.Known != known {
			t.Errorf("claim %d: %+v", i, c)
		}
	}
	if again, err := tracker.Current(t.Context()); err != nil || again != v {
		t.Errorf("the same height is another view: %v", err)
	}
	select {
	case <-tracker.Changed():
		t.Error("a change without one")
	default:
	}
	s.grow(3)
	next, err := tracker.Current(t.Context())
	if err != nil || next.ID() != "height:105" {
		t.Fatalf("%v, %v", next, err)
	}
	<-tracker.Changed()
	if c := verify.Ask(next, p.Claims)[0]; c.Holds {
		t.Error("an answer from another height")
	}
	for _, row := range []struct {
		old, next string
		want      uint32
	}{{v.ID(), next.ID(), 92}, {next.ID(), v.ID(), 92}, {"height:4", next.ID(), 0}, {"elsewhere", next.ID(), 0}} {
		if got, err := tracker.Fork(t.Context(), row.old, row.next); err != nil || got != row.want {
			t.Errorf("fork of %s and %s: %d, %v", row.old, row.next, got, err)
		}
	}
	s.down = errors.New("no route")
	if _, err := tracker.Current(t.Context()); !errors.Is(err, s.down) {
		t.Errorf("current of a silent tracker: %v", err)
	}
	if err := tracker.Prefetch(t.Context(), next, p.Claims); !errors.Is(err, s.down) {
		t.Errorf("prefetch of a silent tracker: %v", err)
	}
	if c := verify.Ask(next, p.Claims)[0]; c.Holds || !c.Known {
		t.Errorf("a silent tracker decides: %+v", c)
	}
}

func TestR9_WatchersLook(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	synctest.Test(t, func(t *testing.T) {
		s := &service{height: 7}
		tracker := verify.FromChainTracker(s, verify.TrackerOptions{Log: log})
		if _, err := tracker.Current(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- tracker.Watch(ctx) }()
		synctest.Wait()
		s.grow(1)
		<-tracker.Changed()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := verifytest.NewChain(t)
	f := newFile(t, c.Tip().Bytes())
	h, err := verify.OpenHeaderFile(f.path, verify.FileOptions{Log: log, Every: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	select {
	case <-h.Changed():
	default:
	}
	b := c.Mine()
	f.write(b.Bytes())
	<-h.Changed()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if hash, _ := h.Tip(); hash != b.Hash {
		t.Error("watching finds another tip")
	}
}
