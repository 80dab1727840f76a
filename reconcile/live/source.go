package live

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
)

// Kinds of sources, as the store keeps them.
const (
	kindLive   = "lookup-live"
	kindFinite = "finite"
)

// fruitless is after how many broken words in a row UntilLive gives up on a source.
const fruitless = 3

// source is one source of a run: either live or finite.
type source struct {
	runner *runner
	live   *Source
	finite *Finite

	mu       sync.Mutex
	name     Origin                  // guarded by mu; ID 0 until the store gave it a number
	stop     context.CancelCauseFunc // guarded by mu; ends the generation at work, nil between two
	over     chan struct{}           // guarded by mu; closed when the generation of a source that rests is quarantined
	caughtUp bool                    // guarded by mu; UntilLive: it read everything there was
	err      error                   // guarded by mu; why it is not followed any more
}

// errQuarantined ends a follower whose generation is over.
var errQuarantined = errors.New("something that this source said is invalid")

// origin names the source; before the store gave it a number, by its configuration.
func (s *source) origin() Origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name.ID == 0 {
		switch {
		case s.live != nil:
			return Origin{Key: reconcile.SourceKey{Kind: kindLive, Base: s.live.BaseURL, Service: s.live.Service, Label: s.live.Label}}
		default:
			return Origin{Key: s.finite.key()}
		}
	}
	return s.name
}

// state is how far the source is for UntilLive.
func (s *source) state() (caughtUp bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caughtUp, s.err
}

// enter gets the source its number. One number belongs to one source of a run.
func (s *source) enter(ctx context.Context, key reconcile.SourceKey) error {
	id, err := s.runner.store.Source(ctx, key)
	if err != nil {
		if _, over := errors.AsType[*reconcile.LimitError](err); over {
			return err
		}
		return failed(err)
	}
	r := s.runner
	r.mu.Lock()
	holder := r.byID[id]
	if holder == nil {
		r.byID[id] = s
	}
	r.mu.Unlock()
	if holder != nil && holder != s {
		return client.ErrBusy
	}
	s.mu.Lock()
	s.name = Origin{ID: id, Key: key}
	s.mu.Unlock()
	return s.tellEnding(ctx) // of a run that died before it could
}

// run follows the source until the run ends or the source stops.
func (s *source) run(ctx context.Context) error {
	var broken backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil: // caught up; only a quarantine asks for more
			s.rest(ctx)
			continue
		}
		if own, ok := errors.AsType[*storeError](err); ok {
			return own.err
		}
		if told := s.tellEnding(ctx); told != nil {
			return s.runner.unless(ctx, told)
		}
		if time.Since(began) > lastPause {
			broken.reset()
		}
		again, err := s.judge(ctx, err)
		if !again || s.runner.config.UntilLive && broken.failures+1 >= fruitless {
			return s.end(ctx, err)
		}
		d := broken.pause()
		if err := s.runner.tell(ctx, Waiting{Source: s.origin(), Err: err, For: d}); err != nil {
			return s.runner.unless(ctx, err)
		}
		if sleep(ctx, d) != nil {
			return nil
		}
	}
	return nil
}

// once follows until something ends it.
func (s *source) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.stop, s.caughtUp, s.over = cancel, false, make(chan struct{})
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stop = nil
	}()
	if s.finite != nil {
		return s.refresh(ctx)
	}
	o := client.Options{
		BaseURL: s.live.BaseURL, Service: s.live.Service, Query: s.live.Query, State: s, OnReset: s.live.OnReset,
		UntilLive: s.runner.config.UntilLive, Limits: s.live.Limits, Key: s.live.Key, Identity: s.live.Identity, Chain: s.live.Chain,
		RetryFor: s.runner.config.RetryFor, LocalDevelopment: s.live.LocalDevelopment, Transport: s.live.Transport, Log: s.runner.config.Log,
		On: func(ctx context.Context, e client.Event) error {
			switch e := e.(type) {
			case client.Waiting:
				return s.runner.tell(ctx, Waiting{Source: s.origin(), Err: e.Err, For: e.For})
			case client.Resumed:
				s.runner.promise(s.origin().ID, e.ExpiresAt)
			}
			return nil
		},
	}
	err := client.Follow(ctx, o)
	if cause := context.Cause(ctx); cause != nil {
		return cause // whatever else it says, it was made to end
	}
	return err
}

// rest is a source that read everything there was, in a run that ends when all have.
// It goes on when its generation turns out to be over.
func (s *source) rest(ctx context.Context) {
	s.mu.Lock()
	over := s.over
	s.caughtUp = over != nil
	s.mu.Unlock()
	if over == nil {
		return
	}
	s.runner.caughtUp.beat()
	// What was recorded before anybody could listen is seen here.
	g, err := s.runner.store.Generation(ctx, s.origin().ID)
	if err == nil && g.Ending != nil && broken(client.Code(g.Ending.Code)) {
		s.quarantined()
	}
	select {
	case <-ctx.Done():
	case <-over:
	}
}

// quarantined ends what the source is at.
func (s *source) quarantined() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caughtUp = false
	if s.stop != nil {
		s.stop(errQuarantined)
	}
	if s.over != nil {
		close(s.over)
		s.over = nil
	}
}

// judge decides what follows an error: again after a pause, or the end of the source.
func (s *source) judge(ctx context.Context, err error) (again bool, why error) {
	reopen := s.finite != nil || s.live.OnReset == Reopen
	if errors.Is(err, errQuarantined) || errors.Is(err, errOver) {
		g, asked := s.runner.store.Generation(ctx, s.origin().ID)
		if asked != nil || g.Ending == nil {
			return reopen, err
		}
		return reopen, &QuarantineError{Generation: g.Number, Code: client.Code(g.Ending.Code), Reason: g.Ending.Reason}
	}
	if _, ok := errors.AsType[*client.EquivocationError](err); ok {
		return reopen, err
	}
	if _, ok := errors.AsType[*client.ViolationError](err); ok {
		return reopen, err
	}
	if _, ok := errors.AsType[*chainError](err); ok {
		return true, err
	}
	return false, err
}

// broken reports whether a generation ended because its source broke its word.
func broken(c client.Code) bool { return c == codeInvalid || c == client.CodeEquivocation }

// codeInvalid is what a quarantined generation ends with.
const codeInvalid = client.Code("invalid")

// end records that the source is not followed any more in this run.
func (s *source) end(ctx context.Context, err error) error {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.runner.caughtUp.beat()
	return s.runner.unless(ctx, s.runner.tell(ctx, SourceStale{Source: s.origin(), Err: err}))
}

// tellEnding tells that the latest generation is over, if it is and was not told.
func (s *source) tellEnding(ctx context.Context) error {
	r, o := s.runner, s.origin()
	if o.ID == 0 {
		return nil
	}
	g, err := r.store.Generation(ctx, o.ID)
	if err != nil {
		return failed(err)
	}
	if g.Ending == nil || s.finite != nil && g.Ending.Code == codeRefreshed {
		return nil
	}
	key := sourceKey(o.ID, rowTold)
	told, _, err := getNumber(ctx, r.store, key)
	if err != nil || told >= g.Number {
		return failed(err)
	}
	e := SourceReset{Source: o, Generation: g.Number, Code: client.Code(g.Ending.Code), Reason: g.Ending.Reason, At: g.Ending.At}
	if broken(e.Code) {
		if err := r.tell(ctx, Quarantined{Source: o, Generation: g.Number, Reason: e.Reason}); err != nil {
			return err
		}
	}
	if err := r.tell(ctx, e); err != nil {
		return err
	}
	return failed(r.store.Attach(context.WithoutCancel(ctx), reconcile.Attach{Put: []reconcile.Entry{asNumber(key, g.Number)}}))
}

// recorded is what the pool got for its results.
func (r *runner) recorded(results []reconcile.Result, became []reconcile.Recorded) {
	r.pulse.beat()
	for i, b := range became {
		if !b.Quarantined {
			continue
		}
		r.mu.Lock()
		s := r.byID[results[i].Source]
		r.mu.Unlock()
		if s != nil {
			s.quarantined()
		}
	}
}
