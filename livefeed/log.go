package livefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// MaxLogGroups bounds LogQuery.Limit.
const MaxLogGroups = 4096

// LogQuery asks for the groups after a position.
type LogQuery struct {
	After     uint64
	AfterTag  [8]byte    // of group After: proof that it is still the same history
	Selectors []Selector // the first drives; empty, or only All = every group
	Limit     int        // groups, 1..MaxLogGroups
}

// LogPage is what the log holds after a position. Everything in it is from one statement.
type LogPage struct {
	// Groups are candidates, in order: every group after After up to Examined that a row with the driving selector is or
	// was part of, or that holds an invalidate. What they mean to a query is for the caller to derive.
	Groups []Group
	// Full: the limit or the budget of bytes was reached, and there may be candidates after Examined.
	Full bool
	// Examined is the last sequence the answer covers: that of the last group if Full, else Head.
	Examined uint64
	Head     uint64
	HeadTag  [8]byte
	Now      uint64 // T
	Due      bool   // a timer with a deadline <= Now is not logged yet
	Epoch    string
	Broken   uint64 // turn of the feed's last break: what was promised at an earlier turn is void
}

// The statements check floor, tag and head in the same snapshot as the rows, so that a hole or a rewritten history
// is Reset and never an empty success. Of the candidates those after the first $5 bytes come without their
// changes. octet_length does not fetch a value stored out of line.
const (
	logHead = `
with s as materialized (
  select f.epoch, f.broken, fl.floor, h.head, h.tag, t.now,
         case when $2 = fl.floor then fl.tag else (select g.tag from feed_group g where g.feed_id = $1 and g.seq = $2) end as after_tag,
         coalesce(` + firstDeadline + ` <= t.now, false) as due
  from feed f
  join feed_head h on h.feed_id = f.id
  join feed_floor fl on fl.feed_id = f.id
  join feed_clock c on c.feed_id = f.id
  cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
  where f.id = $1
)
select s.epoch, s.broken, s.floor, s.head, s.tag, s.now, s.due, s.after_tag is not distinct from $3::bytea,
       g.seq, g.tag, g.committed_at, case when g.before < $5 then g.changes end
from s left join lateral (
  select k.seq, k.tag, k.committed_at, k.changes,
         coalesce(sum(octet_length(k.changes)) over (order by k.seq rows between unbounded preceding and 1 preceding), 0)::bigint as before
  from (`

	logAll = logHead + `
    select n.seq, n.tag, n.committed_at, n.changes from feed_group n
    where n.feed_id = $1 and n.seq > $2 and s.after_tag = $3
    order by n.seq limit $4) k
) g on true
order by g.seq`

	// A group may be posted under both selectors: union makes it one.
	logSelector = logHead + `
    select c.seq, e.tag, e.committed_at, e.changes from (
    (select n.seq from group_selector n
     where n.feed_id = $1 and n.selector = $6 and n.seq > $2 and s.after_tag = $3 order by n.seq limit $4)
    union
    (select n.seq from group_selector n
     where n.feed_id = $1 and n.selector = $7 and n.seq > $2 and s.after_tag = $3 order by n.seq limit $4)
    order by 1 limit $4) c
    left join lateral (select * from feed_group g where g.feed_id = $1 and g.seq = c.seq offset 0) e on true) k
) g on true
order by g.seq`
)

func (f *Feed) logStatement(l LogQuery) (string, []any) {
	args := []any{f.id, int64(l.After), l.AfterTag[:], l.Limit, f.store.cfg.ScanBytes}
	drive, _ := driver(l.Selectors)
	if drive == nil {
		return logAll, args
	}
	all := All
	return logSelector, append(args, drive[:], all[:])
}

func (l *LogQuery) check() error {
	if l.Limit < 1 || l.Limit > MaxLogGroups {
		return fmt.Errorf("livefeed: log query out of range: limit %d", l.Limit)
	}
	if l.After > maxSequence {
		return resetFault("the position is outside the retained log")
	}
	return nil
}

// Log reads the groups after a position in one statement. It is Reset when the position is below the floor or above
// the head, when its tag is another one, and when the log has a hole; beyond the head or with another tag the error is
// [ErrRewritten] too.
func (f *Feed) Log(ctx context.Context, q Querier, l LogQuery) (LogPage, error) {
	if err := l.check(); err != nil {
		return LogPage{}, err
	}
	sql, args := f.logStatement(l)
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return LogPage{}, fmt.Errorf("livefeed: log of feed %q: %w", f.name, err)
	}
	drive, _ := driver(l.Selectors)
	page, err := scanLog(rows, l, drive == nil && !failpoint.MutantBigserial)
	if err != nil {
		if CodeOf(err) != 0 {
			return LogPage{}, err
		}
		return LogPage{}, fmt.Errorf("livefeed: log of feed %q: %w", f.name, err)
	}
	return page, nil
}

func scanLog(rows pgx.Rows, l LogQuery, dense bool) (LogPage, error) {
	defer rows.Close()
	var page LogPage
	var broken, floor, head, now int64
	var tag []byte
	var same, cut bool
	first := true
	candidates, last := 0, l.After
	var seq, at *int64
	var groupTag, record []byte
	position := []any{&page.Epoch, &broken, &floor, &head, &tag, &now, &page.Due, &same} // the same in every row
	targets := append(position, &seq, &groupTag, &at, &record)
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return LogPage{}, err
		}
		if first {
			first = false
			clear(targets[:len(position)]) // read once
			if err := checkPosition(l.After, uint64(floor), uint64(head), same); err != nil {
				return LogPage{}, err
			}
			page.Head, page.HeadTag, page.Now, page.Broken = uint64(head), [8]byte(tag), uint64(now), uint64(broken)
		}
		if seq == nil {
			break
		}
		candidates++
		if at == nil || (dense && uint64(*seq) != last+1) {
			return LogPage{}, resetFault("the log has a hole")
		}
		last = uint64(*seq)
		if record == nil {
			cut = true
		}
		if cut {
			continue
		}
		changes, err := decodeRecord(record)
		if err != nil {
			return LogPage{}, fmt.Errorf("group %d: %w", *seq, err)
		}
		page.Groups = append(page.Groups, Group{Sequence: uint64(*seq), Tag: [8]byte(groupTag), CommittedAt: uint64(*at), Changes: changes})
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return LogPage{}, err
	}
	if first {
		return LogPage{}, resetFault("the feed is not in the database any more")
	}
	if dense && candidates < l.Limit && last != page.Head {
		return LogPage{}, resetFault("the log has a hole")
	}
	page.Examined = page.Head
	if candidates == l.Limit || cut {
		page.Full = true
		page.Examined = page.Groups[len(page.Groups)-1].Sequence
	}
	return page, nil
}

func checkPosition(after, floor, head uint64, sameTag bool) error {
	switch {
	case after < floor:
		return resetFault("the position is before the retained log")
	case after > head:
		return faultf(Reset, ErrRewritten, "the position is beyond the head of the log")
	case !sameTag:
		return faultf(Reset, ErrRewritten, "the log was rewritten since: it holds another group at the position")
	}
	return nil
}

const tagRead = `
select fl.floor, case when $2 = fl.floor then fl.tag else (select g.tag from feed_group g where g.feed_id = $1 and g.seq = $2) end
from feed_floor fl where fl.feed_id = $1`

// TagAt returns the tag of group seq, or of the floor; Reset when the log does not hold it.
func (f *Feed) TagAt(ctx context.Context, q Querier, seq uint64) ([8]byte, error) {
	if seq > maxSequence {
		return [8]byte{}, resetFault("the position is outside the retained log")
	}
	var floor int64
	var tag []byte
	if err := q.QueryRow(ctx, tagRead, f.id, int64(seq)).Scan(&floor, &tag); err != nil {
		return [8]byte{}, fmt.Errorf("livefeed: tag in feed %q: %w", f.name, err)
	}
	if tag == nil || seq < uint64(floor) {
		return [8]byte{}, resetFault("the position is outside the retained log")
	}
	return [8]byte(tag), nil
}

const blobGet = `select sha, bytes from blob where sha = any($1)`

// Blobs fetches evidence bytes. A missing one is Reset. The caller bounds how much it asks for: sizes are in [Evidence].
func (f *Feed) Blobs(ctx context.Context, q Querier, sums [][32]byte) (map[[32]byte][]byte, error) {
	out := make(map[[32]byte][]byte, len(sums))
	if len(sums) == 0 {
		return out, nil
	}
	list := make([][]byte, 0, len(sums))
	for i := range sums {
		list = append(list, sums[i][:])
	}
	rows, err := q.Query(ctx, blobGet, list)
	if err != nil {
		return nil, fmt.Errorf("livefeed: evidence of feed %q: %w", f.name, err)
	}
	defer rows.Close()
	for rows.Next() {
		var sha, bytes []byte
		if err := rows.Scan(&sha, &bytes); err != nil {
			return nil, fmt.Errorf("livefeed: evidence of feed %q: %w", f.name, err)
		}
		out[[32]byte(sha)] = bytes
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("livefeed: evidence of feed %q: %w", f.name, err)
	}
	for _, sum := range sums {
		if _, ok := out[sum]; !ok {
			return nil, resetFault("evidence of a row is not stored any more")
		}
	}
	return out, nil
}

// OnEvidence sets who is shown the evidence that a commit of this process has stored, while somebody waits on its feed: what is
// shown is in the database already, and who was woken is about to want it. take is called before anybody is woken, on the feed's
// committer: it must be quick, and it must not keep data, which is the submitter's.
func (s *Store) OnEvidence(take func(sum [32]byte, data []byte)) { s.shown.Store(&take) }

// show hands out the evidence of a plan that is committed.
func (f *Feed) show(pl *plan) {
	take := f.store.shown.Load()
	if take == nil || f.hub.waiting() == 0 {
		return
	}
	for sum, data := range pl.blobs {
		(*take)(sum, data)
	}
}
