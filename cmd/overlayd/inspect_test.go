package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/testvectors"
)

// troubled fills a store with a conflict, a change that waits for a parent, and a claim that was refused.
func troubled(t *testing.T, store reconcile.Store) {
	t.Helper()
	ctx := t.Context()
	transactions, first := map[string]testvectors.Transaction{}, ""
	for c, err := range testvectors.Reconcile() {
		if err != nil {
			t.Fatal(err)
		}
		switch c.Name {
		case "first-seen", "group-is-ready-whole": // a and b exclude each other; c has a parent that never comes
			first = c.Headers[0]
			for name, tx := range c.Transactions {
				if name != "b" || c.Name == "first-seen" {
					transactions[name] = tx
				}
			}
		}
	}
	genesis, err := hex.DecodeString(first)
	if err != nil {
		t.Fatal(err)
	}
	headers, err := verify.NewHeaders(genesis)
	if err != nil {
		t.Fatal(err)
	}
	view, err := headers.Current(ctx)
	if err != nil {
		t.Fatal(err)
	}
	settle := func(m reconcile.Mutation) {
		t.Helper()
		if c, err := reconcile.Settle(ctx, store, m); err != nil || !c.Took() {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	settle(reconcile.ContextChange{Context: reconcile.Context{ID: view.ID(), View: view.Context(), Now: 1_700_000_000}})
	for k, name := range []string{"a", "b", "c", "fund"} {
		id, err := store.Source(ctx, reconcile.SourceKey{Kind: "lookup-live", Base: "https://overlay.example.com", Service: "ls_catalogue", Label: name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Begin(ctx, id, reconcile.Attach{}); err != nil {
			t.Fatal(err)
		}
		raw, err := hex.DecodeString(transactions[name].Raw)
		if err != nil {
			t.Fatal(err)
		}
		o := reconcile.Observation{ID: "o\x1b" + name, Kind: "output", Canonical: []byte("{}"), Effect: reconcile.Present}
		o.BEEF = append([]byte{2, 0, 0xbe, 0xef, 0, 1, 0}, raw...)
		if name == "fund" {
			o.BEEF = o.BEEF[:40] // no evidence at all
		}
		target, err := hex.DecodeString(transactions[name].TxID)
		if err != nil {
			t.Fatal(err)
		}
		o.Target, o.Variant = spend.TxID(target), sha256.Sum256(o.BEEF)
		o.Outpoint.TxID = o.Target
		settle(reconcile.Receive{
			Batch: reconcile.Batch{
				Source: id, Generation: 1, Scope: []byte("{}"), Phase: reconcile.PhaseSnapshot, Complete: true,
				Provenance: reconcile.Provenance{Adapter: "test", Authentication: "configured-transport", ReceivedAt: 1_700_000_000 + uint64(k)},
				Groups:     []reconcile.Group{{ID: "group-" + name, Sequence: 7, Observations: []reconcile.Observation{o}}}, Through: 7, HighWater: 7,
			},
			Plan: []reconcile.Planned{verify.Plan(o.BEEF, o.Target, view, reconcile.Budget{})}, Context: view.ID(),
		})
	}
	jobs, _, err := store.Work(ctx, reconcile.Cursor{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	v := verify.New(verify.Config{})
	for _, j := range jobs {
		e, err := store.Load(ctx, j)
		if err != nil {
			t.Fatal(err)
		}
		if became, err := store.Record(ctx, []reconcile.Result{v.Check(ctx, e)}); err != nil || !became[0].Kept {
			t.Fatalf("%+v, %v", became, err)
		}
	}
	ms, err := store.Settled(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		settle(m)
	}
}

func troubledOptions() reconcile.Options {
	f := storeFlags{account: "main"}
	o := reconcile.Options{Partition: f.partition()}
	for c, err := range testvectors.Reconcile() {
		if err == nil && c.Name == "first-seen" {
			raw, _ := hex.DecodeString(c.Transactions["fund"].Raw)
			o.Roots = []reconcile.Root{{Raw: raw}}
		}
	}
	return o
}

// inspected runs the command and returns what it wrote.
func inspected(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &env{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	if got := run(t.Context(), e, append([]string{"reconcile", "inspect"}, args...)); got != code {
		t.Errorf("code %d, want %d: %s", got, code, errs.String())
	}
	return out.String(), errs.String()
}

// A directory and a database are shown alike, beside the writer that has them open.
func TestInspect_ShowsWhatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := pgtest.NewEmpty(t)
	stores := map[string]func() (reconcile.Backend, error){
		dir: func() (reconcile.Backend, error) { return sqlitestore.Open(t.Context(), dir, sqlitestore.Options{}) },
		db.URL: func() (reconcile.Backend, error) {
			pool, err := pgxpool.New(context.WithoutCancel(t.Context()), db.URL)
			if err != nil {
				return nil, err
			}
			t.Cleanup(pool.Close)
			return pgstore.Open(t.Context(), pool, pgstore.Options{Partition: troubledOptions().Partition})
		},
	}
	for state, open := range stores {
		b, err := open()
		if err != nil {
			t.Fatal(err)
		}
		store, err := reconcile.Open(t.Context(), b, troubledOptions())
		if err != nil {
			t.Fatal(err)
		}
		troubled(t, store)

		text, _ := inspected(t, exitFine, state, "--check")
		for _, want := range []string{
			"outputs current 1 spent 0 pending 0 conflicting 1 unknown ", "sources: 4\n", "waiting groups: 2\n", "waits for evidence", "refused", "not selected: 1\n", "first-seen",
			"refused claims: 1\n", "ended (invalid)", "stale, 1 refused", "differences: 0\n", "2023-11-14T22:13:2",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Error("what a peer wrote reaches the terminal as it is")
		}
		short, _ := inspected(t, exitFine, state, "--limit", "1")
		if !strings.Contains(short, "and 3 more\n") || strings.Contains(short, "differences") {
			t.Errorf("with --limit 1:\n%s", short)
		}

		data, _ := inspected(t, exitFine, state, "--json", "--check")
		var i inspection
		if err := json.Unmarshal([]byte(data), &i); err != nil {
			t.Fatal(err)
		}
		if len(i.Sources) != 4 || len(i.Conflicts) != 1 || len(i.Quarantine) != 1 || len(i.Groups) == 0 || i.Differences == nil || len(i.Differences) != 0 {
			t.Errorf("%s", data)
		}
		if c := i.Conflicts[0]; c.Reason != "first-seen" || c.Other == "" || c.ReadyAt == "" || c.Status != "conflicting" {
			t.Errorf("%+v", c)
		}
		if plain, _ := inspected(t, exitFine, state, "--json"); strings.Contains(plain, "differences") {
			t.Error("differences without --check")
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestInspect_RefusesWithASentence(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "accepts 1 arg"},
		{[]string{filepath.Join(t.TempDir(), "none")}, exitFailed, "open the knowledge"},
		{[]string{t.TempDir(), "--limit", "-1"}, exitUsage, "--limit is -1"},
		{[]string{db.URL}, exitFailed, "knowledge"},
		{[]string{db.URL, "--account", ""}, exitUsage, "--account has 0 bytes"},
		{[]string{"postgres://%zz"}, exitFailed, "not usable"},
	} {
		if out, says := inspected(t, c.code, c.args...); out != "" || !strings.Contains(says, c.says) {
			t.Errorf("%q: %q, stderr %q, want %q in it", fmt.Sprint(c.args), out, says, c.says)
		}
	}
}
