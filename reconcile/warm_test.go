package reconcile

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// fakeReader reads a map, many ranges at once, and counts.
type fakeReader struct {
	rows         map[string]string
	scans, calls int
}

func (r *fakeReader) Tx() any { return nil }

func (r *fakeReader) Get(_ context.Context, keys ...[]byte) ([][]byte, error) {
	values := make([][]byte, len(keys))
	for i, k := range keys {
		if v, ok := r.rows[string(k)]; ok {
			values[i] = []byte(v)
		}
	}
	return values, nil
}

func (r *fakeReader) Scan(_ context.Context, from, to []byte, limit int) iter.Seq2[Entry, error] {
	r.scans++
	return func(yield func(Entry, error) bool) {
		n := 0
		for _, k := range slices.Sorted(maps.Keys(r.rows)) {
			if k < string(from) || to != nil && k >= string(to) {
				continue
			}
			if n++; limit > 0 && n > limit || !yield(Entry{[]byte(k), []byte(r.rows[k])}, nil) {
				return
			}
		}
	}
}

func (r *fakeReader) Ranges(ctx context.Context, prefixes [][]byte, limit int) ([][]Entry, error) {
	r.calls++
	lists := make([][]Entry, len(prefixes))
	for i, p := range prefixes {
		for e := range r.Scan(ctx, p, after(p), limit) {
			lists[i] = append(lists[i], e)
		}
	}
	return lists, nil
}

// TestK9_WhatIsRememberedIsWhatIsThere: ranges that were read ahead, whole or not,
// give the same as a look at the store, with this commit's own writes in them.
func TestK9_WhatIsRememberedIsWhatIsThere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 4))
		// Keys as of outputs: a transaction of 32 bytes and an index. One of them has
		// more entries than are remembered.
		place := func() []byte {
			k := make([]byte, 33, 40)
			k[0], k[1] = 'e', byte(random.IntN(4))
			return append(k, byte(random.IntN(3)), byte(random.IntN(1+80/(1+int(k[1])))))
		}
		reader := &fakeReader{rows: map[string]string{}}
		for range 400 {
			reader.rows[string(place())] = fmt.Sprint(random.Uint32())
		}
		model := maps.Clone(reader.rows)
		x := &txn{ctx: t.Context(), r: reader, read: map[string][]byte{}, typed: map[string]*typedRow{}}
		for step := range 300 {
			k := place()
			switch random.IntN(5) {
			case 0:
				x.put(k, fmt.Append(nil, step))
				model[string(k)] = fmt.Sprint(step)
			case 1:
				x.del(k)
				delete(model, string(k))
			case 2:
				a := &ahead{txn: x, prefixes: [][]byte{k[:33], k[:34]}}
				a.read()
			default:
				prefix, limit := k[:33+random.IntN(3)], random.IntN(6)
				var want, got []string
				for _, m := range slices.Sorted(maps.Keys(model)) {
					if len(m) >= len(prefix) && m[:len(prefix)] == string(prefix) && (limit == 0 || len(want) < limit) {
						want = append(want, m+model[m])
					}
				}
				for e := range x.prefix(prefix, limit) {
					got = append(got, string(e.Key)+string(e.Value))
				}
				if x.err != nil || !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d: %d entries, want %d; %v", seed, step, len(got), len(want), x.err)
				}
			}
		}
	}
}

// TestK9_WhatWasReadAheadIsNotAskedForAgain, unless it is too much to remember.
func TestK9_WhatWasReadAheadIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	reader := &fakeReader{rows: map[string]string{}}
	small, large := append([]byte("e"), make([]byte, 32)...), append([]byte("f"), make([]byte, 32)...)
	for i := range rangeMost - 1 {
		reader.rows[string(append(slices.Clone(small), byte(i)))] = ""
	}
	for i := range rangeMost {
		reader.rows[string(append(slices.Clone(large), byte(i)))] = ""
	}
	x := &txn{ctx: t.Context(), r: reader, read: map[string][]byte{}, typed: map[string]*typedRow{}}
	a := &ahead{txn: x, prefixes: [][]byte{small, small, large}}
	a.read()
	reader.scans = 0
	for _, p := range [][]byte{small, append(slices.Clone(small), 5), large} {
		for range x.prefix(p, 0) {
		}
	}
	if reader.calls != 1 || reader.scans != 1 {
		t.Errorf("%d calls for many, %d scans; want one for the large range alone", reader.calls, reader.scans)
	}
}
