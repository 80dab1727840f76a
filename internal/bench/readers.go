package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// pollTime is how long a reader's read may wait at the provider.
const pollTime = 20 * time.Second

// opening is how many readers open their sessions at once.
const opening = 8

// Subject is the target as a subject: each reader a session, each append a group of one new row.
func (t *Target) Subject() *Overlay { return &Overlay{t: t, run: newRun(t.evidence())} }

// Overlay is a provider whose delivery is measured.
type Overlay struct {
	t   *Target
	run *run

	mu    sync.Mutex
	parts []*part // that were begun; guarded by mu
}

// part is the rows of one load: number N of part P has the number P<<partShift | N in its context.
type part struct {
	number uint64
	rows   atomic.Uint64 // numbers below this may be listed
}

const partShift = 40

func (p *part) name() string { return strconv.FormatUint(p.number, 10) }

// Name says which service it is.
func (o *Overlay) Name() string { return "overlayd " + o.t.kind() }

// Begin opens the sessions and begins their polls.
func (o *Overlay) Begin(ctx context.Context, n int, deliver func(reader int, change uint64)) (Fan, error) {
	o.mu.Lock()
	p := &part{number: uint64(len(o.parts))}
	o.parts = append(o.parts, p)
	o.mu.Unlock()
	f := &overlayFan{o: o, part: p, value: o.run.name + "-" + p.name(), failed: make(chan error, 1), waiting: make(chan struct{}, n)}
	for range Appenders {
		a, err := o.t.operator()
		if err != nil {
			return nil, err
		}
		f.appenders = append(f.appenders, a)
	}
	if err := f.open(ctx, n); err != nil {
		return nil, errors.Join(err, f.End(ctx))
	}
	readers, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	for i, s := range f.sessions {
		f.running.Go(func() {
			err := f.follow(readers, s, func(change uint64) { deliver(i, change) })
			if readers.Err() == nil {
				select {
				case f.failed <- fmt.Errorf("reader %d: %w", i, err):
				default: // the first is enough
				}
			}
		})
	}
	for range n {
		select {
		case <-f.waiting:
		case err := <-f.failed:
			return nil, errors.Join(err, f.End(ctx))
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.End(ctx))
		}
	}
	return f, nil
}

// overlayFan is one load's readers and connections.
type overlayFan struct {
	o         *Overlay
	part      *part
	value     string // of the attribute
	sessions  []*session
	appenders []*operator
	stop      context.CancelFunc // nil: no reader runs
	running   sync.WaitGroup
	failed    chan error    // buffered
	waiting   chan struct{} // buffered; one for each reader, with its first poll
}

// open opens the sessions, some at a time.
func (f *overlayFan) open(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan struct{}, n)
	for range n {
		next <- struct{}{}
	}
	close(next)
	var mu sync.Mutex
	var all sync.WaitGroup
	digest := ""
	for range min(opening, n) {
		all.Go(func() {
			for range next {
				c, err := f.o.t.caller()
				if err == nil {
					mu.Lock()
					c.digest = digest
					mu.Unlock()
					var s *session
					if s, err = c.open(ctx, f.value, wire.MaxObservations); s != nil && s.batch != nil {
						mu.Lock()
						f.sessions, digest = append(f.sessions, s), c.digest
						mu.Unlock()
					}
					if err == nil {
						err = s.toLive(ctx)
					}
				}
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// follow reads on until it fails, as it does when ctx ends.
func (f *overlayFan) follow(ctx context.Context, s *session, deliver func(change uint64)) error {
	schema := f.o.run.schema()
	for first := true; ; first = false {
		wait := pollTime
		if s.batch.Through < s.batch.HighWater {
			wait = 0
		}
		if first {
			f.waiting <- struct{}{}
		}
		if err := s.read(ctx, wait); err != nil {
			return err
		}
		for i := range s.batch.Groups {
			for j := range s.batch.Groups[i].Observations {
				out := s.batch.Groups[i].Observations[j].Output
				if out == nil || out.Context == nil || out.Context.Schema != schema || len(out.Context.Bytes) != 8 {
					continue // of others
				}
				number := binary.BigEndian.Uint64(out.Context.Bytes)
				if number>>partShift != f.part.number {
					continue // of another load, where readers ask for everything
				}
				deliver(number & (1<<partShift - 1))
			}
		}
	}
}

// Append appends a row to the feed.
func (f *overlayFan) Append(ctx context.Context, appender int, n uint64) error {
	for { // before the append: what may be listed is to be withdrawn
		rows := f.part.rows.Load()
		if n < rows || f.part.rows.CompareAndSwap(rows, n+1) {
			break
		}
	}
	_, err := f.appenders[appender].append(ctx, f.o.run.group(f.part.name(), f.part.number<<partShift|n, f.o.t.Attribute, f.value))
	return err
}

// Failed gets the error of the first reader that cannot go on.
func (f *overlayFan) Failed() <-chan error { return f.failed }

// End ends the polls and closes the sessions, some at a time.
func (f *overlayFan) End(ctx context.Context) error {
	if f.stop != nil {
		f.stop()
	}
	f.running.Wait()
	for _, a := range f.appenders {
		a.close()
	}
	next := make(chan *session, len(f.sessions))
	for _, s := range f.sessions {
		next <- s
	}
	close(next)
	faults := make(chan error, opening)
	var all sync.WaitGroup
	for range opening {
		all.Go(func() {
			for s := range next {
				if err := s.leave(ctx); err != nil {
					faults <- fmt.Errorf("close a session: %w", err)
					return
				}
			}
		})
	}
	all.Wait()
	close(faults)
	f.sessions = nil
	return <-faults
}

// Clear withdraws every row that was appended, whatever the state of ctx (Y8). At a provider of our own there is no need.
func (o *Overlay) Clear(ctx context.Context) error {
	for _, p := range o.parts {
		if err := o.run.clear(ctx, o.t, p.name(), p.number<<partShift, p.rows.Load()); err != nil {
			return err
		}
	}
	return nil
}
