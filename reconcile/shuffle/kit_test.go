package shuffle

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

// lasting keeps a store in memory beyond the engine over it.
type lasting struct{ reconcile.Backend }

func (lasting) Close() error { return nil }

// run is one history in one order of work.
type run struct {
	t       testing.TB
	ctx     context.Context //nolint:containedctx // one run, one context
	h       *spendtest.History
	r       *rand.Rand
	sources bool // the sources of the history; without it each group has a source of its own

	backend reconcile.Backend
	store   reconcile.Store
	world   *spendtest.World
	view    spendtest.View
	viewID  string
	at      uint64 // events so far

	ids               map[string]reconcile.SourceID
	groups            map[string]spend.GroupID // by the name it has in the store
	targets           map[[32]byte]spend.GroupID
	seen              map[spend.TxID]spend.Result // what was revealed
	about             map[[32]byte]spend.TxID
	late              []reconcile.Result // finished, and not handed in yet
	log               []string
	restarts, dropped int
}

func newRun(t testing.TB, h *spendtest.History, seed uint64, sources bool) *run {
	t.Helper()
	p := &run{
		t: t, ctx: t.Context(), h: h, r: rand.New(rand.NewPCG(seed, 0x0bde4)), sources: sources, backend: lasting{memstore.New()},
		world: spendtest.NewWorld(h.NonFinal, h.Roots, h.First), view: h.First, viewID: "0/" + h.First.Name,
		ids: map[string]reconcile.SourceID{}, groups: map[string]spend.GroupID{}, targets: map[[32]byte]spend.GroupID{},
		seen: map[spend.TxID]spend.Result{}, about: map[[32]byte]spend.TxID{},
	}
	p.open()
	return p
}

func (p *run) did(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

func (p *run) fatal(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("history %d: %s\n  %s", p.h.Seed, fmt.Sprintf(format, args...), strings.Join(p.log, "\n  "))
}

func (p *run) must(err error) {
	p.t.Helper()
	if err != nil {
		p.fatal("%v", err)
	}
}

func (p *run) open() {
	p.t.Helper()
	o := reconcile.Options{
		Partition: reconcile.Partition{Application: "shuffle", Account: "a", Access: "local"},
		Chain:     reconcile.Chain{Network: "random", GenesisHash: "00"}, NonFinal: p.h.NonFinal, Context: p.context(),
	}
	for _, root := range p.h.Roots {
		o.Roots = append(o.Roots, reconcile.Root{Raw: root.Raw})
	}
	var err error
	p.store, err = reconcile.Open(p.ctx, p.backend, o)
	p.must(err)
}

func (p *run) restart() {
	p.did("restart")
	p.restarts++
	p.must(p.store.Close())
	p.open()
}

func (p *run) context() reconcile.Context {
	return reconcile.Context{ID: p.viewID, Now: p.at, View: reconcile.ChainView{TipHash: p.viewID, TipHeight: p.view.Height, MedianTimePast: p.view.MTP}}
}

func (p *run) commit(m reconcile.Mutation) {
	p.t.Helper()
	c, err := reconcile.Settle(p.ctx, p.store, m)
	p.must(err)
	if !c.Took() {
		p.fatal("%T became %+v", m, c)
	}
}

// --- events ---

func (p *run) event(e spendtest.Event) {
	p.t.Helper()
	switch {
	case e.View != nil:
		p.turn(*e.View)
	case p.sources:
		p.receive(fmt.Sprintf("source-%d", e.Groups[0].Source), e.Groups)
	default:
		for _, g := range e.Groups {
			p.receive(fmt.Sprintf("group-%d", g.ID), []spendtest.Group{g})
		}
	}
}

func (p *run) turn(v spendtest.View) {
	p.t.Helper()
	p.at++
	old := p.viewID
	p.view, p.viewID = v, fmt.Sprintf("%d/%s", p.at, v.Name)
	p.did("view %s height %d mtp %d", p.viewID, v.Height, v.MTP)
	claims, err := p.store.Claims(p.ctx, 0, 1<<31)
	p.must(err)
	for i, c := range claims {
		claims[i].Holds = v.Holds(spendtest.Claim{TxID: c.TxID, Height: c.Height, Root: c.Root})
	}
	p.commit(reconcile.ContextChange{Context: p.context(), Prepared: old, Claims: claims})
	p.world.View(v)
}

func (p *run) receive(source string, groups []spendtest.Group) {
	p.t.Helper()
	p.at++
	id, ok := p.ids[source]
	if !ok {
		var err error
		id, err = p.store.Source(p.ctx, reconcile.SourceKey{Kind: "random", Label: source})
		p.must(err)
		_, err = p.store.Begin(p.ctx, id, reconcile.Attach{})
		p.must(err)
		p.ids[source] = id
	}
	batch := reconcile.Batch{
		Source: id, Generation: 1, Provenance: reconcile.Provenance{Adapter: "random", Authentication: "configured-transport", ReceivedAt: p.at},
		Scope: []byte(`{}`), Phase: reconcile.PhaseLive,
	}
	r := reconcile.Receive{Context: p.viewID}
	for _, g := range groups {
		name := fmt.Sprintf("group-%d", g.ID)
		p.groups[name] = g.ID
		out := reconcile.Group{ID: name, Sequence: uint64(g.ID)}
		batch.Through, batch.HighWater = out.Sequence, out.Sequence
		for i, target := range g.Targets {
			tx, _ := p.h.Tx(target)
			beef := fmt.Appendf(nil, "evidence of group %d about %s", g.ID, target)
			o := reconcile.Observation{
				ID: fmt.Sprintf("%s/%d", name, i), Kind: "spend", Effect: reconcile.SpendOf, Outpoint: tx.Inputs[0].Outpoint,
				Target: target, Variant: sha256.Sum256(beef), BEEF: beef,
			}
			if (int(g.ID)+i)%3 == 0 {
				o.Kind, o.Effect, o.Outpoint = "output", reconcile.Present, spend.Outpoint{TxID: target}
			}
			var err error
			o.Canonical, err = json.Marshal(map[string]string{"id": o.ID, "kind": o.Kind, "outpoint": o.Outpoint.String()})
			p.must(err)
			out.Observations = append(out.Observations, o)
			p.targets[o.Variant], p.about[o.Variant] = g.ID, target
			r.Plan = append(r.Plan, p.plan(g, target, o.Variant))
		}
		batch.Groups = append(batch.Groups, out)
		p.did("%d: receive %s: %s of %s, %d claims", p.at, name, p.names(g.Targets), p.names(g.Carries), len(g.Claims))
	}
	r.Batch = batch
	p.commit(r)
	p.world.Receive(groups, p.h.Carried(groups))
}

func (p *run) names(ids []spend.TxID) string {
	var list []string
	for _, id := range ids {
		tx, _ := p.h.Tx(id)
		list = append(list, tx.Name)
	}
	return strings.Join(list, "+")
}

// plan is what the evidence of one candidate holds: the target, and its ancestors as far as the group carries them.
func (p *run) plan(g spendtest.Group, target spend.TxID, variant [32]byte) reconcile.Planned {
	plan := reconcile.Planned{Variant: variant, Target: target}
	var walk func(id spend.TxID)
	walk = func(id spend.TxID) {
		has := slices.ContainsFunc(plan.Txs, func(t reconcile.RawTx) bool { return t.ID == id })
		if has || !slices.Contains(g.Carries, id) {
			return
		}
		tx, _ := p.h.Tx(id)
		for _, in := range tx.Inputs {
			if slices.Contains(g.Carries, in.TxID) {
				walk(in.TxID)
			} else if !slices.Contains(plan.Missing, in.TxID) {
				plan.Missing = append(plan.Missing, in.TxID)
			}
		}
		plan.Txs = append(plan.Txs, reconcile.RawTx{ID: id, Raw: tx.Raw, Inputs: tx.Inputs, LockTime: tx.LockTime, Outputs: tx.Outputs})
		for _, c := range g.Claims {
			if c.TxID == id {
				plan.Claims = append(plan.Claims, reconcile.Claim{TxID: id, Height: c.Height, Root: c.Root, Holds: p.view.Holds(c), Known: true})
			}
		}
	}
	walk(target)
	return plan
}

// --- work ---

func (p *run) jobs() []reconcile.Job {
	p.t.Helper()
	jobs, _, err := p.store.Work(p.ctx, reconcile.Cursor{}, 1000)
	p.must(err)
	return jobs
}

// check says of a candidate what its history gives it.
func (p *run) check(j reconcile.Job) reconcile.Result {
	p.t.Helper()
	e, err := p.store.Load(p.ctx, j)
	p.must(err)
	r := reconcile.Result{
		Source: j.Source, Generation: j.Generation, Group: j.Group, Index: j.Index, Variant: j.Variant, Context: j.Context, Status: reconcile.Verified,
	}
	invalid := func(id spend.TxID) bool {
		return slices.ContainsFunc(e.Decided, func(f reconcile.Fact) bool { return f.TxID == id && !f.Valid })
	}
	decided := func(id spend.TxID) bool {
		return slices.ContainsFunc(e.Decided, func(f reconcile.Fact) bool { return f.TxID == id })
	}
	for _, tx := range e.Txs {
		if tx.ID == j.Target && (tx.Anchored || decided(tx.ID) && !invalid(tx.ID)) {
			return r
		}
	}
	if len(e.Missing) > 0 {
		p.fatal("work with missing ancestors: %v", e.Missing)
	}
	limited := false
	if slices.ContainsFunc(e.Decided, func(f reconcile.Fact) bool { return !f.Valid }) {
		r.Status = reconcile.Invalid
	}
	for _, tx := range e.Txs {
		t, _ := p.h.Tx(tx.ID)
		switch {
		case tx.Anchored || decided(tx.ID):
		case t.Result == spend.Limited:
			limited = true
		case t.Result == spend.Invalid:
			r.Facts = append(r.Facts, reconcile.Fact{TxID: tx.ID})
			r.Status = reconcile.Invalid
		default:
			r.Facts = append(r.Facts, reconcile.Fact{TxID: tx.ID, Valid: true})
		}
	}
	if limited && r.Status == reconcile.Verified {
		// What stands behind a transaction that is too much was not looked at.
		r.Status, r.Facts = reconcile.Limited, nil
	}
	if r.Status == reconcile.Invalid {
		r.Facts = slices.DeleteFunc(r.Facts, func(f reconcile.Fact) bool { return f.Valid })
	}
	return r
}

// record hands a result in, and tells the oracle what came of it.
func (p *run) record(r reconcile.Result) {
	p.t.Helper()
	became, err := p.store.Record(p.ctx, []reconcile.Result{r})
	p.must(err)
	g := p.targets[r.Variant]
	p.did("result %s of group %d/%d under %s: %+v", r.Status, g, r.Index, r.Context, became[0])
	if !became[0].Kept {
		p.dropped++
		return
	}
	for _, f := range r.Facts {
		if was := p.seen[f.TxID]; was == spend.None || was == spend.Limited {
			p.reveal(f.TxID, map[bool]spend.Result{true: spend.Valid, false: spend.Invalid}[f.Valid])
		}
	}
	switch r.Status {
	case reconcile.Invalid:
		p.world.Quarantine(g)
	case reconcile.Limited:
		p.world.Stall(g, true)
		if target := p.about[r.Variant]; p.seen[target] == spend.None {
			p.reveal(target, spend.Limited)
		}
	}
}

func (p *run) reveal(id spend.TxID, r spend.Result) {
	p.seen[id] = r
	p.world.Reveal(id, r)
}

// settled lists what can be committed next: of each source its first.
func (p *run) settled() []reconcile.Mutation {
	p.t.Helper()
	ms, err := p.store.Settled(p.ctx, 1000)
	p.must(err)
	var firsts []reconcile.Mutation
	had := map[reconcile.SourceID]bool{}
	for _, m := range ms {
		if a, ok := m.(reconcile.Accept); ok {
			if had[a.Source] {
				continue
			}
			had[a.Source] = true
		}
		firsts = append(firsts, m)
	}
	return firsts
}

func (p *run) accept(m reconcile.Mutation) {
	p.t.Helper()
	p.commit(m)
	if a, ok := m.(reconcile.Accept); ok {
		p.did("accept %s", a.GroupID)
		p.world.Settle(p.groups[a.GroupID])
		return
	}
	p.did("%T", m)
}

// play does everything, in an order that chance decides.
func (p *run) play(patient bool) {
	p.t.Helper()
	events := p.h.Events
	var copies []reconcile.Result
	for {
		jobs, settled := p.jobs(), p.settled()
		// What somebody checks just now is not checked by another.
		jobs = slices.DeleteFunc(jobs, func(j reconcile.Job) bool {
			return slices.ContainsFunc(p.late, func(r reconcile.Result) bool {
				return r.Source == j.Source && r.Group == j.Group && r.Index == j.Index && r.Context == j.Context
			})
		})
		idle := len(jobs) == 0 && len(settled) == 0 && len(p.late) == 0
		if idle && len(events) == 0 {
			break
		}
		waits := len(events) == 0 || !idle && (patient && events[0].View != nil)
		switch n := p.r.IntN(20); {
		case n < 4 && !waits:
			p.event(events[0])
			events = events[1:]
		case n < 9 && len(jobs) > 0:
			p.late = append(p.late, p.check(jobs[p.r.IntN(len(jobs))]))
		case n < 14 && len(p.late) > 0:
			k := p.r.IntN(len(p.late))
			r := p.late[k]
			p.late = slices.Delete(p.late, k, k+1)
			p.record(r)
			copies = append(copies, r)
		case n < 18 && len(settled) > 0:
			p.accept(settled[p.r.IntN(len(settled))])
		case n == 18 && len(copies) > 0:
			// A worker that was given up hands in its result after all.
			p.again(copies[p.r.IntN(len(copies))])
		case n == 19:
			p.restart()
		}
	}
}

// end holds the last state against the oracle and an audit.
func (p *run) end() {
	p.t.Helper()
	p.oracle()
	differences, err := p.store.Audit(p.ctx)
	p.must(err)
	if len(differences) > 0 {
		p.fatal("audit: %+v", differences)
	}
	p.must(p.store.Close())
}

// again hands in a result for the second time. It must not matter.
func (p *run) again(r reconcile.Result) {
	p.t.Helper()
	before := p.text()
	became, err := p.store.Record(p.ctx, []reconcile.Result{r})
	p.must(err)
	p.did("result %s of group %d/%d again: %+v", r.Status, p.targets[r.Variant], r.Index, became[0])
	if !became[0].Kept {
		p.dropped++
	} else if r.Context != p.viewID {
		p.fatal("a result of an earlier view was kept")
	}
	if after := p.text(); after != before {
		p.fatal("a result that came again changed\n%s\nto\n%s", before, after)
	}
}
