package livefeed

import (
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// TestL5_LogPages: whole groups, in order, up to the limit or the bytes; then the answer covers the log up to its head.
func TestL5_LogPages(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t, func(c *Config) { c.ScanBytes = 1200 })
	jazz := AttributeSelector("genre", "jazz")
	for i := range 20 {
		e := []Edit{put(i)}
		if i%4 == 0 {
			e = append(e, put(100+i, attr("genre", "jazz"), attr("padding", fmt.Sprintf("%0200d", i))))
		}
		f.mustAppend(t, group(fmt.Sprint(i), e...))
	}
	for _, x := range []struct {
		selectors []Selector
		want      []uint64
	}{{nil, sequences(1, 20, 1)}, {[]Selector{All}, sequences(1, 20, 1)}, {[]Selector{jazz}, sequences(1, 20, 4)}, {[]Selector{AttributeSelector("genre", "none")}, nil}} {
		for _, limit := range []int{1, 3, 5, 20, MaxLogGroups} {
			after, tag := uint64(0), f.start(t)
			var got []uint64
			for pages := 0; ; pages++ {
				p, err := f.Log(t.Context(), n.pool, LogQuery{After: after, AfterTag: tag, Selectors: x.selectors, Limit: limit})
				if err != nil {
					t.Fatal(err)
				}
				if len(p.Groups) > limit || p.Head != 20 || p.Epoch == "" || p.Now == 0 || pages > 25 {
					t.Fatalf("%+v", p)
				}
				for _, g := range p.Groups {
					got = append(got, g.Sequence)
				}
				if !p.Full {
					if p.Examined != 20 {
						t.Errorf("examined %d", p.Examined)
					}
					break
				}
				last := p.Groups[len(p.Groups)-1]
				if p.Examined != last.Sequence {
					t.Errorf("a full page ends at %d and says %d", last.Sequence, p.Examined)
				}
				after, tag = last.Sequence, last.Tag
			}
			if fmt.Sprint(got) != fmt.Sprint(x.want) {
				t.Errorf("pages of %d: %v, want %v", limit, got, x.want)
			}
		}
	}
	p, err := f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Selectors: []Selector{jazz}, Limit: 100})
	if err != nil || !p.Full || len(p.Groups) == 0 || len(p.Groups) > 4 {
		t.Errorf("%d groups, full %v, %v: the bytes of a page are not bounded", len(p.Groups), p.Full, err)
	}
}

func sequences(from, to, step uint64) (out []uint64) {
	for s := from; s <= to; s += step {
		out = append(out, s)
	}
	return out
}

// TestL5_AGroupAboveTheBytesComesAlone, or nobody would get past it.
func TestL5_AGroupAboveTheBytesComesAlone(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t, func(c *Config) { c.ScanBytes = 10 })
	for i := range 3 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	if log := f.readLog(t, 0, f.start(t)); len(log) != 3 {
		t.Errorf("%d groups", len(log))
	}
}

// TestL12_InvalidateReachesEveryone: sparse reads and sleeping waiters of any selector.
func TestL12_InvalidateReachesEveryone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	feeds := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f"), startStore(t, db, func(c *Config) { c.NoListen = true }).ensure(t, "f")}
	jazz, rock := AttributeSelector("genre", "jazz"), AttributeSelector("genre", "rock")
	feeds[0].mustAppend(t, group("1", put(1, attr("genre", "jazz"))))
	for i, f := range feeds {
		for j, s := range [][]Selector{{jazz}, {rock}, {All}, nil, {jazz, rock}} {
			w := f.Watch(s...)
			defer w.Close()
			feeds[0].mustAppend(t, group(fmt.Sprintf("%d-%d", i, j), invalidate("c"), put(2, attr("genre", "jazz"))))
			await(t, "the wake-up", w.C())
		}
		for _, s := range []Selector{jazz, rock} {
			log := f.readLog(t, 1, groupTag(t, f, 1), s)
			head := f.cut(t).W
			if uint64(len(log)) != head-1 {
				t.Errorf("%d groups, want %d", len(log), head-1)
			}
			for i, g := range log {
				if g.Sequence != uint64(i+2) {
					t.Errorf("group %d is there twice or not at all", g.Sequence)
				}
			}
		}
	}
}

func groupTag(t testing.TB, f *Feed, seq uint64) [8]byte {
	t.Helper()
	tag, err := f.TagAt(t.Context(), f.store.cfg.Pool, seq)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// TestL10_AHoleIsReset and never an empty success.
func TestL10_AHoleIsReset(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for i := range 6 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i, attr("a", "b"))))
	}
	tags := map[uint64][8]byte{0: f.start(t)}
	for seq := uint64(1); seq <= 6; seq++ {
		tags[seq] = groupTag(t, f, seq)
	}
	read := func(after uint64, tag [8]byte, selectors ...Selector) error {
		_, err := f.Log(t.Context(), n.pool, LogQuery{After: after, AfterTag: tag, Selectors: selectors, Limit: 3})
		return err
	}
	sparse := AttributeSelector("a", "b")
	expect := func(what string, want ErrorCode, after uint64, tag [8]byte) {
		t.Helper()
		for _, s := range [][]Selector{nil, {sparse}} {
			if err := read(after, tag, s...); CodeOf(err) != want || (want == 0 && err != nil) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
	}
	expect("from the start", 0, 0, tags[0])
	expect("from the head", 0, 6, tags[6])
	expect("another tag at the start", Reset, 0, tags[1])
	expect("another tag in the middle", Reset, 3, tags[4])
	expect("another tag at the head", Reset, 6, [8]byte{})
	expect("beyond the head", Reset, 7, tags[6])
	expect("out of range", Reset, 1<<63, tags[6])

	exec := func(sql string) {
		t.Helper()
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("update feed_floor set floor = 2, tag = (select tag from feed_group where seq = 2)")
	exec("delete from feed_group where seq <= 2")
	exec("delete from group_selector where seq <= 2")
	expect("below the floor", Reset, 1, tags[1])
	expect("from the start, which is below the floor", Reset, 0, tags[0])
	expect("at the floor", 0, 2, tags[2])
	expect("another tag at the floor", Reset, 2, tags[1])
	if _, err := f.TagAt(t.Context(), n.pool, 2); err != nil {
		t.Errorf("the floor's tag: %v", err)
	}
	for _, seq := range []uint64{0, 1, 7, 1 << 63} {
		if _, err := f.TagAt(t.Context(), n.pool, seq); CodeOf(err) != Reset {
			t.Errorf("tag of %d: %v", seq, err)
		}
	}

	exec("delete from feed_group where seq = 5")
	expect("a hole after the position", Reset, 3, tags[3])
	expect("a hole at the position", Reset, 5, tags[5])
	expect("behind the hole", 0, 6, tags[6])
	exec("delete from feed_group where seq = 6")
	expect("a log that ends before its head", Reset, 4, tags[4])

	for _, limit := range []int{0, -1, MaxLogGroups + 1} {
		if _, err := f.Log(t.Context(), n.pool, LogQuery{Limit: limit}); err == nil || CodeOf(err) != 0 {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	exec("delete from feed_floor")
	if err := read(6, tags[6]); CodeOf(err) != Reset {
		t.Errorf("a feed that is gone: %v", err)
	}
	if _, err := f.Page(t.Context(), n.pool, PageQuery{W: 6, Limit: 1}); CodeOf(err) != Reset {
		t.Errorf("a feed that is gone: %v", err)
	}
}

// TestF9_AnUnreadableRecordIsAnError and not a group without changes.
func TestF9_AnUnreadableRecordIsAnError(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	f.mustAppend(t, group("1", put(1)))
	if _, err := db.Pool.Exec(t.Context(), `update feed_group set changes = '\x0200'`); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Limit: 1}); err == nil {
		t.Error("it was read")
	}
}

// TestL8_ASparseReadCostsItsMatches and not the backlog.
func TestL8_ASparseReadCostsItsMatches(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	const total = 3000
	var pending []*Pending
	for i := range total {
		attributes := []func(*Edit){attr("one", fmt.Sprint(i%1000)), attr("wide", "x")}
		pending = append(pending, f.Submit(t.Context(), group(fmt.Sprint(i), put(i, attributes...))))
	}
	n.run(t)
	for _, p := range pending {
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			if _, err := db.Pool.Exec(t.Context(), "vacuum analyze"); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range []struct {
			name     string
			selector Selector
			matches  int
			bound    int
		}{
			{"no match", AttributeSelector("one", "none"), 0, 30},
			{"3 matches", AttributeSelector("one", "7"), 3, 45},
			{"256 matches", AttributeSelector("wide", "x"), 256, 256*4 + 30},
			{"all", All, 256, 100},
		} {
			sql, args := f.logStatement(LogQuery{AfterTag: f.start(t), Selectors: []Selector{x.selector}, Limit: 256})
			got, plan := buffers(t, n.pool, sql, args)
			t.Logf("%s, analyzed %v: %d buffers", x.name, analyzed, got)
			if got > x.bound {
				t.Errorf("%s, analyzed %v: %d buffers, at most %d expected\n%s", x.name, analyzed, got, x.bound, plan)
			}
			p, err := f.Log(t.Context(), n.pool, LogQuery{AfterTag: f.start(t), Selectors: []Selector{x.selector}, Limit: 256})
			if err != nil || len(p.Groups) != x.matches {
				t.Errorf("%s: %d groups, %v", x.name, len(p.Groups), err)
			}
		}
	}
}
