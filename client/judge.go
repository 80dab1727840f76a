package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// judge decides what an error of begin or step means: nil to go on, or the error
// the run ends with.
func (f *follower) judge(ctx context.Context, err error) error {
	if errors.Is(err, errDone) || ctx.Err() != nil {
		return err
	}
	if e, ok := errors.AsType[*EquivocationError](err); ok {
		if end := f.record.End(ctx, f.ending(CodeEquivocation, "an id was given a second meaning", e)); end != nil {
			return errors.Join(err, end)
		}
		f.generation = nil
		if told := f.redeliver(ctx); told != nil {
			return errors.Join(err, told)
		}
		return err
	}
	if v, ok := errors.AsType[*ViolationError](err); ok && v.lasting() && f.generation != nil && f.generation.Checkpoint == nil {
		// A provider repeats its first answer for ever, so this Open is spent.
		if end := f.end(ctx, wire.Invalid, "the first answer broke the protocol: "+string(v.Rule), nil); !isEnded(end) {
			return errors.Join(err, end)
		}
		return err
	}
	if answer, ok := errors.AsType[*ProviderError](err); ok && answer == err {
		return f.answered(ctx, answer)
	}
	if e, ok := errors.AsType[*UnverifiedError](err); ok && e.temporary() {
		return f.wait(ctx, err, 0)
	}
	if _, ok := errors.AsType[*transportError](err); ok {
		return f.wait(ctx, err, 0)
	}
	return err
}

func isEnded(err error) bool {
	_, ok := errors.AsType[*EndedError](err)
	return ok
}

// answered decides what a verified error of the provider means.
func (f *follower) answered(ctx context.Context, answer *ProviderError) error {
	g := f.generation
	switch {
	case g == nil: // discovery
	case ends(answer.Code):
		code, reason := answer.Code, answer.Message
		if cp := g.Checkpoint; cp != nil && code == CodeResetRequired && uint64(time.Now().Unix()) >= cp.ExpiresAt {
			code, reason = CodeExpired, "the promised life of the session is over"
		}
		return f.end(ctx, code, reason, answer)
	case answer.Code == wire.Limited && !answer.Retryable && f.raise(answer.Limit):
		if g.Checkpoint != nil {
			return nil
		}
		// Nothing was opened, and the saved Open cannot ask for more.
		return f.end(ctx, answer.Code, answer.Message, answer)
	case !answer.Retryable && g.Checkpoint == nil:
		// An Open refused for good: the next run makes another one.
		f.raises = mostRaises
		return f.end(ctx, answer.Code, answer.Message, answer)
	}
	if !answer.Retryable {
		return answer
	}
	var asked time.Duration
	if ms := answer.RetryAfterMs; ms != nil {
		asked = time.Duration(*ms) * time.Millisecond
	}
	return f.wait(ctx, answer, asked)
}

// ends reports whether a code ends a generation, whatever was asked.
func ends(c Code) bool {
	switch c {
	case CodeResetRequired, CodeExpired, CodeUnauthorized, CodeContextChanged:
		return true
	}
	return false
}

// end records the end of the generation, tells it, and decides whether a new one
// may begin (C5). It returns nil when it may.
func (f *follower) end(ctx context.Context, code Code, reason string, answer *ProviderError) error {
	g := f.generation
	ending := f.ending(code, reason, nil)
	if err := f.record.End(ctx, ending); err != nil {
		return err
	}
	f.generation, f.caughtUp = nil, false
	if err := f.redeliver(ctx); err != nil {
		return err
	}
	var why error = &EndedError{Ending: ending}
	if g.Checkpoint == nil {
		// Nothing was ever shown under it, so what the caller asked for is still
		// to be done: the reason may be an old manifest, or limits too small.
		if answer != nil {
			why = answer
		}
		if !f.openAgain(code) {
			return why
		}
		return f.pauseRestart(ctx, why)
	}
	if f.options.OnReset != Reopen || code == CodeUnauthorized {
		return why
	}
	f.openedAt = time.Now()
	if f.openedAt.Sub(f.began) >= min(lastBackoff, time.Duration(f.terms.sessionSeconds)*time.Second/2) {
		f.restarts.reset()
	}
	return f.pauseRestart(ctx, why)
}

// openAgain reports whether another Open may be taken where one was refused with a
// code. The nodes of a provider that is being changed may disagree about its manifest
// for as long as that takes; what a first batch needs is known after a few answers.
func (f *follower) openAgain(code Code) bool {
	switch code {
	case CodeExpired, CodeContextChanged, CodeResetRequired:
		return true
	case wire.Limited:
		f.raises++
		return f.raises < mostRaises
	}
	return false
}

// pauseRestart begins again at once the first time, and later and later while
// generations do not last: half their promised life, or 30 s (C6). It tells why, as of
// any other pause.
func (f *follower) pauseRestart(ctx context.Context, why error) error {
	if f.restarts.failures == 0 {
		f.restarts.failures = 1
		return nil
	}
	return f.pause(ctx, fmt.Errorf("generations end soon after they began, the last with: %w", why), f.restarts.next(lastBackoff, 0), f.openedAt)
}

func (f *follower) ending(code Code, reason string, claim *EquivocationError) Ending {
	e := Ending{Generation: f.generation.Number, Code: code, Reason: reason, At: uint64(time.Now().Unix())}
	if claim != nil {
		e.Claim, e.ClaimID = claim.Claim, claim.ID
	}
	return e
}

// raise sets what the next request asks for to what the provider says the next
// group takes, if that is more than was asked and the manifest allows it.
func (f *follower) raise(l *wire.Limit) bool {
	if l == nil || l.Kind == wire.LimitPermanentGroup || f.options.StrictLimits {
		return false
	}
	now := f.limits()
	want := now
	if l.MinimumBytes != nil {
		want.MaxBytes = max(want.MaxBytes, *l.MinimumBytes)
	}
	if l.MinimumObservations != nil {
		want.MaxObservations = max(want.MaxObservations, *l.MinimumObservations)
	}
	if want == now || want.Min(f.terms.limits).MaxBytes != want.MaxBytes || want.Min(f.terms.limits).MaxObservations != want.MaxObservations {
		return false
	}
	f.raised = &want
	return true
}

// wait tells that an attempt failed and waits before the next one (C6).
func (f *follower) wait(ctx context.Context, cause error, asked time.Duration) error {
	return f.pause(ctx, cause, f.retries.next(lastBackoff, asked), f.verifiedAt)
}

// pause tells why there is a pause and makes it, unless nothing got further since a
// moment that is too long ago.
func (f *follower) pause(ctx context.Context, cause error, d time.Duration, since time.Time) error {
	if limit := f.options.RetryFor; limit > 0 && time.Since(since)+d > limit {
		return &GaveUpError{Err: cause}
	}
	f.options.Log.Debug("trying again", "after", d, "cause", cause)
	if err := f.options.On(ctx, Waiting{Err: cause, For: d}); err != nil {
		return err
	}
	return sleep(ctx, d)
}
