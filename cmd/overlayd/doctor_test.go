package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/doctor"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/testkit"
)

// findingsOf reads what doctor printed, one object a line.
func findingsOf(t *testing.T, r e2e.Result) map[string]doctor.Finding {
	t.Helper()
	found := map[string]doctor.Finding{}
	for line := range strings.Lines(r.Stdout) {
		var f doctor.Finding
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil || f.Check == "" || f.Found == "" || (f.Do == "") != (f.Verdict == doctor.OK) {
			t.Fatalf("line %q: %v", line, err)
		}
		found[f.Check] = f
	}
	return found
}

func TestDoctor_FailsWithWhatToDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  []string
		code int
		says string
	}{
		"usage":       {args: []string{"--nope"}, code: exitUsage, says: "unknown flag"},
		"no nodes":    {args: []string{"--nodes", "0"}, code: exitUsage, says: "give 1 or more"},
		"no time":     {args: []string{"--timeout", "0s"}, code: exitUsage, says: "--timeout is 0s"},
		"an argument": {args: []string{"me"}, code: exitUsage, says: "unknown command"},
		"no file":     {args: []string{"--config", "none.yaml"}, code: exitFailed, says: "does not exist"},
		"nothing":     {code: exitFailed, says: "checks failed"},
		"no database": {env: []string{"OVERLAYD_DATABASE_URL=postgres://u:hush@127.0.0.1:1/x"}, args: []string{"--json"}, code: exitFailed, says: "checks failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := e2e.RunWith(t, e2e.Options{Env: c.env, Dir: t.TempDir()}, append([]string{"doctor"}, c.args...)...)
			if r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("code %d, want %d: %s", r.Code, c.code, r.Stderr)
			}
			if strings.Contains(r.Stdout+r.Stderr, "hush") {
				t.Errorf("a password: %s%s", r.Stdout, r.Stderr)
			}
			if c.says != "checks failed" {
				return
			}
			found := findingsOf(t, r)
			for _, check := range []string{"configuration", "identity", "operator.token", "database.connection"} {
				if found[check].Verdict != doctor.Failure {
					t.Errorf("%s: %+v", check, found[check])
				}
			}
		})
	}
}

// A provider that runs, on a server that keeps what it is told, is well: nothing fails, and what is only a
// warning here is known.
func TestDoctor_OfAProviderThatRuns(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(testkit.OpenFolder(t), "pg")
	server, err := localpg.Start(t.Context(), localpg.Options{Data: folder, MaxConnections: 120})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := contextOf(t)
		if err := errors.Join(server.Stop(ctx), localpg.Remove(ctx, folder)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	options, at := served(t, server.URL(), setup{more: "stateFile: feeds.state\nquotas: {waiters: 100}"})
	if r := e2e.RunWith(t, options, "doctor", "--timeout", "1m"); r.Code != exitFailed || findingsOf(t, r)["migrations"].Verdict != doctor.Failure || !strings.Contains(r.Stderr, "checks failed") {
		t.Errorf("before a migration: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := e2e.RunWith(t, options, "migrate"); r.Code != exitFine {
		t.Fatal(r.Stderr)
	}
	e2e.StartWith(t, options, "serve")
	ready(t, at)
	r := e2e.RunWith(t, options, "doctor", "--timeout", "1m")
	if r.Code != exitFine || r.Stderr != "" {
		t.Errorf("code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	found := findingsOf(t, r)
	for check, want := range map[string]doctor.Verdict{
		"configuration": doctor.Warning, // localDevelopment
		"identity":      doctor.OK, "operator.token": doctor.OK, "operator.listen": doctor.OK, "stateFile": doctor.OK, "tls": doctor.OK, "proxy": doctor.OK,
		"public": doctor.OK, "database.role": doctor.OK, "database.durability": doctor.OK, "database.pooler": doctor.OK, "clock": doctor.OK,
		"database.settings": doctor.OK, "database.timeouts": doctor.OK, "migrations": doctor.OK, "database.autovacuum": doctor.OK,
		"sessions": doctor.OK, "database.connections": doctor.OK,
	} {
		if found[check].Verdict != want {
			t.Errorf("%s is not %s: %+v", check, want, found[check])
		}
	}
	if !strings.Contains(found["identity"].Found, "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798") {
		t.Errorf("%+v", found["identity"])
	}
	// Another identity than the one that answers, and a key that others may read.
	key := filepath.Join(options.Dir, "identity.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0", 63)+"2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := findingsOf(t, e2e.RunWith(t, options, "doctor"))["public"]; f.Verdict != doctor.Failure || !strings.Contains(f.Found, "identity") {
		t.Errorf("%+v", f)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	found = findingsOf(t, e2e.RunWith(t, options, "doctor", "--offline"))
	if f := found["identity"]; f.Verdict != doctor.Failure || !strings.Contains(f.Found, "chmod 600") {
		t.Errorf("%+v", f)
	}
	if f, made := found["public"]; made {
		t.Errorf("--offline asked: %+v", f)
	}
}

func TestDoctor_TableOnATerminal(t *testing.T) {
	t.Parallel()
	got := findingsTable([]doctor.Finding{
		{Check: "clock", Verdict: doctor.OK, Found: "it goes right"},
		{Check: "database.role", Verdict: doctor.Failure, Found: "a standby \x1b[31m", Do: "name the primary"},
	})
	want := "ok       clock          it goes right\n" +
		"failure  database.role  a standby ?[31m\n" +
		"                        -> name the primary\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
