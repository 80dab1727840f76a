package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
)

// Instance is one store of keys under test.
type Instance struct {
	Backend reconcile.Backend
	// Reopen closes the backend and opens the same store again. Nil when there is
	// nothing to open again.
	Reopen func(t *testing.T) reconcile.Backend
	// Volatile says that the store lives in memory: a reader and a writer may then
	// wait for each other.
	Volatile bool
}

// RunBackend holds a backend to the contract of reconcile.Backend. Open makes an
// empty one for each subtest, and closes it after the test.
func RunBackend(t *testing.T, open func(t *testing.T) Instance) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Instance)
	}{
		{"EntriesComeBack", entriesComeBack},
		{"ScanIsOrdered", scanIsOrdered},
		{"ReadsInsideAScan", readsInsideAScan},
		{"Ranges", ranges},
		{"AllOrNothing", allOrNothing},
		{"ViewIsCoherent", viewIsCoherent},
		{"UpdatesGoOneAtATime", updatesGoOneAtATime},
		{"Cancelled", cancelled},
		{"Closed", closed},
		{"Model", model},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

func put(t testing.TB, b reconcile.Backend, pairs ...string) {
	t.Helper()
	var w reconcile.Writes
	for i := 0; i < len(pairs); i += 2 {
		w.Put = append(w.Put, reconcile.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	write(t, b, w)
}

func write(t testing.TB, b reconcile.Backend, w reconcile.Writes) {
	t.Helper()
	if err := b.Update(t.Context(), func(reconcile.Reader) (reconcile.Writes, error) { return w, nil }); err != nil {
		t.Fatal(err)
	}
}

// list reads a range whole, as "key=value" lines.
func list(t testing.TB, r reconcile.Reader, from, to string, limit int) (lines []string) {
	t.Helper()
	for e, err := range r.Scan(t.Context(), []byte(from), []byte(to), limit) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s=%.20s", e.Key, e.Value))
	}
	return lines
}

func view(t testing.TB, b reconcile.Backend, f func(reconcile.Reader)) {
	t.Helper()
	if err := b.View(t.Context(), func(r reconcile.Reader) error { f(r); return nil }); err != nil {
		t.Fatal(err)
	}
}

func entriesComeBack(t *testing.T, in Instance) {
	random := rand.New(rand.NewPCG(1, 2))
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	want := map[string][]byte{}
	var keys [][]byte
	var w reconcile.Writes
	for i, n := range []int{0, 1, 100, 511, 512, 513, 1000, 4095, 4096, 70_000, 4 << 20} {
		key := append([]byte{0, 0xff, byte(i)}, bytesOf(i*11)...)
		value := bytesOf(n)
		want[string(key)] = value
		keys = append(keys, key)
		w.Put = append(w.Put, reconcile.Entry{Key: bytes.Clone(key), Value: bytes.Clone(value)})
	}
	long := bytes.Repeat([]byte{0xff}, 128)
	w.Put = append(w.Put, reconcile.Entry{Key: long}) // without a value: empty, not absent
	keys, want[string(long)] = append(keys, long), []byte{}
	write(t, in.Backend, w)
	for _, e := range w.Put { // the caller's bytes are the caller's again
		clear(e.Key)
		clear(e.Value)
	}
	if in.Reopen != nil {
		in.Backend = in.Reopen(t)
	}
	view(t, in.Backend, func(r reconcile.Reader) {
		if r.Tx() != nil {
			t.Error("a view has a transaction to write with")
		}
		asked := slices.Concat([][]byte{{1}}, keys, [][]byte{keys[3], {0, 0xff}})
		got, err := r.Get(t.Context(), asked...)
		if err != nil || len(got) != len(asked) {
			t.Fatalf("%d values, %v", len(got), err)
		}
		for i, key := range asked {
			value, ok := want[string(key)]
			if (got[i] != nil) != ok || !bytes.Equal(got[i], value) {
				t.Errorf("key %x: %d bytes (nil: %v), want %d", key, len(got[i]), got[i] == nil, len(value))
			}
		}
		if got, err := r.Get(t.Context()); err != nil || len(got) != 0 {
			t.Errorf("no keys: %v, %v", got, err)
		}
		n := 0
		for e, err := range r.Scan(t.Context(), nil, nil, 0) {
			if err != nil || !bytes.Equal(e.Value, want[string(e.Key)]) || e.Value == nil {
				t.Errorf("scanned %x: %d bytes, %v", e.Key, len(e.Value), err)
			}
			n++
		}
		if n != len(want) {
			t.Errorf("%d entries, want %d", n, len(want))
		}
	})
	// Shorter and longer values take the place of each other.
	for round := range 2 {
		w := reconcile.Writes{}
		for i, key := range keys {
			value := bytesOf([]int{5, 5000, 600}[(i+round)%3])
			want[string(key)] = value
			w.Put = append(w.Put, reconcile.Entry{Key: key, Value: value})
		}
		write(t, in.Backend, w)
		view(t, in.Backend, func(r reconcile.Reader) {
			got, err := r.Get(t.Context(), keys...)
			for i, key := range keys {
				if err != nil || !bytes.Equal(got[i], want[string(key)]) {
					t.Fatalf("round %d: key %x: %d bytes, %v", round, key, len(got[i]), err)
				}
			}
		})
	}
}

func scanIsOrdered(t *testing.T, in Instance) {
	put(t, in.Backend, "b", "2", "a", "1", "b\x00", "3", "b\x00\x00", "4", "c", "7", "b\x01", "5", "\xff", "9", "b\xff", "6", "c\x00", "8")
	all := []string{"a=1", "b=2", "b\x00=3", "b\x00\x00=4", "b\x01=5", "b\xff=6", "c=7", "c\x00=8", "\xff=9"}
	view(t, in.Backend, func(r reconcile.Reader) {
		for _, test := range []struct {
			from, to string
			limit    int
			want     []string
		}{
			{"", "", 0, all}, {"", "", -1, all}, {"", "", 2, all[:2]}, {"a", "c", 0, all[:6]}, {"a\x00", "c", 0, all[1:6]},
			{"b", "b\x00", 0, all[1:2]}, {"b", "b", 0, nil}, {"c", "b", 0, nil}, {"b\x00", "", 3, all[2:5]}, {"\xff", "", 0, all[8:]},
			{"b", "c", 5, all[1:6]}, {"b", "c", 6, all[1:6]}, {"\xff\x00", "", 1, nil},
		} {
			if got := list(t, r, test.from, test.to, test.limit); !slices.Equal(got, test.want) {
				t.Errorf("[%q, %q) at most %d: %q, want %q", test.from, test.to, test.limit, got, test.want)
			}
		}
	})
}

// readsInsideAScan: a consumer reads more while it iterates, and may stop.
func readsInsideAScan(t *testing.T, in Instance) {
	const total = 3000
	var w reconcile.Writes
	for i := range total {
		w.Put = append(w.Put, reconcile.Entry{Key: binary.BigEndian.AppendUint32([]byte{'n'}, uint32(i)), Value: fmt.Append(nil, i)})
	}
	write(t, in.Backend, w)
	check := func(r reconcile.Reader) error {
		n := 0
		for e, err := range r.Scan(t.Context(), []byte("n"), []byte("o"), 0) {
			if err != nil {
				return err
			}
			if got := binary.BigEndian.Uint32(e.Key[1:]); got != uint32(n) {
				return fmt.Errorf("entry %d is %d", n, got)
			}
			if n%100 == 0 {
				got, err := r.Get(t.Context(), w.Put[total-1-n].Key)
				if err != nil || string(got[0]) != fmt.Sprint(total-1-n) {
					return fmt.Errorf("inside: %s, %w", got[0], err)
				}
				for inner, err := range r.Scan(t.Context(), e.Key, nil, 2) {
					if err != nil || bytes.Compare(inner.Key, e.Key) < 0 {
						return fmt.Errorf("inside: %x, %w", inner.Key, err)
					}
					break
				}
			}
			n++
		}
		if n != total {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	}
	view(t, in.Backend, func(r reconcile.Reader) {
		if err := check(r); err != nil {
			t.Error(err)
		}
	})
	err := in.Backend.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) { return reconcile.Writes{}, check(r) })
	if err != nil {
		t.Error(err)
	}
}

// ranges: a reader that reads many of them at once gives what Scan gives.
func ranges(t *testing.T, in Instance) {
	var w reconcile.Writes
	for i := range 300 {
		w.Put = append(w.Put, reconcile.Entry{Key: []byte{'a' + byte(i%3), byte(i), byte(i)}[:1+i%2+i/256], Value: fmt.Append(nil, i)})
	}
	last := map[string]reconcile.Entry{}
	for _, e := range w.Put {
		last[string(e.Key)] = e
	}
	w.Put = slices.Collect(maps.Values(last))
	write(t, in.Backend, w)
	view(t, in.Backend, func(r reconcile.Reader) {
		many, ok := r.(reconcile.RangeReader)
		if !ok {
			return // optional
		}
		prefixes := [][]byte{[]byte("b"), []byte("a"), []byte("nothing"), []byte("b"), {'c', 0xff}, []byte("c")}
		for _, limit := range []int{1, 64, 1000} {
			got, err := many.Ranges(t.Context(), prefixes, limit)
			if err != nil || len(got) != len(prefixes) {
				t.Fatalf("%d lists, %v", len(got), err)
			}
			for i, p := range prefixes {
				end := append(bytes.Clone(p[:len(p)-1]), p[len(p)-1]+1)
				if p[len(p)-1] == 0xff {
					end = append(bytes.Clone(p[:len(p)-2]), p[len(p)-2]+1)
				}
				var want []reconcile.Entry
				for e := range r.Scan(t.Context(), p, end, limit) {
					want = append(want, e)
				}
				same := func(a, b reconcile.Entry) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) }
				if !slices.EqualFunc(got[i], want, same) {
					t.Errorf("prefix %q, at most %d: %d entries, want %d", p, limit, len(got[i]), len(want))
				}
			}
		}
	})
}

func allOrNothing(t *testing.T, in Instance) {
	b := in.Backend
	put(t, b, "a", "1", "z", "1")
	refused := errors.New("refused")
	big := make([]byte, 1000)
	some := []reconcile.Entry{{Key: []byte("a"), Value: []byte("2")}, {Key: []byte("b"), Value: big}}
	for name, f := range map[string]func(reconcile.Reader) (reconcile.Writes, error){
		"an error": func(reconcile.Reader) (reconcile.Writes, error) { return reconcile.Writes{Put: some}, refused },
		"no key": func(reconcile.Reader) (reconcile.Writes, error) {
			return reconcile.Writes{Put: append(some, reconcile.Entry{})}, nil
		},
		"a long key": func(reconcile.Reader) (reconcile.Writes, error) {
			return reconcile.Writes{Put: append(some, reconcile.Entry{Key: make([]byte, 129)})}, nil
		},
	} {
		err := b.Update(t.Context(), f)
		if err == nil || errors.Is(err, reconcile.ErrUnknown) || name == "an error" && !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = b.Update(t.Context(), func(reconcile.Reader) (reconcile.Writes, error) { panic("inside an update") })
	}()
	view(t, b, func(r reconcile.Reader) {
		if got := list(t, r, "", "", 0); !slices.Equal(got, []string{"a=1", "z=1"}) {
			t.Errorf("after failures: %q", got)
		}
	})
	// One update: a replacement, a new key, a deletion, and the deletion of nothing.
	write(t, b, reconcile.Writes{Put: some[:1], Delete: [][]byte{[]byte("z"), []byte("nothing")}})
	if in.Reopen != nil {
		b = in.Reopen(t)
	}
	err := b.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) {
		if got := list(t, r, "", "", 0); !slices.Equal(got, []string{"a=2"}) {
			t.Errorf("after a success: %q", got)
		}
		return reconcile.Writes{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// viewIsCoherent: a view that began sees one commit, and the next one the latest.
func viewIsCoherent(t *testing.T, in Instance) {
	put(t, in.Backend, "a", "1", "b", "1")
	done := make(chan error, 1)
	view(t, in.Backend, func(r reconcile.Reader) {
		if got := list(t, r, "", "b", 0); !slices.Equal(got, []string{"a=1"}) {
			t.Errorf("%q", got)
		}
		go func() {
			done <- in.Backend.Update(context.WithoutCancel(t.Context()), func(reconcile.Reader) (reconcile.Writes, error) {
				return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("b"), Value: []byte("2")}, {Key: []byte("c"), Value: []byte("2")}}, Delete: [][]byte{[]byte("a")}}, nil
			})
		}()
		if !in.Volatile { // a writer does not wait for a reader
			if err := <-done; err != nil {
				t.Error(err)
			}
			view(t, in.Backend, func(latest reconcile.Reader) {
				if got := list(t, latest, "", "", 0); !slices.Equal(got, []string{"b=2", "c=2"}) {
					t.Errorf("a new view beside the old one: %q", got)
				}
			})
		}
		if got := list(t, r, "", "", 0); !slices.Equal(got, []string{"a=1", "b=1"}) {
			t.Errorf("the view moved: %q", got)
		}
		got, err := r.Get(t.Context(), []byte("a"), []byte("c"))
		if err != nil || string(got[0]) != "1" || got[1] != nil {
			t.Errorf("the view moved: %q, %v", got, err)
		}
	})
	if in.Volatile {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	view(t, in.Backend, func(r reconcile.Reader) {
		if got := list(t, r, "", "", 0); !slices.Equal(got, []string{"b=2", "c=2"}) {
			t.Errorf("afterwards: %q", got)
		}
	})
}

// updatesGoOneAtATime: each sees what the one before it wrote.
func updatesGoOneAtATime(t *testing.T, in Instance) {
	Count(t, 8, 12, in.Backend)
}

// Count has workers add one to a counter, each rounds times, over the backends in
// turn, and demands that nothing is lost: what several stores or processes that
// share something must hold too.
func Count(t *testing.T, workers, rounds int, backends ...reconcile.Backend) {
	t.Helper()
	key := []byte("count")
	var wg sync.WaitGroup
	for i := range workers {
		b := backends[i%len(backends)]
		wg.Go(func() {
			for range rounds {
				err := b.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) {
					got, err := r.Get(t.Context(), key)
					if err != nil {
						return reconcile.Writes{}, err
					}
					var n uint64
					if got[0] != nil {
						n = binary.BigEndian.Uint64(got[0])
					}
					own := binary.BigEndian.AppendUint64([]byte("own"), n+1)
					return reconcile.Writes{Put: []reconcile.Entry{{Key: key, Value: binary.BigEndian.AppendUint64(nil, n+1)}, {Key: own}}}, nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	view(t, backends[0], func(r reconcile.Reader) {
		got, err := r.Get(t.Context(), key)
		if err != nil || got[0] == nil || binary.BigEndian.Uint64(got[0]) != uint64(workers*rounds) {
			t.Errorf("the counter is %x, want %d; %v", got[0], workers*rounds, err)
		}
		if n := len(list(t, r, "own", "owo", 0)); n != workers*rounds {
			t.Errorf("%d steps were counted, want %d", n, workers*rounds)
		}
	})
}

func cancelled(t *testing.T, in Instance) {
	put(t, in.Backend, "a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	err := in.Backend.Update(ctx, func(reconcile.Reader) (reconcile.Writes, error) {
		cancel()
		return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("a"), Value: []byte("2")}}}, nil
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, reconcile.ErrUnknown) {
		t.Errorf("cancelled before the commit: %v", err)
	}
	if err := in.Backend.View(ctx, func(r reconcile.Reader) error {
		_, err := r.Get(ctx, []byte("a"))
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read: %v", err)
	}
	view(t, in.Backend, func(r reconcile.Reader) {
		if got := list(t, r, "", "", 0); !slices.Equal(got, []string{"a=1"}) {
			t.Errorf("%q", got)
		}
	})
}

func closed(t *testing.T, in Instance) {
	if err := in.Backend.Close(); err != nil {
		t.Fatal(err)
	}
	if err := in.Backend.View(t.Context(), func(reconcile.Reader) error { return nil }); !errors.Is(err, reconcile.ErrClosed) {
		t.Errorf("a view: %v", err)
	}
	err := in.Backend.Update(t.Context(), func(reconcile.Reader) (reconcile.Writes, error) { return reconcile.Writes{}, nil })
	if !errors.Is(err, reconcile.ErrClosed) {
		t.Errorf("an update: %v", err)
	}
	if err := in.Backend.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// model compares a random history with a map.
func model(t *testing.T, in Instance) {
	random := rand.New(rand.NewPCG(7, 7))
	kept := map[string]string{}
	key := func() string {
		return string([]byte{byte('a' + random.IntN(3)), byte(random.IntN(40))}[:1+random.IntN(2)])
	}
	for range 120 {
		touched := map[string]bool{}
		next := maps.Clone(kept)
		var w reconcile.Writes
		for range random.IntN(90) {
			k := key()
			if touched[k] {
				continue
			}
			touched[k] = true
			if random.IntN(3) == 0 {
				w.Delete = append(w.Delete, []byte(k))
				delete(next, k)
			} else {
				v := fmt.Sprint(random.Uint32()) + string(make([]byte, random.IntN(2)*random.IntN(900)))
				w.Put = append(w.Put, reconcile.Entry{Key: []byte(k), Value: []byte(v)})
				next[k] = v
			}
		}
		fails := random.IntN(5) == 0
		err := in.Backend.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) {
			if fails {
				return w, errors.New("not this time")
			}
			return w, nil
		})
		if (err != nil) != fails {
			t.Fatal(err)
		}
		if !fails {
			kept = next
		}
		from, to, limit := key(), key(), random.IntN(20)
		var want []string
		for _, k := range slices.Sorted(maps.Keys(kept)) {
			if k >= from && k < to && (limit == 0 || len(want) < limit) {
				want = append(want, fmt.Sprintf("%s=%.20s", k, kept[k]))
			}
		}
		view(t, in.Backend, func(r reconcile.Reader) {
			if got := list(t, r, from, to, limit); !slices.Equal(got, want) {
				t.Fatalf("[%q, %q) at most %d: %q, want %q", from, to, limit, got, want)
			}
			var keys [][]byte
			for range 1 + random.IntN(30) {
				keys = append(keys, []byte(key()))
			}
			got, err := r.Get(t.Context(), keys...)
			for i, k := range keys {
				v, ok := kept[string(k)]
				if err != nil || ok != (got[i] != nil) || string(got[i]) != v {
					t.Fatalf("key %q: %q, want %q; %v", k, got[i], v, err)
				}
			}
		})
	}
}
