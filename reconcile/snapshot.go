package reconcile

import (
	"iter"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// Snapshot is the coherent state of one accepted revision. Close frees it.
type Snapshot interface {
	Revision() Revision
	Context() Context
	// Transactions gives what was received, by txid; trusted roots are not in it.
	Transactions() iter.Seq2[Transaction, error]
	Transaction(id spend.TxID) (Transaction, bool, error)
	// Output answers for any outpoint, listed or not.
	Output(o spend.Outpoint) (Output, error)
	// Outputs gives the listed ones in one state, or all with "", by outpoint.
	Outputs(state OutputState) iter.Seq2[Output, error]
	// Memberships gives the active rows by scope, generation, outpoint.
	Memberships() iter.Seq2[Membership, error]
	// Replacements gives them by frontier and order, never by txid.
	Replacements() iter.Seq2[Replacement, error]
	// PendingGroups gives groups that wait for results, by ingress.
	PendingGroups() iter.Seq2[PendingGroup, error]
	PendingComponents() iter.Seq2[PendingComponent, error]
	Sources() ([]SourceStatus, error)
	Counts() (Counts, error)
	Close() error
}

// Ingress is where the bytes of a transaction were first received.
type Ingress struct {
	Journal  string // random name of the store, fixed at its creation
	Position uint64
	Index    uint32 // within its batch, ascending by txid
}

// Order is a transaction's place in the total order, once it is ready.
type Order struct {
	FirstRaw     Ingress
	ReadyAt      uint64
	Depth        uint32
	ReadyContext string
}

// Eligible is the frontier at which a transaction could first be selected.
type Eligible struct {
	At      uint64
	Context string
}

// Transaction is what is known of one received transaction. While Pending, Status
// is what was published before, and stale.
type Transaction struct {
	ID            spend.TxID
	Status        spend.Status // Pending when nothing was published before
	Pending       bool
	Valid         bool // its scripts were run and hold, or it is included
	Reason        spend.Reason
	Other         spend.TxID
	FirstRaw      Ingress
	Order         *Order
	Eligible      *Eligible
	Dependencies  []spend.Outpoint // the inputs, in their order
	Replaces      *spend.TxID
	ConflictsWith []spend.TxID
	Evidence      [][32]byte // variants that carry it, ascending
}

// OutputState says whether an output may be used as a coin today.
type OutputState string

// The states. Current means selected with no known selected spend: it is never
// proof that the output is unspent.
const (
	Current     OutputState = "current"
	Spent       OutputState = "spent"
	Pending     OutputState = "pending"
	Conflicting OutputState = "conflicting"
	Unknown     OutputState = "unknown"
)

// Output is what a reader may rely on about one outpoint. Membership and
// currentness are separate: Sources lists it, State says what transactions prove.
type Output struct {
	Outpoint spend.Outpoint
	State    OutputState
	Stale    bool       // a component is pending: State is pending, or what it was
	By       spend.TxID // with Spent the spender, with Pending who would spend it
	Reason   spend.Reason
	Sources  []SourceID // whose active rows say present
	Evidence [][32]byte // variants that carry its transaction
}

// Membership is one active row of a source.
type Membership struct {
	Source      SourceID
	Scope       []byte
	Generation  uint64
	Outpoint    spend.Outpoint
	Present     bool
	Stale       bool // its generation is over, or a group that waits speaks of its outpoint
	Partial     bool // the snapshot is not complete
	Phase       Phase
	Sequence    uint64
	Observation string // id of the newest one
}

// Replacement is one selected version that took the place of another.
type Replacement struct {
	Previous, Next spend.TxID
	At             uint64
	Context        string
}

// PendingGroup is a group that waits.
type PendingGroup struct {
	Source     SourceID
	Generation uint64
	ID         string
	Sequence   uint64
	Position   uint64           // when it was received
	Since      uint64           // Unix seconds
	Settled    bool             // its facts are accepted, its membership waits for its turn
	Open       int              // candidates without a result that lets it settle
	Reason     string           // of the first of them that has one
	Waiting    []spend.Outpoint // what the first of them needs
}

// PendingComponent is a piece of the graph that keeps its old state.
type PendingComponent struct {
	Reason  spend.Reason
	Members []spend.TxID // ascending
}

// GenState says what a generation is for its source.
type GenState string

// The states of a generation.
const (
	Staged  GenState = "staged"
	Active  GenState = "active"
	Retired GenState = "retired"
)

// PendingCount is what waits.
type PendingCount struct {
	Groups int
	Bytes  int64
}

// Generation is one life of a source.
type Generation struct {
	Number   uint64
	State    GenState
	Scope    []byte
	Through  uint64 // highest sequence whose membership is accepted
	W        uint64 // watermark of its snapshot
	Received bool   // the whole snapshot is received
	Complete bool   // the whole snapshot is accepted
	Pending  PendingCount
	Ending   *Ending
}

// Ending says why a generation is over.
type Ending struct {
	Source     SourceID
	Generation uint64
	Code       string
	Reason     string
	At         uint64 // Unix seconds
	Claim      []byte // nil: no claim caused it
	ClaimID    string
}

// SourceStatus is how one source stands.
type SourceStatus struct {
	ID          SourceID
	Key         SourceKey
	Active      uint64 // generation whose rows are the active ones; 0: none
	Latest      Generation
	Stale       bool // the active generation is over
	Limited     bool // a budget of pending work is used up
	Quarantined int  // refused claims kept
}

// Counts are figures of the whole store.
type Counts struct {
	Transactions uint64
	Outputs      map[OutputState]uint64 // listed outputs by state
	Memberships  uint64                 // rows, absent ones included
	Pending      PendingCount
	Components   uint64 // pending ones
	Projectors   []ProjectorStatus
}

// ProjectorStatus is how far a projector is.
type ProjectorStatus struct {
	Name      string
	Projected uint64
	Lag       uint64
	Failure   string // of the last attempt; empty when it went well
}

// Job is one candidate to verify.
type Job struct {
	Source     SourceID
	Generation uint64
	Group      uint64
	Index      uint64
	Target     spend.TxID
	Variant    [32]byte
	Context    string
	Bytes      int
}

// Evidence is all that a job needs.
type Evidence struct {
	Job     Job
	Fault   Fault
	Want    Want
	Txs     []Prepared       // of the target and its ancestors those without a result, ancestors first
	Missing []spend.Outpoint // parents that are not known, in input order
	Decided []Fact           // of the target's closure, what has a result already
}

// Want is what the observation asserts about the target.
type Want struct {
	Output   *uint32         // the target has this output
	Previous *spend.Outpoint // the target consumes this output
}

// Prepared is a transaction to run.
type Prepared struct {
	ID       spend.TxID
	Raw      []byte
	Anchored bool // included in the current view: nothing is to be run
	Parents  []Coin
}

// Coin is the output that an input consumes.
type Coin struct {
	Script   []byte
	Satoshis uint64
	Known    bool
}
