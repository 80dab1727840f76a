package openfence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/openfence"
)

func load(t *testing.T, db *pgtest.DB) *openfence.Fences {
	t.Helper()
	f, err := openfence.Load(t.Context(), db.Pool)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestO15_DigestsAreKeyedAndUnambiguous(t *testing.T) {
	t.Parallel()
	one, other := load(t, pgtest.New(t)), load(t, pgtest.New(t))
	seen := make(map[openfence.Key]string)
	for _, c := range [][3]string{
		{"service", "", "request"}, {"servic", "e", "request"}, {"service", "request", ""}, {"", "service", "request"},
		{"service", "", "requesT"}, {"service\x00", "", "request"}, {"service", "\x00", "request"},
	} {
		key := one.Key(c[0], c[1], c[2])
		if was, ok := seen[key]; ok {
			t.Fatalf("%q and %q share a key", was, c)
		}
		seen[key] = fmt.Sprint(c)
		if key != one.Key(c[0], c[1], c[2]) {
			t.Fatal("a key is not stable")
		}
		if key == other.Key(c[0], c[1], c[2]) {
			t.Fatal("two databases share a key")
		}
	}
}

func TestO2_CompareNamesConflictBeforeSelection(t *testing.T) {
	t.Parallel()
	f := load(t, pgtest.New(t))
	first := f.Entry([]byte(`{"a":1}`), "cap")
	for _, c := range []struct {
		params, selection string
		want              openfence.Verdict
	}{
		{`{"a":1}`, "cap", openfence.Same},
		{`{"a":1}`, "cup", openfence.OtherSelection},
		{`{"a":2}`, "cap", openfence.Conflict},
		{`{"a":2}`, "cup", openfence.Conflict},
	} {
		if got := first.Compare(f.Entry([]byte(c.params), c.selection)); got != c.want {
			t.Errorf("%s under %s: %d, want %d", c.params, c.selection, got, c.want)
		}
	}
}

func TestO5_OneClaimWins(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := load(t, db)
	key, entry := f.Key("s", "", "request"), f.Entry([]byte("{}"), "cap")
	// A claim that is rolled back leaves the key free.
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if won, err := f.Claim(t.Context(), tx, key, entry); err != nil || !won {
		t.Fatalf("%v %v", won, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, found, err := f.Find(t.Context(), db.Pool, key); err != nil || found {
		t.Fatalf("found %v, %v", found, err)
	}
	var wins atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			err := pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error {
				won, err := f.Claim(context.Background(), tx, key, entry)
				if err != nil {
					return err
				}
				if won {
					wins.Add(1)
				}
				// Winner and loser alike see the fence in their next statement.
				got, found, err := f.Find(context.Background(), tx, key)
				if err == nil && (!found || got != entry) {
					err = errors.New("the fence is not there")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 {
		t.Fatalf("%d claims won", wins.Load())
	}
}

func TestO5_NodesAgreeOnOneSecret(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	keys := make([]openfence.Key, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			f, err := openfence.Load(context.Background(), db.Pool)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = f.Key("s", "p", "r")
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Fatal("two nodes hold different secrets")
		}
	}
}
