package lookup

import (
	"container/list"
	"context"
	"sync"
)

// turnstile lets as many through at once as there are processors, to what takes a processor for long and waits for nothing:
// signatures. Who waits for it waits here and not in the scheduler's queue, where whoever has little to do, the committer above all,
// would wait behind everybody's signatures at each of its steps. Who ends a request goes before who begins one: what is built is
// to leave while it is new. How many wait is bounded by the server's connections, and told by a metric.
type turnstile struct {
	mu     sync.Mutex
	free   int
	queues [2]list.List // of *passer, the first to come first
}

// The two queues of a turnstile, the first one first.
const (
	ending = iota
	beginning
)

// passer is somebody who waits. It is guarded by turnstile.mu, but for the channel.
type passer struct {
	at  *list.Element // nil once it has its turn
	let chan struct{} // closed with its turn
}

func newTurnstile(most int) *turnstile { return &turnstile{free: most} }

// pass does the work in its turn; it does not when ctx ends before that.
func (t *turnstile) pass(ctx context.Context, queue int, work func()) error {
	if err := t.enter(ctx, queue); err != nil {
		return err
	}
	defer t.leave()
	work()
	return nil
}

// enter waits for a turn, which leave ends.
func (t *turnstile) enter(ctx context.Context, queue int) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	w := &passer{let: make(chan struct{})}
	w.at = t.queues[queue].PushBack(w)
	t.mu.Unlock()
	select {
	case <-w.let:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.at == nil {
		t.handOn() // it had its turn meanwhile
	} else {
		t.queues[queue].Remove(w.at)
	}
	return context.Cause(ctx)
}

func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handOn()
}

// handOn gives a turn to who is next, or back. The caller holds mu.
func (t *turnstile) handOn() {
	for i := range t.queues {
		if first := t.queues[i].Front(); first != nil {
			w := t.queues[i].Remove(first).(*passer)
			w.at = nil
			close(w.let)
			return
		}
	}
	t.free++
}

// waiting is how many wait.
func (t *turnstile) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queues[ending].Len() + t.queues[beginning].Len()
}
