package sqlitestate

import (
	"context"
	"database/sql"
	_ "embed" // schema.sql, upgrade2.sql
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"modernc.org/sqlite"

	"github.com/overlayd/overlayd/client"
)

// File is the name of the database inside the state directory.
const File = "state.db"

const (
	lockFile      = "state.lock"
	knowledgeFile = "knowledge.db" // of reconcile/sqlitestore
	applicationID = 0x6f766c79     // "ovly"
	schemaVersion = 2

	sqliteBusy = 5 // SQLITE_BUSY, the primary result code
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed upgrade2.sql
	upgrade2SQL string
)

// ErrLocked says that another writer has the state directory open.
var ErrLocked = errors.New("the state directory is in use by another follower: stop it, or use another directory")

// ErrNewer says that the state was written by a newer release.
var ErrNewer = errors.New("the state was written by a newer release: upgrade, or use another directory")

// ErrKnowledge says that the directory belongs to a follower that reconciles: two
// truths in one directory would be one too many.
var ErrKnowledge = errors.New("the directory holds the knowledge of a follower that reconciles (" + knowledgeFile + "): use another directory, or follow --reconcile")

// Store is an open state directory. Writer stores come from [Open], readers from
// [Inspect].
type Store struct {
	// Static after construction.
	writer *sql.DB // one connection; nil for a reader
	reader *sql.DB
	lock   *fileLock // nil for a reader
	schema int       // version of the tables

	mu   sync.Mutex
	held map[int64]struct{} // sources in use by a Record
}

var _ client.State = (*Store)(nil)

// Open opens the state directory for writing, and creates it (0700) when it does
// not exist. It fails with [ErrLocked] when another writer has it, with [ErrNewer]
// when a newer release wrote it, and with [ErrKnowledge].
func Open(ctx context.Context, dir string) (_ *Store, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, knowledgeFile)); err == nil {
		return nil, ErrKnowledge
	}
	s := &Store{schema: schemaVersion, held: make(map[int64]struct{})}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.lock, err = takeLock(ctx, filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, File)
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	if s.writer, err = open(path, "busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)"); err != nil {
		return nil, err
	}
	s.writer.SetMaxOpenConns(1)
	if err := prepare(ctx, s.writer); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if s.reader, err = open(path, "busy_timeout(5000)", "query_only(ON)"); err != nil {
		return nil, err
	}
	s.reader.SetMaxOpenConns(4)
	return s, nil
}

// Inspect opens an existing state directory for reading only. It takes no lock,
// and may be used while a writer is at work. It changes nothing: what an earlier
// release wrote is read as it is.
func Inspect(ctx context.Context, dir string) (*Store, error) {
	path := filepath.Join(dir, File)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open the state: %w", err)
	}
	db, err := open(path, "busy_timeout(5000)", "query_only(ON)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	version, err := version(ctx, db)
	switch {
	case err == nil && version > schemaVersion:
		err = ErrNewer
	case err == nil && version == 0:
		err = errors.New("no follower has finished creating it yet")
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &Store{reader: db, schema: version, held: make(map[int64]struct{})}, nil
}

// Close releases the directory. Records must have been released before.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.lock != nil { // last
		errs = append(errs, s.lock.release())
	}
	return errors.Join(errs...)
}

// open names a database file in the way the driver wants it.
func open(path string, pragmas ...string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the state: %w", err)
	}
	q := url.Values{"_pragma": pragmas, "_txlock": {"immediate"}}
	slash := filepath.ToSlash(abs)
	if !strings.HasPrefix(slash, "/") {
		slash = "/" + slash
	}
	name := url.URL{Scheme: "file", Path: slash, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("open the state: %w", err)
	}
	return db, nil
}

// createPrivate creates an empty file that only this user can read, so that what
// SQLite puts beside it inherits the mode. It never opens an existing file:
// closing any descriptor of a file drops all locks this process has on it.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create the state: %w", err)
	}
	return f.Close()
}

// fileLock is SQLite's own exclusive lock on a file of its own: portable, and
// gone with the process however it ends.
type fileLock struct {
	db   *sql.DB
	conn *sql.Conn // kept out of the pool: the lock lives as long as the connection
}

func takeLock(ctx context.Context, path string) (*fileLock, error) {
	db, err := open(path, "busy_timeout(0)", "journal_mode(DELETE)", "locking_mode(EXCLUSIVE)")
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err == nil {
		// In exclusive locking mode the lock of the first write is kept until the
		// connection closes, so no transaction has to stay open.
		if _, err = conn.ExecContext(ctx, "PRAGMA user_version = 1"); err == nil {
			return &fileLock{db: db, conn: conn}, nil
		}
		_ = conn.Close()
	}
	_ = db.Close()
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqliteBusy {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock the state directory: %w", err)
}

func (l *fileLock) release() error {
	return errors.Join(l.conn.Close(), l.db.Close())
}

func version(ctx context.Context, db *sql.DB) (v int, err error) {
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

// prepare creates the tables of an empty file, brings those of an earlier
// release up to date, and refuses a newer one. Each is one transaction.
func prepare(ctx context.Context, db *sql.DB) error {
	have, err := version(ctx, db)
	switch {
	case err != nil:
		return err
	case have == schemaVersion:
		return nil
	case have > schemaVersion:
		return ErrNewer
	case have == 1:
		return upgrade(ctx, db)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return stamp(ctx, tx, schemaSQL)
}

// upgrade leads from schema 1 to 2.
func upgrade(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Only outside of a transaction does SQLite let this be switched.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	defer func() {
		_, again := conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA foreign_keys = ON")
		err = errors.Join(err, again)
	}()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return stamp(ctx, tx, upgrade2SQL)
}

// stamp runs what makes the tables, and commits them with their version.
func stamp(ctx context.Context, tx *sql.Tx, script string) error {
	version := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, schemaVersion)
	for _, statement := range []string{script, version} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	var table string
	err := tx.QueryRowContext(ctx, `SELECT "table" FROM pragma_foreign_key_check LIMIT 1`).Scan(&table)
	if err == nil {
		return fmt.Errorf("a row of the table %s refers to one that is not there", table)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return tx.Commit()
}
