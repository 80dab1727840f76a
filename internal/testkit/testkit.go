package testkit

import (
	"bytes"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen.
const Patience = 60 * time.Second

// Eventually returns when holds says yes, and ends the test when it does not within Patience. It is called on the test's
// own goroutine.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.NewTimer(Patience)
	defer tick.Stop()
	defer end.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Log keeps what is written to it, by any number of goroutines. Its zero value is empty.
type Log struct {
	mu sync.Mutex
	// guarded by mu
	text  bytes.Buffer
	grown chan struct{} // closed by the next write; nil: nobody waits for it
}

// Write takes what is logged.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
	return l.text.Write(p)
}

// String is everything that was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count is how often the log says text.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Await returns when the log says text at least that often, and ends the test when it does not within Patience.
func (l *Log) Await(t testing.TB, text string, times int) {
	t.Helper()
	end := time.NewTimer(Patience)
	defer end.Stop()
	for {
		grown := l.growth() // before the look: a line that comes after it is not missed
		count := l.Count(text)
		if count >= times {
			return
		}
		select {
		case <-grown:
		case <-end.C:
			t.Fatalf("not within %v: the log says %q %d times, not %d", Patience, text, count, times)
		}
	}
}

func (l *Log) growth() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	return l.grown
}

// OpenFolder is a folder that every user can come to, as a Postgres server's own user must, and which t.TempDir is not. It
// is removed after the test.
func OpenFolder(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "overlayd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(path); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// FreeAddress is an address of this machine, with its port, that nobody listens on at this moment.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}
