package livefeed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waiting says how who follows the end of the log waits for more of it.
type Waiting int

const (
	// Here does not wait: it is told what is there now.
	Here Waiting = iota
	// Registered has a [Waiter] that was registered before the call, and will sleep on it when there is nothing: of what this process
	// does not know yet the waiter will hear.
	Registered
	// Woken was woken by a Waiter that it registered before an earlier call, which had an answer up to this position.
	Woken
)

// Follow is [Feed.Log] for who follows the end of the log: the same answer, from memory where the tail of the feed in this process
// reaches. It is what the log said at an instant after the call began, which one statement asks for on behalf of everybody who
// calls meanwhile; positions before the tail are read from the log itself.
//
// For who waits an earlier instant is late enough if all that was announced is in it, and then no statement is sent at all: to who
// was Woken, if it is less than a second old and has nothing due; to who is Registered, however old it is, if it holds nothing for the
// caller, who then claims nothing. A floor that another process raised since is met at the next statement.
//
// What q sees is told to others: it is a pool, or a connection outside a transaction.
func (f *Feed) Follow(ctx context.Context, q Querier, l LogQuery, waiting Waiting) (LogPage, error) {
	if err := l.check(); err != nil {
		return LogPage{}, err
	}
	t, m := &f.tail, f.store.metrics
	budget := f.store.cfg.ScanBytes
	enough := uint64(0)
	if waiting != Here {
		era, published := f.hub.announced()
		least := max(l.After, published)
		if waiting == Woken {
			// What woke the caller is announced: an answer without it would let the caller sleep on.
			least = max(l.After+1, published)
			enough = least
		}
		fresh := func(at instant) bool { return !at.due && time.Since(at.at) < t.fresh }
		if at := t.latest(); at.broken >= era && at.head >= least && (waiting == Registered || fresh(at)) {
			if page, ok := t.page(at, l, budget); ok && (waiting == Woken || len(page.Groups) == 0) {
				m.followed.WithLabelValues(f.name, "memory").Inc()
				return page, nil
			}
		}
	}
	if t.reachable(l, f.store.witness.of(f.name).head) {
		if at, err := f.look(ctx, q, l.After, enough); err == nil {
			if page, ok := t.page(at, l, budget); ok {
				m.followed.WithLabelValues(f.name, "shared").Inc()
				return page, nil
			}
		}
	}
	m.followed.WithLabelValues(f.name, "alone").Inc()
	page, err := f.Log(ctx, q, l)
	if err == nil {
		t.tell(page.Now)
	}
	return page, err
}

// look is a statement that several ask for.
type look struct {
	done  chan struct{} // closed when what follows is set
	after uint64        // the lowest position of those who ask; guarded by tail.mu until the statement begins
	at    instant
	err   error
}

var (
	errAbandoned = errors.New("whoever asked for all of us gave up")
	errNoTail    = errors.New("the tail does not reach there")
)

// look brings the tail to an instant not before the call. Who comes first asks for everybody who comes until its
// statement begins. To whom a head is enough, the look under way may be too. The error is no answer to anything: ask the log.
func (f *Feed) look(ctx context.Context, q Querier, after, enough uint64) (instant, error) {
	t := &f.tail
	t.mu.RLock()
	running := t.running
	t.mu.RUnlock()
	if running != nil && enough > 0 {
		select {
		case <-running.done:
		case <-ctx.Done():
			return instant{}, context.Cause(ctx)
		}
		if at := t.latest(); at.head >= enough && at.epoch != "" {
			return at, nil
		}
	}
	for range 3 {
		t.mu.Lock()
		k, running := t.next, t.running
		lead := k == nil
		if lead {
			k = &look{done: make(chan struct{}), after: after}
			t.next = k
		}
		k.after = min(k.after, after)
		t.mu.Unlock()
		if lead {
			return f.lead(ctx, q, k, running)
		}
		select {
		case <-k.done:
		case <-ctx.Done():
			return instant{}, context.Cause(ctx)
		}
		if !errors.Is(k.err, errAbandoned) {
			return k.at, k.err
		}
	}
	return instant{}, errAbandoned
}

// lead waits for the look under way and then looks.
func (f *Feed) lead(ctx context.Context, q Querier, k, running *look) (instant, error) {
	t := &f.tail
	defer close(k.done)
	if running != nil {
		select {
		case <-running.done:
		case <-ctx.Done():
			t.mu.Lock()
			t.next, k.err = nil, errAbandoned
			t.mu.Unlock()
			return instant{}, context.Cause(ctx)
		}
	}
	t.mu.Lock()
	t.next, t.running = nil, k
	after := k.after
	t.mu.Unlock()
	k.at, k.err = f.ask(ctx, q, after)
	t.mu.Lock()
	t.running = nil
	t.mu.Unlock()
	if err := k.err; err != nil {
		if ctx.Err() != nil {
			k.err = errAbandoned
		}
		return instant{}, err
	}
	f.see(k.at.broken, k.at.head)
	return k.at, nil
}

// ask sends the statements of a look until the head is reached.
func (f *Feed) ask(ctx context.Context, q Querier, after uint64) (instant, error) {
	for range lookPages {
		at, full, err := f.askOnce(ctx, q, after)
		if err != nil || !full {
			return at, err
		}
		after = maxSequence // what is before the head was checked
	}
	return instant{}, errNoTail
}

// logTail is logAll without the records of groups up to $6, which are known.
const logTail = logHead + `
    select n.seq, n.tag, n.committed_at, case when n.seq > $6 then n.changes end as changes from feed_group n
    where n.feed_id = $1 and n.seq > $2 and s.after_tag = $3
    order by n.seq limit $4) k
) g on true
order by g.seq`

// askOnce reads the log from the lowest position that is asked for, compares what is known with it, and takes what is new.
func (f *Feed) askOnce(ctx context.Context, q Querier, after uint64) (at instant, full bool, err error) {
	t := &f.tail
	t.mu.RLock()
	known, life, head := t.known, t.life, t.at.head
	low := min(max(after, t.start), head)
	tag, _ := t.tagAt(low)
	var window []*recent
	if known {
		window = slices.Clone(t.groups[low-t.start:])
	}
	t.mu.RUnlock()
	if !known {
		return instant{}, false, errNoTail
	}
	f.store.metrics.looks.WithLabelValues(f.name).Inc()
	at = instant{life: life, at: time.Now()}
	limit := len(window) + lookPage
	rows, err := q.Query(ctx, logTail, f.id, int64(low), tag[:], limit, f.store.cfg.ScanBytes, int64(head))
	if err != nil {
		return instant{}, false, fmt.Errorf("livefeed: end of the log of feed %q: %w", f.name, err)
	}
	fresh, full, err := scanTail(rows, &at, low, window, limit)
	if err != nil {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			t.drop(life) // it may be the tail that is wrong
		}
		return instant{}, false, fmt.Errorf("livefeed: end of the log of feed %q: %w", f.name, err)
	}
	return at, full, t.take(&at, fresh, full)
}

// scanTail reads what logTail returns: the window, which must be what is known, and what follows it.
func scanTail(rows pgx.Rows, at *instant, low uint64, window []*recent, limit int) (fresh []*recent, full bool, err error) {
	defer rows.Close()
	first, candidates, last := true, 0, low
	for rows.Next() {
		var broken, floor, head, now int64
		var seq, committed *int64
		var tag, groupTag, record []byte
		var same bool
		if err := rows.Scan(&at.epoch, &broken, &floor, &head, &tag, &now, &at.due, &same, &seq, &groupTag, &committed, &record); err != nil {
			return nil, false, err
		}
		if first {
			first = false
			if err := checkPosition(low, uint64(floor), uint64(head), same); err != nil {
				return nil, false, err
			}
			at.broken, at.floor, at.head, at.tag, at.now = uint64(broken), uint64(floor), uint64(head), [8]byte(tag), uint64(now)
		}
		if seq == nil {
			break
		}
		candidates++
		if last++; uint64(*seq) != last {
			return nil, false, resetFault("the log has a hole")
		}
		if candidates <= len(window) {
			if window[candidates-1].tag != [8]byte(groupTag) {
				return nil, false, errNoTail
			}
			continue
		}
		if record == nil {
			full = true
			continue
		}
		g := &recent{sequence: last, committedAt: uint64(*committed), tag: [8]byte(groupTag), length: len(record)}
		if g.changes, err = decodeRecord(record); err != nil {
			return nil, false, err
		}
		g.selectors, g.weight = groupSelectors(g.changes), weigh(g.changes)
		if !full {
			fresh = append(fresh, g)
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return nil, false, err
	}
	switch {
	case first:
		return nil, false, resetFault("the feed is not in the database any more")
	case candidates < len(window), candidates < limit && last != at.head:
		return nil, false, resetFault("the log has a hole")
	}
	return fresh, full || candidates == limit, nil
}
