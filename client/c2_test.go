package client_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestC2_LiesAreRefused(t *testing.T) {
	t.Parallel()
	rescope := func(edit func(*wire.Scope)) func(b *wire.Batch) {
		return func(b *wire.Batch) {
			edit(&b.Scope)
			for i := range b.Groups {
				for j := range b.Groups[i].Observations {
					b.Groups[i].Observations[j].Scope = b.Scope
				}
			}
		}
	}
	hash := strings.Repeat("ee", 32)
	refused(t, []lie{
		{name: "foreign chain", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.Chain.Network = "other" })},
		{name: "foreign genesis later", rule: client.RuleScope, at: "read", n: 1, bend: rescope(func(s *wire.Scope) { s.Chain.GenesisHash = hash })},
		{name: "provider", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.Provider = "https://elsewhere.test" })},
		{name: "service", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.Service = "ls_other" })},
		{name: "query", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.QueryDigest = hash })},
		{name: "rules", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.RulesDigest = hash })},
		{name: "access", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.Access = "p:1" })},
		{name: "epoch is not the manifest's", rule: client.RuleScope, at: "open", n: 1, bend: rescope(func(s *wire.Scope) { s.Epoch = "epoch-2" })},
		{name: "epoch changes", rule: client.RuleScope, at: "read", n: 2, bend: rescope(func(s *wire.Scope) { s.Epoch = "epoch-2" })},
		{name: "observation out of scope", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) { b.Groups[0].Observations[0].Scope.Epoch = "epoch-2" }},
		{name: "spend on another chain", rule: client.RuleScope, at: "read", n: 2, bend: func(b *wire.Batch) {
			b.Groups[0].Observations[0].Kind, b.Groups[0].Observations[0].Output = wire.KindSpend, nil
			b.Groups[0].Observations[0].Spend = &wire.Spend{
				Previous: wire.Outpoint{Chain: wire.Chain{Network: "other", GenesisHash: hash}, TxID: hash}, SpendingTxID: hash, BEEF: []byte("x")}
		}},
		{name: "withdraw on another chain", rule: client.RuleScope, at: "read", n: 2, bend: func(b *wire.Batch) {
			b.Groups[0].Observations[0].Kind, b.Groups[0].Observations[0].Output = wire.KindWithdraw, nil
			b.Groups[0].Observations[0].Withdraw = &wire.Withdraw{
				Outpoint: wire.Outpoint{Chain: wire.Chain{Network: "other", GenesisHash: hash}, TxID: hash}, Reason: "spent"}
		}},

		{name: "group id twice in a batch", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) { b.Groups[1].ID = b.Groups[0].ID }},
		{name: "observation id twice in a batch", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) {
			b.Groups[1].Observations[0].ID = b.Groups[0].Observations[0].ID
		}},
		{name: "page again", rule: client.RuleDuplicate, at: "read", n: 1, bend: func(b *wire.Batch) {
			for i := range b.Groups {
				o := output(i)
				b.Groups[i].ID = "session-1-row-" + string(rune('0'+i))
				b.Groups[i].Observations[0].ID, b.Groups[i].Observations[0].Output = b.Groups[i].ID+"-o", &o
			}
		}},
		{name: "live group under a snapshot id", rule: client.RuleDuplicate, at: "read", n: 2, bend: func(b *wire.Batch) { b.Groups[0].ID = "session-1-row-0" }},
		{name: "live observation under a snapshot id", rule: client.RuleDuplicate, at: "read", n: 2, bend: func(b *wire.Batch) {
			b.Groups[0].Observations[0].ID = "session-1-row-0-o"
		}},

		{name: "sequence above through", rule: client.RuleSchema, at: "read", n: 2, bend: func(b *wire.Batch) { b.Groups[1].Sequence = b.Through + 1 }},
		{name: "through above the high water", rule: client.RuleSchema, at: "read", n: 2, bend: func(b *wire.Batch) { b.HighWater = b.Through - 1 }},
		{name: "through falls", rule: client.RuleContinuation, at: "read", n: 2, bend: func(b *wire.Batch) { b.Groups, b.Through, b.HighWater = nil, 3, 3 }},
		{name: "sequence at what was read", rule: client.RuleContinuation, at: "read", n: 2, bend: func(b *wire.Batch) { b.Groups[0].Sequence = 4 }},
		{name: "sequences do not increase", rule: client.RuleSchema, at: "read", n: 2, bend: func(b *wire.Batch) { b.Groups[1].Sequence = b.Groups[0].Sequence }},
		{name: "snapshot group off the watermark", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) { b.Groups[0].Sequence = 3 }},
		{name: "changed watermark", rule: client.RuleContinuation, at: "read", n: 1, bend: func(b *wire.Batch) {
			b.Through, b.HighWater = 5, 5
			for i := range b.Groups {
				b.Groups[i].Sequence = 5
			}
		}},
		{name: "live before the end of the snapshot", rule: client.RuleContinuation, at: "read", n: 1, bend: func(b *wire.Batch) {
			b.Phase, b.SnapshotComplete, b.Groups = wire.PhaseLive, true, nil
		}},
		{name: "snapshot after completion", rule: client.RuleContinuation, at: "read", n: 2, bend: func(b *wire.Batch) {
			b.Phase, b.SnapshotComplete, b.Groups = wire.PhaseSnapshot, true, nil
		}},
		{name: "incomplete after completion", rule: client.RuleSchema, at: "read", n: 2, bend: func(b *wire.Batch) { b.SnapshotComplete = false }},
		{name: "snapshot that does not move", rule: client.RuleContinuation, at: "read", n: 1, bend: func(b *wire.Batch) {
			b.SnapshotComplete, b.Groups, b.Cursor = false, nil, "session-1 snapshot 2"
		}},
		{name: "groups without a new cursor", rule: client.RuleContinuation, at: "read", n: 2, bend: func(b *wire.Batch) { b.Cursor = "session-1 live 4" }},
		{name: "changed session", rule: client.RuleContinuation, at: "read", n: 1, bend: func(b *wire.Batch) { b.Session = "another" }},
		{name: "changed deadlines", rule: client.RuleDeadlines, at: "read", n: 1, bend: func(b *wire.Batch) { b.ExpiresAt++; b.ReplayUntil++ }},
		{name: "more observations than allowed", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) {
			o := b.Groups[0].Observations[0]
			o.ID = "one-more"
			b.Groups[0].Observations = append(b.Groups[0].Observations, o)
		}},
	})
}

// One id with two meanings ends the source's continuity, durably, with the
// claim kept; following again may begin anew.
func TestC2_EquivocationIsQuarantined(t *testing.T) {
	t.Parallel()
	for name, bend := range map[string]func(b *wire.Batch){
		"observation": func(b *wire.Batch) { b.Groups[0].Observations[0].ID = "live-3-0" },
		"group":       func(b *wire.Batch) { b.Groups[0].ID = "live-3" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).seed(2)
			s := openState(t, t.TempDir())
			r := follower(f.serve(), s)
			r.must(t)
			f.put(5)
			r.must(t)
			f.put(6)
			reads := len(f.seen("read"))
			f.edit(func() {
				f.bend = func(endpoint string, n int, b *wire.Batch) {
					if endpoint == "read" && n == reads+1 {
						bend(b)
					}
				}
			})
			r.options.OnReset = client.Reopen
			e, ok := errors.AsType[*client.EquivocationError](r.follow(t))
			if !ok || e.What != name {
				t.Fatalf("error %v, want equivocation of a %s", e, name)
			}
			if got := r.kinds(); !slices.Equal(got, []string{"Resumed", "ended equivocation"}) {
				t.Fatalf("events %v", got)
			}
			claims, err := s.Quarantine(t.Context(), sources(t, s)[0])
			if err != nil {
				t.Fatal(err)
			}
			if len(claims) != 1 || claims[0].Code != "equivocation" || !strings.Contains(string(claims[0].Bytes), evidenceText(output(6))) {
				t.Fatalf("quarantine %+v", claims)
			}
			if got := len(rows(t, s, sqlitestate.Stale)); got != 3 {
				t.Fatalf("%d stale rows, want the 3 there were", got)
			}
			r.options.OnReset = client.Stop
			if _, ok := errors.AsType[*client.EndedError](r.follow(t)); !ok {
				t.Fatal("went on without being asked to")
			}
			r.options.OnReset = client.Reopen
			r.must(t)
			if got := len(present(rows(t, s, sqlitestate.Current))); got != 4 {
				t.Fatalf("%d rows, want 4", got)
			}
		})
	}
}

// Within one epoch a new snapshot is never older than what was read.
func TestC2_HistoryThatFellBack(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(2)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.OnReset = client.Reopen
	f.put(5)
	f.put(6)
	r.must(t)
	f.endAll(wire.ResetRequired)
	f.edit(func() { f.head, f.log = 3, f.log[:1] })
	violated(t, r.follow(t), client.RuleContinuation)
	f.edit(func() { f.epoch = "epoch-2" }) // an honest restore breaks the epoch
	f.issue()
	r.must(t)
	if got := r.kinds(); got[0] != "Opened" {
		t.Fatalf("events %v, want a new generation", got)
	}
}
