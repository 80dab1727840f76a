package livefeed

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/overlayd/overlayd/internal/failpoint"
)

const (
	// maxBatchGroups and maxBatchBytes bound one transaction. There is no timer: a batch is what waits while the last
	// one is flushed.
	maxBatchGroups = 256
	maxBatchBytes  = 8 << 20
	// drainRows is how many timers one transaction logs. Larger ones log no more a second, and keep everybody else waiting longer.
	drainRows = 250

	attemptTimeout = 30 * time.Second // of one transaction, the wait for another process's head lock included
	retryWindow    = 10 * time.Second // how long a batch is retried before its groups are told Unavailable
	firstBackoff   = 10 * time.Millisecond
	lastBackoff    = time.Second
)

// commitLoop is the feed's committer: the only goroutine of this process that appends. It owns every Pending between
// take and finish.
func (f *Feed) commitLoop(ctx context.Context) {
	defer f.queue.close()
	var drains []*drainRequest // under way
	defer func() { answerDrains(drains, true, errStopped) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.queue.signal:
		}
		// Timers and groups alternate, a transaction each: a backlog of one does not keep the other waiting.
		for ctx.Err() == nil {
			// Prohibitions go first: they are few, and what they stop must not wait.
			rulings := f.queue.takeRulings()
			if len(rulings) > 0 {
				f.ruleAll(ctx, rulings)
			}
			drains = append(drains, f.queue.takeDrains()...)
			drained := len(drains) > 0
			if drained {
				drains = f.drain(ctx, drains)
			}
			batch := f.queue.takeGroups()
			if len(batch) > 0 {
				f.commit(ctx, batch)
			}
			if len(rulings) == 0 && !drained && len(batch) == 0 {
				break
			}
		}
	}
}

// commit takes a batch to its end: every pending one is finished when it returns.
func (f *Feed) commit(ctx context.Context, batch []*Pending) {
	batch = slices.DeleteFunc(batch, func(n *Pending) bool {
		if !n.orphaned() {
			return false
		}
		n.finish(Receipt{}, errOrphaned)
		return true
	})
	if len(batch) == 0 {
		return
	}
	began := time.Now()
	over := make(chan struct{})
	f.committing.Store(&over)
	outcomes, head, err := f.persist(ctx, batch)
	f.committing.Store(nil)
	close(over)
	if err == nil {
		f.store.metrics.commitSeconds.WithLabelValues(f.name).Observe(time.Since(began).Seconds())
		for i, n := range batch {
			o := outcomes[i]
			if o.err != nil {
				n.finish(Receipt{}, o.err)
				continue
			}
			n.finish(Receipt{Sequence: o.seq, HighWater: head, Replayed: o.replayed}, nil)
		}
		return
	}
	if len(batch) > 1 && refused(err) {
		// The database would not take the batch: one of its groups is to blame, and its neighbours are not.
		f.store.log.Warn("livefeed: a batch was refused by the database, its groups are tried one by one", "feed", f.name, "groups", len(batch), "err", err)
		for _, n := range batch {
			f.commit(ctx, []*Pending{n})
		}
		return
	}
	f.store.log.Error("livefeed: groups could not be committed", "feed", f.name, "groups", len(batch), "err", err)
	for _, n := range batch {
		reason := "the database did not take the group: it was not appended. Send it again with the same key"
		if len(n.attempts) > 0 {
			reason = "the connection to the database was lost while the group was being committed, so its outcome is not known: send it again with the same key"
		}
		n.finish(Receipt{}, faultf(Unavailable, err, "%s", reason))
	}
}

// persist runs the batch's transaction until it is known to have committed, or for retryWindow. A retry after an
// unknown outcome is not blind: it takes the head lock, so that whatever is left of the lost transaction has ended, and only
// then looks for the groups' keys.
func (f *Feed) persist(ctx context.Context, batch []*Pending) ([]outcome, uint64, error) {
	var outcomes []outcome
	var head uint64
	err := f.retry(ctx, func(work context.Context) error {
		var sent []*Pending // those whose sequences this attempt sent
		pl, err := f.transact(work, batchReads(batch), func(pl *plan) {
			outcomes = make([]outcome, len(batch))
			for i, n := range batch {
				outcomes[i] = pl.apply(n)
			}
			if !pl.due && pl.now > pl.clock {
				pl.evaluated = pl.now
			}
			failpoint.Hit(failpoint.AppendPlanned)
		}, func() {
			for i, n := range batch {
				if outcomes[i].err == nil && !outcomes[i].replayed {
					n.attempts = append(n.attempts, outcomes[i].seq)
					sent = append(sent, n)
				}
			}
			failpoint.Hit(failpoint.AppendSending)
		})
		if err != nil {
			if rolledBack(err) {
				for _, n := range sent {
					n.attempts = n.attempts[:len(n.attempts)-1]
				}
			}
			return err
		}
		failpoint.Hit(failpoint.AppendAnnounced)
		head = pl.head
		return nil
	})
	return outcomes, head, err
}

// retry repeats what failed for reasons that pass, within retryWindow and not beyond the end of ctx. Work under
// way is not cut by the end of ctx: its outcome would be unknown for nothing.
func (f *Feed) retry(ctx context.Context, run func(context.Context) error) error {
	deadline := time.Now().Add(retryWindow)
	for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
		err := run(work)
		cancel()
		if err == nil || refused(err) || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		f.store.metrics.retries.WithLabelValues(f.name).Inc()
		level := slog.LevelDebug
		if backoff == firstBackoff {
			level = slog.LevelWarn
		}
		f.store.log.Log(ctx, level, "livefeed: a commit failed and is tried again", "feed", f.name, "err", err)
		if !pause(ctx, backoff) {
			return err
		}
	}
}

// rolledBack reports whether the database itself said that the transaction failed. A fatal error does not say so: it may
// follow a commit.
func rolledBack(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// refused reports whether the database understood the statements and would refuse them again. What it may accept later
// (a lost connection, a deadlock, a full disk, a server that stops or is a standby) is not refused.
func refused(err error) bool {
	if errors.Is(err, errPlan) {
		return true
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !rolledBack(err) || len(e.Code) != 5 || e.Code == "25006" || e.Code == "55P03" {
		return false
	}
	switch e.Code[:2] {
	case "08", "40", "53", "57", "58":
		return false
	}
	return true
}

// errPlan marks faults that no retry cures: what is stored cannot be read, or does not fit what was planned.
var errPlan = errors.New("the stored feed does not fit the plan")

// Drain logs every timer due at or before t, and not after T: in (deadline, order key) order, each as its own group,
// up to 250 in a transaction, until budget of them were logged since it was called, by whomever (0 = one transaction's worth). It
// reports whether due ones remained; if none did, T will not fall below t again. It runs on the committer's
// connection: never call it in a transaction that has called [Feed.Advance].
func (f *Feed) Drain(ctx context.Context, t uint64, budget int) (remaining bool, err error) {
	if budget <= 0 {
		budget = drainRows
	}
	r := &drainRequest{t: t, left: budget, done: make(chan struct{})}
	if !f.queue.drain(r) {
		return true, errStopped
	}
	select {
	case <-r.done:
		return r.remaining, r.err
	case <-ctx.Done():
		return true, faultf(Unavailable, context.Cause(ctx), "the wait for due timers ended before they were logged")
	}
}

// drain logs one transaction's worth of timers for all requests together, up to the latest time among them, and answers those that it
// served. It returns the others: who asked for few rows does not wait for the backlog of who asked for many.
func (f *Feed) drain(ctx context.Context, requests []*drainRequest) (unserved []*drainRequest) {
	var t uint64
	most := 0
	for _, r := range requests {
		t, most = max(t, r.t), max(most, r.left)
	}
	limit := min(most, drainRows)
	var logged int
	var remaining bool
	err := f.retry(ctx, func(work context.Context) error {
		_, err := f.transact(work, timerReads(t, limit), func(pl *plan) {
			logged, remaining = pl.expireDue(t, limit)
			failpoint.Hit(failpoint.ExpiryPlanned)
		}, nil)
		failpoint.Hit(failpoint.ExpiryCommitted)
		return err
	})
	if err != nil {
		f.store.log.Error("livefeed: due timers could not be logged", "feed", f.name, "err", err)
		answerDrains(requests, true, faultf(Unavailable, err, "due timers could not be logged"))
		return nil
	}
	if !remaining {
		answerDrains(requests, false, nil)
		return nil
	}
	var served []*drainRequest
	for _, r := range requests {
		if r.left -= logged; r.left > 0 {
			unserved = append(unserved, r)
		} else {
			served = append(served, r)
		}
	}
	answerDrains(served, true, nil)
	return unserved
}

func answerDrains(requests []*drainRequest, remaining bool, err error) {
	for _, r := range requests {
		r.remaining, r.err = remaining, err
		close(r.done)
	}
}
