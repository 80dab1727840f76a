package reconcile

import (
	"context"
	"fmt"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// Audit recomputes every component and every listed output from retained facts, in
// a commit that is never made; see Store.
func (e *engine) Audit(ctx context.Context) (list []Difference, err error) {
	err = e.view(ctx, func(t *txn) error {
		due := map[spend.TxID]bool{}
		var seeds []spend.TxID
		for e := range t.prefix([]byte{spaceDue}, 0) {
			seeds = append(seeds, txidAt(e.Key, 1))
		}
		for _, piece := range spend.Expand(graph{t}, seeds, t.budget.Component) {
			for _, members := range [][]spend.Tx{piece.Members, piece.Border} {
				for i := range members {
					due[members[i].ID] = true
				}
			}
		}
		for _, id := range seeds {
			due[id] = true
		}
		before := map[spend.TxID]txRow{}
		var all []spend.TxID
		for e := range t.prefix([]byte{spaceTx}, 0) {
			id := txidAt(e.Key, 1)
			row := t.tx(id)
			if row == nil {
				return t.err
			}
			before[id] = *row
			if !row.Trusted {
				all = append(all, id)
			}
		}
		list = append(list, t.auditReady(all)...)
		p := newPublication("audit")
		p.silent = true
		t.publish(all, p)
		for _, id := range all {
			was, is := before[id], t.tx(id)
			have, want := describe(&was), describe(is)
			if have != want && !due[id] {
				list = append(list, Difference{What: "transaction", Key: id.String(), Have: have, Want: want})
			}
		}
		var counts [len(outputStates)]uint64
		for e := range t.prefix([]byte{spaceOutput}, 0) {
			row, _ := plain[outputRow](t, e.Value)
			o := outpointAt(e.Key, 1)
			counts[row.State]++
			is := t.evaluate(o)
			if (is.State != row.State || is.By != row.By || is.Stale != row.Stale) && !t.outputDue(o, due) {
				list = append(list, Difference{
					What: "output", Key: o.String(), Have: fmt.Sprintf("%s by %s", outputStates[row.State], row.By),
					Want: fmt.Sprintf("%s by %s", outputStates[is.State], is.By),
				})
			}
		}
		if counts != t.meta.Outputs {
			list = append(list, Difference{What: "counter", Key: "outputs", Have: fmt.Sprint(t.meta.Outputs), Want: fmt.Sprint(counts)})
		}
		return t.err
	})
	return list, err
}

// outputDue reports whether the state of an output waits for a Reconcile.
func (t *txn) outputDue(o spend.Outpoint, due map[spend.TxID]bool) bool {
	if due[o.TxID] {
		return true
	}
	for _, id := range (graph{t}).Spenders(o) {
		if due[id] {
			return true
		}
	}
	return false
}

// auditReady judges readiness and coverage again: nothing may move.
func (t *txn) auditReady(all []spend.TxID) (list []Difference) {
	for _, r := range spend.Advance(graph{t}, all, nil) {
		list = append(list, Difference{What: "readiness", Key: r.ID.String(), Have: "not ready", Want: fmt.Sprintf("ready at %d", r.ReadyAt)})
	}
	for _, r := range spend.Retract(graph{t}, all) {
		row := t.tx(r.ID)
		if row == nil {
			return list
		}
		list = append(list, Difference{
			What: "readiness", Key: r.ID.String(), Have: fmt.Sprintf("received %d, ready %v at %d, depth %d", row.ReceivedAt, row.Ready, row.ReadyAt, row.Depth),
			Want: fmt.Sprintf("received %d, ready %v at %d, depth %d", r.ReceivedAt, r.Ready, r.ReadyAt, r.Depth),
		})
	}
	for _, c := range spend.Cover(graph{t}, all) {
		list = append(list, Difference{What: "coverage", Key: c.ID.String(), Have: fmt.Sprint(!c.Covered), Want: fmt.Sprint(c.Covered)})
	}
	return list
}

// describe is everything that is published of a transaction, in one line.
func describe(t *txRow) string {
	line := fmt.Sprintf("%s %s %s", t.shown(), t.reason(), t.Other)
	if t.Pending {
		return line + " pending"
	}
	if t.Eligible {
		line += fmt.Sprintf(" eligible at %d", t.EligibleAt)
	}
	if t.Replaced {
		line += fmt.Sprintf(" replaces %s at %d", t.Replaces, t.ReplacedAt)
	}
	return line + fmt.Sprint(" ", t.Conflicts)
}
