package sqlitestore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

func open(t testing.TB, dir string) *sqlitestore.Backend {
	t.Helper()
	b, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func instance(t *testing.T) storetest.Instance {
	dir := t.TempDir()
	b := open(t, dir)
	return storetest.Instance{Backend: b, Reopen: func(t *testing.T) reconcile.Backend {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, dir)
		return b
	}}
}

func put(t testing.TB, b reconcile.Backend, pairs ...string) {
	t.Helper()
	err := b.Update(t.Context(), func(reconcile.Reader) (w reconcile.Writes, _ error) {
		for i := 0; i < len(pairs); i += 2 {
			w.Put = append(w.Put, reconcile.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
		}
		return w, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, b reconcile.Backend, key string) (value string) {
	t.Helper()
	err := b.View(t.Context(), func(r reconcile.Reader) error {
		got, err := r.Get(t.Context(), []byte(key))
		if err == nil {
			value = string(got[0])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestR7_SuiteOnSQLite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, instance)
}

func TestQ2_OneWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	if _, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{}); !errors.Is(err, sqlitestore.ErrLocked) {
		t.Fatalf("a second writer: %v", err)
	}
	put(t, b, "a", "1") // the attempt did no harm
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := get(t, open(t, dir), "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}

func TestQ3_InspectBesideAWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := sqlitestore.Inspect(t.Context(), dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("nothing there: %v", err)
	}
	b := open(t, dir)
	put(t, b, "a", "1")
	looker, err := sqlitestore.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer looker.Close()
	err = looker.View(t.Context(), func(r reconcile.Reader) error {
		if got, err := r.Get(t.Context(), []byte("a")); err != nil || string(got[0]) != "1" {
			return fmt.Errorf("%q, %w", got[0], err)
		}
		put(t, b, "a", "2") // the writer does not wait for it
		if got, err := r.Get(t.Context(), []byte("a")); err != nil || string(got[0]) != "1" {
			return fmt.Errorf("the view moved: %q, %w", got[0], err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := get(t, looker, "a"); got != "2" {
		t.Errorf("a is %q", got)
	}
	err = looker.Update(t.Context(), func(reconcile.Reader) (reconcile.Writes, error) {
		t.Error("called")
		return reconcile.Writes{}, nil
	})
	if !errors.Is(err, reconcile.ErrReadOnly) {
		t.Errorf("a reader writes: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := get(t, looker, "a"); got != "2" { // also after the writer has gone
		t.Errorf("a is %q", got)
	}
}

func TestQ4_WhatIsNotOursIsLeftAlone(t *testing.T) {
	t.Parallel()
	damage := func(statement string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			db, err := sql.Open("sqlite", filepath.Join(dir, sqlitestore.File))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    error
	}{
		"newer schema":       {damage("PRAGMA user_version = 2"), reconcile.ErrNewer},
		"another file":       {damage("PRAGMA application_id = 7"), nil},
		"a follower's state": {func(t *testing.T, dir string) { touch(t, filepath.Join(dir, "state.db")) }, sqlitestore.ErrFollower},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			b := open(t, dir)
			put(t, b, "a", "1")
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			test.prepare(t, dir)
			before, err := os.ReadFile(filepath.Join(dir, sqlitestore.File))
			if err != nil {
				t.Fatal(err)
			}
			if b, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{}); err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("opened: %v, %v", b, err)
			}
			if name != "a follower's state" {
				if _, err := sqlitestore.Inspect(t.Context(), dir); err == nil || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("inspected: %v", err)
				}
			}
			after, err := os.ReadFile(filepath.Join(dir, sqlitestore.File))
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was touched: %v", err)
			}
		})
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestQ5_OnlyTheUserReadsIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		return // other means there
	}
	dir := filepath.Join(t.TempDir(), "deep", "wallet")
	b := open(t, dir)
	put(t, b, "a", "1")
	files := 0
	err := filepath.WalkDir(filepath.Dir(dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			files++
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
		return nil
	})
	if err != nil || files < 4 { // database, WAL, its index, lock
		t.Errorf("%d files, %v", files, err)
	}
}

func TestQ6_BulkHoldsWhatIsPointedAt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	long, longer := string(make([]byte, 2000)), string(make([]byte, 9000))
	put(t, b, "a", long, "b", long, "c", long, "d", "short", "e", long)
	put(t, b, "a", "short", "b", longer, "d", long)
	err := b.Update(t.Context(), func(reconcile.Reader) (reconcile.Writes, error) {
		return reconcile.Writes{Delete: [][]byte{[]byte("c"), []byte("never")}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, sqlitestore.File))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var rows, orphans, dangling int
	err = db.QueryRow(`SELECT (SELECT count(*) FROM bulk), (SELECT count(*) FROM bulk WHERE id NOT IN (SELECT bulk FROM kv WHERE bulk IS NOT NULL)),
		(SELECT count(*) FROM kv WHERE bulk IS NOT NULL AND bulk NOT IN (SELECT id FROM bulk))`).Scan(&rows, &orphans, &dangling)
	if err != nil || rows != 3 || orphans != 0 || dangling != 0 {
		t.Errorf("%d rows, %d orphans, %d dangling, %v; want b, d and e", rows, orphans, dangling, err)
	}
}

func TestQ1_CancelledAtTheLastMoment(t *testing.T) {
	t.Parallel()
	b := open(t, t.TempDir())
	put(t, b, "a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	b.AtCommit(cancel, func() {})
	err := b.Update(ctx, func(reconcile.Reader) (reconcile.Writes, error) {
		return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("a"), Value: []byte("2")}}}, nil
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, reconcile.ErrUnknown) {
		t.Errorf("cancelled at the last moment: %v", err)
	}
	b.AtCommit(func() {}, func() {})
	if got := get(t, b, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}
