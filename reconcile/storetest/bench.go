package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
)

// BenchmarkUpdate commits batches of 256 groups as the engine does, at the level of
// keys: for each group 6 look-ups of ids and transactions, 13 small rows at the end
// of their spaces or at the place of a hash, one transaction and one BEEF.
func BenchmarkUpdate(b *testing.B, backend reconcile.Backend) {
	const groups = 256
	ctx := b.Context()
	n := uint64(0)
	bytes := 0
	for b.Loop() {
		err := backend.Update(ctx, func(r reconcile.Reader) (w reconcile.Writes, _ error) {
			if _, err := r.Get(ctx, []byte("m")); err != nil {
				return w, err
			}
			var ids [][]byte
			for g := range uint64(groups) {
				for i := range uint64(6) {
					ids = append(ids, hashed('i', n+g, i))
				}
			}
			if _, err := r.Get(ctx, ids...); err != nil {
				return w, err
			}
			put := func(key []byte, size int) {
				value := make([]byte, size)
				copy(value, key)
				bytes += len(key) + size
				w.Put = append(w.Put, reconcile.Entry{Key: key, Value: value})
			}
			put([]byte("m"), 200)
			for g := range uint64(groups) {
				for _, space := range []byte("Ghoatxp") {
					put(binary.BigEndian.AppendUint64([]byte{space}, n+g), 90)
				}
				for i := range uint64(6) { // ids, edges, memberships
					put(hashed('i', n+g, i), 40)
				}
				put(binary.BigEndian.AppendUint64([]byte{'r'}, n+g), 300)
				put(binary.BigEndian.AppendUint64([]byte{'v'}, n+g), 900)
			}
			n += groups
			return w, nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "groups/s")
	b.ReportMetric(float64(bytes)/float64(n), "B/group")
}

func hashed(space byte, n, i uint64) []byte {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n), i))
	return append([]byte{space}, sum[:24]...)
}

// BenchmarkObservations measures observations through receive, record and accept,
// with scripts left out: pages of a snapshot, pages of 256 live groups of three
// observations, and live groups one by one. Open makes an empty store.
func BenchmarkObservations(b *testing.B, open func(b *testing.B) *Load) {
	for _, test := range []struct {
		name   string
		each   int // observations of one round
		before uint64
		round  func(ctx context.Context, l *Load) error
	}{
		{"snapshot-page", 256, 0, func(ctx context.Context, l *Load) error { return l.page(ctx, 256, false) }},
		{"live-page", 3 * 256, 20_000, func(ctx context.Context, l *Load) error { return l.Replace(ctx, 256) }},
		{"live-group", 3, 2_000, func(ctx context.Context, l *Load) error { return l.Replace(ctx, 1) }},
	} {
		b.Run(test.name, func(b *testing.B) {
			l := open(b)
			if test.before > 0 {
				if err := l.Snapshot(b.Context(), test.before); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if err := test.round(b.Context(), l); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*test.each)/b.Elapsed().Seconds(), "observations/s")
		})
	}
}

// BenchmarkChange measures what one live change costs in stores that retain more
// and more outputs, which are made in memory and then copied. The stores take
// turns, ten changes each, and medians of their turns are compared, so that what
// else the machine does meets all of them. The first size is what the others are
// compared with.
func BenchmarkChange(b *testing.B, sizes []uint64, open func(b *testing.B) reconcile.Backend) {
	loads, turns := make([]*Load, len(sizes)), make([][]time.Duration, len(sizes))
	for i, size := range sizes {
		began := time.Now()
		m := memstore.New()
		filled, err := NewLoad(b.Context(), m, Partition)
		if err == nil {
			err = filled.Snapshot(b.Context(), size)
		}
		if err == nil {
			loads[i], err = filled.CopyTo(b.Context(), open(b), Partition)
		}
		if err = errors.Join(err, m.Close()); err != nil {
			b.Fatal(err)
		}
		b.Logf("%d outputs retained after %v", size, time.Since(began).Round(time.Second))
	}
	for b.Loop() {
		for i, l := range loads {
			began := time.Now()
			for range 10 {
				if err := l.Replace(b.Context(), 1); err != nil {
					b.Fatal(err)
				}
			}
			turns[i] = append(turns[i], time.Since(began)/10)
		}
	}
	for i, size := range sizes {
		slices.Sort(turns[i])
		median := turns[i][len(turns[i])/2]
		b.ReportMetric(float64(median.Microseconds()), fmt.Sprintf("us/change-%d", size))
		if i > 0 {
			b.ReportMetric(float64(median)/float64(turns[0][len(turns[0])/2]), fmt.Sprintf("x-at-%d", size))
		}
	}
}
