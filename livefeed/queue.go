package livefeed

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// Pending is a submitted proposal on its way to its place in the log.
type Pending struct {
	feed *Feed
	p    *Proposal

	// Prepared by the submitter, so that the committer only orders and writes.
	key    [16]byte // digest of the group key
	fault  error    // of the group itself; returned only if the key is new
	weight int64    // what it counts against QueueBytes and the bytes of a batch
	need   need
	puts   []*State // by edit: the state a put makes
	blobs  []Evidence

	// state: queued -> taken by the committer, or queued -> withdrawn by a waiter whose context ended.
	state atomic.Int32

	// after is the proposal that this one must not overtake; nil once this one is finished, so that a long series does not
	// keep its beginning in memory. Owned by the submitter until it is queued, then by the committer.
	after *Pending

	// attempts are the sequences under which its commit was sent without an answer. Owned by the committer.
	attempts []uint64

	done    chan struct{} // closed when what follows is set
	receipt Receipt
	err     error
}

const (
	pendingQueued = iota
	pendingTaken
	pendingWithdrawn
)

// Append submits the proposal and waits. See [Feed.Submit] and [Pending.Wait].
func (f *Feed) Append(ctx context.Context, p *Proposal) (Receipt, error) {
	return f.Submit(ctx, p).Wait(ctx)
}

// Submit queues a proposal for the feed's committer. Proposals that one goroutine submits one after the other get
// their sequences in that order. It blocks while the queue is full, until there is room or ctx ends. The
// proposal must not be changed until [Pending.Wait] has returned.
func (f *Feed) Submit(ctx context.Context, p *Proposal) *Pending {
	return f.SubmitAfter(ctx, p, nil)
}

// SubmitAfter is Submit for one of a series: if the proposal before it ends as Unavailable, so does this one, and nothing of
// it is appended. Whoever resumes the series at the first Unavailable then appends its groups in their order. A group that
// was refused for what it is does not stop those behind it.
func (f *Feed) SubmitAfter(ctx context.Context, p *Proposal, before *Pending) *Pending {
	n := &Pending{feed: f, p: p, done: make(chan struct{}), after: before}
	n.prepare()
	f.queue.push(ctx, n)
	return n
}

// Wait returns the proposal's outcome. Errors are *Error: Invalid, Conflict and Limited say what is wrong with the
// group, Unavailable that it should be sent again with the same key.
//
// When ctx ends first, a proposal still queued is taken back and was not appended; for one the committer already has,
// the outcome is not known: asking again with the same key tells it.
func (n *Pending) Wait(ctx context.Context) (Receipt, error) {
	select {
	case <-n.done:
		return n.receipt, n.err
	case <-ctx.Done():
	}
	if n.state.CompareAndSwap(pendingQueued, pendingWithdrawn) {
		return Receipt{}, faultf(Unavailable, context.Cause(ctx), "the append was cancelled before its turn: nothing was appended")
	}
	select {
	case <-n.done: // it was just answered
		return n.receipt, n.err
	default:
		return Receipt{}, faultf(Unavailable, context.Cause(ctx), "the wait ended while the group was being committed, so its outcome is not known: send it again with the same key")
	}
}

func (n *Pending) finish(r Receipt, err error) {
	n.receipt, n.err, n.after = r, err, nil
	close(n.done)
}

// orphaned reports whether the proposal before this one ended as Unavailable. It is asked when that one has ended, or is in
// the same batch.
func (n *Pending) orphaned() bool {
	if n.after == nil {
		return false
	}
	if n.after.state.Load() == pendingWithdrawn {
		return true
	}
	select {
	case <-n.after.done:
		return CodeOf(n.after.err) == Unavailable
	default:
		return false
	}
}

var errOrphaned = fault(Unavailable, "a group that must come before this one was not appended, and so nothing was: send them again in their order, with the same keys")

const (
	weightGroup = 512 // of a group and of an edit, besides the bytes they carry
	weightEdit  = 512
)

// prepare does the part of the work that needs no lock: digests, states and sizes.
func (n *Pending) prepare() {
	sum := sha256.Sum256([]byte(n.p.Key))
	n.key = [16]byte(sum[:16])
	n.weight = weightGroup
	if n.fault = n.p.Err; n.fault == nil {
		n.fault = checkShape(n.p)
	}
	if n.fault != nil {
		return
	}
	n.puts = make([]*State, len(n.p.Edits))
	n.blobs = make([]Evidence, len(n.p.Edits))
	for i := range n.p.Edits {
		e := &n.p.Edits[i]
		n.weight += weightEdit + int64(len(e.BEEF)+len(e.Reason)+len(e.ContextID)+len(e.Order))
		if e.Op == Put || e.Op == Spend {
			n.blobs[i] = Evidence{SHA256: sha256.Sum256(e.BEEF), Size: len(e.BEEF)}
		}
		if e.Op != Put {
			continue
		}
		// Absent things are nil and present ones are not, as in a state that was read back: the two are compared.
		s := &State{Evidence: n.blobs[i], ExpiresAt: e.ExpiresAt}
		if len(e.Attributes) > 0 {
			s.Attributes = e.Attributes
		}
		if len(e.Order) > 0 {
			s.Order = e.Order
		}
		if len(e.Readers) > 0 {
			s.Readers = e.Readers
		}
		if e.Context != nil {
			s.Context = &Context{Schema: e.Context.Schema, Bytes: append([]byte{}, e.Context.Bytes...)}
			n.weight += int64(len(e.Context.Bytes))
		}
		for _, a := range e.Attributes {
			for _, v := range a.Values {
				n.weight += int64(len(a.Name) + len(v))
			}
		}
		n.weight += int64(33 * len(e.Readers))
		n.puts[i] = s
	}
	n.need = needOf(n.p.Edits)
}

// drainRequest asks the committer to log timers.
type drainRequest struct {
	t         uint64
	left      int // rows to be logged before it is answered; owned by the committer once it is taken
	done      chan struct{}
	remaining bool
	err       error
}

// queue is what waits for one feed's committer, first come first served.
type queue struct {
	room   *semaphore.Weighted // static
	total  int64               // static: its size
	signal chan struct{}       // static: capacity 1, never closed

	// mu guards what follows; nothing blocks while it is held.
	mu      sync.Mutex
	items   []*Pending
	drains  []*drainRequest
	rulings []*rulingRequest
	closed  bool
}

func (q *queue) init(bytes int64) {
	q.total = bytes
	q.room = semaphore.NewWeighted(bytes)
	q.signal = make(chan struct{}, 1)
}

var errStopped = fault(Unavailable, "the feed is not taking groups: overlayd is stopping. Nothing was appended; send the group again with the same key")

// share is the part of the room a pending one takes: one above the whole still gets its turn, alone.
func (q *queue) share(n *Pending) int64 { return min(n.weight, q.total) }

func (q *queue) push(ctx context.Context, n *Pending) {
	if err := q.room.Acquire(ctx, q.share(n)); err != nil {
		n.finish(Receipt{}, faultf(Unavailable, err, "the feed's queue is full: nothing was appended, send the group again"))
		return
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		q.room.Release(q.share(n))
		n.finish(Receipt{}, errStopped)
		return
	}
	q.items = append(q.items, n)
	q.mu.Unlock()
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// drain queues r and reports whether the committer will answer it.
func (q *queue) drain(r *drainRequest) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.drains = append(q.drains, r)
	q.wake()
	return true
}

// takeGroups hands out the next batch: everything that waits, up to the number and weight of one transaction. What was
// withdrawn meanwhile is dropped.
func (q *queue) takeGroups() []*Pending {
	var batch []*Pending
	var weight, freed int64
	q.mu.Lock()
	used := 0
	for _, n := range q.items {
		if len(batch) == maxBatchGroups || (len(batch) > 0 && weight+n.weight > maxBatchBytes) {
			break
		}
		used++
		freed += q.share(n)
		if n.state.CompareAndSwap(pendingQueued, pendingTaken) {
			batch = append(batch, n)
			weight += n.weight
		}
	}
	q.items = slices.Delete(q.items, 0, used)
	q.mu.Unlock()
	if freed > 0 {
		q.room.Release(freed)
	}
	return batch
}

// takeDrains hands out the drain requests that wait.
func (q *queue) takeDrains() []*drainRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	drains := q.drains
	q.drains = nil
	return drains
}

// close refuses everything that waits and whatever comes later.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	items, drains, rulings := q.items, q.drains, q.rulings
	q.items, q.drains, q.rulings = nil, nil, nil
	q.mu.Unlock()
	for _, n := range items {
		q.room.Release(q.share(n))
		if n.state.CompareAndSwap(pendingQueued, pendingTaken) {
			n.finish(Receipt{}, errStopped)
		}
	}
	for _, r := range drains {
		r.remaining, r.err = true, errStopped
		close(r.done)
	}
	for _, r := range rulings {
		r.err = errStopped
		close(r.done)
	}
}
