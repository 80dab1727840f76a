package livefeed

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// compactionCosts removes the same 50 groups and 50 versions from a feed of so many groups, half of them changes of the
// other half, by statements that were planned while it was empty; it returns the buffers of each.
func compactionCosts(t *testing.T, groups int) map[string]int {
	db := pgtest.New(t)
	stopTimers(t, db)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	conn, err := pgx.ConnectConfig(t.Context(), n.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	statements := map[string]prepared{}
	plan := func(name, sql string, types ...string) { statements[name] = prepare(t, conn, sql, types...) }
	plan("look", compactLook, "int[]", "bigint[]", "bigint[]")
	plan("floor", floorRead, "int")
	plan("raise", floorRaise, "int", "bigint")
	plan("removal lock", removalLock, "int")
	plan("old groups", oldGroups, "int", "bigint", "bigint", "bigint", "bigint")
	plan("selectors", selectorsRemove, "int", "bigint", "bigint", "bytea[]")
	plan("group evidence", groupEvidenceRemove, "int", "bigint", "bigint", "bytea[]")
	plan("groups", groupsRemove, "int", "bigint", "bigint")
	plan("versions", versionsRemove, "int", "bigint", "bigint", "bigint", "bigint")
	plan("audiences", audienceForget, "int", "bigint", "bigint")
	plan("removed", removedCount, "int", "bigint")
	plan("idle", idleFind, "bytea", "bigint")
	plan("heads", headsLock, "int")
	plan("count of heads", headsCount, "int")
	plan("idle lock", idleLock, "bytea[]")
	plan("evidence", evidenceRemove, "bytea[]")
	plan("list of evidence", evidencePut, "int", "bigint[]", "bytea[]")
	plan("retained", retainedRead, "int")

	feed, sha := number(f.id), "array["+literal(make([]byte, 32))+"]::bytea[]"
	order := []string{"look", "floor", "raise", "removal lock", "old groups", "selectors", "group evidence", "groups", "versions", "audiences", "removed",
		"idle", "heads", "idle lock", "evidence", "count of heads", "list of evidence", "retained"}
	run := func(removed int, selectors, shas string) map[string][]string {
		to := number(removed)
		return map[string][]string{
			"look":  {"'{" + feed + "}'", "'{0}'", "'{0}'"},
			"floor": {feed}, "raise": {feed, to}, "removal lock": {feed},
			"old groups":       {feed, "0", to, "2000", "4000000"},
			"selectors":        {feed, "0", to, selectors},
			"group evidence":   {feed, "0", to, "'{}'"},
			"groups":           {feed, "0", to},
			"versions":         {feed, "0", number(groups/2 + removed), "2000", "16384"},
			"audiences":        {feed, to, "2000"},
			"removed":          {feed, "1"},
			"idle":             {`'\x'`, "500"},
			"heads":            {feed},
			"idle lock":        {shas},
			"evidence":         {shas},
			"count of heads":   {feed},
			"list of evidence": {feed, "'{1}'", sha},
			"retained":         {feed},
		}
	}
	everything := func(removed int, selectors, shas string) map[string]int {
		// One transaction, rolled back: what it removes is there again.
		if _, err := conn.Exec(t.Context(), "begin"); err != nil {
			t.Fatal(err)
		}
		costs := map[string]int{}
		args := run(removed, selectors, shas)
		for _, name := range order {
			got, text := statements[name].touched(t, args[name]...)
			costs[name] = got
			// Of these there is one row a feed.
			small := strings.NewReplacer("Seq Scan on feed_floor", "", "Seq Scan on feed_head", "")
			if strings.Contains(small.Replace(text), "Seq Scan") {
				t.Errorf("%s reads a whole table:\n%s", name, text)
			}
		}
		if _, err := conn.Exec(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
		return costs
	}
	everything(0, "'{}'", sha) // planned, and kept

	var pending []*Pending
	for i := range groups {
		row := i % (groups / 2)
		pending = append(pending, f.Submit(t.Context(), group(fmt.Sprint(i), put(row, attr("one", fmt.Sprint(row)), attr("wide", "x"), beefOf(fmt.Sprint(i)), readers(1))))) // everybody has a record
	}
	n.run(t)
	for _, p := range pending {
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const removed = 50
	wide := AttributeSelector("wide", "x")
	selectors, shas := []string{literal(wide[:])}, []string{}
	for i := range removed {
		s := AttributeSelector("one", fmt.Sprint(i))
		selectors = append(selectors, literal(s[:]))
		sum := sha256.Sum256(fmt.Append(nil, i))
		shas = append(shas, literal(sum[:]))
	}
	list := func(items []string) string { return "array[" + strings.Join(items, ",") + "]::bytea[]" }
	return everything(removed, list(selectors), list(shas))
}

// TestF10_CompactionCostsWhatItRemoves, and not what is retained, also when its statements were planned on empty tables.
func TestF10_CompactionCostsWhatItRemoves(t *testing.T) {
	t.Parallel()
	const small, large = 400, 2400
	few, many := compactionCosts(t, small), compactionCosts(t, large)
	bounds := map[string]int{
		"look": 24, "floor": 6, "raise": 16, "removal lock": 6, "old groups": 20, "selectors": 500, "group evidence": 12, "groups": 80, "versions": 1500, "audiences": 300,
		"removed": 12, "idle": 230, "heads": 8, "count of heads": 4, "idle lock": 160, "evidence": 1000, "list of evidence": 12, "retained": 10,
	}
	for name, bound := range bounds {
		t.Logf("%s: %d buffers of a small feed, %d of a large one", name, few[name], many[name])
		if many[name] > bound {
			t.Errorf("%s: %d buffers, at most %d expected", name, many[name], bound)
		}
		// Trees may be a level higher.
		if many[name] > few[name]*3/2+10 {
			t.Errorf("%s: %d buffers of a feed of %d groups, %d of one of %d", name, many[name], large, few[name], small)
		}
	}
}

// TestF5_RowsAreWhatTheLogSaysAfterCompaction: random edits of few outpoints by two processes, and random rounds of compaction by
// either; rows, postings, evidence and counters must be what the log says above the floor.
func TestF5_RowsAreWhatTheLogSaysAfterCompaction(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	db := pgtest.New(t)
	nodes := []*node{startStore(t, db), startStore(t, db)}
	type world struct {
		by      [2]*Feed
		history []Group
		tag     [8]byte
		floor   uint64
	}
	var worlds []*world
	for i := range 3 {
		name := fmt.Sprint("f", i)
		w := &world{by: [2]*Feed{nodes[0].ensure(t, name), nodes[1].ensure(t, name)}}
		w.tag = w.by[0].start(t)
		worlds = append(worlds, w)
	}
	for step := range 300 {
		w := worlds[random.IntN(len(worlds))]
		f := w.by[random.IntN(2)]
		if random.IntN(8) > 0 {
			f.mustAppend(t, group(fmt.Sprint(step), randomEdits(random)...))
			continue
		}
		news := f.readLog(t, uint64(len(w.history)), w.tag)
		w.history = append(w.history, news...)
		if len(w.history) > 0 {
			w.tag = w.history[len(w.history)-1].Tag
		}
		h, to := nobody, uint64(len(w.history))
		if random.IntN(4) > 0 && to > 0 {
			to = random.Uint64N(to + 1)
			h = until(to)
		}
		w.floor = max(w.floor, to)
		f.compactAll(t, h)
		f.checkHistory(t, w.history, w.floor)
	}
	// At last nothing is stored that nobody needs.
	evidence := map[string]bool{}
	for _, w := range worlds {
		w.history = append(w.history, w.by[0].readLog(t, uint64(len(w.history)), w.tag)...)
		w.by[1].compactAll(t, nobody)
		w.by[1].checkHistory(t, w.history, uint64(len(w.history)))
		for _, r := range w.by[0].scan(t, PageQuery{W: uint64(len(w.history)), T: 1, Limit: MaxPageRows}) {
			evidence[fmt.Sprintf("%x", r.State.Evidence.SHA256)] = true
		}
	}
	if n := countRows(t, db, "blob"); n != len(evidence) {
		t.Errorf("%d evidence is stored, the rows need %d", n, len(evidence))
	}
	if n := countRows(t, db, "blob_idle"); n != 0 {
		t.Errorf("%d idle", n)
	}
}

// randomEdits are edits of few outpoints that share evidence.
func randomEdits(random *rand.Rand) (edits []Edit) {
	for range 1 + random.IntN(4) {
		row := random.IntN(6)
		switch random.IntN(7) {
		case 0:
			e := spend(row)
			e.BEEF = fmt.Append(nil, "shared", random.IntN(8))
			edits = append(edits, e)
		case 1, 2:
			edits = append(edits, withdraw(row))
		case 3:
			edits = append(edits, invalidate(fmt.Sprint(row)))
		default:
			edits = append(edits, put(row, attr("n", fmt.Sprint(random.IntN(3)), "x"), beefOf(fmt.Sprint("shared", random.IntN(8)))))
		}
	}
	return edits
}
