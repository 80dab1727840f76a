package pgstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

var partition = reconcile.Partition{Application: "shop", Account: "main", Access: "local"}

func open(t testing.TB, pool *pgxpool.Pool) *pgstore.Backend {
	t.Helper()
	b, err := pgstore.Open(t.Context(), pool, pgstore.Options{Partition: partition})
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

// try puts pairs of keys and values.
func try(ctx context.Context, b reconcile.Backend, pairs ...string) error {
	return b.Update(ctx, func(reconcile.Reader) (w reconcile.Writes, _ error) {
		for i := 0; i < len(pairs); i += 2 {
			w.Put = append(w.Put, reconcile.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
		}
		return w, nil
	})
}

func put(t testing.TB, b reconcile.Backend, pairs ...string) {
	t.Helper()
	if err := try(t.Context(), b, pairs...); err != nil {
		t.Fatal(err)
	}
}

func read(ctx context.Context, b reconcile.Backend, key string) (value string, err error) {
	err = b.View(ctx, func(r reconcile.Reader) error {
		got, err := r.Get(ctx, []byte(key))
		if err == nil {
			value = string(got[0])
		}
		return err
	})
	return value, err
}

func get(t testing.TB, b reconcile.Backend, key string) string {
	t.Helper()
	value, err := read(t.Context(), b, key)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// childVariable holds the orders of a writer that is a process of its own.
const childVariable = "OVERLAYD_PGSTORE_TEST_CHILD"

// orders are what a child is to do.
type orders struct {
	URL, Moment string
	At          int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, o.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := pgstore.Open(ctx, pool, pgstore.Options{Partition: partition})
	if err != nil {
		return err
	}
	die := func(moment string) func() {
		n := 0
		return func() {
			if n++; moment == o.Moment && n == o.At {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	b.AtCommit(die(storetest.BeforeCommit), die(storetest.AfterCommit))
	return storetest.CountOn(ctx, b, os.Stdout)
}

func command(t *testing.T, o orders) *exec.Cmd {
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	return cmd
}
