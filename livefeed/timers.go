package livefeed

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// timerTick bounds how long the timer worker sleeps: rows with earlier deadlines may have been put meanwhile.
	timerTick = time.Second
	// timerBudget is how many rows of one feed it drains before it looks at the others.
	timerBudget = 10 * drainRows
	// timerLockClass is the first key of the advisory locks ("ovtm"); the feed's id is the second.
	timerLockClass = 0x6f76746d
)

const (
	timerLock = `select u.id, pg_try_advisory_lock($1, u.id) from unnest($2::int[]) as u(id)`

	timerNext = `
select f.id, t.now,
       -- Seconds until the earliest deadline, by the database's clock; null = there is none. Asked for in order, like firstDeadline: a
       -- min() may as well be planned as a walk over every deadline there is.
       (select v.expires_at from row_version v
        where v.feed_id = f.id and v.valid_to = 9223372036854775807 and v.expires_at is not null
        order by v.expires_at, v.order_key limit 1)
       - greatest(extract(epoch from clock_timestamp()), c.evaluated)::double precision
from feed f
join feed_clock c on c.feed_id = f.id
cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
where f.id = any($1)`
)

// timerLoop is the process's timer worker: it logs the expiry of rows with nobody reading. Of all processes on
// a database one works for a feed: whoever holds its advisory lock, on a connection of its own, so that a process
// that dies hands over with its connection.
func (s *Store) timerLoop(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		err := s.timers(ctx, func() { backoff = firstBackoff })
		if ctx.Err() != nil {
			return
		}
		level := slog.LevelDebug // while there is none to be had
		if backoff == firstBackoff {
			level = slog.LevelWarn
		}
		s.log.Log(ctx, level, "livefeed: the timer worker lost its connection and takes another", "err", err)
		if !pause(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// timers works on one connection until it fails.
func (s *Store) timers(ctx context.Context, healthy func()) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	work, cancel := context.WithTimeout(ctx, attemptTimeout)
	err = s.readHeads(work, conn, true)
	cancel()
	if err != nil {
		return err
	}
	held := map[int32]bool{}
	for {
		if err := s.lockTimers(ctx, conn, held); err != nil {
			return err
		}
		wait, err := s.runTimers(ctx, conn, held)
		if err != nil {
			return err
		}
		healthy()
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// lockTimers tries the locks of feeds that are not held yet.
func (s *Store) lockTimers(ctx context.Context, conn *pgx.Conn, held map[int32]bool) error {
	var want []int32
	for _, f := range s.Feeds() {
		if !held[f.id] {
			want = append(want, f.id)
		}
	}
	if len(want) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	rows, err := conn.Query(ctx, timerLock, timerLockClass, want)
	if err != nil {
		return fmt.Errorf("lock timers: %w", err)
	}
	var id int32
	var got bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &got}, func() error {
		if got {
			held[id] = true
		}
		return nil
	}); err != nil {
		return fmt.Errorf("lock timers: %w", err)
	}
	return nil
}

// runTimers drains what is due on the feeds held and returns how long to sleep.
func (s *Store) runTimers(ctx context.Context, conn *pgx.Conn, held map[int32]bool) (time.Duration, error) {
	ids := make([]int32, 0, len(held))
	for id := range held {
		ids = append(ids, id)
	}
	type feedTime struct {
		id   int32
		now  int64
		left *float64
	}
	work, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	rows, err := conn.Query(work, timerNext, ids)
	if err != nil {
		return 0, fmt.Errorf("read deadlines: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (t feedTime, err error) {
		err = r.Scan(&t.id, &t.now, &t.left)
		return t, err
	})
	if err != nil {
		return 0, fmt.Errorf("read deadlines: %w", err)
	}
	wait := timerTick
	for _, f := range s.Feeds() {
		for _, t := range list {
			if t.id != f.id || t.left == nil {
				continue
			}
			if *t.left > 0 {
				wait = min(wait, time.Duration(math.Min(*t.left, 1)*float64(time.Second))+time.Millisecond)
				continue
			}
			remaining, err := f.Drain(ctx, uint64(t.now), timerBudget)
			if err != nil {
				if ctx.Err() == nil {
					s.log.Warn("livefeed: due timers wait", "feed", f.name, "err", err)
				}
				continue
			}
			if remaining {
				wait = 0
			}
		}
	}
	return wait, nil
}
