package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of waiting: they only end what has gone wrong.
const (
	lineTimeout = 90 * time.Second
	stopTimeout = 45 * time.Second
)

// Options say how a process is started. The zero value is ready.
type Options struct {
	// Dir is the working folder; empty means the test's own.
	Dir string
	// Env holds OVERLAYD_* variables and others, NAME=value.
	Env []string
	// Stdin is given to the process; nil means none.
	Stdin io.Reader
}

// Process is a running overlayd.
type Process struct {
	t     T
	cmd   *exec.Cmd
	lines chan string   // of stdout; closed at its end
	ended chan struct{} // closed when the process has ended
	err   error         // of Wait; valid once ended

	mu     sync.Mutex
	stderr bytes.Buffer // guarded by mu
}

// Start runs overlayd with args until the test ends (E1).
func Start(t T, args ...string) *Process {
	t.Helper()
	return StartWith(t, Options{}, args...)
}

// StartWith is Start with options.
func StartWith(t T, o Options, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(Binary(t), args...), lines: make(chan string, 1<<16), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdin = o.Dir, environment(o.Env), o.Stdin
	p.cmd.Stderr = writerFunc(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.stderr.Write(b)
	})
	p.cmd.WaitDelay = stopTimeout
	// A reader of our own instead of StdoutPipe, which Wait would close too early.
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatalf("%v", err)
	}
	p.cmd.Stdout = in
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting overlayd %s: %v", strings.Join(args, " "), err)
	}
	_ = in.Close()
	go func() {
		defer close(p.lines)
		defer out.Close() //nolint:errcheck // a pipe
		s := bufio.NewScanner(out)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			p.lines <- s.Text()
		}
	}()
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Signal(os.Interrupt)
		select {
		case <-p.ended:
		case <-time.After(stopTimeout):
			p.Kill()
		}
		if t.Failed() {
			t.Logf("stderr of overlayd %s:\n%s", strings.Join(args, " "), p.Stderr())
		}
	})
	return p
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stderr is what was written to stderr so far.
func (p *Process) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// Line is the next line of stdout; ok is false at its end.
func (p *Process) Line() (text string, ok bool) {
	p.t.Helper()
	select {
	case text, ok = <-p.lines:
		return text, ok
	case <-time.After(lineTimeout):
		p.t.Fatalf("no line on stdout within %s; stderr:\n%s", lineTimeout, p.Stderr())
		return "", false
	}
}

// Wait returns the exit code; -1 when a signal ended the process.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(lineTimeout):
		p.t.Fatalf("overlayd did not end within %s; stderr:\n%s", lineTimeout, p.Stderr())
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		return exit.ExitCode()
	}
	if p.err != nil {
		p.t.Fatalf("waiting for overlayd: %v", p.err)
	}
	return 0
}

// Kill ends the process as kill -9 does and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Interrupt asks the process to stop, as Ctrl-C does, and returns its exit code.
func (p *Process) Interrupt() int {
	p.t.Helper()
	p.Signal(os.Interrupt)
	return p.Wait()
}

// Signal sends a signal; to a process that has ended it does nothing.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Result is what a finished process left.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs overlayd to its end.
func Run(t T, args ...string) Result {
	t.Helper()
	return RunWith(t, Options{}, args...)
}

// RunWith is Run with options.
func RunWith(t T, o Options, args ...string) Result {
	t.Helper()
	p := StartWith(t, o, args...)
	var out strings.Builder
	for {
		text, ok := p.Line()
		if !ok {
			break
		}
		out.WriteString(text + "\n")
	}
	code := p.Wait()
	return Result{Code: code, Stdout: out.String(), Stderr: p.Stderr()}
}

// Ready is the ready line of `overlayd dev`.
type Ready struct {
	Ready                                                      bool
	BaseURL, OperatorURL, OperatorToken, Identity, DatabaseURL string
}

// Dev starts `overlayd dev` on free ports with data as its folder, and returns
// when it is ready. More arguments follow those and may override them.
func Dev(t T, data string, args ...string) (*Process, Ready) {
	t.Helper()
	p := Start(t, append([]string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0"}, args...)...)
	return p, p.Ready()
}

// Ready waits for the ready line.
func (p *Process) Ready() Ready {
	p.t.Helper()
	text, ok := p.Line()
	if !ok {
		p.t.Fatalf("overlayd ended (%d) without being ready; stderr:\n%s", p.Wait(), p.Stderr())
	}
	var r Ready
	if err := json.Unmarshal([]byte(text), &r); err != nil || !r.Ready {
		p.t.Fatalf("the first line of stdout is no ready line: %s", text)
	}
	return r
}
