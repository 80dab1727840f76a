package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed" // schema.sql
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"modernc.org/sqlite"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/internal/ordered"
)

// File is the name of the database inside the directory.
const File = "knowledge.db"

const (
	lockFile      = "knowledge.lock"
	followerFile  = "state.db" // of client/sqlitestate
	applicationID = 0x6f766b6e // "ovkn"
	schemaVersion = 1

	sqliteBusy = 5 // SQLITE_BUSY, the primary result code

	defaultCache = 16 << 20
	readerCache  = 8 << 20 // of each connection that reads
	idleReaders  = 4
)

//go:embed schema.sql
var schemaSQL string

// ErrLocked says that another process, or another store of this one, has the
// directory open for writing.
var ErrLocked = errors.New("the knowledge directory is in use by another program: stop it, or use another directory")

// ErrFollower says that the directory belongs to a follower that does not
// reconcile: two truths in one directory would be one too many.
var ErrFollower = errors.New("the directory holds the state of a follower that does not reconcile (" + followerFile + "): use another directory")

// Options are the settings of a store.
type Options struct {
	// CacheBytes bounds the pages that the writer keeps in memory. Zero means
	// 16 MiB. More is not better: until the file has a gigabyte, SQLite walks the
	// whole cache in each commit that moves pages about, and what is not in it the
	// system mostly has.
	CacheBytes int64
}

// Backend is an open directory: a reconcile.Backend. Writers come from [Open],
// readers from [Inspect].
type Backend struct {
	// Static after construction.
	writer *sql.DB // one connection; nil for a reader
	reader *sql.DB
	lock   *fileLock // nil for a reader
	write  *statements
	read   *statements

	gate    ordered.Gate
	writing atomic.Pointer[sql.Tx] // the transaction of the Update under way
	// Moments for tests, set before use: before and after COMMIT.
	committing, committed func()
}

var _ reconcile.Backend = (*Backend)(nil)

// Open opens a directory for writing, and creates it (0700) when it does not
// exist. It fails with [ErrLocked] when another writer has it, with
// reconcile.ErrNewer when a newer release wrote it, and with [ErrFollower].
func Open(ctx context.Context, dir string, o Options) (_ *Backend, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the knowledge directory: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, followerFile)); err == nil {
		return nil, ErrFollower
	}
	b := &Backend{committing: func() {}, committed: func() {}}
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	lockPath := filepath.Join(dir, lockFile)
	if err := createPrivate(lockPath); err != nil {
		return nil, err
	}
	if b.lock, err = takeLock(ctx, lockPath); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, File)
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	cache := cmp.Or(o.CacheBytes, defaultCache)
	b.writer, err = open(path, true, "busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)",
		"wal_autocheckpoint(4000)", "journal_size_limit(67108864)", cacheSize(cache))
	if err != nil {
		return nil, err
	}
	b.writer.SetMaxOpenConns(1)
	if err := prepare(ctx, b.writer); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := syncFolder(dir); err != nil {
		return nil, err
	}
	if b.reader, err = openReader(path); err != nil {
		return nil, err
	}
	b.write, b.read = newStatements(b.writer), newStatements(b.reader)
	reads := append(getMany[:], scanRange, scanOpen)
	writes := append(append(deleteMany[:], putMany[:]...), bulkPut)
	if err := errors.Join(b.read.warm(ctx, reads...), b.write.warm(ctx, append(writes, reads...)...)); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return b, nil
}

// Inspect opens an existing directory for reading only. It takes no lock, and may
// be used while a writer is at work.
func Inspect(ctx context.Context, dir string) (_ *Backend, err error) {
	path := filepath.Join(dir, File)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
	}
	db, err := openReader(path)
	if err != nil {
		return nil, err
	}
	have, err := stamped(ctx, db)
	if err == nil && have == 0 {
		err = errors.New("no program has finished creating it yet")
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	b := &Backend{reader: db, read: newStatements(db)}
	if err := b.read.warm(ctx, append(getMany[:], scanRange, scanOpen)...); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), b.Close())
	}
	return b, nil
}

// Durability is that of a file in WAL mode, synced with each commit.
func (b *Backend) Durability() reconcile.Durability { return reconcile.Durable }

// Close waits for what is under way and releases the directory.
func (b *Backend) Close() error {
	if !b.gate.Close() {
		return nil
	}
	var errs []error
	for _, s := range []*statements{b.read, b.write} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	for _, db := range []*sql.DB{b.reader, b.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if b.lock != nil { // last
		errs = append(errs, b.lock.release())
	}
	return errors.Join(errs...)
}

func cacheSize(bytes int64) string {
	return "cache_size(-" + strconv.FormatInt(max(bytes>>10, 1), 10) + ")"
}

func openReader(path string) (*sql.DB, error) {
	db, err := open(path, false, "busy_timeout(5000)", "query_only(ON)", cacheSize(readerCache))
	if err != nil {
		return nil, err
	}
	// Without a bound on open ones: a snapshot that is kept must not stop others.
	db.SetMaxIdleConns(idleReaders)
	return db, nil
}

// open names a database file in the way the driver wants it.
func open(path string, writes bool, pragmas ...string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
	}
	q := url.Values{"_pragma": pragmas}
	if writes {
		q.Set("_txlock", "immediate")
	}
	slash := filepath.ToSlash(abs)
	if !strings.HasPrefix(slash, "/") {
		slash = "/" + slash
	}
	name := url.URL{Scheme: "file", Path: slash, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("open the knowledge: %w", err)
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
		return fmt.Errorf("create the knowledge: %w", err)
	}
	return f.Close()
}

// syncFolder makes the names of new files, and of the folder itself, as durable
// as their contents.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" { // folders cannot be synced there
		return nil
	}
	for _, folder := range []string{dir, filepath.Dir(dir)} {
		f, err := os.Open(folder)
		if err != nil {
			if folder != dir && errors.Is(err, fs.ErrPermission) {
				continue // somebody else's folder
			}
			return fmt.Errorf("sync the knowledge directory: %w", err)
		}
		err = errors.Join(f.Sync(), f.Close())
		if err != nil {
			return fmt.Errorf("sync the knowledge directory: %w", err)
		}
	}
	return nil
}

// fileLock is SQLite's own exclusive lock on a file of its own: portable, and
// gone with the process however it ends.
type fileLock struct {
	db   *sql.DB
	conn *sql.Conn // kept out of the pool: the lock lives as long as the connection
}

func takeLock(ctx context.Context, path string) (*fileLock, error) {
	db, err := open(path, true, "busy_timeout(0)", "journal_mode(DELETE)", "locking_mode(EXCLUSIVE)")
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
	if primaryCode(err) == sqliteBusy {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock the knowledge directory: %w", err)
}

func (l *fileLock) release() error {
	return errors.Join(l.conn.Close(), l.db.Close())
}

// primaryCode is SQLite's primary result code of an error, 0 when it has none.
func primaryCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// stamped returns the schema version of a file, 0 for an empty one. It refuses
// one of a newer release and one that is something else.
func stamped(ctx context.Context, db *sql.DB) (version int, err error) {
	var application int
	err = db.QueryRowContext(ctx, "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version").Scan(&application, &version)
	switch {
	case err != nil:
		return 0, err
	case application != applicationID && (application != 0 || version != 0):
		return 0, errors.New("it is not a store of knowledge: use another directory")
	case version > schemaVersion:
		return 0, reconcile.ErrNewer
	}
	return version, nil
}

// prepare creates the tables of an empty file.
func prepare(ctx context.Context, db *sql.DB) error {
	have, err := stamped(ctx, db)
	if err != nil || have == schemaVersion {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	stamp := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, schemaVersion)
	for _, statement := range []string{schemaSQL, stamp} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}
