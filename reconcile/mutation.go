package reconcile

import (
	"context"
	"errors"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// Key names a mutation: digest("knowledge-mutation", body) of BRC-192.
type Key [32]byte

// Mutation is one of [Receive], [Accept], [Reconcile], [Invalidate] and
// [ContextChange].
type Mutation interface {
	// Key covers the body. A retry must carry the very same body: what was frozen
	// at the first receipt stays frozen.
	Key() Key
	body() []byte // canonical JSON
	kind() string
}

// Receive records one batch with its checkpoint.
type Receive struct {
	Batch Batch
	// Plan has one entry for each pair of variant and target in the batch. It is
	// derived from the evidence and is not in the key.
	Plan []Planned
	// Context is the id of the view under which the plan's claims were asked. A
	// commit under another one is refused with context-changed.
	Context string
	// Fresh refuses a batch that repeats an id, also with the same bytes, with
	// StatusInvalid. Otherwise a repeated group changes nothing.
	Fresh bool
	// Attach is committed with the batch and is not in the key.
	Attach Attach
}

// Batch is what a source said at once.
type Batch struct {
	Source     SourceID
	Generation uint64
	Provenance Provenance
	Scope      []byte // canonical JSON; the first batch of a generation fixes it
	Phase      Phase
	Complete   bool // the last page of the snapshot, or a finite answer
	Groups     []Group
	Through    uint64
	HighWater  uint64
	Checkpoint *Checkpoint // in the key by digest only
}

// Provenance is frozen at the first receipt. Partition and generation are the
// store's.
type Provenance struct {
	Adapter        string
	Authentication string // "brc103" or "configured-transport"
	Peer           string
	ReceivedAt     uint64 // Unix seconds
}

// Checkpoint is where a source goes on. Session and Cursor are bearer secrets:
// they are never logged and enter the key as digests.
type Checkpoint struct {
	Session, Cursor        string
	ExpiresAt, ReplayUntil uint64
}

// Phase says which part of a source's life a batch belongs to.
type Phase string

// The phases.
const (
	PhaseSnapshot Phase = "snapshot"
	PhaseLive     Phase = "live"
	PhaseFinite   Phase = "finite"
)

// Group is one indivisible change of a source.
type Group struct {
	ID           string
	Sequence     uint64
	Observations []Observation
}

// Effect is what an observation says about its outpoint.
type Effect uint8

// The effects.
const (
	None    Effect = iota
	Present        // membership: the outpoint is listed
	Absent         // membership: it is not
	SpendOf        // Outpoint is spent by Target; no membership changes
)

// Observation is one statement of a source.
type Observation struct {
	ID        string
	Kind      string // "output", "spend", "withdraw", "assessment-invalidated", ...
	Canonical []byte // canonical JSON of the whole
	Outpoint  spend.Outpoint
	Effect    Effect
	Target    spend.TxID // the transaction its evidence is about; meaningful with BEEF
	Variant   [32]byte   // SHA-256 of BEEF
	BEEF      []byte     // nil: the observation has no evidence and is no candidate
}

// Planned is what the evidence of one candidate holds.
type Planned struct {
	Variant [32]byte
	Target  spend.TxID
	Txs     []RawTx // the target and its ancestors in the bundle, no two the same
	Claims  []Claim
	Fault   Fault
	Missing []spend.TxID // parents that the bundle does not hold
}

// RawTx is one received transaction.
type RawTx struct {
	ID       spend.TxID
	Raw      []byte
	Inputs   []spend.Input
	LockTime uint32
	Outputs  int
}

// Claim is a placement in a block: a Merkle path of TxID ends in Root at Height.
type Claim struct {
	TxID     spend.TxID
	Height   uint32
	Root     [32]byte
	Coinbase bool // the transaction is the first of its block
	Holds    bool // the view's own chain has Root at Height, and a coinbase is mature
	Known    bool // some branch that the view knows has it
}

// Fault is what planning already found; the zero value is none.
type Fault struct {
	Status ResultStatus // invalid, limited or unresolved
	Reason string
}

// Accept publishes one whole group. Make it with Store.Settled.
type Accept struct {
	Source     SourceID
	Scope      []byte
	GroupID    string
	Generation uint64
	Context    string
	Results    []Result // one for each candidate of the group, ascending by Index
}

// ContextChange installs another view of the chain.
type ContextChange struct {
	Context Context
	// Prepared is the id of the context this was prepared against. A commit over
	// another one is refused with context-changed. Empty: not checked.
	Prepared string
	// Claims has the answer for every claim of Store.Claims(Fork, height).
	Claims []Claim
	// Fork is the last common height of the old and the new view; 0 when unknown.
	Fork uint32
}

// Reconcile recomputes what is due, or everything.
type Reconcile struct {
	Context string
	Reason  string
	All     bool // everything, not only what waits for it
	// Received makes two of them different mutations; Store.Settled sets it.
	Received uint64
}

// Invalidate publishes that assessments are void, or that something expired. None
// is kept as a fact, so that nothing else follows from it.
type Invalidate struct {
	Assessments [][32]byte
	Reason      string
	Now         uint64 // Unix seconds
}

// Context is a view of the chain with what else decides today.
type Context struct {
	ID           string // 1 to 256 bytes
	View         ChainView
	PolicyDigest string
	Now          uint64 // Unix seconds when it was chosen
}

// ChainView is what selection needs of the chain.
type ChainView struct {
	TipHash        string
	TipHeight      uint64
	MedianTimePast uint64
	PolicyDigest   string
}

// ResultStatus is the outcome of checking one candidate.
type ResultStatus string

// The outcomes. Cancelled and ContextChanged are never kept.
const (
	Verified       ResultStatus = "verified"
	Invalid        ResultStatus = "invalid"
	Unresolved     ResultStatus = "unresolved"
	Limited        ResultStatus = "limited"
	Cancelled      ResultStatus = "cancelled"
	ContextChanged ResultStatus = "context-changed"
)

// Result is the outcome of checking one candidate under one context.
type Result struct {
	Source       SourceID
	Generation   uint64
	Group        uint64 // the store's number of the group, as in Job
	Index        uint64
	Variant      [32]byte
	Context      string
	Status       ResultStatus
	Reason       string
	Facts        []Fact           // every transaction that was decided on the way
	Dependencies []spend.Outpoint // what was needed, in input order; with unresolved: what is missing
}

// Fact is what running a transaction's scripts decided.
type Fact struct {
	TxID  spend.TxID
	Valid bool
}

// Status is what became of a mutation.
type Status string

// What can become of a mutation.
const (
	StatusCommitted      Status = "committed"
	StatusReplayed       Status = "replayed"
	StatusConflict       Status = "conflict"
	StatusEquivocation   Status = "equivocation"
	StatusLimited        Status = "limited"
	StatusContextChanged Status = "context-changed"
	StatusInvalid        Status = "invalid" // the batch breaks a rule of its source's order
)

// Committed is the answer to a commit. Revision is where the store was after the
// mutation; with a refusal, where it is.
type Committed struct {
	Status   Status
	Revision Revision
	Reason   string
	Swapped  bool // a staged generation took the place of the active one
	Waiting  bool // refused for a budget of pending work: it may fit later
}

// Took reports whether the mutation is in the store.
func (c Committed) Took() bool { return c.Status == StatusCommitted || c.Status == StatusReplayed }

// Settle commits one mutation at whatever revision the store is, and resolves a
// lost reply by the mutation's key: only "absent" lets it send again (BRC-192
// section 8). It gives up when the store refuses, or when it cannot say.
func Settle(ctx context.Context, s Store, m Mutation) (Committed, error) {
	key := m.Key()
	for {
		at, err := s.Revision(ctx)
		if err != nil {
			return Committed{}, err
		}
		c, err := s.Commit(ctx, at.Received, m)
		switch {
		case errors.Is(err, ErrUnknown):
			found, ok, asked := s.Mutation(ctx, key)
			if asked != nil {
				return Committed{}, errors.Join(err, asked)
			}
			if ok {
				return found, nil
			}
		case err != nil:
			return Committed{}, err
		case c.Status != StatusConflict:
			return c, nil
		}
		if err := ctx.Err(); err != nil {
			return Committed{}, err
		}
	}
}
