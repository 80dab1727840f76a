package model_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// state is what one version of a row says.
type state struct {
	evidence int // which of the coin's two BEEFs
	artist   []string
	genre    []string
	order    string
	context  int // which of the contexts; 0: none
	expires  uint64
	readers  []int // persons; nil: everyone
	hidden   bool
}

func (s *state) same(o *state) bool {
	return s.listed(o) && slices.Equal(s.artist, o.artist) && slices.Equal(s.genre, o.genre) && slices.Equal(s.readers, o.readers) &&
		(s.readers == nil) == (o.readers == nil) && s.hidden == o.hidden
}

// listed reports whether what an output says of the row is the same.
func (s *state) listed(o *state) bool {
	return s.evidence == o.evidence && s.context == o.context && s.order == o.order && s.expires == o.expires
}

type opcode int

const (
	put opcode = iota
	spend
	withdraw
	invalidate
	expire
)

// edit is one proposed edit.
type edit struct {
	op     opcode
	point  int // of the coins: coin point/2, output point%2
	state  *state
	reason string
	by     int // which of the two spenders
}

// change is one committed edit.
type change struct {
	edit
	before, after *state
}

type group []change

// version is one version of a row: there from sequence from on, until to.
type version struct {
	point    int
	state    *state
	from, to uint64
}

const still = math.MaxUint64

// world is the feed as it must be.
type world struct {
	coins      []*coin
	t          uint64
	epoch      string
	turn       int
	broken     int
	groups     []group // sequence 1 is the first
	rows       map[int]*version
	versions   []*version
	prohibited map[int]bool
	audience   map[int][]int // who may read what was put last; nil: everyone
	keys       map[string]known
	keyList    []string
	sessions   []*session
	grants     map[int]int // person -> grant
	granted    int         // grants given so far
	rotations  []rotation
	floor      uint64
}

type known struct {
	body string
	seq  uint64
}

func (w *world) head() uint64 { return uint64(len(w.groups)) }

// order compares rows as snapshots list them.
func (w *world) order(a, b *version) int {
	return cmp.Or(strings.Compare(a.state.order, b.state.order),
		bytes.Compare(w.coins[a.point/2].txid[:], w.coins[b.point/2].txid[:]), cmp.Compare(a.point, b.point))
}

// due are the rows whose deadline has come, in the order in which they expire.
func (w *world) due(points func(int) bool) []*version {
	var due []*version
	for p, v := range w.rows {
		if v.state.expires != 0 && v.state.expires <= w.t && points(p) {
			due = append(due, v)
		}
	}
	slices.SortFunc(due, func(a, b *version) int { return cmp.Or(cmp.Compare(a.state.expires, b.state.expires), w.order(a, b)) })
	return due
}

// expire logs the end of each, as a group of its own.
func (w *world) expire(due []*version) {
	for _, v := range due {
		w.groups = append(w.groups, group{{edit: edit{op: expire, point: v.point}, before: w.remove(v.point, w.head()+1)}})
	}
}

// drain is what happens before anything claims to be complete.
func (w *world) drain() { w.expire(w.due(func(int) bool { return true })) }

func (w *world) remove(point int, seq uint64) *state {
	v := w.rows[point]
	if v == nil {
		return nil
	}
	v.to = seq
	delete(w.rows, point)
	return v.state
}

func (w *world) set(point int, s *state, seq uint64) {
	w.remove(point, seq)
	v := &version{point: point, state: s, from: seq, to: still}
	w.rows[point] = v
	w.versions = append(w.versions, v)
}

func (w *world) now(point int) *state {
	if v := w.rows[point]; v != nil {
		return v.state
	}
	return nil
}

// verdicts on a proposed group.
type verdict int

const (
	accepted verdict = iota
	replayed
	conflicting
	faulty
	oversized
)

func (v verdict) String() string {
	return [...]string{"accepted", "replayed", "conflict", "invalid", "limited"}[v]
}

// append commits a group, unless it must be refused.
func (w *world) append(key, body string, edits []edit) (verdict, uint64) {
	if k, ok := w.keys[key]; ok {
		if k.body != body {
			return conflicting, 0
		}
		return replayed, k.seq
	}
	observations := 0
	touched := map[int]bool{}
	for _, e := range edits {
		if e.op == put && (e.state.expires != 0 && e.state.expires <= w.t || e.state.readers != nil && len(e.state.readers) == 0) {
			return faulty, 0
		}
		observations++
		if e.op == spend {
			observations++
		}
		if e.op != invalidate {
			touched[e.point] = true
		}
	}
	if observations > leastObservations {
		return oversized, 0
	}
	w.expire(w.due(func(p int) bool { return touched[p] }))
	seq := w.head() + 1
	var g group
	for _, e := range edits {
		c := change{edit: e}
		switch e.op {
		case put:
			c.before = w.now(e.point)
			s := *e.state
			s.hidden = w.prohibited[e.point]
			c.after = &s
			w.audience[e.point] = s.readers
			if c.before != nil && c.before.same(&s) {
				c.after = c.before
			} else {
				w.set(e.point, c.after, seq)
			}
		case spend, withdraw:
			c.before = w.remove(e.point, seq)
		}
		g = append(g, c)
	}
	w.groups = append(w.groups, g)
	w.keys[key] = known{body, seq}
	w.keyList = append(w.keyList, key)
	return accepted, seq
}

// rule prohibits a row or allows it again, and reports whether that is news.
func (w *world) rule(point int, allow bool) bool {
	if w.prohibited[point] != allow {
		return false
	}
	w.prohibited[point] = !allow
	w.expire(w.due(func(p int) bool { return p == point }))
	before := w.now(point)
	if before == nil || before.hidden != allow {
		return true
	}
	after := *before
	after.hidden = !allow
	seq := w.head() + 1
	w.set(point, &after, seq)
	w.groups = append(w.groups, group{{edit: edit{op: put, point: point}, before: before, after: &after}})
	return true
}

// retained is how many row versions are needed by whoever reads from floor on.
func (w *world) retained(floor uint64) int {
	n := 0
	for _, v := range w.versions {
		if v.from < v.to && v.to > floor {
			n++
		}
	}
	return n
}

// query is one of the queries that the test asks.
type query struct {
	text          string
	artist, genre string
}

var queries = []query{
	{text: `{}`},
	{text: `{"match":{"artist":"a"}}`, artist: "a"},
	{text: `{"match":{"genre":"x"}}`, genre: "x"},
	{text: `{"match":{"artist":"b","genre":"x"}}`, artist: "b", genre: "x"},
}

// sees reports whether a row in this state belongs to what the session shows.
func (s *session) sees(st *state) bool {
	if st == nil || st.hidden || !s.mayRead(st) {
		return false
	}
	return (s.query.artist == "" || slices.Contains(st.artist, s.query.artist)) && (s.query.genre == "" || slices.Contains(st.genre, s.query.genre))
}

func (s *session) mayRead(st *state) bool {
	return st.readers == nil || s.who >= 0 && slices.Contains(st.readers, s.who)
}

// snapshot is S: the groups up to W, folded, as they look to the session at its T.
func (w *world) snapshot(s *session) []*version {
	var rows []*version
	for _, v := range w.versions {
		if v.from <= s.w && v.to > s.w && s.sees(v.state) && (v.state.expires == 0 || v.state.expires > s.t) {
			rows = append(rows, v)
		}
	}
	slices.SortFunc(rows, w.order)
	return rows
}

// fact is one observation in the model's words.
type fact struct {
	kind   string
	point  int
	state  *state // output
	by     int    // spend
	reason string
}

// observe says what a group means to a session, edit after edit.
func (s *session) observe(g group) []fact {
	var facts []fact
	for _, c := range g {
		if c.op == invalidate {
			facts = append(facts, fact{kind: "assessment-invalidated", reason: c.reason})
			continue
		}
		before, after := s.sees(c.before), s.sees(c.after)
		switch {
		case !before && after, before && after && !c.before.listed(c.after):
			facts = append(facts, fact{kind: "output", point: c.point, state: c.after})
		case before && !after:
			reason := c.reason
			switch {
			case c.op == spend:
				facts = append(facts, fact{kind: "spend", point: c.point, by: c.by})
				reason = "spent"
			case c.op == expire:
				reason = "expired"
			case c.op == withdraw:
			case c.after.hidden:
				reason = "prohibited"
			case !s.mayRead(c.after):
				reason = "audience"
			default:
				reason = "changed"
			}
			facts = append(facts, fact{kind: "withdraw", point: c.point, reason: reason})
		}
	}
	return facts
}

func (s *state) String() string {
	if s == nil {
		return "nothing"
	}
	return fmt.Sprintf("{evidence %d artist %q genre %q order %q context %d expires %d readers %v hidden %v}",
		s.evidence, s.artist, s.genre, s.order, s.context, s.expires, s.readers, s.hidden)
}
