package live

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
)

// record is a source's durable record for package client, kept in the store of
// knowledge: a receive IS the delivery, so nothing is ever undelivered here.
type record struct {
	*source
	id  reconcile.SourceID
	key client.Key

	latest *client.Generation // as the store has it; nil: to be read
}

var (
	_ client.State  = (*source)(nil)
	_ client.Record = (*record)(nil)
)

// Acquire opens the record of the source; see client.State.
func (s *source) Acquire(ctx context.Context, key client.Key) (client.Record, error) {
	k := reconcile.SourceKey{
		Kind: kindLive, Base: key.Base, Service: key.Service, QueryDigest: key.QueryDigest, Principal: key.Principal, Label: s.live.Label,
	}
	if err := s.enter(ctx, k); err != nil {
		return nil, err
	}
	return &record{source: s, id: s.origin().ID, key: key}, nil
}

// Release lets nothing go: the source is this run's until it ends.
func (r *record) Release() {}

// failed marks an error as the store's own, unless it says something of the source.
func failed(err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{errOver, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, own) {
			return err
		}
	}
	if _, ok := errors.AsType[*client.PinError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*storeError](err); ok {
		return err
	}
	return &storeError{err}
}

// intent is a saved Open. The packet is kept whole.
type intent struct {
	RequestID string
	Open      []byte
	Manifest  []byte
	Digest    string
	Identity  string
}

func (r *record) Status(ctx context.Context) (client.Status, error) {
	st, err := r.status(ctx)
	if r.latest = nil; st.Latest != nil {
		own := *st.Latest // the follower goes on with its own
		r.latest = &own
	}
	return st, failed(err)
}

func (r *record) status(ctx context.Context) (st client.Status, err error) {
	store := r.runner.store
	if _, err := getJSON(ctx, store, keyChain, &st.Chain); err != nil {
		return st, err
	}
	identity, err := get(ctx, store, sourceKey(r.id, rowIdentity))
	if err != nil {
		return st, err
	}
	st.Identity = string(identity)
	g, err := store.Generation(ctx, r.id)
	if err != nil || g.Number == 0 {
		return st, err
	}
	if g.State == reconcile.Active && g.Complete {
		st.Published = g.Number
	}
	var saved intent
	found, err := getJSON(ctx, store, sourceKey(r.id, rowIntent), &saved)
	if err != nil {
		return st, err
	}
	if !found {
		return st, fmt.Errorf("generation %d has no open: %w", g.Number, errDamaged)
	}
	latest := &client.Generation{Number: g.Number, Intent: client.Intent{
		RequestID: saved.RequestID, Open: saved.Open, Manifest: saved.Manifest, Digest: saved.Digest, Chain: st.Chain, Identity: saved.Identity,
	}}
	var cp client.Checkpoint
	if found, err = getJSON(ctx, store, sourceKey(r.id, rowCheckpoint), &cp); err != nil {
		return st, err
	}
	if found {
		latest.Checkpoint = &cp
	}
	if e := g.Ending; e != nil {
		latest.Ended = &client.Ending{Generation: g.Number, Code: client.Code(e.Code), Reason: e.Reason, At: e.At}
	}
	st.Latest = latest
	return st, nil
}

func (r *record) Begin(ctx context.Context, i client.Intent) (uint64, error) {
	ctx = context.WithoutCancel(ctx)
	r.latest = nil
	// The pin of the chain is looked at and set by one source at a time.
	r.runner.turn <- struct{}{}
	defer func() { <-r.runner.turn }()
	put, err := sameChain(ctx, r.runner.store, i.Chain)
	if err != nil {
		return 0, failed(err)
	}
	put = append(put,
		asJSON(sourceKey(r.id, rowIntent), intent{RequestID: i.RequestID, Open: i.Open, Manifest: i.Manifest, Digest: i.Digest, Identity: i.Identity}),
		reconcile.Entry{Key: sourceKey(r.id, rowIdentity), Value: []byte(i.Identity)},
	)
	number, err := r.runner.store.Begin(ctx, r.id, reconcile.Attach{Put: put, Delete: [][]byte{sourceKey(r.id, rowCheckpoint)}})
	if err != nil {
		return 0, failed(fmt.Errorf("save the open: %w", err))
	}
	return number, nil
}

func (r *record) Commit(ctx context.Context, c client.Commit) (client.Committed, error) {
	if err := r.commit(ctx, c); err != nil {
		return client.Committed{}, err
	}
	return client.Committed{}, nil
}

func (r *record) commit(ctx context.Context, c client.Commit) error {
	if r.latest == nil {
		st, err := r.status(ctx)
		if err != nil {
			return failed(err)
		}
		r.latest = st.Latest
	}
	latest := r.latest
	r.latest = nil // until it is known what became of the batch
	if err := admit(latest, &c); err != nil {
		return err
	}
	put, err := r.continuity(ctx, latest, &c)
	if err != nil {
		return err
	}
	put = append(put, asJSON(sourceKey(r.id, rowCheckpoint), c.Checkpoint))
	batch, err := r.batch(latest, &c)
	if err != nil {
		return err
	}
	done, err := r.runner.receive(ctx, r.source, batch, reconcile.Attach{Put: put})
	if err != nil {
		return err
	}
	switch done.Status {
	case reconcile.StatusCommitted, reconcile.StatusReplayed:
	case reconcile.StatusEquivocation:
		return &client.EquivocationError{What: "group", ID: done.Reason}
	case reconcile.StatusInvalid:
		if strings.Contains(done.Reason, "repeated") {
			return &client.ViolationError{Rule: client.RuleDuplicate, Detail: done.Reason}
		}
		return &client.ViolationError{Rule: client.RuleContinuation, Detail: done.Reason}
	default:
		return fmt.Errorf("the batch was refused (%s): %s", done.Status, done.Reason)
	}
	r.runner.promise(r.id, c.Checkpoint.ExpiresAt)
	received := Received{
		Source: r.origin(), Generation: c.Generation, Phase: batch.Phase, Complete: batch.Complete, Groups: len(batch.Groups),
		Through: batch.Through, HighWater: batch.HighWater, Revision: done.Revision,
	}
	if err := r.runner.tell(ctx, received); err != nil {
		return err
	}
	// What planning alone found invalid has ended the generation already.
	g, err := r.runner.store.Generation(ctx, r.id)
	if err != nil {
		return failed(err)
	}
	if g.Number != c.Generation || g.Ending != nil {
		return errOver
	}
	latest.Checkpoint = &c.Checkpoint
	r.latest = latest
	return nil
}

// admit checks that a batch continues what is recorded.
func admit(g *client.Generation, c *client.Commit) error {
	switch {
	case g == nil || g.Number != c.Generation:
		return fmt.Errorf("generation %d is not the latest", c.Generation)
	case g.Ended != nil:
		return errOver
	case g.Checkpoint == nil && c.From != "":
		return errors.New("the batch was read with a cursor that is not recorded")
	case g.Checkpoint != nil && g.Checkpoint.Cursor != c.From:
		return errors.New("the batch was read with a cursor other than the recorded one")
	}
	return nil
}

// continuity refuses a snapshot taken before what an earlier generation of the same
// scope, epoch included, has already seen; and keeps how far this one is.
func (r *record) continuity(ctx context.Context, g *client.Generation, c *client.Commit) ([]reconcile.Entry, error) {
	after := &c.Checkpoint
	key := throughKey(r.id, after.ScopeDigest)
	through, found, err := getNumber(ctx, r.runner.store, key)
	if err != nil {
		return nil, failed(err)
	}
	if g.Checkpoint == nil && found && through > after.W {
		return nil, &client.ViolationError{Rule: client.RuleContinuation,
			Detail: "the new snapshot stands at " + strconv.FormatUint(after.W, 10) + ", but this epoch was already read through " + strconv.FormatUint(through, 10)}
	}
	if found && through >= after.Through {
		return nil, nil
	}
	return []reconcile.Entry{asNumber(key, after.Through)}, nil
}

// batch is what a store takes. The time of receipt is taken once, here.
func (r *record) batch(g *client.Generation, c *client.Commit) (reconcile.Batch, error) {
	groups, err := observations(c.Groups)
	if err != nil {
		return reconcile.Batch{}, err
	}
	after := &c.Checkpoint
	b := reconcile.Batch{
		Source: r.id, Generation: c.Generation, Scope: after.Scope, Phase: reconcile.PhaseSnapshot, Complete: after.Phase == client.PhaseComplete,
		Groups: groups, Through: after.Through, HighWater: after.HighWater,
		Provenance: reconcile.Provenance{
			Adapter: kindLive, Authentication: "configured-transport", Peer: g.Intent.Identity, ReceivedAt: uint64(time.Now().Unix()),
		},
		Checkpoint: &reconcile.Checkpoint{Session: after.Session, Cursor: after.Cursor, ExpiresAt: after.ExpiresAt, ReplayUntil: after.ReplayUntil},
	}
	if r.key.Principal != "" {
		b.Provenance.Authentication = "brc103"
	}
	if after.Phase == client.PhaseLive {
		b.Phase = reconcile.PhaseLive
	}
	return b, nil
}

func (r *record) End(ctx context.Context, e client.Ending) error {
	ctx = context.WithoutCancel(ctx)
	r.latest = nil
	err := r.runner.store.End(ctx, reconcile.Ending{
		Source: r.id, Generation: e.Generation, Code: string(e.Code), Reason: e.Reason, At: e.At, Claim: e.Claim, ClaimID: e.ClaimID,
	}, reconcile.Attach{})
	if err != nil {
		return failed(fmt.Errorf("record the end of the generation: %w", err))
	}
	r.runner.promise(r.id, 0)
	r.runner.moved()
	return r.tellEnding(ctx)
}

// Undelivered is always nothing; see record.
func (r *record) Undelivered(context.Context) (*client.Delivery, error) { return nil, nil }

// Delivered has nothing to mark; see record.
func (r *record) Delivered(context.Context, client.Mark) error { return nil }
