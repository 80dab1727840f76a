package reconcile

import (
	"context"
	"iter"
	"log/slog"
)

// Profile is the identifier of the reconciliation implemented here (BRC-192
// section 10).
const Profile = "https://bsv.brc.dev/apps/0192#bitcoin-spend-reconciliation-v1"

// Revision is how far a store is. Both only grow; Accepted never passes Received.
type Revision struct{ Received, Accepted uint64 }

// Partition says whose knowledge a store holds. It is local configuration: no
// peer decides it. Each part has 1 to 256 bytes.
type Partition struct{ Application, Account, Access string }

// Chain is the chain a store is about.
type Chain struct{ Network, GenesisHash string }

// Store is the knowledge of one partition and chain. It is safe for concurrent
// use; writes go one at a time. The one implementation is made by [Open].
type Store interface {
	// Durability says what a commit survives.
	Durability() Durability
	// Revision returns the counters.
	Revision(ctx context.Context) (Revision, error)

	// Commit applies one mutation atomically, provided that received is expected.
	// A refusal is Committed.Status and writes nothing, except that an
	// equivocation ends its generation and is kept in quarantine. An error is the
	// store's own trouble; [ErrUnknown] leaves the outcome open.
	Commit(ctx context.Context, expected uint64, m Mutation) (Committed, error)
	// CommitAll applies several in one local transaction, each with its own
	// revision. It stops before the first that is refused, whose status is the
	// last of the result; those before it are committed.
	CommitAll(ctx context.Context, expected uint64, ms []Mutation) ([]Committed, error)
	// Mutation answers for a key: what was committed, or absent (false). An error
	// is "unavailable": nothing may be concluded from it.
	Mutation(ctx context.Context, key Key) (Committed, bool, error)
	// Read gives the snapshot of an accepted revision; 0 is the latest. Any other
	// revision than the latest is ErrRevision. Close the snapshot soon: it may
	// hold a transaction of the backend, or its read lock.
	Read(ctx context.Context, accepted uint64) (Snapshot, error)
	// Watch gives the accepted changes after a revision, contiguous, and waits for
	// more until ctx ends. A forgotten place ends it with a *ResetError. Nothing
	// is held while a change is handled. What another process commits to a shared
	// store is seen with the next commit of this one.
	Watch(ctx context.Context, after uint64) iter.Seq2[Change, error]
	// Changed is a hint that a revision or a result moved: a buffer of one, never
	// closed. One receiver; several use [Watch].
	Changed() <-chan struct{}

	// Record keeps results, durably and without a revision. It drops what its
	// guards refuse: a retired generation, another context, another variant, a
	// candidate that already has a final result. An invalid one quarantines its
	// group and ends its generation.
	Record(ctx context.Context, results []Result) ([]Recorded, error)
	// Work lists candidates to verify, by (source, order of receipt), from after
	// on, at most limit; a zero next cursor means that the list is at its end.
	// Candidates whose support is incomplete are not listed.
	Work(ctx context.Context, after Cursor, limit int) (jobs []Job, next Cursor, err error)
	// Load gives what a job needs, coherently.
	Load(ctx context.Context, j Job) (Evidence, error)
	// Settled lists mutations that are ready to be committed: accepts of whole
	// groups in (generation, ingress) order, and a Reconcile when a barrier lifts
	// without an accept. They are ready together: CommitAll may take them as they
	// are.
	Settled(ctx context.Context, limit int) ([]Mutation, error)
	// Claims lists the placements that a view change must ask about: those at
	// heights from..to, and with all those above from that hold now. It is
	// ascending by height.
	Claims(ctx context.Context, from, to uint32) ([]Claim, error)

	// Source returns the number of a source, and gives it one when it is new. More
	// than Budget.Sources is a *LimitError.
	Source(ctx context.Context, key SourceKey) (SourceID, error)
	// Generation returns the latest generation; Number 0 means that there is none.
	Generation(ctx context.Context, s SourceID) (Generation, error)
	// Begin starts the next generation: active when it is the first, staged
	// otherwise. ErrGoesOn while the latest goes on.
	Begin(ctx context.Context, s SourceID, attach Attach) (uint64, error)
	// End ends the latest generation and keeps the claim that caused it in
	// quarantine. Ending one that is over already changes nothing.
	End(ctx context.Context, e Ending, attach Attach) error
	// Attachments lists a runtime's own rows by prefix, ascending.
	Attachments(ctx context.Context, prefix []byte) iter.Seq2[Entry, error]
	// Attach changes a runtime's own rows.
	Attach(ctx context.Context, a Attach) error
	// Quarantine lists a source's refused claims, oldest first.
	Quarantine(ctx context.Context, s SourceID) iter.Seq2[Quarantined, error]

	// Project feeds one change to a projector and moves its checkpoint in the same
	// commit. It returns how far the projector is; equal to the accepted revision
	// means that nothing was to be done. A failure of apply leaves the checkpoint
	// where it was, is kept with the lag, and is returned.
	Project(ctx context.Context, name string, apply func(ctx context.Context, c Change, tx ProjectTx) error) (projected uint64, err error)
	// Projected returns how far a projector is.
	Projected(ctx context.Context, name string) (uint64, error)
	// Rebuild sets a projector back to nothing: its next change is the snapshot.
	Rebuild(ctx context.Context, name string) error

	// Audit recomputes everything from retained facts, changes nothing, and lists
	// what differs.
	Audit(ctx context.Context) ([]Difference, error)
	// Close closes the store and its backend.
	Close() error
}

// ProjectTx is Reader.Tx of the commit that moves the checkpoint.
type ProjectTx = any

// Projector keeps a view of its own up to date. Changes come in order, each
// once when the projector writes through tx, and at least once otherwise.
type Projector interface {
	Apply(ctx context.Context, c Change, tx ProjectTx) error
}

// Options configure [Open].
type Options struct {
	// Partition is whose knowledge it is. Checked against an existing store.
	Partition Partition
	// Chain is the chain. Zero: not fixed yet, or as the store has it.
	Chain Chain
	// NonFinal selects non-final transactions too and lets them be replaced.
	// Checked against an existing store.
	NonFinal bool
	// PolicyDigest names local policy, free text of at most 256 bytes.
	PolicyDigest string
	// Roots are transactions trusted by local configuration, in force from
	// position 0. Ignored when the store exists.
	Roots []Root
	// Context is the view in force at position 0. Zero: height 0, nothing final by
	// time. Ignored when the store exists.
	Context Context
	// Budget bounds what may be kept; zero fields mean their defaults.
	Budget Budget
	// ReadOnly opens an existing store to look at it.
	ReadOnly bool
	// Log takes what peers must not see. Zero: slog.Default.
	Log *slog.Logger
}

// Budget bounds what a store keeps. A zero field means its default.
type Budget struct {
	PendingGroups int   // waiting groups of one source; zero means 16384
	PendingBytes  int64 // bytes of waiting groups of one source; zero means 64 MiB
	StoreBytes    int64 // bytes of waiting groups of all sources; above it only sources over their share wait; zero means 256 MiB
	Candidate     int   // bytes of one candidate's BEEF; zero means 4 MiB
	Transactions  int   // transactions in one candidate's closure; zero means 4096
	Dependencies  int   // outpoints that one result may name; zero means 1024
	Component     int   // transactions in one component; zero means 100000
	Changes       int   // accepted changes that Watch can go back; zero means 100000
	Sources       int   // sources of one store; zero means 256
	Claims        int   // placements kept for one transaction; zero means 64
	Quarantine    int   // refused claims kept for one source, the newest; zero means 64
	QuarantineMax int   // bytes kept of one refused claim; zero means 64 KiB
}

// Defaults returns b with its zero fields filled in.
func (b Budget) Defaults() Budget {
	for _, f := range []struct {
		at   *int
		zero int
	}{
		{&b.PendingGroups, 16384}, {&b.Candidate, 4 << 20}, {&b.Transactions, 4096}, {&b.Dependencies, 1024}, {&b.Component, 100_000},
		{&b.Changes, 100_000}, {&b.Sources, 256}, {&b.Claims, 64}, {&b.Quarantine, 64}, {&b.QuarantineMax, 64 << 10},
	} {
		if *f.at == 0 {
			*f.at = f.zero
		}
	}
	if b.PendingBytes == 0 {
		b.PendingBytes = 64 << 20
	}
	if b.StoreBytes == 0 {
		b.StoreBytes = 256 << 20
	}
	return b
}

// Root is a transaction trusted by local configuration.
type Root struct{ Raw []byte }

// SourceID numbers a source within its store, from 1.
type SourceID uint32

// SourceKey says what a source is. Two keys are the same source when all fields
// are equal; all together have at most 8192 bytes.
type SourceKey struct {
	Kind        string // "lookup-live", "finite", or an adapter's own
	Base        string
	Service     string
	QueryDigest string
	Principal   string
	Label       string
}

// Attach changes rows that a runtime keeps beside the knowledge, in a space of
// their own. Keys have at most 96 bytes.
type Attach struct {
	Put    []Entry
	Delete [][]byte
}

// Cursor is a place in the list of work.
type Cursor struct {
	Source SourceID
	Group  uint64
	Index  uint64
}

// Quarantined is a refused claim.
type Quarantined struct {
	Generation uint64
	At         uint64 // Unix seconds
	Code       string
	Reason     string
	ID         string
	Bytes      []byte   // as much as is kept
	Length     uint64   // of the whole claim
	Digest     [32]byte // SHA-256 of the whole claim
}

// Recorded is what became of one result.
type Recorded struct {
	Kept        bool   // false: a guard dropped it
	Reason      string // why it was dropped
	Quarantined bool   // it ended its generation
	Settled     bool   // its group has all its results now
}

// Difference is something that Audit found.
type Difference struct {
	What string // "transaction", "output", "counter", ...
	Key  string // which one
	Have string
	Want string
}
