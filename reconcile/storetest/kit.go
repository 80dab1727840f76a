package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Partition is whose knowledge the suite keeps.
var Partition = reconcile.Partition{Application: "storetest", Account: "a", Access: "local"}

// Kit is a store with a hand to feed it. Scripts are not run: what a transaction
// is, Bad says.
type Kit struct {
	testing.TB

	Store    reconcile.Store
	Options  reconcile.Options
	Bad      map[spend.TxID]bool // scripts fail
	ctx      context.Context     //nolint:containedctx // one test, one context
	instance Instance
	clock    uint64
	salt     uint32
}

// NewKit opens a store over an empty instance.
func NewKit(t testing.TB, in Instance, options ...func(*reconcile.Options)) *Kit {
	t.Helper()
	k := &Kit{TB: t, ctx: t.Context(), instance: in, Bad: map[spend.TxID]bool{}, clock: 1_700_000_000}
	k.Options = reconcile.Options{
		Partition: Partition, Chain: reconcile.Chain{Network: "regtest", GenesisHash: "00"}, NonFinal: true,
		Context: reconcile.Context{ID: "view-0", View: reconcile.ChainView{TipHash: "0", TipHeight: 100, MedianTimePast: 1_600_000_000}},
	}
	for _, o := range options {
		o(&k.Options)
	}
	k.Open(in.Backend)
	return k
}

// Open opens the store over a backend.
func (k *Kit) Open(b reconcile.Backend) {
	k.Helper()
	store, err := reconcile.Open(k.ctx, b, k.Options)
	if err != nil {
		k.Fatal(err)
	}
	k.Store = store
}

// Restart opens the same store again, where there is one.
func (k *Kit) Restart(t *testing.T) {
	if k.instance.Reopen != nil {
		k.Open(k.instance.Reopen(t))
	}
}

// Tx is a transaction made for a test.
type Tx struct {
	ID  spend.TxID
	Raw []byte
	Of  []Tx // what its evidence holds beside it
	in  []spend.Input
}

// Out names an output.
func (x Tx) Out(index uint32) spend.Outpoint { return spend.Outpoint{TxID: x.ID, Index: index} }

// With returns the transaction with ancestors in its evidence.
func (x Tx) With(ancestors ...Tx) Tx {
	x.Of = ancestors
	return x
}

// Spend makes a transaction with final inputs and three outputs.
func (k *Kit) Spend(inputs ...spend.Outpoint) Tx {
	list := make([]spend.Input, len(inputs))
	for i, o := range inputs {
		list[i] = spend.Input{Outpoint: o, Sequence: 0xffffffff}
	}
	return k.Locked(0, list...)
}

// Locked makes a transaction with a lock time.
func (k *Kit) Locked(lockTime uint32, inputs ...spend.Input) Tx {
	k.salt++
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, byte(len(inputs)))
	for _, in := range inputs {
		id := in.TxID
		slices.Reverse(id[:])
		raw = append(raw, id[:]...)
		raw = binary.LittleEndian.AppendUint32(raw, in.Index)
		raw = append(raw, 0)
		raw = binary.LittleEndian.AppendUint32(raw, in.Sequence)
	}
	raw = append(raw, 3)
	for range 3 {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(k.salt))
		raw = append(raw, 1, 0x51)
	}
	raw = binary.LittleEndian.AppendUint32(raw, lockTime)
	return Tx{ID: reconcile.TxIDOf(raw), Raw: raw, in: inputs}
}

// Root makes a transaction to trust: pass it by Trust to NewKit.
func Root(salt uint32) Tx {
	k := &Kit{salt: salt}
	return k.Spend(spend.Outpoint{Index: salt})
}

// Trust makes roots trusted.
func Trust(roots ...Tx) func(*reconcile.Options) {
	return func(o *reconcile.Options) {
		for _, r := range roots {
			o.Roots = append(o.Roots, reconcile.Root{Raw: r.Raw})
		}
	}
}

// Said is one observation with what its evidence holds.
type Said struct {
	reconcile.Observation

	plan *reconcile.Planned
}

func (k *Kit) said(id, kind string, o spend.Outpoint, effect reconcile.Effect, x *Tx, claims []reconcile.Claim) Said {
	s := Said{Observation: reconcile.Observation{
		ID: id, Kind: kind, Outpoint: o, Effect: effect, Canonical: fmt.Appendf(nil, `{"id":%q,"kind":%q,"outpoint":%q}`, id, kind, o),
	}}
	if x == nil {
		return s
	}
	beef := slices.Clone(x.Raw)
	s.plan = &reconcile.Planned{Target: x.ID, Txs: []reconcile.RawTx{{ID: x.ID, Raw: x.Raw}}, Claims: claims}
	for _, a := range x.Of {
		beef = append(beef, a.Raw...)
		s.plan.Txs = append(s.plan.Txs, reconcile.RawTx{ID: a.ID, Raw: a.Raw})
	}
	for _, c := range claims {
		beef = append(beef, fmt.Sprint(c)...)
	}
	s.Target, s.BEEF, s.Variant = x.ID, beef, sha256.Sum256(beef)
	s.plan.Variant = s.Variant
	return s
}

// Lists says that an output is listed.
func (k *Kit) Lists(id string, x Tx, index uint32, claims ...reconcile.Claim) Said {
	return k.said(id, "output", x.Out(index), reconcile.Present, &x, claims)
}

// Spends says that a transaction spends its first input.
func (k *Kit) Spends(id string, x Tx, claims ...reconcile.Claim) Said {
	return k.said(id, "spend", x.in[0].Outpoint, reconcile.SpendOf, &x, claims)
}

// Withdraws says that an output is listed no longer.
func (k *Kit) Withdraws(id string, o spend.Outpoint) Said {
	return k.said(id, "withdraw", o, reconcile.Absent, nil, nil)
}

// Group is a group with what its evidence holds.
type Group struct {
	ID       string
	Sequence uint64
	Said     []Said
}

// G makes a group.
func G(id string, sequence uint64, said ...Said) Group { return Group{id, sequence, said} }

// Source opens a source and its first generation.
func (k *Kit) Source(label string) reconcile.SourceID {
	k.Helper()
	id, err := k.Store.Source(k.ctx, reconcile.SourceKey{Kind: "test", Label: label})
	if err != nil {
		k.Fatal(err)
	}
	g, err := k.Store.Generation(k.ctx, id)
	if err != nil {
		k.Fatal(err)
	}
	if g.Number == 0 {
		k.Begin(id)
	}
	return id
}

// Begin starts the next generation.
func (k *Kit) Begin(id reconcile.SourceID) uint64 {
	k.Helper()
	n, err := k.Store.Begin(k.ctx, id, reconcile.Attach{})
	if err != nil {
		k.Fatal(err)
	}
	return n
}

// Reset ends the latest generation and starts the next.
func (k *Kit) Reset(id reconcile.SourceID) uint64 {
	k.Helper()
	k.EndOf(id)
	return k.Begin(id)
}

// EndOf ends the latest generation.
func (k *Kit) EndOf(id reconcile.SourceID) {
	k.Helper()
	e := reconcile.Ending{Source: id, Generation: k.Generation(id).Number, Code: "reset-required", Reason: "test", At: k.clock}
	if err := k.Store.End(k.ctx, e, reconcile.Attach{}); err != nil {
		k.Fatal(err)
	}
}

// Generation is the latest one.
func (k *Kit) Generation(id reconcile.SourceID) reconcile.Generation {
	k.Helper()
	g, err := k.Store.Generation(k.ctx, id)
	if err != nil {
		k.Fatal(err)
	}
	return g
}

// Batch makes a receive. Each has a time of its own, so that no two are the same.
func (k *Kit) Batch(source reconcile.SourceID, generation uint64, phase reconcile.Phase, complete bool, groups ...Group) reconcile.Receive {
	k.clock++
	r := reconcile.Receive{
		Batch: reconcile.Batch{
			Source: source, Generation: generation, Phase: phase, Complete: complete, Scope: []byte(`{"epoch":"1"}`),
			Provenance: reconcile.Provenance{Adapter: "storetest", Authentication: "configured-transport", ReceivedAt: k.clock},
		},
		Context: k.Options.Context.ID,
	}
	seen := map[[64]byte]bool{}
	for _, g := range groups {
		group := reconcile.Group{ID: g.ID, Sequence: g.Sequence}
		for _, s := range g.Said {
			group.Observations = append(group.Observations, s.Observation)
			if s.plan == nil {
				continue
			}
			var id [64]byte
			copy(id[:], s.Variant[:])
			copy(id[32:], s.Target[:])
			if !seen[id] {
				seen[id] = true
				r.Plan = append(r.Plan, *s.plan)
			}
		}
		r.Batch.Groups = append(r.Batch.Groups, group)
		r.Batch.Through, r.Batch.HighWater = g.Sequence, g.Sequence
	}
	return r
}

// Live makes a live receive of the latest generation.
func (k *Kit) Live(source reconcile.SourceID, groups ...Group) reconcile.Receive {
	k.Helper()
	return k.Batch(source, k.Generation(source).Number, reconcile.PhaseLive, false, groups...)
}

// Snapshot makes a page of the snapshot of the latest generation.
func (k *Kit) Snapshot(source reconcile.SourceID, complete bool, groups ...Group) reconcile.Receive {
	k.Helper()
	return k.Batch(source, k.Generation(source).Number, reconcile.PhaseSnapshot, complete, groups...)
}

// Commit settles a mutation that must be taken.
func (k *Kit) Commit(m reconcile.Mutation) reconcile.Committed {
	k.Helper()
	c, err := reconcile.Settle(k.ctx, k.Store, m)
	if err != nil || !c.Took() {
		k.Fatalf("%T became %+v, %v", m, c, err)
	}
	return c
}

// Refused settles a mutation that must be refused.
func (k *Kit) Refused(m reconcile.Mutation, status reconcile.Status) reconcile.Committed {
	k.Helper()
	before := k.Revision()
	c, err := reconcile.Settle(k.ctx, k.Store, m)
	if err != nil || c.Status != status {
		k.Fatalf("%T became %+v, %v, not %s", m, c, err, status)
	}
	if now := k.Revision(); now != before || c.Revision != before {
		k.Fatalf("a refusal moved %+v to %+v, and says %+v", before, now, c.Revision)
	}
	return c
}

// View changes the context and answers every claim by holds.
func (k *Kit) View(id string, height, mtp uint64, fork uint32, holds func(reconcile.Claim) (holds, known bool)) {
	k.Helper()
	k.clock++
	claims, err := k.Store.Claims(k.ctx, fork, uint32(height))
	if err != nil {
		k.Fatal(err)
	}
	for i := range claims {
		claims[i].Holds, claims[i].Known = false, false
		if holds != nil {
			claims[i].Holds, claims[i].Known = holds(claims[i])
		}
	}
	c := reconcile.Context{ID: id, View: reconcile.ChainView{TipHash: id, TipHeight: height, MedianTimePast: mtp}, Now: k.clock}
	k.Commit(reconcile.ContextChange{Context: c, Prepared: k.Options.Context.ID, Claims: claims, Fork: fork})
	k.Options.Context = c
}

// Jobs lists all work.
func (k *Kit) Jobs() []reconcile.Job {
	k.Helper()
	var all []reconcile.Job
	for after := (reconcile.Cursor{}); ; {
		jobs, next, err := k.Store.Work(k.ctx, after, 3)
		if err != nil {
			k.Fatal(err)
		}
		all = append(all, jobs...)
		if next == (reconcile.Cursor{}) {
			return all
		}
		after = next
	}
}

// Check makes the result of a job as a verifier would.
func (k *Kit) Check(j reconcile.Job) reconcile.Result {
	k.Helper()
	e, err := k.Store.Load(k.ctx, j)
	if err != nil {
		k.Fatal(err)
	}
	r := reconcile.Result{
		Source: j.Source, Generation: j.Generation, Group: j.Group, Index: j.Index, Variant: j.Variant, Context: j.Context,
		Status: reconcile.Verified,
	}
	if len(e.Missing) > 0 {
		r.Status, r.Dependencies = reconcile.Unresolved, e.Missing
		return r
	}
	bad := map[spend.TxID]bool{}
	for _, f := range e.Decided {
		bad[f.TxID] = !f.Valid
	}
	for _, tx := range e.Txs {
		if _, decided := bad[tx.ID]; decided || tx.Anchored {
			continue
		}
		for _, c := range tx.Parents {
			if !c.Known {
				k.Fatalf("a parent of %s has no such output", tx.ID)
			}
		}
		bad[tx.ID] = k.Bad[tx.ID]
		r.Facts = append(r.Facts, reconcile.Fact{TxID: tx.ID, Valid: !k.Bad[tx.ID]})
	}
	for id, is := range bad {
		if is {
			r.Status, r.Reason = reconcile.Invalid, "scripts of "+id.String()
		}
	}
	return r
}

// Record keeps results.
func (k *Kit) Record(results ...reconcile.Result) []reconcile.Recorded {
	k.Helper()
	became, err := k.Store.Record(k.ctx, results)
	if err != nil || len(became) != len(results) {
		k.Fatalf("%v, %v", became, err)
	}
	return became
}

// Verify checks the jobs about some transactions (all with none) until there are
// no more, and accepts nothing.
func (k *Kit) Verify(only ...Tx) {
	k.Helper()
	done := map[reconcile.Job]bool{}
	for again := true; again; {
		again = false
		for _, j := range k.Jobs() {
			wanted := len(only) == 0 || slices.ContainsFunc(only, func(x Tx) bool { return x.ID == j.Target })
			if !wanted || done[j] {
				continue
			}
			done[j], again = true, true
			k.Record(k.Check(j))
		}
	}
}

// Settle accepts what is ready and says how much it was.
func (k *Kit) Settle() (n int) {
	k.Helper()
	for {
		ms, err := k.Store.Settled(k.ctx, 100)
		if err != nil {
			k.Fatal(err)
		}
		if len(ms) == 0 {
			return n
		}
		list, err := k.Store.CommitAll(k.ctx, k.Revision().Received, ms)
		if err != nil || len(list) != len(ms) || !list[len(list)-1].Took() {
			k.Fatalf("what is ready became %+v, %v", list, err)
		}
		n += len(ms)
	}
}

// Work verifies and accepts everything.
func (k *Kit) Work() {
	k.Helper()
	for again := true; again; {
		k.Verify()
		again = k.Settle() > 0 && len(k.Jobs()) > 0
	}
}

// Revision is where the store is.
func (k *Kit) Revision() reconcile.Revision {
	k.Helper()
	r, err := k.Store.Revision(k.ctx)
	if err != nil {
		k.Fatal(err)
	}
	return r
}

// Read calls f with a snapshot.
func (k *Kit) Read(f func(reconcile.Snapshot)) {
	k.Helper()
	s, err := k.Store.Read(k.ctx, 0)
	if err != nil {
		k.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			k.Error(err)
		}
	}()
	f(s)
}

// Rows are the active memberships: "source/generation/index of the output in
// names/present or absent/sequence", with the marks of it.
func (k *Kit) Rows(names map[spend.Outpoint]string) (lines []string) {
	k.Helper()
	k.Read(func(s reconcile.Snapshot) {
		for m, err := range s.Memberships() {
			if err != nil {
				k.Fatal(err)
			}
			line := fmt.Sprintf("%d/%d/%s", m.Source, m.Generation, names[m.Outpoint])
			if m.Present {
				line += "/present"
			} else {
				line += "/absent"
			}
			line += fmt.Sprintf("/%d", m.Sequence)
			if m.Stale {
				line += " stale"
			}
			if m.Partial {
				line += " partial"
			}
			lines = append(lines, line)
		}
	})
	slices.Sort(lines)
	return lines
}

// Status is that of a transaction: its word, and pending behind it when it is.
func (k *Kit) Status(x Tx) (status string) {
	k.Helper()
	k.Read(func(s reconcile.Snapshot) {
		tx, ok, err := s.Transaction(x.ID)
		switch {
		case err != nil:
			k.Fatal(err)
		case !ok:
			status = "unknown"
		case tx.Pending && tx.Status != spend.Pending:
			status = "pending, was " + tx.Status.String()
		default:
			status = tx.Status.String()
		}
	})
	return status
}

// Output is the state of an output.
func (k *Kit) Output(o spend.Outpoint) (out reconcile.Output) {
	k.Helper()
	k.Read(func(s reconcile.Snapshot) {
		var err error
		if out, err = s.Output(o); err != nil {
			k.Fatal(err)
		}
	})
	return out
}

// Want compares two things that print.
func (k *Kit) Want(what string, got, want any) {
	k.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		k.Errorf("%s: %s, want %s", what, g, w)
	}
}

// Audit recomputes everything: nothing may differ.
func (k *Kit) Audit() {
	k.Helper()
	list, err := k.Store.Audit(k.ctx)
	if err != nil {
		k.Fatal(err)
	}
	for _, d := range list {
		k.Errorf("audit: %+v", d)
	}
}

// Quarantine lists the refused claims of a source.
func (k *Kit) Quarantine(id reconcile.SourceID) (list []reconcile.Quarantined) {
	k.Helper()
	for q, err := range k.Store.Quarantine(k.ctx, id) {
		if err != nil {
			k.Fatal(err)
		}
		list = append(list, q)
	}
	return list
}

// Faults is what goes wrong with the next updates; see Faulty.
type Faults struct {
	Before int // so many updates fail before they write
	After  int // and then so many commit and lose their reply
}

// Faulty is a backend whose updates go wrong as told.
func Faulty(b reconcile.Backend, f *Faults) reconcile.Backend { return &faulty{b, f} }

type faulty struct {
	reconcile.Backend

	faults *Faults
}

var errBroken = errors.New("the store broke before its commit")

func (f *faulty) Update(ctx context.Context, do func(reconcile.Reader) (reconcile.Writes, error)) error {
	if f.faults.Before > 0 {
		f.faults.Before--
		return f.Backend.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
			if _, err := do(r); err != nil {
				return reconcile.Writes{}, err
			}
			return reconcile.Writes{}, errBroken
		})
	}
	err := f.Backend.Update(ctx, do)
	if err == nil && f.faults.After > 0 {
		f.faults.After--
		return fmt.Errorf("the reply is lost: %w", reconcile.ErrUnknown)
	}
	return err
}

func spend0(x Tx) spend.Input { return spend.Input{Outpoint: x.Out(1), Sequence: 0} }

// Dump is the whole snapshot as text.
func (k *Kit) Dump() string {
	k.Helper()
	var b []byte
	add := func(v any, err error) {
		if err != nil {
			k.Fatal(err)
		}
		b = fmt.Appendf(b, "%+v\n", v)
	}
	k.Read(func(s reconcile.Snapshot) {
		add(s.Revision(), nil)
		add(s.Context(), nil)
		for tx, err := range s.Transactions() {
			order, eligible := tx.Order, tx.Eligible
			tx.Order, tx.Eligible = nil, nil
			add(tx, err)
			if order != nil {
				add(*order, nil)
			}
			if eligible != nil {
				add(*eligible, nil)
			}
		}
		for v, err := range s.Outputs("") {
			add(v, err)
		}
		for v, err := range s.Memberships() {
			add(v, err)
		}
		for v, err := range s.Replacements() {
			add(v, err)
		}
		for v, err := range s.PendingGroups() {
			add(v, err)
		}
		for v, err := range s.PendingComponents() {
			add(v, err)
		}
		counts, err := s.Counts()
		add(counts, err)
	})
	return string(b)
}
