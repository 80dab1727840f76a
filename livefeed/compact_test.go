package livefeed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// nobody is the horizon of a feed that promised nothing.
func nobody(context.Context, pgx.Tx, *Feed) (uint64, bool, error) { return 0, false, nil }

// until is the horizon of a feed that promised one watermark.
func until(w uint64) Horizon {
	return func(context.Context, pgx.Tx, *Feed) (uint64, bool, error) { return w, true, nil }
}

// compactAll runs rounds until there is nothing left to remove, and returns what they did together.
func (f *Feed) compactAll(t testing.TB, h Horizon) Compacted {
	t.Helper()
	var sum Compacted
	for deadline := time.Now().Add(patience); ; {
		c, err := f.Compact(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		sum.Floor = c.Floor
		sum.Groups += c.Groups
		sum.Versions += c.Versions
		sum.Evidence += c.Evidence
		if !c.More {
			return sum
		}
		if time.Now().After(deadline) {
			t.Fatalf("compaction does not come to an end: %+v", c)
		}
	}
}

// countRows counts a table's rows.
func countRows(t testing.TB, db *pgtest.DB, table string) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestF13_CompactionForgetsWhatNobodyWasPromised and nothing else; group keys stay.
func TestF13_CompactionForgetsWhatNobodyWasPromised(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for i := range 30 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i%7, attr("a", "b"), attr("n", fmt.Sprint(i)), beefOf(fmt.Sprint(i))), spend(100+i), invalidate("c")))
	}
	history := f.readLog(t, 0, f.start(t))
	tags := [][8]byte{f.start(t)}
	for _, g := range history {
		tags = append(tags, g.Tag)
	}
	check := func(floor uint64) {
		t.Helper()
		f.checkHistory(t, history, floor)
		for after := range tags {
			for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
				p, err := f.Log(t.Context(), n.pool, LogQuery{After: uint64(after), AfterTag: tags[after], Selectors: s, Limit: 100})
				if want := uint64(after) < floor; want != (CodeOf(err) == Reset) || !want && (err != nil || len(p.Groups) != 30-after) {
					t.Errorf("floor %d, log after %d: %d groups, %v", floor, after, len(p.Groups), err)
				}
				page, err := f.Page(t.Context(), n.pool, PageQuery{W: uint64(after), WTag: tags[after], T: 1, Selectors: s, Limit: 100})
				if want := uint64(after) < floor; want != (CodeOf(err) == Reset) || !want && (err != nil || len(page.Rows) != min(after, 7)) {
					t.Errorf("floor %d, page at %d: %d rows, %v", floor, after, len(page.Rows), err)
				}
			}
			_, err := f.TagAt(t.Context(), n.pool, uint64(after))
			if want := uint64(after) < floor; want != (CodeOf(err) == Reset) || !want && err != nil {
				t.Errorf("floor %d, tag at %d: %v", floor, after, err)
			}
		}
	}
	if c := f.compactAll(t, until(0)); c != (Compacted{}) {
		t.Errorf("everything is promised, and it did %+v", c)
	}
	check(0)
	// Versions 1..3 ended in groups 8..10; their evidence, and that of ten spends, is nobody's.
	if c := f.compactAll(t, until(10)); c != (Compacted{Floor: 10, Groups: 10, Versions: 3, Evidence: 13}) {
		t.Errorf("%+v", c)
	}
	check(10)
	if c := f.compactAll(t, until(4)); c.Floor != 10 || c.Groups != 0 {
		t.Errorf("a floor that is passed already: %+v", c)
	}
	check(10)
	if c := f.compactAll(t, until(99)); c.Floor != 30 || c.Groups != 20 { // a promise beyond the head is of no history here
		t.Errorf("%+v", c)
	}
	check(30)
	f.compactAll(t, nobody)
	if got := countRows(t, db, "group_key"); got != 30 {
		t.Errorf("%d group keys", got)
	}
	// The feed goes on.
	f.mustAppend(t, group("more", put(3, beefOf("more"))))
	history = append(history, f.readLog(t, 30, tags[30])...)
	f.checkHistory(t, history, 30)
	if got := countRows(t, db, "blob"); got != 8 {
		t.Errorf("%d evidence is stored for 7 rows and one version that ended", got)
	}
	f.compactAll(t, nobody)
	f.checkHistory(t, history, 31)
	if blobs, idle := countRows(t, db, "blob"), countRows(t, db, "blob_idle"); blobs != 7 || idle != 0 {
		t.Errorf("%d evidence is stored for 7 rows, %d idle", blobs, idle)
	}
}

// TestL11_AKeyKeepsItsPlaceWhenTheLogIsGone: an import repeated after compaction appends nothing.
func TestL11_AKeyKeepsItsPlaceWhenTheLogIsGone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	var list []*Proposal
	for i := range 40 {
		list = append(list, group(fmt.Sprint(i), put(i%5, beefOf(fmt.Sprint(i)))))
		f.mustAppend(t, list[i])
	}
	f.compactAll(t, nobody)
	n.stop()
	f = startStore(t, db).ensure(t, "f") // nothing is left in memory either
	for i, p := range list {
		if r := f.mustAppend(t, p); r.Sequence != uint64(i+1) || !r.Replayed || r.HighWater != 40 {
			t.Errorf("%d: %+v", i, r)
		}
	}
	f.refuse(t, Conflict, group("7", put(1, beefOf("another"))))
	if c := f.cut(t); c.W != 40 || c.Floor != 40 {
		t.Errorf("%+v", c)
	}
	if got := countRows(t, db, "feed_group"); got != 0 {
		t.Errorf("%d groups", got)
	}
}

// TestS4_CompactionKeepsWhatWasPromised: the rows at W stay as they were through update, spend, withdrawal, expiry, prohibition and
// rounds of compaction, until the promise ends; then W is Reset.
func TestS4_CompactionKeepsWhatWasPromised(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	now := f.cut(t).Now
	var edits []Edit
	for i := range 40 {
		edits = append(edits, put(i, attr("a", "b"), attr("n", fmt.Sprint(i)), func(e *Edit) {
			if i%4 == 3 {
				e.ExpiresAt = now + 100 + uint64(i)
			}
		}))
	}
	f.mustAppend(t, group("first", edits...))
	f.mustAppend(t, group("second", put(0, attr("a", "b"), beefOf("second"))))
	c := f.cut(t)
	queries := []PageQuery{{W: c.W, WTag: c.Tag, T: c.Now, Limit: 7}, {W: c.W, WTag: c.Tag, T: c.Now, Limit: 3, Selectors: []Selector{AttributeSelector("a", "b")}}}
	var want [][]PageRow
	for _, q := range queries {
		want = append(want, f.scan(t, q))
	}
	check := func(what string) {
		t.Helper()
		if _, err := f.Compact(t.Context(), until(c.W)); err != nil {
			t.Fatal(err)
		}
		for i, q := range queries {
			got := f.scan(t, q)
			if !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("after %s the snapshot at W is another", what)
			}
			for _, r := range got {
				if _, err := f.Blobs(t.Context(), n.pool, [][32]byte{r.State.Evidence.SHA256}); err != nil {
					t.Fatalf("after %s: %v", what, err)
				}
			}
		}
	}
	if len(want[0]) != 40 || len(want[1]) != 40 {
		t.Fatalf("%d and %d rows", len(want[0]), len(want[1]))
	}
	check("nothing")
	for i := range 40 {
		key := fmt.Sprint(i)
		switch i % 4 {
		case 0:
			f.mustAppend(t, group(key, put(i, beefOf("changed"))))
			f.mustAppend(t, group(key+"b", put(i, beefOf("changed again")), withdraw(i), put(i)))
		case 1:
			f.mustAppend(t, group(key, spend(i)))
		case 2:
			if _, err := f.Prohibit(t.Context(), outpoint(i), "x"); err != nil {
				t.Fatal(err)
			}
		case 3:
			if err := f.Advance(t.Context(), n.pool, now+100+uint64(i)); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Drain(t.Context(), now+100+uint64(i), 100); err != nil {
				t.Fatal(err)
			}
		}
		check(fmt.Sprint("edit ", i))
	}
	n.stop()
	n = startStore(t, db)
	f = n.ensure(t, "f")
	check("a restart")
	f.compactAll(t, nobody)
	for _, q := range queries {
		if _, err := f.Page(t.Context(), n.pool, q); CodeOf(err) != Reset || errors.Is(err, ErrRewritten) {
			t.Errorf("the promise ended, and W gives %v", err)
		}
	}
	if versions := countRows(t, db, "row_version"); versions != 20 { // 10 changed, 10 hidden
		t.Errorf("%d versions are left", versions)
	}
}

// TestL10_AReaderNeverMeetsAHole: while groups come and go at both ends of the log, each read is the whole truth or Reset.
func TestL10_AReaderNeverMeetsAHole(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := startStore(t, db)
	f := n.ensure(t, "f")
	other := startStore(t, db).ensure(t, "f") // two processes compact
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { // row 0 changes in each group, row 1 in each fourth
		for i := 0; ctx.Err() == nil; i++ {
			e := []Edit{put(0, attr("every", "x"), beefOf(fmt.Sprint(i)))}
			if i%4 == 0 {
				e = append(e, put(1, attr("fourth", "x"), beefOf(fmt.Sprint(i))))
			}
			if _, err := f.Append(ctx, group(fmt.Sprint(i), e...)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for _, c := range []*Feed{f, other} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Compact(ctx, nobody); err != nil && ctx.Err() == nil {
					t.Errorf("compact: %v", err)
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(4, 4))
	var whole, reset int
	for whole < 200 || reset < 50 {
		if t.Failed() {
			break
		}
		c := f.cut(t)
		if n := random.IntN(4); n > 0 { // let it age
			for target := c.W + uint64(n); f.cut(t).W < target && !t.Failed(); {
			}
		}
		reads := map[string]func() error{
			"dense": func() error {
				p, err := f.Log(ctx, n.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 1000})
				if err == nil && uint64(len(p.Groups)) != p.Head-c.W {
					t.Errorf("%d groups after %d, and the head is %d", len(p.Groups), c.W, p.Head)
				}
				return err
			},
			"sparse": func() error {
				p, err := f.Log(ctx, n.pool, LogQuery{After: c.W, AfterTag: c.Tag, Selectors: []Selector{AttributeSelector("fourth", "x")}, Limit: 1000})
				if err == nil && uint64(len(p.Groups)) != (p.Head+3)/4-(c.W+3)/4 {
					t.Errorf("%d fourth groups after %d, and the head is %d", len(p.Groups), c.W, p.Head)
				}
				return err
			},
			"page": func() error {
				p, err := f.Page(ctx, n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 10})
				if err == nil && len(p.Rows) != int(min(c.W, 2)) && c.W > 1 {
					t.Errorf("%d rows at %d", len(p.Rows), c.W)
				}
				return err
			},
			"postings": func() error {
				p, err := f.Page(ctx, n.pool, PageQuery{W: c.W, WTag: c.Tag, T: c.Now, Limit: 10, Selectors: []Selector{AttributeSelector("every", "x")}})
				if err == nil && len(p.Rows) != 1 && c.W > 0 {
					t.Errorf("%d rows at %d", len(p.Rows), c.W)
				}
				return err
			},
			"tag": func() error {
				tag, err := f.TagAt(ctx, n.pool, c.W)
				if err == nil && tag != c.Tag {
					t.Errorf("another tag at %d", c.W)
				}
				return err
			},
		}
		for name, read := range reads {
			switch err := read(); {
			case err == nil:
				whole++
			case CodeOf(err) == Reset && !errors.Is(err, ErrRewritten) && (err.(*Error).Reason == "the position is before the retained log" ||
				err.(*Error).Reason == "the snapshot is outside the retained log" || err.(*Error).Reason == "the position is outside the retained log"):
				reset++
			default:
				t.Errorf("%s at %d: %v", name, c.W, err)
			}
		}
	}
	t.Logf("%d reads gave everything, %d Reset", whole, reset)
	cancel()
	wg.Wait()
}

// TestL10_AHoleWhereTheFloorWouldBe is said, and the floor stays in front of it.
func TestL10_AHoleWhereTheFloorWouldBe(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	exec(t, n, "delete from feed_group where seq = 3")
	if _, err := f.Compact(t.Context(), until(3)); err == nil {
		t.Error("the floor has a tag from nowhere")
	}
	if c := f.cut(t); c.Floor != 0 {
		t.Errorf("%+v", c)
	}
	if c := f.compactAll(t, until(4)); c.Floor != 4 || c.Groups != 3 { // behind the hole it goes on
		t.Errorf("%+v", c)
	}
}

// TestF13_ARoundIsBounded, and rounds come to an end.
func TestF13_ARoundIsBounded(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	f.mustAppend(t, group("0", put(0, attr("a", "b"))))
	// More groups and versions than a round removes are written past the feed.
	const total = compactBatches*compactRows + 3
	exec(t, n, `insert into feed_group (feed_id, seq, tag, committed_at, changes) select $1, n, '\x0102030405060708', 1, '\x0100' from generate_series(2, $2::int) n`, f.id, total)
	exec(t, n, `insert into row_version (feed_id, outpoint, order_key, valid_from, valid_to, attributes, selectors, evidence, evidence_size)
		select $1, decode(lpad(to_hex(n), 72, '0'), 'hex'), decode(lpad(to_hex(n), 72, '0'), 'hex'), 1, 2 + n % 5, '\x00', '{}', decode(lpad('', 64, '0'), 'hex'), 1 from generate_series(2, $2::int) n`, f.id, total)
	exec(t, n, "update feed_head set head = $2, versions = versions + $2 - 1 where feed_id = $1", f.id, total)
	for i, want := range []Compacted{
		{Floor: total, Groups: compactBatches * compactRows, Versions: compactBatches * compactRows, More: true},
		{Floor: total, Groups: 3, Versions: 2},
	} {
		c, err := f.Compact(t.Context(), nobody)
		if err != nil || c != want {
			t.Errorf("round %d: %+v, %v; want %+v", i, c, err, want)
		}
	}
	if groups, versions := countRows(t, db, "feed_group"), countRows(t, db, "row_version"); groups != 0 || versions != 1 {
		t.Errorf("%d groups and %d versions are left", groups, versions)
	}
	if s, err := f.Stats(t.Context()); err != nil || s.Versions != 1 || s.Groups != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestF13_WhatCannotBeReadIsRemoved too: a broken record would else keep everything behind it.
func TestF13_WhatCannotBeReadIsRemoved(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i, attr("a", fmt.Sprint(i)))))
	}
	exec(t, n, `update feed_group set changes = '\x0200' where seq = 3`)
	if c := f.compactAll(t, nobody); c.Groups != 5 {
		t.Errorf("%+v", c)
	}
	if left := countRows(t, db, "group_selector"); left != 1 {
		t.Errorf("%d selectors of groups are left", left)
	}
}

// TestF13_ABusyLockIsNoError: the round does what it can, and says that there is more.
func TestF13_ABusyLockIsNoError(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for i := range 20 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i%3, beefOf(fmt.Sprint(i)))))
	}
	c := f.compactAll(t, until(5))
	if c.Floor != 5 {
		t.Fatalf("%+v", c)
	}
	hold := func(sql string, args ...any) (release func()) {
		tx := begin(t, db.Pool)
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}
	release := hold("select pg_advisory_xact_lock_shared($1, $2)", compactLock, f.id)
	if c, err := f.Compact(t.Context(), nobody); err != nil || c != (Compacted{Floor: 5, More: true}) {
		t.Errorf("an Open holds its lock: %+v, %v", c, err)
	}
	release()
	release = hold("select from feed_floor for update")
	if c, err := f.Compact(t.Context(), nobody); err != nil || c != (Compacted{Floor: 5, More: true}) {
		t.Errorf("another node removes: %+v, %v", c, err)
	}
	release()
	release = hold("select from feed_head for update")
	if c, err := f.Compact(t.Context(), nobody); err != nil || c != (Compacted{Floor: 20, Groups: 15, Versions: 15, More: true}) {
		t.Errorf("a committer commits: %+v, %v", c, err)
	}
	release()
	if c, err := f.Compact(t.Context(), nobody); err != nil || c != (Compacted{Floor: 20, Evidence: 15}) {
		t.Errorf("%+v, %v", c, err)
	}
	if got := metricValue(n.metrics.compactBusy.WithLabelValues(f.name)); got != 4 { // the floor's row is met three times
		t.Errorf("%v times busy", got)
	}
	refused := errors.New("the horizon is not known")
	if _, err := f.Compact(t.Context(), func(context.Context, pgx.Tx, *Feed) (uint64, bool, error) { return 0, false, refused }); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
}

// TestF13_ALookFindsWhatCompactionWould: after random edits, promises and rounds, of two feeds and by two processes, a feed that the look
// does not name is one in which a round does nothing; and one that is compacted to its end is not named. A look is one statement.
func TestF13_ALookFindsWhatCompactionWould(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 13))
	db := pgtest.New(t)
	stopTimers(t, db)
	var asked statements
	nodes := []*node{startStore(t, db, traced(t, db, &asked), quiet), startStore(t, db, quiet)}
	var feeds [2][]*Feed
	for i := range 2 {
		for j := range 2 {
			feeds[i] = append(feeds[i], nodes[i].ensure(t, fmt.Sprint("f", j)))
		}
	}
	named, silent := 0, 0
	for step := range 200 {
		i, j := random.IntN(2), random.IntN(2)
		f, id := feeds[i][j], feeds[i][j].id
		if random.IntN(3) == 0 {
			edits := randomEdits(random)
			if random.IntN(3) == 0 {
				edits = append(edits, put(20+random.IntN(3), readers(byte(random.IntN(3))), beefOf(fmt.Sprint(step))))
			}
			f.mustAppend(t, group(fmt.Sprint(step), edits...))
			continue
		}
		h, promised := nobody, map[int32]uint64{}
		if head := f.cut(t).W; random.IntN(3) > 0 {
			w := random.Uint64N(head + 1)
			h, promised[id] = until(w), w
		}
		before := asked.all()
		work, err := nodes[i].Compactable(t.Context(), nodes[i].cfg.Pool, []*Feed{f}, promised)
		if err != nil || len(work) > 1 || len(work) == 1 && work[0] != f {
			t.Fatalf("%v, %v", work, err)
		}
		if after := asked.all(); i == 0 && after[compactLook] != before[compactLook]+1 {
			t.Errorf("a look is %d statements", after[compactLook]-before[compactLook])
		}
		floor, audiences := f.cut(t).Floor, countRows(t, db, "row_audience")
		c, err := f.Compact(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		did := c.Floor != floor || c.Groups+c.Versions+c.Evidence > 0 || c.More || countRows(t, db, "row_audience") != audiences
		if len(work) == 1 {
			named++
		} else if silent++; did {
			t.Fatalf("step %d: the look did not name the feed, and a round does %+v, its floor was %d", step, c, floor)
		}
		if random.IntN(2) == 0 {
			f.compactAll(t, h)
			if work, err := nodes[i].Compactable(t.Context(), nodes[i].cfg.Pool, []*Feed{f}, promised); err != nil || len(work) != 0 {
				t.Fatalf("step %d: compacted to the end, and named: %v", step, err)
			}
		}
	}
	if named == 0 || silent == 0 {
		t.Errorf("named %d times, not named %d times", named, silent)
	}
	// All feeds at once; one that is not there is not passed over in silence.
	exec(t, nodes[0], "delete from feed_floor where feed_id = $1", feeds[0][0].id)
	if work, err := nodes[0].Compactable(t.Context(), nodes[0].pool, feeds[0], nil); err != nil || len(work) == 0 || work[0] != feeds[0][0] {
		t.Errorf("%v, %v", work, err)
	}
}

// TestF13_EvidenceThatIsIdleIsLookedAt, also when nothing else can go.
func TestF13_EvidenceThatIsIdleIsLookedAt(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t, quiet)
	f.mustAppend(t, group("1", put(1)))
	f.compactAll(t, nobody)
	look := func() int {
		t.Helper()
		work, err := n.Compactable(t.Context(), n.pool, []*Feed{f}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(work)
	}
	if look() != 0 {
		t.Error("nothing is to be done")
	}
	if _, err := db.Pool.Exec(t.Context(), "insert into blob_idle select sha from blob"); err != nil {
		t.Fatal(err)
	}
	if look() != 1 {
		t.Error("idle evidence is passed over")
	}
	f.compactAll(t, nobody)
	if look() != 0 || countRows(t, db, "blob") != 1 {
		t.Error("it was looked at, and is needed")
	}
	// Groups from before evidence was listed may refer to anything: until they are gone none is collected, and none is looked for.
	if _, err := db.Pool.Exec(t.Context(), "insert into blob_idle select sha from blob; update feed_floor set untracked = floor + 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if look() != 0 {
		t.Error("evidence that may not be looked at is looked for")
	}
}
