package main

import (
	"bytes"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// seen is a snapshot that a test writes by hand.
type seen struct {
	reconcile.Snapshot
	at      reconcile.Revision
	sources []reconcile.SourceStatus
	groups  []reconcile.PendingGroup
	outputs map[spend.Outpoint]reconcile.Output
}

func (s *seen) Revision() reconcile.Revision                      { return s.at }
func (s *seen) Context() reconcile.Context                        { return reconcile.Context{ID: "c"} }
func (s *seen) Sources() ([]reconcile.SourceStatus, error)        { return s.sources, nil }
func (s *seen) Output(o spend.Outpoint) (reconcile.Output, error) { return s.outputs[o], nil }

func (s *seen) Outputs(state reconcile.OutputState) iter.Seq2[reconcile.Output, error] {
	return func(yield func(reconcile.Output, error) bool) {
		for _, o := range s.outputs {
			if o.State == state && !yield(o, nil) {
				return
			}
		}
	}
}

func (s *seen) PendingGroups() iter.Seq2[reconcile.PendingGroup, error] {
	return func(yield func(reconcile.PendingGroup, error) bool) {
		for _, g := range s.groups {
			if !yield(g, nil) {
				return
			}
		}
	}
}

// What waits is told once for as long as it waits, at no revision that comes before one that was told, and so is its end
// when no change says it.
func TestR4_R11_PendingIsToldOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	v, names := newLineViewer(&out), twoNames()
	o := spend.Outpoint{TxID: txidOf(0xab)}
	s := &seen{
		at:      reconcile.Revision{Received: 9, Accepted: 5},
		sources: []reconcile.SourceStatus{{ID: 1, Latest: reconcile.Generation{Number: 2, W: 40, Received: true}}, {ID: 2, Latest: reconcile.Generation{Number: 1}}},
		groups: []reconcile.PendingGroup{
			{Source: 1, Generation: 2, ID: "g", Sequence: 41, Reason: "unresolved", Waiting: []spend.Outpoint{{TxID: txidOf(0xcd), Index: 1}}},
			{Source: 1, Generation: 2, ID: "not looked at yet"}, {Source: 1, Generation: 2, ID: "has its facts", Settled: true, Reason: "queue"},
		},
		outputs: map[spend.Outpoint]reconcile.Output{o: {Outpoint: o, State: reconcile.Pending, By: txidOf(0xcd), Sources: []reconcile.SourceID{1}}},
	}
	ab, cd := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	step := func(what string, want ...string) {
		t.Helper()
		if err := v.look(s, names); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if out.Len() == 0 {
			got = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		out.Reset()
	}
	pending := `{"event":"output","outpoint":"` + ab + `.0","state":"pending","by":"` + cd + `","accepted":"5","sources":["https://one.example"]}`
	step("first", `{"event":"store","context":"c","height":"0","received":"9","accepted":"5"}`,
		`{"event":"live","source":"https://one.example","generation":2,"sequence":"40"}`,
		`{"event":"pending","source":"https://one.example","generation":2,"group":"g","sequence":"41","reason":"unresolved","waiting":["`+cd+`.1"]}`)
	step("nothing was told since the last look", pending)
	step("again")
	s.at.Accepted = 6
	s.groups = nil
	s.outputs[o] = reconcile.Output{Outpoint: o, State: reconcile.Current}
	if err := v.event(live.Accepted{Change: reconcile.Change{Revision: reconcile.Revision{Accepted: 5}}}, names); err != nil {
		t.Fatal(err)
	}
	step("a change is still to be told")
	if err := v.event(live.Accepted{Change: reconcile.Change{Revision: reconcile.Revision{Accepted: 6}}}, names); err != nil {
		t.Fatal(err)
	}
	step("no change said it", `{"event":"output","outpoint":"`+ab+`.0","state":"current","was":"pending","accepted":"6","sources":[]}`)
	step("at its end")
}

// A broken pipe ends the run: whoever reads is gone.
func TestFollowReconcile_BrokenOutput(t *testing.T) {
	t.Parallel()
	v := newLineViewer(broken{})
	if err := v.look(&seen{}, twoNames()); !errors.Is(err, errBroken) {
		t.Errorf("a look: %v", err)
	}
	if err := v.event(live.Context{ID: "c"}, twoNames()); !errors.Is(err, errBroken) {
		t.Errorf("an event: %v", err)
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// The sample is proved against the file that dev writes for it, generated or real, into a Postgres database; two accounts
// of one database know nothing of each other, and the table for SQL has every output.
func TestR7_R9_SampleOnPostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	data := filepath.Join(t.TempDir(), "data")
	_, ready := e2e.Dev(t, data, "--sample", "40")
	rows := feedOf(t, ready).Rows
	for _, account := range []string{"main", "other"} {
		r := e2e.Run(t, "follow", "--reconcile", ready.BaseURL, "ls_catalogue", "--headers", filepath.Join(data, headersName), "--store", "postgres",
			"--database", db.URL, "--account", account, "--until-live")
		if r.Code != 0 {
			t.Fatalf("account %s: code %d: %s%s", account, r.Code, r.Stdout, r.Stderr)
		}
		if n := strings.Count(r.Stdout, `"state":"current"`); n < int(rows) {
			t.Errorf("account %s: %d lines of %d rows:\n%s", account, n, rows, r.Stdout)
		}
		if r := e2e.Run(t, "reconcile", "inspect", db.URL, "--account", account, "--check"); r.Code != 0 {
			t.Errorf("inspect of %s: %d %s%s", account, r.Code, r.Stdout, r.Stderr)
		}
	}
	var current, all int64
	if err := db.Pool.QueryRow(t.Context(), `select count(*) filter (where state = 'current'), count(*) from overlay_outputs`).Scan(&current, &all); err != nil {
		t.Fatal(err)
	}
	if current != 2*rows || all != 2*rows {
		t.Errorf("the table has %d outputs, %d of them current, for two accounts of %d", all, current, rows)
	}
}
