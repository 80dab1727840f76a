package crash

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/overlayd/overlayd/internal/wire"
)

// Outpoint names a row.
type Outpoint struct {
	TxID  string // 64 hex characters
	Index uint32
}

// The operations of an edit.
const (
	Put        = "put"
	Spend      = "spend"
	Withdraw   = "withdraw"
	Invalidate = "invalidate"
)

// Edit is one edit of a group as the operator API takes it.
type Edit struct {
	Op           string
	Outpoint     Outpoint
	Attributes   map[string]string
	Order        string
	Context      []byte // bytes of the context; nil: none
	ExpiresAt    uint64 // 0: never
	BEEF         []byte // of a put, or of the spending transaction
	SpendingTxID string
	Reason       string // of a withdraw or an invalidate
	ContextID    string // of an invalidate
}

// Query is what a reader matches; empty: every row.
type Query map[string]string

func (q Query) matches(e *Edit) bool {
	if e == nil {
		return false
	}
	for name, value := range q {
		if e.Attributes[name] != value {
			return false
		}
	}
	return true
}

// observed is an observation without its identity.
type observed struct {
	kind, reason, spending, contextID string
	outpoint                          Outpoint
	context, beef                     []byte
}

func (o observed) same(p observed) bool {
	return o.kind == p.kind && o.reason == p.reason && o.spending == p.spending && o.contextID == p.contextID &&
		o.outpoint == p.outpoint && bytes.Equal(o.context, p.context) && bytes.Equal(o.beef, p.beef)
}

func outputOf(e *Edit) observed {
	return observed{kind: wire.KindOutput, outpoint: e.Outpoint, context: e.Context, beef: e.BEEF}
}

// observedOf is what a delivered observation says.
func observedOf(o *wire.Observation) observed {
	point := func(p wire.Outpoint) Outpoint { return Outpoint{p.TxID, p.OutputIndex} }
	switch {
	case o.Output != nil:
		out := observed{kind: o.Kind, outpoint: Outpoint{o.Output.Evidence.TxID, o.Output.Evidence.OutputIndex}, beef: o.Output.Evidence.BEEF}
		if o.Output.Context != nil {
			out.context = o.Output.Context.Bytes
		}
		return out
	case o.Spend != nil:
		return observed{kind: o.Kind, outpoint: point(o.Spend.Previous), spending: o.Spend.SpendingTxID, beef: o.Spend.BEEF}
	case o.Withdraw != nil:
		return observed{kind: o.Kind, outpoint: point(o.Withdraw.Outpoint), reason: o.Withdraw.Reason}
	case o.Invalidated != nil:
		return observed{kind: o.Kind, contextID: o.Invalidated.ContextID, reason: o.Invalidated.Reason}
	}
	return observed{kind: o.Kind}
}

// rows are the present rows, each by the put that made it.
type rows map[Outpoint]*Edit

// apply changes the rows by one edit and returns what it means to a query.
func (r rows) apply(e *Edit, q Query) []observed {
	before := r[e.Outpoint]
	switch e.Op {
	case Invalidate:
		return []observed{{kind: wire.KindInvalidated, contextID: e.ContextID, reason: e.Reason}}
	case Put:
		r[e.Outpoint] = e
		switch was, is := q.matches(before), q.matches(e); {
		case is && (!was || changed(before, e)):
			return []observed{outputOf(e)}
		case was && !is:
			return []observed{{kind: wire.KindWithdraw, outpoint: e.Outpoint, reason: "changed"}}
		}
		return nil
	}
	delete(r, e.Outpoint)
	if !q.matches(before) {
		return nil
	}
	if e.Op == Spend {
		return []observed{
			{kind: wire.KindSpend, outpoint: e.Outpoint, spending: e.SpendingTxID, beef: e.BEEF},
			{kind: wire.KindWithdraw, outpoint: e.Outpoint, reason: "spent"},
		}
	}
	return []observed{{kind: wire.KindWithdraw, outpoint: e.Outpoint, reason: e.Reason}}
}

// changed reports whether a row that stays in view is to be observed again.
func changed(a, b *Edit) bool {
	return !bytes.Equal(a.BEEF, b.BEEF) || !bytes.Equal(a.Context, b.Context) || a.ExpiresAt != b.ExpiresAt || a.Order != b.Order
}

// at returns a copy without the rows whose deadline is not after t.
func (r rows) at(t uint64) rows {
	out := make(rows, len(r))
	for o, e := range r {
		if e.ExpiresAt == 0 || e.ExpiresAt > t {
			out[o] = e
		}
	}
	return out
}

// snapshot lists the rows that a query sees, in the order of the rules.
func (r rows) snapshot(q Query) []*Edit {
	var list []*Edit
	for _, e := range r {
		if q.matches(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *Edit) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Outpoint.TxID, b.Outpoint.TxID), cmp.Compare(a.Outpoint.Index, b.Outpoint.Index))
	})
	return list
}
