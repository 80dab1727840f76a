package live

import (
	"context"
	"errors"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// projectAgain is the longest pause after a projector's failure.
const projectAgain = 30 * time.Second

// project feeds one projector until the run ends. A change under way when the
// context ends fails, and is fed again by the next run.
func (r *runner) project(ctx context.Context, name string, p reconcile.Projector) error {
	var failures backoff
	for ctx.Err() == nil {
		moved := r.pulse.wait()
		at, err := r.store.Revision(ctx)
		if err != nil {
			return r.unless(ctx, err)
		}
		projected, err := r.store.Projected(ctx, name)
		if err != nil {
			return r.unless(ctx, err)
		}
		if projected >= at.Accepted {
			failures.reset()
			r.caughtUp.beat()
			rest(ctx, moved, time.Minute)
			continue
		}
		projected, err = r.store.Project(ctx, name, p.Apply)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			if ended := errors.Is(err, reconcile.ErrClosed) || errors.Is(err, reconcile.ErrDamaged); ended {
				return err
			}
			if err := r.tell(ctx, Lagging{Projector: name, Projected: projected, Accepted: at.Accepted, Err: err}); err != nil {
				return err
			}
			if sleep(ctx, failures.next(projectAgain)) != nil {
				return nil
			}
		default:
			failures.reset()
		}
	}
	return nil
}

// unless drops an error that only says that the run is over.
func (r *runner) unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// The mark of what was told is written after so many changes, or this long after the
// one before, and when the run ends: it costs a commit of its own.
const (
	watchBatch = 256
	watchEvery = time.Second
)

// watch tells the accepted changes, in order and without a gap. The mark follows:
// what was told after it is told again by the next run.
func (r *runner) watch(ctx context.Context) error {
	if r.config.On == nil {
		return nil
	}
	told, _, err := getNumber(ctx, r.store, keyEvents)
	if err != nil {
		return r.unless(ctx, err)
	}
	r.noteTold(told)
	marked, last := told, time.Time{}
	mark := func() error {
		if told == marked {
			return nil
		}
		marked, last = told, time.Now()
		return r.store.Attach(context.WithoutCancel(ctx), reconcile.Attach{Put: []reconcile.Entry{asNumber(keyEvents, told)}})
	}
	for ctx.Err() == nil {
		forgotten := false
		for change, err := range r.store.Watch(ctx, told) {
			if _, reset := errors.AsType[*reconcile.ResetError](err); reset {
				forgotten = true
				break
			}
			if err != nil {
				return errors.Join(r.unless(ctx, err), mark())
			}
			if err := r.tell(ctx, Accepted{change}); err != nil {
				return errors.Join(r.unless(ctx, err), mark())
			}
			told = change.Revision.Accepted
			if told-marked >= watchBatch || time.Since(last) >= watchEvery {
				if err := mark(); err != nil {
					return err
				}
			}
			r.noteTold(told)
		}
		if forgotten {
			change, err := r.everything(ctx)
			if err != nil {
				return r.unless(ctx, err)
			}
			if err := r.tell(ctx, Accepted{change}); err != nil {
				return r.unless(ctx, err)
			}
			told = change.Revision.Accepted
			if err := mark(); err != nil {
				return err
			}
			r.noteTold(told)
		}
	}
	return mark()
}

func (r *runner) noteTold(revision uint64) {
	r.mu.Lock()
	r.told = max(r.told, revision)
	r.mu.Unlock()
	r.caughtUp.beat()
}

// everything is a snapshot in the form of a change.
func (r *runner) everything(ctx context.Context) (c reconcile.Change, err error) {
	snap, err := r.store.Read(ctx, 0)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	c.Revision, c.Context, c.Kind = snap.Revision(), snap.Context().ID, "snapshot"
	for o, err := range snap.Outputs("") {
		if err != nil {
			return c, err
		}
		c.Outputs = append(c.Outputs, reconcile.OutputChange{Outpoint: o.Outpoint, State: o.State, Stale: o.Stale, By: o.By, Sources: o.Sources})
	}
	for m, err := range snap.Memberships() {
		if err != nil {
			return c, err
		}
		c.Memberships = append(c.Memberships, reconcile.MembershipChange{
			Source: m.Source, Generation: m.Generation, Outpoint: m.Outpoint, Present: m.Present, Sequence: m.Sequence, Observation: m.Observation,
		})
	}
	for tx, err := range snap.Transactions() {
		if err != nil {
			return c, err
		}
		c.Transactions = append(c.Transactions, reconcile.TxChange{
			ID: tx.ID, Status: tx.Status, Pending: tx.Pending, Reason: tx.Reason, Other: tx.Other,
		})
	}
	return c, nil
}
