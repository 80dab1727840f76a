package lookup

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// errAsleep says that a poll has looked and found nothing.
var errAsleep = errors.New("the poll sleeps")

// vigil is a Read with what it holds, until leave gives it back. A poll is written as steps, look - sleep - look, so that what it
// does while it sleeps needs neither the request, nor its connection's server, nor a goroutine ([parking.Sleeper]).
type vigil struct {
	in        *inbound
	p         *shard   // nil: where the session lives is not known yet
	s         *session // nil: not found yet
	t         *tail
	selectors []livefeed.Selector
	limits    wire.Limits
	farewell  farewell         // tells of the session's end
	until     time.Time        // when the poll is answered whatever happens
	deadline  *time.Timer      // nil: it will not wait
	waiter    *livefeed.Waiter // nil: it will not wait
	fed       func()           // called by waiter
	place     place            // among the sleeping polls

	// What it was woken by.
	waiting livefeed.Waiting // the feed, or nothing yet
	last    bool             // its deadline, or the end of this provider
	over    bool             // the end of its session: the gate says how

	mu sync.Mutex // innermost
	// guarded by mu
	since what          // it was last asked
	woken chan struct{} // capacity 1, never closed; nil: it is parked, or will not wait
	rouse func()        // nil: it is not parked
}

// what has happened while a poll slept.
type what uint8

const (
	byFeed what = 1 << iota
	byTime
	byStop // of this provider
	byEnd  // of the session
)

// happened wakes the poll. Whoever calls it may hold locks.
func (v *vigil) happened(w what) {
	v.mu.Lock()
	v.since |= w
	rouse := v.rouse
	if v.woken != nil {
		select {
		case v.woken <- struct{}{}:
		default:
		}
	}
	v.mu.Unlock()
	if rouse != nil {
		rouse()
	}
}

// heed takes note of what has happened; false: nothing that the poll is to be woken by.
func (v *vigil) heed() bool {
	v.mu.Lock()
	since := v.since
	v.since = 0
	v.mu.Unlock()
	v.over = v.over || since&byEnd != 0
	if since&byTime != 0 && !v.last {
		if left := v.remaining(); left > 0 { // it was moved
			v.deadline.Reset(left)
		} else {
			v.last = true
		}
	}
	v.last = v.last || since&byStop != 0
	v.waiting = livefeed.Here
	if since&byFeed != 0 && !v.last {
		v.waiting = livefeed.Woken
	}
	return v.over || v.last || since&byFeed != 0
}

// begin answers a Read of the log. It registers with the feed first, then looks, and only then sleeps, so that no commit can
// fall between (conformance row W1). It is answered at the first relevant group, and otherwise with an empty batch at
// min(arrival + waitMs, session expiry), the head read once more. While it sleeps it has a place among the sleeping polls and
// none among the bodies being built. Its session arrives when it has slept for arriveAfter: one that is woken before goes to the gate.
func (v *vigil) begin(ctx context.Context, from position, limits wire.Limits) (answer, error) {
	p, s := v.p, v.s
	v.limits = limits
	var r *refusal
	if v.t, r = p.newTail(s, from, limits); r != nil {
		return answer{}, r
	}
	var err error
	if v.selectors, err = s.drive(ctx, p.pool); err != nil {
		return answer{}, err
	}
	if limits.WaitMs == 0 {
		if _, err := p.advance(ctx, s, v.t, v.selectors, livefeed.Here); err != nil {
			return answer{}, err
		}
		return v.answer(p.finish(ctx, s, v.t, &v.in.room))
	}
	v.until = v.in.arrived.Add(time.Duration(limits.WaitMs) * time.Millisecond)
	if s.asked {
		v.expire()
	}
	v.deadline = time.AfterFunc(v.remaining(), func() { v.happened(byTime) })
	v.fed = func() { v.happened(byFeed) }
	v.waiting = livefeed.Registered
	v.waiter = s.feed.Watch(wakeOn(v.selectors)...)
	v.place = place{places: p.quotas.waiters, who: v.in.client}
	return v.look(ctx)
}

// look reads the log. The error is errAsleep when there is nothing to answer yet.
func (v *vigil) look(ctx context.Context) (answer, error) {
	p := v.p
	if v.over {
		return v.answer(p.finish(ctx, v.s, v.t, &v.in.room))
	}
	p.giveWay(ctx, v.s.feed)
	reached, err := p.advance(ctx, v.s, v.t, v.selectors, v.waiting)
	if err != nil {
		return answer{}, err
	}
	if len(v.t.groups) > 0 || !reached || v.last {
		return v.answer(p.finish(ctx, v.s, v.t, &v.in.room))
	}
	if r := v.place.take(); r != nil {
		return answer{}, r
	}
	v.in.slot.leave()
	p.at(beforeSleep)
	failpoint.Hit(failpoint.ReadLooked)
	if failpoint.MutantLateWait {
		v.waiter.Close()
		v.waiter = v.s.feed.Watch(wakeOn(v.selectors)...)
	}
	return answer{}, errAsleep
}

// giveWayFor is how long a look gives way to a commit, which takes less as a rule.
const giveWayFor = 5 * time.Millisecond

// giveWay lets a commit of this process that is under way come first where all slots are taken and others wait for one: what is looked at
// after it is newer, and each look before it would only take the processor from it.
func (p *shard) giveWay(ctx context.Context, feed *livefeed.Feed) {
	if !p.slots.contended() {
		return
	}
	over := feed.Committing()
	if over == nil {
		return
	}
	p.at(givesWay)
	timer := time.NewTimer(p.courtesy)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (v *vigil) answer(b built, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, built: b, session: v.s, refusal: gate.forRead}, nil
}

// remaining is how long the poll may sleep from now.
func (v *vigil) remaining() time.Duration {
	return min(time.Until(v.until), time.Until(v.in.arrived.Add(v.p.within)))
}

// arriveAfter is how long a poll may sleep before its session arrives. Where there is much to deliver it seldom gets to that.
const arriveAfter = 50 * time.Millisecond

// arrive reads whether what the session was promised still stands, in the sleep of a poll.
func (v *vigil) arrive(ctx context.Context) error {
	err := v.p.arrive(ctx, v.s)
	v.p.at(arrivedAsleep)
	if err != nil {
		return err
	}
	v.expire()
	v.deadline.Reset(v.remaining())
	return nil
}

// expire ends the poll of a session that has arrived when the session expires, if that is earlier.
func (v *vigil) expire() {
	if expiry := v.in.arrived.Add(time.Duration(v.s.expiresAt-v.s.now) * time.Second); expiry.Before(v.until) {
		v.until = expiry
	}
}

// parkAfter is how long a poll sleeps where it is before it is parked: what is woken soon, on a busy feed, is not worth the goroutines
// and the buffers that its connection then needs anew.
const parkAfter = 250 * time.Millisecond

// doze sleeps for a while, or until something happens; whole says that nothing has happened.
func (v *vigil) doze(gone <-chan struct{}, while time.Duration) (whole bool) {
	timer := time.NewTimer(while)
	defer timer.Stop()
	return v.rest(gone, timer.C)
}

// sleep sleeps until something happens.
func (v *vigil) sleep(gone <-chan struct{}) { v.rest(gone, nil) }

// rest sleeps until something happens, or the time is over, which it reports.
func (v *vigil) rest(gone <-chan struct{}, over <-chan time.Time) bool {
	for {
		v.waiter.Call(v.fed)
		select {
		case <-v.woken:
			if v.heed() {
				return false
			}
		case <-gone:
			return false
		case <-over:
			return true
		}
	}
}

// wake goes on after a sleep.
func (v *vigil) wake(ctx context.Context) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	if err := v.in.slot.retake(ctx, v.until); err != nil {
		return answer{}, err
	}
	return v.look(ctx)
}

// settle lets go of what is not needed while the poll sleeps, and of what the session has as well.
func (v *vigil) settle() {
	in := v.in
	in.body = []byte{} // not nil: it was read
	if in.peer != nil {
		in.peer.Body = nil
	}
	in.capability, in.profile = v.s.capability, wire.Profile // they were compared
	v.s.id = strings.Clone(v.s.id)                           // a part of the body
	v.t.head.session = v.s.id
}

// Sleep sleeps in the place of its connection, outside net/http, where it is woken by a call.
func (v *vigil) Sleep(wake func()) {
	v.mu.Lock()
	v.rouse, v.woken = wake, nil
	already := v.since != 0
	v.mu.Unlock()
	v.waiter.Call(v.fed)
	if already {
		wake()
	}
}

// Wake answers a poll that was woken there; false: it sleeps again.
func (v *vigil) Wake(gone context.Context, w http.ResponseWriter) (done bool) {
	if !v.heed() && gone.Err() == nil {
		return false
	}
	done = true
	defer func() {
		if done { // also by a panic
			v.leave()
		}
	}()
	p := v.p
	ctx, cancel := context.WithDeadline(gone, v.in.arrived.Add(p.within))
	defer cancel()
	defer v.in.room.leave(false)
	out, err := v.wake(ctx)
	if errors.Is(err, errAsleep) {
		done = false
		return false
	}
	v.rise()
	if err := p.conclude(ctx, w, nil, v.in, out, err); err != nil {
		p.log.Debug("an answer could not be written", "cause", err.Error())
		panic(http.ErrAbortHandler)
	}
	return true
}

// leave gives back everything that the poll holds but the room of its body. It may be called again.
func (v *vigil) leave() {
	v.in.leaveSlot()
	v.rise()
}

// rise gives back what a poll holds to sleep. It may be called again.
func (v *vigil) rise() {
	v.place.leave()
	if v.waiter != nil {
		v.waiter.Close()
	}
	if v.deadline != nil {
		v.deadline.Stop()
	}
	if v.p != nil {
		v.p.closing.leave(v)
	}
}
