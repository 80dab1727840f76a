package verify

import (
	"context"

	"github.com/overlayd/overlayd/reconcile"
)

// View is one view of the selected chain. It does not change, except that Known
// may learn of more branches.
type View interface {
	// ID names the view, at most 256 bytes. Two views with one id say the same of
	// their own chain.
	ID() string
	// Context is what selection needs of it.
	Context() reconcile.ChainView
	// Root is the Merkle root (display order) of the block of this view's own chain
	// at height; false above the tip, and where the view has no block.
	Root(height uint32) (root [32]byte, ok bool)
	// Known says whether some branch has a block with this root at this height. It
	// is also true where the view cannot tell: what it calls unknown is taken for
	// forged.
	Known(height uint32, root [32]byte) bool
}

// ChainView chooses the views. It is safe for concurrent use.
type ChainView interface {
	// Current is the view to use now.
	Current(ctx context.Context) (View, error)
	// Fork is the height of the last block that two views have in common, by their
	// ids; 0 when that is not known.
	Fork(ctx context.Context, old, new string) (height uint32, err error)
	// Changed is a hint that Current may give another view: a buffer of one, never
	// closed. One receiver.
	Changed() <-chan struct{}
	// Prefetch asks what the view must know about claims before it is asked: for
	// adapters that ask elsewhere. It is never called inside a commit.
	Prefetch(ctx context.Context, v View, claims []reconcile.Claim) error
}

// Watcher is a ChainView that looks for changes while Watch runs. Watch returns
// when ctx ends, with nil.
type Watcher interface {
	Watch(ctx context.Context) error
}

// maturity is how many blocks must stand on that of a coinbase before it counts.
const maturity = 100

// Ask answers claims by a view: whether its own chain has the root at the height
// (and a coinbase is mature), and whether any branch has.
func Ask(v View, claims []reconcile.Claim) []reconcile.Claim {
	tip := v.Context().TipHeight
	out := make([]reconcile.Claim, len(claims))
	for i, c := range claims {
		root, ok := v.Root(c.Height)
		same := ok && root == c.Root
		c.Holds = same && (!c.Coinbase || uint64(c.Height)+maturity <= tip)
		c.Known = same || v.Known(c.Height, c.Root)
		out[i] = c
	}
	return out
}

// Override is a view with another height and median time: for tests that have a
// height and no headers for it.
type Override struct {
	View
	Name        string // its id; empty: that of View
	Height, MTP uint64
}

// ID names the view.
func (o Override) ID() string {
	if o.Name != "" {
		return o.Name
	}
	return o.View.ID()
}

// Context has the height and the time of o.
func (o Override) Context() reconcile.ChainView {
	c := o.View.Context()
	c.TipHeight, c.MedianTimePast = o.Height, o.MTP
	return c
}
