package livefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// MaxPageRows bounds PageQuery.Limit.
const MaxPageRows = 4096

// PageQuery asks for rows of the snapshot at W, evaluated at T, in order.
type PageQuery struct {
	W, T      uint64
	WTag      [8]byte    // of group W: proof that it is still the same history
	After     int64      // version id of the last row of the page before (its Last); 0 = from the start
	Selectors []Selector // all must hold; empty, or only All = every row. The first drives: see Drive
	Reader    *[33]byte  // whose rows with readers to show; nil = none of them
	Limit     int        // 1..MaxPageRows
}

// PageRow is one row of a page.
type PageRow struct {
	Version  int64
	Outpoint Outpoint
	State    State
}

// Page is a run of rows.
type Page struct {
	Rows []PageRow
	// More: there may be rows behind Last.
	More bool
	// Last is the version to go on after. Behind the last of Rows it can be a row that was examined and is not
	// to be seen: a page can be empty and still move.
	Last int64
}

// The two page statements differ in where candidates come from. Both check the floor, the head and the tag at W in the same
// snapshot as the rows; walk at most $5 index entries that are valid at W; keep what may be seen, and what is lost; and only
// when that is less than a page look where the walk ended. A lateral join with its OFFSET or LIMIT is a fence: rows are fetched by
// primary key, one index entry at a time, and no more of them than the page needs, nor of a run.
//
// The floor is at or below the head, so that who is at the head need not ask for it, and who begins asks for no row before.
const (
	pageHead = `
with s as materialized (
  select h.head, coalesce(fl.floor, 0) as floor, a.ver as after_ver, a.order_key as after_key,
         case $3 when h.head then h.tag when fl.floor then fl.tag
              else (select g.tag from feed_group g where g.feed_id = $1 and g.seq = $3) end as w_tag
  from feed_head h
  left join lateral (select * from feed_floor fl where fl.feed_id = h.feed_id and $3 <> h.head offset 0) fl on true
  left join lateral (select * from row_version v where v.ver = $2 and $2 <> 0 and v.valid_to > $3 order by v.valid_to limit 1) a
    on a.feed_id = h.feed_id and a.valid_from <= $3
  where h.feed_id = $1 and (fl.floor is not null or $3 = h.head)
)`

	pageVisible = `not v.hidden and (v.expires_at is null or v.expires_at > $4)
      and (v.readers is null or $6::bytea = any(v.readers))`

	pageTail = `
select s.head, s.floor, s.w_tag = $8::bytea, s.after_ver is not null, coalesce(b.ver, 0), r.*
from s cross join b left join r on true
order by r.order_key`

	pageAll = pageHead + `, r as materialized (
  select c.* from s cross join lateral (
    select ` + stateColumns + `, false as lost from (
      select v.* from row_version v
      where v.feed_id = $1 and v.order_key > coalesce(s.after_key, ''::bytea) and v.valid_from <= $3 and v.valid_to > $3
      order by v.order_key limit $5) v
    where ` + pageVisible + `
    order by v.order_key limit $7::int + 1) c
), b as materialized (
  select case when (select count(*) from r) <= $7 then (
    select v.ver from row_version v
    where v.feed_id = $1 and v.order_key > coalesce(s.after_key, ''::bytea) and v.valid_from <= $3 and v.valid_to > $3
    order by v.order_key offset $5::int - 1 limit 1) end as ver
  from s
)` + pageTail

	pageSelector = pageHead + `, r as materialized (
  select c.* from s cross join lateral (
    select ` + stateColumns + `, v.ver is null as lost from (
      select p.order_key, p.ver from posting p
      where p.feed_id = $1 and p.selector = $9 and p.order_key > coalesce(s.after_key, ''::bytea) and p.valid_from <= $3 and p.valid_to > $3
      order by p.order_key limit $5) p
    left join lateral (select * from row_version v where v.ver = p.ver and v.valid_to > $3 order by v.valid_to limit 1) v
      on v.valid_from <= $3
    where v.ver is null or (` + pageVisible + ` and v.selectors @> $10::bytea[])
    order by p.order_key limit $7::int + 1) c
), b as materialized (
  select case when (select count(*) from r) <= $7 then (
    select p.ver from posting p
    where p.feed_id = $1 and p.selector = $9 and p.order_key > coalesce(s.after_key, ''::bytea) and p.valid_from <= $3 and p.valid_to > $3
    order by p.order_key offset $5::int - 1 limit 1) end as ver
  from s
)` + pageTail
)

// statement returns the query's text and arguments.
func (f *Feed) pageStatement(p PageQuery) (string, []any) {
	var reader []byte
	if p.Reader != nil {
		reader = p.Reader[:]
	}
	scan := max(f.store.cfg.ScanRows, p.Limit+1)
	args := []any{f.id, p.After, int64(p.W), int64(p.T), scan, reader, p.Limit, p.WTag[:]}
	drive, rest := driver(p.Selectors)
	if drive == nil {
		return pageAll, args
	}
	return pageSelector, append(args, drive[:], rest)
}

// driver splits selectors into the one that drives and the others; nil when every row is meant.
func driver(selectors []Selector) (drive *Selector, rest [][]byte) {
	rest = [][]byte{}
	for _, s := range selectors {
		switch {
		case s == All:
		case drive == nil:
			drive = &s
		default:
			rest = append(rest, s[:])
		}
	}
	return drive, rest
}

// Page reads rows of the snapshot at W in one statement. It is Reset when W is outside the retained log, when another history has
// taken its place ([ErrRewritten]), when the row it should go on after is gone or a posting leads to no row, and never a shorter
// answer instead. Rows hidden, expired at T or with other readers are left out.
func (f *Feed) Page(ctx context.Context, q Querier, p PageQuery) (Page, error) {
	if p.Limit < 1 || p.Limit > MaxPageRows || p.W > maxSequence || p.T > maxSequence || p.After < 0 {
		return Page{}, fmt.Errorf("livefeed: page query out of range: W %d, T %d, after %d, limit %d", p.W, p.T, p.After, p.Limit)
	}
	sql, args := f.pageStatement(p)
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return Page{}, fmt.Errorf("livefeed: page of feed %q: %w", f.name, err)
	}
	page, err := scanPage(rows, p)
	if err != nil {
		if CodeOf(err) != 0 {
			return Page{}, err
		}
		return Page{}, fmt.Errorf("livefeed: page of feed %q: %w", f.name, err)
	}
	return page, nil
}

func scanPage(rows pgx.Rows, p PageQuery) (Page, error) {
	defer rows.Close()
	page := Page{Last: p.After}
	var head, floor, boundary int64
	var same *bool // null: the log does not hold group W
	var found bool
	first := true
	for rows.Next() {
		var s optionalState
		if err := rows.Scan(append([]any{&head, &floor, &same, &found, &boundary}, s.targets()...)...); err != nil {
			return Page{}, err
		}
		if first {
			first = false
			switch {
			case p.W < uint64(floor):
				return Page{}, resetFault("the snapshot is outside the retained log")
			case p.W > uint64(head) || same != nil && !*same:
				return Page{}, faultf(Reset, ErrRewritten, "the snapshot is not of this history")
			case same == nil:
				return Page{}, resetFault("the log has a hole where the snapshot was taken")
			case p.After != 0 && !found:
				return Page{}, resetFault("the row the page goes on after is not in the snapshot any more")
			}
		}
		if s.lost == nil {
			break
		}
		if *s.lost {
			return Page{}, resetFault("a row version of the snapshot is lost")
		}
		if len(page.Rows) == p.Limit {
			page.More = true
			break
		}
		v, err := s.row()
		if err != nil {
			return Page{}, err
		}
		page.Rows = append(page.Rows, PageRow{Version: v.ver, Outpoint: v.outpoint, State: *v.state})
		page.Last = v.ver
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return Page{}, err
	}
	if first {
		return Page{}, resetFault("the feed is not in the database any more")
	}
	if boundary != 0 { // less than a page, and the walk ended before the rows did
		page.More, page.Last = true, boundary
	}
	return page, nil
}

// optionalState receives stateColumns of an outer join.
type optionalState struct {
	stateScan
	ver, from *int64
	size      *int32
	hidden    *bool
	lost      *bool // null: no row at all; true: only its posting is there
}

func (s *optionalState) targets() []any {
	return []any{&s.ver, &s.order, &s.from, &s.expires, &s.attributes, &s.schema, &s.body, &s.evidence, &s.size, &s.readers, &s.hidden, &s.lost}
}

func (s *optionalState) row() (*row, error) {
	s.stateScan.ver, s.stateScan.from, s.stateScan.size, s.stateScan.hidden = *s.ver, *s.from, *s.size, *s.hidden
	return s.stateScan.row()
}

// driveSample is up to where postings are counted to find the rarer selector.
const driveSample = 256

const selectorSizes = `
select u.n::int, (select count(*) from (select from posting p where p.feed_id = $1 and p.selector = u.selector limit $3) c)
from unnest($2::bytea[]) with ordinality as u(selector, n)`

// Drive returns the selectors with the rarest first, as far as a bounded look at their postings tells. Any order gives
// the same rows; this one examines the fewest.
func (f *Feed) Drive(ctx context.Context, q Querier, selectors []Selector) ([]Selector, error) {
	if len(selectors) < 2 {
		return selectors, nil
	}
	list := make([][]byte, len(selectors))
	for i := range selectors {
		list[i] = selectors[i][:]
	}
	rows, err := q.Query(ctx, selectorSizes, f.id, list, driveSample)
	if err != nil {
		return nil, fmt.Errorf("livefeed: size of selectors of feed %q: %w", f.name, err)
	}
	best, fewest := 0, int64(driveSample+1)
	var n int
	var count int64
	if _, err := pgx.ForEachRow(rows, []any{&n, &count}, func() error {
		if selectors[n-1] != All && count < fewest {
			best, fewest = n-1, count
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("livefeed: size of selectors of feed %q: %w", f.name, err)
	}
	out := append([]Selector{selectors[best]}, selectors[:best]...)
	return append(out, selectors[best+1:]...), nil
}
