package livefeed

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// prepared is a statement that was planned for good while its tables were empty, which is how a new feed meets them.
type prepared struct {
	conn *pgx.Conn
	name string
}

// prepares numbers prepared statements.
var prepares atomic.Int64

// prepare plans a statement on a connection of the store's kind. types are those of its arguments.
func prepare(t *testing.T, conn *pgx.Conn, sql string, types ...string) prepared {
	t.Helper()
	p := prepared{conn: conn, name: fmt.Sprintf("p%d", prepares.Add(1))}
	list := ""
	if len(types) > 0 {
		list = "(" + strings.Join(types, ", ") + ")"
	}
	if _, err := conn.Exec(t.Context(), "prepare "+p.name+list+" as "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return p
}

// touched executes it and returns how many buffers it touched, and its plan.
func (p prepared) touched(t *testing.T, args ...string) (int, string) {
	t.Helper()
	pgtest.Alone(t, p.conn)
	rows, err := p.conn.Query(t.Context(), "explain (analyze, buffers, timing off) execute "+p.name+"("+strings.Join(args, ", ")+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		var hit, read int
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "Buffers: shared") {
			fmt.Sscanf(l, "Buffers: shared hit=%d read=%d", &hit, &read)
			return hit + read, strings.Join(lines, "\n")
		}
	}
	return 0, strings.Join(lines, "\n")
}

func literal(b []byte) string { return `'\x` + hex.EncodeToString(b) + `'` }

func number[T int | int32 | int64 | uint64](n T) string { return fmt.Sprint(n) }

// TestF10_PlansHold: every statement on the way of a group, a page and a read is planned while the tables are empty and
// runs when they are not. It must touch what it needs, and not the feed.
func TestF10_PlansHold(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	conn, err := pgx.ConnectConfig(t.Context(), n.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })

	feed := number(f.id)
	statements := map[string]prepared{}
	plan := func(name, sql string, types ...string) {
		statements[name] = prepare(t, conn, sql, types...)
	}
	plan("cut", feedCut, "int")
	plan("stats", feedStats, "int")
	plan("clock", clockRead, "int")
	plan("next deadline", timerNext, "int[]")
	plan("due rows", rowDue, "int", "bigint", "bigint")
	plan("known keys", keyFind, "int", "bytea[]")
	plan("present rows", rowFind, "int", "bytea[]")
	plan("end of versions", versionEnd, "int", "bigint[]", "bigint[]", "bigint")
	plan("end of postings", postingEnd, "int", "bytea[]", "bytea[]", "bigint[]", "bigint")
	plan("all rows", pageAll, "int", "bigint", "bigint", "bigint", "bigint", "bytea", "int", "bytea")
	plan("rows of a selector", pageSelector, "int", "bigint", "bigint", "bigint", "bigint", "bytea", "int", "bytea", "bytea", "bytea[]")
	plan("all groups", logAll, "int", "bigint", "bytea", "bigint", "bigint")
	plan("end of the log", logTail, "int", "bigint", "bytea", "bigint", "bigint", "bigint")
	plan("groups of a selector", logSelector, "int", "bigint", "bytea", "bigint", "bigint", "bytea", "bytea")
	plan("selector sizes", selectorSizes, "int", "bytea[]", "bigint")
	plan("tag", tagRead, "int", "bigint")
	plan("evidence", blobGet, "bytea[]")
	plan("followed groups", followRead, "int", "bigint", "bigint", "bigint")
	plan("heads", witnessRead, "text[]", "bigint[]", "bigint[]")
	exec(t, n, "create table counts (feed_id int, name text, value bigint, primary key (feed_id, name))")
	plan("epochs", epochsRead, "int[]")
	plan("heads and marks", witnessMarks(readCounts), "text[]", "bigint[]", "bigint[]")
	// Once now, so that the plan is made and kept.
	o, wide, one := outpoint(77).Bytes(), AttributeSelector("wide", "x"), AttributeSelector("one", "7")
	start := f.start(t)
	key := literal(make([]byte, 16))
	run := func(c Cut, ver int64, order []byte) map[string][]string {
		w, now := number(c.W), number(c.Now)
		return map[string][]string{
			"cut":                  {feed},
			"stats":                {feed},
			"clock":                {feed},
			"next deadline":        {"'{" + feed + "}'"},
			"due rows":             {feed, now, "100"},
			"known keys":           {feed, "array[" + key + "]::bytea[]"},
			"present rows":         {feed, "array[" + literal(o[:]) + "]::bytea[]"},
			"end of versions":      {feed, "'{" + number(ver) + "}'", "'{" + number(c.W+1) + "}'", "(" + number(ver) + "<>0)::int"},
			"end of postings":      {feed, "array[" + literal(wide[:]) + "]::bytea[]", "array[" + literal(order) + "]::bytea[]", "'{" + number(c.W+1) + "}'", "(" + number(ver) + "<>0)::int"},
			"all rows":             {feed, number(ver), w, now, "8192", "null", "256", literal(c.Tag[:])},
			"rows of a selector":   {feed, number(ver), w, now, "8192", "null", "256", literal(c.Tag[:]), literal(one[:]), "array[" + literal(wide[:]) + "]::bytea[]"},
			"all groups":           {feed, "0", literal(start[:]), "256", "1000000"},
			"end of the log":       {feed, w, literal(c.Tag[:]), "256", "1000000", w},
			"groups of a selector": {feed, "0", literal(start[:]), "256", "1000000", literal(one[:]), literal(All[:])},
			"selector sizes":       {feed, "array[" + literal(one[:]) + "," + literal(wide[:]) + "]::bytea[]", "100"},
			"tag":                  {feed, w},
			"evidence":             {"array[" + literal(make([]byte, 32)) + "]::bytea[]"},
			"followed groups":      {feed, "0", w, "100"},
			"heads":                {"'{f}'", "'{" + number(c.W/2) + "}'", "'{0}'"},
			"epochs":               {"'{" + feed + "}'"},
			"heads and marks":      {"'{f}'", "'{" + number(c.W/2) + "}'", "'{0}'"},
		}
	}
	for name, args := range run(f.cut(t), 0, nil) {
		statements[name].touched(t, args...)
	}

	exec(t, n, "insert into counts select feed, 'service ' || n, n from generate_series($1::int, $1 + 9) feed, generate_series(1, 100) n", f.id)
	now := f.cut(t).Now
	const total = 4000
	for i := range 2 * total / 500 {
		var edits []Edit
		for j := range 500 {
			row := (i*500 + j) % total
			e := put(row, attr("one", fmt.Sprint(row%100)), attr("wide", "x"), beefOf(fmt.Sprint(i, j)))
			if row%500 == 0 {
				e.ExpiresAt = now + 1000
			}
			if row%77 == 0 { // some have a record, one of them the row that is asked for
				e.Readers = [][33]byte{reader(1)}
			}
			edits = append(edits, e)
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	var ver int64
	var order []byte
	if err := db.Pool.QueryRow(t.Context(), "select ver, order_key from row_version where valid_to > 9e18 order by order_key offset 2000 limit 1").Scan(&ver, &order); err != nil {
		t.Fatal(err)
	}
	// Each has a buffer to spare at least: a snapshot held meanwhile, be it by an automatic ANALYZE, keeps dead entries in the small
	// indexes, which then have a level more.
	bounds := map[string]int{
		"cut": 14, "stats": 14, "clock": 9, "next deadline": 12, "due rows": 4, "known keys": 4, "present rows": 8, "end of versions": 80, "end of postings": 40,
		"all rows": 50, "rows of a selector": 180, "all groups": 60, "end of the log": 18, "groups of a selector": 120, "selector sizes": 220, "tag": 8, "evidence": 4,
		"followed groups": 40, "heads": 12, "heads and marks": 45, "epochs": 8,
	}
	for name, args := range run(f.cut(t), ver, order) {
		if name != "end of versions" && name != "end of postings" { // they can run once only
			statements[name].touched(t, args...) // marks what the updates left in the indexes
		}
		got, text := statements[name].touched(t, args...)
		t.Logf("%s: %d buffers", name, got)
		if got > bounds[name] {
			t.Errorf("%s: %d buffers, at most %d expected\n%s", name, got, bounds[name], text)
		}
	}
}
