package reconcile

import (
	"context"
	"iter"
)

// Backend keeps ordered keys for one partition. It is what a store has to write;
// the engine over it is [Open]. Safe for concurrent use.
//
// Keys are 1 to 128 bytes and compare as bytes; values are at most 16 MiB. The
// backend owns nothing it is given: it copies what it keeps, and what it returns
// is the caller's to read, not to change.
type Backend interface {
	// Durability says what a finished Update is worth.
	Durability() Durability
	// View calls f with one coherent snapshot. It may run beside writers and
	// beside other views; f must not call Update. The Reader is valid until f
	// returns.
	View(ctx context.Context, f func(Reader) error) error
	// Update calls f once with a reader of the latest commit and commits the
	// writes it returns: all of them, or none when f or the commit fails. Updates
	// go one at a time over all processes that share the store. An error that
	// leaves open whether the commit happened wraps [ErrUnknown]; every other
	// error means that nothing was written. The next Update or View, by whichever
	// process, is certain to see the commit or to follow its failure.
	Update(ctx context.Context, f func(Reader) (Writes, error)) error
	// Close frees what is held. Views and updates under way end first.
	Close() error
}

// Reader reads one coherent state.
type Reader interface {
	// Get returns the values of keys, in their order; nil is an absent key, and an
	// empty value is not nil. One round trip for all of them.
	Get(ctx context.Context, keys ...[]byte) ([][]byte, error)
	// Scan gives the entries of [from, to) in ascending order of their keys, at
	// most limit of them; limit <= 0 means all. An empty to has no upper bound. An
	// error is the last pair.
	Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[Entry, error]
	// Tx is the transaction of an Update for a projector's own rows: *sql.Tx,
	// pgx.Tx, or nil when the backend has none, and in a View.
	Tx() any
}

// Writes is what one Update changes. A key is in Put or in Delete, at most once;
// deleting an absent key is nothing.
type Writes struct {
	Put    []Entry
	Delete [][]byte
}

// Entry is a key and its value.
type Entry struct{ Key, Value []byte }

// Durability says what a commit survives.
type Durability string

// What a commit survives.
const (
	Durable  Durability = "durable"  // the end of the process and of the machine
	Volatile Durability = "volatile" // nothing: it lives as long as the process
)
