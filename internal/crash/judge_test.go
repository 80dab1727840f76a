package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// life is the sessionSeconds of the tests' service.
const life = 60

func point(n int) Outpoint { return Outpoint{TxID: fmt.Sprintf("%064d", n)} }

func put(n int, kind, context string) Edit {
	return Edit{Op: Put, Outpoint: point(n), Attributes: map[string]string{"kind": kind}, Order: fmt.Sprintf("%02d", n), Context: []byte(context), BEEF: []byte{byte(n)}}
}

// observation is how a provider writes what is observed; scope is part of it.
func observation(id string, o observed) wire.Observation {
	out := wire.Observation{ID: id, Kind: o.kind, Canonical: fmt.Append(nil, id, o)}
	at := wire.Outpoint{TxID: o.outpoint.TxID, OutputIndex: o.outpoint.Index}
	switch o.kind {
	case wire.KindOutput:
		out.Output = &wire.Output{Evidence: wire.Evidence{TxID: at.TxID, OutputIndex: at.OutputIndex, BEEF: o.beef}, Context: &wire.Context{Bytes: o.context}}
	case wire.KindSpend:
		out.Spend = &wire.Spend{Previous: at, SpendingTxID: o.spending, BEEF: o.beef}
	case wire.KindWithdraw:
		out.Withdraw = &wire.Withdraw{Outpoint: at, Reason: o.reason}
	case wire.KindInvalidated:
		out.Invalidated = &wire.Invalidated{ContextID: o.contextID, Reason: o.reason}
	}
	return out
}

func group(sequence uint64, list ...observed) wire.Group {
	g := wire.Group{ID: fmt.Sprint("live-", sequence), Sequence: sequence}
	for i, o := range list {
		g.Observations = append(g.Observations, observation(fmt.Sprint(g.ID, ".", i), o))
	}
	return g
}

// history is what happened: four groups, then the expiry of a row, then one more.
type history struct {
	*Ledger
	now uint64
	log map[uint64][]Edit // acknowledged
}

func newHistory() *history {
	now := uint64(time.Now().Unix())
	h := &history{Ledger: NewLedger(), now: now}
	expiring := put(3, "a", "three")
	expiring.ExpiresAt = now - 1
	h.log = map[uint64][]Edit{
		1: {put(1, "a", "one"), put(2, "b", "two")},
		2: {expiring},
		3: {{Op: Spend, Outpoint: point(1), SpendingTxID: "ff", BEEF: []byte{9}}, put(4, "a", "four")},
		4: {put(2, "a", "two again")},
		// 5 is the expiry of row 3.
		6: {{Op: Withdraw, Outpoint: point(4), Reason: "evicted"}, {Op: Invalidate, ContextID: "c", Reason: "old"}},
	}
	return h
}

const expiry = 5

func (h *history) acknowledge() {
	for sequence, edits := range h.log {
		h.Acknowledge(fmt.Sprint("key-", sequence), sequence, edits)
	}
}

// truth is what a query observes at each sequence after w.
func (h *history) truth(q Query, w uint64) (snapshot []observed, live map[uint64][]observed) {
	state := rows{}
	live = map[uint64][]observed{}
	for sequence := uint64(1); sequence <= 6; sequence++ {
		if sequence == w+1 {
			for _, e := range state.snapshot(q) {
				snapshot = append(snapshot, outputOf(e))
			}
		}
		var list []observed
		if sequence == expiry {
			gone := Edit{Op: Withdraw, Outpoint: point(3), Reason: "expired"}
			list = state.apply(&gone, q)
		}
		edits := h.log[sequence]
		for i := range edits {
			list = append(list, state.apply(&edits[i], q)...)
		}
		if len(list) > 0 && sequence > w {
			live[sequence] = list
		}
	}
	return snapshot, live
}

// account is a session that is about to be recorded: what an honest provider would deliver, to be bent by a test.
type account struct {
	name    string
	query   Query
	w       uint64
	pages   []observed
	groups  []wire.Group
	through uint64
	scope   wire.Scope
	late    time.Duration // how much later than the acknowledgements the poll was answered
}

func (h *history) honest(name string, q Query, w uint64) *account {
	snapshot, live := h.truth(q, w)
	s := &account{name: name, query: q, w: w, pages: snapshot, through: 6, scope: wire.Scope{QueryDigest: fmt.Sprint(q)}}
	for sequence := w + 1; sequence <= 6; sequence++ {
		if list := live[sequence]; list != nil {
			s.groups = append(s.groups, group(sequence, list...))
		}
	}
	return s
}

// deliver records the session: one page, one live batch.
func (h *history) deliver(s *account) *Session {
	record := h.Begin(s.name, s.query, life)
	first := &wire.Batch{Scope: s.scope, Phase: wire.PhaseSnapshot, SnapshotComplete: true, Through: s.w, HighWater: 6, ExpiresAt: h.now - 10 + life}
	for i, o := range s.pages {
		g := group(s.w, o)
		g.ID = fmt.Sprint(s.name, "-page-", i)
		first.Groups = append(first.Groups, g)
	}
	record.Opened(first)
	live := &wire.Batch{Scope: s.scope, Phase: wire.PhaseLive, SnapshotComplete: true, Through: s.through, HighWater: 6, ExpiresAt: first.ExpiresAt, Groups: s.groups}
	record.Delivered(live, time.Now().Add(-time.Minute))
	h.mu.Lock()
	record.polls[0].answered = record.polls[0].answered.Add(s.late)
	h.mu.Unlock()
	return record
}

// judged is the kinds that the judge finds, after an honest reader of every row and one that bend changed.
func judged(t *testing.T, bend func(h *history, s *account)) []Finding {
	t.Helper()
	h := newHistory()
	h.acknowledge()
	h.deliver(h.honest("honest", nil, 0))
	s := h.honest("bent", nil, 1)
	bend(h, s)
	h.deliver(s)
	return h.Judge()
}

func wants(t *testing.T, found []Finding, kinds ...Kind) {
	t.Helper()
	for _, f := range found {
		ok := false
		for _, k := range kinds {
			ok = ok || f.Kind == k
		}
		if !ok {
			t.Errorf("not asked for: %s", f)
		}
	}
	for _, k := range kinds {
		if !strings.Contains(fmt.Sprint(found), string(k)+": ") {
			t.Errorf("nothing is %s: %v", k, found)
		}
	}
}

func TestX5_AnHonestHistoryHasNoFinding(t *testing.T) {
	t.Parallel()
	for _, q := range []Query{nil, {"kind": "a"}, {"kind": "b"}} {
		for w := range uint64(6) {
			h := newHistory()
			h.acknowledge()
			h.deliver(h.honest("every", nil, 0))
			h.deliver(h.honest("some", q, w))
			wants(t, h.Judge())
		}
	}
}

func TestX4_LostAndDoubledGroups(t *testing.T) {
	t.Parallel()
	// Acknowledged at a sequence at which another one is.
	h := newHistory()
	h.acknowledge()
	h.Acknowledge("another", 3, nil)
	h.deliver(h.honest("every", nil, 0))
	wants(t, h.Judge(), Lost)
	// Acknowledged twice.
	h = newHistory()
	h.acknowledge()
	h.Acknowledge("key-3", 7, h.log[3])
	h.deliver(h.honest("every", nil, 0))
	wants(t, h.Judge(), Doubled)
	// Acknowledged, and nobody ever came to it.
	h = newHistory()
	h.acknowledge()
	h.Acknowledge("key-7", 7, []Edit{put(7, "a", "seven")})
	h.deliver(h.honest("every", nil, 0))
	wants(t, h.Judge(), Lost)
	// Delivered, and nobody was told that it was appended.
	wants(t, judged(t, func(h *history, s *account) {
		s.groups, s.through = append(s.groups, group(7, outputOf(&h.log[1][0]))), 7
	}), Doubled)
}

func TestX5_GroupsInOrderWholeAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		bend  func(h *history, s *account)
		kinds []Kind
	}{
		"a group is missing":         {func(_ *history, s *account) { s.groups = append(s.groups[:1:1], s.groups[2:]...) }, []Kind{Lost}},
		"the last one is missing":    {func(_ *history, s *account) { s.groups = s.groups[:len(s.groups)-1] }, []Kind{Lost}},
		"an observation is missing":  {func(_ *history, s *account) { s.groups[1].Observations = s.groups[1].Observations[:1] }, []Kind{Lost, Unstable}},
		"a group is of another one":  {func(_ *history, s *account) { s.groups[1].Observations = s.groups[2].Observations }, []Kind{Lost, Unstable}},
		"a group is delivered again": {func(_ *history, s *account) { s.groups = append(s.groups, group(1, outputOf(new(put(1, "a", "one"))))) }, []Kind{Order, Unstable}},
		"an observation comes on top": {func(h *history, s *account) {
			s.groups[2].Observations = append(s.groups[2].Observations, s.groups[1].Observations[0])
		}, []Kind{Doubled, Unstable}},
		"through falls":                  {func(_ *history, s *account) { s.through, s.groups = 0, nil }, []Kind{Order}},
		"a sequence that nobody ordered": {func(_ *history, s *account) { s.through = 9 }, []Kind{Lost}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wants(t, judged(t, one.bend), one.kinds...)
		})
	}
}

func TestX5_ASparseReaderMissesNothing(t *testing.T) {
	t.Parallel()
	for name, bend := range map[string]func(s *account){
		"the withdraw of an expiry": func(s *account) { s.groups = append(s.groups[:2:2], s.groups[3:]...) },
		"a row that leaves":         func(s *account) { s.groups = s.groups[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory()
			h.acknowledge()
			h.deliver(h.honest("every", nil, 0))
			s := h.honest("sparse", Query{"kind": "a"}, 2)
			if len(s.groups) != 4 {
				t.Fatalf("%d groups", len(s.groups))
			}
			bend(s)
			h.deliver(s)
			wants(t, h.Judge(), Lost)
		})
	}
}

func TestX6_WhatWasReadReadsTheSame(t *testing.T) {
	t.Parallel()
	wants(t, judged(t, func(_ *history, s *account) { s.groups[0].ID = "another" }), Unstable)
	h := newHistory()
	h.acknowledge()
	s := h.honest("every", nil, 0)
	r := h.deliver(s)
	whole := &wire.Batch{Phase: wire.PhaseLive, Groups: s.groups, Limits: wire.Limits{MaxObservations: 9}}
	r.Again(whole, &wire.Batch{Phase: wire.PhaseLive, Groups: s.groups[:2], Limits: wire.Limits{MaxObservations: 2}})
	r.Reopened([]byte("a body"), []byte("a body"))
	wants(t, h.Judge())
	r.Again(whole, &wire.Batch{Phase: wire.PhaseLive, Groups: s.groups[:2], Limits: wire.Limits{MaxObservations: 9}})
	r.Reopened([]byte("a body"), []byte("a bodY"))
	if found := h.Judge(); len(found) != 2 {
		t.Errorf("a shorter answer and another body: %v", found)
	}
}

func TestX7_SnapshotsAreTheModel(t *testing.T) {
	t.Parallel()
	for name, bend := range map[string]func(h *history, s *account){
		"a row is missing":     func(_ *history, s *account) { s.pages = s.pages[:1] },
		"a row is twice there": func(_ *history, s *account) { s.pages = append(s.pages, s.pages[0]) },
		"another order":        func(_ *history, s *account) { s.pages[0], s.pages[1] = s.pages[1], s.pages[0] },
		"of another time": func(h *history, s *account) {
			s.pages, _ = h.truth(nil, 4)
		},
		"a row that had expired at T": func(h *history, s *account) {
			*s = *h.honest("bent", nil, 4)
			s.pages = append(s.pages, outputOf(&h.log[2][0]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wants(t, judged(t, bend), Snapshot)
		})
	}
}

func TestX8_SessionsEndWhenTheyMay(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		then func(h *history, s *Session)
		want int
	}{
		"within its promise":       {func(_ *history, s *Session) { s.Refused(wire.ResetRequired) }, 1},
		"expired too early":        {func(_ *history, s *Session) { s.Refused(wire.Expired) }, 1},
		"behind its deadline":      {func(h *history, s *Session) { s.expires = h.now - 1; s.Refused(wire.ResetRequired) }, 0},
		"closed":                   {func(_ *history, s *Session) { s.End(); s.Refused(wire.Expired) }, 0},
		"a prohibition meanwhile":  {func(h *history, s *Session) { h.Forbid(point(1), false)(); s.Refused(wire.ResetRequired) }, 0},
		"unauthorized is no reset": {func(h *history, s *Session) { h.Forbid(point(1), false)(); s.Refused(wire.Unauthorized) }, 1},
		"a break meanwhile":        {func(h *history, s *Session) { h.Void()(); s.Refused(wire.ResetRequired) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory()
			h.acknowledge()
			one.then(h, h.deliver(h.honest("every", nil, 0)))
			if found := h.Judge(); len(found) != one.want {
				t.Errorf("%v", found)
			}
		})
	}
	// Served behind a break.
	h := newHistory()
	h.acknowledge()
	s := h.deliver(h.honest("every", nil, 0))
	h.Void()()
	s.Delivered(&wire.Batch{Scope: s.scope, Phase: wire.PhaseLive, Through: 6, ExpiresAt: s.expires}, time.Now())
	wants(t, h.Judge(), Leaked)
}

func TestX9_LateAnswers(t *testing.T) {
	t.Parallel()
	late := func(_ *history, s *account) { s.late = 2 * LatestWake }
	wants(t, judged(t, late), Late)
	wants(t, judged(t, func(h *history, s *account) { s.late = LatestWake / 2 }))
	// While something is broken nobody is late.
	wants(t, judged(t, func(h *history, s *account) {
		h.Break()
		h.Mend()
		late(h, s)
	}))
}

func TestX10_ProhibitedRowsAreNotServed(t *testing.T) {
	t.Parallel()
	h := newHistory()
	served := &wire.Batch{Groups: []wire.Group{group(1, outputOf(&h.log[1][0]))}}
	left := &wire.Batch{Groups: []wire.Group{group(9, observed{kind: wire.KindWithdraw, outpoint: point(1), reason: "prohibited"})}}
	before := time.Now()
	done := h.Forbid(point(1), false)
	h.Disclosed(served, time.Now()) // asked for, not acknowledged
	done()
	h.Disclosed(served, before)
	h.Disclosed(left, time.Now())
	wants(t, h.Judge())
	h.Disclosed(served, time.Now())
	wants(t, h.Judge(), Leaked)

	h = newHistory()
	h.Forbid(point(1), false)()
	h.Forbid(point(1), true)
	h.Disclosed(served, time.Now())
	wants(t, h.Judge())
}
