package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/operator"
)

// sessionCounter counts a feed's sessions for the operator API: those that can be
// read, and those that still hold row versions and log back. T is the database's
// clock, never behind the feed's.
func sessionCounter(pool *pgxpool.Pool) func(ctx context.Context, feed string) (operator.SessionCount, error) {
	return func(ctx context.Context, feed string) (n operator.SessionCount, err error) {
		err = pool.QueryRow(ctx, `
select count(*) filter (where s.expires_at > t.now), count(*) filter (where s.replay_until > t.now)
from lookup_session s
join feed f on f.id = s.feed_id and f.name = $1
join feed_clock c on c.feed_id = f.id
cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
where s.state = 1`, feed).Scan(&n.Open, &n.Pins)
		if err != nil {
			return n, fmt.Errorf("counting the sessions of feed %s: %w", feed, err)
		}
		return n, nil
	}
}
