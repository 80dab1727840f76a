package reconcile

import (
	"context"
	"errors"
	"iter"
	"unicode/utf8"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// Watch gives changes; see Store.
func (e *engine) Watch(ctx context.Context, after uint64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		at := after
		for {
			e.mu.Lock()
			news := e.news // before the look, so that nothing falls between
			e.mu.Unlock()
			var list []Change
			err := e.view(ctx, func(t *txn) (err error) {
				list, err = t.changes(at, 64)
				return err
			})
			if err != nil {
				yield(Change{}, err)
				return
			}
			for _, c := range list {
				if !yield(c, nil) {
					return
				}
				at = c.Revision.Accepted
			}
			if len(list) > 0 {
				continue
			}
			select {
			case <-news:
			case <-ctx.Done():
				yield(Change{}, ctx.Err())
				return
			}
		}
	}
}

// changes reads at most limit changes after a revision.
func (t *txn) changes(at uint64, limit int) ([]Change, error) {
	if at+1 < t.meta.Earliest {
		return nil, &ResetError{Earliest: t.meta.Earliest}
	}
	if at > t.meta.Revision.Accepted {
		return nil, &ResetError{Earliest: t.meta.Earliest}
	}
	var list []Change
	for e := range t.scan(key(spaceChange, at+1), after([]byte{spaceChange}), limit) {
		c, ok := plain[Change](t, e.Value)
		if !ok || c.Revision.Accepted != at+1 {
			return nil, errors.Join(t.err, ErrDamaged)
		}
		list = append(list, c)
		at++
	}
	return list, t.err
}

// Project feeds a projector; see Store.
func (e *engine) Project(ctx context.Context, name string, apply func(context.Context, Change, ProjectTx) error) (uint64, error) {
	if name == "" || len(name) > 64 {
		return 0, errors.New("a projector's name has 1 to 64 bytes")
	}
	var projected uint64
	var failure error
	err := e.update(ctx, func(t *txn) error {
		row, _ := plain[projectorRow](t, t.get(key(spaceProjector, []byte(name))))
		projected = row.At
		accepted := t.meta.Revision.Accepted
		if t.err != nil || row.At == accepted && row.Failure == "" {
			return t.err
		}
		if row.At < accepted {
			c, err := t.nextChange(row.At)
			if err != nil {
				return err
			}
			if failure = apply(ctx, c, t.r.Tx()); failure != nil {
				return failure
			}
			if err := ctx.Err(); err != nil { // nothing is published late
				return err
			}
			row.At = c.Revision.Accepted
		}
		row.Failure = ""
		t.put(key(spaceProjector, []byte(name)), encode(&row))
		projected = row.At
		failpoint.Hit(failpoint.ProjectSending)
		return nil
	})
	if err == nil {
		failpoint.Hit(failpoint.ProjectCommitted)
		return projected, nil
	}
	if failure != nil {
		// The projector's own rows are gone with the commit; that it failed is not.
		kept := e.update(context.WithoutCancel(ctx), func(t *txn) error {
			row, _ := plain[projectorRow](t, t.get(key(spaceProjector, []byte(name))))
			projected, row.Failure = row.At, brief(failure.Error())
			t.put(key(spaceProjector, []byte(name)), encode(&row))
			return nil
		})
		err = errors.Join(err, kept)
	}
	return projected, err
}

// brief is the beginning of a text, in whole characters.
func brief(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	n := most
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// nextChange is what a projector at a revision needs next: the change after it, or
// the whole snapshot when it has nothing or its place is forgotten.
func (t *txn) nextChange(at uint64) (Change, error) {
	if at > 0 && at+1 >= t.meta.Earliest {
		list, err := t.changes(at, 1)
		if err == nil && len(list) == 1 {
			return list[0], nil
		}
		return Change{}, errors.Join(err, ErrDamaged)
	}
	return t.whole()
}

// Projected returns how far a projector is; see Store.
func (e *engine) Projected(ctx context.Context, name string) (at uint64, err error) {
	err = e.view(ctx, func(t *txn) error {
		row, _ := plain[projectorRow](t, t.get(key(spaceProjector, []byte(name))))
		at = row.At
		return nil
	})
	return at, err
}

// Rebuild sets a projector back; see Store.
func (e *engine) Rebuild(ctx context.Context, name string) error {
	return e.update(ctx, func(t *txn) error {
		t.del(key(spaceProjector, []byte(name)))
		return nil
	})
}
