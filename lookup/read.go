package lookup

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/parking"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// read answers with the batch after a cursor: the next snapshot page, or what the log has since, waiting for it if the
// client asked to (BRC-193 s2, s4).
func (p *Provider) read(c echo.Context) error {
	in, r := p.receive(c, "read", http.MethodPost)
	v := &vigil{in: in}
	parked := false
	defer func() {
		if !parked {
			v.leave()
			in.room.leave(false)
		}
	}()
	ctx, cancel := context.WithTimeout(c.Request().Context(), p.within)
	defer cancel()
	out, err := p.beginRead(ctx, c, v, r)
	for lot := parking.From(c.Request().Context()); errors.Is(err, errAsleep); out, err = v.wake(ctx) {
		if !v.s.asked {
			if !v.doze(ctx.Done(), arriveAfter) {
				continue
			}
			if err = v.arrive(ctx); err != nil {
				break
			}
		}
		if lot == nil {
			v.sleep(ctx.Done())
			continue
		}
		if !v.doze(ctx.Done(), p.dozing) {
			continue
		}
		v.settle()
		if parked = lot.Park(c.Response().Writer, c.Request(), v); parked {
			return nil
		}
		lot = nil
		v.sleep(ctx.Done())
	}
	if err != nil && v.s != nil && !v.s.asked {
		if r, ok := errors.AsType[*refusal](v.p.arrive(ctx, v.s)); ok {
			err = r // what was found wrong may be so because the session is over
		}
	}
	v.rise()
	return p.conclude(ctx, c.Response(), c.Request(), in, out, err)
}

// beginRead does everything up to an answer, or to where a poll has looked and found nothing: then the error is errAsleep.
func (p *Provider) beginRead(ctx context.Context, c echo.Context, v *vigil, r *refusal) (answer, error) {
	in := v.in
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
	home := p.bearing(message.Session) // the rest is done where the session lives
	if home == nil {
		return answer{}, refuseReset(errors.New("no session of this kind or database has that id"))
	}
	v.p = home
	in.slot.slots = home.slots
	if err := in.slot.take(ctx); err != nil {
		return answer{}, err
	}
	home.at(arrived)
	if digest, ok := home.sessionDigest(message.Session); ok && message.Limits.WaitMs > 0 {
		v.woken = make(chan struct{}, 1)
		home.closing.watch(v, digest)
	}
	s, at, err := home.resume(ctx, in, message)
	if err != nil {
		return answer{}, err
	}
	home.at(beforeBuild)
	v.s = s
	limits := message.Limits.Min(s.most)
	if at.live {
		return v.begin(ctx, at, limits)
	}
	b, err := home.nextPage(ctx, in, s, at, limits)
	return v.answer(b, err)
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
	unknown := refuseReset(errors.New("the session is unknown, or another principal's"))
	if s == nil || !samePrincipal(s.principal, in.principal()) {
		return nil, position{}, unknown
	}
	// What is refused is refused by what the session is now.
	at, ok := p.cursors.open(digest, s.epoch, message.Cursor)
	other, long := s.capability != in.capability, len(in.body) > int(s.maxRequest)
	if other || long || !ok || !at.live {
		if err := p.renew(ctx, s); err != nil {
			return nil, position{}, err
		}
	}
	switch {
	case s.asked && s.state == 0:
		return nil, position{}, unknown
	case other:
		return nil, position{}, refuse(wire.ContextChanged, textOther)
	case long:
		return nil, position{}, refuse(wire.Limited, textBody)
	}
	if s.asked {
		if r := s.ask().forRead(); r != nil {
			return nil, position{}, r
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

// wakeOn is what a poll listens for: the posting that drives its reads, or every group.
func wakeOn(selectors []livefeed.Selector) []livefeed.Selector {
	if len(selectors) == 0 {
		return []livefeed.Selector{livefeed.All}
	}
	return selectors[:1]
}
