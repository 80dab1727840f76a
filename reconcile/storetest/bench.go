package storetest

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
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
