package live

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// Run follows every source until the context ends, and returns its cause. It
// returns nil when UntilLive ends the run, and otherwise why it cannot go on: an
// error of the store, of the chain view, or of On; a [*PendingError]; or, once no
// source is left to follow, what each of them stopped with.
func Run(ctx context.Context, c Config) error {
	if err := c.normalise(); err != nil {
		return err
	}
	r := &runner{
		config: c, store: c.Store, turn: make(chan struct{}, 1), byID: map[reconcile.SourceID]*source{},
		expires: map[reconcile.SourceID]uint64{},
	}
	r.pool = verify.NewPool(verify.New(verify.Config{Workers: c.Workers, Log: c.Log}), verify.PoolOptions{Recorded: r.recorded})
	for i := range c.Sources {
		r.sources = append(r.sources, &source{runner: r, live: &c.Sources[i]})
	}
	for i := range c.Finite {
		r.sources = append(r.sources, &source{runner: r, finite: &c.Finite[i]})
	}
	return r.run(ctx)
}

// errDone ends a run that has nothing to complain about.
var errDone = errors.New("done")

// runner is one run.
type runner struct {
	// Static after construction.
	config  Config
	store   reconcile.Store
	sources []*source
	turn    chan struct{} // held while a batch is committed; those who wait get it in their order (V3)
	pool    *verify.Pool
	cancel  context.CancelCauseFunc

	wg       sync.WaitGroup
	pulse    pulse // something moved in the store
	caughtUp pulse // a projector, a source or the events came further
	promised pulse // a session has another end
	// view is in force in the store. It is read while a batch is planned and
	// committed, and written while another view takes its place (V5).
	viewMu sync.RWMutex
	view   verify.View

	tellMu sync.Mutex // one event at a time

	mu      sync.Mutex
	byID    map[reconcile.SourceID]*source // sources that have a number
	expires map[reconcile.SourceID]uint64  // when the session of each ends, Unix seconds
	told    uint64                         // accepted revision through which events were told
}

// pulse wakes everybody who waits for the store to move.
type pulse struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns what is closed by the next beat. Take it before looking.
func (p *pulse) wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = make(chan struct{})
	}
	return p.next
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		close(p.next)
		p.next = nil
	}
}

func (r *runner) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	r.cancel = cancel
	if err := r.prepare(ctx); err != nil {
		return err
	}
	r.start(ctx, r.dispatch)
	r.start(ctx, r.keep)
	r.start(ctx, func(ctx context.Context) error { return r.unless(ctx, r.pool.Run(ctx, r.store)) })
	r.start(ctx, r.accept)
	r.start(ctx, r.expire)
	r.start(ctx, r.watch)
	for name, p := range r.config.Projectors {
		r.start(ctx, func(ctx context.Context) error { return r.project(ctx, name, p) })
	}
	for _, s := range r.sources {
		r.start(ctx, s.run)
	}
	if w, ok := r.config.Chain.(verify.Watcher); ok {
		r.start(ctx, w.Watch)
	}
	r.start(ctx, r.finish)
	r.wg.Wait()
	switch cause := context.Cause(ctx); {
	case parent.Err() != nil:
		return context.Cause(parent)
	case errors.Is(cause, errDone):
		return r.stopped()
	default:
		return cause
	}
}

// start runs one part. Its failure ends the run.
func (r *runner) start(ctx context.Context, part func(context.Context) error) {
	r.wg.Go(func() {
		if err := part(ctx); err != nil {
			r.cancel(err)
		}
	})
}

// prepare brings the view that is in force up to date before anything is received.
func (r *runner) prepare(ctx context.Context) error {
	return r.follow(ctx)
}

// dispatchEvery is how often everybody looks though nothing was said to have moved:
// another process may have moved it.
const dispatchEvery = 5 * time.Second

// dispatch hands the store's hint to all parts.
func (r *runner) dispatch(ctx context.Context) error {
	tick := time.NewTicker(dispatchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.store.Changed():
		case <-tick.C:
		}
		r.moved()
	}
}

// moved wakes all parts.
func (r *runner) moved() {
	r.pulse.beat()
	r.pool.Wake()
}

// tell hands out one event. An error of On ends the run.
func (r *runner) tell(ctx context.Context, e Event) error {
	if r.config.On == nil {
		return nil
	}
	r.tellMu.Lock()
	defer r.tellMu.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := r.config.On(ctx, e); err != nil {
		r.cancel(err)
		return err
	}
	return nil
}

// stopped is what the sources stopped with.
func (r *runner) stopped() error {
	var all []error
	for _, s := range r.sources {
		if _, err := s.state(); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// sleep waits, or returns early with the context's cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rest waits for the store to move, for d, or for the end of ctx.
func rest(ctx context.Context, moved <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-moved:
	case <-timer.C:
	case <-ctx.Done():
	}
}
