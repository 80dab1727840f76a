package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// versionTable is looked up and created through the connection's search path, like the tables themselves.
const versionTable = "overlayd_schema_version"

// lockKey is the advisory lock every Migrate holds from before it reads the version until it is done.
const lockKey int64 = 0x6f7665726c617964 // "overlayd"

//go:embed sql
var files embed.FS

// A Migration is one step of the schema.
type Migration struct {
	Version int32  // 1 for the first
	Name    string // file name, as "001_livefeed.sql"
	SQL     string // the whole file
}

// Migrate brings the database to the version of this program. log, which may be nil, is called before each migration
// that is run. It waits for a Migrate of another process to finish; when nothing is pending it changes nothing.
//
// Errors: *NewerError when the database is ahead of this program, otherwise the wrapped cause with the migration named.
func Migrate(ctx context.Context, conn *pgx.Conn, log func(version int, name string)) error {
	set, err := load(files)
	if err != nil {
		return err
	}
	return set.migrate(ctx, conn, log)
}

// Status reads the version of the database, the version this program wants, and the migrations between the two, in the
// order Migrate would run them. A database that was never migrated is at version 0; one that is newer has nothing pending.
func Status(ctx context.Context, conn *pgx.Conn) (current, target int32, pending []Migration, err error) {
	set, err := load(files)
	if err != nil {
		return 0, 0, nil, err
	}
	return set.status(ctx, conn)
}

// Check tells whether this program can work with the database: nil, *NotMigratedError or *NewerError, or the
// wrapped cause when the version could not be read.
func Check(ctx context.Context, conn *pgx.Conn) error {
	set, err := load(files)
	if err != nil {
		return err
	}
	return set.check(ctx, conn)
}

func (s set) migrate(ctx context.Context, conn *pgx.Conn, log func(version int, name string)) (err error) {
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", lockKey); err != nil {
		return fmt.Errorf("wait for the migration lock: %w", err)
	}
	defer func() {
		switch {
		case conn.IsClosed(): // and the lock is free
		case ctx.Err() != nil:
			// Nothing more can be asked under this context, and a lock kept by an idle connection would block every
			// other process: end the session instead.
			_ = conn.Close(context.WithoutCancel(ctx))
		default:
			if _, unlockErr := conn.Exec(ctx, "select pg_advisory_unlock($1)", lockKey); unlockErr != nil && err == nil {
				err = fmt.Errorf("free the migration lock: %w", unlockErr)
			}
		}
	}()

	current, target, pending, err := s.status(ctx, conn)
	if err != nil {
		return err
	}
	if current > target {
		return &NewerError{Current: current, Target: target}
	}
	if len(pending) == 0 {
		return nil
	}
	migrator, err := migrate.NewMigrator(ctx, conn, versionTable)
	if err != nil {
		return fmt.Errorf("prepare the table %s: %w", versionTable, err)
	}
	// Not LoadMigrations: that would run the files through text/template and look for a way down in them.
	for _, m := range s {
		migrator.AppendMigration(m.Name, m.SQL, "")
	}
	running := ""
	migrator.OnStart = func(version int32, name, _, _ string) {
		running = name
		if log != nil {
			log(int(version), name)
		}
	}
	if err := migrator.Migrate(ctx); err != nil {
		if running == "" {
			return fmt.Errorf("migrate the database: %w", err)
		}
		return fmt.Errorf("migration %s failed and was rolled back: %w", running, err)
	}
	return nil
}

func (s set) status(ctx context.Context, conn *pgx.Conn) (current, target int32, pending []Migration, err error) {
	target = s.target()
	current, err = version(ctx, conn)
	if err != nil {
		return 0, target, nil, err
	}
	if current < target {
		pending = append(pending, s[current:]...)
	}
	return current, target, pending, nil
}

func (s set) check(ctx context.Context, conn *pgx.Conn) error {
	current, target, _, err := s.status(ctx, conn)
	switch {
	case err != nil:
		return err
	case current < target:
		return &NotMigratedError{Current: current, Target: target}
	case current > target:
		return &NewerError{Current: current, Target: target}
	}
	return nil
}

// version reads the version without creating anything: 0 where there is no table.
func version(ctx context.Context, conn *pgx.Conn) (int32, error) {
	var exists bool
	if err := conn.QueryRow(ctx, "select to_regclass($1) is not null", versionTable).Scan(&exists); err != nil {
		return 0, fmt.Errorf("look for the table %s: %w", versionTable, err)
	}
	if !exists {
		return 0, nil
	}
	var v int32
	err := conn.QueryRow(ctx, "select version from "+versionTable).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && v < 0 {
		return 0, fmt.Errorf("the table %s does not hold a version: restore the database from a backup", versionTable)
	}
	if err != nil {
		return 0, fmt.Errorf("read the schema version: %w", err)
	}
	return v, nil
}
