package livefeed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// Evidence is stored once for all feeds and lives as long as something refers to it: a row version, or a group of the log. What
// only the log refers to is listed beside it, in the transaction of its group. Whoever removes a reference lists the
// evidence as idle in the same transaction, and the collector looks later whether there is another one. A committer does not
// see whether the evidence it brings is there already: while the collector looks, nobody commits.

const (
	// evidenceStep and evidenceBytes bound the evidence one transaction looks at, one more excepted: every committer waits for it.
	evidenceStep  = 500
	evidenceBytes = 16 << 20
	// evidenceSteps bounds the transactions of a round.
	evidenceSteps = 8
)

const (
	evidencePut = `
insert into group_evidence (feed_id, seq, sha)
select $1, u.seq, u.sha from unnest($2::bigint[], $3::bytea[]) as u(seq, sha)`

	// Groups logged before their evidence was listed may refer to anything. The floor only rises: once it has passed them it has
	// for good. octet_length does not fetch what is stored out of line.
	idleFind = `
select i.sha, coalesce(octet_length(b.bytes), 0)
from (select i.sha from blob_idle i where i.sha > $1 order by i.sha limit $2) i
left join lateral (select b.bytes from blob b where b.sha = i.sha offset 0) b on true
where not exists (select from feed_floor fl where fl.untracked > fl.floor)
order by i.sha`

	// All feeds in one statement, ascending, and for no longer than one lock may take.
	headsTimeout = `set local statement_timeout = '250ms'`
	headsLock    = `select h.feed_id from feed_head h order by h.feed_id for update`
	headsPatient = `set local statement_timeout to default`
	headsCount   = `select count(*) from feed_head`

	// Locked before it is asked what refers to them: who removes a reference meanwhile waits, and lists it again. What is locked by
	// such a one already is left to the next time.
	idleLock = `select i.sha from blob_idle i where i.sha = any($1) for update skip locked`

	// Each look is a scalar query, which the planner does not turn into a join over the whole table.
	evidenceRemove = `
with free as materialized (
  select u.sha from unnest($1::bytea[]) as u(sha)
  where (select 1 from row_version v where v.evidence = u.sha limit 1) is null
    and (select 1 from group_evidence e where e.sha = u.sha limit 1) is null
), gone as (
  delete from blob d
  using (select x.place from free f cross join lateral (select b.ctid as place from blob b where b.sha = f.sha offset 0) x) found
  where d.ctid = found.place
  returning 1
), looked as (
  delete from blob_idle d
  using (select x.place from unnest($1::bytea[]) as u(sha)
         cross join lateral (select i.ctid as place from blob_idle i where i.sha = u.sha offset 0) x) found
  where d.ctid = found.place
  returning 1
)
select (select count(*) from gone), (select count(*) from looked)`
)

// collector is the store's collector of evidence. One works at a time in a process; of several processes each takes what
// the others have not locked.
type collector struct {
	mu    sync.Mutex // held for a round
	after []byte     // where the next look at the idle begins
	hooks struct {
		locked  func() // no feed can commit
		chosen  func() // what to look at is locked, and not yet looked at
		removed func() // evidence is removed, nothing is committed
	}
}

// errNewFeed says that a feed appeared whose head is not locked.
var errNewFeed = errors.New("a feed was created meanwhile")

// collectEvidence removes evidence that nothing refers to, in at most evidenceSteps transactions. more: there is more to look
// at, or committers kept it waiting.
func (s *Store) collectEvidence(ctx context.Context) (removed int64, more bool, err error) {
	c := &s.collector
	if !c.mu.TryLock() {
		return 0, false, nil // somebody else's round goes on
	}
	defer c.mu.Unlock()
	for range evidenceSteps {
		idle, last, err := s.findIdle(ctx)
		if err != nil || len(idle) == 0 {
			return removed, false, err
		}
		var n int64
		err = s.compactTx(ctx, func(tx pgx.Tx) (err error) {
			n, err = s.removeIdle(ctx, tx, idle)
			return err
		})
		if busy(err) || errors.Is(err, errNewFeed) {
			return removed, true, nil
		}
		if err != nil {
			return removed, true, err
		}
		c.after = last
		removed += n
		s.metrics.collected.Add(float64(n))
		s.removed.Add(n)
		failpoint.Hit(failpoint.CompactCollected)
	}
	return removed, true, nil
}

// findIdle reads the next idle evidence, as much as one transaction may look at. It goes round, so that what it removed before
// is not walked over again.
func (s *Store) findIdle(ctx context.Context) (idle [][]byte, last []byte, err error) {
	for {
		rows, err := s.cfg.Pool.Query(ctx, idleFind, append([]byte{}, s.collector.after...), evidenceStep)
		if err != nil {
			return nil, nil, fmt.Errorf("look for idle evidence: %w", err)
		}
		var sha []byte
		var size, total int
		if _, err := pgx.ForEachRow(rows, []any{&sha, &size}, func() error {
			if total < evidenceBytes {
				idle = append(idle, bytes.Clone(sha))
			}
			total += size
			return nil
		}); err != nil {
			return nil, nil, fmt.Errorf("look for idle evidence: %w", err)
		}
		if len(idle) > 0 {
			return idle, idle[len(idle)-1], nil
		}
		if len(s.collector.after) == 0 {
			return nil, nil, nil
		}
		s.collector.after = nil
	}
}

// removeIdle removes those of the idle that nothing refers to, while no feed can commit.
func (s *Store) removeIdle(ctx context.Context, tx pgx.Tx, idle [][]byte) (removed int64, err error) {
	if _, err := tx.Exec(ctx, headsTimeout); err != nil {
		return 0, err
	}
	rows, err := tx.Query(ctx, headsLock)
	if err != nil {
		return 0, fmt.Errorf("lock all heads: %w", err)
	}
	feeds, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, fmt.Errorf("lock all heads: %w", err)
	}
	if _, err := tx.Exec(ctx, headsPatient); err != nil {
		return 0, err
	}
	if hook := s.collector.hooks.locked; hook != nil {
		hook()
	}
	if rows, err = tx.Query(ctx, idleLock, idle); err != nil {
		return 0, fmt.Errorf("lock idle evidence: %w", err)
	}
	if idle, err = pgx.CollectRows(rows, pgx.RowTo[[]byte]); err != nil {
		return 0, fmt.Errorf("lock idle evidence: %w", err)
	}
	if hook := s.collector.hooks.chosen; hook != nil {
		hook()
	}
	var looked int64
	if err := tx.QueryRow(ctx, evidenceRemove, idle).Scan(&removed, &looked); err != nil {
		return 0, fmt.Errorf("remove evidence: %w", err)
	}
	if hook := s.collector.hooks.removed; hook != nil {
		hook()
	}
	// A feed that appeared since the heads were locked may have found evidence there. One that appears from here on waits for this
	// transaction where it brings the same.
	var count int
	if err := tx.QueryRow(ctx, headsCount).Scan(&count); err != nil {
		return 0, fmt.Errorf("count the heads: %w", err)
	}
	if count != len(feeds) {
		return 0, errNewFeed
	}
	return removed, nil
}

// queueEvidence lists the evidence that only the log will refer to: that of spends, and of versions that begin and end in one
// group.
func (pl *plan) queueEvidence(b *pgx.Batch, feed int32) {
	type reference struct {
		seq uint64
		sha [32]byte
	}
	var list []reference
	for i := range pl.groups {
		for j := range pl.groups[i].Changes {
			if c := &pl.groups[i].Changes[j]; c.Op == Spend {
				list = append(list, reference{pl.groups[i].Sequence, c.SpendEvidence.SHA256})
			}
		}
	}
	for _, v := range pl.made {
		if v.from == v.to {
			list = append(list, reference{v.from, v.state.Evidence.SHA256})
		}
	}
	if len(list) == 0 {
		return
	}
	seen := make(map[reference]struct{}, len(list))
	var seqs []int64
	var shas [][]byte
	for _, r := range list {
		if _, ok := seen[r]; ok {
			continue
		}
		seen[r] = struct{}{}
		seqs = append(seqs, int64(r.seq))
		shas = append(shas, bytes.Clone(r.sha[:]))
	}
	b.Queue(evidencePut, feed, seqs, shas)
}

// recordEvidence returns what a record refers to.
func recordEvidence(changes []Change) (list [][]byte) {
	add := func(e Evidence) { list = append(list, bytes.Clone(e.SHA256[:])) }
	for i := range changes {
		c := &changes[i]
		if c.Op == Spend {
			add(c.SpendEvidence)
		}
		for _, s := range []*State{c.Before, c.After} {
			if s != nil {
				add(s.Evidence)
			}
		}
	}
	slices.SortFunc(list, bytes.Compare)
	return slices.CompactFunc(list, bytes.Equal)
}
