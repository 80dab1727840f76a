package lookup

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// places are those of sleeping polls, at a node and of one client.
type places struct {
	most, perClient int // static

	mu    sync.Mutex
	taken int
	of    map[client]int // greater than 0
}

func newPlaces(most, perClient int) *places {
	return &places{most: most, perClient: perClient, of: make(map[client]int)}
}

// place is that of one poll: none until it is taken. It belongs to the poll's goroutine.
type place struct {
	places *places
	who    client
	held   bool
}

// take takes the place unless it is held already (conformance row W8).
func (h *place) take() *refusal {
	if h.held {
		return nil
	}
	p := h.places
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.of[h.who] >= p.perClient:
		return refuseLoad(quotaWaitersPerClient, waiterRetry)
	case p.taken >= p.most:
		return refuseLoad(quotaWaiters, waiterRetry)
	}
	p.taken++
	p.of[h.who]++
	h.held = true
	return nil
}

// leave gives the place back, if it is held.
func (h *place) leave() {
	if !h.held {
		return
	}
	h.held = false
	p := h.places
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[h.who]--; p.of[h.who] == 0 {
		delete(p.of, h.who)
	}
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// slots are the places of bodies being built at a node. When all are taken, requests wait, and clients have their turns one
// after the other: in the order of arrival (as a semaphore serves) one client's crowd would go before everybody.
type slots struct {
	most, mostWaiting int           // static
	patience          time.Duration // static

	mu      sync.Mutex
	taken   int // never above most; a slot that is handed on stays taken
	waiting int
	queues  map[client]*list.List // of chan struct{}; never empty
	turns   list.List             // of client: every key of queues once, the next on first
}

func newSlots(most, mostWaiting int, patience time.Duration) *slots {
	return &slots{most: most, mostWaiting: mostWaiting, patience: patience, queues: make(map[client]*list.List)}
}

// slot is that of one request. It belongs to the request's goroutine.
type slot struct {
	slots *slots
	who   client
	held  bool
}

// take takes the slot, waiting for it as long as requests may.
func (h *slot) take(ctx context.Context) error { return h.wait(ctx, h.slots.patience, false) }

// retake takes the slot for a poll that has slept. It waits at least until the poll's own deadline, and for no want of
// room among those who wait: it has its place among the sleepers.
func (h *slot) retake(ctx context.Context, deadline time.Time) error {
	return h.wait(ctx, max(time.Until(deadline), h.slots.patience), true)
}

func (h *slot) wait(ctx context.Context, patience time.Duration, slept bool) error {
	s := h.slots
	s.mu.Lock()
	if s.taken < s.most {
		s.taken++
		s.mu.Unlock()
		h.held = true
		return nil
	}
	if !slept && s.waiting >= s.mostWaiting {
		s.mu.Unlock()
		return refuseLoad(quotaRequestsWaiting, requestRetry)
	}
	mine := s.enqueue(h.who, slept)
	s.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-mine.handed:
		h.held = true
		return nil
	case <-timer.C:
		if s.abandon(mine) {
			return refuseLoad(quotaRequests, requestRetry)
		}
	case <-ctx.Done():
		if s.abandon(mine) {
			return context.Cause(ctx)
		}
	}
	h.held = true // it was handed over meanwhile
	return nil
}

// leave gives the slot up, if it is held.
func (h *slot) leave() {
	if !h.held {
		return
	}
	h.held = false
	h.slots.mu.Lock()
	defer h.slots.mu.Unlock()
	h.slots.handOn()
}

// handOn gives one slot to whose turn it is, or back.
func (s *slots) handOn() {
	first := s.turns.Front()
	if first == nil {
		s.taken--
		return
	}
	who := first.Value.(client)
	next := s.queues[who].Front().Value.(*waiting)
	s.dequeue(next)
	if s.queues[who] != nil {
		s.turns.MoveToBack(first)
	}
	close(next.handed)
}

// waiting is a request that waits for a slot. It is guarded by slots.mu, but for the channel.
type waiting struct {
	who    client
	slept  bool          // a poll, which is not counted
	handed chan struct{} // closed when the slot is its own
	at     *list.Element // in its client's queue; nil once it has left
	turn   *list.Element // of its client
}

func (s *slots) enqueue(who client, slept bool) *waiting {
	w := &waiting{who: who, slept: slept, handed: make(chan struct{})}
	q := s.queues[who]
	if q == nil {
		q = list.New()
		s.queues[who] = q
		w.turn = s.turns.PushBack(who)
	} else {
		w.turn = q.Front().Value.(*waiting).turn
	}
	w.at = q.PushBack(w)
	if !slept {
		s.waiting++
	}
	return w
}

func (s *slots) dequeue(w *waiting) {
	q := s.queues[w.who]
	q.Remove(w.at)
	w.at = nil
	if q.Len() == 0 {
		delete(s.queues, w.who)
		s.turns.Remove(w.turn)
	}
	if !w.slept {
		s.waiting--
	}
}

// abandon takes a request out of its queue; false when it has been handed a slot.
func (s *slots) abandon(w *waiting) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.at == nil {
		return false
	}
	s.dequeue(w)
	return true
}

// contended reports whether somebody waits for a slot.
func (s *slots) contended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns.Len() > 0
}

func (s *slots) count() (taken, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.waiting
}
