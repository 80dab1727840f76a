package model_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/livefeed"
)

// horizon is the smallest watermark still promised to somebody.
func (w *world) horizon() (least uint64, any bool) {
	for _, s := range w.sessions {
		if s.state == living && s.turn >= w.broken && w.t < s.replayUntil && (!any || s.w < least) {
			least, any = s.w, true
		}
	}
	return least, any
}

// retaining lets the provider forget what it may, or compacts the feed alone as far as the model's own promises allow.
func (d *drive) retaining() error {
	n, at := d.node()
	least, any := d.horizon()
	if d.chance(4) {
		d.say("compact on node %d up to %d (%v)", at, least, any)
		horizon := func(context.Context, pgx.Tx, *livefeed.Feed) (uint64, bool, error) { return least, any, nil }
		for more := true; more; {
			c, err := n.feed.Compact(d.ctx, horizon)
			if err != nil {
				return err
			}
			more = c.More
		}
	} else {
		d.say("retain on node %d", at)
		for more := true; more; {
			done, err := n.provider.Retain(d.ctx)
			if err != nil {
				return err
			}
			more = done.More
		}
		for _, s := range d.sessions {
			if s.state == living && s.turn < d.broken {
				s.state = reset
			}
			s.removed = s.removed || s.replayUntil <= d.t
		}
	}
	d.floor = max(d.floor, least)
	if !any {
		d.floor = d.head()
	}
	return d.stored(n)
}

// stored compares what the tables hold with what is still needed.
func (d *drive) stored(n *node) error {
	var versions, groups, low, high, floor int64
	id := n.feed.ID()
	if err := n.running.pool.QueryRow(d.ctx, `select (select count(*) from row_version where feed_id = $1),
		count(*), coalesce(min(seq), 0), coalesce(max(seq), 0),
		(select floor from feed_floor where feed_id = $1) from feed_group where feed_id = $1`, id).Scan(&versions, &groups, &low, &high, &floor); err != nil {
		return err
	}
	if uint64(floor) != d.floor {
		return fmt.Errorf("the floor is %d, want %d of %d", floor, d.floor, d.head())
	}
	want := int64(d.head() - d.floor)
	if versions != int64(d.retained(d.floor)) || groups != want || groups > 0 && (uint64(low) != d.floor+1 || uint64(high) != d.head()) {
		return fmt.Errorf("%d versions and groups %d to %d (%d) are stored; want %d and %d to %d", versions, low, high, groups, d.retained(d.floor), d.floor+1, d.head())
	}
	return nil
}
