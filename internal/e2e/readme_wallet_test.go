package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// TestReadmeWallet compiles the README's program for wallet backends and runs it against two providers of one chain: it
// tells of every row of both, proved, survives kill -9, and an interrupt is its end.
func TestReadmeWallet(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, program, found := strings.Cut(string(readme), "<!-- wallet -->\n```go\n")
	program, _, ended := strings.Cut(program, "```\n")
	if !found || !ended {
		t.Fatal("the README has no program for wallet backends: a line <!-- wallet --> stands before its ```go")
	}
	if n := strings.Count(program, "\n"); n >= 40 {
		t.Errorf("the README's program has %d lines; it is to be shorter than 40", n)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	build.Dir = root // the module that its imports are of
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the README's program does not compile: %v\n%s", err, out)
	}

	_, one := Dev(t, filepath.Join(dir, "one"), "--sample", "60")
	_, two := Dev(t, filepath.Join(dir, "two"), "--sample", "60")
	rows := rowsOf(t, one)
	if other := rowsOf(t, two); rows == 0 || other != rows {
		t.Fatalf("one provider lists %d rows, the other %d", rows, other)
	}
	start := func() (cmd *exec.Cmd, lines *bufio.Scanner) {
		cmd = exec.CommandContext(t.Context(), binary, filepath.Join(dir, "one", "headers.bin"), one.BaseURL, two.BaseURL)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, environment(nil), stopTimeout
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		guard := time.AfterFunc(lineTimeout, func() { _ = cmd.Process.Kill() })
		t.Cleanup(func() {
			guard.Stop()
			_ = cmd.Process.Kill()
		})
		return cmd, bufio.NewScanner(stdout)
	}
	cmd, lines := start()
	if !lines.Scan() {
		t.Fatal("the program says nothing")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	both := map[string]bool{}
	read := func(lines *bufio.Scanner) {
		for len(both) < rows && lines.Scan() {
			if outpoint, ok := strings.CutSuffix(lines.Text(), " current listed by 2"); ok {
				both[outpoint] = true
			}
		}
	}
	read(lines) // what it had told by then is not told again
	_ = cmd.Wait()
	cmd, lines = start()
	read(lines)
	if len(both) < rows {
		t.Errorf("%d of %d rows were told as current and listed by both", len(both), rows)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err != nil || last != "stopped: interrupt signal received <nil>" && last != "stopped: context canceled <nil>" {
		t.Errorf("it ended with %v and %q", err, last)
	}
	kept, listed := states(t, filepath.Join(dir, "wallet"))
	if len(kept) != rows {
		t.Errorf("%d outputs are kept of %d", len(kept), rows)
	}
	for o, state := range kept {
		if state != reconcile.Current || listed[o] != 2 {
			t.Errorf("%s is %s, listed by %d", o, state, listed[o])
		}
	}
}

// rowsOf is how many rows a provider of dev lists.
func rowsOf(t *testing.T, ready Ready) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ready.OperatorURL+"/operator/v1/feeds/catalogue", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+ready.OperatorToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	var v struct{ Rows int }
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %v", res.StatusCode, err)
	}
	return v.Rows
}
