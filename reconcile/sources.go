package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"iter"

	"github.com/overlayd/overlayd/internal/canon"
)

// Source numbers a source; see Store.
func (e *engine) Source(ctx context.Context, k SourceKey) (id SourceID, err error) {
	var text []byte
	for _, s := range []string{k.Kind, k.Base, k.Service, k.QueryDigest, k.Principal, k.Label} {
		text = canon.AppendString(text, s)
	}
	if k.Kind == "" || len(text) > 8192 {
		return 0, errors.New("a source has a kind, and at most 8192 bytes")
	}
	sum := sha256.Sum256(text)
	place := key(spaceSourceKey, sum[:16])
	err = e.view(ctx, func(t *txn) error {
		if v := t.get(place); len(v) == 4 {
			id = SourceID(binary.BigEndian.Uint32(v))
		}
		return nil
	})
	if err != nil || id != 0 {
		return id, err
	}
	err = e.update(ctx, func(t *txn) error {
		if v := t.get(place); len(v) == 4 {
			id = SourceID(binary.BigEndian.Uint32(v))
			return nil
		}
		if int64(t.meta.Sources) >= int64(t.budget.Sources) {
			return &LimitError{Bound: "Budget.Sources", Limit: uint64(t.budget.Sources)}
		}
		t.meta.Sources++
		id = SourceID(t.meta.Sources)
		t.put(place, binary.BigEndian.AppendUint32(nil, t.meta.Sources))
		t.saveSource(t.meta.Sources, &sourceRow{Key: k})
		return nil
	})
	return id, err
}

// Generation returns the latest one; see Store.
func (e *engine) Generation(ctx context.Context, id SourceID) (g Generation, err error) {
	err = e.view(ctx, func(t *txn) error {
		s := t.source(uint32(id))
		if s == nil {
			return errors.Join(t.err, errSource)
		}
		g = t.generationOf(id, s, s.Latest)
		return nil
	})
	return g, err
}

// generationOf is a generation as callers see it.
func (t *txn) generationOf(id SourceID, s *sourceRow, n uint64) Generation {
	row := t.generation(uint32(id), n)
	if n == 0 || row == nil {
		return Generation{}
	}
	g := Generation{
		Number: n, State: Staged, Scope: row.Scope, Through: row.Through, W: row.W, Received: row.Received, Complete: row.Complete,
		Pending: row.Pending,
	}
	switch {
	case row.Retired || n <= s.Closed:
		g.State = Retired
	case s.Active == n:
		g.State = Active
	}
	if row.Ending != nil {
		ending := *row.Ending
		ending.Source, ending.Generation = id, n
		g.Ending = &ending
	}
	return g
}

// Begin starts a generation; see Store.
func (e *engine) Begin(ctx context.Context, id SourceID, a Attach) (n uint64, err error) {
	err = e.update(ctx, func(t *txn) error {
		s := t.source(uint32(id))
		if s == nil {
			return errors.Join(t.err, errSource)
		}
		if latest := t.generation(uint32(id), s.Latest); s.Latest > 0 && (latest == nil || latest.Ending == nil) {
			return errors.Join(t.err, ErrGoesOn)
		}
		s.Latest++
		n = s.Latest
		if s.Active == 0 {
			s.Active = n
		}
		t.saveSource(uint32(id), s)
		t.saveGeneration(uint32(id), n, &generationRow{})
		t.attach(a)
		return nil
	})
	return n, err
}

// End ends the latest generation; see Store.
func (e *engine) End(ctx context.Context, ending Ending, a Attach) error {
	return e.update(ctx, func(t *txn) error {
		s := t.source(uint32(ending.Source))
		if s == nil || t.generation(uint32(ending.Source), ending.Generation) == nil {
			return errors.Join(t.err, errSource)
		}
		t.end(uint32(ending.Source), ending.Generation, ending)
		t.attach(a)
		return nil
	})
}

// attach changes a runtime's own rows.
func (t *txn) attach(a Attach) {
	for _, k := range a.Delete {
		t.del(key(spaceAttachment, k))
	}
	for _, e := range a.Put {
		if len(e.Key) > 96 {
			t.fail(errors.New("the key of an attachment has at most 96 bytes"))
		}
		t.put(key(spaceAttachment, e.Key), e.Value)
	}
}

// Attach changes a runtime's own rows; see Store.
func (e *engine) Attach(ctx context.Context, a Attach) error {
	return e.update(ctx, func(t *txn) error {
		t.attach(a)
		return nil
	})
}

// page is how many rows an unbounded listing reads at once.
const page = 256

// Attachments lists a runtime's own rows; see Store.
func (e *engine) Attachments(ctx context.Context, prefix []byte) iter.Seq2[Entry, error] {
	return pages(e, ctx, key(spaceAttachment, prefix), func(_ *txn, row Entry) (Entry, error) {
		return Entry{Key: row.Key[1:], Value: row.Value}, nil
	})
}

// Quarantine lists a source's refused claims; see Store.
func (e *engine) Quarantine(ctx context.Context, id SourceID) iter.Seq2[Quarantined, error] {
	return pages(e, ctx, key(spaceQuarantine, uint32(id)), func(t *txn, row Entry) (Quarantined, error) {
		q, _ := plain[Quarantined](t, row.Value)
		return q, t.err
	})
}

// pages gives the rows of a prefix without holding a view while they are handled.
func pages[T any](e *engine, ctx context.Context, prefix []byte, each func(*txn, Entry) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for from := prefix; ; {
			var list []T
			err := e.view(ctx, func(t *txn) error {
				for row := range t.scan(from, after(prefix), page) {
					v, err := each(t, Entry{append([]byte{}, row.Key...), append([]byte{}, row.Value...)})
					if err != nil {
						return err
					}
					list = append(list, v)
					from = append(append([]byte{}, row.Key...), 0)
				}
				return nil
			})
			if err != nil {
				yield(none, err)
				return
			}
			for _, v := range list {
				if !yield(v, nil) {
					return
				}
			}
			if len(list) < page {
				return
			}
		}
	}
}
