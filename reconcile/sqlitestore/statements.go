package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
)

// statements prepares each statement once for a pool of connections.
type statements struct {
	db *sql.DB

	mu   sync.Mutex
	held map[string]*sql.Stmt
}

func newStatements(db *sql.DB) *statements {
	return &statements{db: db, held: make(map[string]*sql.Stmt)}
}

// in returns the statement for use in a transaction.
func (s *statements) in(ctx context.Context, tx *sql.Tx, text string) (*sql.Stmt, error) {
	s.mu.Lock()
	held := s.held[text]
	s.mu.Unlock()
	if held != nil {
		return tx.StmtContext(ctx, held), nil
	}
	// Prepared on the transaction's own connection: the pool may have no other.
	return tx.PrepareContext(ctx, text)
}

// warm prepares the statements before the first transaction.
func (s *statements) warm(ctx context.Context, texts ...string) error {
	for _, text := range texts {
		stmt, err := s.db.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.held[text] = stmt
		s.mu.Unlock()
	}
	return nil
}

func (s *statements) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stmt := range s.held {
		errs = append(errs, stmt.Close())
	}
	clear(s.held)
	return errors.Join(errs...)
}

// Statements that take many keys or entries exist in these sizes; a longer list
// takes several rounds, a shorter one is filled up with repetitions of its last
// key, or split.
var sizes = [...]int{1, 8, 64}

const (
	columns = "SELECT kv.k, coalesce(kv.v, bulk.v) FROM kv LEFT JOIN bulk ON bulk.id = kv.bulk "

	// The + 0: SQLite plans a statement anew whenever what a bare LIMIT is bound to was set again.
	scanRange = columns + "WHERE kv.k >= ?1 AND kv.k < ?3 ORDER BY kv.k LIMIT ?2 + 0"
	scanOpen  = columns + "WHERE kv.k >= ?1 ORDER BY kv.k LIMIT ?2 + 0"
	bulkPut   = "INSERT INTO bulk (v) VALUES (?)"
)

var (
	getMany    = sized(func(n int) string { return columns + "WHERE kv.k IN (?" + strings.Repeat(",?", n-1) + ")" })
	deleteMany = sized(func(n int) string { return "DELETE FROM kv WHERE k IN (?" + strings.Repeat(",?", n-1) + ")" })
	putMany    = sized(func(n int) string {
		return "INSERT INTO kv (k, v, bulk) VALUES (?,?,?)" + strings.Repeat(",(?,?,?)", n-1) +
			" ON CONFLICT (k) DO UPDATE SET v = excluded.v, bulk = excluded.bulk"
	})
)

func sized(text func(n int) string) (texts [len(sizes)]string) {
	for i, n := range sizes {
		texts[i] = text(n)
	}
	return texts
}

// size returns the index of the largest size that n fills, or the smallest.
func size(n int) int {
	i := len(sizes) - 1
	for i > 0 && sizes[i] > n {
		i--
	}
	return i
}
