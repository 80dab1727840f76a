package live

import (
	"context"
	"errors"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// acceptBatch is how many mutations share one local transaction.
const acceptBatch = 256

// accept is the one who publishes: it drains what is ready, whole groups in their
// order, until the run ends.
func (r *runner) accept(ctx context.Context) error {
	var failures backoff
	for ctx.Err() == nil {
		moved := r.pulse.wait()
		progress, err := r.acceptSome(context.WithoutCancel(ctx))
		switch {
		case errors.Is(err, reconcile.ErrUnknown):
			// The next look says whether it happened.
			r.config.Log.Warn("the outcome of a commit is not known, looking again", "error", err)
			if sleep(ctx, failures.next(time.Second)) != nil {
				return nil
			}
		case err != nil:
			return err
		case progress:
			failures.reset()
			r.moved()
		default:
			rest(ctx, moved, time.Minute)
		}
	}
	return nil
}

// acceptSome commits one batch of what is ready, and reports whether it is worth
// looking again at once.
func (r *runner) acceptSome(ctx context.Context) (progress bool, err error) {
	ready, err := r.store.Settled(ctx, acceptBatch)
	if err != nil || len(ready) == 0 {
		return false, err
	}
	at, err := r.store.Revision(ctx)
	if err != nil {
		return false, err
	}
	done, err := r.store.CommitAll(ctx, at.Received, ready)
	for _, c := range done {
		if c.Took() {
			progress = true
		}
	}
	if err != nil || progress || len(done) == 0 {
		return progress, err
	}
	switch last := done[len(done)-1]; last.Status {
	case reconcile.StatusConflict: // somebody else committed in between
		return true, nil
	case reconcile.StatusContextChanged: // the candidates are verified again
		return false, nil
	default:
		r.config.Log.Warn("a group that is ready was refused", "status", last.Status, "reason", last.Reason)
		return false, nil
	}
}
