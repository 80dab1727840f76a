package lookup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// read answers with the batch after a cursor: the next snapshot page, or what the log has since, waiting for it if the
// client asked to (BRC-193 s2, s4).
func (p *Provider) read(c echo.Context) error {
	in, r := p.receive(c, "read", http.MethodPost)
	return p.respond(c, in, func(ctx context.Context) (answer, error) {
		if r != nil {
			return answer{}, r
		}
		if r := p.accept(c, in); r != nil {
			return answer{}, r
		}
		message, r := parsed(wire.ParseRead(in.body))
		if r != nil {
			return answer{}, r
		}
		p := p.bearing(message.Session) // the rest is done where the session lives
		if p == nil {
			return answer{}, refuseReset(errors.New("no session of this kind or database has that id"))
		}
		in.slot.slots = p.slots
		if err := in.slot.take(ctx); err != nil {
			return answer{}, err
		}
		defer in.slot.leave()
		p.at(arrived)
		var ended <-chan struct{} // nil: it will not wait
		if digest, ok := p.sessionDigest(message.Session); ok && message.Limits.WaitMs > 0 {
			farewell := p.closing.watch(digest)
			defer p.closing.leave(digest, farewell)
			ended = farewell.ended
		}
		s, at, err := p.resume(ctx, in, message)
		if err != nil {
			return answer{}, err
		}
		p.at(beforeBuild)
		limits := message.Limits.Min(s.most)
		var b built
		if at.live {
			b, err = p.poll(ctx, in, s, at, limits, ended)
			if err != nil && !s.asked {
				if r, ok := errors.AsType[*refusal](p.arrive(ctx, s)); ok {
					err = r // what was found wrong may be so because the session is over
				}
			}
		} else {
			b, err = p.nextPage(ctx, in, s, at, limits)
		}
		if err != nil {
			return answer{}, err
		}
		return answer{status: http.StatusOK, built: b, session: s, refusal: gate.forRead}, nil
	})
}

// resume finds the session and the position a Read names. A session or cursor that is not what it should be is always the
// same reset-required (conformance row L9). Of a live read the session may not have arrived yet.
func (p *shard) resume(ctx context.Context, in *inbound, message *wire.Read) (*session, position, error) {
	digest, ok := p.sessionDigest(message.Session)
	if !ok {
		return nil, position{}, refuseReset(errors.New("no session of this kind or database has that id"))
	}
	// The id shows its kind: the wrong kind of caller is refused before anything is looked up.
	if (message.Session[0] == modeBRC103) != (in.peer != nil) {
		return nil, position{}, refuse(wire.Unauthorized, textUnauthorized)
	}
	s, err := p.load(ctx, message.Session, digest)
	if err != nil {
		return nil, position{}, err
	}
	if s == nil || !samePrincipal(s.principal, in.principal()) {
		return nil, position{}, refuseReset(errors.New("the session is unknown, or another principal's"))
	}
	if s.capability != in.capability {
		return nil, position{}, refuse(wire.ContextChanged, textOther)
	}
	if len(in.body) > int(s.maxRequest) {
		return nil, position{}, refuse(wire.Limited, textBody)
	}
	at, ok := p.cursors.open(digest, s.epoch, message.Cursor)
	if s.asked || !ok || !at.live {
		if err := p.arrive(ctx, s); err != nil {
			return nil, position{}, err
		}
	}
	if !ok {
		return nil, position{}, refuseReset(errors.New("the cursor was not made for this session"))
	}
	return s, at, nil
}

// nextPage answers a Read within the snapshot.
func (p *shard) nextPage(ctx context.Context, in *inbound, s *session, at position, limits wire.Limits) (built, error) {
	pg, err := p.cutPage(ctx, p.pool, s, int64(at.after), limits)
	if err != nil {
		return built{}, p.suspect(ctx, s, s.w, s.wTag, err)
	}
	cut, err := s.feed.Cut(ctx, p.pool)
	if err != nil {
		return built{}, fmt.Errorf("lookup: read the head: %w", err)
	}
	if cut.W < s.w {
		return built{}, p.suspect(ctx, s, s.w, s.wTag, refuseReset(fmt.Errorf("the head %d has fallen behind the snapshot at %d: %w", cut.W, s.w, livefeed.ErrRewritten)))
	}
	return p.finishPage(ctx, p.pool, s.feed, pg, cut.W, true, &in.room)
}

// suspect passes an error of a read on, after it told the feed if the error means that history was rewritten: what the session
// holds, a group with its tag, came from this deployment (the cursor's MAC says so), so that it is proof, and
// everything else that was promised before is void too (conformance row O12). The feed looks for itself.
func (p *shard) suspect(ctx context.Context, s *session, sequence uint64, tag [8]byte, err error) error {
	if !errors.Is(err, livefeed.ErrRewritten) {
		return err
	}
	broken, serr := s.feed.Suspect(ctx, sequence, tag, s.turn)
	switch {
	case serr != nil:
		p.log.ErrorContext(ctx, "a rewritten history could not be verified; the next read tries again", "feed", s.feed.Name(), "cause", serr.Error())
	case broken:
		p.log.ErrorContext(ctx, "a session proved that the feed's history was rewritten: its epoch is broken", "feed", s.feed.Name(), "sequence", sequence)
	}
	return err
}

// poll answers a Read of the log. It registers with the feed first, then looks, and only then sleeps, so that no commit can
// fall between (conformance row W1). It returns at the first relevant group, and otherwise with an empty batch at
// min(arrival + waitMs, session expiry), the head read once more. While it sleeps it has a place among the sleeping polls and none
// among the bodies being built. Its session arrives when it has slept for arriveAfter: one that is woken before goes to the gate. Ended
// is received from when the session has ended.
func (p *shard) poll(ctx context.Context, in *inbound, s *session, from position, limits wire.Limits, ended <-chan struct{}) (built, error) {
	t, r := p.newTail(s, from, limits)
	if r != nil {
		return built{}, r
	}
	selectors, err := s.drive(ctx, p.pool)
	if err != nil {
		return built{}, err
	}
	if limits.WaitMs == 0 {
		if _, err := p.advance(ctx, s, t, selectors, livefeed.Here); err != nil {
			return built{}, err
		}
		return p.finish(ctx, s, t, &in.room)
	}

	until := in.arrived.Add(time.Duration(limits.WaitMs) * time.Millisecond)
	if s.asked {
		until = s.awake(in, until)
	}
	timer := time.NewTimer(s.nap(until))
	defer timer.Stop()
	waiter := s.feed.Watch(wakeOn(selectors)...)
	defer func() { waiter.Close() }()
	place := &place{places: p.quotas.waiters, who: in.client}
	defer place.leave()

	waiting := livefeed.Registered
	for last, over := false, false; ; {
		reached, err := p.advance(ctx, s, t, selectors, waiting)
		if err != nil {
			return built{}, err
		}
		if len(t.groups) > 0 || !reached || last {
			return p.finish(ctx, s, t, &in.room)
		}
		if r := place.take(); r != nil {
			return built{}, r
		}
		in.slot.leave()
		p.at(beforeSleep)
		failpoint.Hit(failpoint.ReadLooked)
		if failpoint.MutantLateWait {
			waiter.Close()
			waiter = s.feed.Watch(wakeOn(selectors)...)
		}
		for waiting = livefeed.Registered; waiting == livefeed.Registered; {
			waiting = livefeed.Here
			select {
			case <-waiter.C():
				waiting = livefeed.Woken
			case <-timer.C:
				if s.asked || !time.Now().Before(until) {
					last = true
					break
				}
				err := p.arrive(ctx, s)
				p.at(arrivedAsleep)
				if err != nil {
					return built{}, err
				}
				until = s.awake(in, until)
				timer.Reset(s.nap(until))
				waiting = livefeed.Registered
			case <-p.stopping:
				last = true
			case <-ended: // the gate says how
				over = true
			case <-ctx.Done():
				return built{}, context.Cause(ctx)
			}
		}
		if err := in.slot.retake(ctx, until); err != nil {
			return built{}, err
		}
		if over {
			return p.finish(ctx, s, t, &in.room)
		}
	}
}

// arriveAfter is how long a poll may sleep before its session arrives. Where there is much to deliver it seldom gets to that.
const arriveAfter = 50 * time.Millisecond

// awake is when a poll of a session that has arrived ends: when it would, or when the session expires.
func (s *session) awake(in *inbound, until time.Time) time.Time {
	if expiry := in.arrived.Add(time.Duration(s.expiresAt-s.now) * time.Second); expiry.Before(until) {
		return expiry
	}
	return until
}

// nap is how long a poll sleeps at most before there is something to do.
func (s *session) nap(until time.Time) time.Duration {
	if s.asked {
		return time.Until(until)
	}
	return min(arriveAfter, time.Until(until))
}

// wakeOn is what a poll listens for: the posting that drives its reads, or every group.
func wakeOn(selectors []livefeed.Selector) []livefeed.Selector {
	if len(selectors) == 0 {
		return []livefeed.Selector{livefeed.All}
	}
	return selectors[:1]
}
