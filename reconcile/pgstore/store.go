package pgstore

import (
	"cmp"
	"context"
	_ "embed" // schema.sql
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/internal/ordered"
)

const (
	schemaVersion = 1
	// schemaLock serialises those who create the tables.
	schemaLock int64 = 0x6f76_6b6e_6f77_6c67

	defaultSnapshot = time.Minute
	// idleLimit is how long a writer may compute between two statements. A writer
	// whose machine is gone is ended by it, not by TCP's own patience.
	idleLimit = time.Minute
	// commitLimit is how long an answer to COMMIT is waited for.
	commitLimit = 30 * time.Second
)

//go:embed schema.sql
var schemaSQL string

// ErrAbsent says that the database holds no knowledge of the partition.
var ErrAbsent = errors.New("the database holds no knowledge of this partition: nothing has been stored yet")

// ErrHeld ends a view that lasted longer than Options.SnapshotFor.
var ErrHeld = errors.New("the snapshot was held for too long, which keeps the database from cleaning up: read in shorter pieces")

// Options are the settings of a store.
type Options struct {
	// Partition is whose knowledge it is: each has keys of its own.
	Partition reconcile.Partition
	// SnapshotFor bounds the life of a view. Zero means 1 minute.
	SnapshotFor time.Duration
}

// Backend keeps the knowledge of one partition in the tables of a Postgres
// database: a reconcile.Backend. Writers come from [Open], readers from [Inspect].
type Backend struct {
	// Static after construction.
	pool        *pgxpool.Pool // the caller's
	part        int32
	readOnly    bool
	snapshotFor time.Duration
	beginView   string
	beginUpdate string
	lock        string

	gate ordered.Gate

	// Commits whose outcome is not known; see settle.
	open     atomic.Bool // there are some
	settling chan struct{}
	mu       sync.Mutex
	lost     []lost
	// Moments for tests, set before use: before and after COMMIT.
	committing, committed func()
}

var _ reconcile.Backend = (*Backend)(nil)

// Open finds or creates the tables, in the first schema of the search path, and
// the partition in them. The pool stays the caller's; it should have at least two
// connections, and one more for each view that is held. Open waits for a commit
// that a killed process of the same partition left under way, so that what is read
// next is certain. It fails with reconcile.ErrNewer when a newer release made the
// tables.
func Open(ctx context.Context, pool *pgxpool.Pool, o Options) (*Backend, error) {
	b := &Backend{pool: pool}
	if err := prepare(ctx, pool); err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		p := o.Partition
		_, err := tx.Exec(ctx, `insert into overlay_knowledge_partition (application, account, access)
			select $1, $2, $3 where not exists (select from overlay_knowledge_partition where application = $1 and account = $2 and access = $3)
			on conflict do nothing`, p.Application, p.Account, p.Access)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, partitionFind+" for update", p.Application, p.Account, p.Access).Scan(&b.part)
	})
	if err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
	}
	b.settings(o)
	return b, nil
}

const partitionFind = `select id from overlay_knowledge_partition where application = $1 and account = $2 and access = $3`

// Inspect opens the knowledge of a partition for reading only, beside a writer or
// without one. It creates nothing, and fails with [ErrAbsent] when nothing is there.
func Inspect(ctx context.Context, pool *pgxpool.Pool, o Options) (*Backend, error) {
	b := &Backend{pool: pool, readOnly: true}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		have, err := version(ctx, tx)
		if err != nil {
			return err
		}
		if have == 0 {
			return ErrAbsent
		}
		err = tx.QueryRow(ctx, partitionFind, o.Partition.Application, o.Partition.Account, o.Partition.Access).Scan(&b.part)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrAbsent
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
	}
	b.settings(o)
	return b, nil
}

// settings makes the statements that begin a transaction. Plans must not depend
// on what the planner believes about a table that was empty when it looked: every
// statement here is a walk of the primary key.
func (b *Backend) settings(o Options) {
	const plans = `set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off; set local enable_bitmapscan = off; `
	b.snapshotFor = cmp.Or(o.SnapshotFor, defaultSnapshot)
	b.settling = make(chan struct{}, 1)
	b.committing, b.committed = func() {}, func() {}
	b.lock = fmt.Sprintf(`select from overlay_knowledge_partition where id = %d for update`, b.part)
	b.beginView = `begin isolation level repeatable read read only; ` + plans + idle(b.snapshotFor)
	b.beginUpdate = `begin isolation level read committed; ` + plans + idle(idleLimit) +
		`select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'; ` + b.lock
}

func idle(d time.Duration) string {
	return fmt.Sprintf(`set local idle_in_transaction_session_timeout = %d; `, max(d.Milliseconds(), 1))
}

// Durability is the database's own; a session that does not wait for it is made to.
func (b *Backend) Durability() reconcile.Durability { return reconcile.Durable }

// Close waits for what is under way. The pool stays open.
func (b *Backend) Close() error {
	b.gate.Close()
	return nil
}

// version is that of the tables, 0 when there are none.
func version(ctx context.Context, tx pgx.Tx) (have int, err error) {
	// Reading pg_class for the first time in a transaction makes the session notice
	// what others created; to_regclass alone may answer from what it remembers.
	var there bool
	err = tx.QueryRow(ctx, `select exists (select from pg_catalog.pg_class where oid = to_regclass('overlay_knowledge_schema'))`).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	if err := tx.QueryRow(ctx, `select version from overlay_knowledge_schema`).Scan(&have); err != nil {
		return 0, err
	}
	if have > schemaVersion {
		return 0, reconcile.ErrNewer
	}
	return have, nil
}

// prepare creates the tables where there are none.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	var have int
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		have, err = version(ctx, tx)
		return err
	})
	if err != nil || have == schemaVersion {
		return err
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, schemaLock); err != nil {
			return err
		}
		// Somebody else may have made them while we waited.
		if have, err := version(ctx, tx); err != nil || have == schemaVersion {
			return err
		}
		if _, err := tx.Exec(ctx, schemaSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into overlay_knowledge_schema values ($1)`, schemaVersion)
		return err
	})
}
