package reconcile

import "github.com/overlayd/overlayd/reconcile/spend"

// Change is what one accepted revision changed: differences only. The first
// change of a rebuilt projector is the whole snapshot, with Kind "snapshot".
type Change struct {
	Revision     Revision
	Context      string
	Kind         string // "accept", "context", "reconcile", "invalidate", "snapshot"
	Outputs      []OutputChange
	Memberships  []MembershipChange
	Transactions []TxChange
}

// OutputChange is a listed output whose state, spender or sources changed.
type OutputChange struct {
	Outpoint spend.Outpoint
	State    OutputState
	Was      OutputState // "" when it was not listed
	Stale    bool
	By       spend.TxID
	Sources  []SourceID // empty: nobody lists it any more
}

// MembershipChange is an active row that changed. Gone: a swap removed it.
type MembershipChange struct {
	Source      SourceID
	Generation  uint64
	Outpoint    spend.Outpoint
	Present     bool
	Gone        bool
	Sequence    uint64
	Observation string
}

// TxChange is a transaction whose published state changed.
type TxChange struct {
	ID      spend.TxID
	Status  spend.Status
	Was     spend.Status
	Pending bool
	Reason  spend.Reason
	Other   spend.TxID
}
