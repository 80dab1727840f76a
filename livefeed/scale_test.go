package livefeed

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// What is measured at the size that rows L8 and S8 name is written by the database itself, in the shape that the committer gives it.

const (
	backlogGroups = 200_000
	backlogEvery  = 10_000 // of so many groups one is a match
)

var (
	backlogWide = AttributeSelector("genre", "jazz")
	backlogRare = AttributeSelector("artist", "rare")
)

// fillBacklog logs groups of one put each, every backlogEvery-th of them with another attribute than the rest.
func fillBacklog(t testing.TB, pool *pgxpool.Pool, f *Feed) {
	t.Helper()
	record := func(name, value string) []byte {
		return appendRecord(nil, []Change{{Op: Put, Outpoint: outpoint(1), After: &State{Evidence: Evidence{Size: 1},
			Attributes: []Attribute{{Name: name, Values: []string{value}}}, Context: &Context{Schema: "urn:x", Bytes: make([]byte, 300)}}}})
	}
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{`insert into feed_group (feed_id, seq, tag, committed_at, changes)
			select $1, n, int8send(n), 1, case when n % $3 = 0 then $5::bytea else $4::bytea end from generate_series(1, $2::bigint) n`,
			[]any{f.id, backlogGroups, backlogEvery, record("genre", "jazz"), record("artist", "rare")}},
		{`insert into group_selector (feed_id, selector, seq)
			select $1, case when n % $3 = 0 then $5::bytea else $4::bytea end, n from generate_series(1, $2::bigint) n`,
			[]any{f.id, backlogGroups, backlogEvery, backlogWide[:], backlogRare[:]}},
		{`update feed_head set head = $2, tag = int8send($2) where feed_id = $1`, []any{f.id, int64(backlogGroups)}},
	} {
		if _, err := pool.Exec(t.Context(), s.sql, s.args...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestL8_BehindABacklogOf200000Groups 20 matches cost what 20 look-ups cost, whether they are read at once or in pieces, with statistics
// and without.
func TestL8_BehindABacklogOf200000Groups(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	// Planned for good on empty tables.
	start := f.start(t)
	q := LogQuery{AfterTag: start, Selectors: []Selector{backlogRare}, Limit: 256}
	if p, err := f.Log(t.Context(), n.pool, q); err != nil || len(p.Groups) != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	fillBacklog(t, db.Pool, f)
	const matches = backlogGroups / backlogEvery
	for _, analyzed := range []bool{false, true} {
		each := 5 // a posting whose page no vacuum has seen is looked up in the table
		if analyzed {
			each = 4
			if _, err := db.Pool.Exec(t.Context(), "vacuum analyze feed_group, group_selector, feed_head"); err != nil {
				t.Fatal(err)
			}
		}
		for _, limit := range []int{256, 7} {
			q := q
			q.Limit = limit
			got, examined := 0, uint64(0)
			for reads := 0; ; reads++ {
				sql, args := f.logStatement(q)
				touched, plan := buffers(t, n.pool, sql, args)
				most := each*min(limit, matches) + 24
				if touched > most {
					t.Errorf("limit %d, analyzed %v: %d buffers, at most %d expected\n%s", limit, analyzed, touched, most, plan)
				}
				p, err := f.Log(t.Context(), n.pool, q)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("limit %d, analyzed %v, read %d: %d buffers for %d groups", limit, analyzed, reads, touched, len(p.Groups))
				got, examined = got+len(p.Groups), p.Examined
				if !p.Full {
					break
				}
				q.After, q.AfterTag = p.Examined, p.Groups[len(p.Groups)-1].Tag
			}
			if got != matches || examined != backlogGroups {
				t.Errorf("%d groups up to %d", got, examined)
			}
		}
	}
}

const rowVersions = 5

// fillRows makes a feed of so many rows that were replaced four times, all in five groups. Indexes are made after it, as for any load of
// this size.
func fillRows(t testing.TB, db *pgtest.DB, f *Feed, rows int) (w uint64, tag [8]byte) {
	t.Helper()
	ctx := t.Context()
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Pool.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	restore := dropIndexes(t, ctx, db, "row_version", "posting")
	defer func() {
		for _, sql := range restore {
			run(sql)
		}
	}()
	// Every version has both attributes. One is posted once for the run of the five; the other as if each version had brought it anew.
	all, anew := AttributeSelector("all", "x"), AttributeSelector("anew", "x")
	run(`insert into row_version (ver, feed_id, outpoint, order_key, valid_from, valid_to, attributes, selectors, evidence, evidence_size)
		select i, $1, o.outpoint, convert_to(lpad(i::text, 8, '0'), 'UTF8') || '\x0000'::bytea || o.outpoint,
		       v, case when v = $3 then 9223372036854775807 else v + 1 end, $4::bytea, array[$5::bytea, $6::bytea], sha256(int8send(i * 8 + v)), 1
		from generate_series(1, $3::bigint) v, generate_series(1, $2::bigint) i
		cross join lateral (select sha256(int8send(i)) || '\x00000000'::bytea as outpoint) o
		order by v, i`,
		f.id, rows, rowVersions, appendAttributes(nil, []Attribute{{Name: "all", Values: []string{"x"}}, {Name: "anew", Values: []string{"x"}}}), all[:], anew[:])
	run(`insert into posting (feed_id, selector, order_key, valid_from, valid_to, ver)
		select feed_id, $2, order_key, 1, valid_to, ver from row_version where feed_id = $1 and valid_to > 9e18 order by ver`, f.id, all[:])
	run(`insert into posting (feed_id, selector, order_key, valid_from, valid_to, ver)
		select feed_id, $2, order_key, valid_from, valid_to, ver from row_version where feed_id = $1 order by valid_from, ver`, f.id, anew[:])
	run(`insert into feed_group (feed_id, seq, tag, committed_at, changes) select $1, v, int8send(v), 1, $3 from generate_series(1, $2::bigint) v`,
		f.id, rowVersions, appendRecord(nil, nil))
	run(`update feed_head set head = $2, tag = int8send($2::bigint), live = $3, versions = $2::bigint * $3 where feed_id = $1`, f.id, rowVersions, rows)
	return rowVersions, [8]byte{7: rowVersions}
}

// dropIndexes drops the indexes of tables that are no constraint, and returns what makes them again.
func dropIndexes(t testing.TB, ctx context.Context, db *pgtest.DB, tables ...string) (restore []string) {
	t.Helper()
	rows, err := db.Pool.Query(ctx, `select indexname, indexdef from pg_indexes where tablename = any($1)
		and indexname not in (select conname from pg_constraint)`, tables)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var drop string
	for rows.Next() {
		var name, def string
		if err := rows.Scan(&name, &def); err != nil {
			t.Fatal(err)
		}
		drop += "drop index " + name + ";"
		restore = append(restore, def)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(ctx, drop); err != nil {
		t.Fatal(err)
	}
	return restore
}

// pagePlaces are how far into the rows, in hundredths, the pages that are measured begin.
var pagePlaces = []int{0, 50, 90}

// pageKinds are pages of 256 rows with the buffers that one may cost. About 6 of them are the look-ups that tell a hole, another history
// and a lost row, for a page at the head; a page reads one row more than it returns.
var pageKinds = []struct {
	name      string
	selectors []Selector
	most      int
}{
	{"all rows", nil, 35},
	{"by attribute", []Selector{AttributeSelector("all", "x")}, 1050},
	{"by attribute, posted anew", []Selector{AttributeSelector("anew", "x")}, 1060},
}

// pageAt is the query of a page that begins at a place.
func pageAt(t testing.TB, db *pgtest.DB, f *Feed, rows, place int, w uint64, tag [8]byte, selectors []Selector) PageQuery {
	t.Helper()
	q := PageQuery{W: w, WTag: tag, T: f.cut(t).Now, Limit: 256, Selectors: selectors}
	if place > 0 {
		key := fmt.Sprintf("%08d", rows*place/100)
		if err := db.Pool.QueryRow(t.Context(), `select ver from row_version where feed_id = $1 and order_key > convert_to($2, 'UTF8') and valid_to > 9e18
			order by order_key limit 1`, f.id, key).Scan(&q.After); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// pageCosts returns the buffers of each kind of page at each place.
func pageCosts(t testing.TB, db *pgtest.DB, n *node, f *Feed, rows int, w uint64, tag [8]byte) map[string]int {
	t.Helper()
	costs := map[string]int{}
	for _, k := range pageKinds {
		for _, place := range pagePlaces {
			q := pageAt(t, db, f, rows, place, w, tag, k.selectors)
			sql, args := f.pageStatement(q)
			touched, plan := buffers(t, n.pool, sql, args)
			if touched > k.most {
				t.Errorf("%d rows, %s at %d %%: %d buffers, at most %d expected\n%s", rows, k.name, place, touched, k.most, plan)
			}
			p, err := f.Page(t.Context(), n.pool, q)
			if err != nil || len(p.Rows) != 256 || !p.More {
				t.Errorf("%d rows, %s at %d %%: %d rows, %v", rows, k.name, place, len(p.Rows), err)
			}
			costs[fmt.Sprintf("%s at %d %%", k.name, place)] = touched
		}
	}
	return costs
}

// planPages plans the statements for good on empty tables.
func planPages(t testing.TB, n *node, f *Feed) {
	t.Helper()
	c := f.cut(t)
	for _, k := range pageKinds {
		if _, err := f.Page(t.Context(), n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 256, Selectors: k.selectors}); err != nil {
			t.Fatal(err)
		}
	}
}

// pageGrowth is how many buffers a page may cost more among 10 or 100 times the rows: a level of each index that it descends, for every
// row that it finds by its posting.
var pageGrowth = map[string]int{"all rows": 4, "by attribute": 264, "by attribute, posted anew": 264}

// TestS8_APageCostsTheSameAmongMoreRows: on 4 000 and on 40 000 rows of five versions each, at the start, in the middle and near the end.
// BenchmarkPageScale does it on 10 000 and 1 000 000.
func TestS8_APageCostsTheSameAmongMoreRows(t *testing.T) {
	t.Parallel()
	costs := map[int]map[string]int{}
	const few, many = 4000, 40_000
	for _, rows := range []int{few, many} {
		db := pgtest.New(t)
		n := newStore(t, db)
		f := n.ensure(t, "f")
		planPages(t, n, f)
		w, tag := fillRows(t, db, f, rows)
		if _, err := db.Pool.Exec(t.Context(), "vacuum analyze"); err != nil {
			t.Fatal(err)
		}
		costs[rows] = pageCosts(t, db, n, f, rows, w, tag)
	}
	for _, k := range pageKinds {
		for _, place := range pagePlaces {
			name := fmt.Sprintf("%s at %d %%", k.name, place)
			a, b := costs[few][name], costs[many][name]
			t.Logf("%s: %d buffers among %d rows, %d among %d", name, a, few, b, many)
			if b > a+pageGrowth[k.name] {
				t.Errorf("%s: %d buffers among %d rows, %d among %d", name, a, few, b, many)
			}
		}
	}
}
