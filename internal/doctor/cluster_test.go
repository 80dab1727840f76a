package doctor

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/pgtest/require"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/testkit"
)

// cluster starts a server of a test's own and returns its URL and data directory.
func cluster(t *testing.T, folder string, fast bool) (to, data string) {
	t.Helper()
	server, err := localpg.Start(t.Context(), localpg.Options{Data: folder, Fast: fast, MaxConnections: 40})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Stop(contextOf(t)), localpg.Remove(contextOf(t), folder)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	execute(t, server.URL(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select current_setting('data_directory')").Scan(&data)
	})
	return server.URL(), data
}

func execute(t *testing.T, to string, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(contextOf(t)) //nolint:errcheck // nothing depends on it
	if err := do(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
}

func statements(t *testing.T, to string, list ...string) {
	t.Helper()
	execute(t, to, func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range list {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// reloaded waits until a setting is in force: a reload tells nobody when it is through.
func reloaded(t *testing.T, to, name, value string) {
	t.Helper()
	statements(t, to, "select pg_reload_conf()")
	testkit.Eventually(t, name+" is "+value, func() bool {
		var now string
		execute(t, to, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "select current_setting($1)", name).Scan(&now)
		})
		return now == value
	})
}

func TestServerVerdicts(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(testkit.OpenFolder(t), "pg")
	to, data := cluster(t, folder, false)
	execute(t, to, func(ctx context.Context, conn *pgx.Conn) error { return schema.Migrate(ctx, conn, nil) })
	found := examined(t, settingsOf(t, to))
	says(t, found, "database.durability", OK)
	says(t, found, "database.role", OK, "a primary, with 0 standbys")
	says(t, found, "database.autovacuum", OK)
	says(t, found, "database.transactions", OK)
	sums := Warning
	if checksummed(t, to) {
		sums = OK
	}
	says(t, found, "database.checksums", sums)

	says(t, examined(t, settingsOf(t, with(t, to, "synchronous_commit", "off"))), "database.durability", Warning, "synchronous_commit is off")
	says(t, examined(t, settingsOf(t, with(t, to, "default_transaction_read_only", "on"))), "database.role", Failure, "read-only by default")

	statements(t, to, "alter system set autovacuum = off")
	reloaded(t, to, "autovacuum", "off")
	says(t, examined(t, settingsOf(t, to)), "database.autovacuum", Warning, "turn autovacuum on")
	statements(t, to, "create role guest login", "grant pg_read_all_data to guest", "alter role guest password 'hush-hush'")
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("guest", "hush-hush")
	says(t, examined(t, settingsOf(t, u.String())), "database.autovacuum", Failure, "does not own")

	statements(t, to, "select pg_create_physical_replication_slot('nobody', true)")
	says(t, examined(t, settingsOf(t, to)), "database.transactions", Warning, "max_slot_wal_keep_size")
	statements(t, to, "select pg_drop_replication_slot('nobody')")

	basebackup, err := localpg.Tool(t.Context(), "pg_basebackup")
	if errors.Is(err, os.ErrNotExist) {
		require.Missing(t, "pg_basebackup", "a standby is told from a primary")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	standby := standbyOf(t, basebackup, to, data)
	testkit.Eventually(t, "the standby streams", func() bool {
		f := examined(t, settingsOf(t, to))["database.role"]
		return f.Verdict == Warning
	})
	says(t, examined(t, settingsOf(t, to)), "database.role", Warning, "synchronous_standby_names")
	found = examined(t, settingsOf(t, standby))
	says(t, found, "database.role", Failure, "standby")
	says(t, found, "database.listener", Failure, "LISTEN is refused")
	says(t, found, "migrations", OK)
}

func checksummed(t *testing.T, to string) (on bool) {
	t.Helper()
	execute(t, to, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select current_setting('data_checksums') = 'on'").Scan(&on)
	})
	return on
}

// standbyOf starts a server that streams from the one at to.
func standbyOf(t *testing.T, basebackup, to, data string) string {
	t.Helper()
	folder := filepath.Join(testkit.OpenFolder(t), "pg")
	copied := filepath.Join(folder, "cluster")
	if err := os.Mkdir(folder, 0o711); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/postgres"
	if out, err := exec.CommandContext(t.Context(), basebackup, "-d", u.String(), "-D", copied, "-R", "-X", "stream", "-c", "fast", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	// The copy belongs to whom the primary's belongs to, and has its password.
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := filepath.WalkDir(copied, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	}); err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	if err := os.WriteFile(filepath.Join(folder, "localpg.json"), []byte(`{"password":"`+password+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	standby, _ := cluster(t, folder, true)
	return standby
}

func TestDurabilityVerdicts_FastServer(t *testing.T) {
	t.Parallel()
	to, _ := cluster(t, filepath.Join(testkit.OpenFolder(t), "pg"), true)
	says(t, examined(t, settingsOf(t, to)), "database.durability", Failure, "fsync is off", "fsync = on")
}
