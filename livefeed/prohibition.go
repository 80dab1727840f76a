package livefeed

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// A prohibition stops a row from being served, whatever lists it. Its list entry, the hidden version of the row and the group
// that withdraws it are one transaction of the committer, so that every reader and every gate sees all of it or none
// (conformance row A5). Hidden is a state of the row version: what the log says of an earlier sequence never changes.

const (
	prohibitionPut    = `insert into prohibition (feed_id, outpoint, reason, since) values ($1, $2, $3, $4)`
	prohibitionDelete = `delete from prohibition where feed_id = $1 and outpoint = $2`
	prohibitionRevise = `update feed set prohibition_rev = prohibition_rev + 1 where id = $1 returning prohibition_rev`
)

// ruling is what a plan changes in the list of prohibitions.
type ruling struct {
	outpoint Outpoint
	lift     bool
	reason   string
}

// rulingRequest asks the committer for a ruling.
type rulingRequest struct {
	ruling
	sent    bool // an attempt was sent whose answer was lost. Owned by the committer
	done    chan struct{}
	changed bool
	err     error
}

// Prohibit stops the row at an outpoint from ever being newly served: it is hidden, a group that withdraws it is logged if it is
// listed, and whatever is put there meanwhile stays hidden. reason is for the operator, 1..1024 bytes. It reports
// whether the row was not prohibited before; repeating it changes nothing.
func (f *Feed) Prohibit(ctx context.Context, outpoint Outpoint, reason string) (changed bool, err error) {
	return f.rule(ctx, ruling{outpoint: outpoint, reason: reason})
}

// Allow lifts a prohibition: a row that is still listed enters again. It reports whether there was one.
func (f *Feed) Allow(ctx context.Context, outpoint Outpoint) (changed bool, err error) {
	return f.rule(ctx, ruling{outpoint: outpoint, lift: true})
}

func (f *Feed) rule(ctx context.Context, r ruling) (bool, error) {
	request := &rulingRequest{ruling: r, done: make(chan struct{})}
	if !f.queue.rule(request) {
		return false, errStopped
	}
	select {
	case <-request.done:
		return request.changed, request.err
	case <-ctx.Done():
		return false, faultf(Unavailable, context.Cause(ctx), "the wait ended before the prohibition was changed: ask again, it does no harm")
	}
}

// ruleAll answers requests one by one, in order.
func (f *Feed) ruleAll(ctx context.Context, requests []*rulingRequest) {
	for _, r := range requests {
		point := r.outpoint.Bytes()
		err := f.retry(ctx, func(work context.Context) error {
			_, err := f.transact(work, reads{outpoints: [][]byte{point[:]}}, func(pl *plan) {
				r.changed = pl.rule(r.ruling) || r.sent
				failpoint.Hit(failpoint.RulingPlanned)
			}, func() { r.sent = true })
			if err != nil && rolledBack(err) {
				r.sent = false
			}
			failpoint.Hit(failpoint.RulingCommitted)
			return err
		})
		if err != nil {
			f.store.log.Error("livefeed: a prohibition could not be changed", "feed", f.name, "err", err)
			r.changed, r.err = false, faultf(Unavailable, err, "the database did not take the prohibition's change: ask again, it does no harm")
		}
		close(r.done)
	}
}

// rule plans a ruling and reports whether it changes anything.
func (pl *plan) rule(r ruling) bool {
	if pl.prohibited[r.outpoint] != r.lift {
		return false
	}
	pl.ruling = &r
	pl.expireTouched([]Edit{{Op: Put, Outpoint: r.outpoint}})
	before := pl.rows[r.outpoint]
	if before == nil || before.state.Hidden == !r.lift {
		return true
	}
	after := *before.state
	after.Hidden = !r.lift
	pl.set(r.outpoint, &after, pl.head+1)
	pl.append([]Change{{Op: Put, Outpoint: r.outpoint, Before: before.state, After: &after}})
	return true
}

func (pl *plan) queueRuling(b *pgx.Batch, feed int32) {
	if pl.ruling == nil {
		return
	}
	point := pl.ruling.outpoint.Bytes()
	if pl.ruling.lift {
		b.Queue(prohibitionDelete, feed, point[:])
	} else {
		b.Queue(prohibitionPut, feed, point[:], []byte(pl.ruling.reason), int64(pl.now))
	}
	b.Queue(prohibitionRevise, feed).QueryRow(func(r pgx.Row) error {
		var n int64
		err := r.Scan(&n)
		pl.revision = uint64(n)
		return err
	})
}

// rule queues r and reports whether the committer will answer it.
func (q *queue) rule(r *rulingRequest) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.rulings = append(q.rulings, r)
	q.wake()
	return true
}

// takeRulings hands out the rulings that wait.
func (q *queue) takeRulings() []*rulingRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	rulings := q.rulings
	q.rulings = nil
	return rulings
}
