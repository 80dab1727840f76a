package livefeed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// Compaction forgets what nobody was promised: it moves the floor up to the smallest watermark still promised, and then removes
// what is at or below it, a few thousand rows in a transaction. Between the two nothing is wrong: whoever is
// below the floor is Reset, because every read asks for the floor in the statement that reads its rows.

// Horizon says which is the smallest watermark of the feed that is still promised to somebody; ok is false when there is none. It
// is asked in a statement of its own, behind the exclusive lock that [Feed.Pin] shares: in the same one it would still see what was
// committed before the lock was had, and miss the promise whose transaction held it.
type Horizon func(ctx context.Context, tx pgx.Tx, feed *Feed) (w uint64, ok bool, err error)

// Compacted is what a round of compaction did.
type Compacted struct {
	Floor    uint64 // where the feed's floor is now
	Groups   int64  // groups of the log removed
	Versions int64  // row versions removed, each with its postings
	Evidence int64  // evidence removed, of all feeds
	More     bool   // there is more to remove now, or a lock could not be had: another round finds work
}

const (
	// compactRows bounds the rows of one kind that a transaction removes, compactPostings the postings and compactBytes the log
	// records read for it, one row more excepted.
	compactRows     = 2000
	compactPostings = 16384
	compactBytes    = 4 << 20
	// compactBatches bounds the transactions of a round, for groups and for versions each.
	compactBatches = 32
)

const (
	// So long compaction waits for a lock, and an Open that comes behind it waits as long at most.
	compactTimeout = `set local lock_timeout = '250ms'`

	floorLock = `select pg_advisory_xact_lock($1, $2)`

	floorRead = `
select h.head, fl.floor from feed_head h join feed_floor fl on fl.feed_id = h.feed_id where h.feed_id = $1`

	// The tag is that of the group, which is not removed before this is committed.
	floorRaise = `
update feed_floor fl set floor = $2, tag = g.tag
from (select g.tag from feed_group g where g.feed_id = $1 and g.seq = $2) g
where fl.feed_id = $1`

	// removalLock is one remover at a time for a feed: two would wait for each other's rows.
	removalLock = `select floor, untracked from feed_floor where feed_id = $1 for update`

	// Both walks begin where the last one ended: in front of that are only dead index entries, and vacuum may be long in coming.
	oldGroups = `
select g.seq, g.changes from (
  select k.seq, k.changes,
         coalesce(sum(octet_length(k.changes)) over (order by k.seq rows between unbounded preceding and 1 preceding), 0)::bigint as before
  from (select g.seq, g.changes from feed_group g
        where g.feed_id = $1 and g.seq > $2 and g.seq <= $3 order by g.seq limit $4) k) g
where g.before < $5
order by g.seq`

	groupsRemove = `delete from feed_group g where g.feed_id = $1 and g.seq > $2 and g.seq <= $3`

	// The key begins with the selector, so the entries of groups are found by the selectors that their records name.
	selectorsRemove = `
delete from group_selector d
using (select x.place from unnest($4::bytea[]) as u(selector)
       cross join lateral (select n.ctid as place from group_selector n
                           where n.feed_id = $1 and n.selector = u.selector and n.seq > $2 and n.seq <= $3 offset 0) x) found
where d.ctid = found.place`

	groupEvidenceRemove = `
with gone as (
  delete from group_evidence e where e.feed_id = $1 and e.seq > $2 and e.seq <= $3 returning e.sha
)
insert into blob_idle (sha)
select distinct u.sha from (select sha from gone union all select unnest($4::bytea[])) u(sha) order by 1
on conflict (sha) do update set sha = excluded.sha`

	// Found behind fences and removed by their places, as in versionEnd. removalLock keeps the places. A posting goes with the version
	// that it ended with, the last one that it led to.
	versionsRemove = `
with old as materialized (
  select v.ctid as place, v.order_key, v.valid_to, v.selectors, v.evidence
  from row_version v
  where v.feed_id = $1 and v.valid_to >= $2 and v.valid_to <= $3 and v.valid_to < 9223372036854775807
  order by v.valid_to limit $4
), doomed as materialized (
  select * from (
    select o.*, coalesce(sum(cardinality(o.selectors)) over (order by o.valid_to rows between unbounded preceding and 1 preceding), 0) as before
    from old o) o
  where o.before < $5
), unposted as (
  delete from posting d
  using (select x.place from doomed v cross join lateral unnest(v.selectors) as s(selector)
         cross join lateral (select p.ctid as place from posting p
                             where p.feed_id = $1 and p.selector = s.selector and p.order_key = v.order_key
                               and p.valid_to = v.valid_to offset 0) x) found
  where d.ctid = found.place
  returning 1
), gone as (
  delete from row_version d using doomed v where d.ctid = v.place returning d.valid_to
), idle as (
  insert into blob_idle (sha) select distinct v.evidence from doomed v order by 1
  on conflict (sha) do update set sha = excluded.sha
  returning 1
)
select count(*), coalesce(max(g.valid_to), $3), (select count(*) from old) = $4 or (select count(*) from old) > count(*),
       (select count(*) from unposted) + (select count(*) from idle)
from gone g`

	removedCount = `update feed_floor set removed = removed + $2 where feed_id = $1`
)

// compaction is what a feed's compactor remembers between rounds.
type compaction struct {
	mu sync.Mutex // held for a round

	// Everything at or below groups is gone from the log, and every version that ended below versions. 0 = not known.
	groups, versions uint64
}

// Compact runs one bounded round: it raises the floor to the smallest watermark still promised, or to the head when there is none,
// removes at most 32 times 2000 groups and as many row versions below it, and then evidence that nothing refers to
// any more. Group keys stay for ever. A lock that cannot be had within 250 ms (Opens are many, another node compacts)
// is no error: More is set and the next round goes on. Any number of processes may call it.
func (f *Feed) Compact(ctx context.Context, horizon Horizon) (Compacted, error) {
	m := f.store.metrics
	if !f.compaction.mu.TryLock() {
		m.compactBusy.WithLabelValues(f.name).Inc()
		return Compacted{More: true}, nil
	}
	defer f.compaction.mu.Unlock()
	began := time.Now()
	defer func() { m.compactSeconds.WithLabelValues(f.name).Observe(time.Since(began).Seconds()) }()

	var c Compacted
	floor, err := f.raiseFloor(ctx, horizon)
	if floor, err = f.unlessBusy(ctx, floor, err, &c); err != nil {
		return c, fmt.Errorf("livefeed: raise the floor of feed %q: %w", f.name, err)
	}
	c.Floor = floor
	failpoint.Hit(failpoint.CompactRaised)

	if floor < f.compaction.groups || floor < f.compaction.versions { // another database than before
		f.compaction.groups, f.compaction.versions = 0, 0
	}
	for _, remove := range []func(context.Context, uint64, *Compacted) (bool, error){f.removeGroups, f.removeVersions, f.forgetAudiences} {
		more := true
		for n := 0; more && n < compactBatches; n++ {
			more, err = remove(ctx, floor, &c)
			if busy(err) {
				m.compactBusy.WithLabelValues(f.name).Inc()
				break
			}
			if err != nil {
				return c, fmt.Errorf("livefeed: compact feed %q: %w", f.name, err)
			}
			failpoint.Hit(failpoint.CompactRemoved)
		}
		c.More = c.More || more
	}
	removed, more, err := f.store.collectEvidence(ctx)
	c.Evidence, c.More = removed, c.More || more
	if err != nil {
		return c, fmt.Errorf("livefeed: remove evidence that nothing refers to: %w", err)
	}
	return c, nil
}

// unlessBusy turns a lock that was not had into what a round does then: it goes on below the floor as it is.
func (f *Feed) unlessBusy(ctx context.Context, floor uint64, err error, c *Compacted) (uint64, error) {
	if !busy(err) {
		return floor, err
	}
	f.store.metrics.compactBusy.WithLabelValues(f.name).Inc()
	c.More = true
	head, floor, err := f.readFloor(ctx, f.store.cfg.Pool)
	f.store.metrics.floorLag.WithLabelValues(f.name).Set(float64(head - floor))
	return floor, err
}

// busy reports whether an error says that a lock was not had in time.
func busy(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "55P03" || e.Code == "57014")
}

// compactTx is a transaction of the compactor: none waits longer than 250 ms for a lock.
func (s *Store) compactTx(ctx context.Context, run func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.cfg.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, compactTimeout); err != nil {
			return err
		}
		return run(tx)
	})
}

func (f *Feed) readFloor(ctx context.Context, q Querier) (head, floor uint64, err error) {
	var h, fl int64
	if err := q.QueryRow(ctx, floorRead, f.id).Scan(&h, &fl); err != nil {
		return 0, 0, fmt.Errorf("read the floor: %w", err)
	}
	return uint64(h), uint64(fl), nil
}

// raiseFloor moves the floor and returns it. The lock is held for three look-ups and a commit.
func (f *Feed) raiseFloor(ctx context.Context, horizon Horizon) (floor uint64, err error) {
	err = f.store.compactTx(ctx, func(tx pgx.Tx) error {
		if !failpoint.MutantNoLock {
			if _, err := tx.Exec(ctx, floorLock, compactLock, f.id); err != nil {
				return err
			}
		}
		w, promised, err := horizon(ctx, tx, f)
		if err != nil {
			return fmt.Errorf("ask which watermarks are still promised: %w", err)
		}
		failpoint.Hit(failpoint.CompactAsked)
		if hook := f.hooks.horizon; hook != nil {
			hook()
		}
		var head uint64
		if head, floor, err = f.readFloor(ctx, tx); err != nil {
			return err
		}
		to := head
		if promised {
			to = min(w, head)
		}
		f.store.metrics.floorLag.WithLabelValues(f.name).Set(float64(head - max(to, floor)))
		if to <= floor {
			return nil
		}
		tag, err := tx.Exec(ctx, floorRaise, f.id, int64(to))
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("the log holds no group %d, which would be the floor: groups were lost, so break the feed's epoch", to)
		}
		floor = to
		return nil
	})
	if err == nil {
		f.tail.raise(floor)
	}
	return floor, err
}

// removeGroups removes the oldest groups at or below the floor and reports whether there may be more.
func (f *Feed) removeGroups(ctx context.Context, floor uint64, c *Compacted) (more bool, err error) {
	var n int64
	last := floor
	err = f.store.compactTx(ctx, func(tx pgx.Tx) error {
		var stored, untracked int64
		if err := tx.QueryRow(ctx, removalLock, f.id).Scan(&stored, &untracked); err != nil {
			return fmt.Errorf("lock the removal of groups: %w", err)
		}
		old, err := f.readOld(ctx, tx, min(floor, uint64(stored)), uint64(untracked))
		if err != nil || old.count == 0 {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(selectorsRemove, f.id, old.first-1, old.last, old.selectorList())
		b.Queue(groupEvidenceRemove, f.id, old.first-1, old.last, old.evidence)
		b.Queue(groupsRemove, f.id, old.first-1, old.last).Exec(func(tag pgconn.CommandTag) error {
			n = tag.RowsAffected()
			return nil
		})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("remove groups: %w", err)
		}
		more, last = old.full, uint64(old.last)
		return nil
	})
	if err != nil {
		return true, err
	}
	f.compaction.groups = last
	c.Groups += n
	f.store.noteRemoved(f.name, "groups", n)
	return more, nil
}

// removeVersions removes the row versions that ended first, at or below the floor, with their postings, and reports whether there may
// be more.
func (f *Feed) removeVersions(ctx context.Context, floor uint64, c *Compacted) (more bool, err error) {
	var n, last, hanging int64
	err = f.store.compactTx(ctx, func(tx pgx.Tx) error {
		var stored, untracked int64
		if err := tx.QueryRow(ctx, removalLock, f.id).Scan(&stored, &untracked); err != nil {
			return fmt.Errorf("lock the removal of row versions: %w", err)
		}
		if err := tx.QueryRow(ctx, versionsRemove, f.id, int64(f.compaction.versions), min(int64(floor), stored), compactRows, compactPostings).
			Scan(&n, &last, &more, &hanging); err != nil {
			return fmt.Errorf("remove row versions: %w", err)
		}
		if n == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, removedCount, f.id, n); err != nil {
			return fmt.Errorf("count removed row versions: %w", err)
		}
		return nil
	})
	if err != nil {
		return true, err
	}
	if !more {
		last = int64(floor)
	}
	f.compaction.versions = uint64(last)
	c.Versions += n
	f.store.noteRemoved(f.name, "versions", n)
	return more, nil
}

// noteRemoved counts rows for metrics and for the next vacuum.
func (s *Store) noteRemoved(feed, kind string, n int64) {
	s.metrics.compacted.WithLabelValues(feed, kind).Add(float64(n))
	s.removed.Add(n)
}

// oldLog is what is to be known of groups to remove what hangs on them.
type oldLog struct {
	count       int
	first, last int64
	full        bool // there may be more groups behind them
	selectors   map[Selector]struct{}
	evidence    [][]byte // of groups that were logged before group_evidence was
}

// readOld reads the oldest groups at or below the floor. A record that cannot be read keeps nobody from removing it: what hangs on it
// alone stays behind and is never met, as every read begins at the floor.
func (f *Feed) readOld(ctx context.Context, tx pgx.Tx, floor, untracked uint64) (*oldLog, error) {
	old := &oldLog{selectors: map[Selector]struct{}{}, evidence: [][]byte{}}
	rows, err := tx.Query(ctx, oldGroups, f.id, int64(f.compaction.groups), int64(floor), compactRows, compactBytes)
	if err != nil {
		return nil, fmt.Errorf("read old groups: %w", err)
	}
	var seq int64
	var record []byte
	if _, err := pgx.ForEachRow(rows, []any{&seq, &record}, func() error {
		if old.count++; old.count == 1 {
			old.first = seq
		}
		old.last = seq
		changes, err := decodeRecord(record)
		if err != nil {
			f.store.log.Warn("livefeed: a group whose record cannot be read is removed, and leaves entries behind", "feed", f.name, "group", seq, "err", err)
			return nil
		}
		for _, s := range groupSelectors(changes) {
			old.selectors[s] = struct{}{}
		}
		if uint64(seq) <= untracked {
			old.evidence = append(old.evidence, recordEvidence(changes)...)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read old groups: %w", err)
	}
	old.full = old.count > 0 && old.last < int64(floor)
	return old, nil
}

func (o *oldLog) selectorList() [][]byte {
	list := make([][]byte, 0, len(o.selectors))
	for s := range o.selectors {
		list = append(list, append([]byte(nil), s[:]...))
	}
	return list
}
