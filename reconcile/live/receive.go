package live

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// Waits of a batch that the store has no room for.
const (
	firstRoom = 50 * time.Millisecond
	lastRoom  = 5 * time.Second
)

// replans is how often in a row one batch is planned again because another process
// changed the view; each time this process catches up first.
const replans = 1000

// storeError is trouble of the store's own: it ends the run, whichever source met it.
type storeError struct{ err error }

func (e *storeError) Error() string { return "the store: " + e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// errOver says that a generation ended under the follower's feet.
var errOver = errors.New("this generation is over")

// receive commits one batch. It waits for its turn, and for room in the budget of
// its source without holding the turn. What it was given is frozen: every attempt
// is the same mutation.
func (r *runner) receive(ctx context.Context, s *source, batch reconcile.Batch, attach reconcile.Attach) (reconcile.Committed, error) {
	m := reconcile.Receive{Batch: batch, Attach: attach, Fresh: s.finite == nil} // BRC-193 gives an id once
	room := firstRoom
	for moves := 0; ; {
		moved := r.pulse.wait()
		if err := r.plan(ctx, &m); err != nil {
			return reconcile.Committed{}, err
		}
		done, err := r.attempt(ctx, &m)
		if err != nil {
			return reconcile.Committed{}, err
		}
		switch {
		case done.Took():
			r.moved()
			return done, nil
		case done.Status == reconcile.StatusLimited && done.Waiting:
			if err := r.tell(ctx, Waiting{Source: s.origin(), Err: &BudgetError{Reason: done.Reason}}); err != nil {
				return reconcile.Committed{}, err
			}
			if err := r.room(ctx, moved, room); err != nil {
				return reconcile.Committed{}, err
			}
			room = min(2*room, lastRoom)
		case done.Status == reconcile.StatusContextChanged:
			g, err := r.store.Generation(ctx, batch.Source)
			if err != nil {
				return reconcile.Committed{}, &storeError{err}
			}
			if g.Number != batch.Generation || g.Ending != nil {
				return reconcile.Committed{}, errOver
			}
			if moves++; moves > replans {
				return reconcile.Committed{}, fmt.Errorf("the view of the chain does not hold still: %s", done.Reason)
			}
			if err := r.follow(ctx); err != nil {
				return reconcile.Committed{}, err
			}
		default:
			return done, nil
		}
	}
}

// room waits until the store moved, but no less than d: a source without room does
// not ask at every commit of the others. A store that does not move is asked again
// after the longest wait.
func (r *runner) room(ctx context.Context, moved <-chan struct{}, d time.Duration) error {
	if err := sleep(ctx, d); err != nil {
		return err
	}
	rest(ctx, moved, lastRoom)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// plan reads the evidence under the view in force, before anybody waits for it.
func (r *runner) plan(ctx context.Context, m *reconcile.Receive) error {
	r.viewMu.RLock()
	v := r.view
	r.viewMu.RUnlock()
	if m.Plan == nil || m.Context != v.ID() {
		r.planUnder(m, v)
	}
	var claims []reconcile.Claim
	for i := range m.Plan {
		claims = append(claims, m.Plan[i].Claims...)
	}
	if len(claims) == 0 {
		return nil
	}
	if err := r.config.Chain.Prefetch(ctx, v, claims); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &chainError{err}
	}
	return nil
}

// planUnder makes the plan of a batch under a view: one entry for each pair of
// variant and target.
func (r *runner) planUnder(m *reconcile.Receive, v verify.View) {
	type pair struct {
		variant [32]byte
		target  spend.TxID
	}
	seen := map[pair]bool{}
	m.Plan, m.Context = []reconcile.Planned{}, v.ID()
	for i := range m.Batch.Groups {
		for j := range m.Batch.Groups[i].Observations {
			o := &m.Batch.Groups[i].Observations[j]
			if o.BEEF == nil || seen[pair{o.Variant, o.Target}] {
				continue
			}
			seen[pair{o.Variant, o.Target}] = true
			m.Plan = append(m.Plan, verify.Plan(o.BEEF, o.Target, v, r.config.Budget))
		}
	}
}

// attempt takes the turn and commits, while the view holds still. A batch in hand is
// worth finishing, so the end of ctx does not tear the commit.
func (r *runner) attempt(ctx context.Context, m *reconcile.Receive) (reconcile.Committed, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return reconcile.Committed{}, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	r.viewMu.RLock()
	defer r.viewMu.RUnlock()
	if m.Context != r.view.ID() || !current(m.Plan, r.view) {
		r.planUnder(m, r.view)
	}
	done, err := reconcile.Settle(context.WithoutCancel(ctx), r.store, *m)
	if err != nil {
		return done, &storeError{err}
	}
	return done, nil
}

// current reports whether a view still says the same of a plan's placements: what
// was fetched meanwhile counts, and so does a branch that was not known before.
func current(plan []reconcile.Planned, v verify.View) bool {
	for i := range plan {
		if !slices.Equal(plan[i].Claims, verify.Ask(v, plan[i].Claims)) {
			return false
		}
	}
	return true
}

// observations turns verified groups into what a store takes.
func observations(groups []client.Receipt) ([]reconcile.Group, error) {
	out := make([]reconcile.Group, len(groups))
	for i := range groups {
		g := &groups[i]
		out[i] = reconcile.Group{ID: g.ID, Sequence: g.Sequence, Observations: make([]reconcile.Observation, len(g.Observations))}
		for j := range g.Observations {
			o, err := observation(&g.Observations[j])
			if err != nil {
				return nil, err
			}
			out[i].Observations[j] = o
		}
	}
	return out, nil
}

func observation(r *client.Received) (o reconcile.Observation, err error) {
	o = reconcile.Observation{ID: r.ID, Kind: r.Kind, Canonical: r.Canonical}
	if r.TxID != "" {
		if o.Outpoint.TxID, err = txid(r.TxID); err != nil {
			return o, err
		}
		o.Outpoint.Index = r.Index
	}
	switch {
	case r.Spending != "":
		o.Effect = reconcile.SpendOf
		if o.Target, err = txid(r.Spending); err != nil {
			return o, err
		}
	case r.Effect == client.EffectPresent:
		o.Effect, o.Target = reconcile.Present, o.Outpoint.TxID
	case r.Effect == client.EffectAbsent:
		o.Effect = reconcile.Absent
	}
	if r.Evidence != nil {
		o.BEEF, o.Variant = r.Evidence, sha256.Sum256(r.Evidence)
	}
	return o, nil
}

func txid(text string) (id spend.TxID, err error) {
	if n, err := hex.Decode(id[:], []byte(text)); err != nil || n != len(id) {
		return id, errors.New("a txid of an observation cannot be read")
	}
	return id, nil
}
