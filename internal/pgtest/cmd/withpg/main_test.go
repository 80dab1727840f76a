package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// selfWord as first argument turns the test binary into withpg.
const selfWord = "as-withpg"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == selfWord {
		os.Args = slices.Delete(os.Args, 1, 2)
		main()
		return
	}
	os.Exit(m.Run())
}

// withpg is a run of the program with a temporary folder of its own, to see what it leaves there.
type withpg struct {
	*exec.Cmd
	temp string
	errs strings.Builder
}

func newWithpg(t *testing.T, env string, args ...string) *withpg {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp("", "withpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &withpg{Cmd: exec.Command(self, append([]string{selfWord}, args...)...), temp: temp}
	w.Env = append(os.Environ(), "TMPDIR="+temp, pgtest.EnvURL+"="+env)
	w.Stderr = &w.errs
	return w
}

// started starts a command that says the URL of its server first.
func (w *withpg) started(t *testing.T) (url string) {
	t.Helper()
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	if url, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the command said nothing: %v %s", err, &w.errs)
	}
	return strings.TrimSpace(url)
}

// nothingLeft fails when withpg left a folder.
func (w *withpg) nothingLeft(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(w.temp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func wantGone(t *testing.T, url string) {
	t.Helper()
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(context.WithoutCancel(t.Context()))
		t.Error("the server still answers")
	}
}

func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func TestRunsWithAServerAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWithpg(t, "", "--", "sh", "-c", `echo "$`+pgtest.EnvURL+`"; exit 7`)
	out, err := w.Output()
	if c := code(t, err); c != 7 {
		t.Errorf("exit code %d, want that of the command, 7: %s", c, &w.errs)
	}
	url := strings.TrimSpace(string(out))
	if !strings.HasPrefix(url, "postgres://") {
		t.Errorf("the command saw %q", url)
	}
	wantGone(t, url)
	w.nothingLeft(t)
}

func TestCommitsAreFlushedWhenAsked(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{"off": nil, "on": {"-durable"}} {
		w := newWithpg(t, "", append(args, "--", "sh", "-c", `echo "$`+pgtest.EnvURL+`"; read line`)...)
		in, err := w.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		url := w.started(t)
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		for _, setting := range []string{"fsync", "full_page_writes"} {
			var is string
			if err := conn.QueryRow(t.Context(), `select current_setting($1)`, setting).Scan(&is); err != nil || is != want {
				t.Errorf("%v: %s is %s, want %s (%v)", args, setting, is, want, err)
			}
		}
		_ = conn.Close(t.Context())
		_ = in.Close()
		_ = w.Wait() // sh tells that there was no line
		w.nothingLeft(t)
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		script string
		want   int
	}{
		{`trap 'exit 5' TERM; echo "$` + pgtest.EnvURL + `"; while :; do sleep 1 & wait; done`, 5},
		{`echo "$` + pgtest.EnvURL + `"; exec sleep 3600`, 128 + int(syscall.SIGTERM)},
	} {
		w := newWithpg(t, "", "sh", "-c", row.script)
		url := w.started(t)
		if err := w.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if c := code(t, w.Wait()); c != row.want {
			t.Errorf("exit code %d, want %d: %s", c, row.want, &w.errs)
		}
		wantGone(t, url)
		w.nothingLeft(t)
	}
}

func TestKilledLeavesNothingEither(t *testing.T) {
	t.Parallel()
	w := newWithpg(t, "", "sh", "-c", `echo "$`+pgtest.EnvURL+`"; exec cat`)
	stdin, err := w.StdinPipe() // the command ends with it, on its own
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the command said nothing: %v", err)
	}
	if err := errors.Join(w.Process.Kill(), stdin.Close()); err != nil {
		t.Fatal(err)
	}
	_ = w.Wait()
	testkit.Eventually(t, "nothing is left behind", func() bool {
		left, err := filepath.Glob(filepath.Join(w.temp, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	})
	wantGone(t, strings.TrimSpace(url))
}

func TestGivenServerIsUsed(t *testing.T) {
	t.Parallel()
	w := newWithpg(t, "postgres://given/", "sh", "-c", `echo "$`+pgtest.EnvURL+`"`)
	out, err := w.Output()
	if err != nil || string(out) != "postgres://given/\n" {
		t.Errorf("the command saw %q: %v", out, err)
	}
	w.nothingLeft(t)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[int][]string{2: {"--"}, 127: {"--", "/nowhere/to/be/found"}} {
		w := newWithpg(t, "postgres://given/", args...)
		if c := code(t, w.Run()); c != want || w.errs.Len() == 0 {
			t.Errorf("%v: exit code %d and %q, want %d", args, c, &w.errs, want)
		}
	}
}
