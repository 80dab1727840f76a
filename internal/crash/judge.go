package crash

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// Judge returns every finding. Call it when no writer or reader runs any more.
func (l *Ledger) Judge() []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken.IsZero() {
		l.faults = append(l.faults, span{l.broken, time.Now()})
		l.broken = time.Time{}
	}
	j := &judgement{Ledger: l, system: map[uint64]observed{}, ids: map[identity]*wire.Group{}}
	j.identities()
	j.learn()
	j.states()
	for _, s := range l.sessions {
		j.late(s)
	}
	return l.findings
}

// Groups is the number of acknowledged groups.
func (l *Ledger) Groups() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.groups)
}

// Batches is the number of sessions opened and of groups delivered live.
func (l *Ledger) Batches() (sessions, groups int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if s.opened {
			sessions++
		}
		groups += len(s.live)
	}
	return sessions, groups
}

type identity struct {
	scope wire.Scope
	key   string // "id" and the group's id, or "seq" and its sequence
}

type judgement struct {
	*Ledger
	system map[uint64]observed // expiries and prohibitions, as seen by readers of every row
	ids    map[identity]*wire.Group
}

// identities: within a scope an id and a sequence stand for one group and its bytes (X6).
func (j *judgement) identities() {
	for _, s := range j.sessions {
		own := map[string]bool{}
		for i := range s.snapshot {
			g := &s.snapshot[i]
			if own[g.ID] {
				j.find(Doubled, "%s: the snapshot at %d holds the id %s twice", s.Name, s.w, g.ID)
			}
			own[g.ID] = true
		}
		for i := range s.live {
			g := &s.live[i]
			if own[g.ID] {
				j.find(Unstable, "%s: the id %s is in the snapshot and in the log", s.Name, g.ID)
			}
			for _, key := range []string{"id " + g.ID, fmt.Sprint("seq ", g.Sequence)} {
				at := identity{s.scope, key}
				if first := j.ids[at]; first == nil {
					j.ids[at] = g
				} else if !sameGroup(first, g) {
					j.find(Unstable, "%s: group %d (%s) is not what it was in another session", s.Name, g.Sequence, g.ID)
				}
			}
		}
	}
}

// learn finds the sequences that nobody ordered, from the readers that see every row (X5).
func (j *judgement) learn() {
	for _, s := range j.sessions {
		if len(s.Query) > 0 {
			continue
		}
		for i := range s.live {
			g := &s.live[i]
			if j.groups[g.Sequence] != nil {
				continue
			}
			o := observed{}
			if len(g.Observations) == 1 {
				o = observedOf(&g.Observations[0])
			}
			prohibited := len(j.forbidden[o.outpoint]) > 0 && (o.reason == "prohibited" || o.kind == wire.KindOutput)
			if o.reason != "expired" && !prohibited {
				j.find(Doubled, "%s: group %d was delivered, and nobody was told that it was appended: %s", s.Name, g.Sequence, told(g))
				continue
			}
			j.system[g.Sequence] = o
		}
	}
}

func told(g *wire.Group) string {
	text := ""
	for i := range g.Observations {
		o := observedOf(&g.Observations[i])
		text += fmt.Sprintf("[%s %.8s.%d %s]", o.kind, o.outpoint.TxID, o.outpoint.Index, o.reason)
	}
	return text
}

// states folds the log once and judges every session from its watermark on.
func (j *judgement) states() {
	list := slices.Clone(j.sessions)
	list = slices.DeleteFunc(list, func(s *Session) bool { return !s.opened })
	slices.SortStableFunc(list, func(a, b *Session) int { return int(int64(a.w) - int64(b.w)) })
	order := slices.Sorted(maps.Keys(j.groups))
	for s := range maps.Keys(j.system) {
		order = append(order, s)
	}
	slices.Sort(order)
	now := rows{}
	next := 0
	for _, s := range list {
		for next < len(order) && order[next] <= s.w {
			j.fold(now, order[next])
			next++
		}
		state := now.at(s.t)
		j.snapshot(s, state)
		j.live(s, state, order[next:])
	}
	// An acknowledged sequence above every watermark that was ever told is not lost yet, but one that no reader of every
	// row has come to cannot be vouched for either.
	var seen uint64
	for _, s := range list {
		if len(s.Query) == 0 {
			seen = max(seen, s.through)
		}
	}
	if len(order) > 0 && order[len(order)-1] > seen {
		j.find(Lost, "groups up to %d were acknowledged, and the last reader saw %d", order[len(order)-1], seen)
	}
}

// fold applies one group to the rows.
func (j *judgement) fold(state rows, sequence uint64) {
	if g := j.groups[sequence]; g != nil {
		for i := range g.edits {
			state.apply(&g.edits[i], nil)
		}
		return
	}
	if o := j.system[sequence]; o.reason == "expired" {
		delete(state, o.outpoint)
	}
}

// strict drops the observations of rows that are ever prohibited.
func (j *judgement) strict(list []observed) []observed {
	return slices.DeleteFunc(list, func(o observed) bool { return len(j.forbidden[o.outpoint]) > 0 })
}

func delivered(g *wire.Group) []observed {
	var list []observed
	for i := range g.Observations {
		list = append(list, observedOf(&g.Observations[i]))
	}
	return list
}

// snapshot judges the pages (X7).
func (j *judgement) snapshot(s *Session, state rows) {
	var want, got []observed
	for _, e := range state.snapshot(s.Query) {
		want = append(want, outputOf(e))
	}
	for i := range s.snapshot {
		if n := len(s.snapshot[i].Observations); n != 1 {
			j.find(Snapshot, "%s: a snapshot group at %d has %d observations", s.Name, s.w, n)
		}
		got = append(got, delivered(&s.snapshot[i])...)
	}
	want, got = j.strict(want), j.strict(got)
	if !s.complete && len(got) < len(want) {
		want = want[:len(got)]
	}
	if len(got) != len(want) {
		j.find(Snapshot, "%s: the snapshot at %d holds %d rows, the model %d%s", s.Name, s.w, len(got), len(want), difference(got, want))
		return
	}
	for i := range got {
		if !got[i].same(want[i]) {
			j.find(Snapshot, "%s: row %d of the snapshot at %d is %.8s.%d, in the model %.8s.%d", s.Name, i, s.w,
				got[i].outpoint.TxID, got[i].outpoint.Index, want[i].outpoint.TxID, want[i].outpoint.Index)
			return
		}
	}
}

func difference(got, want []observed) string {
	text := ""
	for _, side := range []struct {
		what       string
		have, lack []observed
	}{{"missing", want, got}, {"too many", got, want}} {
		for _, o := range side.have {
			if !slices.ContainsFunc(side.lack, func(p observed) bool { return p.outpoint == o.outpoint }) {
				text += fmt.Sprintf(", %s %.8s.%d", side.what, o.outpoint.TxID, o.outpoint.Index)
			}
		}
	}
	return text
}

// live judges what came after the snapshot, sequence by sequence (X5).
func (j *judgement) live(s *Session, state rows, order []uint64) {
	got := map[uint64]*wire.Group{}
	for i := range s.live {
		got[s.live[i].Sequence] = &s.live[i]
	}
	known := map[uint64]bool{}
	certain := true
	last := s.w
	for _, sequence := range order {
		if sequence > s.through {
			break
		}
		for gap := last + 1; gap < sequence; gap++ {
			j.unknown(s, gap, got, &certain)
		}
		last = sequence
		known[sequence] = true
		var want []observed
		touched := false
		if g := j.groups[sequence]; g != nil {
			for i := range g.edits {
				before := state[g.edits[i].Outpoint]
				touched = touched || before != nil && before.ExpiresAt > 0
				want = append(want, state.apply(&g.edits[i], s.Query)...)
			}
		} else if o := j.system[sequence]; o.reason == "expired" {
			before := state[o.outpoint]
			if before == nil || before.ExpiresAt == 0 || before.ExpiresAt > uint64(time.Now().Unix()) {
				if certain {
					j.find(Doubled, "%s: group %d is the expiry of a row that was not there to expire", s.Name, sequence)
				}
			} else if delete(state, o.outpoint); s.Query.matches(before) {
				want = append(want, o)
			}
		} else {
			continue // of a prohibited row
		}
		var have []observed
		if g := got[sequence]; g != nil {
			have = delivered(g)
		}
		want, have = j.strict(want), j.strict(have)
		if !slices.EqualFunc(have, want, observed.same) && (certain || !touched) {
			kind := Lost
			if len(have) > len(want) {
				kind = Doubled
			}
			j.find(kind, "%s (W %d, through %d): group %d should be %s and is %s", s.Name, s.w, s.through, sequence, tell(want), tell(have))
		}
	}
	for gap := last + 1; gap <= s.through; gap++ {
		j.unknown(s, gap, got, &certain)
	}
	for sequence := range got {
		if sequence <= s.w || sequence > s.through {
			j.find(Order, "%s: group %d is outside of what was read, %d to %d", s.Name, sequence, s.w, s.through)
		}
	}
}

// unknown judges a sequence of which nobody told: to a reader of every row there is none.
func (j *judgement) unknown(s *Session, sequence uint64, got map[uint64]*wire.Group, certain *bool) {
	*certain = false
	if j.Sparse {
		return
	}
	switch g := got[sequence]; {
	case len(s.Query) == 0 && g == nil:
		j.find(Lost, "%s (W %d, through %d): nothing came at sequence %d", s.Name, s.w, s.through, sequence)
	case len(s.Query) > 0 && g != nil:
		if len(g.Observations) != 1 || observedOf(&g.Observations[0]).reason != "expired" {
			j.find(Doubled, "%s: group %d was delivered, and nobody was told that it was appended: %s", s.Name, sequence, told(g))
		}
	}
}

func tell(list []observed) string {
	if len(list) == 0 {
		return "nothing"
	}
	text := ""
	for _, o := range list {
		text += fmt.Sprintf("[%s %.8s.%d %s]", o.kind, o.outpoint.TxID, o.outpoint.Index, o.reason)
	}
	return text
}

// late judges how fast polls were answered (X9).
func (j *judgement) late(s *Session) {
	for _, p := range s.polls {
		g := j.groups[p.first]
		if g == nil {
			continue
		}
		from := g.at
		if p.asked.After(from) {
			from = p.asked
		}
		took := p.answered.Sub(from)
		if took > LatestWake && !j.disturbed(p.asked, p.answered) {
			j.find(Late, "%s: group %d was acknowledged and the waiting poll answered %s later", s.Name, p.first, took.Round(time.Millisecond))
		}
	}
}

func (j *judgement) disturbed(from, to time.Time) bool {
	return slices.ContainsFunc(j.faults, func(f span) bool { return f.from.Before(to) && f.to.After(from) })
}
