package lookup

import (
	"bytes"
	"slices"

	"github.com/overlayd/overlayd/livefeed"
)

// Reasons of a withdraw that the provider itself gives (conformance row L3). An operator's withdraw carries the operator's.
const (
	reasonSpent      = "spent"      // a transaction spent the output
	reasonExpired    = "expired"    // the row's own deadline came
	reasonProhibited = "prohibited" // the operator prohibited serving it
	reasonAudience   = "audience"   // this reader is no longer among the row's readers
	reasonChanged    = "changed"    // the row no longer matches the query
)

// viewer is one session's eyes: its query and, for an authenticated session, its principal.
type viewer struct {
	query  Query
	reader *[33]byte // nil: anonymous, sees only rows without readers
}

func (v viewer) admits(state *livefeed.State) bool {
	if state.Readers == nil {
		return true
	}
	return v.reader != nil && slices.Contains(state.Readers, *v.reader)
}

// sees reports whether a row in this state belongs to the session's result. A row that is not there (nil) does not.
func (v viewer) sees(state *livefeed.State) bool {
	return state != nil && !state.Hidden && v.admits(state) && v.query.Match(state)
}

// observe appends to facts what one committed change means to a viewer, derived from the states before and after it alone, so
// that the same group is the same observations whenever and by whomever it is derived (conformance rows L3, L4).
//
//	            not seen after          seen after
//	not seen    nothing                 output
//	seen        [spend +] withdraw      output if evidence, context, order or expiry changed, else nothing
//
// An invalidation reaches every viewer.
func (v viewer) observe(facts []fact, change *livefeed.Change) []fact {
	if change.Op == livefeed.Invalidate {
		return append(facts, fact{kind: kindInvalidated, contextID: change.ContextID, reason: change.Reason})
	}
	before, after := v.sees(change.Before), v.sees(change.After)
	switch {
	case after && (!before || listingChanged(change.Before, change.After)):
		return append(facts, fact{kind: kindOutput, outpoint: change.Outpoint, state: change.After})
	case before && !after:
		withdraw := fact{kind: kindWithdraw, outpoint: change.Outpoint, reason: v.leaving(change)}
		if change.Op != livefeed.Spend {
			return append(facts, withdraw)
		}
		return append(facts, fact{kind: kindSpend, outpoint: change.Outpoint, spendingTxID: change.SpendingTxID, evidence: change.SpendEvidence}, withdraw)
	}
	return facts
}

// leaving names why a row that was seen is seen no more.
func (v viewer) leaving(change *livefeed.Change) string {
	switch {
	case change.Op == livefeed.Spend:
		return reasonSpent
	case change.Op == livefeed.Expire:
		return reasonExpired
	case change.After == nil:
		return change.Reason
	case change.After.Hidden:
		return reasonProhibited
	case !v.admits(change.After):
		return reasonAudience
	}
	return reasonChanged
}

// listingChanged reports whether a row that stays in view is to be observed again.
func listingChanged(before, after *livefeed.State) bool {
	return before.Evidence != after.Evidence || before.ExpiresAt != after.ExpiresAt ||
		!bytes.Equal(before.Order, after.Order) || !sameContext(before.Context, after.Context)
}

func sameContext(a, b *livefeed.Context) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Schema == b.Schema && bytes.Equal(a.Bytes, b.Bytes)
}
