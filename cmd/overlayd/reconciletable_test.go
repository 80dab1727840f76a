package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
)

var updateTable = flag.Bool("update-table", false, "write the drawn tables of the tests anew")

// drawn is a table on a screen of that size.
func drawn(t *testing.T, width, height int) (*tableViewer, *bytes.Buffer, *tableFrame) {
	t.Helper()
	var out bytes.Buffer
	v := &tableViewer{
		out: &out, size: func() (int, int) { return width, height }, notes: &notes{}, title: "overlayd follow --reconcile ls", noChain: true,
		sources: map[string]*sourceLive{},
	}
	names := twoNames()
	one := live.Origin{ID: 1, Key: reconcile.SourceKey{Base: "https://one.example", Service: "ls"}}
	third := live.Origin{Key: reconcile.SourceKey{Base: "https://three.example/a/very/long/path/that/has/no/room", Service: "ls"}}
	var changes []reconcile.OutputChange
	for i := range byte(24) {
		changes = append(changes, reconcile.OutputChange{Outpoint: spend.Outpoint{TxID: txidOf(i), Index: uint32(i)}, State: reconcile.Current})
	}
	changes = append(changes,
		reconcile.OutputChange{Outpoint: spend.Outpoint{TxID: txidOf(20), Index: 20}, State: reconcile.Spent, By: txidOf(0xcd)},
		reconcile.OutputChange{Outpoint: spend.Outpoint{TxID: txidOf(0xee), Index: 4294967295}, State: reconcile.Conflicting, By: txidOf(0xcd)})
	for _, e := range []live.Event{
		live.Received{Source: one, Generation: 1, Phase: reconcile.PhaseLive, Through: 40, HighWater: 41},
		live.Waiting{Source: third, Err: errors.New("dial \x1b[31mred\nline")},
		live.Accepted{Change: reconcile.Change{Outputs: changes}},
	} {
		if err := v.event(e, names); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = v.notes.Write([]byte("first\nheader file not believed\n"))
	f := &tableFrame{
		revision: reconcile.Revision{Received: 13, Accepted: 41},
		context:  reconcile.Context{View: reconcile.ChainView{TipHeight: 905906}},
		counts: reconcile.Counts{Outputs: map[reconcile.OutputState]uint64{
			reconcile.Current: 40, reconcile.Spent: 18, reconcile.Pending: 3, reconcile.Conflicting: 2, reconcile.Unknown: 1,
		}},
		sources: []reconcile.SourceStatus{
			{ID: 1, Active: 1, Latest: reconcile.Generation{Number: 1, State: reconcile.Active, Through: 39, Received: true, Pending: reconcile.PendingCount{Groups: 2}}, Limited: true},
			{ID: 2, Active: 3, Stale: true, Quarantined: 1, Latest: reconcile.Generation{
				Number: 3, State: reconcile.Active, Through: 7, Received: true, Ending: &reconcile.Ending{Code: string(client.CodeExpired)},
			}},
		},
	}
	return v, &out, f
}

// The table has sources with their troubles, counts, and the outputs that changed last, the newest first.
func TestR2_R5_TableIsDrawn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		width, height int
	}{{"table-80.txt", 80, 100}, {"table-160.txt", 160, 100}} {
		v, out, f := drawn(t, c.width, c.height)
		if err := v.draw(v.lines(f, twoNames())); err != nil {
			t.Fatal(err)
		}
		got, ok := strings.CutPrefix(out.String(), "\r\x1b[J")
		if !ok || strings.ContainsRune(got, '\x1b') {
			t.Errorf("%s: the screen is steered by %q", c.name, out.String())
		}
		for line := range strings.Lines(got) {
			if len(line)-1 > c.width {
				t.Errorf("%s: a line of %d columns", c.name, len(line)-1)
			}
		}
		path := filepath.Join("testdata", c.name)
		if *updateTable {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, want)
		}
	}
}

// A second drawing takes the place of the first, and none is longer than the screen.
func TestFollowReconcile_TableIsRedrawnInPlace(t *testing.T) {
	t.Parallel()
	v, out, f := drawn(t, 80, 12)
	lines := v.lines(f, twoNames())
	if err := v.draw(lines); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 11 {
		t.Errorf("%d lines on a screen of 12", n)
	}
	out.Reset()
	if err := v.draw(lines[:3]); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[11A\r\x1b[J"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("redrawn with %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := v.draw(lines[:3]); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[3A\r\x1b[J"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("redrawn with %q, want %q", out.String(), want)
	}
}
