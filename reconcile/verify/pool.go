package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// Work is what a [Pool] needs of a store.
type Work interface {
	Work(ctx context.Context, after reconcile.Cursor, limit int) ([]reconcile.Job, reconcile.Cursor, error)
	Load(ctx context.Context, j reconcile.Job) (reconcile.Evidence, error)
	Record(ctx context.Context, results []reconcile.Result) ([]reconcile.Recorded, error)
}

// PoolOptions configure a [Pool].
type PoolOptions struct {
	// Recorded is told what became of results, in the order of both slices, before
	// the next are recorded. It must not wait for the pool.
	Recorded func(results []reconcile.Result, became []reconcile.Recorded)
}

const (
	recordMost  = 64                   // results of one Record
	recordAfter = 5 * time.Millisecond // how long the first of them may wait
	dropsMost   = 3                    // how often the store may drop a job's result before the job rests
)

// Pool takes the jobs of a store, checks them on its workers and records the
// results. Sources share the workers by the time that their jobs take.
type Pool struct {
	v    *Verifier
	o    PoolOptions
	wake chan struct{}
}

// NewPool makes a pool of Config.Workers workers and a spare one.
func NewPool(v *Verifier, o PoolOptions) *Pool {
	if o.Recorded == nil {
		o.Recorded = func([]reconcile.Result, []reconcile.Recorded) {}
	}
	return &Pool{v: v, o: o, wake: make(chan struct{}, 1)}
}

// Wake says that the store may have more work, or another context. It never
// blocks.
func (p *Pool) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// place of a job in its store.
type jobKey struct {
	source       reconcile.SourceID
	group, index uint64
}

func keyOf(j reconcile.Job) jobKey { return jobKey{j.Source, j.Group, j.Index} }

// outcome is a finished job. took is what its source is charged.
type outcome struct {
	job    reconcile.Job
	result reconcile.Result
	took   time.Duration
	err    error // of Load
}

// queue is one source's share of the pool.
type queue struct {
	jobs    []reconcile.Job
	more    bool // the store may have jobs of it that are not here
	running int
	charged time.Duration // the more, the later its turn
}

// flight is a job that was handed out and whose result is not recorded yet.
type flight struct {
	context string
	stop    context.CancelCauseFunc
}

// running is one Run.
type running struct {
	*Pool
	store    Work
	queues   map[reconcile.SourceID]*queue
	queued   int
	flights  map[jobKey]flight
	working  int               // flights that a worker has
	drops    map[jobKey]int    // in this context
	rests    map[jobKey]string // jobs not to be tried again in a context
	waiting  map[jobKey]bool   // jobs in queues
	context  string            // of the newest job that was seen
	finished []outcome         // to be recorded
}

// errContext ends jobs of a context that is over.
var errContext = errors.New("the context of the job is over")

// Run works until ctx ends, and then returns nil: jobs under way are cancelled
// and their results dropped. An error of the store ends it too.
func (p *Pool) Run(ctx context.Context, store Work) error {
	r := &running{
		Pool: p, store: store, queues: map[reconcile.SourceID]*queue{}, flights: map[jobKey]flight{}, drops: map[jobKey]int{},
		rests: map[jobKey]string{}, waiting: map[jobKey]bool{},
	}
	ctx, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	type task struct {
		ctx context.Context
		job reconcile.Job
	}
	tasks, done := make(chan task), make(chan outcome)
	for range p.v.c.Workers + 1 {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case t := <-tasks:
					o := p.work(t.ctx, store, t.job)
					select {
					case <-ctx.Done():
						return
					case done <- o:
					}
				}
			}
		})
	}
	flush := time.NewTimer(time.Hour)
	defer flush.Stop()
	flush.Stop()
	if err := r.fill(ctx, 0); err != nil {
		return ended(ctx, err)
	}
	for {
		for s, q := range r.queues {
			if q.more && len(q.jobs) == 0 {
				if err := r.fill(ctx, s); err != nil {
					return ended(ctx, err)
				}
			}
		}
		for job, ok := r.next(); ok; job, ok = r.next() {
			jobCtx, cancel := context.WithCancelCause(ctx)
			r.flights[keyOf(job)] = flight{job.Context, cancel}
			select {
			case <-ctx.Done():
				cancel(nil)
				return nil
			case tasks <- task{jobCtx, job}:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			if err := r.fill(ctx, 0); err != nil {
				return ended(ctx, err)
			}
		case o := <-done:
			r.finish(o)
			if len(r.finished) == 1 {
				flush.Reset(recordAfter)
			}
			if len(r.finished) < recordMost && (r.working > 0 || r.queued > 0) {
				continue
			}
			if err := r.record(ctx); err != nil {
				return ended(ctx, err)
			}
		case <-flush.C:
			if err := r.record(ctx); err != nil {
				return ended(ctx, err)
			}
		}
	}
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("verify: the store of the jobs: %w", err)
}

// work is one job on a worker.
func (p *Pool) work(ctx context.Context, store Work, job reconcile.Job) outcome {
	start := time.Now()
	o := outcome{job: job}
	var e reconcile.Evidence
	if e, o.err = store.Load(ctx, job); o.err == nil {
		e.Job = job
		o.result = p.v.Check(ctx, e)
		if o.result.Status == reconcile.Cancelled && errors.Is(context.Cause(ctx), errContext) {
			o.result.Status, o.result.Reason = reconcile.ContextChanged, errContext.Error()
		}
	}
	o.took = time.Since(start)
	return o
}

// fill takes a few jobs for each source, or for only one.
func (r *running) fill(ctx context.Context, only reconcile.SourceID) error {
	after := reconcile.Cursor{Source: only}
	if q, ok := r.queues[only]; ok {
		q.more = false
	}
	for {
		jobs, next, err := r.store.Work(ctx, after, r.most()+len(r.flights)+1)
		if err != nil {
			return err
		}
		full := reconcile.SourceID(0)
		for _, j := range jobs {
			if only != 0 && j.Source != only {
				return nil
			}
			if !r.take(j) {
				full = j.Source
				break
			}
		}
		switch {
		case full != 0 && only != 0:
			return nil
		case full != 0:
			after = reconcile.Cursor{Source: full + 1}
		case next == (reconcile.Cursor{}):
			return nil
		default:
			after = next
		}
	}
}

// most is how many jobs of one source are kept in memory.
func (r *running) most() int { return 32 * r.v.c.Workers }

// take puts a job into its queue unless it is under way; false when the queue is
// full.
func (r *running) take(j reconcile.Job) bool {
	r.meet(j.Context)
	key := keyOf(j)
	if _, flying := r.flights[key]; flying || r.waiting[key] || r.rests[key] == j.Context {
		return true
	}
	q := r.queue(j.Source)
	if len(q.jobs) >= r.most() {
		q.more = true
		return false
	}
	q.jobs = append(q.jobs, j)
	r.waiting[key] = true
	r.queued++
	return true
}

// meet notices another context: what was begun under the old one is in vain.
func (r *running) meet(id string) {
	if id == r.context {
		return
	}
	r.context = id
	clear(r.drops)
	clear(r.rests)
	for _, f := range r.flights {
		if f.context != id {
			f.stop(errContext)
		}
	}
	clear(r.waiting)
	r.queued = 0
	for _, q := range r.queues {
		q.jobs, q.more = nil, true
	}
}

// queue gives the queue of a source. One that had none for a while does not
// bring the time along that it left unused.
func (r *running) queue(s reconcile.SourceID) *queue {
	q, ok := r.queues[s]
	if !ok {
		q = &queue{}
		r.queues[s] = q
	}
	if len(q.jobs) == 0 && q.running == 0 {
		least, any := time.Duration(0), false
		for _, other := range r.queues {
			if other != q && len(other.jobs)+other.running > 0 && (!any || other.charged < least) {
				least, any = other.charged, true
			}
		}
		q.charged = max(q.charged, least)
	}
	return q
}

// next takes the job of the source that has had the least time. The spare worker
// is for sources that have none.
func (r *running) next() (reconcile.Job, bool) {
	if r.working > r.v.c.Workers {
		return reconcile.Job{}, false
	}
	var best *queue
	var source reconcile.SourceID
	for s, q := range r.queues {
		if len(q.jobs) == 0 || r.working == r.v.c.Workers && q.running > 0 {
			continue
		}
		if best == nil || q.charged < best.charged || q.charged == best.charged && s < source {
			best, source = q, s
		}
	}
	if best == nil || r.working == r.v.c.Workers && !r.others(source) {
		return reconcile.Job{}, false
	}
	j := best.jobs[0]
	best.jobs = best.jobs[1:]
	delete(r.waiting, keyOf(j))
	best.running++
	best.charged += estimate(j)
	r.queued--
	r.working++
	return j, true
}

// others reports whether any other source has a worker.
func (r *running) others(s reconcile.SourceID) bool {
	for other, q := range r.queues {
		if other != s && q.running > 0 {
			return true
		}
	}
	return false
}

// estimate is what a job is charged until it is known what it took.
func estimate(j reconcile.Job) time.Duration {
	return time.Millisecond + time.Duration(j.Bytes)*time.Microsecond
}

// finish takes a job back from its worker.
func (r *running) finish(o outcome) {
	r.working--
	q := r.queues[o.job.Source]
	q.running--
	q.charged += o.took - estimate(o.job)
	key := keyOf(o.job)
	switch {
	case o.err != nil:
		r.v.c.Log.Warn("a job cannot be loaded", "source", o.job.Source, "group", o.job.Group, "error", o.err)
		r.drop(key, o.job.Context)
	case o.result.Status == reconcile.Cancelled || o.result.Status == reconcile.ContextChanged:
		r.land(key)
		q.more = true // it is listed again
	default:
		r.finished = append(r.finished, o)
	}
}

// land ends a flight.
func (r *running) land(key jobKey) {
	if f, ok := r.flights[key]; ok {
		f.stop(nil)
		delete(r.flights, key)
	}
}

// drop is a job that got no result. It is tried again a few times in one context.
func (r *running) drop(key jobKey, id string) {
	r.land(key)
	if r.drops[key]++; r.drops[key] >= dropsMost {
		r.rests[key] = id
	}
	r.queues[key.source].more = true
}

// record hands results to the store. A commit whose outcome is unknown is simply
// done again: the store drops what it has.
func (r *running) record(ctx context.Context) error {
	if len(r.finished) == 0 {
		return nil
	}
	results := make([]reconcile.Result, len(r.finished))
	for i, o := range r.finished {
		results[i] = o.result
	}
	became, err := r.store.Record(ctx, results)
	for errors.Is(err, reconcile.ErrUnknown) && ctx.Err() == nil {
		became, err = r.store.Record(ctx, results)
	}
	if err != nil {
		return err
	}
	for i, o := range r.finished {
		key := keyOf(o.job)
		if i < len(became) && became[i].Kept {
			r.land(key)
			delete(r.drops, key)
			continue
		}
		r.drop(key, o.job.Context)
	}
	r.finished = nil
	r.o.Recorded(results, became)
	return nil
}
