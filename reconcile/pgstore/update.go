package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/internal/ordered"
)

// chunkBytes is aimed at for what one statement writes: an array of everything
// would be in the server's memory several times.
const chunkBytes = 16 << 20

// Every look-up goes one key at a time to the primary key, behind a fence.
const (
	getMany = `
select u.n, t.v
from unnest($2::bytea[]) with ordinality as u(k, n)
cross join lateral (select v from overlay_knowledge t where t.part = $1 and t.k = u.k offset 0) t`

	scanRange = `select k, v from overlay_knowledge where part = $1 and k >= $2 and k < $4 order by part, k limit $3`
	scanOpen  = `select k, v from overlay_knowledge where part = $1 and k >= $2 order by part, k limit $3`

	rangesMany = `
select u.n, t.k, t.v
from unnest($2::bytea[], $3::bytea[]) with ordinality as u(low, high, n)
cross join lateral (select k, v from overlay_knowledge t where t.part = $1 and t.k >= u.low and t.k < u.high order by t.part, t.k limit $4) t`

	putMany = `
insert into overlay_knowledge (part, k, v)
select $1, u.k, u.v from unnest($2::bytea[], $3::bytea[]) as u(k, v)
on conflict (part, k) do update set v = excluded.v`

	// The lock of the partition keeps the places.
	deleteMany = `
delete from overlay_knowledge where ctid = any (array(
  select t.place from unnest($2::bytea[]) as u(k)
  cross join lateral (select ctid as place from overlay_knowledge t where t.part = $1 and t.k = u.k offset 0) t))`

	whoWrites = `select pg_backend_pid(), pg_current_xact_id()::xid::text`
)

// View calls f with one coherent snapshot; see reconcile.Backend. It ends with
// [ErrHeld] when it lasts too long.
func (b *Backend) View(ctx context.Context, f func(reconcile.Reader) error) error {
	if err := b.gate.Enter(); err != nil {
		return err
	}
	defer b.gate.Leave()
	if err := b.settle(ctx); err != nil {
		return err
	}
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: b.beginView})
	if err != nil {
		return fmt.Errorf("read the knowledge: %w", err)
	}
	defer rollback(ctx, tx)
	return f(&reader{tx: tx, part: b.part, until: time.Now().Add(b.snapshotFor)})
}

// Update commits what f returns; see reconcile.Backend.
func (b *Backend) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	if err := b.gate.Enter(); err != nil {
		return err
	}
	defer b.gate.Leave()
	if b.readOnly {
		return reconcile.ErrReadOnly
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: b.beginUpdate})
	if err != nil {
		return fmt.Errorf("write the knowledge: %w", err)
	}
	defer rollback(ctx, tx)
	w, err := f(&reader{tx: tx, part: b.part, update: true})
	if err != nil {
		return err
	}
	who, err := b.put(ctx, tx, w)
	b.committing()
	if err == nil {
		err = ctx.Err() // the last moment at which it is certain that nothing is written
	}
	if err != nil {
		return fmt.Errorf("write the knowledge: %w", err)
	}
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitLimit)
	defer cancel()
	switch err := tx.Commit(commit); {
	case err == nil:
		b.committed()
		return nil
	case rolledBack(err):
		return fmt.Errorf("write the knowledge: %w", err)
	default:
		b.lose(who)
		return fmt.Errorf("%w: %w", reconcile.ErrUnknown, err)
	}
}

// rollback ends what is left of a transaction. A connection that cannot do it in
// time is closed, which does it too.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitLimit)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// rolledBack reports whether the database itself said that the transaction failed.
// A fatal error does not say so: it may follow a commit. Nor does the error of
// something between us and the database that lost it.
func rolledBack(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR" && len(e.Code) == 5 && e.Code[:2] != "08" && e.Code != "40003"
}

// put sends the writes, one pipeline for each chunk, and learns who writes.
func (b *Backend) put(ctx context.Context, tx pgx.Tx, w reconcile.Writes) (who lost, err error) {
	w, err = ordered.Sorted(w)
	if err != nil {
		return who, err
	}
	var batch pgx.Batch
	batch.Queue(whoWrites).QueryRow(func(row pgx.Row) error { return row.Scan(&who.pid, &who.xid) })
	if len(w.Delete) > 0 {
		batch.Queue(deleteMany, b.part, w.Delete)
	}
	for left := w.Put; len(left) > 0; {
		var keys, values [][]byte
		size := 0
		for _, e := range left {
			if size += len(e.Key) + len(e.Value); size > chunkBytes && len(keys) > 0 {
				break
			}
			keys, values = append(keys, e.Key), append(values, e.Value)
		}
		batch.Queue(putMany, b.part, keys, values)
		if left = left[len(keys):]; len(left) > 0 {
			if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
				return who, err
			}
			batch = pgx.Batch{}
		}
	}
	return who, tx.SendBatch(ctx, &batch).Close()
}

// reader is one transaction.
type reader struct {
	tx     pgx.Tx
	part   int32
	update bool
	until  time.Time // end of a view
}

// Tx is the transaction of an Update.
func (r *reader) Tx() any {
	if !r.update {
		return nil
	}
	return r.tx
}

// Get looks keys up in one round trip.
func (r *reader) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	values := make([][]byte, len(keys))
	if len(keys) == 0 {
		return values, ctx.Err()
	}
	var n int64
	var value []byte
	err := r.query(ctx, func() error {
		if n < 1 || n > int64(len(values)) {
			return errors.New("the database answers for a key that was not asked for")
		}
		values[n-1] = value
		value = nil
		return nil
	}, []any{&n, &value}, getMany, r.part, keys)
	if err != nil {
		return nil, err
	}
	return values, nil
}

// Scan reads a range.
func (r *reader) Scan(ctx context.Context, from, to []byte, limit int) iter.Seq2[reconcile.Entry, error] {
	if from == nil {
		from = []byte{} // nil would be NULL
	}
	return ordered.Pages(from, limit, func(from []byte, n int) (page []reconcile.Entry, err error) {
		statement, args := scanOpen, []any{r.part, from, n}
		if len(to) > 0 {
			statement, args = scanRange, append(args, to)
		}
		var e reconcile.Entry
		err = r.query(ctx, func() error {
			page = append(page, e)
			e = reconcile.Entry{}
			return nil
		}, []any{&e.Key, &e.Value}, statement, args...)
		return page, err
	})
}

// Ranges reads many small ranges in one round trip; see reconcile.RangeReader.
func (r *reader) Ranges(ctx context.Context, prefixes [][]byte, limit int) ([][]reconcile.Entry, error) {
	lists := make([][]reconcile.Entry, len(prefixes))
	ends := make([][]byte, len(prefixes))
	for i, p := range prefixes {
		ends[i] = ordered.After(p)
		if ends[i] == nil {
			return nil, fmt.Errorf("read the knowledge: the prefix %x has no end", p)
		}
	}
	var n int64
	var e reconcile.Entry
	err := r.query(ctx, func() error {
		if n < 1 || n > int64(len(lists)) {
			return errors.New("the database answers for a range that was not asked for")
		}
		lists[n-1] = append(lists[n-1], e)
		e = reconcile.Entry{}
		return nil
	}, []any{&n, &e.Key, &e.Value}, rangesMany, r.part, prefixes, ends, limit)
	if err != nil {
		return nil, err
	}
	for _, list := range lists { // the plan gives them in order, the statement does not promise it
		slices.SortFunc(list, func(a, b reconcile.Entry) int { return bytes.Compare(a.Key, b.Key) })
	}
	return lists, nil
}

// query reads all rows of a statement, so that the connection is free when it
// returns.
func (r *reader) query(ctx context.Context, each func() error, into []any, statement string, args ...any) error {
	if !r.until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.until, ErrHeld)
		defer cancel()
	}
	rows, err := r.tx.Query(ctx, statement, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, into, each)
	}
	if err == nil {
		return nil
	}
	if !r.until.IsZero() && !time.Now().Before(r.until) {
		err = ErrHeld
	}
	return fmt.Errorf("read the knowledge: %w", err)
}
