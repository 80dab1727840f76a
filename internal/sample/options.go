package sample

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
)

// Options say what [Generate] makes. The zero value of every field but Groups
// is a sensible choice. Equal options give equal bytes; any difference gives
// other keys, so two streams never claim the same key for different bodies.
type Options struct {
	// Seed tells streams apart: other seeds have other transactions. Two
	// streams of one seed share transactions, whatever else differs.
	Seed uint64

	// Groups is how many lines to write, at least 0.
	Groups int

	// Now is the time in whole Unix seconds that expiries are counted from.
	// Zero means that no row expires, and keeps the stream the same whenever it
	// is made.
	Now uint64

	// ExpireShare is the share of new listings that expire, at most 1. Zero
	// means 0.01, a negative value none. Without Now it has no effect.
	ExpireShare float64

	// ExpireAfter is the least time in seconds from Now to an expiry: until
	// then the stream has to be in the feed, which refuses what is over. Zero
	// means 3600.
	ExpireAfter uint64

	// ExpireWithin is over how many seconds after ExpireAfter the expiries are
	// spread. Zero means 86400.
	ExpireWithin uint64

	// Artists is how many labels artist-000, artist-001, ... there are. The
	// first are much more frequent than the last. Zero means 256.
	Artists int

	// MaxLive bounds the listed rows and with them the memory (about 250 bytes
	// a row): at the bound, rows are spent where they would be added. Rows with
	// an expiry are not counted. Zero means no bound.
	MaxLive int

	// PutsOnly makes every group one new row: n groups are n rows.
	PutsOnly bool

	// OnBlock, when set, is given every block header in order, that of height 0
	// first, before any line whose evidence leads to it. It is not part of what
	// makes options equal.
	OnBlock func(height uint32, header Header)
}

// withDefaults gives the options in force, or says which cannot be.
func (o Options) withDefaults() (Options, error) {
	var faults []error
	if o.Groups < 0 {
		faults = append(faults, fmt.Errorf("option Groups is %d; it must not be negative", o.Groups))
	}
	if math.IsNaN(o.ExpireShare) || o.ExpireShare > 1 {
		faults = append(faults, fmt.Errorf("option ExpireShare is %v; the most is 1", o.ExpireShare))
	}
	if o.Artists < 0 || o.MaxLive < 0 {
		faults = append(faults, errors.New("options Artists and MaxLive must not be negative"))
	}
	if o.ExpireShare == 0 {
		o.ExpireShare = 0.01
	}
	if o.ExpireShare < 0 || o.Now == 0 {
		o.ExpireShare = 0
	}
	if o.ExpireAfter == 0 {
		o.ExpireAfter = 3600
	}
	if o.ExpireWithin == 0 {
		o.ExpireWithin = 86400
	}
	if o.Artists == 0 {
		o.Artists = 256
	}
	if o.ExpireAfter > math.MaxInt64/2 || o.ExpireWithin > math.MaxInt64/2 || o.Now > math.MaxUint64-o.ExpireAfter-o.ExpireWithin {
		faults = append(faults, errors.New("options Now, ExpireAfter and ExpireWithin lead past the end of time"))
	}
	if err := errors.Join(faults...); err != nil {
		return o, fmt.Errorf("sample: %w", err)
	}
	return o, nil
}

// name tells streams apart in their keys.
func (o Options) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "1 %d %d %d %x %d %d %d %d %t", o.Seed, o.Groups, o.Now,
		math.Float64bits(o.ExpireShare), o.ExpireAfter, o.ExpireWithin, o.Artists, o.MaxLive, o.PutsOnly))
	return fmt.Sprintf("%x", sum[:4])
}

// Headers gives the block headers of the stream that o makes, by making it
// once more and throwing the lines away.
func (o Options) Headers(ctx context.Context) (*Headers, error) {
	var h Headers
	o.OnBlock = func(_ uint32, header Header) { h.Add(header) }
	if err := Generate(ctx, io.Discard, o); err != nil {
		return nil, err
	}
	return &h, nil
}
