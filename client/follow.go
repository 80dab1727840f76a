package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// mostRaises is how many Opens in a row may be refused because they asked for too little.
const mostRaises = 3

// closeTimeout bounds the good-bye of CloseSession.
const closeTimeout = 5 * time.Second

// Follow opens or resumes one source and stays with it: snapshot, then live
// changes, each batch verified, recorded and only then shown. It returns nil
// when UntilLive or MaxBatches ends the run, the context's cause when that ends
// it, and otherwise why it cannot go on: [*EndedError], [*ViolationError],
// [*EquivocationError], [*ManifestError], [*PinError], [*PaymentError],
// [*ProviderError], [*UnverifiedError], [*GaveUpError], [ErrBusy], [ErrSigned],
// [ErrPublic], an error of the state, or the error of On.
//
// What it recorded stays, and following again with the same state goes on from
// there.
func Follow(ctx context.Context, o Options) error {
	key, query, err := o.normalise()
	if err != nil {
		return err
	}
	t, err := newTransport(key.Base, &o)
	if err != nil {
		return err
	}
	defer t.close()
	record, err := o.State.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer record.Release()
	f := &follower{options: o, key: key, query: query, record: record, transport: t, verifiedAt: time.Now(), openedAt: time.Now()}
	err = f.run(ctx)
	if o.CloseSession {
		f.goodbye(ctx)
	}
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// Events is [Follow] as an iterator: it yields events, and at the end the error
// of the run, if there is one, with a nil event. Options.On is not used.
// Breaking out of the loop ends the run; the page of the last event is delivered
// again by the next run.
func Events(ctx context.Context, o Options) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		o.On = func(_ context.Context, e Event) error {
			if !yield(e, nil) {
				return errDone
			}
			return nil
		}
		if err := Follow(ctx, o); err != nil {
			yield(nil, err)
		}
	}
}

// errDone ends a run that has nothing to complain about.
var errDone = errors.New("done")

// follower is one run. It is owned by the goroutine of Follow, which sends one
// request at a time (C7).
type follower struct {
	// Static after construction.
	options   Options
	key       Key
	query     canon.Value
	record    Record
	transport *transport

	// The generation at work, as the record has it.
	generation *Generation
	terms      terms
	scope      wire.Scope // what every batch must repeat; before the first perhaps without epoch and access

	batches    int       // recorded by this run
	caughtUp   bool      // a live batch of this run reached the high water
	raises     int       // Opens in a row that asked for too little
	began      time.Time // of the generation at work, in this run
	openedAt   time.Time // when a generation last had a first batch
	restarts   backoff   // of generations that did not last
	retries    backoff   // of requests without a verified answer
	pace       backoff   // of empty live answers that came at once
	raised     *Limits   // what the next request asks for instead of the usual
	verifiedAt time.Time // of the last verified answer
}

func (f *follower) run(ctx context.Context) error {
	if err := f.redeliver(ctx); err != nil {
		return err
	}
	st, err := f.record.Status(ctx)
	if err != nil {
		return err
	}
	if err := f.resume(ctx, st); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if f.generation == nil {
			err = f.begin(ctx)
		} else {
			err = f.step(ctx)
		}
		if err == nil {
			continue
		}
		if err = f.judge(ctx, err); err != nil {
			return err
		}
	}
}

// redeliver hands out what is recorded and was not taken by an earlier run.
func (f *follower) redeliver(ctx context.Context) error {
	for {
		d, err := f.record.Undelivered(ctx)
		if err != nil || d == nil {
			return err
		}
		groups, err := restore(d.Scope, d.Snapshot, d.Groups)
		if err != nil {
			return fmt.Errorf("read a recorded group again: %w", err)
		}
		if err := f.deliver(ctx, d, groups); err != nil {
			return err
		}
	}
}

// resume takes up the latest generation, if it can be continued.
func (f *follower) resume(ctx context.Context, st Status) error {
	g := st.Latest
	if g == nil {
		return nil
	}
	if g.Ended != nil {
		if g.Checkpoint == nil || g.Ended.Code == CodeCancelled || f.options.OnReset == Reopen {
			return nil
		}
		return &EndedError{Ending: *g.Ended}
	}
	if err := f.adopt(g); err != nil {
		pin, ok := errors.AsType[*PinError](err)
		if !ok || pin.What != "identity" || f.options.OnReset != Reopen {
			return err
		}
		// The caller names another identity than the one the session began with.
		f.generation = g
		return f.end(ctx, CodeContextChanged, "another identity is expected now", nil)
	}
	if cp := g.Checkpoint; cp != nil {
		return f.options.On(ctx, Resumed{
			Generation: g.Number, Phase: cp.Phase, Through: cp.Through, HighWater: cp.HighWater, ExpiresAt: cp.ExpiresAt,
		})
	}
	return nil
}

// adopt makes a recorded generation the one at work, under its own manifest.
func (f *follower) adopt(g *Generation) error {
	m, err := parseManifest(g.Intent.Manifest)
	if err != nil {
		return fmt.Errorf("read the recorded manifest: %w", err)
	}
	if err := f.checkPins(m, g.Intent.Chain, g.Intent.Identity); err != nil {
		return err
	}
	t, err := m.terms(f.key.Service, f.signed())
	if err != nil {
		return err
	}
	f.transport.expect(m.Identity)
	scope := wire.Scope{
		Chain: m.Chain, Provider: wire.Origin(f.key.Base), Service: f.key.Service, QueryDigest: f.key.QueryDigest,
		RulesDigest: t.rulesDigest, Access: "public", Epoch: t.epoch,
	}
	if f.signed() { // the identity speaks, and says what the key's owner may see
		scope.Provider, scope.Access = m.Identity, ""
	}
	if g.Checkpoint != nil {
		if scope, err = parseScope(g.Checkpoint.Scope); err != nil {
			return err
		}
	}
	f.generation, f.terms, f.scope, f.began = g, t, scope, time.Now()
	return nil
}

// signed reports whether the requests of this run are signed.
func (f *follower) signed() bool { return f.key.Principal != "" }

// checkPins holds a manifest against what the caller and the state hold on to.
// An identity named by the caller takes the place of the one first seen.
func (f *follower) checkPins(m *Manifest, chain Chain, identity string) error {
	switch {
	case f.options.Chain != nil && m.Chain != *f.options.Chain:
		return pinChain(*f.options.Chain, m.Chain)
	case chain != (Chain{}) && m.Chain != chain:
		return pinChain(chain, m.Chain)
	case f.options.Identity != "" && m.Identity != f.options.Identity:
		return &PinError{What: "identity", Want: f.options.Identity, Got: m.Identity}
	case f.options.Identity == "" && identity != "" && m.Identity != identity:
		return &PinError{What: "identity", Want: identity, Got: m.Identity}
	}
	return nil
}

// begin discovers the provider and saves everything an Open needs (C4).
func (f *follower) begin(ctx context.Context) error {
	st, err := f.record.Status(ctx)
	if err != nil {
		return err
	}
	f.transport.expect(cmp.Or(f.options.Identity, st.Identity))
	m, err := discover(ctx, f.transport, f.options)
	if err != nil {
		return err
	}
	if err := f.checkPins(m, st.Chain, st.Identity); err != nil {
		return err
	}
	t, err := m.terms(f.key.Service, f.signed())
	if err != nil {
		return err
	}
	f.verified()
	open := wire.Open{
		RequestID: newRequestID(), Service: f.key.Service, Query: f.query,
		RequiredRulesDigest: t.rulesDigest, Limits: f.limits(),
	}
	intent := Intent{
		RequestID: open.RequestID, Open: open.Encode(), Manifest: m.Packet, Digest: m.Digest, Chain: m.Chain, Identity: m.Identity,
	}
	if uint64(len(intent.Open)) > uint64(t.maxRequestBytes) {
		return fmt.Errorf("the query makes a request of %d bytes, more than the %d this service takes", len(intent.Open), t.maxRequestBytes)
	}
	number, err := f.record.Begin(ctx, intent)
	if err != nil {
		return err
	}
	return f.adopt(&Generation{Number: number, Intent: intent})
}

// newRequestID has 256 random bits and only characters the profile allows.
func newRequestID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// limits are what the next request asks for.
func (f *follower) limits() Limits {
	if f.raised != nil {
		return *f.raised
	}
	return f.options.Limits
}

// step sends one Open or Read, verifies the answer, records it and shows it.
func (f *follower) step(ctx context.Context) error {
	g := f.generation
	x := expectation{scope: f.scope, terms: f.terms, requested: f.limits(), before: g.Checkpoint}
	path, request, from := openPath, g.Intent.Open, ""
	if cp := g.Checkpoint; cp == nil {
		open, err := wire.ParseOpen(g.Intent.Open)
		if err != nil {
			return fmt.Errorf("read the recorded open: %w", err)
		}
		x.requested = open.Limits
	} else {
		if uint64(time.Now().Unix()) >= cp.ExpiresAt {
			return f.end(ctx, CodeExpired, "the promised life of the session is over", nil)
		}
		if !f.caughtUp {
			x.requested.WaitMs = 0 // there is something to fetch, or to find out
		}
		path, from = readPath, cp.Cursor
		request = (&wire.Read{Session: cp.Session, Cursor: cp.Cursor, Limits: x.requested}).Encode()
	}
	effective := x.requested.Min(f.terms.limits)
	sent := time.Now()
	body, err := f.transport.post(ctx, path, selection{digest: g.Intent.Digest}, request, effective)
	if err != nil {
		return err
	}
	took := time.Since(sent)
	x.notAfter = uint64(time.Now().Unix()) + uint64(orDefault(f.options.ClockSkew, defaultClockSkew)/time.Second)
	batch, after, err := x.verify(body)
	if err != nil {
		return err
	}
	f.verified()
	if err := f.commit(ctx, from, batch, after); err != nil {
		return err
	}
	if f.options.MaxBatches > 0 && f.batches >= f.options.MaxBatches {
		return errDone
	}
	return f.rest(ctx, x.before, &after, effective, took)
}

// verified notes that the provider answered as it should.
func (f *follower) verified() {
	f.verifiedAt = time.Now()
	f.retries.reset()
}

// commit records a verified batch and its checkpoint together, makes the
// checkpoint current, and then shows the batch (C3).
func (f *follower) commit(ctx context.Context, from string, b *wire.Batch, after Checkpoint) error {
	g := f.generation
	before := g.Checkpoint
	moved := before == nil || *positionOf(before) != *positionOf(&after)
	var done Committed
	if moved {
		var err error
		if done, err = f.record.Commit(ctx, Commit{Generation: g.Number, From: from, Checkpoint: after, Groups: receipts(b.Groups)}); err != nil {
			return err
		}
	}
	g.Checkpoint = &after
	f.batches++
	f.raised = nil
	f.raises = 0
	f.scope = b.Scope
	if after.Phase == PhaseLive {
		f.caughtUp = after.Through >= after.HighWater
	}
	if done.Mark.Page == 0 {
		return nil
	}
	d := &Delivery{
		Mark: done.Mark, Opened: before == nil, Complete: after.Phase == PhaseComplete,
		FirstLive: after.Phase == PhaseLive && before.Phase != PhaseLive, Snapshot: after.Phase != PhaseLive,
		Through: after.Through, HighWater: after.HighWater, W: after.W, ExpiresAt: after.ExpiresAt,
		Replaces: done.Replaces, Unseen: done.Unseen, Scope: after.Scope,
	}
	return f.deliver(ctx, d, b.Groups)
}

// position is what makes a checkpoint another one; the high water alone is news
// about the provider, not progress.
type position struct {
	cursor  string
	phase   Phase
	through uint64
}

func positionOf(cp *Checkpoint) *position {
	return &position{cursor: cp.Cursor, phase: cp.Phase, through: cp.Through}
}

// deliver hands out what is recorded and marks it as delivered.
func (f *follower) deliver(ctx context.Context, d *Delivery, groups []wire.Group) error {
	generation := d.Mark.Generation
	var events []Event
	if d.Opened {
		scope, err := parseScope(d.Scope)
		if err != nil {
			return err
		}
		events = append(events, Opened{Generation: generation, Epoch: scope.Epoch, W: d.W, ExpiresAt: d.ExpiresAt})
	}
	for i := range groups {
		g := &groups[i]
		events = append(events, Group{
			Generation: generation, Page: d.Mark.Page, Index: i, Snapshot: d.Snapshot,
			ID: g.ID, Sequence: g.Sequence, Observations: g.Observations,
		})
	}
	if d.Complete {
		events = append(events, SnapshotComplete{Generation: generation, W: d.W, Replaces: d.Replaces, Unseen: d.Unseen})
	}
	if d.FirstLive {
		events = append(events, Live{Generation: generation, Through: d.Through, HighWater: d.HighWater})
	}
	if e := d.Ending; e != nil {
		events = append(events, Ended{Generation: generation, Code: e.Code, Reason: e.Reason, At: e.At})
	}
	for _, e := range events {
		if err := f.options.On(ctx, e); err != nil {
			return err
		}
	}
	return f.record.Delivered(ctx, d.Mark)
}

// rest decides whether to go on at once after an answer.
func (f *follower) rest(ctx context.Context, before, after *Checkpoint, effective Limits, took time.Duration) error {
	if after.Phase != PhaseLive {
		return nil
	}
	if f.options.UntilLive && f.caughtUp {
		return errDone
	}
	wait := time.Duration(effective.WaitMs) * time.Millisecond
	switch {
	case before.Phase != PhaseLive || *positionOf(before) != *positionOf(after): // progress
	case wait > 0 && took >= wait/2: // a quiet poll, which has waited at the provider
	case wait == 0 && f.caughtUp && min(f.limits().WaitMs, f.terms.limits.WaitMs) > 0: // the next one will
	default:
		// A provider that is shutting down, or does not wait, is not hammered.
		return sleep(ctx, f.pace.next(lastPace, 0))
	}
	f.pace.reset()
	return nil
}

// goodbye closes the session and records that it is over, as well as it can.
func (f *follower) goodbye(ctx context.Context) {
	g := f.generation
	if g == nil || g.Checkpoint == nil || g.Ended != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := f.record.End(ctx, Ending{Generation: g.Number, Code: CodeCancelled, Reason: "closed by the follower", At: uint64(time.Now().Unix())})
	if err == nil {
		request := (&wire.Close{Session: g.Checkpoint.Session}).Encode()
		_, err = f.transport.post(ctx, closePath, selection{digest: g.Intent.Digest}, request, Limits{MaxBytes: wire.MaxErrorBytes})
	}
	if err != nil {
		f.options.Log.Debug("the session could not be closed; it ends by itself", "error", err)
	}
}
