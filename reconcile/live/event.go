package live

import (
	"cmp"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Event is something that happened in a run. [Accepted] and [SourceReset] are told
// at least once, the former in order and without a gap; the others tell about this
// run only.
type Event interface{ event() }

// Origin says which source an event is about.
type Origin struct {
	ID  reconcile.SourceID
	Key reconcile.SourceKey
}

// String is the label, or what is asked of whom.
func (o Origin) String() string {
	return cmp.Or(o.Key.Label, o.Key.Base+" "+o.Key.Service)
}

// Received says that a batch and its checkpoint are durable. Nothing of it need be
// accepted.
type Received struct {
	Source     Origin
	Generation uint64
	Phase      reconcile.Phase
	Complete   bool // the whole snapshot, or the whole finite answer, is received
	Groups     int
	Through    uint64
	HighWater  uint64
	Revision   reconcile.Revision
}

// Accepted is one accepted revision: what it changed. After more was forgotten than
// was told, one has the Kind "snapshot" and everything there is.
type Accepted struct{ reconcile.Change }

// SourceReset says that a generation is over, durably. Its rows stay and are stale.
type SourceReset struct {
	Source     Origin
	Generation uint64
	Code       client.Code
	Reason     string
	At         uint64 // Unix seconds
}

// Quarantined says that something a source said is invalid: its generation is over.
type Quarantined struct {
	Source     Origin
	Generation uint64
	Reason     string
}

// SourceStale says that a source is not followed any more in this run. Its rows
// stay, and are stale from then on.
type SourceStale struct {
	Source Origin
	Err    error
}

// Context says that another view of the chain is in force.
type Context struct {
	ID             string
	Height         uint64
	MedianTimePast uint64
	Fork           uint32 // last common height with the one before; 0 when unknown
}

// Waiting says that something could not be done now and is tried again.
type Waiting struct {
	Source Origin
	Err    error
	For    time.Duration // until the next attempt; 0 when it waits for room
}

// Lagging says that a projector failed. Its checkpoint is where it was.
type Lagging struct {
	Projector string
	Projected uint64
	Accepted  uint64
	Err       error
}

func (Received) event()    {}
func (Accepted) event()    {}
func (SourceReset) event() {}
func (Quarantined) event() {}
func (SourceStale) event() {}
func (Context) event()     {}
func (Waiting) event()     {}
func (Lagging) event()     {}

// BudgetError says that a source has to wait: too much of what it said is pending.
type BudgetError struct{ Reason string }

func (e *BudgetError) Error() string {
	return "too much of what this source said waits for evidence, so nothing more is taken from it for now: " + e.Reason
}

// QuarantineError says that a generation is over because of what its source said.
type QuarantineError struct {
	Generation uint64
	Code       client.Code
	Reason     string
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("generation %d is over (%s: %s): its rows are kept and are stale", e.Generation, e.Code, e.Reason)
}

// PendingError says that a run ended with evidence that could not be resolved.
type PendingError struct {
	Groups  int
	Source  Origin           // of the first of them
	Reason  string           // of the first of them
	Waiting []spend.Outpoint // what the first of them needs
}

func (e *PendingError) Error() string {
	s := fmt.Sprintf("%d groups are still pending", e.Groups)
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
	if len(e.Waiting) > 0 {
		s += fmt.Sprintf(": the first one of %s waits for %s", e.Source, e.Waiting[0])
	}
	return s
}
