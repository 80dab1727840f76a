package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

func TestR7_SuiteOnPostgres(t *testing.T) {
	t.Parallel()
	db, partitions := pgtest.NewEmpty(t), new(atomic.Int32)
	storetest.Run(t, func(t *testing.T) storetest.Instance {
		o := pgstore.Options{Partition: reconcile.Partition{Application: "shop", Account: fmt.Sprint(partitions.Add(1)), Access: "local"}}
		make := func(t *testing.T) *pgstore.Backend {
			b, err := pgstore.Open(t.Context(), db.Pool, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			return b
		}
		b := make(t)
		return storetest.Instance{Backend: b, Reopen: func(t *testing.T) reconcile.Backend {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			return make(t)
		}}
	})
}

// TestR7_TwoProcessesOnePartition: two stores with pools of their own, and a
// process beside them, take turns.
func TestR7_TwoProcessesOnePartition(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	storetest.Count(t, 6, 10, open(t, db.Pool), open(t, pgtest.NewPool(t, db)))

	cmd := command(t, orders{URL: db.URL})
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has committed something
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b, ours := open(t, db.Pool), 0
	acknowledged := writer(func() {
		if ours++; ours == 30 {
			cancel()
		}
	})
	if err := storetest.CountOn(ctx, b, acknowledged); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if n := storetest.Counted(t, open(t, db.Pool)); n < 31 {
		t.Errorf("%d steps", n)
	}
}

// writer calls itself for each line.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestR7_KilledAroundCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	storetest.KilledAroundCommit(t, 18,
		func(moment string, at int) *exec.Cmd { return command(t, orders{URL: db.URL, Moment: moment, At: at}) },
		func(t *testing.T) reconcile.Backend {
			b, err := pgstore.Open(t.Context(), db.Pool, pgstore.Options{Partition: partition})
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
}

func TestP1_TheSessionWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	for session, want := range map[string]string{"off": "on", "local": "local", "remote_apply": "remote_apply"} {
		b := open(t, pgtest.NewPool(t, db, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = session }))
		err := b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, err error) {
			var got, isolation string
			err = r.Tx().(pgx.Tx).QueryRow(t.Context(), `select current_setting('synchronous_commit'), current_setting('transaction_isolation')`).Scan(&got, &isolation)
			if got != want || isolation != "read committed" {
				t.Errorf("synchronous_commit %s became %s, %s", session, got, isolation)
			}
			return w, err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestP2_WhatCommitSays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		{fmt.Errorf("commit: %w", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}), true},
		{pgx.ErrTxCommitRollback, true},
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, false},
		{&pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "58030"}, false},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "08006"}, false},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40003"}, false},
		{io.ErrUnexpectedEOF, false},
		{context.DeadlineExceeded, false},
	} {
		if got := pgstore.RolledBack(test.err); got != test.want {
			t.Errorf("%v: rolled back is %v", test.err, got)
		}
	}
	// A deferred constraint speaks at COMMIT: that is an answer.
	db := pgtest.NewEmpty(t)
	b := open(t, db.Pool)
	if _, err := db.Pool.Exec(t.Context(), `create table other (n int unique deferrable initially deferred)`); err != nil {
		t.Fatal(err)
	}
	err := b.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) {
		_, err := r.Tx().(pgx.Tx).Exec(t.Context(), `insert into other values (1), (1)`)
		return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("a")}}}, err
	})
	if err == nil || errors.Is(err, reconcile.ErrUnknown) {
		t.Errorf("refused at COMMIT: %v", err)
	}
}

func TestP4_ASnapshotHasAnEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	b, err := pgstore.Open(t.Context(), db.Pool, pgstore.Options{Partition: partition, SnapshotFor: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	put(t, b, "a", "1")
	err = b.View(t.Context(), func(r reconcile.Reader) error {
		if _, err := r.Get(t.Context(), []byte("a")); err != nil {
			return err
		}
		// The database ends it, though nobody asks for anything.
		testkit.Eventually(t, "the end of the snapshot", func() bool {
			var held int
			err := db.Pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and backend_xmin is not null and pid <> pg_backend_pid()`).Scan(&held)
			return err == nil && held == 0
		})
		_, err := r.Get(t.Context(), []byte("a"))
		return err
	})
	if !errors.Is(err, pgstore.ErrHeld) {
		t.Errorf("after its time: %v", err)
	}
	if got := get(t, b, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}

func TestP5_PlansWalkTheKey(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	b := open(t, db.Pool)
	// Known to be empty: to read it all looks cheapest.
	if _, err := db.Pool.Exec(t.Context(), `vacuum analyze overlay_knowledge`); err != nil {
		t.Fatal(err)
	}
	err := b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
		tx := r.Tx().(pgx.Tx)
		for statement, args := range b.Statements() {
			// As the store does it: a prepared statement, planned once, here on an empty table.
			rows, err := tx.Query(t.Context(), "explain (costs off) "+statement, args...)
			if err != nil {
				return w, err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return w, err
			}
			plan := strings.Join(lines, "\n")
			for _, bad := range []string{"Seq Scan", "Bitmap", "Hash", "Merge", "Sort"} {
				if strings.Contains(plan, bad) {
					t.Errorf("%s\n%s", statement, plan)
					break
				}
			}
			if !strings.Contains(plan, "insert") && !strings.Contains(plan, "Insert") && !strings.Contains(plan, "overlay_knowledge_pkey") {
				t.Errorf("without the key: %s\n%s", statement, plan)
			}
		}
		return w, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestP6_NewerTablesAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	b := open(t, db.Pool)
	put(t, b, "a", "1")
	if _, err := db.Pool.Exec(t.Context(), `update overlay_knowledge_schema set version = 2`); err != nil {
		t.Fatal(err)
	}
	other := pgstore.Options{Partition: reconcile.Partition{Application: "other", Account: "a", Access: "b"}}
	if _, err := pgstore.Open(t.Context(), db.Pool, other); !errors.Is(err, reconcile.ErrNewer) {
		t.Errorf("opened: %v", err)
	}
	if _, err := pgstore.Inspect(t.Context(), db.Pool, pgstore.Options{Partition: partition}); !errors.Is(err, reconcile.ErrNewer) {
		t.Errorf("inspected: %v", err)
	}
	var partitions int
	if err := db.Pool.QueryRow(t.Context(), `select count(*) from overlay_knowledge_partition`).Scan(&partitions); err != nil || partitions != 1 {
		t.Errorf("%d partitions, %v", partitions, err)
	}
}

// TestP6_OpenedAtOnce makes the tables once, and the partition too.
func TestP6_OpenedAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			b, err := pgstore.Open(t.Context(), db.Pool, pgstore.Options{Partition: partition})
			if err != nil {
				t.Error(err)
				return
			}
			if err := try(t.Context(), b, "a", "1"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var versions, partitions int
	err := db.Pool.QueryRow(t.Context(), `select (select count(*) from overlay_knowledge_schema), (select count(*) from overlay_knowledge_partition)`).Scan(&versions, &partitions)
	if err != nil || versions != 1 || partitions != 1 {
		t.Errorf("%d versions, %d partitions, %v", versions, partitions, err)
	}
}

func TestP7_PartitionsDoNotMix(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	var stores []*pgstore.Backend
	for _, access := range []string{"a", "b"} {
		b, err := pgstore.Open(t.Context(), db.Pool, pgstore.Options{Partition: reconcile.Partition{Application: "shop", Account: "main", Access: access}})
		if err != nil {
			t.Fatal(err)
		}
		put(t, b, "k", access, "z"+access, "")
		stores = append(stores, b)
	}
	for i, want := range []string{"a", "b"} {
		err := stores[i].Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
			n := 0
			for e, err := range r.Scan(t.Context(), nil, nil, 0) {
				if n++; err != nil || string(e.Key) != "k" && string(e.Key) != "z"+want {
					t.Errorf("%s reads %q, %v", want, e.Key, err)
				}
			}
			if n != 2 {
				t.Errorf("%s reads %d entries", want, n)
			}
			return reconcile.Writes{Delete: [][]byte{[]byte("za"), []byte("zb")}}, nil
		})
		if err != nil {
			t.Error(err)
		}
		if got := get(t, stores[i], "k"); got != want {
			t.Errorf("%s has %q", want, got)
		}
	}
	// One that waits for its turn does not make the other wait.
	err := stores[0].Update(t.Context(), func(reconcile.Reader) (w reconcile.Writes, err error) {
		return w, try(t.Context(), stores[1], "k", "2")
	})
	if err != nil || get(t, stores[0], "k") != "a" {
		t.Errorf("%v", err)
	}
}

func TestP7_InspectMakesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	o := pgstore.Options{Partition: partition}
	if _, err := pgstore.Inspect(t.Context(), db.Pool, o); !errors.Is(err, pgstore.ErrAbsent) {
		t.Errorf("no tables: %v", err)
	}
	b := open(t, db.Pool)
	put(t, b, "a", "1")
	other := pgstore.Options{Partition: reconcile.Partition{Application: "other"}}
	if _, err := pgstore.Inspect(t.Context(), db.Pool, other); !errors.Is(err, pgstore.ErrAbsent) {
		t.Errorf("no partition: %v", err)
	}
	looker, err := pgstore.Inspect(t.Context(), db.Pool, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, looker, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
	if err := try(t.Context(), looker, "a", "2"); !errors.Is(err, reconcile.ErrReadOnly) {
		t.Errorf("a reader writes: %v", err)
	}
}
