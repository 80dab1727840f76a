package ordered_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/internal/ordered"
)

func TestB1_CloseWaitsAndShuts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g ordered.Gate
		if err := g.Enter(); err != nil {
			t.Fatal(err)
		}
		closed := make(chan bool, 2)
		go func() { closed <- g.Close() }()
		synctest.Wait()
		if err := g.Enter(); !errors.Is(err, reconcile.ErrClosed) {
			t.Errorf("got in while it closes: %v", err)
		}
		if len(closed) != 0 {
			t.Error("closed with work inside")
		}
		g.Leave()
		if !<-closed {
			t.Error("the first Close does not know that it is")
		}
		if g.Close() {
			t.Error("the second Close says it was the first")
		}
	})
}

func entry(key string, value int) reconcile.Entry {
	return reconcile.Entry{Key: []byte(key), Value: bytes.Repeat([]byte{1}, value)}
}

func TestB2_WritesAreCheckedAndOrdered(t *testing.T) {
	t.Parallel()
	del := func(keys ...string) (list [][]byte) {
		for _, k := range keys {
			list = append(list, []byte(k))
		}
		return list
	}
	given := reconcile.Writes{Put: []reconcile.Entry{entry("b", 1), {Key: []byte("a")}}, Delete: del("d", "c", "ab")}
	got, err := ordered.Sorted(given)
	if err != nil || string(got.Put[0].Key) != "a" || got.Put[0].Value == nil || string(bytes.Join(got.Delete, []byte{','})) != "ab,c,d" {
		t.Errorf("%+v, %v", got, err)
	}
	if string(given.Put[0].Key) != "b" || given.Put[1].Value != nil {
		t.Error("the caller's slice was changed")
	}
	for name, w := range map[string]reconcile.Writes{
		"empty key":       {Put: []reconcile.Entry{entry("", 1)}},
		"long key":        {Put: []reconcile.Entry{entry(strings.Repeat("k", 129), 1)}},
		"long value":      {Put: []reconcile.Entry{entry("k", 16<<20+1)}},
		"put twice":       {Put: []reconcile.Entry{entry("k", 1), entry("j", 1), entry("k", 2)}},
		"deleted twice":   {Delete: del("k", "j", "k")},
		"put and deleted": {Put: []reconcile.Entry{entry("i", 1), entry("k", 1)}, Delete: del("j", "k")},
	} {
		if _, err := ordered.Sorted(w); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := ordered.Sorted(reconcile.Writes{Put: []reconcile.Entry{entry(strings.Repeat("k", 128), 16<<20)}}); err != nil {
		t.Errorf("the largest entry: %v", err)
	}
}

func TestB3_PagesGiveEverythingOnce(t *testing.T) {
	t.Parallel()
	for _, total := range []int{0, 1, 63, 64, 65, 64 + 256, 9000} {
		for _, limit := range []int{0, -1, 1, 64, 100, 8999, 10000} {
			for _, size := range []int{0, 1 << 20} {
				if size > 0 && total > 400 {
					continue
				}
				var keys []string
				for i := range total {
					keys = append(keys, fmt.Sprintf("%05d", i))
				}
				value := make([]byte, size)
				largest := 0
				fetch := func(from []byte, n int) (page []reconcile.Entry, err error) {
					for _, k := range keys {
						if k >= string(from) && len(page) < n {
							page = append(page, reconcile.Entry{Key: []byte(k), Value: value})
						}
					}
					largest = max(largest, n)
					return page, nil
				}
				want := total
				if limit > 0 {
					want = min(want, limit)
				}
				got := 0
				for e, err := range ordered.Pages([]byte("0"), limit, fetch) {
					if err != nil || got >= want || string(e.Key) != keys[got] {
						t.Fatalf("total %d limit %d: entry %d is %s, %v", total, limit, got, e.Key, err)
					}
					got++
				}
				if got != want {
					t.Errorf("total %d limit %d: %d entries, want %d", total, limit, got, want)
				}
				if size > 0 && largest > 64 {
					t.Errorf("pages of %d entries of 1 MiB", largest)
				}
			}
		}
	}
}

func TestB3_AnErrorIsTheLastPair(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	calls, pairs := 0, 0
	for _, err := range ordered.Pages([]byte("a"), 0, func(from []byte, n int) (page []reconcile.Entry, _ error) {
		if calls++; calls == 2 {
			return nil, bad
		}
		for i := range n {
			page = append(page, entry(fmt.Sprintf("b%03d", i), 0))
		}
		return page, nil
	}) {
		if pairs++; pairs == 65 && !errors.Is(err, bad) || pairs < 65 && err != nil || pairs > 65 {
			t.Fatalf("pair %d: %v", pairs, err)
		}
	}
	if pairs != 65 {
		t.Errorf("%d pairs", pairs)
	}
}
