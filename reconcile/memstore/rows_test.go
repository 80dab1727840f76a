package memstore

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
)

func TestM1_EntriesAreInOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var r rows
		model := map[string]string{}
		for range 5000 {
			key := []byte{byte(random.IntN(6)), byte(random.IntN(256))}[:1+random.IntN(2)]
			key = append(key, make([]byte, random.IntN(3))...)
			if random.IntN(3) == 0 {
				r.remove(key)
				delete(model, string(key))
			} else {
				value := []byte{byte(random.IntN(256))}
				r.put(key, value)
				model[string(key)] = string(value)
			}
		}
		frozen := r.freeze() // what goes on does not reach it
		before := maps.Clone(model)
		for range 500 {
			key := []byte{byte(random.IntN(6)), byte(random.IntN(256))}
			r.put(key, []byte{7})
			r.remove([]byte{byte(random.IntN(6)), byte(random.IntN(256))})
		}
		r, model = *frozen, before
		from := []byte{byte(random.IntN(7))}
		want := slices.Sorted(maps.Keys(model))
		want = slices.DeleteFunc(want, func(k string) bool { return k < string(from) })
		var got []string
		for e := range r.from(from) {
			got = append(got, string(e.Key))
			if model[string(e.Key)] != string(e.Value) || !bytes.Equal(r.get(e.Key), e.Value) {
				t.Fatalf("seed %d: %x is %x", seed, e.Key, e.Value)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d keys from %x, want %d", seed, len(got), from, len(want))
		}
	}
}

func TestM2_AViewSeesOneState(t *testing.T) {
	t.Parallel()
	s := New()
	put := func(v byte) error {
		return s.Update(context.Background(), func(reconcile.Reader) (reconcile.Writes, error) {
			return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("a"), Value: []byte{v}}, {Key: []byte("b"), Value: []byte{v}}}}, nil
		})
	}
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	err := s.View(context.Background(), func(r reconcile.Reader) error {
		if err := put(2); err != nil { // beside the view, not after it
			t.Fatal(err)
		}
		for range 2 {
			got, err := r.Get(context.Background(), []byte("a"), []byte("b"))
			if err != nil || got[0][0] != 1 || got[1][0] != 1 {
				t.Fatalf("%v, %v", got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
