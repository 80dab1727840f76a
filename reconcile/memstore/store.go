package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/overlayd/overlayd/reconcile"
)

// New returns an empty backend in memory.
func New() reconcile.Backend { return &store{} }

type store struct {
	writing sync.Mutex // one update at a time

	mu     sync.Mutex
	rows   rows // changed under both locks
	views  int  // at work
	viewed bool // one of them has the blocks as they are: the next update freezes them
	closed bool
}

func (s *store) Durability() reconcile.Durability { return reconcile.Volatile }

func (s *store) View(ctx context.Context, f func(reconcile.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return reconcile.ErrClosed
	}
	s.views, s.viewed = s.views+1, true
	seen := rows{blocks: s.rows.blocks}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.views--
	}()
	return f(reader{&seen})
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
	w, err := f(reader{&s.rows})
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := check(w); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows.shared = s.views > 0; s.rows.shared && s.viewed {
		s.rows.freeze() // what the views have
	}
	s.viewed = false
	for _, k := range w.Delete {
		s.rows.remove(k)
	}
	for _, e := range w.Put {
		both := make([]byte, len(e.Key)+len(e.Value))
		n := copy(both, e.Key)
		copy(both[n:], e.Value)
		s.rows.put(both[:n:n], both[n:])
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

// check refuses writes against the contract.
func check(w reconcile.Writes) error {
	keys := make(map[string]bool, len(w.Put)+len(w.Delete))
	for _, e := range w.Put {
		if len(e.Key) == 0 || len(e.Key) > 128 {
			return fmt.Errorf("a key has 1 to 128 bytes, not %d", len(e.Key))
		}
		keys[string(e.Key)] = true
	}
	for _, k := range w.Delete {
		keys[string(k)] = true
	}
	if len(keys) != len(w.Put)+len(w.Delete) {
		return errors.New("a key is written twice in one update")
	}
	return nil
}
