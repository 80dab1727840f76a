package memstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/overlayd/overlayd/reconcile"
)

// New returns an empty backend in memory.
func New() reconcile.Backend { return &store{} }

type store struct {
	writing sync.Mutex // one update at a time
	mu      sync.RWMutex
	rows    rows
	closed  bool
}

func (s *store) Durability() reconcile.Durability { return reconcile.Volatile }

func (s *store) View(ctx context.Context, f func(reconcile.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return reconcile.ErrClosed
	}
	return f(reader{&s.rows})
}

func (s *store) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return reconcile.ErrClosed
	}
	w, err := f(reader{&s.rows}) // only an update writes, and this is the one
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, e := range w.Put {
		if len(e.Key) == 0 || len(e.Key) > 128 {
			return fmt.Errorf("a key has 1 to 128 bytes, not %d", len(e.Key))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range w.Delete {
		s.rows.remove(k)
	}
	for _, e := range w.Put {
		s.rows.put(bytes.Clone(e.Key), append([]byte{}, e.Value...))
	}
	return nil
}

func (s *store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.rows = rows{}
	return nil
}

type reader struct{ rows *rows }

func (r reader) Tx() any { return nil }

func (r reader) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := make([][]byte, len(keys))
	for i, k := range keys {
		found[i] = r.rows.get(k)
	}
	return found, nil
}

func (r reader) Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[reconcile.Entry, error] {
	return func(yield func(reconcile.Entry, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(reconcile.Entry{}, err)
			return
		}
		n := 0
		for e := range r.rows.from(from) {
			if len(to) > 0 && bytes.Compare(e.Key, to) >= 0 || limit > 0 && n == limit {
				return
			}
			n++
			if !yield(e, nil) {
				return
			}
		}
	}
}
