package livefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// T, the feed's time, is the database's clock_timestamp() in whole seconds, but never less than the last evaluated
// time. It is only ever computed in SQL, in the statement whose other answers it dates.

// Cut is one instant of a feed, all of it from one statement.
type Cut struct {
	W         uint64  // the head: every group <= W is in what a snapshot at W shows
	Tag       [8]byte // of group W
	Now       uint64  // T
	Evaluated uint64  // every timer with a deadline up to here is in the log
	Due       bool    // a timer with a deadline <= Now is not
	Floor     uint64
	Epoch     string
	Turn      uint64 // rotations of the epoch so far
}

const feedCut = `
select f.epoch, f.turn, h.head, h.tag, fl.floor, c.evaluated, t.now,
       coalesce(` + firstDeadline + ` <= t.now, false)
from feed f
join feed_head h on h.feed_id = f.id
join feed_floor fl on fl.feed_id = f.id
join feed_clock c on c.feed_id = f.id
-- volatile, so it is neither pulled up nor evaluated twice
cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
where f.id = $1`

// Cut reads the head, the time and whether a timer is due, in one statement: with two, a row that expired between them
// could be part of a snapshot. If Due, [Feed.Drain] to Now and cut again; when the drain's budget is spent, evaluate at
// Evaluated instead of Now.
func (f *Feed) Cut(ctx context.Context, q Querier) (Cut, error) {
	var c Cut
	var turn, head, floor, evaluated, now int64
	var tag []byte
	err := q.QueryRow(ctx, feedCut, f.id).Scan(&c.Epoch, &turn, &head, &tag, &floor, &evaluated, &now, &c.Due)
	if err != nil {
		return Cut{}, fmt.Errorf("livefeed: cut feed %q: %w", f.name, err)
	}
	c.W, c.Floor, c.Evaluated, c.Now = uint64(head), uint64(floor), uint64(evaluated), uint64(now)
	c.Tag, c.Turn = [8]byte(tag), uint64(turn)
	return c, nil
}

const epochsRead = `
select f.id, f.epoch, greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated)
from unnest($1::int[]) as u(id)
cross join lateral (select * from feed f where f.id = u.id offset 0) f
cross join lateral (select * from feed_clock c where c.feed_id = u.id offset 0) c`

// Epochs reads the epochs of feeds, by their ids, and the latest time of any, in one statement.
func (s *Store) Epochs(ctx context.Context, q Querier, feeds []*Feed) (epochs map[int32]string, latest uint64, err error) {
	ids := make([]int32, len(feeds))
	for i, f := range feeds {
		ids[i] = f.id
	}
	rows, err := q.Query(ctx, epochsRead, ids)
	if err != nil {
		return nil, 0, fmt.Errorf("livefeed: read epochs: %w", err)
	}
	epochs = make(map[int32]string, len(feeds))
	var id int32
	var epoch string
	var now uint64
	if _, err := pgx.ForEachRow(rows, []any{&id, &epoch, &now}, func() error {
		epochs[id], latest = epoch, max(latest, now)
		return nil
	}); err != nil {
		return nil, 0, fmt.Errorf("livefeed: read epochs: %w", err)
	}
	for _, f := range feeds {
		if _, ok := epochs[f.id]; !ok {
			return nil, 0, fmt.Errorf("livefeed: read the epoch of feed %q: it is not in the database any more", f.name)
		}
	}
	return epochs, latest, nil
}

const clockAdvance = `update feed_clock set evaluated = $2 where feed_id = $1 and evaluated < $2`

// Advance makes T never fall below t again, also after a restart or on a node whose clock is behind. Whoever
// promises something computed from T calls it in the transaction that makes the promise, after its last [Feed.Drain].
// The row is written once a second at most; calls that meet there wait for each other's commit.
func (f *Feed) Advance(ctx context.Context, q Querier, t uint64) error {
	if t > maxSequence {
		return fmt.Errorf("livefeed: time %d is out of range", t)
	}
	if _, err := q.Exec(ctx, clockAdvance, f.id, int64(t)); err != nil {
		return fmt.Errorf("livefeed: advance the clock of feed %q: %w", f.name, err)
	}
	return nil
}
