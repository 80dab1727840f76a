package pgstore_test

import (
	"context"
	"iter"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// counting counts the statements that read.
type counting struct {
	reconcile.Backend

	trips int
}

type countingReader struct {
	reconcile.RangeReader

	trips *int
}

func (r countingReader) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	*r.trips++
	return r.RangeReader.Get(ctx, keys...)
}

func (r countingReader) Ranges(ctx context.Context, prefixes [][]byte, limit int) ([][]reconcile.Entry, error) {
	*r.trips++
	return r.RangeReader.Ranges(ctx, prefixes, limit)
}

func (r countingReader) Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[reconcile.Entry, error] {
	*r.trips++
	return r.RangeReader.Scan(ctx, from, to, limit)
}

func (c *counting) View(ctx context.Context, f func(reconcile.Reader) error) error {
	return c.Backend.View(ctx, func(r reconcile.Reader) error { return f(countingReader{r.(reconcile.RangeReader), &c.trips}) })
}

func (c *counting) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	return c.Backend.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
		return f(countingReader{r.(reconcile.RangeReader), &c.trips})
	})
}

// TestP8_APageIsAFewRoundTrips: what is read for a page does not grow with it.
func TestP8_APageIsAFewRoundTrips(t *testing.T) {
	t.Parallel()
	b := &counting{Backend: open(t, pgtest.NewEmpty(t).Pool)}
	l, err := storetest.NewLoad(t.Context(), b, partition)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Snapshot(t.Context(), 128); err != nil {
		t.Fatal(err)
	}
	for _, groups := range []int{1, 32} { // received, verified and accepted
		b.trips = 0
		if err := l.Replace(t.Context(), groups); err != nil {
			t.Fatal(err)
		}
		if b.trips > 45 {
			t.Errorf("%d groups are %d statements", groups, b.trips)
		}
	}
}
