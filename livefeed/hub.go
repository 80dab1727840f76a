package livefeed

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// hub is who sleeps on a feed in this process, and how far its log has been announced to them. A wake-up is a hint:
// the woken one reads the log, and a spurious wake costs one read.
type hub struct {
	count func(delta int)    // static: the waiters gauge
	woken prometheus.Counter // static

	// mu guards what follows. Nothing else is locked and nothing blocks while it is held.
	mu        sync.Mutex
	era       uint64 // the feed's last break that this process knows of: sequences of different eras are not comparable
	published uint64 // every group <= published was announced to whoever was registered then
	target    uint64 // the greatest head anybody told us of
	waiters   map[Selector]map[*Waiter]struct{}
	size      int
}

func (h *hub) init(count func(int), woken prometheus.Counter) {
	h.count, h.woken = count, woken
	h.waiters = map[Selector]map[*Waiter]struct{}{}
}

// Waiter is woken when a group may concern its selectors: by a send on C, or by a call ([Waiter.Call]).
type Waiter struct {
	hub       *hub
	selectors []Selector

	// guarded by hub.mu
	c       chan struct{} // capacity 1, never closed; nil: nobody has asked for it
	call    func()        // takes the next wake-up; nil: nobody waits for a call
	pending bool          // a wake-up that neither c nor call has had
	closed  bool
}

// Watch registers a waiter. The caller first registers, then reads the log, then sleeps on C: a group committed after
// the read is then announced to a waiter that is registered already. It is woken when a group touches a row
// that has or had any of the selectors, and by every group that holds an invalidate. Without selectors, or with [All]
// among them, every group wakes it. Close it.
func (f *Feed) Watch(selectors ...Selector) *Waiter {
	w := &Waiter{hub: &f.hub, selectors: sortSelectors(append([]Selector(nil), selectors...))}
	for _, s := range selectors {
		if s == All {
			w.selectors = nil
		}
	}
	if len(w.selectors) == 0 {
		w.selectors = []Selector{All}
	}
	f.hub.add(w)
	return w
}

// C is sent to, without blocking, on each wake-up; wake-ups that were not received yet merge into one. It is never closed.
func (w *Waiter) C() <-chan struct{} {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.c == nil {
		w.c = make(chan struct{}, 1)
		if w.pending {
			w.pending = false
			w.c <- struct{}{}
		}
	}
	return w.c
}

// Call is for who has no goroutine to sleep with, and does not use C: it has f called, once, at the next wake-up, or before it returns if
// there was one since the last call. What comes after that waits for the next Call; a second Call before a wake-up replaces the first. f
// is called with the feed's waiters locked: it returns at once, and calls nothing of this package. After Close it is not called.
func (w *Waiter) Call(f func()) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.pending && !w.closed {
		w.pending = false
		f()
		return
	}
	w.call = f
}

// Close forgets the waiter. It may be called more than once.
func (w *Waiter) Close() { w.hub.remove(w) }

// wake wakes it. The caller holds mu.
func (w *Waiter) wake() {
	switch {
	case w.c != nil:
		select {
		case w.c <- struct{}{}:
		default:
			return
		}
	case w.call != nil:
		f := w.call
		w.call = nil
		f()
	case w.pending:
		return
	default:
		w.pending = true
	}
	w.hub.woken.Inc()
}

func (h *hub) add(w *Waiter) {
	h.mu.Lock()
	for _, s := range w.selectors {
		set := h.waiters[s]
		if set == nil {
			set = map[*Waiter]struct{}{}
			h.waiters[s] = set
		}
		set[w] = struct{}{}
	}
	h.size++
	h.mu.Unlock()
	h.count(1)
}

func (h *hub) remove(w *Waiter) {
	h.mu.Lock()
	if w.closed {
		h.mu.Unlock()
		return
	}
	w.closed, w.call = true, nil
	for _, s := range w.selectors {
		if delete(h.waiters[s], w); len(h.waiters[s]) == 0 {
			delete(h.waiters, s)
		}
	}
	h.size--
	h.mu.Unlock()
	h.count(-1)
}

func (h *hub) waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// reach is how far a feed's log is announced and known.
type reach struct {
	era, published, target uint64
	anybody                bool // somebody would hear more
}

func (h *hub) reach() reach {
	h.mu.Lock()
	defer h.mu.Unlock()
	return reach{era: h.era, published: h.published, target: h.target, anybody: h.size > 0}
}

// announced returns up to where, and in what era, whoever was registered then has heard of the log. A waiter that was woken finds there
// what woke it, unless a wake-up for it is still to come.
func (h *hub) announced() (era, published uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.era, h.published
}

// see says that the head is at least this in an era, and reports whether there is more to announce. A new era wakes
// everybody: it may begin far below what was announced.
func (h *hub) see(era, head uint64) (behind bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if era > h.era {
		h.begin(era, head)
	}
	if era == h.era {
		h.target = max(h.target, head)
	}
	return h.target > h.published
}

// begin starts an era. The caller holds mu.
func (h *hub) begin(era, head uint64) {
	h.era, h.published, h.target = era, head, head
	h.wakeAll()
}

// wakeAll wakes everybody. The caller holds mu.
func (h *hub) wakeAll() {
	for _, set := range h.waiters {
		for w := range set {
			w.wake()
		}
	}
}

// announcement is what some groups mean to waiters.
type announcement struct {
	selectors map[Selector]struct{}
	everyone  bool // an invalidate is among them, or what they hold is not known
}

// add takes a group by what it is posted under.
func (a *announcement) add(selectors []Selector) {
	if a.selectors == nil {
		a.selectors = map[Selector]struct{}{}
	}
	for _, s := range selectors {
		if s == All {
			a.everyone = true
		}
		a.selectors[s] = struct{}{}
	}
}

// publish announces the groups first..last of an era. It returns false if groups before first were not announced yet: those
// are for followLoop to read, and so is telling of this range again.
func (h *hub) publish(era, first, last uint64, a announcement) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if era > h.era {
		h.begin(era, last)
		return true
	}
	if era < h.era || last <= h.published {
		return true
	}
	if a.everyone {
		h.wakeAll()
	} else {
		for s := range a.selectors {
			for w := range h.waiters[s] {
				w.wake()
			}
		}
		for w := range h.waiters[All] {
			w.wake()
		}
	}
	if first > h.published+1 {
		return false
	}
	h.published = last
	h.target = max(h.target, last)
	return true
}

// groupSelectors returns the selectors a group is posted under: those of its rows before and after each edit, or a
// row that leaves would never be seen leaving; and All if it concerns every query.
func groupSelectors(changes []Change) []Selector {
	var out []Selector
	for i := range changes {
		c := &changes[i]
		if c.Op == Invalidate {
			out = append(out, All)
		}
		out = append(out, c.Before.Selectors()...)
		if c.After != c.Before {
			out = append(out, c.After.Selectors()...)
		}
	}
	return sortSelectors(out)
}
