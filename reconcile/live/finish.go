package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// finish ends the run: with UntilLive when everything is done, and in any case when
// no source is left to follow.
func (r *runner) finish(ctx context.Context) error {
	var idle time.Time // since when nothing but unresolved evidence is left
	for ctx.Err() == nil {
		moved, further := r.pulse.wait(), r.caughtUp.wait()
		wait := time.Minute
		left, err := r.left(ctx)
		switch {
		case err != nil:
			return r.unless(ctx, err)
		case left == nil:
			return errDone
		case errors.Is(left, errBusy):
			idle = time.Time{}
		default:
			if idle.IsZero() {
				idle = time.Now()
			}
			if wait = r.config.RetryFor - time.Since(idle); wait <= 0 {
				return errors.Join(left, r.stopped())
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-moved:
		case <-further:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// errBusy says that something is still being done.
var errBusy = errors.New("busy")

// left is what is still to be done: nothing, errBusy, or what only the world can do.
func (r *runner) left(ctx context.Context) (left, err error) {
	stopped := 0
	for _, s := range r.sources {
		caughtUp, err := s.state()
		switch {
		case err != nil:
			stopped++
		case !caughtUp:
			return errBusy, nil
		}
	}
	if !r.config.UntilLive && (stopped == 0 || stopped < len(r.sources)) {
		return errBusy, nil
	}
	jobs, _, err := r.store.Work(ctx, reconcile.Cursor{}, 1)
	if err != nil || len(jobs) > 0 {
		return errBusy, err
	}
	ready, err := r.store.Settled(ctx, 1)
	if err != nil || len(ready) > 0 {
		return errBusy, err
	}
	at, err := r.store.Revision(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	told := r.told
	r.mu.Unlock()
	if r.config.On != nil && told < at.Accepted {
		return errBusy, nil
	}
	for name := range r.config.Projectors {
		projected, err := r.store.Projected(ctx, name)
		if err != nil {
			return nil, err
		}
		if projected >= at.Accepted {
			continue
		}
		failure, err := r.failure(ctx, name)
		if err != nil || failure == "" { // it is on its way
			return errBusy, err
		}
		left = fmt.Errorf("the projector %q is at revision %d of %d: %s", name, projected, at.Accepted, failure)
	}
	pending, err := r.pending(ctx)
	if pending == nil || err != nil {
		return left, err
	}
	return errors.Join(pending, left), nil
}

// failure is what a projector's last attempt failed with.
func (r *runner) failure(ctx context.Context, name string) (text string, err error) {
	snap, err := r.store.Read(ctx, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	counts, err := snap.Counts()
	for _, p := range counts.Projectors {
		if p.Name == name {
			text = p.Failure
		}
	}
	return text, err
}

// pending is what waits for evidence; nil when nothing does.
func (r *runner) pending(ctx context.Context) (p *PendingError, err error) {
	snap, err := r.store.Read(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	for g, err := range snap.PendingGroups() {
		if err != nil {
			return nil, err
		}
		if p == nil {
			r.mu.Lock()
			s := r.byID[g.Source]
			r.mu.Unlock()
			p = &PendingError{Reason: g.Reason, Waiting: g.Waiting, Source: Origin{ID: g.Source}}
			if s != nil {
				p.Source = s.origin()
			}
		}
		p.Groups++
	}
	return p, nil
}
