package live_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// childVariable holds the orders of a follower that is a process of its own.
const childVariable = "OVERLAYD_LIVE_TEST_CHILD"

// orders are what a child is to do. It keeps its store in the folder Dir, or in the
// database at URL.
type orders struct {
	Base, Headers, Told string
	Dir, URL            string
	KillUpdate          int  // the commit at which it kills itself; 0: none
	After               bool // after that commit, and not before it
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		arm()
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openKept opens the store that orders name.
func openKept(ctx context.Context, o orders) (b reconcile.Backend, outputs reconcile.Projector, err error) {
	if o.URL == "" {
		s, err := sqlitestore.Open(ctx, o.Dir, sqlitestore.Options{})
		if err != nil {
			return nil, nil, err
		}
		return s, sqlitestore.NewOutputs(s), nil
	}
	pool, err := pgxpool.New(ctx, o.URL)
	if err != nil {
		return nil, nil, err
	}
	p, err := pgstore.Open(ctx, pool, pgstore.Options{Partition: partition})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return pooled{p, pool}, pgstore.NewOutputs(p), nil
}

// pooled closes its pool with itself.
type pooled struct {
	*pgstore.Backend
	pool *pgxpool.Pool
}

func (p pooled) Close() error {
	defer p.pool.Close()
	return p.Backend.Close()
}

// deadly kills the process at one of its commits, as kill -9 does.
type deadly struct {
	reconcile.Backend
	o orders
	n int
}

func (d *deadly) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	var mine bool
	err := d.Backend.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
		w, err := f(r)
		d.n++ // updates go one at a time
		if mine = d.n == d.o.KillUpdate; mine && !d.o.After {
			die()
		}
		return w, err
	})
	if mine {
		die()
	}
	return err
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal takes its time
}

// ledger is a projector that writes down, in the transaction of its checkpoint, which
// revisions it was given.
type ledger struct{}

const (
	ledgerSQLite   = `CREATE TABLE IF NOT EXISTS ledger (n INTEGER PRIMARY KEY AUTOINCREMENT, revision BIGINT NOT NULL)`
	ledgerPostgres = `CREATE TABLE IF NOT EXISTS ledger (n BIGSERIAL PRIMARY KEY, revision BIGINT NOT NULL)`
	ledgerInsert   = `INSERT INTO ledger (revision) VALUES ($1)`
)

func (ledger) Apply(ctx context.Context, c reconcile.Change, tx reconcile.ProjectTx) error {
	switch tx := tx.(type) {
	case *sql.Tx:
		if _, err := tx.ExecContext(ctx, ledgerSQLite); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, ledgerInsert, int64(c.Revision.Accepted))
		return err
	case pgx.Tx:
		if _, err := tx.Exec(ctx, ledgerPostgres); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, ledgerInsert, int64(c.Revision.Accepted))
		return err
	}
	return errors.New("no transaction")
}

// child follows until everything is live, and writes down what it was told.
func child(text string) (err error) {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	told, err := os.OpenFile(o.Told, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer told.Close() //nolint:errcheck // every line was written
	headers, err := verify.OpenHeaderFile(o.Headers, verify.FileOptions{})
	if err != nil {
		return err
	}
	backend, outputs, err := openKept(ctx, o)
	if err != nil {
		return err
	}
	store, err := reconcile.Open(ctx, &deadly{Backend: backend, o: o}, reconcile.Options{Partition: partition, NonFinal: true})
	if err != nil {
		return errors.Join(err, backend.Close())
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return live.Run(ctx, live.Config{
		Store: store, Chain: headers, Workers: 2, UntilLive: true, Projectors: map[string]reconcile.Projector{"outputs": outputs, "ledger": ledger{}},
		Sources: []live.Source{{BaseURL: o.Base, Service: service, OnReset: live.Reopen, Limits: client.Limits{MaxObservations: 3}}},
		On: func(_ context.Context, e live.Event) error {
			switch e := e.(type) {
			case live.Accepted:
				_, err := fmt.Fprintln(told, "accepted", e.Revision.Accepted)
				return err
			case live.SourceReset:
				_, err := fmt.Fprintln(told, "reset", e.Generation)
				return err
			case live.Lagging:
				return e.Err
			}
			return nil
		},
	})
}
