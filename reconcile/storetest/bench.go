package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
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

// Opener opens an empty store for a benchmark, and names the kind.
type Opener struct {
	Name string
	Open func(b *testing.B) reconcile.Backend
}

// BenchmarkChange measures what one live change costs in stores that retain more
// and more outputs: of each size one is made in memory and copied to every kind of
// store. The stores take turns, ten changes each, and medians of their turns are
// compared, so that what else the machine does meets all of them. The first size is
// what the others are compared with. A million outputs take about 8 GB of memory
// while they are copied.
func BenchmarkChange(b *testing.B, sizes []uint64, kinds ...Opener) {
	type store struct {
		load  *Load
		turns []time.Duration
	}
	stores := make([][]store, len(kinds))
	for _, size := range sizes {
		began := time.Now()
		said := func(what string) {
			if size >= 100_000 { // else nobody has to wait
				fmt.Fprintf(os.Stderr, "%d outputs are %s, %v\n", size, what, time.Since(began).Round(time.Second))
			}
		}
		m := memstore.New()
		filled, err := NewLoad(b.Context(), m, Partition)
		if err != nil {
			b.Fatal(err)
		}
		filled.Progress = func(listed uint64) {
			if listed%(256*500) == 0 {
				fmt.Fprintf(os.Stderr, "%d of %d outputs, %v\n", listed, size, time.Since(began).Round(time.Second))
			}
		}
		if err := filled.Snapshot(b.Context(), size); err != nil {
			b.Fatal(err)
		}
		filled.Progress = nil
		said("in memory")
		for i, kind := range kinds {
			copied, err := filled.CopyTo(b.Context(), kind.Open(b), Partition)
			if err != nil {
				b.Fatal(err)
			}
			stores[i] = append(stores[i], store{load: copied})
			said("in " + kind.Name)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
	// The stores are measured without what was in memory, when what the copies left to be written is written, and with
	// all of them in the system's memory: what a change touches is spread over them, and what the disk takes to read what
	// nobody had read for long is not the change's.
	runtime.GC()
	settle()
	for k, kind := range slices.Backward(stores) { // whose turn comes first is read last
		for i := range kind {
			began := time.Now()
			entries, err := kind[i].load.read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if sizes[i] >= 100_000 {
				fmt.Fprintf(os.Stderr, "%d entries of %s are read, %v\n", entries, kinds[k].Name, time.Since(began).Round(time.Second))
			}
		}
	}
	for b.Loop() {
		for _, kind := range stores {
			for i := range kind {
				began := time.Now()
				for range 10 {
					if err := kind[i].load.Replace(b.Context(), 1); err != nil {
						b.Fatal(err)
					}
				}
				kind[i].turns = append(kind[i].turns, time.Since(began)/10)
			}
		}
	}
	for k, kind := range stores {
		var least time.Duration
		for i, size := range sizes {
			slices.Sort(kind[i].turns)
			median := kind[i].turns[len(kind[i].turns)/2]
			b.ReportMetric(float64(median.Microseconds()), fmt.Sprintf("%s-us/change-%d", kinds[k].Name, size))
			if i == 0 {
				least = median
			} else {
				b.ReportMetric(float64(median)/float64(least), fmt.Sprintf("%s-x-at-%d", kinds[k].Name, size))
			}
		}
	}
}
