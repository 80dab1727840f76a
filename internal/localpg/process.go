package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/jackc/pgx/v5/pgconn"
)

// process is a started child.
type process struct {
	pid  int
	proc *os.Process
	done chan struct{} // closed after err is set
	err  error
}

// launch starts cmd from a goroutine that keeps its thread until the child has ended: the kernel sends the parent death
// signal when the thread that forked goes, not the process. Until then hold is not collected: the lock of a folder is an
// open file, and must last as long as the server even when the caller forgets the Server.
func launch(cmd *exec.Cmd, hold any) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid, p.proc = cmd.Process.Pid, cmd.Process
		}
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
		runtime.KeepAlive(hold)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// signal is harmless after the end: os.Process knows that it waited.
func (p *process) signal(s os.Signal) { _ = p.proc.Signal(s) }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// result is how the child ended, in words; call it after done.
func (p *process) result() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// connectError marks a failure to open a session, which may pass.
type connectError struct{ cause error }

func (e *connectError) Error() string { return fmt.Sprintf("connect: %v", e.cause) }
func (e *connectError) Unwrap() error { return e.cause }

// isStarting tells a server that is not ready yet from one that will never let us in.
func isStarting(err error) bool {
	if _, ok := errors.AsType[*connectError](err); !ok {
		return false
	}
	const cannotConnectNow = "57P03"
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code == cannotConnectNow
	}
	return true
}
