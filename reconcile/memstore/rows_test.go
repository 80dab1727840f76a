package memstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
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

// Views of many states are open beside each other, and beside updates that change
// blocks where they are as soon as no view is left.
func TestM2_ViewsOfManyStates(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(2, 1))
	s := New()
	model := map[string]string{}
	type view struct {
		read chan struct{}
		done chan error
	}
	var open []view
	begin := func() {
		want := maps.Clone(model)
		v := view{make(chan struct{}), make(chan error, 1)}
		begun := make(chan struct{})
		go func() {
			v.done <- s.View(context.Background(), func(r reconcile.Reader) error {
				close(begun)
				<-v.read
				n := 0
				for e, err := range r.Scan(context.Background(), nil, nil, 0) {
					if n++; err != nil || want[string(e.Key)] != string(e.Value) {
						return fmt.Errorf("%x is %x and was %x, %v", e.Key, e.Value, want[string(e.Key)], err)
					}
				}
				if n != len(want) {
					return fmt.Errorf("%d entries, and there were %d", n, len(want))
				}
				return nil
			})
		}()
		<-begun
		open = append(open, v)
	}
	end := func(i int) {
		close(open[i].read)
		if err := <-open[i].done; err != nil {
			t.Fatal(err)
		}
		open = slices.Delete(open, i, i+1)
	}
	for step := range 3000 {
		switch random.IntN(4) {
		case 0:
			if len(open) < 4 {
				begin()
			}
		case 1:
			if len(open) > 0 {
				end(random.IntN(len(open)))
			}
		default:
			var w reconcile.Writes
			touched := map[string]bool{}
			for range random.IntN(40) {
				key := binary.BigEndian.AppendUint16(nil, uint16(random.IntN(4000)))
				if touched[string(key)] {
					continue
				}
				touched[string(key)] = true
				if random.IntN(3) == 0 {
					w.Delete = append(w.Delete, key)
					delete(model, string(key))
				} else {
					value := binary.BigEndian.AppendUint32(nil, uint32(step))
					w.Put = append(w.Put, reconcile.Entry{Key: key, Value: value})
					model[string(key)] = string(value)
				}
			}
			err := s.Update(context.Background(), func(reconcile.Reader) (reconcile.Writes, error) { return w, nil })
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(open) > 0 {
		end(0)
	}
	begin()
	end(0)
}
