package livefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// compactLook says of feeds ($1) what is at or below their floors, beginning where the last removals ended ($2, $3), and whether
// evidence is idle that may be looked at. Each look is a scalar query in the order of an index, as in evidenceRemove.
const compactLook = `
select u.feed, h.head, fl.floor,
       (select 1 from feed_group g where g.feed_id = u.feed and g.seq > u.groups and g.seq <= fl.floor order by g.seq limit 1) is not null
       or (select 1 from row_version v
           where v.feed_id = u.feed and v.valid_to >= u.versions and v.valid_to <= fl.floor and v.valid_to < 9223372036854775807
           order by v.valid_to limit 1) is not null
       or (select 1 from row_audience a where a.feed_id = u.feed and a.seq <= fl.floor order by a.seq limit 1) is not null,
       (select 1 from blob_idle i order by i.sha limit 1) is not null
       and not exists (select from feed_floor fl where fl.untracked > fl.floor)
from unnest($1::int[], $2::bigint[], $3::bigint[]) as u(feed, groups, versions)
cross join lateral (select * from feed_head h where h.feed_id = u.feed offset 0) h
cross join lateral (select * from feed_floor fl where fl.feed_id = u.feed offset 0) fl`

// Compactable returns those of the feeds for which [Feed.Compact] would find work now, if the smallest watermarks still promised are
// these; a feed that promised none is not among them. It costs one statement for all, and changes nothing: what is promised or
// given up meanwhile is for Compact, behind its lock, or for the next look.
func (s *Store) Compactable(ctx context.Context, q Querier, feeds []*Feed, promised map[int32]uint64) ([]*Feed, error) {
	type found struct {
		head, floor uint64
		below, idle bool
	}
	ids, groups, versions := make([]int32, len(feeds)), make([]int64, len(feeds)), make([]int64, len(feeds))
	for i, f := range feeds {
		ids[i] = f.id
		g, v := f.compaction.reached()
		groups[i], versions[i] = int64(g), int64(v)
	}
	rows, err := q.Query(ctx, compactLook, ids, groups, versions)
	if err != nil {
		return nil, fmt.Errorf("livefeed: look for what may be removed: %w", err)
	}
	there := make(map[int32]found, len(feeds))
	var id int32
	var head, floor int64
	var below, idle bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &head, &floor, &below, &idle}, func() error {
		there[id] = found{uint64(head), uint64(floor), below, idle}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("livefeed: look for what may be removed: %w", err)
	}
	var work []*Feed
	for i, f := range feeds {
		is, ok := there[f.id]
		to := is.head
		if w, held := promised[f.id]; held {
			to = min(w, to)
		}
		if !ok || to > is.floor || is.below || is.idle || is.floor < uint64(max(groups[i], versions[i])) {
			work = append(work, f)
			continue
		}
		s.metrics.floorLag.WithLabelValues(f.name).Set(float64(is.head - is.floor))
		f.tail.raise(is.floor)
		f.compaction.clear(is.floor)
	}
	return work, nil
}

// reached is up to where everything is known to be gone.
func (c *compaction) reached() (groups, versions uint64) {
	if !c.mu.TryLock() {
		return 0, 0 // a round goes on; from the start is right, too
	}
	defer c.mu.Unlock()
	return c.groups, c.versions
}

// clear notes that nothing is left at or below a floor.
func (c *compaction) clear(floor uint64) {
	if c.mu.TryLock() { // else a round goes on, which knows better
		defer c.mu.Unlock()
		c.groups, c.versions = floor, floor
	}
}
