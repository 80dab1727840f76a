package client_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

func TestC7_OneRequestInFlight(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(40)
	s := openState(t, t.TempDir())
	base := f.serve()
	var wg sync.WaitGroup
	var mu sync.Mutex
	busy, fine := 0, 0
	for range 6 { // several runs at one source
		wg.Go(func() {
			r := follower(base, s)
			r.options.Limits.MaxObservations = 3
			err := client.Follow(t.Context(), r.options)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, client.ErrBusy):
				busy++
			case err == nil:
				fine++
			default:
				t.Errorf("error %v", err)
			}
		})
	}
	wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most != 1 {
		t.Errorf("%d requests in flight at once", f.most)
	}
	if fine == 0 || busy+fine != 6 || len(f.sessions) != 1 {
		t.Errorf("%d ran, %d were busy, %d sessions", fine, busy, len(f.sessions))
	}
}

// Two sources in one state do not disturb each other.
func TestC7_TwoSources(t *testing.T) {
	t.Parallel()
	s := openState(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 2 {
		f := newFake(t).seed(5 + i)
		r := follower(f.serve(), s)
		r.options.Limits.MaxObservations = 2
		wg.Go(func() {
			if err := client.Follow(t.Context(), r.options); err != nil {
				t.Errorf("source %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := len(sources(t, s)); n != 2 {
		t.Fatalf("%d sources", n)
	}
	if n := len(rows(t, s, sqlitestate.Current)); n != 6 { // the rows of both, five in common
		t.Fatalf("%d distinct rows", n)
	}
}

// A state directory has one writer, also across processes; a reader is no writer.
func TestC7_OneWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openState(t, dir)
	if _, err := sqlitestate.Open(t.Context(), dir); !errors.Is(err, sqlitestate.ErrLocked) {
		t.Fatalf("a second writer in this process got %v", err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(mustJSON(t, orders{Base: "http://127.0.0.1:1", Dir: dir, Output: os.DevNull})))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), sqlitestate.ErrLocked.Error()) {
		t.Fatalf("a second process got %v: %s", err, out)
	}
	reader, err := sqlitestate.Inspect(context.Background(), dir)
	if err != nil {
		t.Fatalf("a reader got %v", err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
}
