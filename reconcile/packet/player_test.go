package packet_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// player plays the steps of one case against one store.
type player struct {
	t        testing.TB
	ctx      context.Context //nolint:containedctx // one test, one context
	w        *world
	keep     keeper
	options  reconcile.Options
	store    reconcile.Store
	verifier *verify.Verifier
	reversed bool // results are recorded in the opposite order
	watch    []string

	journal []func(reconcile.Store) error // what was done, for a store that forgets

	at       int // the running step, from 1
	view     *chainView
	ids      map[string]string // view name -> context id that had it last
	released map[spend.TxID]bool
	sources  map[reconcile.SourceID]*source
	labels   map[string]*source
	known    map[uint64]bool // groups that have shown up as work

	checkpoints, restarts int
}

// source is one source of a case.
type source struct {
	id    reconcile.SourceID
	label string
	facts bool // it carries a receive step: its jobs wait until their transactions are released
	// Of a membership source:
	first  uint64          // number that the case gives its first generation
	newest uint64          // the last generation that began, by the case's numbers
	begun  bool            //
	held   map[string]bool // groups whose jobs wait for membershipVerified, by generation and id
	groups map[uint64]string
}

// newPlayer makes a store at the view base and with the world's roots, which are proved where there is evidence for them.
func newPlayer(t testing.TB, w *world, k keeper, nonFinal bool, more ...func(*reconcile.Options)) *player {
	t.Helper()
	p := &player{
		t: t, ctx: t.Context(), w: w, keep: k, ids: map[string]string{}, released: map[spend.TxID]bool{},
		sources: map[reconcile.SourceID]*source{}, labels: map[string]*source{}, known: map[uint64]bool{},
		verifier: verify.New(verify.Config{}),
	}
	p.look("base")
	p.options = reconcile.Options{
		Partition: k.partition(),
		Chain:     reconcile.Chain{Network: "corpus", GenesisHash: fmt.Sprintf("%x", p.view.chain[0].hash)},
		NonFinal:  nonFinal, PolicyDigest: "corpus", Context: p.context(),
	}
	for _, name := range w.roots {
		p.options.Roots = append(p.options.Roots, reconcile.Root{Raw: w.tx(name).raw})
	}
	for _, f := range more {
		f(&p.options)
	}
	p.open()
	return p
}

func (p *player) open() {
	p.t.Helper()
	b, err := p.keep.open(p.ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.store, err = reconcile.Open(p.ctx, b, p.options); err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) close() {
	p.t.Helper()
	if err := p.store.Close(); err != nil {
		p.t.Errorf("close: %v", err)
	}
}

// look makes a view the one that is used from now on, under an id of its own.
func (p *player) look(name string) {
	id := fmt.Sprintf("%s@%d", name, p.at)
	p.view, p.ids[name] = p.w.view(name, id), id
}

func (p *player) context() reconcile.Context {
	view := p.view.Context()
	view.PolicyDigest = "corpus"
	return reconcile.Context{ID: p.view.id, View: view, PolicyDigest: "corpus", Now: uint64(p.at)}
}

// do carries something out and remembers it.
func (p *player) do(f func(reconcile.Store) error) {
	p.t.Helper()
	p.journal = append(p.journal, f)
	if err := f(p.store); err != nil {
		p.t.Fatalf("step %d: %v", p.at, err)
	}
}

// commit settles a mutation and remembers what it became.
func (p *player) commit(m reconcile.Mutation) reconcile.Committed {
	p.t.Helper()
	var first *reconcile.Committed
	p.do(func(s reconcile.Store) error {
		c, err := reconcile.Settle(p.ctx, s, m)
		if err != nil {
			return err
		}
		if first == nil {
			first = &c
		} else if *first != c {
			return fmt.Errorf("a replay became %+v, not %+v", c, *first)
		}
		return nil
	})
	return *first
}

// source opens a source with its first generation.
func (p *player) source(label string, facts bool) *source {
	p.t.Helper()
	if s, ok := p.labels[label]; ok {
		return s
	}
	s := &source{label: label, facts: facts, held: map[string]bool{}, groups: map[uint64]string{}}
	key := reconcile.SourceKey{Kind: "corpus", Label: label}
	p.do(func(st reconcile.Store) error {
		id, err := st.Source(p.ctx, key)
		if s.id != 0 && id != s.id {
			return fmt.Errorf("source %s became %d, not %d", label, id, s.id)
		}
		s.id = id
		return err
	})
	p.labels[label], p.sources[s.id] = s, s
	if facts {
		p.begin(s)
	}
	return s
}

func (p *player) begin(s *source) {
	p.t.Helper()
	p.do(func(st reconcile.Store) error {
		_, err := st.Begin(p.ctx, s.id, reconcile.Attach{})
		return err
	})
}

// generation gives the store's number for a generation of a case, and begins it when it is new.
func (p *player) generation(s *source, n uint64) uint64 {
	p.t.Helper()
	switch {
	case !s.begun:
		s.begun, s.first, s.newest = true, n, n
		p.begin(s)
	case n == s.newest+1:
		ending := reconcile.Ending{Source: s.id, Generation: s.newest - s.first + 1, Code: "reset-required", At: uint64(p.at)}
		p.do(func(st reconcile.Store) error { return st.End(p.ctx, ending, reconcile.Attach{}) })
		s.newest = n
		p.begin(s)
	case n > s.newest || n < s.first:
		p.t.Fatalf("step %d: generation %d after %d..%d", p.at, n, s.first, s.newest)
	}
	return n - s.first + 1
}

// observe makes one observation about a transaction of the world. The evidence is what the step names, or the corpus's own.
func (p *player) observe(id, kind string, o spend.Outpoint, effect reconcile.Effect, target string, beef []byte) reconcile.Observation {
	canonical, err := json.Marshal(map[string]any{"id": id, "kind": kind, "outpoint": o.String(), "target": target})
	if err != nil {
		p.t.Fatal(err)
	}
	ob := reconcile.Observation{ID: id, Kind: kind, Canonical: canonical, Outpoint: o, Effect: effect}
	if beef != nil {
		ob.Target, ob.BEEF, ob.Variant = p.w.tx(target).id, beef, sha256.Sum256(beef)
	}
	return ob
}

// spends is the observation that a transaction spends what its first input names; of a coinbase, that it has an output.
func (p *player) spends(id, name string, beef []byte) reconcile.Observation {
	f := p.w.tx(name)
	if f.inputs[0].TxID == (spend.TxID{}) {
		return p.observe(id, "output", spend.Outpoint{TxID: f.id}, reconcile.Present, name, beef)
	}
	return p.observe(id, "spend", f.inputs[0].Outpoint, reconcile.SpendOf, name, beef)
}

// batch makes one batch of one group under the view in force.
func (p *player) batch(s *source, generation uint64, phase reconcile.Phase, complete bool, group reconcile.Group) reconcile.Receive {
	p.t.Helper()
	r := reconcile.Receive{
		Batch: reconcile.Batch{
			Source: s.id, Generation: generation,
			Provenance: reconcile.Provenance{Adapter: "corpus", Authentication: "configured-transport", Peer: s.label, ReceivedAt: uint64(p.at)},
			Scope:      fmt.Appendf(nil, `{"source":%q}`, s.label), Phase: phase, Complete: complete,
			Groups: []reconcile.Group{group}, Through: group.Sequence, HighWater: group.Sequence,
		},
		Context: p.view.id,
	}
	type pair struct {
		variant [32]byte
		target  spend.TxID
	}
	planned := map[pair]bool{}
	for _, o := range group.Observations {
		if is := (pair{o.Variant, o.Target}); o.BEEF != nil && !planned[is] {
			planned[is] = true
			r.Plan = append(r.Plan, verify.Plan(o.BEEF, o.Target, p.view, p.options.Budget))
		}
	}
	return r
}

// play runs the steps of a case and returns what the last one became, "" when nothing was refused.
func (p *player) play(steps []step) string {
	p.t.Helper()
	last := ""
	for i, s := range steps {
		p.at = i + 1
		last = p.step(s)
		if p.t.Failed() {
			p.t.Fatalf("in step %d: %s %v %s", p.at, s.Op, s.Names, s.ID)
		}
		if s.Op != "expect" && s.Op != "restart" {
			p.work()
		}
		if s.Outcome != "" && i < len(steps)-1 && last != s.Outcome {
			p.t.Fatalf("step %d became %q, not %q", p.at, last, s.Outcome)
		}
	}
	return last
}

func (p *player) step(s step) (outcome string) {
	p.t.Helper()
	switch s.Op {
	case "receive":
		src := p.source(fmt.Sprintf("facts:%d", p.at), true)
		g := reconcile.Group{ID: fmt.Sprintf("receive-%d", p.at), Sequence: uint64(p.at)}
		for i, name := range s.Names {
			beef := p.w.evidence(name)
			if i < len(s.BEEFs) {
				beef = p.w.beef(s.BEEFs[i])
			}
			g.Observations = append(g.Observations, p.spends(fmt.Sprintf("%d/%d", p.at, i), name, beef))
		}
		return p.refusal(p.commit(p.batch(src, 1, reconcile.PhaseLive, false, g)))
	case "verify":
		if s.Context != "" && s.Context != viewName(p.view.id) {
			p.late(s)
			return ""
		}
		for _, name := range s.Names {
			p.released[p.w.tx(name).id] = true
		}
	case "view":
		return p.turn(s.ID)
	case "membership":
		return p.membership(s)
	case "membershipVerified":
		src := p.source(s.Source, false)
		delete(src.held, fmt.Sprintf("%d/%s", p.generation(src, s.Generation), s.ID))
	case "evidence":
		return p.evidence(s)
	case "expect":
		p.checkpoints++
		p.compare(s.Value)
	case "restart":
		p.restarts++
		p.restart()
	default:
		p.t.Fatalf("step %d: no op %q", p.at, s.Op)
	}
	return ""
}

// refusal is the status of a commit that was refused.
func (p *player) refusal(c reconcile.Committed) string {
	if c.Took() {
		return ""
	}
	return string(c.Status)
}

func (p *player) membership(s step) string {
	p.t.Helper()
	src := p.source(s.Source, false)
	gen := p.generation(src, s.Generation)
	phase := reconcile.Phase(cmp.Or(s.Phase, string(reconcile.PhaseLive)))
	if s.Complete {
		phase = reconcile.PhaseSnapshot
	}
	g := reconcile.Group{ID: s.ID, Sequence: s.Sequence}
	for i, change := range s.Changes {
		o := p.w.outpoint(change.Outpoint)
		id := fmt.Sprintf("%s/%d", s.ID, i)
		if !change.Present {
			g.Observations = append(g.Observations, p.observe(id, "withdraw", o, reconcile.Absent, "", nil))
			continue
		}
		name := p.w.name(o.TxID)
		beef := p.w.evidence(name)
		if change.BEEF != "" {
			beef = p.w.beef(change.BEEF)
		}
		g.Observations = append(g.Observations, p.observe(id, "output", o, reconcile.Present, name, beef))
	}
	if s.Verified != nil && !*s.Verified {
		src.held[fmt.Sprintf("%d/%s", gen, s.ID)] = true
	}
	c := p.commit(p.batch(src, gen, phase, s.Complete, g))
	// The group's number in the store is that of the work that is new. A group without work needs no number.
	for _, j := range p.jobs() {
		if j.Source == src.id && src.groups[j.Group] == "" {
			src.groups[j.Group] = fmt.Sprintf("%d/%s", gen, s.ID)
		}
	}
	return p.refusal(c)
}

// turn changes the view.
func (p *player) turn(name string) string {
	p.t.Helper()
	old := p.view
	p.look(name)
	from := fork(old, p.view)
	claims, err := p.store.Claims(p.ctx, from, p.view.height)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.refusal(p.commit(reconcile.ContextChange{Context: p.context(), Prepared: old.id, Claims: verify.Ask(p.view, claims), Fork: from}))
}

func viewName(id string) string {
	name, _, _ := strings.Cut(id, "@")
	return name
}

// jobs lists all work, in its order.
func (p *player) jobs() []reconcile.Job {
	p.t.Helper()
	var all []reconcile.Job
	for after := (reconcile.Cursor{}); ; {
		jobs, next, err := p.store.Work(p.ctx, after, 2)
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, jobs...)
		if next == (reconcile.Cursor{}) {
			return all
		}
		after = next
	}
}

// check runs one job for real.
func (p *player) check(j reconcile.Job) reconcile.Result {
	p.t.Helper()
	e, err := p.store.Load(p.ctx, j)
	if err != nil {
		p.t.Fatal(err)
	}
	r := p.verifier.Check(p.ctx, e)
	for _, f := range r.Facts {
		if tx, ok := p.w.txs[p.w.name(f.TxID)]; ok && tx.valid != f.Valid {
			p.t.Errorf("step %d: the scripts of %s: valid %v: %s", p.at, tx.name, f.Valid, r.Reason)
		}
	}
	return r
}

// free says whether a job may run in the case.
func (p *player) free(j reconcile.Job) bool {
	s := p.sources[j.Source]
	if s.facts {
		return p.released[j.Target]
	}
	return !s.held[s.groups[j.Group]]
}

// work runs what is released and accepts what is settled, until neither moves anything.
func (p *player) work() {
	p.t.Helper()
	done := map[reconcile.Cursor]bool{}
	for {
		var results []reconcile.Result
		for _, j := range p.jobs() {
			at := reconcile.Cursor{Source: j.Source, Group: j.Group, Index: j.Index}
			if p.free(j) && !done[at] {
				done[at] = true
				results = append(results, p.check(j))
			}
		}
		if p.reversed {
			slices.Reverse(results)
		}
		for _, r := range results {
			p.record(r)
		}
		moved := p.settle()
		if len(results) == 0 && !moved {
			return
		}
	}
}

// record keeps one result and returns what became of it.
func (p *player) record(r reconcile.Result) reconcile.Recorded {
	p.t.Helper()
	var first *reconcile.Recorded
	p.do(func(s reconcile.Store) error {
		became, err := s.Record(p.ctx, []reconcile.Result{r})
		switch {
		case err != nil:
			return err
		case len(became) != 1:
			return fmt.Errorf("%d answers to one result", len(became))
		case first == nil:
			first = &became[0]
		case *first != became[0]:
			return fmt.Errorf("a replayed result became %+v, not %+v", became[0], *first)
		}
		return nil
	})
	return *first
}

// settle commits what is ready.
func (p *player) settle() (moved bool) {
	p.t.Helper()
	for {
		ms, err := p.store.Settled(p.ctx, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(ms) == 0 {
			return moved
		}
		for _, m := range ms {
			if c := p.commit(m); !c.Took() {
				p.t.Fatalf("step %d: what was ready is refused: %+v", p.at, c)
			}
		}
		moved = true
	}
}

// late hands in results that were made under a context that is over. They must be dropped.
func (p *player) late(s step) {
	p.t.Helper()
	before := p.dump()
	for _, name := range s.Names {
		handed := false
		for _, j := range p.jobs() {
			if j.Target != p.w.tx(name).id {
				continue
			}
			r := p.check(j)
			r.Context = cmp.Or(p.ids[s.Context], s.Context+"@never")
			handed = true
			if became := p.record(r); became.Kept {
				p.t.Errorf("step %d: a result of %s for %s was kept", p.at, r.Context, name)
			}
		}
		if !handed {
			p.t.Errorf("step %d: there is no work for %s", p.at, name)
		}
	}
	p.settle()
	if after := p.dump(); after != before {
		p.t.Errorf("step %d: a late result changed the state:\n%s\nwas\n%s", p.at, after, before)
	}
}

// evidence receives one observation, checks it at once and says what became of it: "" when it is verified.
func (p *player) evidence(s step) string {
	p.t.Helper()
	src := p.source(fmt.Sprintf("facts:%d", p.at), true)
	f := p.w.tx(s.Target)
	id := fmt.Sprintf("evidence-%d", p.at)
	o := p.observe(id, "output", spend.Outpoint{TxID: f.id}, reconcile.Present, s.Target, p.w.beef(s.BEEF))
	switch {
	case s.Index != nil:
		o.Outpoint.Index = *s.Index
	case s.Spends != "":
		o = p.observe(id, "spend", p.w.outpoint(s.Spends), reconcile.SpendOf, s.Target, p.w.beef(s.BEEF))
	}
	batch := p.batch(src, 1, reconcile.PhaseLive, false, reconcile.Group{ID: id, Sequence: 1, Observations: []reconcile.Observation{o}})
	if c := p.commit(batch); !c.Took() {
		return string(c.Status)
	}
	if fault := batch.Plan[0].Fault.Status; fault != "" {
		return string(fault)
	}
	for _, j := range p.jobs() {
		if j.Source == src.id {
			r := p.check(j)
			p.record(r)
			p.settle()
			if r.Status == reconcile.Verified {
				return ""
			}
			return string(r.Status)
		}
	}
	return string(reconcile.Unresolved)
}

// restart ends the store and has another one say the same.
func (p *player) restart() {
	p.t.Helper()
	before := p.dump()
	p.close()
	if p.keep.volatile() {
		p.open()
		for i, f := range p.journal {
			if err := f(p.store); err != nil {
				p.t.Fatalf("replayed event %d: %v", i, err)
			}
		}
	} else {
		p.open()
	}
	if after := p.dump(); after != before {
		p.t.Errorf("step %d: after the restart\n%s\nbefore\n%s", p.at, after, before)
	}
	p.audit()
}

func (p *player) audit() {
	p.t.Helper()
	differences, err := p.store.Audit(p.ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, d := range differences {
		p.t.Errorf("step %d: audit: %+v", p.at, d)
	}
}
