package reconcile

import (
	"errors"
	"fmt"
)

// What a store can say about itself. Compare with errors.Is.
var (
	// ErrUnknown means that a commit was sent and its outcome is not known. Ask
	// Store.Mutation for the key; only "absent" permits a retry. [Settle] does it.
	ErrUnknown = errors.New("the outcome of the commit is not known: ask for the mutation's key")
	// ErrRevision means that the revision asked for is not the one held.
	ErrRevision = errors.New("this revision is not held: read the latest one")
	// ErrVolatile means that durability was demanded of a store in memory.
	ErrVolatile = errors.New("this store lives in memory only: choose a durable one")
	// ErrNewer means that a newer program wrote the store.
	ErrNewer = errors.New("a newer program wrote this store: use that program")
	// ErrPartition means that the store belongs to another partition or chain.
	ErrPartition = errors.New("this store belongs to another partition or chain: open another one")
	// ErrClosed means that the store is closed.
	ErrClosed = errors.New("the store is closed")
	// ErrReadOnly means that the store was opened to be looked at.
	ErrReadOnly = errors.New("the store is open for reading only")
	// ErrGoesOn means that a source's latest generation still goes on.
	ErrGoesOn = errors.New("the latest generation of this source goes on: end it first")
	// ErrDamaged means that the store holds what the engine never wrote.
	ErrDamaged = errors.New("the store is damaged: restore it, or begin another one")
)

// ResetError ends a watch whose place in the log of changes is forgotten.
type ResetError struct{ Earliest uint64 }

// Error says from where a watch can begin.
func (e *ResetError) Error() string {
	return fmt.Sprintf("changes before revision %d are forgotten: read a snapshot and watch from its revision", e.Earliest)
}

// LimitError says which bound a request is over.
type LimitError struct {
	Bound string // the field of Budget, or "revision"
	Limit uint64
}

// Error names the bound.
func (e *LimitError) Error() string {
	return fmt.Sprintf("over the bound %s of %d", e.Bound, e.Limit)
}
