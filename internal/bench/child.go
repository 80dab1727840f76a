package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Bounds of a child: they only end what has gone wrong.
const (
	childStart = 10 * time.Minute // with a download of Postgres
	childStop  = 60 * time.Second
)

// Child is a process of this run. It has a process group of its own, so that a Ctrl-C meant for this process is not its end.
type Child struct {
	cmd *exec.Cmd
	in  io.Closer
	// Line is the first one of its stdout.
	Line string
	log  tail
	done chan struct{} // closed when it has ended
	err  error         // of its end; valid once done
}

// StartChild returns when the program has written its first line. env is all of its environment.
func StartChild(ctx context.Context, program string, args, env []string) (_ *Child, err error) {
	c := &Child{cmd: exec.Command(program, args...), done: make(chan struct{})}
	c.cmd.Env, c.cmd.Stderr = env, &c.log
	c.cmd.SysProcAttr = childAttributes()
	c.cmd.WaitDelay = time.Second
	out, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stdout = write
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, out.Close(), write.Close())
	}
	started := make(chan error)
	go func() {
		// The kernel sends the signal of the parent's death when the thread that forked goes: it is kept until the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.done)
		}
	}()
	err = <-started
	_ = write.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), out.Close())
	}
	lines := make(chan string, 1)
	go func() { // ends with the child
		defer out.Close() //nolint:errcheck // a pipe
		b := bufio.NewReader(out)
		text, err := b.ReadString('\n')
		if err == nil {
			lines <- strings.TrimSpace(text)
		}
		_, _ = io.Copy(io.Discard, b)
	}()
	late := time.NewTimer(childStart)
	defer late.Stop()
	select {
	case c.Line = <-lines:
		return c, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.done:
		err = fmt.Errorf("%s %s ended (%w) before it was ready; it said:\n%s", program, args[0], c.err, c.log.String())
	case <-late.C:
		err = fmt.Errorf("%s %s was not ready within %s; it said:\n%s", program, args[0], childStart, c.log.String())
	}
	return nil, errors.Join(err, c.Stop())
}

// Stop asks the child to end and returns when it has (Y8).
func (c *Child) Stop() error {
	_ = c.in.Close()
	_ = c.cmd.Process.Signal(os.Interrupt)
	late := time.NewTimer(childStop)
	defer late.Stop()
	select {
	case <-c.done:
		return nil
	case <-late.C:
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("%s did not stop within %s and was killed", c.cmd.Path, childStop)
	}
}

// ended says why the child is gone, and nothing while it runs.
func (c *Child) ended() error {
	select {
	case <-c.done:
		return fmt.Errorf("the process %s ended by itself (%v); it said:\n%s", c.cmd.Path, c.err, c.log.String())
	default:
		return nil
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailBytes):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
