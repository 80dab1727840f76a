package client

import "time"

// Event is something that happened to a source. Durable events ([Opened],
// [Group], [SnapshotComplete], [Live], [Ended]) are handed out after the commit
// that records them, in order, at least once: a page whose delivery was
// interrupted is delivered again by the next run, whole. [Resumed] and [Waiting]
// tell about this run only.
type Event interface{ event() }

// Opened says that a generation has its first page: a snapshot at W.
type Opened struct {
	Generation uint64
	Epoch      string
	W          uint64
	ExpiresAt  uint64 // Unix seconds
}

// Resumed says that this run goes on with what the state holds.
type Resumed struct {
	Generation uint64
	Phase      Phase
	Through    uint64
	HighWater  uint64
	ExpiresAt  uint64 // Unix seconds
}

// Group is one committed change of the source, indivisible. (Generation, Page,
// Index) is its place in the retained order and never changes, so a consumer
// with a transaction of its own can make itself exactly-once.
type Group struct {
	Generation   uint64
	Page         uint64
	Index        int
	Snapshot     bool // a row of the snapshot rather than a change
	ID           string
	Sequence     uint64
	Observations []Observation // received, not verified
}

// SnapshotComplete says that the generation now is the source's answer.
type SnapshotComplete struct {
	Generation uint64
	W          uint64
	Replaces   uint64 // the generation that is retired with it; 0 for none
	Unseen     uint64 // present rows of that generation which this one does not have
}

// Live says that the first live batch is recorded.
type Live struct {
	Generation uint64
	Through    uint64
	HighWater  uint64
}

// Ended says that a generation cannot be continued. Its rows stay and are stale.
type Ended struct {
	Generation uint64
	Code       Code
	Reason     string
	At         uint64 // Unix seconds, this machine's clock
}

// Waiting says that a request failed in a way that may pass, or that generations end
// soon after they began.
type Waiting struct {
	Err error
	For time.Duration // until the next attempt
}

func (Opened) event()           {}
func (Resumed) event()          {}
func (Group) event()            {}
func (SnapshotComplete) event() {}
func (Live) event()             {}
func (Ended) event()            {}
func (Waiting) event()          {}
