package ordered

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/reconcile"
)

// Bounds of the contract of reconcile.Backend.
const (
	maxKey   = 128
	maxValue = 16 << 20
)

// Gate lets work in until it is closed. The zero Gate is open.
type Gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// Enter lets one piece of work in; it must Leave. It fails with
// reconcile.ErrClosed after Close.
func (g *Gate) Enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return reconcile.ErrClosed
	}
	g.inside.Add(1)
	return nil
}

// Leave ends what Enter let in.
func (g *Gate) Leave() { g.inside.Done() }

// Close lets nothing more in and waits until nothing is inside. It reports
// whether this was the first call.
func (g *Gate) Close() (first bool) {
	g.mu.Lock()
	first, g.closed = !g.closed, true
	g.mu.Unlock()
	g.inside.Wait()
	return first
}

// Sorted checks writes against the contract and orders them by key, so that a
// tree is walked once. The slices of w stay as they are.
func Sorted(w reconcile.Writes) (reconcile.Writes, error) {
	sorted := reconcile.Writes{Put: slices.Clone(w.Put), Delete: slices.Clone(w.Delete)}
	slices.SortFunc(sorted.Put, func(a, b reconcile.Entry) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortFunc(sorted.Delete, bytes.Compare)
	for i := range sorted.Put {
		e := &sorted.Put[i]
		switch {
		case len(e.Key) == 0 || len(e.Key) > maxKey:
			return w, fmt.Errorf("a key of %d bytes: keys have 1 to %d", len(e.Key), maxKey)
		case len(e.Value) > maxValue:
			return w, fmt.Errorf("a value of %d bytes: at most %d can be kept", len(e.Value), maxValue)
		case i > 0 && bytes.Equal(e.Key, sorted.Put[i-1].Key):
			return w, fmt.Errorf("key %x is put twice in one update", e.Key)
		}
		if e.Value == nil {
			e.Value = []byte{} // nil would read back as absent
		}
	}
	at := 0
	for i, key := range sorted.Delete {
		if i > 0 && bytes.Equal(key, sorted.Delete[i-1]) {
			return w, fmt.Errorf("key %x is deleted twice in one update", key)
		}
		for at < len(sorted.Put) && bytes.Compare(sorted.Put[at].Key, key) < 0 {
			at++
		}
		if at < len(sorted.Put) && bytes.Equal(sorted.Put[at].Key, key) {
			return w, fmt.Errorf("key %x is put and deleted in one update", key)
		}
	}
	return sorted, nil
}

// After is the first key that does not begin with prefix; nil when there is none.
func After(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// Sizes of pages. The first is small, because most ranges are.
const (
	firstPage = 64
	lastPage  = 4096
	pageBytes = 8 << 20 // aimed at, once the size of values is known
)

// Pages reads a range that begins at from, at most limit entries of it (all when
// limit <= 0). Fetch returns up to n entries whose keys are at or above from, and
// fewer only at the end of the range.
func Pages(from []byte, limit int, fetch func(from []byte, n int) ([]reconcile.Entry, error)) iter.Seq2[reconcile.Entry, error] {
	return func(yield func(reconcile.Entry, error) bool) {
		next, left, n := from, limit, firstPage
		for {
			if limit > 0 {
				n = min(n, left)
			}
			page, err := fetch(next, n)
			if err == nil && len(page) > n {
				err = errors.New("a page holds more than was asked for")
			}
			if err != nil {
				yield(reconcile.Entry{}, err)
				return
			}
			size := 0
			for _, e := range page {
				size += len(e.Key) + len(e.Value)
				if !yield(e, nil) {
					return
				}
			}
			left -= len(page)
			if len(page) < n || limit > 0 && left == 0 {
				return
			}
			last := page[len(page)-1].Key
			next = append(last[:len(last):len(last)], 0) // the least key above it
			n = min(4*n, lastPage, max(1, pageBytes/(size/len(page)+1)))
		}
	}
}
