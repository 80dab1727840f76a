package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"iter"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/internal/ordered"
)

// rowValue is the longest value that is kept in the tree of keys. A row longer
// than about a quarter of a page leaves it for an overflow page of its own.
const rowValue = 512

// View calls f with one coherent snapshot; see reconcile.Backend. Writers go on
// beside it, and what they write stays in the WAL for as long as it lasts.
func (b *Backend) View(ctx context.Context, f func(reconcile.Reader) error) error {
	if err := b.gate.Enter(); err != nil {
		return err
	}
	defer b.gate.Leave()
	conn, err := b.reader.Conn(ctx)
	if err != nil {
		return fmt.Errorf("read the knowledge: %w", err)
	}
	defer conn.Close()
	// A transaction that ends with its context would end in the middle of a
	// statement; the reader looks at the context between statements instead.
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read the knowledge: %w", err)
	}
	defer tx.Rollback()
	return f(&reader{tx: tx, statements: b.read})
}

// Update commits what f returns; see reconcile.Backend.
func (b *Backend) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	if err := b.gate.Enter(); err != nil {
		return err
	}
	defer b.gate.Leave()
	if b.writer == nil {
		return reconcile.ErrReadOnly
	}
	conn, err := b.writer.Conn(ctx) // the one connection: here writers wait for each other
	if err != nil {
		return fmt.Errorf("write the knowledge: %w", err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("write the knowledge: %w", err)
	}
	defer tx.Rollback()
	b.writing.Store(tx)
	defer b.writing.Store(nil)
	w, err := f(&reader{tx: tx, statements: b.write, update: true})
	if err != nil {
		return err
	}
	if err := b.put(ctx, tx, w); err != nil {
		return fmt.Errorf("write the knowledge: %w", err)
	}
	b.committing()
	if err := ctx.Err(); err != nil { // the last moment at which it is certain that nothing is written
		return fmt.Errorf("write the knowledge: %w", err)
	}
	if err := tx.Commit(); err != nil {
		if primaryCode(err) == sqliteBusy {
			return fmt.Errorf("write the knowledge: %w", err) // the driver has rolled it back
		}
		// What reached the disk before the error may come back when the file is
		// recovered; the next commit overwrites it.
		return fmt.Errorf("%w: %w", reconcile.ErrUnknown, err)
	}
	b.committed()
	return nil
}

func (b *Backend) put(ctx context.Context, tx *sql.Tx, w reconcile.Writes) error {
	w, err := ordered.Sorted(w)
	if err != nil {
		return err
	}
	within := context.WithoutCancel(ctx)
	exec := func(text string, args []any) (sql.Result, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stmt, err := b.write.in(within, tx, text)
		if err != nil {
			return nil, err
		}
		return stmt.ExecContext(within, args...)
	}
	args := make([]any, 0, 3*sizes[len(sizes)-1])
	for left := w.Delete; len(left) > 0; {
		i := size(len(left))
		args = args[:0]
		for _, key := range left[:sizes[i]] {
			args = append(args, key)
		}
		if _, err := exec(deleteMany[i], args); err != nil {
			return err
		}
		left = left[sizes[i]:]
	}
	for left := w.Put; len(left) > 0; {
		i := size(len(left))
		args = args[:0]
		for _, e := range left[:sizes[i]] {
			if len(e.Value) <= rowValue {
				args = append(args, e.Key, e.Value, nil)
				continue
			}
			res, err := exec(bulkPut, []any{e.Value})
			if err != nil {
				return err
			}
			id, err := res.LastInsertId()
			if err != nil {
				return err
			}
			args = append(args, e.Key, nil, id)
		}
		if _, err := exec(putMany[i], args); err != nil {
			return err
		}
		left = left[sizes[i]:]
	}
	return nil
}

// reader is one transaction.
type reader struct {
	tx         *sql.Tx
	statements *statements
	update     bool
}

// Tx is the transaction of an Update.
func (r *reader) Tx() any {
	if !r.update {
		return nil
	}
	return r.tx
}

// Get looks keys up.
func (r *reader) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	values := make([][]byte, len(keys))
	last := len(sizes) - 1
	var found map[string][]byte
	if len(keys) > 1 {
		found = make(map[string][]byte, len(keys))
	}
	var args []any
	for left := keys; len(left) > 0; {
		i := 0 // the smallest size that holds all, for the filling costs nothing but a look at a page in memory
		for i < last && sizes[i] < len(left) {
			i++
		}
		n := min(sizes[i], len(left))
		args = args[:0]
		for _, key := range left[:n] {
			args = append(args, key)
		}
		for len(args) < sizes[i] {
			args = append(args, left[n-1])
		}
		page, err := r.query(ctx, getMany[i], args...)
		if err != nil {
			return nil, fmt.Errorf("read the knowledge: %w", err)
		}
		if found == nil {
			if len(page) == 1 {
				values[0] = page[0].Value
			}
			return values, nil
		}
		for _, e := range page {
			found[string(e.Key)] = e.Value
		}
		left = left[n:]
	}
	for i, key := range keys {
		values[i] = found[string(key)]
	}
	return values, nil
}

// Scan reads a range.
func (r *reader) Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[reconcile.Entry, error] {
	if from == nil {
		from = []byte{} // nil would be compared as NULL
	}
	return ordered.Pages(from, limit, func(from []byte, n int) (page []reconcile.Entry, err error) {
		if len(to) == 0 {
			page, err = r.query(ctx, scanOpen, from, n)
		} else {
			page, err = r.query(ctx, scanRange, from, n, to)
		}
		if err != nil {
			return nil, fmt.Errorf("read the knowledge: %w", err)
		}
		return page, nil
	})
}

// query reads all rows of a statement, so that none is open when it returns.
func (r *reader) query(ctx context.Context, text string, args ...any) (page []reconcile.Entry, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // one statement is short, and watching a context is not
	stmt, err := r.statements.in(ctx, r.tx, text)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e reconcile.Entry
		if err := rows.Scan(&e.Key, &e.Value); err != nil {
			return nil, err
		}
		if e.Value == nil {
			e.Value = []byte{}
		}
		page = append(page, e)
	}
	return page, rows.Err()
}
