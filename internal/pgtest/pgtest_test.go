package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/testkit"
)

// helperWord as first argument turns the test binary into one that uses its private server and then waits to be killed.
const helperWord = "use-a-server"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == helperWord {
		server, err := private()
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(server.URL, server.folder)
		select {}
	}
	os.Exit(m.Run())
}

// recorder is a test whose end the test of the test decides.
type recorder struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
	failed   bool
	logged   []string
}

func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool             { return r.failed }
func (r *recorder) Logf(format string, a ...any) {
	r.logged = append(r.logged, fmt.Sprintf(format, a...))
}

func (r *recorder) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func exists(t *testing.T, database string) bool {
	t.Helper()
	conn := server(t)
	var found bool
	if err := conn.QueryRow(t.Context(), "select exists (select from pg_database where datname = $1)", database).Scan(&found); err != nil {
		t.Fatal(err)
	}
	return found
}

// server is a connection to the server itself.
func server(t *testing.T) *pgx.Conn {
	t.Helper()
	return Conn(t, &DB{URL: URL(t)})
}

func nameOf(t *testing.T, db *DB) string {
	t.Helper()
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return config.Database
}

func TestT1_OwnDatabases(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for range 4 {
		a, b := New(t), NewEmpty(t)
		for _, db := range []*DB{a, b} {
			group.Go(func() {
				if _, err := db.Pool.Exec(t.Context(), "create table mine()"); err != nil {
					t.Error(err)
				}
			})
		}
		if err := schema.Check(t.Context(), Conn(t, a)); err != nil {
			t.Errorf("New: %v", err)
		}
		if err := schema.Check(t.Context(), Conn(t, b)); err == nil && schema.Hash() != emptyHash {
			t.Error("NewEmpty is not empty")
		}
	}
	group.Wait()
}

// emptyHash is the hash of no migrations at all: SHA-256 of nothing.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestT2_OnlyAFinishedTemplateCounts(t *testing.T) {
	t.Parallel()
	conn := server(t)
	name := "overlayd_t_" + "unfinished"
	t.Cleanup(func() { removeTemplate(t, name) })
	// Cut off in the middle of building.
	broken := errors.New("cut off")
	err := ensureTemplate(t.Context(), conn, URL(t), name, func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "create table half()"); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("a failed build: %v", err)
	}
	if ready, err := templateReady(t.Context(), conn, name); err != nil || ready {
		t.Fatalf("a failed build is marked as finished: %v", err)
	}
	if !exists(t, name) {
		t.Fatal("the leftover this test is about is not there")
	}
	if err := ensureTemplate(t.Context(), conn, URL(t), name, func(ctx context.Context, c *pgx.Conn) error {
		return execute(ctx, c, "create table half()")
	}); err != nil {
		t.Fatalf("building again over the leftover: %v", err)
	}
	if ready, err := templateReady(t.Context(), conn, name); err != nil || !ready {
		t.Errorf("a finished template is not marked: %v", err)
	}
}

func TestT3_BuiltOnce(t *testing.T) {
	t.Parallel()
	name := "overlayd_t_" + "once"
	t.Cleanup(func() { removeTemplate(t, name) })
	var built atomic.Int32
	var group sync.WaitGroup
	for range 6 {
		conn := server(t)
		group.Go(func() {
			if err := ensureTemplate(t.Context(), conn, URL(t), name, func(ctx context.Context, c *pgx.Conn) error {
				built.Add(1)
				return execute(ctx, c, "create table once()")
			}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if built.Load() != 1 {
		t.Errorf("built %d times", built.Load())
	}
}

func removeTemplate(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, URL(t))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(ctx)
	if ready, err := templateReady(ctx, conn, name); err != nil || ready {
		if err := errors.Join(err, execute(ctx, conn, "alter database "+quote(name)+" with is_template false")); err != nil {
			t.Error(err)
		}
	}
	if err := execute(ctx, conn, "drop database if exists "+quote(name)); err != nil {
		t.Error(err)
	}
}

func TestT4_DroppedAfterSuccessKeptAfterFailure(t *testing.T) {
	t.Parallel()
	passing := &recorder{TB: t, ctx: t.Context()}
	db := New(passing)
	leaked, err := db.Pool.Acquire(t.Context()) // a connection nobody gave back must not hold the drop up
	if err != nil {
		t.Fatal(err)
	}
	other := Conn(t, db)
	leaked.Release()
	passing.end()
	if exists(t, nameOf(t, db)) {
		t.Error("the database of a test that passed is still there")
	}
	if err := other.Ping(t.Context()); err == nil {
		t.Error("a connection to the dropped database still works")
	}
	if len(passing.logged) != 0 {
		t.Errorf("a test that passed says %q", passing.logged)
	}

	failing := &recorder{TB: t, ctx: t.Context()}
	db = New(failing)
	failing.failed = true
	failing.end()
	if !exists(t, nameOf(t, db)) {
		t.Error("the database of a failed test is gone")
	}
	if len(failing.logged) != 1 || !strings.Contains(failing.logged[0], db.URL) {
		t.Errorf("a failed test says %q", failing.logged)
	}
	if err := drop(t.Context(), URL(t), nameOf(t, db)); err != nil {
		t.Error(err)
	}
}

func TestNewPool(t *testing.T) {
	t.Parallel()
	db := NewEmpty(t)
	pool := NewPool(t, db, func(c *pgxpool.Config) { c.MaxConns = 1 }, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "chosen"
	})
	var name string
	if err := pool.QueryRow(t.Context(), "select current_setting('application_name')").Scan(&name); err != nil || name != "chosen" {
		t.Errorf("the options had no effect: %q, %v", name, err)
	}
	if pool.Config().MaxConns != 1 || db.Pool.Config().MaxConns != 8 {
		t.Errorf("pools of %d and %d connections", pool.Config().MaxConns, db.Pool.Config().MaxConns)
	}
}

// A test process that is killed leaves neither server nor folder.
func TestT5_NothingOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, helperWord)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var url, folder string
	if _, err := fmt.Fscanln(out, &url, &folder); err != nil {
		t.Fatalf("the helper process said nothing useful (%q): %v", url, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "cluster", "PG_VERSION")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	testkit.Eventually(t, "the folder is removed", func() bool {
		_, err := os.Stat(folder)
		return errors.Is(err, os.ErrNotExist)
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the server still answers")
	}
}

// What not even the shell could remove is removed by the next run; a living server's folder is not.
func TestT5_NextRunSweeps(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	left := filepath.Join(temp, folderPrefix+"left")
	young := filepath.Join(temp, folderPrefix+"young")
	other := filepath.Join(temp, "other")
	for _, dir := range []string{left, young, other} {
		if err := os.MkdirAll(filepath.Join(dir, "cluster"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{left, other} {
		if err := os.WriteFile(filepath.Join(dir, "localpg.json"), []byte(`{"password":"x"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sweep(t.Context(), temp)
	for dir, want := range map[string]bool{left: false, young: true, other: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
	url := URL(t)
	sweep(t.Context(), place(Fast))
	if conn, err := pgx.Connect(t.Context(), url); err != nil {
		t.Errorf("the sweep hurt a living server: %v", err)
	} else {
		_ = conn.Close(t.Context())
	}
}

func TestGivenServer(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]bool{
		"postgres://u:p@127.0.0.1:5432/postgres?sslmode=disable": true,
		"postgresql://localhost/postgres":                        true,
		"host=localhost dbname=postgres":                         false,
		"postgres:///postgres?host=/tmp":                         false,
		"http://localhost/":                                      false,
		"postgres://%":                                           false,
	} {
		got, err := checked(given)
		if (err == nil) != want || err == nil && got != given || err != nil && !strings.Contains(err.Error(), EnvURL) {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if got := withDatabase("postgres://u:p@h:1/postgres?sslmode=disable", "other"); got != "postgres://u:p@h:1/other?sslmode=disable" {
		t.Errorf("with another database: %q", got)
	}
}

// TestT6_Undisturbed: a snapshot of another session, begun before or during a measurement, makes it be done again.
func TestT6_Undisturbed(t *testing.T) {
	t.Parallel()
	db := New(t)
	begin := func() pgx.Tx {
		tx, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select count(*) from pg_class"); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	end := func(tx pgx.Tx) {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	own := Conn(t, db)
	if watched(t, own) {
		t.Error("its own snapshot disturbs it")
	}
	other := begin()
	if !watched(t, own) {
		t.Fatal("another session's snapshot is not seen")
	}
	// It ends once it has been seen, and another begins within the first measurement.
	looks, runs := 0, 0
	Undisturbed(t, querier(func(ctx context.Context, sql string, args ...any) pgx.Row {
		if strings.Contains(sql, "pg_stat_activity") {
			if looks++; looks == 3 {
				end(other)
			}
			if looks > 5 && other != nil {
				end(other)
				other = nil
			}
		}
		return own.QueryRow(ctx, sql, args...)
	}), func() {
		if runs++; runs == 1 {
			other = begin()
		}
	})
	if runs != 2 {
		t.Errorf("measured %d times", runs)
	}
	Alone(t, own)
}

// TestT6_WhatASessionRemembers: a session that looked while somebody held a snapshot keeps dead index entries for good, as long as
// nobody writes; who measures on it does not meet them.
func TestT6_WhatASessionRemembers(t *testing.T) {
	t.Parallel()
	db := New(t)
	conn := Conn(t, db)
	for _, sql := range []string{
		"create table item (id int primary key, n int) with (autovacuum_enabled = off)",
		"insert into item select i, i from generate_series(1, 2000) i",
		"set enable_seqscan = off", "set enable_bitmapscan = off",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select count(*) from item"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "delete from item where id <= 1900"); err != nil {
		t.Fatal(err)
	}
	count := func() (buffers int) {
		for range 2 { // the first marks what is dead
			var plan []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				}
			}
			if err := conn.QueryRow(t.Context(), "explain (analyze, buffers, format json) select n from item where id > 0 order by id limit 1").Scan(&plan); err != nil {
				t.Fatal(err)
			}
			buffers = plan[0].Plan.Hit + plan[0].Plan.Read
		}
		return buffers
	}
	count() // now it remembers that somebody may need them
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got int
	Undisturbed(t, conn, func() { got = count() })
	if got > 12 {
		t.Errorf("%d buffers for one row", got)
	}
}

type querier func(ctx context.Context, sql string, args ...any) pgx.Row

func (q querier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return q(ctx, sql, args...)
}

// TestT5_MemoryIsForWhatNeedNotLast: a server whose commits count, and one for which TMPDIR names a place, is where temporary files are.
func TestT5_MemoryIsForWhatNeedNotLast(t *testing.T) {
	if got := place(Durable); got != os.TempDir() {
		t.Errorf("a durable server would be in %s", got)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if got := place(Fast); got != os.TempDir() {
		t.Errorf("TMPDIR is %s, but the server would be in %s", os.TempDir(), got)
	}
}
