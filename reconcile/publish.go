package reconcile

import (
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// publication gathers what one commit publishes. A receive publishes nothing that
// counts as accepted: it only marks what has to wait, and silent is set.
type publication struct {
	change Change
	silent bool
	moved  map[spend.TxID]spend.Status // transactions whose published state changed, with the one before
	listed map[spend.Outpoint]bool     // outputs to look at again; true: sources changed too
}

func newPublication(kind string) *publication {
	return &publication{
		change: Change{Kind: kind}, moved: map[spend.TxID]spend.Status{}, listed: map[spend.Outpoint]bool{},
	}
}

// touch remembers the outputs whose state may depend on a transaction.
func (p *publication) touch(id spend.TxID, was spend.Status) {
	if _, ok := p.moved[id]; !ok {
		p.moved[id] = was
	}
}

// sources remembers an output whose sources changed.
func (p *publication) sources(o spend.Outpoint) { p.listed[o] = true }

// publish recomputes the components of the seeds.
func (t *txn) publish(seeds []spend.TxID, p *publication) {
	if len(seeds) == 0 || t.err != nil {
		return
	}
	pieces := spend.Expand(graph{t}, seeds, t.budget.Component)
	if t.err != nil {
		return
	}
	for i := range pieces {
		t.decide(&pieces[i], p)
	}
}

// decide selects from one component and writes what changed.
func (t *txn) decide(piece *spend.Piece, p *publication) {
	if piece.Over {
		for i := range piece.Members {
			t.hold(piece.Members[i].ID, spend.OverBudget, p)
		}
		for i := range piece.Border {
			t.include(piece.Border[i].ID, p)
		}
		return
	}
	piece.Views, piece.Now, piece.NonFinal = t.viewsOf(piece.Members), t.viewAt(t.meta.ContextAt), t.meta.NonFinal
	if t.err != nil {
		return
	}
	selection := spend.Select(&piece.Component)
	at := map[spend.TxID]spend.Replacement{}
	for _, r := range selection.Replacements {
		at[r.Next] = r
	}
	for i := range selection.Outcomes {
		o := &selection.Outcomes[i]
		switch {
		case o.Status == spend.Pending:
			t.hold(o.ID, o.Reason, p)
		case o.Status == spend.Included:
			t.include(o.ID, p)
		default:
			t.settle(o, at[o.ID].At, p)
		}
	}
}

// viewsOf are the views in which something of the members can be decided.
func (t *txn) viewsOf(members []spend.Tx) []spend.View {
	var positions []uint64
	for i := range members {
		if !spend.Locked(members[i].Inputs, members[i].LockTime) {
			continue
		}
		for _, f := range t.tx(members[i].ID).Flips {
			positions = append(positions, f.At)
		}
	}
	// A member may have become final between two others were ready.
	locked := slices.ContainsFunc(members, func(m spend.Tx) bool { return spend.Locked(m.Inputs, m.LockTime) })
	least := t.meta.ContextAt
	for i := range members {
		if !members[i].Ready {
			continue
		}
		least = min(least, members[i].ReadyAt)
		if locked {
			positions = append(positions, members[i].ReadyAt)
		}
	}
	positions = append(positions, least)
	slices.Sort(positions)
	var views []spend.View
	for _, at := range slices.Compact(positions) {
		if v := t.viewAt(at); len(views) == 0 || views[len(views)-1].At < v.At {
			views = append(views, v)
		}
	}
	return views
}

// hold keeps what was published and marks it as pending.
func (t *txn) hold(id spend.TxID, why spend.Reason, p *publication) {
	row := t.tx(id)
	if row == nil || row.Pending && row.Why == byte(why) {
		return
	}
	if !row.Pending {
		p.touch(id, row.shown())
	}
	row.Pending, row.Why = true, byte(why)
	t.saveTx(id, row)
	t.put(key(spacePending, id), []byte{byte(why)})
}

// shown is the status as readers see it.
func (t *txRow) shown() spend.Status {
	if !t.Published {
		return spend.Pending
	}
	return spend.Status(t.Status)
}

// include publishes a forced transaction. Whom it conflicts with does not depend on
// the component from which it was seen.
func (t *txn) include(id spend.TxID, p *publication) {
	t.settle(&spend.Outcome{ID: id, Status: spend.Included, ConflictsWith: t.rivals(id)}, 0, p)
}

// rivals lists the usable transactions that share an input with a forced one.
func (t *txn) rivals(id spend.TxID) []spend.TxID {
	row := t.tx(id)
	if row == nil {
		return nil
	}
	var list []spend.TxID
	for _, in := range row.Inputs {
		for _, other := range (graph{t}).Spenders(in.Outpoint) {
			if other == id {
				continue
			}
			n, ok := graph{t}.Tx(other)
			if ok && (n.Forced() || n.Ready && n.Usable() && n.Result != spend.Invalid && n.Result != spend.Limited) {
				list = append(list, other)
			}
		}
	}
	slices.SortFunc(list, spend.TxID.Compare)
	list = slices.Compact(list)
	return slices.Clip(list[:min(len(list), spend.MaxConflicts)])
}

// settle publishes one outcome.
func (t *txn) settle(o *spend.Outcome, replacedAt uint64, p *publication) {
	row := t.tx(o.ID)
	if row == nil {
		return
	}
	was, pending := row.shown(), row.Pending
	same := row.Published && !row.Pending && spend.Status(row.Status) == o.Status && spend.Reason(row.Reason) == o.Reason && row.Other == o.Other
	if same && row.Eligible == o.Eligible && row.EligibleAt == o.EligibleAt && row.Replaced == o.Replaced && row.Replaces == o.Replaces &&
		row.ReplacedAt == replacedAt && slices.Equal(row.Conflicts, o.ConflictsWith) {
		return
	}
	if !same {
		p.touch(o.ID, was)
	}
	if pending {
		t.del(key(spacePending, o.ID))
	}
	row.Published, row.Status, row.Reason, row.Other = true, byte(o.Status), byte(o.Reason), o.Other
	row.Pending, row.Why = false, 0
	row.Eligible, row.EligibleAt = o.Eligible, o.EligibleAt
	row.Conflicts = o.ConflictsWith
	row.Replaced, row.Replaces, row.ReplacedAt = o.Replaced, o.Replaces, replacedAt
	var link []byte
	if o.Replaced {
		link = key(spaceReplacement, replacedAt, row.ReadyAt, row.Depth, row.FirstRaw.At, row.FirstRaw.Index, o.ID)
	}
	if string(link) != string(row.Linked) {
		if row.Linked != nil {
			t.del(row.Linked)
		}
		if link != nil {
			t.put(link, o.Replaces[:])
		}
		row.Linked = link
	} else if link != nil {
		t.put(link, o.Replaces[:])
	}
	t.saveTx(o.ID, row)
}

// finish looks again at every output that what was published can have moved, and
// closes the change.
func (t *txn) finish(p *publication) {
	ids := sortedKeys(p.moved)
	for _, id := range ids {
		row := t.tx(id)
		if row == nil {
			return
		}
		for e := range t.prefix(key(spaceOutput, id), 0) {
			p.look(outpointAt(e.Key, 1))
		}
		keys := make([][]byte, len(row.Inputs))
		for i, in := range row.Inputs {
			keys[i] = key(spaceOutput, in.Outpoint)
		}
		t.fetch(keys...)
		for i, in := range row.Inputs {
			if t.get(keys[i]) != nil {
				p.look(in.Outpoint)
			}
		}
		if !p.silent {
			p.change.Transactions = append(p.change.Transactions, TxChange{
				ID: id, Status: row.shown(), Was: p.moved[id], Pending: row.Pending, Reason: row.reason(), Other: row.Other,
			})
		}
	}
	outpoints := make([]spend.Outpoint, 0, len(p.listed))
	for o := range p.listed {
		outpoints = append(outpoints, o)
	}
	slices.SortFunc(outpoints, spend.Outpoint.Compare)
	for _, o := range outpoints {
		t.output(o, p)
	}
}

func (p *publication) look(o spend.Outpoint) {
	if _, ok := p.listed[o]; !ok {
		p.listed[o] = false
	}
}

// reason is why a transaction is as it is shown.
func (t *txRow) reason() spend.Reason {
	if t.Pending {
		return spend.Reason(t.Why)
	}
	return spend.Reason(t.Reason)
}

// output brings the row of a listed output up to date.
func (t *txn) output(o spend.Outpoint, p *publication) {
	k := key(spaceOutput, o)
	old, had := plain[outputRow](t, t.get(k))
	row := t.evaluate(o)
	row.Told, row.ToldBy, row.Since = old.Told, old.ToldBy, old.Since
	moved := !had || old.State != row.State || old.By != row.By || old.Stale != row.Stale
	if moved {
		row.Since = t.meta.Revision.Accepted
		if !p.silent {
			row.Since++
		}
	}
	if !p.silent && (p.listed[o] || row.Told != row.State+1 || row.ToldBy != row.By) {
		c := OutputChange{Outpoint: o, State: outputStates[row.State], Stale: row.Stale, By: row.By, Sources: t.listers(o)}
		if row.Told > 0 {
			c.Was = outputStates[row.Told-1]
		}
		if row.Told > 0 || len(c.Sources) > 0 { // what is only staged is not news
			p.change.Outputs = append(p.change.Outputs, c)
			row.Told, row.ToldBy = row.State+1, row.By
		}
	}
	if t.err != nil {
		return
	}
	switch {
	case !had:
		t.meta.Outputs[row.State]++
	case old.State != row.State:
		t.meta.Outputs[old.State]--
		t.meta.Outputs[row.State]++
		t.del(key(spaceOutputState, old.State, o))
	}
	if !had || old.State != row.State {
		t.put(key(spaceOutputState, row.State, o), nil)
	}
	t.put(k, encode(&row))
}

// The states by their numbers in outputStates.
const (
	outUnknown = iota
	outCurrent
	outSpent
	outPending
	outConflicting
)

// evaluate says what transactions prove about an output, listed or not.
func (t *txn) evaluate(o spend.Outpoint) outputRow {
	creator := t.tx(o.TxID)
	switch {
	case creator == nil:
		return outputRow{State: outUnknown, Reason: byte(spend.MissingDependency)}
	case o.Index >= creator.Outputs:
		return outputRow{State: outUnknown, Reason: byte(spend.ScriptInvalid)}
	case creator.Trusted:
	case creator.Pending:
		return outputRow{State: outPending, Stale: true, Reason: creator.Why}
	default:
		row := outputRow{Reason: creator.Reason, By: creator.Other}
		switch creator.shown() {
		case spend.Included, spend.SelectedFinal:
		case spend.Conflicting, spend.DependentConflict:
			row.State = outConflicting
			return row
		case spend.SelectedNonFinal:
			return outputRow{State: outPending, Reason: byte(spend.ParentNonFinal), By: o.TxID}
		default:
			row.State = outUnknown
			return row
		}
		if !creator.Published {
			return outputRow{State: outUnknown}
		}
	}
	row := outputRow{State: outCurrent}
	for _, id := range (graph{t}).Spenders(o) {
		spender := t.tx(id)
		if spender == nil {
			return row
		}
		switch status := spender.shown(); {
		case spender.Pending:
			if row.State != outSpent {
				row = outputRow{State: outPending, Stale: true, By: id, Reason: spender.Why}
			}
		case status == spend.Included || status == spend.SelectedFinal:
			row = outputRow{State: outSpent, By: id}
		case status == spend.LimitedTx && row.State == outCurrent:
			row = outputRow{State: outUnknown, By: id, Reason: byte(spend.OverBudget)}
		}
	}
	return row
}

// listers are the sources whose active rows list an output.
func (t *txn) listers(o spend.Outpoint) []SourceID {
	var list []SourceID
	for e := range t.prefix(key(spaceListing, o), 0) {
		source, generation := u32At(e.Key, 37), u64At(e.Key, 41)
		if s := t.source(source); s == nil || s.Active != generation {
			continue
		}
		if m, ok := plain[membershipRow](t, t.get(key(spaceMember, source, generation, o))); ok && m.Present {
			list = append(list, SourceID(source))
		}
	}
	return list
}

// sortedKeys lists the keys of a map in their order.
func sortedKeys[V any](m map[spend.TxID]V) []spend.TxID {
	ids := make([]spend.TxID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, spend.TxID.Compare)
	return ids
}
