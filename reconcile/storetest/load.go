package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Load feeds a store as a provider of many outputs would: pages of a snapshot,
// then live groups of three observations, each a spend of one output, its
// withdrawal, and the listing of what took its place. Scripts are not run, and
// evidence is bytes of a usual size.
type Load struct {
	Store    reconcile.Store
	Progress func(listed uint64) // called after each page of the snapshot; may be nil

	backend  reconcile.Backend
	source   reconcile.SourceID
	listed   uint64 // outputs of the snapshot
	replaced uint64 // of them, or of what took their place
	sequence uint64
	received uint64
}

// NewLoad opens a store for a load. Partition is that of a backend that needs one.
func NewLoad(ctx context.Context, b reconcile.Backend, p reconcile.Partition) (*Load, error) {
	store, err := openLoad(ctx, b, p)
	if err != nil {
		return nil, err
	}
	l := &Load{Store: store, backend: b}
	if l.source, err = store.Source(ctx, reconcile.SourceKey{Kind: "load"}); err != nil {
		return nil, err
	}
	if _, err = store.Begin(ctx, l.source, reconcile.Attach{}); err != nil {
		return nil, err
	}
	at, err := store.Revision(ctx)
	l.received = at.Received
	return l, err
}

func openLoad(ctx context.Context, b reconcile.Backend, p reconcile.Partition) (reconcile.Store, error) {
	return reconcile.Open(ctx, b, reconcile.Options{
		Partition: p, Chain: reconcile.Chain{Network: "regtest", GenesisHash: "00"},
		Context: reconcile.Context{ID: "view", View: reconcile.ChainView{TipHash: "0", TipHeight: 1000, MedianTimePast: 1_600_000_000}},
	})
}

// copied is how many entries one commit of a copy has.
const copied = 8192

// CopyTo writes everything the load's store knows to an empty backend, key by key,
// and returns a load that goes on there. It is how a large store is made without
// what its history costs a disk: the engine works in memory, and the backend gets
// its keys in their order. A million outputs are about 17 million entries.
func (l *Load) CopyTo(ctx context.Context, to reconcile.Backend, p reconcile.Partition) (*Load, error) {
	var batch []reconcile.Entry
	flush := func() error {
		defer func() { batch = batch[:0] }()
		return to.Update(ctx, func(reconcile.Reader) (reconcile.Writes, error) { return reconcile.Writes{Put: batch}, nil })
	}
	err := l.backend.View(ctx, func(r reconcile.Reader) error {
		for e, err := range r.Scan(ctx, nil, nil, 0) {
			if err != nil {
				return err
			}
			if batch = append(batch, e); len(batch) == copied {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return flush()
	})
	if err != nil {
		return nil, err
	}
	next := *l
	next.backend = to
	next.Store, err = openLoad(ctx, to, p)
	return &next, err
}

// read reads all of the store and counts its entries.
func (l *Load) read(ctx context.Context) (entries int, err error) {
	err = l.backend.View(ctx, func(r reconcile.Reader) error {
		for _, err := range r.Scan(ctx, nil, nil, 0) {
			if err != nil {
				return err
			}
			entries++
		}
		return nil
	})
	return entries, err
}

// w is where the snapshot of a load was taken.
const w = 1 << 20

// Snapshot lists so many outputs, in pages of 256, and completes the snapshot.
// What is replaced later is spread over them; for that their number shares no
// factor with the step of Replace, as powers of two and of ten do not.
func (l *Load) Snapshot(ctx context.Context, outputs uint64) error {
	for outputs > 0 {
		page := min(outputs, 256)
		outputs -= page
		if err := l.page(ctx, page, outputs == 0); err != nil {
			return err
		}
	}
	l.sequence = w
	return nil
}

// page delivers one page of the snapshot.
func (l *Load) page(ctx context.Context, outputs uint64, last bool) error {
	m := l.batch(reconcile.PhaseSnapshot, w)
	m.Batch.Complete = last
	for range outputs {
		l.listed++
		x := l.mined(l.listed)
		l.sequence++
		l.add(&m, w, l.observe("output", x.id, 0, reconcile.Present, &x, nil))
	}
	if err := l.take(ctx, m); err != nil {
		return err
	}
	if l.Progress != nil {
		l.Progress(l.listed)
	}
	return nil
}

// Replace delivers one page of live groups.
func (l *Load) Replace(ctx context.Context, groups int) error {
	m := l.batch(reconcile.PhaseLive, l.sequence+uint64(groups))
	for range groups {
		old := l.mined(1 + l.replaced*2654435761%l.listed) // anywhere in the store
		if l.replaced >= l.listed {
			return errors.New("the load has nothing left to replace")
		}
		l.replaced++
		x := pay(old.id, 0, l.replaced)
		l.sequence++
		l.add(&m, l.sequence,
			l.observe("spend", old.id, 0, reconcile.SpendOf, &x, &old),
			l.observe("withdraw", old.id, 0, reconcile.Absent, nil, nil),
			l.observe("output", x.id, 0, reconcile.Present, &x, &old))
	}
	return l.take(ctx, m)
}

func (l *Load) batch(phase reconcile.Phase, through uint64) reconcile.Receive {
	return reconcile.Receive{Context: "view", Batch: reconcile.Batch{
		Source: l.source, Generation: 1, Scope: []byte(`{"load":true}`), Phase: phase, Through: through, HighWater: through,
		Provenance: reconcile.Provenance{Adapter: "load", Authentication: "configured-transport", ReceivedAt: 1_700_000_000 + l.received},
	}}
}

type loaded struct {
	reconcile.Observation

	plan *reconcile.Planned
}

func (l *Load) add(m *reconcile.Receive, sequence uint64, said ...loaded) {
	g := reconcile.Group{ID: fmt.Sprintf("group-%d-%d", l.sequence, l.listed), Sequence: sequence}
	for _, s := range said {
		s.ID = fmt.Sprintf("%s-%d", g.ID, len(g.Observations))
		g.Observations = append(g.Observations, s.Observation)
		if s.plan != nil && !slices.ContainsFunc(m.Plan, func(p reconcile.Planned) bool { return p.Variant == s.plan.Variant }) {
			m.Plan = append(m.Plan, *s.plan)
		}
	}
	m.Batch.Groups = append(m.Batch.Groups, g)
}

// payment is a transaction of the load.
type payment struct {
	id  spend.TxID
	raw []byte
}

// mined is the n-th transaction of the snapshot: it spends something outside.
func (l *Load) mined(n uint64) payment {
	outside := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("outside"), n))
	return pay(outside, 1, n)
}

// pay spends one output and has two of its own, with scripts of the usual size.
func pay(id spend.TxID, index uint32, salt uint64) payment {
	slices.Reverse(id[:])
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(append(raw, 1), id[:]...)
	raw = binary.LittleEndian.AppendUint32(raw, index)
	raw = append(append(raw, 107), make([]byte, 107)...)
	raw = append(raw, 0xff, 0xff, 0xff, 0xff, 2)
	for range 2 {
		raw = binary.LittleEndian.AppendUint64(raw, salt)
		raw = append(append(raw, 25), make([]byte, 25)...)
	}
	raw = append(raw, 0, 0, 0, 0)
	return payment{reconcile.TxIDOf(raw), raw}
}

// observe says something, with evidence when x is given; a mined ancestor, or x
// itself without one, comes with a proof.
func (l *Load) observe(kind string, id spend.TxID, index uint32, effect reconcile.Effect, x, ancestor *payment) loaded {
	o := loaded{Observation: reconcile.Observation{Kind: kind, Outpoint: spend.Outpoint{TxID: id, Index: index}, Effect: effect}}
	if x != nil {
		proved := x
		beef := append([]byte("beef"), x.raw...)
		o.plan = &reconcile.Planned{Target: x.id, Txs: []reconcile.RawTx{{ID: x.id, Raw: x.raw}}}
		if ancestor != nil {
			proved = ancestor
			beef = append(beef, ancestor.raw...)
			o.plan.Txs = append(o.plan.Txs, reconcile.RawTx{ID: ancestor.id, Raw: ancestor.raw})
		}
		path := sha256.Sum256(proved.id[:])
		for range 10 { // a Merkle path of ten levels
			beef = append(beef, path[:]...)
		}
		o.plan.Claims = []reconcile.Claim{{TxID: proved.id, Height: 1 + uint32(path[0]), Root: [32]byte{path[0]}, Holds: true, Known: true}}
		o.Target, o.BEEF, o.Variant = x.id, beef, sha256.Sum256(beef)
		o.plan.Variant = o.Variant
	}
	o.Canonical = fmt.Appendf(nil, `{"beef":%q,"context":{"name":"an attribute"},"kind":%q,"outputIndex":%d,"place":"%d-%d","txid":%q}`,
		base64.StdEncoding.EncodeToString(o.BEEF), kind, index, l.sequence, l.listed, id)
	return o
}

// take receives a batch, has its candidates found valid, and accepts its groups.
func (l *Load) take(ctx context.Context, m reconcile.Receive) error {
	c, err := l.Store.Commit(ctx, l.received, m)
	if err != nil || c.Status != reconcile.StatusCommitted {
		return errors.Join(err, fmt.Errorf("receive: %s %s", c.Status, c.Reason))
	}
	l.received = c.Revision.Received
	var at reconcile.Cursor
	for {
		jobs, next, err := l.Store.Work(ctx, at, 1024)
		if err != nil {
			return err
		}
		var results []reconcile.Result
		for _, j := range jobs {
			results = append(results, reconcile.Result{
				Source: j.Source, Generation: j.Generation, Group: j.Group, Index: j.Index, Variant: j.Variant, Context: j.Context,
				Status: reconcile.Verified, Facts: []reconcile.Fact{{TxID: j.Target, Valid: true}},
			})
		}
		if len(results) > 0 {
			done, err := l.Store.Record(ctx, results)
			if err != nil {
				return err
			}
			for _, r := range done {
				if !r.Kept {
					return fmt.Errorf("a result was dropped: %s", r.Reason)
				}
			}
		}
		if at = next; at == (reconcile.Cursor{}) {
			break
		}
	}
	for {
		ready, err := l.Store.Settled(ctx, 256)
		if err != nil || len(ready) == 0 {
			return err
		}
		done, err := l.Store.CommitAll(ctx, l.received, ready)
		if err != nil {
			return err
		}
		for _, c := range done {
			if c.Status != reconcile.StatusCommitted {
				return fmt.Errorf("accept: %s %s", c.Status, c.Reason)
			}
			l.received = c.Revision.Received
		}
	}
}
