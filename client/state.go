package client

import (
	"context"

	"github.com/overlayd/overlayd/internal/wire"
)

// Key names one source: what a provider's service says about one query to one
// principal. Two keys are the same source when Base, Service, QueryDigest and
// Principal are equal.
type Key struct {
	// Base is the canonical base URL (BRC-194 s2).
	Base string
	// Service is the lookup service's name.
	Service string
	// Query is the query as canonical JSON.
	Query []byte
	// QueryDigest is the lower-case hex lookup-query digest.
	QueryDigest string
	// Principal is the public key that signs the requests (lower-case hex), "" for
	// anonymous ones.
	Principal string
}

// State is where a client keeps what it must not lose. An implementation is
// durable, serves one process at a time, and says so with an error when it
// cannot. Package sqlitestate has the embedded one.
type State interface {
	// Acquire opens the record of a source for one writer, and creates it when
	// it does not exist yet. A source that is already held is an error.
	Acquire(ctx context.Context, key Key) (Record, error)
}

// Record is the durable record of one source, held by one writer. Every method
// that writes is one local commit: it happened whole, or it did not happen.
type Record interface {
	// Status returns what the record holds now.
	Status(ctx context.Context) (Status, error)

	// Begin starts the next generation by saving everything an Open needs,
	// before a byte of it is sent (C4). It pins the intent's chain for the whole
	// state and its identity for the source. It is an error while the latest
	// generation has not ended.
	Begin(ctx context.Context, intent Intent) (generation uint64, err error)

	// Commit records one verified batch: its observations, the memberships they
	// change and the checkpoint, together (C3). It returns the place of the
	// batch in the delivery order; Page is 0 when nothing is to be delivered.
	//
	// It refuses, and writes nothing, when From is not the cursor it holds, when
	// an id of the batch is already recorded (*EquivocationError when the bytes
	// differ, *ViolationError otherwise), or when the snapshot's watermark
	// contradicts an earlier generation of the same scope.
	Commit(ctx context.Context, batch Commit) (Committed, error)

	// End records that the latest generation is over, and keeps the claim that
	// caused it, if there is one, in a bounded quarantine.
	End(ctx context.Context, ending Ending) error

	// Undelivered returns the oldest thing recorded and not yet marked as
	// delivered, or nil.
	Undelivered(ctx context.Context) (*Delivery, error)

	// Delivered marks everything up to and including mark as delivered.
	Delivered(ctx context.Context, mark Mark) error

	// Release lets go of the source. The record must not be used afterwards.
	Release()
}

// Status is what a record holds.
type Status struct {
	// Chain is what the state was first used with; the zero value when unused.
	Chain Chain
	// Identity is the provider identity (hex) pinned for this source, or "".
	Identity string
	// Published is the generation whose memberships are the source's answer, or
	// 0 while no snapshot was ever complete.
	Published uint64
	// Latest is the newest generation, or nil.
	Latest *Generation
}

// Generation is one life of a source: one Open and everything read under it.
type Generation struct {
	Number     uint64
	Intent     Intent
	Checkpoint *Checkpoint // nil until the first batch is recorded
	Ended      *Ending     // nil while it can be continued
}

// Intent is everything needed to send an Open, and to send the very same one
// again (BRC-193 s8).
type Intent struct {
	RequestID string // a bearer secret: never shown
	Open      []byte // the exact request body
	Manifest  []byte // the whole signed capabilities packet
	Digest    string // its capability digest, hex
	Chain     Chain
	Identity  string // the signer's identity, hex
}

// Phase is where a generation stands.
type Phase string

// The phases in the order they are passed through.
const (
	PhaseSnapshot Phase = "snapshot" // pages of the snapshot are outstanding
	PhaseComplete Phase = "complete" // the last page is recorded, nothing live yet
	PhaseLive     Phase = "live"     // at least one live batch is recorded
)

// Checkpoint is the position after everything recorded so far.
type Checkpoint struct {
	Session     string // a bearer secret: never shown
	Cursor      string // a bearer secret: never shown
	Scope       []byte // canonical JSON of the scope every batch must repeat
	ScopeDigest string // hex SHA-256 of Scope: the namespace of live ids
	Phase       Phase
	W           uint64 // the snapshot's watermark
	Through     uint64 // highest sequence examined by the provider
	HighWater   uint64 // highest sequence the provider knew of
	ExpiresAt   uint64 // Unix seconds; reads end here
	ReplayUntil uint64 // Unix seconds
}

// Commit is one verified batch on its way into the record.
type Commit struct {
	Generation uint64
	From       string // the cursor the batch was read with; "" for an Open
	Checkpoint Checkpoint
	Groups     []Receipt
}

// Receipt is one whole group as it was received.
type Receipt struct {
	ID           string
	Sequence     uint64
	Observations []Received
}

// Effect is what an observation does to the membership of its outpoint.
type Effect uint8

// The effects. Spends and invalidations are receipts only: a provider's word
// for them changes no membership.
const (
	EffectNone Effect = iota
	EffectPresent
	EffectAbsent
)

// Received is one observation as it was received.
type Received struct {
	ID        string
	Kind      string
	Canonical []byte // the whole observation, canonical JSON
	Effect    Effect
	TxID      string // the outpoint it is about, "" when there is none
	Index     uint32
	Spending  string // the transaction that is said to spend it, "" when it is no spend
	Evidence  []byte // decoded BEEF, which an implementation stores once; nil when there is none
}

// Committed is where a batch stands once it is recorded.
type Committed struct {
	Mark     Mark
	Replaces uint64 // the generation that is retired with this batch, 0 for none
	Unseen   uint64 // present memberships of that generation which this one does not have
}

// Mark is a place in the delivery order of one source.
type Mark struct {
	Generation uint64
	Page       uint64 // 1, 2, ...; 0 is nothing
	End        bool   // the generation's ending, after its last page
}

// Ending says why a generation is over.
type Ending struct {
	Generation uint64
	Code       wire.Code
	Reason     string // safe to show
	At         uint64 // Unix seconds, this machine's clock
	Claim      []byte // what was refused, kept in quarantine; nil when there is none
	ClaimID    string
}

// Delivery is something recorded that the caller has not been told yet.
type Delivery struct {
	Mark      Mark
	Opened    bool // first page of the generation
	Complete  bool // last page of the snapshot
	FirstLive bool // first live batch
	Snapshot  bool // the groups are snapshot groups
	Through   uint64
	HighWater uint64
	W         uint64
	ExpiresAt uint64
	Replaces  uint64 // the generation this snapshot took the place of, 0 for none
	Unseen    uint64
	Scope     []byte
	Groups    []Receipt // of Received only ID, Kind and Canonical are set
	Ending    *Ending
}
