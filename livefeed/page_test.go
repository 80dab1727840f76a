package livefeed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// TestS1_ASnapshotStaysAsItWas: pages at one W are read while writers go on; every scan of every size gives the rows of the cut.
func TestS1_ASnapshotStaysAsItWas(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	for i := range 4 {
		var edits []Edit
		for j := range 25 {
			edits = append(edits, put(i*25+j, attr("all", "x"), attr("half", fmt.Sprint(j%2))))
		}
		f.mustAppend(t, group(fmt.Sprint(i), edits...))
	}
	c := f.cut(t)
	want := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: MaxPageRows})
	half := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: MaxPageRows, Selectors: []Selector{AttributeSelector("half", "1")}})
	if len(want) != 100 || len(half) != 48 {
		t.Fatalf("%d and %d rows", len(want), len(half))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(w)))
			for i := 0; ctx.Err() == nil; i++ {
				row := random.IntN(120)
				e := put(row, attr("half", fmt.Sprint(random.IntN(2))), beefOf(fmt.Sprint(w, i)))
				if random.IntN(3) == 0 {
					e = withdraw(row)
				}
				f.Append(ctx, group(fmt.Sprintf("%d-%d", w, i), e))
			}
		})
	}
	for _, limit := range []int{1, 3, 7, 64, 100, 101, MaxPageRows} {
		if got := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: limit}); !reflect.DeepEqual(got, want) {
			t.Errorf("pages of %d rows give another snapshot", limit)
		}
		got := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: limit, Selectors: []Selector{AttributeSelector("all", "x"), AttributeSelector("half", "1")}})
		if !reflect.DeepEqual(got, half) {
			t.Errorf("pages of %d rows with two selectors give another snapshot", limit)
		}
	}
	cancel()
	wg.Wait()
	// A cancelled append may still be on its way; what is appended now comes after it.
	f.mustAppend(t, group("last", put(0)))
	f.checkStored(t)
}

// TestS2_PagesComeInOrder whatever was put first.
func TestS2_PagesComeInOrder(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	var edits []Edit
	for i := range 50 {
		edits = append(edits, put(i, attr("a", "b"), func(e *Edit) { e.Order = []byte{0, byte(i % 3), byte(i % 2 * 255)}[:i%4] }))
	}
	f.mustAppend(t, group("1", edits...))
	c := f.cut(t)
	for _, selectors := range [][]Selector{nil, {All}, {AttributeSelector("a", "b")}, {All, AttributeSelector("a", "b")}} {
		rows := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: 7, Selectors: selectors})
		if len(rows) != 50 {
			t.Fatalf("%d rows", len(rows))
		}
		for i := 1; i < len(rows); i++ {
			a, b := rows[i-1], rows[i]
			x, y := a.Outpoint.Bytes(), b.Outpoint.Bytes()
			if d := bytes.Compare(a.State.Order, b.State.Order); d > 0 || d == 0 && bytes.Compare(x[:], y[:]) >= 0 {
				t.Errorf("%x %v comes before %x %v", a.State.Order, a.Outpoint, b.State.Order, b.Outpoint)
			}
		}
	}
}

// TestS4_WhatALaterPageShows: update, withdrawal and expiry after W change nothing; T decides what had expired.
func TestS4_WhatALaterPageShows(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	now := f.cut(t).Now
	f.mustAppend(t, group("1", put(1), put(2), put(3, expires(now+100)), put(4, expires(now+200))))
	w := f.cut(t).W
	first, err := f.Page(t.Context(), n.pool, PageQuery{W: w, WTag: groupTag(t, f, w), T: now, Limit: 1})
	if err != nil || len(first.Rows) != 1 || !first.More {
		t.Fatalf("%+v, %v", first, err)
	}
	f.mustAppend(t, group("2", put(1, beefOf("changed")), put(2, beefOf("changed")), withdraw(3), put(5)))
	if err := f.Advance(t.Context(), n.pool, now+200); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Drain(t.Context(), now+200, 10); err != nil {
		t.Fatal(err)
	}
	rows := f.scan(t, PageQuery{W: w, T: now, Limit: 1, After: first.Last})
	if len(rows) != 3 || rows[0].Outpoint != outpoint(2) || rows[0].State.Evidence.Size != len("beef2") {
		t.Errorf("%+v", rows)
	}
	for _, x := range []struct {
		t    uint64
		rows int
	}{{now + 99, 4}, {now + 100, 3}, {now + 199, 3}, {now + 200, 2}} {
		if rows := f.scan(t, PageQuery{W: w, T: x.t, Limit: 10}); len(rows) != x.rows {
			t.Errorf("at T+%d there are %d rows, want %d", x.t-now, len(rows), x.rows)
		}
	}
	f.checkStored(t)
}

// TestS9_WhatIsGoneIsReset and never a shorter page.
func TestS9_WhatIsGoneIsReset(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for i := range 6 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i, attr("a", "b"))))
	}
	f.mustAppend(t, group("6", withdraw(2)))
	six, seven := groupTag(t, f, 6), groupTag(t, f, 7)
	tags := map[uint64][8]byte{6: six, 7: seven}
	page := func(q PageQuery) error {
		q.Limit, q.T = 2, 1
		if q.WTag == ([8]byte{}) {
			q.WTag = tags[q.W]
		}
		_, err := f.Page(t.Context(), n.pool, q)
		return err
	}
	p, err := f.Page(t.Context(), n.pool, PageQuery{W: 6, WTag: tags[6], T: 1, Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
		if err := page(PageQuery{W: 8, Selectors: s}); CodeOf(err) != Reset || !errors.Is(err, ErrRewritten) {
			t.Errorf("W beyond the head: %v", err)
		}
		for w, other := range map[uint64]uint64{6: 7, 7: 6} {
			if err := page(PageQuery{W: w, WTag: tags[other], Selectors: s}); CodeOf(err) != Reset || !errors.Is(err, ErrRewritten) {
				t.Errorf("another tag at %d: %v", w, err)
			}
		}
		if err := page(PageQuery{W: 7, After: p.Last, Selectors: s}); CodeOf(err) != Reset {
			t.Errorf("after a row that is not in the snapshot: %v", err)
		}
		if err := page(PageQuery{W: 6, After: 999, Selectors: s}); CodeOf(err) != Reset {
			t.Errorf("after a row that never was: %v", err)
		}
		if err := page(PageQuery{W: 6, After: p.Last, Selectors: s}); err != nil {
			t.Errorf("%v", err)
		}
	}
	// The group at W is one of those that a snapshot depends on.
	if _, err := db.Pool.Exec(t.Context(), "delete from feed_group where seq = 6"); err != nil {
		t.Fatal(err)
	}
	if err := page(PageQuery{W: 6}); CodeOf(err) != Reset || errors.Is(err, ErrRewritten) {
		t.Errorf("the group at W is gone: %v", err)
	}
	if _, err := db.Pool.Exec(t.Context(), "update feed_floor set floor = 6, tag = $1", six[:]); err != nil {
		t.Fatal(err)
	}
	if err := page(PageQuery{W: 6}); err != nil {
		t.Errorf("W at the floor: %v", err)
	}
	if err := page(PageQuery{W: 6, WTag: tags[7]}); !errors.Is(err, ErrRewritten) {
		t.Errorf("another tag at the floor: %v", err)
	}
	if _, err := db.Pool.Exec(t.Context(), "update feed_floor set floor = 7, tag = $1", seven[:]); err != nil {
		t.Fatal(err)
	}
	if err := page(PageQuery{W: 6}); CodeOf(err) != Reset || errors.Is(err, ErrRewritten) {
		t.Errorf("W below the floor: %v", err)
	}
	if err := page(PageQuery{W: 7}); err != nil {
		t.Errorf("W at the floor and the head: %v", err)
	}
	for _, q := range []PageQuery{{Limit: 0}, {Limit: MaxPageRows + 1}, {Limit: 1, After: -1}, {Limit: 1, W: 1 << 63}, {Limit: 1, T: 1 << 63}} {
		if _, err := f.Page(t.Context(), n.pool, q); err == nil || CodeOf(err) != 0 {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// TestS9_ALostRowIsReset: a posting that leads to no row, wherever it is, and whether or not the row could be seen.
func TestS9_ALostRowIsReset(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	var edits []Edit
	for i := range 9 {
		edits = append(edits, put(i, attr("a", "b"), attr("third", fmt.Sprint(i%3))))
	}
	f.mustAppend(t, group("1", edits...))
	c := f.cut(t)
	for _, lost := range []int{0, 4, 8} {
		tx := begin(t, n.pool)
		if _, err := tx.Exec(t.Context(), "delete from row_version where order_key = $1", orderKey(put(lost).Order, outpoint(lost))); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{1, 3, 4, 8, 9, 10} {
			for _, s := range [][]Selector{{AttributeSelector("a", "b")}, {AttributeSelector("a", "b"), AttributeSelector("third", "0")}} {
				q := PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: limit, Selectors: s}
				rows := 0
				for {
					p, err := f.Page(t.Context(), tx, q)
					if CodeOf(err) == Reset && !errors.Is(err, ErrRewritten) {
						break
					}
					if err != nil || !p.More {
						t.Fatalf("row %d is lost: pages of %d end after %d rows with %v", lost, limit, rows, err)
					}
					rows += len(p.Rows)
					q.After = p.Last
				}
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestA7_ReadersAreAskedPerRow in every kind of page.
func TestA7_ReadersAreAskedPerRow(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	f.mustAppend(t, group("1", put(1, attr("a", "b")), put(2, attr("a", "b"), readers(7)), put(3, attr("a", "b"), readers(7, 8))))
	c := f.cut(t)
	for _, selectors := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
		for reading, want := range map[byte]int{0: 1, 6: 1, 7: 3, 8: 2} {
			q := PageQuery{W: c.W, T: c.Now, Limit: 5, Selectors: selectors}
			if id := reader(reading); reading != 0 {
				q.Reader = &id
			}
			if rows := f.scan(t, q); len(rows) != want {
				t.Errorf("reader %d sees %d rows, want %d", reading, len(rows), want)
			}
		}
	}
}

// TestL5_AScanMovesOverWhatIsNotSeen: hidden rows count against the budget, and a page without rows still moves.
func TestL5_AScanMovesOverWhatIsNotSeen(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t, func(c *Config) { c.ScanRows = 8 })
	var edits []Edit
	for i := range 60 {
		edits = append(edits, put(i, attr("a", "b"), attr("n", fmt.Sprint(i%20))))
	}
	f.mustAppend(t, group("1", edits...))
	if _, err := db.Pool.Exec(t.Context(), "update row_version set hidden = true where ver between 5 and 40"); err != nil {
		t.Fatal(err)
	}
	c := f.cut(t)
	for _, x := range []struct {
		selectors []Selector
		want      int
	}{{nil, 24}, {[]Selector{AttributeSelector("a", "b")}, 24}, {[]Selector{AttributeSelector("a", "b"), AttributeSelector("n", "3")}, 2}} {
		for _, limit := range []int{1, 4, 7} {
			q := PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: limit, Selectors: x.selectors}
			pages, empty := 0, 0
			rows := 0
			for {
				p, err := f.Page(t.Context(), n.pool, q)
				if err != nil {
					t.Fatal(err)
				}
				rows += len(p.Rows)
				if pages++; len(p.Rows) == 0 && p.More {
					empty++
				}
				if !p.More {
					break
				}
				if p.Last <= q.After {
					t.Fatalf("the page after %d stands still", q.After)
				}
				q.After = p.Last
			}
			if rows != x.want || empty < 2 || pages > 60 {
				t.Errorf("pages of %d: %d rows in %d pages, %d of them empty; want %d rows", limit, rows, pages, empty, x.want)
			}
		}
	}
}

// TestF8_DriveTakesTheRarest selector first, and gives the same rows in any order.
func TestF8_DriveTakesTheRarest(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	var edits []Edit
	for i := range 40 {
		edits = append(edits, put(i, attr("a", "x"), attr("b", fmt.Sprint(i%2)), attr("c", fmt.Sprint(i%10))))
	}
	f.mustAppend(t, group("1", edits...))
	a, b, c := AttributeSelector("a", "x"), AttributeSelector("b", "1"), AttributeSelector("c", "3")
	for _, in := range [][]Selector{{a, b, c}, {c, b, a}, {b, All, c, a}} {
		out, err := f.Drive(t.Context(), n.pool, in)
		if err != nil || out[0] != c || len(out) != len(in) {
			t.Errorf("%v, %v", out, err)
		}
		w := f.cut(t)
		for _, s := range [][]Selector{in, out} {
			if rows := f.scan(t, PageQuery{W: w.W, T: w.Now, Limit: 3, Selectors: s}); len(rows) != 4 {
				t.Errorf("%d rows", len(rows))
			}
		}
	}
	if out, err := f.Drive(t.Context(), n.pool, []Selector{a}); err != nil || len(out) != 1 {
		t.Errorf("%v, %v", out, err)
	}
}

// buffers runs a statement and returns the pages it touched, with its plan. What an update leaves in an index is looked
// up once by the first reader, and then marked, unless some session may still see it: the second run counts, of those that
// nobody disturbed.
func buffers(t testing.TB, q *pgxpool.Pool, sql string, args []any) (touched int, plan string) {
	t.Helper()
	pgtest.Undisturbed(t, q, func() {
		if _, err := q.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
		var text string
		if err := q.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&text); err != nil {
			t.Fatal(err)
		}
		var node []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal([]byte(text), &node); err != nil {
			t.Fatal(err)
		}
		touched = node[0].Plan.Hit + node[0].Plan.Read
	})
	rows, err := q.Query(t.Context(), "explain (analyze, buffers) "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return touched, strings.Join(lines, "\n")
}

// TestS8_WhatAPageCosts in buffers, wherever it is and however many versions the rows had.
func TestS8_WhatAPageCosts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	const total = 3000
	for version := range 2 {
		for i := range total / 500 {
			var edits []Edit
			for j := range 500 {
				edits = append(edits, put(i*500+j, attr("all", "x"), attr("one", fmt.Sprint((i*500+j)%50)), beefOf(fmt.Sprint(version, i, j))))
			}
			f.mustAppend(t, group(fmt.Sprintf("%d-%d", version, i), edits...))
		}
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			if _, err := db.Pool.Exec(t.Context(), "vacuum analyze"); err != nil {
				t.Fatal(err)
			}
		}
		c := f.cut(t)
		for _, x := range []struct {
			name  string
			query PageQuery
			bound int
		}{
			{"all rows", PageQuery{}, 35},
			{"by a wide selector", PageQuery{Selectors: []Selector{AttributeSelector("all", "x")}}, 1050},
			{"by two selectors", PageQuery{Selectors: []Selector{AttributeSelector("one", "7"), AttributeSelector("all", "x")}}, 380},
		} {
			q := x.query
			q.W, q.WTag, q.T, q.Limit = c.W, c.Tag, c.Now, 256
			for _, start := range []int{0, total / 2} {
				if start > 0 {
					if err := db.Pool.QueryRow(t.Context(), "select ver from row_version where valid_to > 9e18 order by order_key offset $1 limit 1", start).Scan(&q.After); err != nil {
						t.Fatal(err)
					}
				}
				sql, args := f.pageStatement(q)
				got, plan := buffers(t, n.pool, sql, args)
				t.Logf("%s from row %d, analyzed %v: %d buffers", x.name, start, analyzed, got)
				if got > x.bound {
					t.Errorf("%s from row %d, analyzed %v: %d buffers, at most %d expected\n%s", x.name, start, analyzed, got, x.bound, plan)
				}
			}
		}
	}
}

// examined is an index entry of a snapshot, and what a page makes of it.
type examined struct {
	ver        int64
	seen, lost bool
}

// examinedAt lists the entries valid at q.W, in order.
func (f *Feed) examinedAt(t testing.TB, tx pgx.Tx, q PageQuery) []examined {
	t.Helper()
	const seen = `coalesce(not v.hidden and coalesce(v.expires_at > $3, true) and (v.readers is null or $4::bytea = any(v.readers)) and v.selectors @> $5::bytea[], false)`
	sql := `select v.ver, ` + seen + `, false from row_version v where v.feed_id = $1 and $2 >= v.valid_from and $2 < v.valid_to order by v.order_key`
	drive, rest := driver(q.Selectors)
	args := []any{f.id, int64(q.W), int64(q.T), q.Reader[:], rest}
	if drive != nil {
		sql = `select p.ver, ` + seen + `, v.ver is null from posting p left join row_version v on v.ver = p.ver and $2 >= v.valid_from and $2 < v.valid_to
			where p.feed_id = $1 and $2 >= p.valid_from and $2 < p.valid_to and p.selector = $6 order by p.order_key`
		args = append(args, drive[:])
	}
	rows, err := tx.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e examined, err error) {
		err = r.Scan(&e.ver, &e.seen, &e.lost)
		return e, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// pageOf is what a page over the entries behind q.After is: the versions it shows, whether there may be more, where it ends; ok is false
// where it met a lost row.
func pageOf(list []examined, q PageQuery, scan int) (vers []int64, more bool, last int64, ok bool) {
	for i := range list {
		if list[i].ver == q.After {
			list = list[i+1:]
			break
		}
	}
	scan = max(scan, q.Limit+1)
	last = q.After
	for i, e := range list[:min(scan, len(list))] {
		switch {
		case e.lost:
			return nil, false, 0, false
		case e.seen && len(vers) == q.Limit:
			return vers, true, last, true
		case e.seen:
			vers, last = append(vers, e.ver), e.ver
		}
		if i == scan-1 {
			return vers, true, e.ver, true
		}
	}
	return vers, false, last, true
}

// TestL5_APageIsWhatAWalkGives: to the row, the boundary and the word whether there is more, among rows of which some or most are hidden,
// expired, for other readers or without the second attribute, with any limit and any budget, and up to a row that is lost.
func TestL5_APageIsWhatAWalkGives(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	_, n, f := startQuietFeed(t)
	now := f.cut(t).Now
	const total = 90
	var w Cut
	for version := range 3 {
		var edits []Edit
		for i := range total {
			if version > 0 && random.IntN(3) == 0 {
				continue
			}
			e := put(i, attr("a", "b"), attr("n", fmt.Sprint(random.IntN(3))), beefOf(fmt.Sprint(version, i)))
			switch random.IntN(12) {
			case 0:
				expires(now + 50)(&e)
			case 1:
				readers(7)(&e)
			case 2:
				readers(8)(&e)
			case 3:
				e = withdraw(i)
			}
			edits = append(edits, e)
		}
		f.mustAppend(t, group(fmt.Sprint(version), edits...))
		if version == 1 {
			w = f.cut(t)
		}
	}
	reader := reader(7)
	pages, empty, resets, filled := 0, 0, 0, 0
	for round := range 12 {
		tx := begin(t, n.pool)
		run := func(sql string, args ...any) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
				t.Fatal(err)
			}
		}
		// From few hidden rows in places to hardly any that is not.
		run(`update row_version set hidden = true where ver % 20 >= $1`, []int{19, 10, 3, 1}[round%4])
		if round%3 == 1 {
			// Of a run one version is lost, and the later ones are there.
			run(`delete from row_version where valid_from <= $1 and valid_to > $1
				and ver = (select p.ver from posting p where p.valid_from <= $1 and p.valid_to > $1 order by sha256(int8send(p.ver + $2)) limit 1)`, int64(w.W), int64(seed%1000))
		}
		for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}, {AttributeSelector("a", "b"), AttributeSelector("n", "1")}, {AttributeSelector("n", "2"), AttributeSelector("a", "b")}, {AttributeSelector("a", "nobody")}} {
			for range 8 {
				f.store.cfg.ScanRows = 1 + random.IntN(total+10)
				q := PageQuery{W: w.W, WTag: w.Tag, T: now + uint64(random.IntN(2)*100), Limit: 1 + random.IntN(total+10), Selectors: s, Reader: &reader}
				list := f.examinedAt(t, tx, q)
				for {
					vers, more, last, ok := pageOf(list, q, f.store.cfg.ScanRows)
					p, err := f.Page(t.Context(), tx, q)
					pages++
					if !ok {
						if resets++; CodeOf(err) != Reset {
							t.Fatalf("a page with a lost row: %+v, %v", p, err)
						}
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					var got []int64
					for _, r := range p.Rows {
						got = append(got, r.Version)
					}
					if !reflect.DeepEqual(got, vers) || p.More != more || p.Last != last {
						t.Fatalf("%d rows after %d, at most %d of %d examined: %v, more %v, last %d; want %v, %v, %d", len(list), q.After, q.Limit, f.store.cfg.ScanRows, got, p.More, p.Last, vers, more, last)
					}
					if len(vers) == 0 && more {
						empty++
					}
					if len(vers) == q.Limit {
						filled++
					}
					if !more {
						break
					}
					q.After = last
				}
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pages, %d full, %d empty that moved, %d resets", pages, filled, empty, resets)
	if filled == 0 || empty == 0 || resets == 0 {
		t.Error("not everything was met")
	}
}
