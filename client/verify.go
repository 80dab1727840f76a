package client

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// expectation is everything one answer is judged by. It is made before the
// request is sent.
type expectation struct {
	scope     wire.Scope // of an Open: Epoch and Access "" when they are not known beforehand
	terms     terms
	requested Limits
	notAfter  uint64 // latest T a fresh session may have: our clock and the skew allowed

	before *Checkpoint // nil for an Open
}

// verify judges a body whose headers and size were right, in the order of C1:
// strict JSON and schema, scope, deadlines, limits, continuation.
func (x *expectation) verify(body []byte) (*wire.Batch, Checkpoint, error) {
	b, err := wire.ParseBatch(body)
	if err != nil {
		return nil, Checkpoint{}, &ViolationError{Rule: RuleSchema, Detail: "the body is not a batch that can be accepted", Err: err}
	}
	for _, check := range []func(*wire.Batch) error{x.checkScope, x.checkDeadlines, x.checkLimits, x.checkContinuation} {
		if err := check(b); err != nil {
			return nil, Checkpoint{}, err
		}
	}
	return b, x.after(b), nil
}

func (x *expectation) checkScope(b *wire.Batch) error {
	got, want := b.Scope, x.scope
	if want.Epoch == "" {
		want.Epoch = got.Epoch
	}
	if want.Access == "" { // of a principal it is the provider's word, kept from the first batch on
		want.Access = got.Access
	}
	switch {
	case got.Chain != want.Chain:
		return violation(RuleScope, "the batch is about another chain")
	case got.Provider != want.Provider:
		return violation(RuleScope, "the batch is in the name of another provider")
	case got.Service != want.Service:
		return violation(RuleScope, "the batch is of another service")
	case got.QueryDigest != want.QueryDigest:
		return violation(RuleScope, "the batch answers another query")
	case got.RulesDigest != want.RulesDigest:
		return violation(RuleScope, "the batch follows other rules")
	case got.Access != want.Access:
		return violation(RuleScope, "the batch was made for another access")
	case got.Epoch != want.Epoch:
		return violation(RuleScope, "the batch is of another epoch")
	}
	for i := range b.Groups {
		for j := range b.Groups[i].Observations {
			o := &b.Groups[i].Observations[j]
			foreign := o.Scope != got ||
				o.Spend != nil && o.Spend.Previous.Chain != got.Chain ||
				o.Withdraw != nil && o.Withdraw.Outpoint.Chain != got.Chain
			if foreign {
				return violation(RuleScope, "an observation is outside the scope of its batch")
			}
		}
	}
	return nil
}

func (x *expectation) checkDeadlines(b *wire.Batch) error {
	switch {
	case b.ReplayUntil < b.ExpiresAt || b.ReplayUntil-b.ExpiresAt != x.terms.replaySeconds:
		return violation(RuleDeadlines, "replayUntil is not expiresAt and the %d replay seconds of the manifest", x.terms.replaySeconds)
	case x.before != nil && (b.ExpiresAt != x.before.ExpiresAt || b.ReplayUntil != x.before.ReplayUntil):
		return violation(RuleDeadlines, "the deadlines of the session changed")
	case b.ExpiresAt < x.terms.sessionSeconds:
		return violation(RuleDeadlines, "expiresAt is before the session can have begun")
	case x.before == nil && b.ExpiresAt-x.terms.sessionSeconds > x.notAfter:
		return violation(RuleDeadlines, "the session begins in the future: check the clocks of both machines")
	}
	return nil
}

func (x *expectation) checkLimits(b *wire.Batch) error {
	if want := x.requested.Min(x.terms.limits); b.Limits != want {
		return violation(RuleLimits, "the effective limits are not the least of request, manifest and profile")
	}
	n := 0
	for i := range b.Groups {
		n += len(b.Groups[i].Observations)
	}
	if uint64(n) > uint64(b.Limits.MaxObservations) {
		return violation(RuleLimits, "the batch has %d observations, more than the %d allowed", n, b.Limits.MaxObservations)
	}
	return nil
}

func (x *expectation) checkContinuation(b *wire.Batch) error {
	if b.Through > b.HighWater {
		return violation(RuleContinuation, "through is above highWater")
	}
	if x.before == nil {
		if b.Phase != wire.PhaseSnapshot {
			return violation(RuleContinuation, "a session does not begin with its snapshot")
		}
		return checkSnapshotGroups(b, b.Through)
	}
	before := x.before
	if b.Session != before.Session {
		return violation(RuleContinuation, "the session changed")
	}
	if before.Phase == PhaseSnapshot {
		switch {
		case b.Phase != wire.PhaseSnapshot:
			return violation(RuleContinuation, "a live batch came before the end of the snapshot")
		case b.Through != before.W:
			return violation(RuleContinuation, "the watermark of the snapshot changed")
		case b.Cursor == before.Cursor && !b.SnapshotComplete:
			return violation(RuleContinuation, "the snapshot does not move")
		}
		return checkSnapshotGroups(b, before.W)
	}
	switch {
	case b.Phase != wire.PhaseLive || !b.SnapshotComplete:
		return violation(RuleContinuation, "a snapshot batch came after the end of the snapshot")
	case b.Through < before.Through:
		return violation(RuleContinuation, "through fell from %d to %d", before.Through, b.Through)
	case len(b.Groups) > 0 && b.Cursor == before.Cursor:
		return violation(RuleContinuation, "groups came without a new cursor")
	}
	last := before.Through
	for i := range b.Groups {
		g := &b.Groups[i]
		switch {
		case g.Sequence <= last && i == 0:
			return violation(RuleContinuation, "a group stands at %d, which was already read through %d", g.Sequence, last)
		case g.Sequence <= last:
			return violation(RuleContinuation, "the sequences of the groups do not increase")
		case g.Sequence > b.Through:
			return violation(RuleContinuation, "a group stands at %d, above through %d", g.Sequence, b.Through)
		}
		last = g.Sequence
	}
	return nil
}

func checkSnapshotGroups(b *wire.Batch, w uint64) error {
	for i := range b.Groups {
		if b.Groups[i].Sequence != w {
			return violation(RuleContinuation, "a snapshot group stands at %d, not at the watermark %d", b.Groups[i].Sequence, w)
		}
	}
	return nil
}

// after is the checkpoint the batch leads to.
func (x *expectation) after(b *wire.Batch) Checkpoint {
	cp := Checkpoint{
		Session: b.Session, Cursor: b.Cursor, Phase: PhaseLive,
		W: b.Through, Through: b.Through, HighWater: b.HighWater, ExpiresAt: b.ExpiresAt, ReplayUntil: b.ReplayUntil,
		Scope: b.Scope.AppendCanonical(nil),
	}
	if x.before != nil {
		cp.W = x.before.W
	}
	if b.Phase == wire.PhaseSnapshot {
		cp.Phase = PhaseSnapshot
		if b.SnapshotComplete {
			cp.Phase = PhaseComplete
		}
	}
	sum := sha256.Sum256(cp.Scope)
	cp.ScopeDigest = hex.EncodeToString(sum[:])
	return cp
}

// receipts turns verified groups into what a record keeps.
func receipts(groups []wire.Group) []Receipt {
	out := make([]Receipt, len(groups))
	for i := range groups {
		g := &groups[i]
		out[i] = Receipt{ID: g.ID, Sequence: g.Sequence, Observations: make([]Received, len(g.Observations))}
		for j := range g.Observations {
			o := &g.Observations[j]
			r := Received{ID: o.ID, Kind: o.Kind, Canonical: o.Canonical}
			switch {
			case o.Output != nil:
				e := &o.Output.Evidence
				r.Effect, r.TxID, r.Index, r.Evidence = EffectPresent, e.TxID, e.OutputIndex, e.BEEF
			case o.Withdraw != nil:
				r.Effect, r.TxID, r.Index = EffectAbsent, o.Withdraw.Outpoint.TxID, o.Withdraw.Outpoint.OutputIndex
			case o.Spend != nil:
				r.TxID, r.Index, r.Evidence = o.Spend.Previous.TxID, o.Spend.Previous.OutputIndex, o.Spend.BEEF
				r.Spending = o.Spend.SpendingTxID
			}
			out[i].Observations[j] = r
		}
	}
	return out
}

// restore reads recorded groups again, through the same parser they came
// through first: each as the only group of a batch made for it.
func restore(scope []byte, snapshot bool, recorded []Receipt) ([]wire.Group, error) {
	out := make([]wire.Group, len(recorded))
	for i, r := range recorded {
		group := wire.Group{ID: r.ID, Sequence: r.Sequence, Observations: make([]wire.Observation, len(r.Observations))}
		for j, o := range r.Observations {
			group.Observations[j].Canonical = o.Canonical
		}
		body := []byte(`{"version":1,"session":"-","cursor":"-","snapshotComplete":true,"expiresAt":"0","replayUntil":"0","limits":`)
		body = wire.MaxLimits().AppendCanonical(body)
		body = append(body, `,"phase":"`...)
		if snapshot {
			body = append(body, wire.PhaseSnapshot...)
		} else {
			body = append(body, wire.PhaseLive...)
		}
		through := strconv.AppendQuote(nil, strconv.FormatUint(r.Sequence, 10))
		body = append(append(body, `","through":`...), through...)
		body = append(append(body, `,"highWater":`...), through...)
		body = append(append(body, `,"scope":`...), scope...)
		body = append(body, `,"groups":[`...)
		body = append(group.AppendCanonical(body), `]}`...)
		b, err := wire.ParseBatch(body)
		if err != nil {
			return nil, err
		}
		out[i] = b.Groups[0]
	}
	return out, nil
}

// parseScope reads a recorded scope.
func parseScope(canonical []byte) (wire.Scope, error) {
	v, err := canon.Parse(canonical, canon.Limits{})
	if err != nil {
		return wire.Scope{}, fmt.Errorf("read the recorded scope: %w", err)
	}
	text := func(v canon.Value, name string) string {
		m, _ := v.Get(name)
		return m.Str()
	}
	chain, _ := v.Get("chain")
	return wire.Scope{
		Chain:       Chain{Network: text(chain, "network"), GenesisHash: text(chain, "genesisHash")},
		Provider:    text(v, "provider"),
		Service:     text(v, "service"),
		QueryDigest: text(v, "queryDigest"),
		RulesDigest: text(v, "rulesDigest"),
		Access:      text(v, "access"),
		Epoch:       text(v, "epoch"),
	}, nil
}
