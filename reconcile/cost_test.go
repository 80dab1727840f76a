package reconcile_test

import (
	"context"
	"iter"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// work is what a store is asked to do.
type work struct{ gets, keys, scans, rows, writes int }

type counted struct {
	reconcile.Backend

	work work
}

type countedReader struct {
	reconcile.Reader

	work *work
}

func (r countedReader) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	r.work.gets++
	r.work.keys += len(keys)
	return r.Reader.Get(ctx, keys...)
}

func (r countedReader) Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[reconcile.Entry, error] {
	r.work.scans++
	return func(yield func(reconcile.Entry, error) bool) {
		for e, err := range r.Reader.Scan(ctx, from, to, limit) {
			r.work.rows++
			if !yield(e, err) {
				return
			}
		}
	}
}

func (c *counted) View(ctx context.Context, f func(reconcile.Reader) error) error {
	return c.Backend.View(ctx, func(r reconcile.Reader) error { return f(countedReader{r, &c.work}) })
}

func (c *counted) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	return c.Backend.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
		w, err := f(countedReader{r, &c.work})
		c.work.writes += len(w.Put) + len(w.Delete)
		return w, err
	})
}

// TestK10_AChangeCostsTheSameInALargerStore: the very same reads and writes.
func TestK10_AChangeCostsTheSameInALargerStore(t *testing.T) {
	t.Parallel()
	var want work
	for _, retained := range []uint64{100, 1_000, 5_000} {
		b := &counted{Backend: memstore.New()}
		l, err := storetest.NewLoad(t.Context(), b, storetest.Partition)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Snapshot(t.Context(), retained); err != nil {
			t.Fatal(err)
		}
		b.work = work{}
		for range 20 {
			if err := l.Replace(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if want == (work{}) {
			want = b.work
		}
		if b.work != want {
			t.Errorf("with %d outputs retained: %+v, want %+v", retained, b.work, want)
		}
	}
}
