package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// keepAgain is how long a view that could not be asked for is waited for.
const keepAgain = 30 * time.Second

// keep follows the chain: each new view becomes one context change.
func (r *runner) keep(ctx context.Context) error {
	var failures backoff
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.config.Chain.Changed():
		}
		for {
			err := r.follow(ctx)
			if err == nil {
				failures.reset()
				break
			}
			if _, passing := errors.AsType[*chainError](err); !passing {
				return err
			}
			// What is known of the chain stays in force meanwhile.
			d := failures.next(keepAgain)
			if err := r.tell(ctx, Waiting{Err: err, For: d}); err != nil {
				return err
			}
			if sleep(ctx, d) != nil {
				return nil
			}
		}
	}
}

// chainError is a chain view that cannot answer now.
type chainError struct{ err error }

func (e *chainError) Error() string { return "the chain view cannot be asked: " + e.err.Error() }
func (e *chainError) Unwrap() error { return e.err }

// follow puts the chain's current view in force, if it is not.
func (r *runner) follow(ctx context.Context) error {
	for {
		v, err := r.config.Chain.Current(ctx)
		if err != nil {
			return &chainError{err}
		}
		// Whatever has to be fetched for it is fetched before anybody waits.
		before, err := r.inForce(ctx)
		if err != nil {
			return err
		}
		if before.ID != v.ID() {
			if _, _, err := r.answers(ctx, before.ID, v); err != nil {
				return err
			}
		}
		again, told, err := r.install(ctx, v)
		if err != nil {
			return err
		}
		if told != nil {
			r.moved()
			if err := r.tell(ctx, *told); err != nil {
				return err
			}
		}
		if !again {
			return nil
		}
	}
}

// install makes a view the one in force, with no receive in between. It asks to be
// called again when somebody else changed the context meanwhile.
func (r *runner) install(ctx context.Context, v verify.View) (again bool, told *Context, err error) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	before, err := r.inForce(ctx)
	if err != nil {
		return false, nil, err
	}
	if before.ID == v.ID() {
		r.view = v
		return false, nil, nil
	}
	fork, claims, err := r.answers(ctx, before.ID, v)
	if err != nil {
		return false, nil, err
	}
	change := reconcile.ContextChange{
		Context:  reconcile.Context{ID: v.ID(), View: v.Context(), PolicyDigest: before.PolicyDigest, Now: max(uint64(time.Now().Unix()), before.Now)},
		Prepared: before.ID, Claims: claims, Fork: fork,
	}
	for {
		done, err := reconcile.Settle(context.WithoutCancel(ctx), r.store, change)
		if err != nil {
			return false, nil, err
		}
		switch done.Status {
		case reconcile.StatusCommitted:
			r.view = v
			at := v.Context()
			return false, &Context{ID: v.ID(), Height: at.TipHeight, MedianTimePast: at.MedianTimePast, Fork: fork}, nil
		case reconcile.StatusReplayed:
			// To and fro within one second: the same change was made before.
			now, err := r.inForce(ctx)
			if err != nil {
				return false, nil, err
			}
			if now.ID == v.ID() {
				r.view = v
				return false, nil, nil
			}
			change.Context.Now++
		case reconcile.StatusContextChanged:
			return true, nil, nil
		default:
			return false, nil, fmt.Errorf("the view %s cannot be put in force (%s): %s", v.ID(), done.Status, done.Reason)
		}
	}
}

// inForce is the context that the store is in.
func (r *runner) inForce(ctx context.Context) (reconcile.Context, error) {
	snap, err := r.store.Read(ctx, 0)
	if err != nil {
		return reconcile.Context{}, err
	}
	c := snap.Context()
	return c, snap.Close()
}

// answers asks a view for every placement that a change to it may concern.
func (r *runner) answers(ctx context.Context, before string, v verify.View) (fork uint32, claims []reconcile.Claim, err error) {
	if fork, err = r.config.Chain.Fork(ctx, before, v.ID()); err != nil {
		fork = 0 // everything is asked again
	}
	height := v.Context().TipHeight
	claims, err = r.store.Claims(ctx, fork, uint32(min(height, 1<<32-1)))
	if err != nil {
		return 0, nil, err
	}
	if err := r.config.Chain.Prefetch(ctx, v, claims); err != nil {
		return 0, nil, &chainError{err}
	}
	return fork, verify.Ask(v, claims), nil
}
