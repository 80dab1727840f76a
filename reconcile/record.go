package reconcile

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// The statuses of a candidate, as resultStatuses numbers them.
const (
	resultNone = iota
	resultVerified
	resultInvalid
	resultUnresolved
	resultLimited
)

// Record keeps results; see Store.
func (e *engine) Record(ctx context.Context, results []Result) ([]Recorded, error) {
	var out []Recorded
	err := e.update(ctx, func(t *txn) error {
		out = make([]Recorded, len(results))
		current := t.context().ID
		t.aheadOfResults(results)
		for i := range results {
			out[i] = t.keep(&results[i], current)
			if t.err != nil {
				return t.err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// keep writes one result down, or says why not.
func (t *txn) keep(r *Result, current string) Recorded {
	drop := func(reason string) Recorded { return Recorded{Reason: reason} }
	group, index := t.group(r.Group), uint32(r.Index)
	if group == nil || SourceID(group.Source) != r.Source || group.Generation != r.Generation || r.Index != uint64(index) {
		return drop("there is no such candidate")
	}
	c := t.candidate(r.Group, index)
	k := key(spaceJob, group.Source, r.Group, index)
	job, open := plain[jobRow](t, t.get(k))
	switch {
	case c == nil || c.Variant != r.Variant:
		return drop("there is no such candidate")
	case r.Context != current:
		return drop("the view of the chain moved")
	case r.Status == Cancelled || r.Status == ContextChanged:
		return drop("nothing was decided")
	}
	if open && job.Target != nil { // only what its scripts say was asked for
		t.facts(r.Facts)
		t.del(k)
		return Recorded{Kept: true}
	}
	status := slices.Index(resultStatuses[:], r.Status)
	switch {
	case group.Status != groupWaiting:
		return drop("the group waits no longer")
	case status <= resultNone:
		return drop("there is no such status")
	case c.Status == resultVerified || c.Status == resultInvalid || c.Status == resultLimited:
		return drop("the candidate has its result")
	}
	t.facts(r.Facts)
	target := t.tx(c.Target)
	if status == resultVerified && (target == nil || target.Result != byte(spend.Valid) && !target.Trusted && !target.anchored()) {
		return drop("verified without a fact about the target")
	}
	if len(r.Dependencies) > t.budget.Dependencies {
		status, r.Reason, r.Dependencies = resultLimited, "more dependencies than the budget allows", r.Dependencies[:t.budget.Dependencies]
	}
	c.Dependencies = slices.Clone(r.Dependencies)
	if status == resultInvalid {
		t.invalid(candidateKey{r.Group, index}, r.Reason, 0)
		return Recorded{Kept: true, Quarantined: true}
	}
	if status == resultLimited && target != nil && target.Result == byte(spend.None) && !target.Trusted {
		target.Result = byte(spend.Limited)
		t.saveTx(c.Target, target)
		t.due(c.Target)
	}
	t.outcome(r.Group, index, group, c, resultStatuses[status], r.Reason, r.Context)
	t.saveGroup(r.Group, group)
	return Recorded{Kept: true, Settled: group.Open == 0}
}

// facts writes down what scripts decided. What is valid or invalid stays so.
func (t *txn) facts(list []Fact) {
	for _, f := range list {
		row := t.tx(f.TxID)
		if row == nil || row.Trusted || row.Result == byte(spend.Valid) || row.Result == byte(spend.Invalid) {
			continue
		}
		was := row.Result
		row.Result = byte(spend.Invalid)
		if f.Valid {
			row.Result = byte(spend.Valid)
		}
		if failpoint.MutantCompletion && row.Ready {
			t.meta.Completed++
			row.ReadyAt = t.meta.Completed
		}
		t.saveTx(f.TxID, row)
		if !f.Valid || row.Settled || was != byte(spend.None) {
			t.due(f.TxID) // nobody accepts anything for it
		}
	}
}

// outcome moves a candidate to a status, with all that is counted by it. The
// caller saves the group.
func (t *txn) outcome(n uint64, index uint32, group *groupRow, c *candidateRow, status ResultStatus, reason, in string) {
	now, was := byte(slices.Index(resultStatuses[:], status)), c.Status
	hung := now == resultUnresolved || now == resultLimited || now == resultNone && c.Hung
	stuck := group.Stuck > 0
	place := key(spaceVerified, n, index)
	switch {
	case was == resultVerified && now != resultVerified:
		group.Open++
		t.del(place)
		t.del(key(spaceReady, n))
	case was != resultVerified && now == resultVerified:
		group.Open--
		t.put(place, nil)
	}
	if c.Hung && !hung {
		group.Stuck--
	}
	if !c.Hung && hung {
		group.Stuck++
	}
	c.Hung = hung
	if was == resultUnresolved && now != was {
		t.del(key(spaceForeign, n, index))
	}
	if now == resultUnresolved {
		t.put(key(spaceForeign, n, index), nil)
		t.wait(candidateKey{n, index}, c.Dependencies)
	}
	c.Status, c.Reason, c.Context = now, reason, in
	t.saveCandidate(n, index, c)
	t.del(key(spaceJob, group.Source, n, index))
	if now == resultNone {
		t.enqueue(n, index, group)
	}
	if group.Open == 0 && group.Status == groupWaiting {
		t.put(key(spaceReady, n), nil)
	}
	if stuck != (group.Stuck > 0) {
		t.unsettled(n)
	}
}

// wait has a candidate woken when the bytes of what it names arrive.
func (t *txn) wait(k candidateKey, on []spend.Outpoint) {
	for _, o := range on {
		place := key(spaceWaiters, o.TxID)
		if t.get(key(spaceRaw, o.TxID)) != nil {
			continue
		}
		w, _ := plain[waitersRow](t, t.get(place))
		if !slices.Contains(w.Of, k) {
			w.Of = append(w.Of, k)
			t.put(place, encode(&w))
		}
	}
}

// awaken opens what waited for the bytes of these transactions.
func (t *txn) awaken(ids []spend.TxID) {
	keys := make([][]byte, len(ids))
	for i, id := range ids {
		keys[i] = key(spaceWaiters, id)
	}
	t.fetch(keys...)
	for _, k := range keys {
		v := t.get(k)
		if v == nil {
			continue
		}
		w, _ := plain[waitersRow](t, v)
		t.del(k)
		for _, c := range w.Of {
			t.reopen(c, true)
		}
	}
}

// reopen has a candidate verified again. When something that it needs has come, it
// holds a barrier again; a new view alone does not say so.
func (t *txn) reopen(k candidateKey, came bool) {
	group, c := t.group(k.Group), t.candidate(k.Group, k.Index)
	if group == nil || c == nil || group.Status != groupWaiting || c.Status != resultUnresolved && c.Status != resultVerified {
		return
	}
	t.outcome(k.Group, k.Index, group, c, "", "", "")
	if came && c.Hung {
		t.free(k.Group, group, c)
		t.saveCandidate(k.Group, k.Index, c)
	}
	t.saveGroup(k.Group, group)
}

// free takes the mark of a hung candidate away.
func (t *txn) free(n uint64, group *groupRow, c *candidateRow) {
	c.Hung = false
	if group.Stuck--; group.Stuck == 0 {
		t.unsettled(n)
	}
}

// unsettled has the components of what a group has yet to settle recomputed.
func (t *txn) unsettled(n uint64) {
	for _, id := range (graph{t}).Carried(spend.GroupID(n)) {
		if row := t.tx(id); row != nil && row.Ready && !row.Settled {
			t.due(id)
		}
	}
}

// enqueue lists a candidate for verification, if everything it needs is here.
func (t *txn) enqueue(n uint64, index uint32, group *groupRow) {
	c := t.candidate(n, index)
	if c == nil || c.Status != resultNone || group.Status != groupWaiting {
		return
	}
	if target := t.tx(c.Target); target != nil && (target.Received || target.Trusted) {
		t.put(key(spaceJob, group.Source, n, index), encode(&jobRow{}))
	}
}

// wake lists the candidates about transactions whose ancestry became complete.
func (t *txn) wake(ids []spend.TxID) {
	for _, id := range ids {
		for e := range t.prefix(key(spaceCarrier, id), 0) {
			x, ok := plain[carrierRow](t, e.Value)
			if !ok || len(x.Targets) == 0 {
				continue
			}
			n := u64At(e.Key, 33)
			group := t.group(n)
			if group == nil {
				return
			}
			for _, index := range x.Targets {
				t.reopen(candidateKey{n, index}, true)
				t.enqueue(n, index, group)
			}
		}
	}
}

// due has the components of transactions recomputed by the next Reconcile.
func (t *txn) due(ids ...spend.TxID) {
	for _, id := range ids {
		if k := key(spaceDue, id); t.get(k) == nil {
			t.put(k, nil)
			t.meta.Due++
		}
	}
}

// invalid quarantines the group of a candidate whose evidence is wrong, and ends
// its generation. What the group alone supported loses its place.
func (t *txn) invalid(k candidateKey, reason string, at uint64) {
	group, c := t.group(k.Group), t.candidate(k.Group, k.Index)
	if group == nil || c == nil || group.Status != groupWaiting {
		return
	}
	if reason == "" {
		reason = c.Reason
	}
	if at == 0 {
		at = max(t.context().Now, group.Since)
	}
	source, g := t.source(group.Source), t.generation(group.Source, group.Generation)
	if source == nil || g == nil {
		t.fail(ErrDamaged)
		return
	}
	t.drop(k.Group, group, groupQuarantined)
	c.Status, c.Reason = resultInvalid, reason
	t.saveCandidate(k.Group, k.Index, c)
	t.count(group.Source, source, g, -1, -int64(group.Bytes))
	t.saveGeneration(group.Source, group.Generation, g)
	var claim []byte
	id := group.ID
	if o, ok := plain[observationRow](t, t.get(key(spaceObservation, k.Group, k.Index))); ok {
		claim, id = t.canonical(&o), o.ID
	}
	t.end(group.Source, group.Generation, Ending{Code: string(Invalid), Reason: reason, At: at, Claim: claim, ClaimID: id})
	t.retract(k.Group)
}

// drop takes a waiting group out of everything that is done for it.
func (t *txn) drop(n uint64, group *groupRow, status byte) {
	group.Status = status
	t.saveGroup(n, group)
	t.del(key(spaceReady, n))
	for index := range group.Count {
		t.del(key(spaceJob, group.Source, n, index))
		t.del(key(spaceVerified, n, index))
		t.del(key(spaceForeign, n, index))
	}
}

// retract judges again what rested on groups that support nothing any more.
func (t *txn) retract(groups ...uint64) {
	var changed []spend.TxID
	for _, n := range groups {
		group := t.group(n)
		if group == nil {
			return
		}
		ids := (graph{t}).Carried(spend.GroupID(n))
		graph{t}.Prefetch(ids)
		for _, id := range ids {
			row := t.tx(id)
			if row == nil {
				return
			}
			// What was settled and ready before the group came does not rest on it. A
			// popular ancestor must not be judged again for every lie about its children.
			rests := !row.Settled || !row.Ready || row.ReadyAt >= group.Position
			for i := range row.Claims {
				if row.Claims[i].Group == n {
					row.Claims[i].Group = t.otherCarrier(id, claimKey{id, row.Claims[i].Height, row.Claims[i].Root})
					t.saveTx(id, row)
					rests = true
				}
			}
			if rests {
				changed = append(changed, id)
			}
		}
	}
	list := spend.Retract(graph{t}, changed)
	t.assign(list)
	for _, r := range list {
		changed = append(changed, r.ID)
	}
	t.due(append(changed, t.cover(changed)...)...)
}

// otherCarrier finds a group that brought the same placement and still stands; 0
// means none.
func (t *txn) otherCarrier(id spend.TxID, k claimKey) uint64 {
	for e := range t.prefix(key(spaceCarrier, id), 0) {
		x, ok := plain[carrierRow](t, e.Value)
		n := u64At(e.Key, 33)
		if group := t.group(n); ok && group != nil && group.supports() && slices.Contains(x.Claims, k) {
			return n
		}
	}
	return 0
}

// end ends a generation, once, and keeps the claim.
func (t *txn) end(source uint32, generation uint64, e Ending) bool {
	s, g := t.source(source), t.generation(source, generation)
	if s == nil || g == nil {
		return false
	}
	if e.Claim != nil {
		t.quarantine(source, s, generation, e)
	}
	if g.Ending != nil || g.Retired {
		return false
	}
	e.Source, e.Generation, e.Claim = SourceID(source), generation, nil
	g.Ending = &e
	t.saveGeneration(source, generation, g)
	return true
}

// quarantine keeps a refused claim in place of the oldest one that is over the
// bound.
func (t *txn) quarantine(source uint32, s *sourceRow, generation uint64, e Ending) {
	q := Quarantined{
		Generation: generation, At: e.At, Code: e.Code, Reason: e.Reason, ID: e.ClaimID, Bytes: e.Claim,
		Length: uint64(len(e.Claim)), Digest: sha256.Sum256(e.Claim),
	}
	if len(q.Bytes) > t.budget.QuarantineMax {
		q.Bytes = q.Bytes[:t.budget.QuarantineMax]
	}
	t.put(key(spaceQuarantine, source, s.Next), encode(&q))
	s.Next++
	for s.Next-s.First > uint64(t.budget.Quarantine) {
		t.del(key(spaceQuarantine, source, s.First))
		s.First++
	}
	t.saveSource(source, s)
}
