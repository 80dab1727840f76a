package statetest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
)

// Instance is one empty state.
type Instance struct {
	State client.State
	// Reopen gives the same state as the next process finds it. Every record was
	// released before.
	Reopen func() client.State
	// Delivers says that the state hands out what was not delivered. A state whose
	// receipt is the delivery does not.
	Delivers bool
	// OneSpace says that an id of the snapshot which comes in the log with another
	// meaning is equivocation, instead of a duplicate, and that the claim of an
	// equivocation stays in the state.
	OneSpace bool
}

var chain = client.Chain{Network: "test", GenesisHash: strings.Repeat("0a", 32)}

// key names a source of the suite.
func key(service, principal string) client.Key {
	return client.Key{Base: "https://overlay.test", Service: service, Query: []byte("{}"), QueryDigest: strings.Repeat("1b", 32), Principal: principal}
}

// subject is one source of a state at work.
type subject struct {
	t        *testing.T
	instance Instance
	record   client.Record
	service  string
	epoch    string
	number   uint64 // generation
	cursor   string
	w        uint64
}

func newSubject(t *testing.T, i Instance, service string) *subject {
	t.Helper()
	s := &subject{t: t, instance: i, service: service, epoch: "epoch-1"}
	s.acquire(i.State)
	return s
}

func (s *subject) acquire(state client.State) {
	s.t.Helper()
	r, err := state.Acquire(s.t.Context(), key(s.service, ""))
	if err != nil {
		s.t.Fatalf("acquire: %v", err)
	}
	s.t.Cleanup(r.Release)
	s.record = r
}

// reopen goes on as the next process would.
func (s *subject) reopen() {
	s.t.Helper()
	s.record.Release()
	s.instance.State = s.instance.Reopen()
	s.acquire(s.instance.State)
}

func (s *subject) intent() client.Intent {
	return client.Intent{
		RequestID: fmt.Sprintf("request-%d", s.number+1), Open: fmt.Appendf(nil, `{"open":%d}`, s.number+1), Manifest: []byte(`{"packet":true}`),
		Digest: strings.Repeat("2c", 32), Chain: chain, Identity: "02" + strings.Repeat("3d", 32),
	}
}

// begin starts the next generation.
func (s *subject) begin() {
	s.t.Helper()
	n, err := s.record.Begin(s.t.Context(), s.intent())
	if err != nil {
		s.t.Fatalf("begin: %v", err)
	}
	if n != s.number+1 {
		s.t.Fatalf("generation %d after %d", n, s.number)
	}
	s.number, s.cursor = n, ""
}

func (s *subject) scope() wire.Scope {
	return wire.Scope{
		Chain: chain, Provider: "https://overlay.test", Service: s.service, QueryDigest: strings.Repeat("1b", 32),
		RulesDigest: strings.Repeat("4e", 32), Access: "public", Epoch: s.epoch,
	}
}

// batch is a batch that follows what is recorded.
func (s *subject) batch(phase client.Phase, through uint64, groups ...client.Receipt) client.Commit {
	if s.cursor == "" {
		s.w = through
	}
	scope := s.scope()
	cp := client.Checkpoint{
		Session: fmt.Sprintf("session-%d", s.number), Cursor: fmt.Sprintf("%d %s %d %d", s.number, phase, through, len(s.cursor)+1),
		Scope: scope.AppendCanonical(nil), Phase: phase, W: s.w, Through: through, HighWater: through + 1, ExpiresAt: 4102444800, ReplayUntil: 4102445400,
	}
	sum := sha256.Sum256(cp.Scope)
	cp.ScopeDigest = hex.EncodeToString(sum[:])
	return client.Commit{Generation: s.number, From: s.cursor, Checkpoint: cp, Groups: groups}
}

// commit records a batch that must be taken.
func (s *subject) commit(c client.Commit) client.Committed {
	s.t.Helper()
	done, err := s.record.Commit(s.t.Context(), c)
	if err != nil {
		s.t.Fatalf("commit: %v", err)
	}
	s.cursor = c.Checkpoint.Cursor
	return done
}

// refused records nothing of a batch, and gives the error.
func (s *subject) refused(c client.Commit) error {
	s.t.Helper()
	before := s.status().Latest
	_, err := s.record.Commit(s.t.Context(), c)
	if err == nil {
		s.t.Fatal("a batch was taken that must not be")
	}
	switch after := s.status().Latest; {
	case (after.Checkpoint == nil) != (before.Checkpoint == nil):
		s.t.Fatal("the checkpoint of a refused batch is recorded")
	case after.Checkpoint != nil && after.Checkpoint.Cursor != before.Checkpoint.Cursor:
		s.t.Fatalf("a refused batch moved the cursor to %q", after.Checkpoint.Cursor)
	}
	return err
}

func (s *subject) end(code client.Code) {
	s.t.Helper()
	err := s.record.End(s.t.Context(), client.Ending{Generation: s.number, Code: code, Reason: "the reason", At: 1700000000})
	if err != nil {
		s.t.Fatalf("end: %v", err)
	}
}

func (s *subject) status() client.Status {
	s.t.Helper()
	st, err := s.record.Status(s.t.Context())
	if err != nil {
		s.t.Fatalf("status: %v", err)
	}
	return st
}

// violates checks that an error is a violation of that rule.
func (s *subject) violates(err error, rule client.Rule) {
	s.t.Helper()
	if v, ok := errors.AsType[*client.ViolationError](err); !ok || v.Rule != rule {
		s.t.Fatalf("error %v, want a violation of %s", err, rule)
	}
}

// withdrawal is an observation with that id about the output of that number.
func (s *subject) withdrawal(id string, output int) client.Received {
	txid := fmt.Sprintf("%064x", output)
	o := wire.Observation{ID: id, Scope: s.scope(), Kind: wire.KindWithdraw, Withdraw: &wire.Withdraw{
		Outpoint: wire.Outpoint{Chain: chain, TxID: txid, OutputIndex: 1}, Reason: "changed",
	}}
	return client.Received{ID: id, Kind: o.Kind, Canonical: o.AppendCanonical(nil), Effect: client.EffectAbsent, TxID: txid, Index: 1}
}

// invalidation is an observation with that id about a context.
func (s *subject) invalidation(id, context string) client.Received {
	o := wire.Observation{ID: id, Scope: s.scope(), Kind: wire.KindInvalidated, Invalidated: &wire.Invalidated{ContextID: context, Reason: "reorg"}}
	return client.Received{ID: id, Kind: o.Kind, Canonical: o.AppendCanonical(nil)}
}

func group(id string, sequence uint64, observations ...client.Received) client.Receipt {
	return client.Receipt{ID: id, Sequence: sequence, Observations: observations}
}
