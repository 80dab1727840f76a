package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
)

func TestO12_ServeKeepsAStateFileOrSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	const lacks, lost, other = "stateFile is not set", "lost history", "is it the right database"
	with, at := served(t, pgtest.New(t).URL, setup{more: "stateFile: feeds.state"})
	file := filepath.Join(with.Dir, "feeds.state")
	run := func(o e2e.Options) (log string) {
		t.Helper()
		p := e2e.StartWith(t, o, "serve")
		ready(t, at)
		if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
			t.Fatal(body)
		}
		if code := p.Interrupt(); code != 0 {
			t.Fatalf("exit code %d; stderr\n%s", code, p.Stderr())
		}
		return p.Stderr()
	}
	if log := run(with); strings.Contains(log, lacks) || strings.Contains(log, lost) {
		t.Errorf("with a state file:\n%s", log)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the state file: %v, %v", info, err)
	}
	good, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(good), "catalogue") || strings.Contains(string(good), at.OperatorToken) {
		t.Fatalf("the state file holds %s, %v", good, err)
	}
	if log := run(with); strings.Contains(log, lost) {
		t.Errorf("the second start:\n%s", log)
	}

	without := with
	if err := os.WriteFile(filepath.Join(with.Dir, "bare.yaml"), bare(t, with.Dir), 0o600); err != nil {
		t.Fatal(err)
	}
	without.Env = []string{"OVERLAYD_CONFIG=bare.yaml", with.Env[1]}
	if log := run(without); strings.Count(log, lacks) != 1 {
		t.Errorf("without a state file:\n%s", log)
	}

	// Another database behind the same file is not taken for this one.
	elsewhere := with
	elsewhere.Env = []string{with.Env[0], "OVERLAYD_DATABASE_URL=" + pgtest.New(t).URL}
	if log := run(elsewhere); !strings.Contains(log, other) {
		t.Errorf("another database:\n%s", log)
	}

	for name, damage := range map[string]func() error{
		"half of it": func() error { return os.WriteFile(file, good[:len(good)/2], 0o600) },
		"nothing":    func() error { return os.WriteFile(file, nil, 0o600) },
		"a later version": func() error {
			return os.WriteFile(file, []byte(strings.Replace(string(good), `"version":1`, `"version":2`, 1)), 0o600)
		},
		"a folder": func() error { return os.Mkdir(file, 0o700) },
	} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		r := e2e.RunWith(t, with, "serve")
		if r.Code != 1 || !strings.HasPrefix(r.Stderr, "overlayd: ") || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "feeds.state") ||
			!strings.Contains(r.Stderr, "remove it") {
			t.Errorf("%s: code %d, %s", name, r.Code, r.Stderr)
		}
	}
	nowhere := with
	nowhere.Env = append([]string{"OVERLAYD_STATEFILE=no/such/folder/feeds.state"}, with.Env...)
	if r := e2e.RunWith(t, nowhere, "serve"); r.Code != 1 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "no/such/folder") {
		t.Errorf("no such folder: code %d, %s", r.Code, r.Stderr)
	}
}

// bare is the configuration without its state file.
func bare(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "overlayd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.Replace(string(text), "stateFile: feeds.state", "", 1))
}
