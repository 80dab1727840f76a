package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// refusal is why a mutation was not taken.
type refusal struct {
	status  Status
	reason  string
	waiting bool
}

func refuse(status Status, reason string) *refusal { return &refusal{status: status, reason: reason} }

// Mistakes of the caller: no peer can cause them once a batch was judged.
var (
	errScope   = errors.New("the batch has another scope than its generation")
	errSource  = errors.New("there is no such source")
	errPhase   = errors.New("a batch has the phase snapshot, live or finite")
	errPlan    = errors.New("the plan does not belong to the batch")
	errContext = errors.New("the id of a context has 1 to 256 bytes")
	errBody    = errors.New("an observation needs its canonical bytes")
)

// phases are the phases as they are numbered.
var phases = [...]Phase{PhaseSnapshot, PhaseLive, PhaseFinite}

// arrival is one receive under way.
type arrival struct {
	*txn
	m          Receive
	b          *Batch
	phase      byte
	source     *sourceRow
	generation *generationRow
	plans      map[planKey]*Planned
	fresh      []*Group   // groups that are recorded
	hashes     [][32]byte // of fresh
	at         uint64     // the position
	numbers    []uint64   // of fresh, and of the empty group that ends a snapshot
	changed    []spend.TxID
	bad        []candidateKey // candidates that were invalid before anything was run
	pub        *publication
}

type planKey struct {
	variant [32]byte
	target  spend.TxID
}

// receive applies a batch. It refuses before it writes.
func (t *txn) receive(m Receive) (*refusal, error) {
	a := &arrival{txn: t, m: m, b: &m.Batch, pub: newPublication("receive"), plans: map[planKey]*Planned{}}
	a.pub.silent = true
	if no, err := a.check(); no != nil || err != nil {
		return no, err
	}
	if no, err := a.sort(); no != nil || err != nil {
		return no, err
	}
	if no := a.room(); no != nil {
		return no, nil
	}
	a.at = t.meta.Position + 1
	t.meta.Position = a.at
	if err := a.raws(); err != nil {
		return nil, err
	}
	a.record()
	a.arrange()
	return nil, t.err
}

// check refuses what does not fit where the source is.
func (a *arrival) check() (*refusal, error) {
	b, source := a.b, uint32(a.b.Source)
	phase := slices.Index(phases[:], b.Phase)
	if phase < 0 {
		return nil, errPhase
	}
	a.phase = byte(phase)
	if a.source = a.txn.source(source); a.source == nil {
		return nil, errors.Join(a.err, errSource)
	}
	a.generation = a.txn.generation(source, b.Generation)
	if g := a.generation; g == nil || g.Retired || g.Ending != nil || b.Generation <= a.source.Closed || b.Generation != a.source.Latest {
		return refuse(StatusContextChanged, "the generation is over"), a.err
	}
	if c := a.context(); a.m.Context != c.ID {
		return refuse(StatusContextChanged, "the view of the chain moved"), a.err
	}
	if len(a.generation.Scope) > 0 && !bytes.Equal(a.generation.Scope, b.Scope) {
		return nil, errScope
	}
	for i := range a.m.Plan {
		p := &a.m.Plan[i]
		a.plans[planKey{p.Variant, p.Target}] = p
	}
	return nil, a.err
}

// sort separates new groups from replays, and finds equivocations.
func (a *arrival) sort() (*refusal, error) {
	b, g := a.b, a.generation
	own, other := namespace(b.Scope, b.Generation), namespace(b.Scope, 0)
	inBatch := map[string][32]byte{}
	known := func(kind byte, id string, hash [32]byte) (seen, equal bool) {
		for _, space := range [][]byte{own, other} {
			k := idKey(uint32(b.Source), space, kind, id)
			if h, ok := inBatch[string(k)]; ok {
				return true, h == hash
			}
			if row, ok := plain[idRow](a.txn, a.get(k)); ok {
				return true, row.Hash == hash
			}
		}
		return false, false
	}
	note := func(kind byte, id string, hash [32]byte) {
		inBatch[string(idKey(uint32(b.Source), own, kind, id))] = hash
	}
	last := g.Last
	for i := range b.Groups {
		group := &b.Groups[i]
		for j := range group.Observations {
			if len(group.Observations[j].Canonical) == 0 {
				return nil, errBody
			}
		}
		hash := groupHash(group)
		seen, equal := known(0, group.ID, hash)
		if seen && equal && a.m.Fresh {
			return refuse(StatusInvalid, "a group is repeated: "+group.ID), a.err
		}
		if seen && equal {
			continue
		}
		if seen {
			return a.equivocation(group.ID, claimOf(group)), a.err
		}
		if a.phase == 1 && g.Any && group.Sequence <= g.Through {
			continue
		}
		if group.Sequence < last && (g.Tail > 0 || len(a.fresh) > 0) {
			return refuse(StatusInvalid, "the groups are out of order"), a.err
		}
		if a.phase == 0 && (g.Received || g.Any && group.Sequence < g.Through) {
			return refuse(StatusInvalid, "a snapshot group came after its snapshot, or below what was read"), a.err
		}
		for j := range group.Observations {
			o := &group.Observations[j]
			h := sha256.Sum256(o.Canonical)
			switch seen, equal := known(1, o.ID, h); {
			case seen && !equal:
				return a.equivocation(o.ID, o.Canonical), a.err
			case seen && a.m.Fresh:
				return refuse(StatusInvalid, "an observation is repeated: "+o.ID), a.err
			}
			note(1, o.ID, h)
			if o.BEEF == nil {
				continue
			}
			if len(o.BEEF) > 0 && o.Variant != sha256.Sum256(o.BEEF) || a.plans[planKey{o.Variant, o.Target}] == nil {
				return nil, errPlan
			}
		}
		note(0, group.ID, hash)
		last = group.Sequence
		a.fresh = append(a.fresh, group)
		a.hashes = append(a.hashes, hash)
	}
	return nil, a.err
}

func groupHash(g *Group) [32]byte {
	h := sha256.New()
	var n [8]byte
	write := func(b []byte) {
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	write([]byte(g.ID))
	binary.BigEndian.PutUint64(n[:], g.Sequence)
	h.Write(n[:])
	for i := range g.Observations {
		write(g.Observations[i].Canonical)
	}
	return [32]byte(h.Sum(nil))
}

// claimOf is what a group said, for the quarantine.
func claimOf(g *Group) []byte {
	var b []byte
	for i := range g.Observations {
		b = append(append(b, g.Observations[i].Canonical...), '\n')
	}
	return b
}

// equivocation ends the generation and keeps the claim; nothing else of the batch
// is written.
func (a *arrival) equivocation(id string, claim []byte) *refusal {
	reason := "an id was received before with other bytes"
	a.end(uint32(a.b.Source), a.b.Generation, Ending{
		Code: string(StatusEquivocation), Reason: reason, At: a.b.Provenance.ReceivedAt, Claim: claim, ClaimID: id,
	})
	return refuse(StatusEquivocation, reason)
}

// size is what a group counts for while it waits.
func size(g *Group) (n uint64) {
	for i := range g.Observations {
		n += uint64(len(g.Observations[i].Canonical) + len(g.Observations[i].BEEF))
	}
	return n
}

// room refuses what is over a budget. A source that has nothing waiting gets in
// whatever one batch holds, so that it cannot be stuck by the bound itself.
func (a *arrival) room() *refusal {
	var bytes uint64
	for _, g := range a.fresh {
		bytes += size(g)
	}
	have, store, limit := a.source.Pending, a.meta.Pending, a.budget
	if len(a.fresh) == 0 || have.Groups == 0 {
		return nil
	}
	no := func(bound string) *refusal {
		return &refusal{StatusLimited, fmt.Sprintf("the source has too much waiting: %s", bound), true}
	}
	switch own := have.Bytes + int64(bytes); {
	case have.Groups+len(a.fresh) > limit.PendingGroups:
		return no("Budget.PendingGroups")
	case own > limit.PendingBytes:
		return no("Budget.PendingBytes")
	case store.Bytes+int64(bytes) > limit.StoreBytes && own > limit.StoreBytes/int64(max(1, a.meta.Sources)):
		return no("Budget.StoreBytes")
	}
	return nil
}

// candidates calls f for every observation with evidence of the new groups.
func (a *arrival) candidates(f func(g, index int, o *Observation, p *Planned)) {
	for g, group := range a.fresh {
		for i := range group.Observations {
			if o := &group.Observations[i]; o.BEEF != nil {
				f(g, i, o, a.plans[planKey{o.Variant, o.Target}])
			}
		}
	}
}

// raws records the transactions that are new, in the order of their ids.
func (a *arrival) raws() error {
	raw := map[spend.TxID][]byte{}
	a.candidates(func(_, _ int, _ *Observation, p *Planned) {
		for i := range p.Txs {
			raw[p.Txs[i].ID] = p.Txs[i].Raw
		}
	})
	ids := sortedKeys(raw)
	graph{a.txn}.Prefetch(ids)
	index := uint32(0)
	for _, id := range ids {
		if a.tx(id) != nil || a.err != nil {
			continue
		}
		if err := a.learn(id, raw[id], spend.Position{At: a.at, Index: index}); err != nil {
			return err
		}
		index++
		a.changed = append(a.changed, id)
	}
	return a.err
}

// learn records a transaction that was not known.
func (t *txn) learn(id spend.TxID, raw []byte, first spend.Position) error {
	tx, err := parseTx(raw)
	if err != nil || TxIDOf(raw) != id {
		return errors.Join(errPlan, err)
	}
	row := &txRow{Inputs: tx.inputs, LockTime: tx.lockTime, Outputs: uint32(len(tx.outputs)), FirstRaw: first}
	t.saveTx(id, row)
	t.put(key(spaceRaw, id), raw)
	for _, in := range tx.inputs {
		t.put(key(spaceSpend, in.Outpoint, id), nil)
	}
	if spend.Locked(tx.inputs, tx.lockTime) {
		t.put(lockKey(tx.lockTime, id[:]), nil)
	}
	t.meta.Transactions++
	return nil
}

// lockKey orders transactions by lock time, heights before times.
func lockKey(lockTime uint32, id []byte) []byte {
	kind := byte(0)
	if lockTime >= spend.LockTimeThreshold {
		kind = 1
	}
	return key(spaceLock, kind, lockTime, id)
}

// record writes the groups down.
func (a *arrival) record() {
	b, g, source := a.b, a.generation, uint32(a.b.Source)
	if len(g.Scope) == 0 {
		g.Scope = bytes.Clone(b.Scope)
	}
	if a.phase == 0 && !g.Received {
		g.W = b.Through
	}
	space := namespace(b.Scope, 0)
	if a.phase != 1 {
		space = namespace(b.Scope, b.Generation)
	}
	for i, group := range a.fresh {
		a.group(i, group, space)
	}
	if b.Complete && !g.Received {
		g.Received = true
		if len(a.fresh) == 0 { // an empty answer is accepted like any other
			a.group(-1, &Group{Sequence: max(b.Through, g.Last)}, space)
		}
		last := a.numbers[len(a.numbers)-1]
		row := a.txn.group(last)
		if row == nil {
			return
		}
		row.Last = true
		a.saveGroup(last, row)
	}
	a.saveGeneration(source, b.Generation, g)
	a.saveSource(source, a.source)
	a.attach(a.m.Attach)
}

// group writes one group down; i is its place in fresh, or -1.
func (a *arrival) group(i int, group *Group, space []byte) {
	b, g, source := a.b, a.generation, uint32(a.b.Source)
	a.meta.Group++
	n := a.meta.Group
	row := &groupRow{
		Source: source, Generation: b.Generation, Ord: g.Tail, ID: group.ID, Sequence: group.Sequence, Phase: a.phase,
		Position: a.at, Since: b.Provenance.ReceivedAt, Count: uint32(len(group.Observations)), Bytes: size(group),
	}
	a.numbers = append(a.numbers, n)
	a.put(key(spaceQueue, source, b.Generation, row.Ord), binary.BigEndian.AppendUint64(nil, n))
	g.Tail++
	g.Last = group.Sequence
	var hash [32]byte
	if i >= 0 {
		hash = a.hashes[i]
	}
	a.put(idKey(source, space, 0, group.ID), encode(&idRow{Hash: hash, Group: n}))
	carried := map[spend.TxID]*carrierRow{}
	for j := range group.Observations {
		o, index := &group.Observations[j], uint32(j)
		a.put(idKey(source, space, 1, o.ID), encode(&idRow{Hash: sha256.Sum256(o.Canonical), Group: n}))
		kept := observationRow{ID: o.ID, Kind: o.Kind, Outpoint: o.Outpoint, Effect: byte(o.Effect), Evidence: o.BEEF != nil, Target: o.Target}
		kept.Head = o.Canonical
		if o.BEEF != nil {
			kept.Variant = o.Variant
			encoded := base64.StdEncoding.AppendEncode(nil, o.BEEF)
			kept.Head, kept.Tail, kept.Spliced = splice(o.Canonical, encoded)
			a.put(key(spaceEvidence, o.Variant[:]), o.BEEF)
			a.candidate(n, index, row, o, carried)
		} else {
			a.read[string(key(spaceCandidate, n, index))] = nil // the group is new: nobody need ask
		}
		a.put(key(spaceObservation, n, index), encode(&kept))
	}
	ids := sortedKeys(carried)
	for _, id := range ids {
		a.put(key(spaceCarrier, id, n), encode(carried[id]))
	}
	if len(ids) > 0 {
		a.put(key(spaceCarried, n), encode(&idsRow{ids}))
	}
	slices.SortFunc(row.Targets, spend.TxID.Compare)
	row.Targets = slices.Compact(row.Targets)
	if row.Open == 0 {
		a.put(key(spaceReady, n), nil)
	}
	a.saveGroup(n, row)
	a.count(source, a.source, g, 1, int64(row.Bytes))
}

// count moves the figures of what waits.
func (t *txn) count(source uint32, s *sourceRow, g *generationRow, groups int, bytes int64) {
	for _, p := range []*PendingCount{&s.Pending, &g.Pending, &t.meta.Pending} {
		p.Groups += groups
		p.Bytes += bytes
	}
	t.saveSource(source, s)
}

// candidate writes one candidate down, and what its evidence holds.
func (a *arrival) candidate(n uint64, index uint32, row *groupRow, o *Observation, carried map[spend.TxID]*carrierRow) {
	p := a.plans[planKey{o.Variant, o.Target}]
	c := &candidateRow{Target: o.Target, Variant: o.Variant, Size: uint64(len(o.BEEF))}
	carry := func(id spend.TxID) *carrierRow {
		x := carried[id]
		if x == nil {
			x = &carrierRow{Via: index}
			carried[id] = x
		}
		return x
	}
	for i := range p.Txs {
		carry(p.Txs[i].ID)
	}
	x := carry(o.Target)
	x.Targets = append(x.Targets, index)
	fault := p.Fault
	if len(o.BEEF) > a.budget.Candidate || len(p.Txs) > a.budget.Transactions {
		fault = Fault{Status: Limited, Reason: "the evidence is larger than the budget"}
	}
	for i := range p.Claims {
		claim := &p.Claims[i]
		if x := carried[claim.TxID]; x != nil && a.claim(n, claim) {
			k := claimKey{claim.TxID, claim.Height, claim.Root}
			c.Claims = append(c.Claims, k)
			if !slices.Contains(x.Claims, k) {
				x.Claims = append(x.Claims, k)
			}
		} else if x != nil {
			fault = Fault{Status: Limited, Reason: "more placements of one transaction than the budget allows"}
		}
	}
	row.Candidates++
	row.Open++
	row.Targets = append(row.Targets, o.Target)
	a.saveCandidate(n, index, c)
	switch fault.Status {
	case Invalid:
		a.bad = append(a.bad, candidateKey{n, index})
		c.Reason = fault.Reason
	case Limited, Unresolved:
		a.outcome(n, index, row, c, fault.Status, fault.Reason, a.m.Context)
	}
}

// claim notes a placement in the row of its transaction. It reports false when
// there are too many.
func (a *arrival) claim(group uint64, claim *Claim) bool {
	row := a.tx(claim.TxID)
	if row == nil || row.Trusted {
		return true
	}
	i := slices.IndexFunc(row.Claims, func(p claimRow) bool { return p.Height == claim.Height && p.Root == claim.Root })
	if i < 0 {
		// One that holds is not kept out by what others only claim.
		place := claimRow{Height: claim.Height, Root: claim.Root, Coinbase: claim.Coinbase}
		if i = len(row.Claims); i < a.budget.Claims {
			row.Claims = append(row.Claims, place)
		} else if i = slices.IndexFunc(row.Claims, claimRow.idle); i < 0 || !claim.Holds {
			return false
		} else {
			row.Claims[i] = place
		}
		coinbase := byte(0)
		if slices.ContainsFunc(row.Claims, func(p claimRow) bool { return p.Height == claim.Height && p.Coinbase }) {
			coinbase = 1
		}
		a.put(key(spaceClaim, claim.Height, claim.TxID), []byte{coinbase})
	}
	p := &row.Claims[i]
	if p.Group == 0 {
		p.Group = group
		a.changed = append(a.changed, claim.TxID)
	}
	p.Holds, p.Known = claim.Holds, claim.Known || claim.Holds
	if p.Holds && !p.Held {
		p.Held, p.HeldAt = true, a.at
		a.changed = append(a.changed, claim.TxID)
	}
	a.saveTx(claim.TxID, row)
	return true
}

// idle reports whether a placement never meant anything.
func (p claimRow) idle() bool { return !p.Holds && !p.Held && !p.Settled }

// arrange gives what came its place: readiness, work, and marks on what has to
// wait.
func (a *arrival) arrange() {
	groups := make([]spend.GroupID, len(a.numbers))
	for i, n := range a.numbers {
		groups[i] = spend.GroupID(n)
	}
	ready := spend.Advance(graph{a.txn}, a.changed, groups)
	received := a.assign(ready)
	a.wake(received)
	a.awaken(a.changed)
	for _, n := range a.numbers {
		row := a.txn.group(n)
		if row == nil {
			return
		}
		for index := range row.Count {
			a.enqueue(n, index, row)
		}
	}
	seeds := append(slices.Clone(a.changed), a.cover(a.changed)...)
	for _, r := range ready {
		seeds = append(seeds, r.ID)
	}
	for _, n := range a.numbers {
		// One that its other groups have stuck can be decided through this one: it holds a barrier again.
		for _, id := range (graph{a.txn}).Carried(spend.GroupID(n)) {
			if row := a.tx(id); row != nil && row.Ready && !row.Settled {
				seeds = append(seeds, id)
			}
		}
	}
	for _, k := range a.bad {
		a.invalid(k, "", a.b.Provenance.ReceivedAt)
	}
	a.publish(seeds, a.pub)
	a.finish(a.pub)
}
