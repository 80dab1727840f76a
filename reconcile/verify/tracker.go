package verify

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bsv-blockchain/go-sdk/chainhash"
	"github.com/bsv-blockchain/go-sdk/transaction/chaintracker"

	"github.com/overlayd/overlayd/reconcile"
)

// TrackerOptions configure [FromChainTracker].
type TrackerOptions struct {
	// Depth is how many blocks a reorganisation may undo: placements so far below
	// the tip are asked again with every new height, and a root that the tracker
	// does not know counts as forged only when it lies deeper. Zero means 144.
	Depth uint32
	// Every is how often Watch asks for the height. Zero means 10 s.
	Every time.Duration
	// Log takes the trouble of Watch. Zero: slog.Default.
	Log *slog.Logger
}

// Tracker is a chain tracker of go-sdk as a [ChainView]. A tracker says whether a
// root stands at a height and how high the chain is, nothing else: its views have
// no tip hash and no median time, so what is locked by time stays non-final, and a
// reorganisation is noticed when the height changes. Roots are asked in Prefetch
// only; a claim that was not prefetched does not hold, and is not forged either.
type Tracker struct {
	t       chaintracker.ChainTracker
	o       TrackerOptions
	changed chan struct{}

	mu      sync.Mutex
	current *trackerView
}

// FromChainTracker makes a ChainView of a chain tracker.
func FromChainTracker(t chaintracker.ChainTracker, o TrackerOptions) *Tracker {
	if o.Depth == 0 {
		o.Depth = 144
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Tracker{t: t, o: o, changed: make(chan struct{}, 1)}
}

// Current asks for the height.
func (t *Tracker) Current(ctx context.Context) (View, error) {
	height, err := t.t.CurrentHeight(ctx)
	if err != nil {
		return nil, fmt.Errorf("verify: ask the chain tracker for its height: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil || t.current.height != height {
		first := t.current == nil
		t.current = &trackerView{depth: t.o.Depth, height: height, asked: map[place]bool{}, roots: map[uint32][32]byte{}}
		if !first {
			select {
			case t.changed <- struct{}{}:
			default:
			}
		}
	}
	return t.current, nil
}

// Fork is so far below the lower of the two as a reorganisation may reach.
func (t *Tracker) Fork(_ context.Context, old, new string) (uint32, error) {
	var a, b uint32
	if _, err := fmt.Sscanf(old, heightID, &a); err != nil {
		return 0, nil //nolint:nilerr // not a view of ours: nothing is common
	}
	if _, err := fmt.Sscanf(new, heightID, &b); err != nil {
		return 0, nil //nolint:nilerr // as above
	}
	low := min(a, b)
	return low - min(low, t.o.Depth), nil
}

// Changed is a hint that the height is another one.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Prefetch asks about each claim that this view has no answer for yet.
func (t *Tracker) Prefetch(ctx context.Context, v View, claims []reconcile.Claim) error {
	own, ok := v.(*trackerView)
	if !ok {
		return nil
	}
	for _, c := range claims {
		p := place{c.Height, c.Root}
		if c.Height > own.height || own.has(p) {
			continue
		}
		root := chainhash.Hash(flipped(c.Root))
		valid, err := t.t.IsValidRootForHeight(ctx, &root, c.Height)
		if err != nil {
			return fmt.Errorf("verify: ask the chain tracker for the root at height %d: %w", c.Height, err)
		}
		own.learn(p, valid)
	}
	return nil
}

// Watch asks for the height again and again until ctx ends.
func (t *Tracker) Watch(ctx context.Context) error {
	tick := time.NewTicker(t.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := t.Current(ctx); err != nil && ctx.Err() == nil {
				t.o.Log.Warn("no answer from the chain tracker: the last view stays in force", "error", err)
			}
		}
	}
}

const heightID = "height:%d"

type place struct {
	height uint32
	root   [32]byte
}

// trackerView is one height, with what was asked at it.
type trackerView struct {
	height, depth uint32

	mu    sync.RWMutex
	asked map[place]bool
	roots map[uint32][32]byte
}

func (v *trackerView) has(p place) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := v.asked[p]
	return ok
}

func (v *trackerView) learn(p place, valid bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asked[p] = valid; valid {
		v.roots[p.height] = p.root
	}
}

func (v *trackerView) ID() string { return fmt.Sprintf(heightID, v.height) }

func (v *trackerView) Context() reconcile.ChainView {
	return reconcile.ChainView{TipHeight: uint64(v.height)}
}

func (v *trackerView) Root(height uint32) (root [32]byte, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	root, ok = v.roots[height]
	return root, ok
}

func (v *trackerView) Known(height uint32, root [32]byte) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	valid, asked := v.asked[place{height, root}]
	return !asked || valid || uint64(height)+uint64(v.depth) > uint64(v.height)
}

var (
	_ ChainView = (*Tracker)(nil)
	_ Watcher   = (*Tracker)(nil)
)
