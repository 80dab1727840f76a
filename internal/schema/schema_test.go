package schema_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/schema"
)

// of makes a schema of files: name, text, name, text, ...
func of(t *testing.T, files ...string) schema.Set {
	t.Helper()
	fsys := fstest.MapFS{"sql/README.md": {Data: []byte("not a migration")}}
	for i := 0; i < len(files); i += 2 {
		fsys["sql/"+files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	set, err := schema.Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func value[T any](t *testing.T, conn *pgx.Conn, sql string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func wantVersion(t *testing.T, conn *pgx.Conn, set schema.Set, current, target int32, pending ...string) {
	t.Helper()
	c, g, p, err := set.Status(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, m := range p {
		names = append(names, m.Name)
		if m.Version != c+int32(i)+1 || m.SQL == "" {
			t.Errorf("pending %s is version %d with %d bytes", m.Name, m.Version, len(m.SQL))
		}
	}
	if c != current || g != target || !slices.Equal(names, pending) {
		t.Errorf("status is %d of %d, pending %v; want %d of %d, pending %v", c, g, names, current, target, pending)
	}
}

func TestM1_ManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	// "create table" twice would fail, and so would a second row.
	set := of(t,
		"001_one.sql", "create table one (n int unique); insert into one values (1);",
		"002_two.sql", "select pg_sleep(0.05); create table two (); insert into one values (2);",
		"003_three.sql", "create table three ();")
	var ran atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		conn := pgtest.Conn(t, db)
		group.Go(func() {
			if err := set.Migrate(t.Context(), conn, func(int, string) { ran.Add(1) }); err != nil {
				t.Error(err)
			}
			if err := set.Check(t.Context(), conn); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if ran.Load() != 3 {
		t.Errorf("%d migrations were run, want 3", ran.Load())
	}
	wantVersion(t, pgtest.Conn(t, db), set, 3, 3)
}

func TestM1_GoesOnFromWhereItIs(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	first := of(t, "001_one.sql", "create table one ()")
	second := of(t, "001_one.sql", "create table one ()", "002_two.sql", "-- two\ncreate table two ();\n")
	var ran []string
	note := func(version int, name string) { ran = append(ran, fmt.Sprint(version, " ", name)) }
	for _, set := range []schema.Set{first, first, second, second} {
		if err := set.Migrate(t.Context(), conn, note); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"1 001_one.sql", "2 002_two.sql"}; !slices.Equal(ran, want) {
		t.Errorf("ran %v, want %v", ran, want)
	}
	if err := of(t).Migrate(t.Context(), pgtest.Conn(t, pgtest.NewEmpty(t)), nil); err != nil {
		t.Errorf("nothing to do in an empty database: %v", err)
	}
}

func TestM2_FailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	bad := of(t, "001_one.sql", "create table one ()", "002_two.sql", "create table two (); create table one ();")
	err := bad.Migrate(t.Context(), conn, nil)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Code != "42P07" || !strings.Contains(err.Error(), "002_two.sql") {
		t.Fatalf("the failure does not tell what and where: %v", err)
	}
	if value[bool](t, conn, "select to_regclass('two') is not null") {
		t.Error("half of the failed migration stayed")
	}
	wantVersion(t, conn, bad, 1, 2, "002_two.sql")
	good := of(t, "001_one.sql", "create table one ()", "002_two.sql", "create table two ();")
	if err := good.Migrate(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, conn, good, 2, 2)
	if n := value[int](t, conn, "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"); n != 0 {
		t.Errorf("%d locks are still held", n)
	}
}

// Whoever waits for a migration of somebody else can give up, and whoever is cut short keeps no lock.
func TestM2_CancelledMigrationFreesTheLock(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	slow := of(t, "001_slow.sql", "create table slow (); select pg_sleep(3600);")
	ctx, cancel := context.WithCancel(t.Context())
	conn := pgtest.Conn(t, db)
	if err := slow.Migrate(ctx, conn, func(int, string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	if !conn.IsClosed() {
		t.Error("the connection of a cancelled migration is still open")
	}
	quick := of(t, "001_quick.sql", "create table quick ()")
	next := pgtest.Conn(t, db)
	if err := quick.Migrate(t.Context(), next, nil); err != nil {
		t.Fatal(err)
	}
	if value[bool](t, next, "select to_regclass('slow') is not null") {
		t.Error("the cancelled migration left its table")
	}
}

func TestM3_NewerSchemaRefused(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	newer := of(t, "001_one.sql", "create table one ()", "002_two.sql", "create table two ()")
	older := of(t, "001_one.sql", "create table one ()")
	if err := newer.Migrate(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"check":   older.Check(t.Context(), conn),
		"migrate": older.Migrate(t.Context(), conn, nil),
	} {
		refused, ok := errors.AsType[*schema.NewerError](err)
		if !ok || refused.Current != 2 || refused.Target != 1 || !strings.Contains(err.Error(), "upgrade overlayd") {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantVersion(t, conn, older, 2, 1)
	if err := newer.Check(t.Context(), conn); err != nil {
		t.Errorf("the refused program changed something: %v", err)
	}
}

func TestM4_UnmigratedRefusedWithoutATrace(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	conn := pgtest.Conn(t, db)
	set := of(t, "001_one.sql", "create table one ()", "002_two.sql", "create table two ()")
	refused, ok := errors.AsType[*schema.NotMigratedError](set.Check(t.Context(), conn))
	if !ok || refused.Current != 0 || refused.Target != 2 || !strings.Contains(refused.Error(), "overlayd migrate") {
		t.Errorf("an empty database: %v", refused)
	}
	wantVersion(t, conn, set, 0, 2, "001_one.sql", "002_two.sql")
	if n := value[int](t, conn, "select count(*) from pg_class where relnamespace = 'public'::regnamespace"); n != 0 {
		t.Errorf("looking created %d things", n)
	}

	if err := of(t, "001_one.sql", "create table one ()").Migrate(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	refused, ok = errors.AsType[*schema.NotMigratedError](set.Check(t.Context(), conn))
	if !ok || refused.Current != 1 || !strings.Contains(refused.Error(), "version 1") || !strings.Contains(refused.Error(), "overlayd migrate") {
		t.Errorf("a half migrated database: %v", refused)
	}

	// A role that may only read can look.
	if _, err := conn.Exec(t.Context(), "set default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, conn, set, 1, 2, "002_two.sql")
	for _, sql := range []string{"set default_transaction_read_only = off", "delete from overlayd_schema_version"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Check(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a version table without a version: %v", err)
	}
}

func TestM5_Hash(t *testing.T) {
	t.Parallel()
	base := []string{"001_one.sql", "select 1", "002_two.sql", "select 2"}
	seen := map[string]int{of(t, base...).Hash(): -1}
	for i, change := range [][]string{
		{"001_one.sql", "select 1", "002_two.sql", "select 3"},
		{"001_one.sql", "select 1 ", "002_two.sql", "select 2"},
		{"001_one.sql", "select 1", "002_too.sql", "select 2"},
		{"001_one.sql", "select 1"},
		{"001_one.sql", "select 1", "002_two.sql", "select 2", "003_three.sql", "select 3"},
		{},
	} {
		h := of(t, change...).Hash()
		if other, dup := seen[h]; dup {
			t.Errorf("change %d has the hash of change %d", i, other)
		}
		seen[h] = i
	}
	if _, same := seen[of(t, base...).Hash()]; !same || len(schema.Hash()) != 64 {
		t.Error("the hash is not a stable one of 64 digits")
	}
}

func TestM6_OnlyWellNamedForwardFiles(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"same number":         {"001_a.sql": "select 1", "001_b.sql": "select 1"},
		"no number":           {"first.sql": "select 1"},
		"short number":        {"1_a.sql": "select 1"},
		"number zero":         {"000_a.sql": "select 1"},
		"no name":             {"001.sql": "select 1"},
		"empty":               {"001_a.sql": " \n"},
		"way down":            {"001_a.sql": "select 1\n---- create above / drop below ----\nselect 2"},
		"without transaction": {"001_a.sql": "---- tern: disable-tx ----\nselect 1"},
	} {
		fsys := fstest.MapFS{}
		for f, text := range files {
			fsys["sql/"+f] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := schema.Load(fsys); err == nil || !strings.Contains(err.Error(), slices.Sorted(maps.Keys(files))[0]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := schema.Load(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the folder: %v", err)
	}
	// Text that a template engine would choke on is passed through.
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	if err := of(t, "001_a.sql", "create table a as select '{{1,2},{3,4}}'::int[] as v").Migrate(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}

	compiled, err := schema.Load(schema.Files())
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range compiled.Names() {
		if !strings.HasPrefix(name, fmt.Sprintf("%03d_", i+1)) {
			t.Errorf("%s is number %d in the row", name, i+1)
		}
	}
}

// The schema this program carries can be applied, and twice is as once.
func TestSchemaOfThisProgram(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	current, target, pending, err := schema.Status(t.Context(), conn)
	if err != nil || current != 0 || int(target) != len(pending) {
		t.Fatalf("status of an empty database: %d, %d, %d pending, %v", current, target, len(pending), err)
	}
	for range 2 {
		if err := schema.Migrate(t.Context(), conn, nil); err != nil {
			t.Fatal(err)
		}
		if err := schema.Check(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
	}
	migrated := pgtest.New(t)
	if err := schema.Check(t.Context(), pgtest.Conn(t, migrated)); err != nil {
		t.Errorf("the template of the tests: %v", err)
	}
}
