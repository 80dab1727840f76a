//go:build unix

package localpg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const supported = true

const (
	signalFast      = syscall.SIGINT  // end sessions, write a checkpoint, go
	signalImmediate = syscall.SIGQUIT // go; the next start recovers
)

// deathSignal is what the kernel sends to the server when its overlayd dies.
func deathSignal(fast bool) syscall.Signal {
	if fast {
		return signalImmediate
	}
	return signalFast
}

// acquire makes this process the only one to use the folder. The lock dies with the process; release may be called twice.
func acquire(data string) (release func(), err error) {
	path := filepath.Join(data, lockName)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock the data folder of the private Postgres (was it made by another user?): %w", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			defer f.Close()
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock the data folder of the private Postgres: %w", err)
			}
			holder, _ := io.ReadAll(io.LimitReader(f, 32))
			pid, _ := strconv.Atoi(strings.TrimSpace(string(holder)))
			return nil, &InUseError{Data: data, PID: pid}
		}
		// Remove may have deleted the file between our open and our lock: then it protects nothing.
		if !sameFile(f, path) {
			f.Close()
			continue
		}
		if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock the data folder of the private Postgres: %w", err)
		}
		return sync.OnceFunc(func() {
			// Closing alone leaves the lock to a child that is just being started: until it is another program it has our files.
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
			_ = f.Close()
		}), nil
	}
}

func sameFile(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(mine, named)
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// owner is the user id a file belongs to.
func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// keepOwner gives a file root has written the owner of the old one, or of its folder, so that a start as root does not lock
// an ordinary user out.
func keepOwner(path string, old fs.FileInfo) {
	if st, ok := old.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		_ = os.Chown(path, int(st.Uid), int(st.Gid))
	}
}

func kill(pid int, s syscall.Signal) { _ = syscall.Kill(pid, s) }

// killGroup reaches the helpers of a child that was started in a group of its own.
func killGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) }
