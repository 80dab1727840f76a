package statetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/client"
)

// Run runs the suite. open gives an empty state for each subtest.
func Run(t *testing.T, open func(t *testing.T) Instance) {
	for name, test := range map[string]func(*testing.T, Instance){
		"C2 ids":             ids,
		"C2 ids over time":   idsOverTime,
		"C2 continuity":      continuity,
		"C2 one chain":       oneChain,
		"C3 cursor":          cursor,
		"C3 marks":           marks,
		"C4 the saved open":  savedOpen,
		"C5 endings":         endings,
		"C7 holders":         holders,
		"C7 principals":      principals,
		"C2 equivocation":    equivocation,
		"C3 what is checked": checkpoints,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// A batch is taken only behind what is recorded, by nobody who skips or repeats.
func cursor(t *testing.T, i Instance) {
	s := newSubject(t, i, "ls_cursor")
	s.begin()
	early := s.batch(client.PhaseSnapshot, 5)
	early.From = "from nowhere"
	s.refused(early)
	other := s.batch(client.PhaseSnapshot, 5)
	other.Generation = 2
	s.refused(other)
	first := s.batch(client.PhaseSnapshot, 5, group("s1", 5, s.withdrawal("o1", 1)))
	s.commit(first)
	s.refused(first) // again, as an Open
	late := s.batch(client.PhaseComplete, 5)
	late.From = late.Checkpoint.Cursor // before it was recorded
	s.refused(late)
	s.commit(s.batch(client.PhaseComplete, 5))
	s.reopen()
	if cp := s.status().Latest.Checkpoint; cp == nil || cp.Cursor != s.cursor {
		t.Fatalf("the next process finds %+v, not %q", cp, s.cursor)
	}
	s.refused(first)
	s.commit(s.batch(client.PhaseLive, 7, group("l7", 7, s.withdrawal("o7", 2))))
}

// A checkpoint comes back as it was, whatever its numbers.
func checkpoints(t *testing.T, i Instance) {
	s := newSubject(t, i, "ls_checkpoint")
	s.begin()
	most := ^uint64(0)
	c := s.batch(client.PhaseComplete, most)
	c.Checkpoint.HighWater, c.Checkpoint.ExpiresAt, c.Checkpoint.ReplayUntil = most, most-1, most
	s.commit(c)
	s.reopen()
	got, want := s.status().Latest.Checkpoint, c.Checkpoint
	if got == nil || !bytes.Equal(got.Scope, want.Scope) {
		t.Fatalf("checkpoint %+v, want %+v", got, want)
	}
	a, b := *got, want
	a.Scope, b.Scope = nil, nil
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Fatalf("checkpoint %+v, want %+v", a, b)
	}
}

// What an Open needs is there before it is sent, byte for byte, and generations are
// numbered.
func savedOpen(t *testing.T, i Instance) {
	s := newSubject(t, i, "ls_open")
	if st := s.status(); st.Latest != nil || st.Published != 0 || st.Identity != "" {
		t.Fatalf("a new record holds %+v", st)
	}
	for range 3 {
		want := s.intent()
		s.begin()
		if _, err := s.record.Begin(t.Context(), want); err == nil {
			t.Fatal("a generation began before the last one ended")
		}
		s.reopen()
		st := s.status()
		g := st.Latest
		if g == nil || g.Number != s.number || g.Checkpoint != nil || g.Ended != nil || st.Identity != want.Identity || st.Chain != chain {
			t.Fatalf("status %+v, latest %+v", st, g)
		}
		if got := g.Intent; got.RequestID != want.RequestID || !bytes.Equal(got.Open, want.Open) || !bytes.Equal(got.Manifest, want.Manifest) ||
			got.Digest != want.Digest || got.Chain != chain || got.Identity != want.Identity {
			t.Fatalf("intent %+v, want %+v", got, want)
		}
		s.end(client.CodeContextChanged)
	}
}

// Endings stay, with their words, and nothing comes after them.
func endings(t *testing.T, i Instance) {
	s := newSubject(t, i, "ls_endings")
	for _, code := range []client.Code{client.CodeResetRequired, client.CodeExpired, client.CodeUnauthorized, client.CodeContextChanged, client.CodeCancelled} {
		s.begin()
		s.commit(s.batch(client.PhaseSnapshot, 5))
		s.end(code)
		// What it ended with first is what it ended with, whether or not that is an error.
		_ = s.record.End(t.Context(), client.Ending{Generation: s.number, Code: client.CodeEquivocation, Reason: "another"})
		s.refused(s.batch(client.PhaseComplete, 5))
		s.reopen()
		want := client.Ending{Generation: s.number, Code: code, Reason: "the reason", At: 1700000000}
		if got := s.status().Latest.Ended; got == nil || fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Fatalf("ending %+v, want %+v", got, want)
		}
	}
}

// The first chain is the state's, for every source.
func oneChain(t *testing.T, i Instance) {
	newSubject(t, i, "ls_first").begin()
	s := newSubject(t, i, "ls_second")
	other := s.intent()
	other.Chain.Network = "other"
	_, err := s.record.Begin(t.Context(), other)
	if e, ok := errors.AsType[*client.PinError](err); !ok || e.What != "chain" {
		t.Fatalf("error %v, want the pinned chain", err)
	}
	if st := s.status(); st.Latest != nil || st.Chain != chain {
		t.Fatalf("status %+v", st)
	}
	s.begin()
}

// twice is a live source with a snapshot group s1 and a live group l7 recorded.
func twice(t *testing.T, i Instance, service string) *subject {
	s := newSubject(t, i, service)
	s.begin()
	s.commit(s.batch(client.PhaseComplete, 5, group("s1", 5, s.withdrawal("s1-o", 1))))
	s.commit(s.batch(client.PhaseLive, 7, group("l7", 7, s.withdrawal("l7-o", 2), s.invalidation("l7-p", "one"))))
	return s
}

// An id that is recorded is not taken again, in whichever of the two spaces.
func ids(t *testing.T, i Instance) {
	for n, c := range []struct {
		name string
		make func(s *subject) client.Receipt
		same bool // nothing about it changed
	}{
		{"a group", func(s *subject) client.Receipt {
			return group("l7", 7, s.withdrawal("l7-o", 2), s.invalidation("l7-p", "one"))
		}, true},
		{"an observation in another group", func(s *subject) client.Receipt { return group("l8", 8, s.withdrawal("l7-o", 2)) }, true},
		{"a group of the snapshot", func(s *subject) client.Receipt { return group("s1", 8, s.withdrawal("l8-o", 3)) }, false},
		{"an observation of the snapshot", func(s *subject) client.Receipt { return group("l8", 8, s.withdrawal("s1-o", 1)) }, true},
		{"an observation of the snapshot, changed", func(s *subject) client.Receipt { return group("l8", 8, s.withdrawal("s1-o", 9)) }, false},
	} {
		s := twice(t, i, fmt.Sprintf("ls_ids_%d", n))
		again := s.batch(client.PhaseLive, 9, c.make(s), group("l9", 9, s.withdrawal("l9-o", 2)))
		err := s.refused(again)
		if _, ok := errors.AsType[*client.EquivocationError](err); ok && i.OneSpace && !c.same {
			continue
		}
		s.violates(err, client.RuleDuplicate)
		s.commit(s.batch(client.PhaseLive, 8, group("l8", 8, s.withdrawal("l8-o", 2)))) // and an honest one is
	}
}

// Ids of a snapshot are its own; those of the live log belong to its scope, however
// often it is begun anew.
func idsOverTime(t *testing.T, i Instance) {
	s := twice(t, i, "ls_over_time")
	s.end(client.CodeResetRequired)
	s.reopen()
	s.begin()
	s.commit(s.batch(client.PhaseComplete, 7, group("s1", 7, s.withdrawal("s1-o", 3))))
	again := s.batch(client.PhaseLive, 8, group("l7", 8, s.withdrawal("l8-o", 2)))
	if _, ok := errors.AsType[*client.EquivocationError](s.refused(again)); !ok {
		t.Fatal("an id of the scope's log was taken again")
	}
	s.end(client.CodeEquivocation)
	s.epoch = "epoch-2"
	s.begin()
	s.commit(s.batch(client.PhaseComplete, 1, group("s1", 1, s.withdrawal("s1-o", 4))))
	s.commit(s.batch(client.PhaseLive, 2, group("l7", 2, s.withdrawal("l7-o", 5))))
}

// One id with two meanings is told apart from one that comes again, and the claim
// is handed over.
func equivocation(t *testing.T, i Instance) {
	for name, c := range map[string]struct {
		what string
		make func(s *subject) client.Receipt
	}{
		"group with another observation": {"group", func(s *subject) client.Receipt {
			return group("l7", 7, s.withdrawal("l7-o", 3), s.invalidation("l7-p", "one"))
		}},
		"group with fewer observations": {"group", func(s *subject) client.Receipt { return group("l7", 7, s.withdrawal("l7-o", 2)) }},
		"observation":                   {"observation", func(s *subject) client.Receipt { return group("l8", 8, s.withdrawal("l7-o", 4)) }},
	} {
		s := twice(t, i, "ls_"+c.what+fmt.Sprint(len(name)))
		g := c.make(s)
		err := s.refused(s.batch(client.PhaseLive, 9, g))
		e, ok := errors.AsType[*client.EquivocationError](err)
		if !ok {
			t.Fatalf("%s: error %v, want equivocation", name, err)
		}
		// What package client does with it.
		ending := client.Ending{Generation: s.number, Code: client.CodeEquivocation, Reason: "two meanings", At: 1700000000, Claim: e.Claim, ClaimID: e.ID}
		if err := s.record.End(t.Context(), ending); err != nil {
			t.Fatalf("%s: end: %v", name, err)
		}
		if !i.OneSpace && (e.What != c.what || e.ID != map[string]string{"group": "l7", "observation": "l7-o"}[c.what] || !bytes.Contains(e.Claim, g.Observations[0].Canonical)) {
			t.Errorf("%s: %s %q with %q", name, e.What, e.ID, e.Claim)
		}
		s.reopen()
		if got := s.status().Latest.Ended; got == nil || got.Code != client.CodeEquivocation {
			t.Fatalf("%s: ending %+v", name, got)
		}
		s.begin()
		s.record.Release()
		i = s.instance
	}
}

// Within one scope a new snapshot is never older than what was read.
func continuity(t *testing.T, i Instance) {
	s := twice(t, i, "ls_continuity")
	s.end(client.CodeResetRequired)
	s.reopen()
	s.begin()
	s.violates(s.refused(s.batch(client.PhaseSnapshot, 6)), client.RuleContinuation)
	s.commit(s.batch(client.PhaseSnapshot, 7))
	s.end(client.CodeResetRequired)
	s.begin()
	s.epoch = "epoch-2" // which an honest restore names
	s.commit(s.batch(client.PhaseSnapshot, 1))
}

// What was recorded and not delivered is handed out in order, once more after each
// start, until it is marked.
func marks(t *testing.T, i Instance) {
	s := newSubject(t, i, "ls_marks")
	for range 2 {
		s.begin()
		for at, phase := range []client.Phase{client.PhaseSnapshot, client.PhaseComplete, client.PhaseLive, client.PhaseLive} {
			var groups []client.Receipt
			if at == 0 {
				groups = append(groups, group("s", 5, s.withdrawal("s-o", 1), s.invalidation("s-p", "one")))
			}
			through := uint64(5)
			if at == 3 {
				through = 6 // nothing to show
			}
			s.commit(s.batch(phase, through, groups...))
		}
		s.end(client.CodeExpired)
		s.epoch += "x"
	}
	var got []string
	for {
		d, err := s.record.Undelivered(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d == nil {
			break
		}
		got = append(got, fmt.Sprintf("%d.%d end=%v opened=%v complete=%v live=%v", d.Mark.Generation, d.Mark.Page, d.Mark.End, d.Opened, d.Complete, d.FirstLive))
		if d.Opened && (len(d.Groups) != 1 || d.Groups[0].ID != "s" || len(d.Groups[0].Observations) != 2) {
			t.Fatalf("groups %+v", d.Groups)
		}
		s.reopen()
		again, err := s.record.Undelivered(t.Context())
		if err != nil || again == nil || again.Mark != d.Mark {
			t.Fatalf("the next process is handed %+v, %v", again, err)
		}
		if err := s.record.Delivered(t.Context(), d.Mark); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for n := 1; i.Delivers && n <= 2; n++ {
		for page, rest := range []string{"end=false opened=true complete=false live=false", "end=false opened=false complete=true live=false",
			"end=false opened=false complete=false live=true"} {
			want = append(want, fmt.Sprintf("%d.%d %s", n, page+1, rest))
		}
		want = append(want, fmt.Sprintf("%d.3 end=true opened=false complete=false live=false", n))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("deliveries %q, want %q", got, want)
	}
}

// A source has one holder; others are not in its way.
func holders(t *testing.T, i Instance) {
	newSubject(t, i, "ls_held").begin()
	if _, err := i.State.Acquire(t.Context(), key("ls_held", "")); !errors.Is(err, client.ErrBusy) {
		t.Fatalf("a held source got %v", err)
	}
	newSubject(t, i, "ls_free").begin()
}

// What is said to one principal is no other's.
func principals(t *testing.T, i Instance) {
	for n, principal := range []string{"", "02aa", "02bb"} {
		r, err := i.State.Acquire(t.Context(), key("ls_principals", principal))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if st, err := r.Status(t.Context()); err != nil || st.Latest != nil {
			t.Fatalf("%q finds %+v, %v", principal, st, err)
		}
		s := &subject{t: t, instance: i, record: r, service: "ls_principals", epoch: fmt.Sprintf("epoch-%d", n)}
		s.begin()
		s.commit(s.batch(client.PhaseComplete, uint64(n), group("s1", uint64(n), s.withdrawal("s1-o", n))))
	}
}
