package live

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// promise notes when a source's session ends, in Unix seconds; 0: it has none.
func (r *runner) promise(id reconcile.SourceID, at uint64) {
	r.mu.Lock()
	changed := r.expires[id] != at
	if at == 0 {
		delete(r.expires, id)
	} else {
		r.expires[id] = at
	}
	r.mu.Unlock()
	if changed {
		r.promised.beat()
	}
}

// due is the first end of a session; false when none is promised. Those at or before
// now are forgotten.
func (r *runner) due(now uint64) (next uint64, any, passed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, at := range r.expires {
		switch {
		case at <= now:
			delete(r.expires, id)
			passed = true
		case !any || at < next:
			next, any = at, true
		}
	}
	return next, any, passed
}

// expire publishes that what was promised until a time is not fresh any more. A
// reader judges expiry by the time of reading, so being late here shows nothing old
// as fresh.
func (r *runner) expire(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := r.promised.wait()
		now := time.Now()
		next, any, passed := r.due(uint64(now.Unix()))
		if passed {
			_, err := reconcile.Settle(context.WithoutCancel(ctx), r.store, reconcile.Invalidate{Reason: "expired", Now: uint64(now.Unix())})
			if err != nil {
				return err
			}
			r.moved()
			continue
		}
		wait := time.Hour
		if any {
			wait = min(wait, time.Until(time.Unix(int64(min(next, 1<<40)), 0)))
		}
		rest(ctx, changed, wait)
	}
	return nil
}
