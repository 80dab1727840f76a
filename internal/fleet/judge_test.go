package fleet_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// committed is one group as its writer was told of it.
type committed struct {
	sequence uint64
	key      string
	edits    []edit
}

// seen is what one observation says, apart from ids and evidence.
type seen struct{ kind, txid, mark, reason string }

// received is one group in a follower's state.
type received struct {
	sequence     uint64
	observations []seen
}

// held is everything that a follower's state holds of its source.
type held struct {
	name     string
	shelf    string // "": all rows
	w        uint64 // of its snapshot
	snapshot []received
	live     []received
	present  []string // transactions of the rows that are its answer, sorted
}

// verdict counts what is wrong. Its zero value is a clean one.
type verdict struct {
	lost, doubled, wrong int
	delivered            int      // live groups that are as they should be
	words                []string // about the first few
}

func (v *verdict) find(count *int, format string, args ...any) {
	if *count++; len(v.words) < 20 {
		v.words = append(v.words, fmt.Sprintf(format, args...))
	}
}

func (v *verdict) clean() bool { return v.lost+v.doubled+v.wrong == 0 }

// ledger is what writers were told.
type ledger struct {
	mu       sync.Mutex
	groups   []committed // guarded by mu
	replayed int         // guarded by mu; answers that repeat an earlier one, which was lost
}

func (l *ledger) note(g committed, replayed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups = append(l.groups, g)
	if replayed {
		l.replayed++
	}
}

// judge holds what followers have against what writers were told, once every follower has come to the last group.
func (l *ledger) judge(followers ...held) *verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := &verdict{}
	groups := slices.SortedFunc(slices.Values(l.groups), func(a, b committed) int { return cmp.Compare(a.sequence, b.sequence) })
	for i := 1; i < len(groups); i++ { // nobody else writes
		if groups[i].sequence != groups[i-1].sequence+1 {
			v.find(&v.wrong, "the writers of %s and %s were told %d and %d", groups[i-1].key, groups[i].key, groups[i-1].sequence, groups[i].sequence)
		}
	}
	for i := range followers {
		v.follower(groups, &followers[i])
	}
	return v
}

func (v *verdict) follower(groups []committed, h *held) {
	rows := map[string]seen{} // the model: present rows of the shelf
	behind := 0
	for behind < len(groups) && groups[behind].sequence <= h.w {
		groups[behind].show(h.shelf, rows)
		behind++
	}
	v.snapshot(h, rows)
	live := h.live
	for _, g := range groups[behind:] {
		want := g.show(h.shelf, rows)
		if len(want) == 0 {
			continue
		}
		for len(live) > 0 && live[0].sequence < g.sequence {
			v.stray(h, groups, live[0])
			live = live[1:]
		}
		switch {
		case len(live) == 0 || live[0].sequence != g.sequence:
			v.find(&v.lost, "%s: %s at %d is missing", h.name, g.key, g.sequence)
			continue
		case !slices.Equal(live[0].observations, want):
			v.find(&v.wrong, "%s: %s at %d is %v, not %v", h.name, g.key, g.sequence, live[0].observations, want)
		default:
			v.delivered++
		}
		live = live[1:]
	}
	for _, r := range live {
		v.stray(h, groups, r)
	}
	want := slices.Sorted(maps.Keys(rows))
	for _, txid := range want {
		if _, ok := slices.BinarySearch(h.present, txid); !ok {
			v.find(&v.lost, "%s: the row %s is missing", h.name, txid)
		}
	}
	for i, txid := range h.present {
		switch {
		case i > 0 && txid == h.present[i-1]:
			v.find(&v.doubled, "%s: the row %s is there twice", h.name, txid)
		case rows[txid] == (seen{}):
			v.find(&v.wrong, "%s: the row %s should not be there", h.name, txid)
		}
	}
}

// stray is a live group that is not what comes next.
func (v *verdict) stray(h *held, groups []committed, r received) {
	at, known := slices.BinarySearchFunc(groups, r.sequence, func(g committed, s uint64) int { return cmp.Compare(g.sequence, s) })
	if known && r.sequence > h.w && len(groups[at].show(h.shelf, map[string]seen{})) > 0 {
		v.find(&v.doubled, "%s: %d came again", h.name, r.sequence)
		return
	}
	v.find(&v.wrong, "%s: %d came, which is not for it", h.name, r.sequence)
}

func (v *verdict) snapshot(h *held, rows map[string]seen) {
	found := map[string]bool{}
	for _, r := range h.snapshot {
		for _, o := range r.observations {
			switch {
			case found[o.txid]:
				v.find(&v.doubled, "%s: the snapshot has the row %s twice", h.name, o.txid)
			case rows[o.txid] != o:
				v.find(&v.wrong, "%s: the snapshot at %d has %v, which was then %v", h.name, h.w, o, rows[o.txid])
			}
			found[o.txid] = true
		}
	}
	for txid := range rows {
		if !found[txid] {
			v.find(&v.lost, "%s: the snapshot at %d lacks the row %s", h.name, h.w, txid)
		}
	}
}

// show applies the group to rows and returns what a shelf sees of it.
func (g *committed) show(shelf string, rows map[string]seen) (out []seen) {
	for i := range g.edits {
		e := &g.edits[i]
		if shelf != "" && !slices.Contains(e.shelves, shelf) {
			continue
		}
		txid := e.txid()
		if e.withdraw {
			delete(rows, txid)
			out = append(out, seen{kind: wire.KindWithdraw, txid: txid, reason: withdrawn})
			continue
		}
		rows[txid] = seen{kind: wire.KindOutput, txid: txid, mark: e.mark}
		out = append(out, rows[txid])
	}
	return out
}

// TestN6_TheJudge is satisfied with an honest state, and with none of those that have one fault.
func TestN6_TheJudge(t *testing.T) {
	t.Parallel()
	put := func(row, shelf, mark string) edit { return edit{row: row, shelves: []string{shelf}, mark: mark} }
	l := &ledger{}
	for i, edits := range [][]edit{
		{put("r1", "a", "1"), put("r2", "b", "1")},
		{put("r3", "a", "1")},
		{put("r1", "a", "2")},
		{put("r4", "b", "1")},
		{put("r5", "a", "1"), put("r5", "a", "2")},
		{{withdraw: true, row: "r3", shelves: []string{"a"}}},
	} {
		l.note(committed{uint64(i + 1), fmt.Sprint("key-", i), edits}, false)
	}
	honest := func() held {
		h := held{name: "follower", shelf: "a", w: 2}
		rows := map[string]seen{}
		for _, g := range l.groups {
			saw := g.show("a", rows)
			if g.sequence == h.w {
				for _, row := range rows {
					h.snapshot = append(h.snapshot, received{g.sequence, []seen{row}})
				}
			}
			if g.sequence > h.w && len(saw) > 0 {
				h.live = append(h.live, received{g.sequence, saw})
			}
		}
		h.present = slices.Sorted(maps.Keys(rows))
		return h
	}
	if v := l.judge(honest()); !v.clean() || v.delivered != 3 {
		t.Fatalf("an honest state: %+v", v)
	}
	for name, c := range map[string]struct {
		fault                func(h *held)
		lost, doubled, wrong int
	}{
		"a group is skipped":              {func(h *held) { h.live = slices.Delete(h.live, 1, 2) }, 1, 0, 0},
		"the last group is missing":       {func(h *held) { h.live = h.live[:2] }, 1, 0, 0},
		"a group comes again at once":     {func(h *held) { h.live = slices.Insert(h.live, 1, h.live[0]) }, 0, 1, 0},
		"a group comes again later":       {func(h *held) { h.live = append(h.live, h.live[0]) }, 0, 1, 0},
		"another shelf's group":           {func(h *held) { h.live = slices.Insert(h.live, 1, received{4, nil}) }, 0, 0, 1},
		"a group of nobody's":             {func(h *held) { h.live = append(h.live, received{7, nil}) }, 0, 0, 1},
		"a group is torn":                 {func(h *held) { h.live[1].observations = h.live[1].observations[:1] }, 0, 0, 1},
		"two groups change places":        {func(h *held) { h.live[0], h.live[1] = h.live[1], h.live[0] }, 1, 1, 0},
		"a group of the snapshot is live": {func(h *held) { h.live = slices.Insert(h.live, 0, received{2, nil}) }, 0, 0, 1},
		"the snapshot lacks a row":        {func(h *held) { h.snapshot = h.snapshot[1:] }, 1, 0, 0},
		"the snapshot has a row twice":    {func(h *held) { h.snapshot = append(h.snapshot, h.snapshot[0]) }, 0, 1, 0},
		"the snapshot has a later row":    {func(h *held) { h.snapshot[0].observations[0].mark = "later" }, 0, 0, 1},
		"a row is missing at the end":     {func(h *held) { h.present = h.present[1:] }, 1, 0, 0},
		"a row too many at the end":       {func(h *held) { h.present = append(h.present, "zz") }, 0, 0, 1},
		"a row is there twice at the end": {func(h *held) { h.present = append(h.present[:1], h.present...) }, 0, 1, 0},
	} {
		h := honest()
		c.fault(&h)
		if v := l.judge(h); v.lost != c.lost || v.doubled != c.doubled || v.wrong != c.wrong {
			t.Errorf("%s: lost %d, doubled %d, wrong %d: %q", name, v.lost, v.doubled, v.wrong, v.words)
		}
	}
	l.groups = slices.Delete(l.groups, 3, 4)
	if v := l.judge(); v.wrong != 1 {
		t.Errorf("a sequence that nobody was told of: %+v", v)
	}
}
