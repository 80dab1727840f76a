package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
)

func TestFollowReconcile_RefusesWithASentence(t *testing.T) {
	t.Parallel()
	plain := t.TempDir()
	state, err := sqlitestate.Open(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Close(); err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(files, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const here, there = "http://127.0.0.1:1", "http://127.0.0.1:2"
	root := strings.Repeat("ab", 32)
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no service", []string{here}, exitUsage, "requires at least 2 arg"},
		{"the service first", []string{"ls", here, there}, exitUsage, "the service comes last"},
		{"one twice", []string{here, there, here, "ls"}, exitUsage, here + " is there twice"},
		{"unknown policy", []string{here, "ls", "--on-reset", "maybe"}, exitUsage, "use reopen or stop"},
		{"batches", []string{here, "ls", "--max-batches", "1"}, exitUsage, "use --until-live"},
		{"too few identities", []string{here, there, "ls", "--expect-identity", "02"}, exitUsage, "1 times for 2 URLs"},
		{"two chains", []string{here, "ls", "--headers", "a", "--roots", "b"}, exitUsage, "give one of them"},
		{"checkpoint of nothing", []string{here, "ls", "--checkpoint", "1:" + root}, exitUsage, "--headers, which is missing"},
		{"no checkpoint", []string{here, "ls", "--headers", "a", "--checkpoint", "1:abc"}, exitUsage, "write HEIGHT:HASH"},
		{"unknown store", []string{here, "ls", "--store", "paper"}, exitUsage, "use sqlite or postgres"},
		{"no database", []string{here, "ls", "--store", "postgres"}, exitUsage, "needs --database"},
		{"state and database", []string{here, "ls", "--store", "postgres", "--database", "postgres://x/y", "--state", "z"}, exitUsage, "--state is a directory"},
		{"database of no store", []string{here, "ls", "--database", "postgres://x/y"}, exitUsage, "needs --store postgres"},
		{"no account", []string{here, "ls", "--account", ""}, exitUsage, "--account has 0 bytes"},
		{"no headers there", []string{here, "ls", "--headers", filepath.Join(files, "none")}, exitFailed, "no such file"},
		{"broken headers", []string{here, "ls", "--headers", file("headers", strings.Repeat("x", 80))}, exitFailed, "--headers"},
		{"no roots there", []string{here, "ls", "--roots", filepath.Join(files, "none")}, exitFailed, "--roots cannot be opened"},
		{"broken roots", []string{here, "ls", "--roots", file("roots", "{}\n")}, exitFailed, "line 1 is not"},
		{"database away", []string{here, "ls", "--store", "postgres", "--database", "postgres://u:hush@127.0.0.1:1/x"}, exitFailed, "cannot be reached"},
		{"another kind of state", []string{here, "ls", "--state", plain}, exitFailed, "does not reconcile"},
		{"query", []string{here, "ls", "--query", "{"}, exitFailed, "the query is not acceptable JSON"},
		{"plain http elsewhere", []string{"http://example.com", "ls"}, exitFailed, "use https"},
		{"nobody there", []string{here, "ls", "--retry-for", "1ms"}, exitFailed, "no verified answer came"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			e := &env{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
			if code := run(t.Context(), e, append([]string{"follow", "--reconcile"}, c.args...)); code != c.code {
				t.Errorf("code %d, want %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stderr is %q, want %q in it", stderr.String(), c.says)
			}
			if strings.Contains(stderr.String(), "hush") {
				t.Errorf("a password on stderr: %s", stderr.String())
			}
		})
	}
	var stderr bytes.Buffer
	e := &env{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &stderr}
	for _, name := range reconcileNames {
		stderr.Reset()
		flag := "--" + name + "=x"
		if name == "non-final" {
			flag = "--non-final"
		}
		if code := run(t.Context(), e, []string{"follow", here, "ls", flag}); code != exitUsage || !strings.Contains(stderr.String(), "--"+name+" is for follow --reconcile") {
			t.Errorf("%s without --reconcile: %d %s", flag, code, stderr.String())
		}
	}
}

// names of two sources: one of this run's service, one of another.
func twoNames() sourceNames {
	n := sourceNames{service: "ls", names: map[reconcile.SourceID]string{}}
	n.names[1] = n.key(reconcile.SourceKey{Base: "https://one.example", Service: "ls"})
	n.names[2] = n.key(reconcile.SourceKey{Base: "https://two.example", Service: "other"})
	return n
}

func txidOf(b byte) (id spend.TxID) {
	for i := range id {
		id[i] = b
	}
	return id
}

func TestFollowReconcile_Lines(t *testing.T) {
	t.Parallel()
	ab, cd := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	origin := live.Origin{ID: 1, Key: reconcile.SourceKey{Base: "https://one.example", Service: "ls"}}
	at := reconcile.Revision{Received: 13, Accepted: 41}
	output := func(s reconcile.OutputState, was reconcile.OutputState, sources ...reconcile.SourceID) live.Accepted {
		return live.Accepted{Change: reconcile.Change{Revision: at, Kind: "accept", Outputs: []reconcile.OutputChange{{
			Outpoint: spend.Outpoint{TxID: txidOf(0xab), Index: 7}, State: s, Was: was, By: txidOf(0xcd), Sources: sources,
		}}}}
	}
	for _, c := range []struct {
		event live.Event
		want  string
	}{
		{live.Received{Source: origin, Generation: 1, Phase: reconcile.PhaseSnapshot, Groups: 12, Through: 40, HighWater: 41, Revision: at},
			`{"event":"source","source":"https://one.example","generation":1,"phase":"snapshot","groups":12,"sequence":"40","highWater":"41","received":"13"}`},
		{live.Received{Source: origin, Generation: 1, Phase: reconcile.PhaseLive, Through: 40, HighWater: 41, Revision: at}, ""},
		{output(reconcile.Spent, reconcile.Current, 1, 2),
			`{"event":"output","outpoint":"` + ab + `.7","state":"spent","was":"current","by":"` + cd + `","accepted":"41","sources":["https://one.example","https://two.example other"]}`},
		{output(reconcile.Current, ""), `{"event":"output","outpoint":"` + ab + `.7","state":"current","accepted":"41","sources":[]}`},
		{output(reconcile.Pending, reconcile.Current, 1),
			`{"event":"output","outpoint":"` + ab + `.7","state":"pending","was":"current","by":"` + cd + `","accepted":"41","sources":["https://one.example"]}`},
		{output(reconcile.Conflicting, reconcile.Current, 1), `{"event":"output","outpoint":"` + ab + `.7","state":"conflicting","was":"current","accepted":"41","sources":["https://one.example"]}`},
		{live.Accepted{Change: reconcile.Change{Revision: at, Transactions: []reconcile.TxChange{
			{ID: txidOf(0xab), Status: spend.Conflicting, Reason: spend.FirstSeen, Other: txidOf(0xcd)}, {ID: txidOf(0xcd), Status: spend.SelectedFinal},
		}}}, `{"event":"conflict","txid":"` + ab + `","state":"conflicting","by":"` + cd + `","accepted":"41","reason":"first-seen"}`},
		{live.SourceReset{Source: origin, Generation: 1, Code: client.CodeExpired, Reason: "r <&>"}, `{"event":"reset","source":"https://one.example","generation":1,"code":"expired","reason":"r <&>"}`},
		{live.Quarantined{Source: origin, Generation: 1, Reason: "r"}, `{"event":"quarantined","source":"https://one.example","generation":1,"reason":"r"}`},
		{live.SourceStale{Source: origin, Err: errors.New("r")}, `{"event":"stopped","source":"https://one.example","reason":"r"}`},
		{live.Context{ID: "c", Height: 905906}, `{"event":"context","context":"c","height":"905906"}`},
		{live.Waiting{Source: origin, Err: errors.New("busy"), For: 480 * time.Millisecond}, `{"event":"waiting","source":"https://one.example","reason":"busy","retryInMs":480}`},
		{live.Waiting{Err: errors.New("no chain")}, `{"event":"waiting","reason":"no chain","retryInMs":0}`},
		{live.Lagging{Projector: "outputs", Accepted: 41, Err: errors.New("r")}, `{"event":"lagging","accepted":"41","reason":"r"}`},
	} {
		var out bytes.Buffer
		if err := newLineViewer(&out).event(c.event, twoNames()); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != c.want {
			t.Errorf("%T:\n%s\nwant\n%s", c.event, got, c.want)
		}
	}
}

// Roots are heights and hashes, and nothing is guessed about heights without one.
func TestR9_RootsAreReadStrictly(t *testing.T) {
	t.Parallel()
	one, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	line := func(height, root string) string {
		return `{"height":` + height + `,"merkleRoot":"` + root + `"}` + "\n"
	}
	r, err := readRoots(strings.NewReader(line("5", one) + "\n" + line("9", other) + line("5", one)))
	if err != nil {
		t.Fatal(err)
	}
	a, b := txidOf(0xab), txidOf(0xcd)
	if root, ok := r.Root(5); !ok || root != a || r.Context().TipHeight != 9 {
		t.Errorf("height 5 has %x, %t; the tip is %d", root, ok, r.Context().TipHeight)
	}
	if _, ok := r.Root(6); ok || !r.Known(6, a) || !r.Known(5, a) || r.Known(5, b) {
		t.Error("a height without a line is not told from one with another root")
	}
	if same, err := readRoots(strings.NewReader(line("5", one))); err != nil || same.ID() == r.ID() {
		t.Errorf("another file has the same id: %v", err)
	}
	for name, text := range map[string]string{
		"nothing": "\n", "no JSON": "x\n", "no height": `{"merkleRoot":"` + one + `"}`, "no root": `{"height":5}`, "short root": line("5", one[:62]),
		"long root": line("5", one+"00"), "negative": line("-1", one), "too high": line("4294967296", one), "two roots": line("5", one) + line("5", other),
	} {
		if _, err := readRoots(strings.NewReader(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
