package livefeed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
)

func TestF5_EveryFieldOfARowSurvives(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	e := put(1, attr("a\x00", "\x00", "v"), attr("b", "w"), expires(1<<40), readers(7, 9))
	e.Order = []byte("\x00\xff\x00")
	e.Context = &Context{Schema: "urn:x:\u00e9", Bytes: []byte{0, 255}}
	f.mustAppend(t, group("1", e, Edit{Op: Withdraw, Outpoint: outpoint(2), Reason: "gone\x00"}, invalidate("c\x00")))

	c := f.cut(t)
	me := reader(9)
	rows := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: 10, Reader: &me})
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	want := State{
		Evidence: rows[0].State.Evidence, Attributes: e.Attributes, Order: e.Order, Context: e.Context, ExpiresAt: 1 << 40, Readers: e.Readers,
	}
	if got := rows[0]; got.Outpoint != outpoint(1) || !reflect.DeepEqual(got.State, want) {
		t.Errorf("row %+v\nwant %+v", got, want)
	}
	log := f.readLog(t, 0, f.start(t))
	if got := log[0].Changes[0].After; !reflect.DeepEqual(*got, want) {
		t.Errorf("log %+v\nwant %+v", got, want)
	}
	if c := log[0].Changes[1]; c.Reason != "gone\x00" || c.Before != nil || c.After != nil {
		t.Errorf("%+v", c)
	}
	if c := log[0].Changes[2]; c.ContextID != "c\x00" || c.Reason != "reorg" {
		t.Errorf("%+v", c)
	}
	blobs, err := f.Blobs(t.Context(), n.pool, [][32]byte{want.Evidence.SHA256})
	if err != nil || !bytes.Equal(blobs[want.Evidence.SHA256], e.BEEF) || want.Evidence.Size != len(e.BEEF) {
		t.Errorf("evidence %q, %v", blobs, err)
	}
	if _, err := f.Blobs(t.Context(), n.pool, [][32]byte{{1}}); CodeOf(err) != Reset {
		t.Errorf("missing evidence: %v", err)
	}
	f.checkStored(t)
}

// TestL2_AReplacementIsOneGroup: the old listing's spend and the new listing share a sequence, and no snapshot has both or neither.
func TestL2_AReplacementIsOneGroup(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	f.mustAppend(t, group("1", put(1, attr("artist", "a"))))
	r := f.mustAppend(t, group("2", spend(1), put(2, attr("artist", "b"))))
	log := f.readLog(t, 0, f.start(t))
	g := log[len(log)-1]
	if g.Sequence != r.Sequence || len(g.Changes) != 2 {
		t.Fatalf("%+v", g)
	}
	if c := g.Changes[0]; c.Op != Spend || c.Before == nil || c.After != nil || c.SpendingTxID != txid(-1) || c.SpendEvidence.Size == 0 {
		t.Errorf("%+v", c)
	}
	if c := g.Changes[1]; c.Op != Put || c.Before != nil || c.After == nil {
		t.Errorf("%+v", c)
	}
	for w := uint64(1); w <= 2; w++ {
		if rows := f.scan(t, PageQuery{W: w, T: 1, Limit: 5}); len(rows) != 1 || rows[0].Outpoint != outpoint(int(w)) {
			t.Errorf("snapshot at %d: %+v", w, rows)
		}
	}
	for _, s := range []Selector{AttributeSelector("artist", "a"), AttributeSelector("artist", "b")} {
		list := f.readLog(t, 1, log[0].Tag, s)
		if len(list) != 1 || list[0].Sequence != 2 {
			t.Errorf("the group is not posted under both what it took and what it brought")
		}
	}
	f.checkStored(t)
}

// TestF5_EditsOfOneOutpointChain: in one group and over the groups of one batch.
func TestF5_EditsOfOneOutpointChain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	list := []*Proposal{
		group("1", put(1, attr("n", "1")), put(1, attr("n", "2")), withdraw(1), put(1, attr("n", "3"))),
		group("2", put(1, attr("n", "4"))),
		group("3", put(1, attr("n", "4"))), // the same again: logged, but no new version
		group("4", spend(1), spend(1)),
		group("5", put(1, attr("n", "5")), withdraw(1)), // never outside its group
		group("6", put(1, attr("n", "6"))),
	}
	var pending []*Pending
	for _, p := range list {
		pending = append(pending, f.Submit(t.Context(), p))
	}
	n.run(t)
	for i, p := range pending {
		if r, err := p.Wait(t.Context()); err != nil || r.Sequence != uint64(i+1) || r.HighWater != 6 {
			t.Fatalf("%d: %+v, %v", i, r, err)
		}
	}
	f.checkStored(t)
	log := f.readLog(t, 0, f.start(t))
	if c := log[2].Changes[0]; c.Before == nil || !sameState(c.Before, c.After) {
		t.Errorf("a put of the same again: %+v", c)
	}
	if c := log[3].Changes[1]; c.Before != nil || c.After != nil {
		t.Errorf("the second spend: %+v", c)
	}
	if s, err := f.Stats(t.Context()); err != nil || s.Versions != 3 {
		t.Errorf("%+v, %v; want 3 versions", s, err)
	}
	// Once more over what is stored by now.
	f.mustAppend(t, group("7", put(1, attr("n", "7")), put(1, attr("n", "8"))))
	f.mustAppend(t, group("8", put(1, attr("n", "8"))))
	f.mustAppend(t, group("9", withdraw(1), put(1)))
	f.checkStored(t)
}

// TestF5_RowsAreWhatTheLogSays: random edits of few outpoints by many writers; rows, postings and counters must be what
// the log says at every sequence.
func TestF5_RowsAreWhatTheLogSays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	feeds := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 25 {
				var edits []Edit
				for range 1 + random.IntN(4) {
					row := random.IntN(6)
					switch random.IntN(6) {
					case 0:
						edits = append(edits, spend(row))
					case 1:
						edits = append(edits, withdraw(row))
					case 2:
						edits = append(edits, invalidate(fmt.Sprint(row)))
					default:
						edits = append(edits, put(row, attr("n", fmt.Sprint(random.IntN(3)), "x"), func(e *Edit) {
							if random.IntN(3) == 0 {
								e.Order = fmt.Append(nil, random.IntN(3))
							}
						}))
					}
				}
				if _, err := feeds[w%2].Append(t.Context(), group(fmt.Sprintf("%d-%d", w, i), edits...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	feeds[0].checkStored(t)
}

// TestF5_ARowThatIsReplacedKeepsItsPostings: what is posted anew is what changed of its attributes, under the number of the run, and a
// new order key begins a run.
func TestF5_ARowThatIsReplacedKeepsItsPostings(t *testing.T) {
	t.Parallel()
	db, _, f := startFeed(t)
	postings := func(want ...string) {
		t.Helper()
		f.checkStored(t)
		rows, err := db.Pool.Query(t.Context(), `select case p.selector when $1 then 'a' when $2 then 'b' else 'c' end || ' ' || p.valid_from
			|| case when p.valid_to > 9e18 then '' else ' ' || p.valid_to end || ' ' || p.ver - (select min(ver) from posting)
			from posting p order by 1`, selectorBytes("a"), selectorBytes("b"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || !slices.Equal(got, want) {
			t.Errorf("postings %q, %v; want %q", got, err, want)
		}
	}
	a, b, c := attr("a", "x"), attr("b", "x"), attr("c", "x")
	f.mustAppend(t, group("1", put(1, a, b)))
	f.mustAppend(t, group("2", put(1, a, b, beefOf("2"))))
	if _, err := f.Prohibit(t.Context(), outpoint(1), "because"); err != nil {
		t.Fatal(err)
	}
	postings("a 1 0", "b 1 0")
	f.mustAppend(t, group("4", put(1, a, c)))
	postings("a 1 0", "b 1 4 0", "c 4 0")
	f.mustAppend(t, group("5", put(1, c), put(1, a, b, c))) // the first of the two is in the log alone
	postings("a 1 0", "b 1 4 0", "b 5 0", "c 4 0")
	f.mustAppend(t, group("6", put(1, a, b, c, func(e *Edit) { e.Order = []byte("elsewhere") })))
	postings("a 1 6 0", "a 6 1", "b 1 4 0", "b 5 6 0", "b 6 1", "c 4 6 0", "c 6 1")
	f.mustAppend(t, group("7", withdraw(1), put(1, a, func(e *Edit) { e.Order = []byte("elsewhere") }))) // it was away: a run of its own
	postings("a 1 6 0", "a 6 7 1", "a 7 2", "b 1 4 0", "b 5 6 0", "b 6 7 1", "c 4 6 0", "c 6 7 1")
}

func selectorBytes(name string) []byte {
	s := AttributeSelector(name, "x")
	return s[:]
}

// TestF5_RunsBeginWithWhatWasThereBefore: rows and postings of each version, as they were before there were runs, are brought over by the
// migration, read from the positions that were given out, replaced, and compacted.
func TestF5_RunsBeginWithWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	change := func(i int) {
		t.Helper()
		f.mustAppend(t, group(fmt.Sprint(i), put(i%5, attr("a", "b"), attr("n", fmt.Sprint(i/5%2)), beefOf(fmt.Sprint(i))), withdraw((i+3)%7)))
	}
	for i := range 30 {
		change(i)
	}
	exec(t, n, `delete from posting`)
	exec(t, n, `alter table row_version drop constraint row_version_pkey`)
	exec(t, n, `update row_version set ver = nextval('row_version_ver_seq')`)
	exec(t, n, `insert into posting select feed_id, s, order_key, valid_from, valid_to, ver from row_version, unnest(selectors) s`)
	exec(t, n, `alter table row_version add primary key (ver), alter column ver set generated always`)
	f.checkStored(t)
	var vers []int64
	if err := db.Pool.QueryRow(t.Context(), `select array_agg(ver order by order_key) from row_version where valid_from <= 20 and valid_to > 20`).Scan(&vers); err != nil {
		t.Fatal(err)
	}
	migration, err := os.ReadFile("../internal/schema/sql/007_runs.sql")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, n, string(migration), pgx.QueryExecModeSimpleProtocol)
	pages := func() {
		t.Helper()
		for i, after := range vers {
			for _, s := range [][]Selector{nil, {AttributeSelector("a", "b")}} {
				q := PageQuery{W: 20, WTag: groupTag(t, f, 20), T: 1, After: after, Limit: 100, Selectors: s}
				if p, err := f.Page(t.Context(), n.pool, q); err != nil || len(p.Rows) != len(vers)-i-1 {
					t.Errorf("%d rows after number %d of %d, %v", len(p.Rows), i, len(vers), err)
				}
			}
		}
	}
	pages()
	for i := range 30 {
		change(30 + i)
	}
	f.checkStored(t)
	pages()
	history := f.readLog(t, 0, f.start(t))
	for _, floor := range []uint64{20, 33, uint64(len(history))} {
		f.compactAll(t, until(floor))
		f.checkHistory(t, history, floor)
	}
	if runs, versions := countRows(t, db, "(select distinct ver from row_version) r"), countRows(t, db, "row_version"); runs != versions || versions == 0 {
		t.Errorf("%d versions of %d runs are left", versions, runs)
	}
}

// TestF5_WhatIsHiddenStaysHidden: a row that a prohibition hides keeps hiding what is put in its place.
func TestF5_WhatIsHiddenStaysHidden(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	f.mustAppend(t, group("1", put(1)))
	for i, want := range []bool{true, false} {
		if changed, err := f.Prohibit(t.Context(), put(1).Outpoint, "because"); err != nil || changed != want {
			t.Fatalf("%d: changed %v, %v", i, changed, err)
		}
	}
	f.mustAppend(t, group("2", put(1, beefOf("other"))))
	log := f.readLog(t, 0, f.start(t))
	if c := log[1].Changes[0]; c.Before.Hidden || !c.After.Hidden || c.Op != Put {
		t.Errorf("%+v", c)
	}
	if c := log[2].Changes[0]; !c.Before.Hidden || !c.After.Hidden {
		t.Errorf("%+v", c)
	}
	c := f.cut(t)
	if rows := f.scan(t, PageQuery{W: c.W, T: c.Now, Limit: 5}); len(rows) != 0 {
		t.Errorf("%+v", rows)
	}
}
