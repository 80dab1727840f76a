package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// table is a Reader of a map.
type table map[string][]byte

func (m table) Tx() any { return nil }

func (m table) Get(_ context.Context, keys ...[]byte) ([][]byte, error) {
	list := make([][]byte, len(keys))
	for i, k := range keys {
		list[i] = m[string(k)]
	}
	return list, nil
}

func (m table) Scan(_ context.Context, from, to []byte, limit int) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		n := 0
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if k < string(from) || len(to) > 0 && k >= string(to) {
				continue
			}
			if n++; !yield(Entry{[]byte(k), m[k]}, nil) || n == limit {
				return
			}
		}
	}
}

// TestK2_ACommitSeesItsOwnWrites compares Get, Scan and the writes of a commit with
// a plain map, under many writes, deletions and looks.
func TestK2_ACommitSeesItsOwnWrites(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 9))
		spaces := []byte{'e', 'u', 'x'}
		any := func() []byte {
			k := []byte{spaces[random.IntN(len(spaces))]}
			for range random.IntN(3) {
				k = append(k, []byte{0, 1, 0xff}[random.IntN(3)])
			}
			return k
		}
		base := table{}
		for range random.IntN(20) {
			base[string(any())] = []byte{byte(random.IntN(3))}
		}
		model := maps.Clone(base)
		tx, err := newTxn(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			k := any()
			switch random.IntN(6) {
			case 0, 1:
				v := []byte{byte(random.IntN(3))}[:random.IntN(2)]
				tx.put(k, v)
				model[string(k)] = v
			case 2:
				tx.del(k)
				delete(model, string(k))
			case 3:
				if got, want := tx.get(k), model[string(k)]; (got == nil) != (want == nil) || !bytes.Equal(got, want) {
					t.Fatalf("seed %d: %x is %x, not %x", seed, k, got, want)
				}
			case 4:
				tx.fetch(any(), any(), any())
			case 5:
				limit := random.IntN(5)
				from, to := k, after(k)
				if random.IntN(2) == 0 {
					to = after(k[:1])
				}
				var got, want []string
				for e := range tx.scan(from, to, limit) {
					got = append(got, fmt.Sprintf("%x=%x", e.Key, e.Value))
				}
				for e := range table(model).Scan(t.Context(), from, to, limit) {
					want = append(want, fmt.Sprintf("%x=%x", e.Key, e.Value))
				}
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: [%x, %x) limit %d: %v, not %v", seed, from, to, limit, got, want)
				}
			}
		}
		w := tx.writes()
		for _, e := range w.Put {
			base[string(e.Key)] = e.Value
		}
		for _, k := range w.Delete {
			delete(base, string(k))
		}
		delete(base, "m")
		if !maps.EqualFunc(base, model, bytes.Equal) {
			t.Fatalf("seed %d: written %v, not %v", seed, base, model)
		}
	}
}
