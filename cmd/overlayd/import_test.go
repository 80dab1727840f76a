package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
)

func summaryOf(t *testing.T, stdout string) importSummary {
	t.Helper()
	var s importSummary
	if err := json.Unmarshal([]byte(stdout), &s); err != nil {
		t.Fatalf("summary %q: %v", stdout, err)
	}
	return s
}

func TestL11_ImportIsResumedByRunningItAgain(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, ready := e2e.Dev(t, data, "--sample", "none")
	const n = 600
	lines := rows(t, 21, n)
	file := filepath.Join(t.TempDir(), "groups.ndjson")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}

	// Half of it comes through a pipe that then stalls, and the import is interrupted.
	r, w := io.Pipe()
	defer w.Close() //nolint:errcheck // a pipe
	p := e2e.StartWith(t, e2e.Options{Stdin: r}, "import", "--data", data, "-")
	if _, err := io.WriteString(w, strings.Join(lines[:n/2], "")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "half of the groups are in", func() bool { return feedOf(t, ready).Head == strconv.Itoa(n/2) })
	p.Signal(os.Interrupt)
	// Only then may its input end: an import that has read everything is done, and not interrupted.
	testkit.Eventually(t, "it says what to do", func() bool { return strings.Contains(p.Stderr(), "run the same command again") })
	_ = w.Close() // the test's own copy of stdin ends
	if code := p.Wait(); code != 1 {
		t.Errorf("interrupted: code %d, %s", code, p.Stderr())
	}
	text, _ := p.Line()
	if s := summaryOf(t, text); s.Groups != s.Appended || s.Refused != 0 || s.Groups > n/2 {
		t.Errorf("interrupted: %+v", s)
	}

	got := e2e.Run(t, "import", "--operator", ready.OperatorURL, "--token-file", filepath.Join(data, "operator.token"), file)
	if s := summaryOf(t, got.Stdout); got.Code != 0 || s != (importSummary{Groups: n, Appended: n / 2, Replayed: n / 2}) {
		t.Errorf("resumed: code %d, %+v, %s", got.Code, s, got.Stderr)
	}
	got = e2e.RunWith(t, e2e.Options{Env: []string{"OVERLAYD_OPERATOR_URL=" + ready.OperatorURL, "OVERLAYD_OPERATOR_TOKEN=" + ready.OperatorToken}}, "import", file)
	if s := summaryOf(t, got.Stdout); got.Code != 0 || s != (importSummary{Groups: n, Replayed: n}) {
		t.Errorf("once more: code %d, %+v, %s", got.Code, s, got.Stderr)
	}
	if v := feedOf(t, ready); v.Head != strconv.Itoa(n) || v.Rows != n {
		t.Errorf("the feed holds %+v", v)
	}
	if !strings.Contains(got.Stderr, "groups/s") || strings.Contains(got.Stdout+got.Stderr, ready.OperatorToken) {
		t.Errorf("stderr %s", got.Stderr)
	}
}

func TestImportOutlivesAKilledProvider(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	dev, ready := e2e.Dev(t, data, "--sample", "none")
	const n = 2000
	r, w := io.Pipe()
	p := e2e.StartWith(t, e2e.Options{Stdin: r}, "import", "--data", data, "-")
	go func() {
		var err error
		for i := range n {
			if _, err = io.WriteString(w, change(i)+"\n"); err != nil {
				break
			}
			if i == n/2 { // with groups under way
				dev.Kill()
				dev = e2e.Start(t, "dev", "--data", data)
			}
		}
		w.CloseWithError(err)
	}()
	text, ok := p.Line()
	if !ok {
		t.Fatalf("no summary; stderr %s", p.Stderr())
	}
	if s := summaryOf(t, text); s.Groups != n || s.Appended+s.Replayed != n {
		t.Errorf("summary %+v", s)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d, %s", code, p.Stderr())
	}
	if again := dev.Ready(); again != ready {
		t.Errorf("ready line %+v, was %+v", again, ready)
	}
	if v := feedOf(t, ready); v.Head != strconv.Itoa(n) {
		t.Errorf("head %s of %d", v.Head, n)
	}
}

func TestImportTellsRefusedLines(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	e2e.Dev(t, data, "--sample", "none")
	file := filepath.Join(t.TempDir(), "groups.ndjson")
	text := change(1) + "\n\nnonsense\n" + change(2) + "\n" + strings.Replace(change(1), "test", "other", 1) + "\n" + change(3)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := e2e.Run(t, "import", "--data", data, file)
	if s := summaryOf(t, r.Stdout); r.Code != 1 || s != (importSummary{Groups: 5, Appended: 3, Refused: 2}) {
		t.Errorf("code %d, %+v", r.Code, s)
	}
	for _, want := range []string{"line 3: invalid: ", "line 5: conflict: ", "overlayd: 2 of 5 lines were refused"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, r.Stderr)
		}
	}
	if r := e2e.Run(t, "import", "--data", data, "--feed", "other", file); r.Code != 1 || !strings.Contains(r.Stderr, "there is no feed of this name") {
		t.Errorf("unknown feed: code %d, %s", r.Code, r.Stderr)
	}
	if r := e2e.Run(t, "import", "--data", data, "--token", "0123456789abcdef", file); r.Code != 1 || !strings.Contains(r.Stderr, "send the operator token") {
		t.Errorf("wrong token: code %d, %s", r.Code, r.Stderr)
	}
}
