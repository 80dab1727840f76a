package verify_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// desk is a store's list of jobs.
type desk struct {
	evidence reconcile.Evidence
	loading  func(ctx context.Context, j reconcile.Job) error
	refuse   func(results []reconcile.Result) error
	drop     func(r reconcile.Result) bool

	mu      sync.Mutex
	context string
	jobs    []reconcile.Job
	kept    []reconcile.Result
	dropped int
	loads   int
	batches []int
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	c := verifytest.NewChain(t)
	a := pay(c.Fund.Out(0))
	s := newStore(t)
	p := verify.Plan(c.BEEF(a, verifytest.Evidence{}), a.ID, c.View(c.Tip()), reconcile.Budget{})
	s.receive(t, p)
	return &desk{evidence: s.load(p, output(0)), context: "one"}
}

// add lists n more jobs of a source.
func (d *desk) add(source reconcile.SourceID, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range n {
		d.jobs = append(d.jobs, reconcile.Job{Source: source, Generation: 1, Group: uint64(len(d.jobs) + len(d.kept) + 1), Target: d.evidence.Job.Target})
	}
	slices.SortStableFunc(d.jobs, func(a, b reconcile.Job) int { return cmp.Compare(a.Source, b.Source) })
}

func (d *desk) move(context string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.context = context
}

func (d *desk) Work(_ context.Context, after reconcile.Cursor, limit int) (jobs []reconcile.Job, next reconcile.Cursor, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, j := range d.jobs {
		if j.Source < after.Source || j.Source == after.Source && j.Group <= after.Group {
			continue
		}
		if len(jobs) == limit {
			return jobs, next, nil
		}
		j.Context = d.context
		jobs = append(jobs, j)
		next = reconcile.Cursor{Source: j.Source, Group: j.Group, Index: j.Index}
	}
	return jobs, reconcile.Cursor{}, nil
}

func (d *desk) Load(ctx context.Context, j reconcile.Job) (reconcile.Evidence, error) {
	d.mu.Lock()
	d.loads++
	e, loading := d.evidence, d.loading
	d.mu.Unlock()
	if loading != nil {
		if err := loading(ctx, j); err != nil {
			return e, err
		}
	}
	e.Job = j
	return e, nil
}

func (d *desk) Record(_ context.Context, results []reconcile.Result) ([]reconcile.Recorded, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batches = append(d.batches, len(results))
	if d.refuse != nil {
		if err := d.refuse(results); err != nil {
			return nil, err
		}
	}
	became := make([]reconcile.Recorded, len(results))
	for i, r := range results {
		if r.Context != d.context || d.drop != nil && d.drop(r) {
			d.dropped++
			continue
		}
		at := slices.IndexFunc(d.jobs, func(j reconcile.Job) bool { return j.Source == r.Source && j.Group == r.Group })
		if at < 0 {
			d.dropped++
			continue
		}
		d.jobs = slices.Delete(d.jobs, at, at+1)
		d.kept = append(d.kept, r)
		became[i] = reconcile.Recorded{Kept: true}
	}
	return became, nil
}

// take is a job that lasts, in time that only a bubble has.
func take(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil // Check sees it
	case <-timer.C:
		return nil
	}
}

// start runs a pool; stop ends it and gives its error.
func start(t *testing.T, d *desk, workers int, told func([]reconcile.Result, []reconcile.Recorded)) (p *verify.Pool, stop func() error) {
	t.Helper()
	v := verify.New(verify.Config{Workers: workers, Log: slog.New(slog.DiscardHandler), JobTimeout: 24 * time.Hour})
	p = verify.NewPool(v, verify.PoolOptions{Recorded: told})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, d) }()
	return p, func() error {
		cancel()
		return <-done
	}
}

func TestR9_ContextIsCheckedOnCompletion(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		started := make(chan string, 100)
		d.loading = func(ctx context.Context, j reconcile.Job) error {
			started <- j.Context
			if j.Context == "one" {
				<-ctx.Done() // until the pool notices that its context is over
			}
			return nil
		}
		d.add(1, 3)
		p, stop := start(t, d, 2, nil)
		synctest.Wait()
		if len(started) != 2 {
			t.Errorf("%d jobs have begun, with two workers and one source", len(started))
		}
		d.move("two")
		p.Wake()
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(d.kept) != 3 || d.dropped != 0 {
			t.Errorf("%d kept, %d dropped: a cancelled job is recorded, or not done again", len(d.kept), d.dropped)
		}
		for _, r := range d.kept {
			if r.Context != "two" || r.Status != reconcile.Verified {
				t.Errorf("%+v", r)
			}
		}
	})
	// The context moves between the check and the record: the store drops the
	// result, and the job is done again.
	d = newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.add(1, 1)
		moved := false
		d.loading = func(context.Context, reconcile.Job) error {
			if !moved {
				moved = true
				d.move("two")
			}
			return nil
		}
		_, stop := start(t, d, 1, nil)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(d.kept) != 1 || d.kept[0].Context != "two" || d.dropped != 1 {
			t.Errorf("%d kept, %d dropped", len(d.kept), d.dropped)
		}
	})
}

func TestY6_SourcesShareTheWorkers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.loading = func(ctx context.Context, j reconcile.Job) error {
			return take(ctx, map[reconcile.SourceID]time.Duration{1: 10 * time.Second, 2: time.Second, 3: time.Second}[j.Source])
		}
		d.add(1, 500)
		p, stop := start(t, d, 2, nil)
		pass(15 * time.Second) // the flood has the pool to itself
		d.add(2, 40)
		d.add(3, 40)
		p.Wake()
		began := time.Now()
		for len(of(d, 2))+len(of(d, 3)) < 80 {
			pass(time.Second)
			if time.Since(began) > 5*time.Minute {
				t.Fatal("the honest sources do not come through")
			}
		}
		took, flood := time.Since(began), len(of(d, 1))
		// Three sources that always have work share alike: each gets the time of its
		// jobs in about three rounds, and the flood is not kept out either.
		if took > time.Minute || flood < 3 || flood > 12 {
			t.Errorf("80 jobs of a second took %v, beside %d of the flood", took, flood)
		}
		t.Logf("80 jobs of a second took %v beside %d jobs of ten", took, flood)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A job is charged what it took: ten jobs of a second weigh as much as one of ten.
func TestY6_TimeIsShared(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.loading = func(ctx context.Context, j reconcile.Job) error {
			return take(ctx, map[reconcile.SourceID]time.Duration{1: 10 * time.Second, 2: time.Second}[j.Source])
		}
		d.add(1, 500)
		d.add(2, 300)
		_, stop := start(t, d, 4, nil)
		pass(100 * time.Second)
		if slow, quick := len(of(d, 1)), len(of(d, 2)); quick < 7*slow || slow < 10 {
			t.Errorf("%d jobs of ten seconds beside %d of one", slow, quick)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestY6_AStalledSourceHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.loading = func(ctx context.Context, j reconcile.Job) error {
			if j.Source == 1 {
				<-ctx.Done()
			}
			return nil
		}
		d.add(1, 100)
		p, stop := start(t, d, 2, nil)
		synctest.Wait()
		d.add(2, 30)
		p.Wake()
		pass(10 * time.Millisecond)
		if n := len(of(d, 2)); n != 30 {
			t.Errorf("%d of 30 jobs are done beside a source that holds its workers", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// pass lets time go by in a bubble.
func pass(d time.Duration) { <-time.NewTimer(d).C }

// of are the results of one source.
func of(d *desk, s reconcile.SourceID) (out []reconcile.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.kept {
		if r.Source == s {
			out = append(out, r)
		}
	}
	return out
}

func TestY5_StoppingRecordsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.loading = func(ctx context.Context, _ reconcile.Job) error { return take(ctx, time.Hour) }
		d.add(1, 10)
		_, stop := start(t, d, 3, nil)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(d.kept) != 0 || d.dropped != 0 || d.loads != 3 {
			t.Errorf("%d kept, %d dropped, %d begun", len(d.kept), d.dropped, d.loads)
		}
	})
}

func TestR9_ResultsAreRecordedInBatches(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		told := 0
		d.add(1, 300)
		unknown := 2
		d.refuse = func([]reconcile.Result) error {
			if unknown > 0 {
				unknown--
				return errors.Join(reconcile.ErrUnknown, errors.New("the reply is lost"))
			}
			return nil
		}
		_, stop := start(t, d, 2, func(results []reconcile.Result, became []reconcile.Recorded) {
			if len(results) != len(became) {
				t.Errorf("%d results, %d answers", len(results), len(became))
			}
			for i := range became {
				if became[i].Kept && results[i].Status == reconcile.Verified {
					told++
				}
			}
		})
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(d.kept) != 300 || told != 300 || d.loads != 300 {
			t.Errorf("%d kept, %d told, %d loaded", len(d.kept), told, d.loads)
		}
		if most := slices.Max(d.batches); most > 64 || most < 2 {
			t.Errorf("batches of up to %d", most)
		}
	})
	d = newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the disk is gone")
		d.add(1, 1)
		d.refuse = func([]reconcile.Result) error { return gone }
		v := verify.New(verify.Config{Workers: 1})
		if err := verify.NewPool(v, verify.PoolOptions{}).Run(t.Context(), d); !errors.Is(err, gone) {
			t.Errorf("a store in trouble: %v", err)
		}
	})
}

// What the store keeps dropping is not done for ever, and is done again under
// another context.
func TestY5_DroppedJobsRest(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	synctest.Test(t, func(t *testing.T) {
		d.add(1, 5)
		d.drop = func(r reconcile.Result) bool { return r.Group == 3 && r.Context == "one" }
		p, stop := start(t, d, 2, nil)
		for range 10 {
			p.Wake()
			synctest.Wait()
		}
		if len(of(d, 1)) != 4 || d.dropped != 3 {
			t.Errorf("%d kept, %d dropped", len(d.kept), d.dropped)
		}
		d.move("two")
		p.Wake()
		synctest.Wait()
		if len(of(d, 1)) != 5 {
			t.Errorf("%d kept under another context", len(d.kept))
		}
		// A job that cannot be loaded rests as well.
		loads := 0
		d.loading = func(context.Context, reconcile.Job) error { loads++; return errors.New("torn") }
		d.add(1, 1)
		for range 10 {
			p.Wake()
			synctest.Wait()
		}
		if loads != 3 {
			t.Errorf("%d attempts", loads)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
