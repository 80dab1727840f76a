package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/testkit"
)

// EnvURL names the environment variable with the URL of a server to use, as a superuser. Its databases named overlayd_t*
// belong to this package.
const EnvURL = "OVERLAYD_TEST_DATABASE_URL"

// setupTime bounds each of creating and dropping a database, which queue behind each other on a busy machine.
const setupTime = 2 * time.Minute

// DB is the database of one test. The user in URL is a superuser.
type DB struct {
	URL  string        // for pools and connections of the test's own
	Pool *pgxpool.Pool // of 8 connections, closed after the test
}

// New returns a database with the migrated schema. It is dropped when the test has passed, and kept when it failed.
func New(t testing.TB) *DB {
	t.Helper()
	return create(t, true)
}

// NewEmpty is New without the schema: for tests of migrations.
func NewEmpty(t testing.TB) *DB {
	t.Helper()
	return create(t, false)
}

// URL is the server itself: its database "postgres" as a superuser, for tests that create databases by themselves. Such
// tests share it with every other test.
func URL(t testing.TB) string {
	t.Helper()
	server, err := serverURL()
	if err != nil {
		t.Fatalf("no Postgres for this test: %v", err)
	}
	return server
}

// NewPool opens another pool on the database, closed after the test. Each option may change the configuration.
func NewPool(t testing.TB, db *DB, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatalf("parse the test database's URL: %v", err)
	}
	config.MaxConns = 8
	for _, option := range options {
		option(config)
	}
	// Not the test's context: that ends before the cleanups, which may still want to use the pool.
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	if err != nil {
		t.Fatalf("open a pool on the test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Conn opens a connection of its own to the database, closed after the test: for LISTEN, locks, and being killed.
func Conn(t testing.TB, db *DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// Alone returns when no other session of q's database holds a snapshot, and the test fails when that does not come. A
// snapshot, be it that of an automatic ANALYZE, keeps dead entries in indexes, where each costs whoever counts buffers one
// more: count between two of these.
func Alone(t testing.TB, q Querier) {
	t.Helper()
	testkit.Eventually(t, "no other session of the database holds a snapshot", func() bool { return !watched(t, q) })
	renew(t, q)
}

// Undisturbed calls measure until no other session of q's database held a snapshot before it and after it. measure may run
// more than once.
func Undisturbed(t testing.TB, q Querier, measure func()) {
	t.Helper()
	testkit.Eventually(t, "a measurement without another session's snapshot", func() bool {
		if watched(t, q) {
			return false
		}
		renew(t, q)
		measure()
		return !watched(t, q)
	})
}

// Querier is a pool, or a connection outside a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// watched says whether another session of q's database keeps dead rows: by a snapshot, or by a transaction that has written.
func watched(t testing.TB, q Querier) (held bool) {
	t.Helper()
	// Sessions of no database (replication, the launcher of autovacuum) count for every one.
	const sql = `select exists (select from pg_stat_activity where (datid is null or datname = current_database())
		and pid <> pg_backend_pid() and (backend_xmin is not null or backend_xid is not null))`
	if err := q.QueryRow(t.Context(), sql).Scan(&held); err != nil {
		t.Fatalf("ask which sessions keep dead rows: %v", err)
	}
	return held
}

// renew has sessions look anew at what they may remove. Each remembers what it found when it last looked, when somebody may have
// held a snapshot, for as long as the oldest transaction that runs on the server is the same.
//
// Within a transaction there is no looking anew: what it writes is the oldest.
func renew(t testing.TB, q Querier) {
	t.Helper()
	if c, ok := q.(*pgx.Conn); ok && c.PgConn().TxStatus() != 'I' {
		return
	}
	var written, oldest uint64
	if err := q.QueryRow(t.Context(), "select pg_current_xact_id()::text::bigint").Scan(&written); err != nil {
		t.Fatalf("write a transaction: %v", err)
	}
	testkit.Eventually(t, "transactions of the server that are as old have ended", func() bool {
		if err := q.QueryRow(t.Context(), "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint").Scan(&oldest); err != nil {
			t.Fatalf("ask for the oldest transaction: %v", err)
		}
		return oldest > written
	})
}

func create(t testing.TB, migrated bool) *DB {
	t.Helper()
	server := URL(t)
	ctx, cancel := context.WithTimeout(t.Context(), setupTime)
	defer cancel()
	name := "overlayd_t_" + strings.ToLower(rand.Text())
	if err := clone(ctx, server, name, migrated); err != nil {
		t.Fatalf("make a test database: %v", err)
	}
	db := &DB{URL: withDatabase(server, name)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the database of this failed test is kept for as long as its server runs (give a server of your own in %s to keep it longer): %s", EnvURL, db.URL)
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), setupTime)
		defer cancel()
		if err := drop(ctx, server, name); err != nil {
			t.Errorf("drop the test database: %v", err)
		}
	})
	db.Pool = NewPool(t, db) // closed before the drop: cleanups run last in, first out
	return db
}

func clone(ctx context.Context, server, name string, migrated bool) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	from := "template0"
	if migrated {
		from = templateName(schema.Hash())
		if err := ensureTemplate(ctx, conn, server, from, migrate); err != nil {
			return err
		}
	}
	return execute(ctx, conn, "create database "+quote(name)+" template "+quote(from))
}

func drop(ctx context.Context, server, name string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return execute(ctx, conn, "drop database if exists "+quote(name)+" with (force)")
}

func templateName(hash string) string { return "overlayd_tpl_" + hash[:32] }

// templateLock serialises the builders of one server. Advisory locks belong to a database, so it is always taken in the
// one the server's URL names.
const templateLock int64 = 0x6f76_7465_6d70_6c74

// ensureTemplate builds the template unless it is marked as finished.
func ensureTemplate(ctx context.Context, conn *pgx.Conn, server, name string, build func(context.Context, *pgx.Conn) error) (err error) {
	ready, err := templateReady(ctx, conn, name)
	if err != nil || ready {
		return err
	}
	if err := execute(ctx, conn, "select pg_advisory_lock($1)", templateLock); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, execute(context.WithoutCancel(ctx), conn, "select pg_advisory_unlock($1)", templateLock))
	}()
	// Somebody else may have built it while we waited.
	if ready, err = templateReady(ctx, conn, name); err != nil || ready {
		return err
	}
	if err := execute(ctx, conn, "drop database if exists "+quote(name)+" with (force)"); err != nil {
		return err
	}
	if err := execute(ctx, conn, "create database "+quote(name)+" template template0"); err != nil {
		return err
	}
	if err := buildIn(ctx, withDatabase(server, name), build); err != nil {
		return fmt.Errorf("build the template of the test databases: %w", err)
	}
	return execute(ctx, conn, "alter database "+quote(name)+" with is_template true allow_connections false")
}

func templateReady(ctx context.Context, conn *pgx.Conn, name string) (ready bool, err error) {
	err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1 and datistemplate)", name).Scan(&ready)
	if err != nil {
		return false, fmt.Errorf("look for the template of the test databases: %w", err)
	}
	return ready, nil
}

func buildIn(ctx context.Context, database string, build func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	return errors.Join(build(ctx, conn), conn.Close(context.WithoutCancel(ctx)))
}

func migrate(ctx context.Context, conn *pgx.Conn) error { return schema.Migrate(ctx, conn, nil) }

func execute(ctx context.Context, conn *pgx.Conn, sql string, args ...any) error {
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// withDatabase is the URL with another database; serverURL made sure that it parses.
func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}
