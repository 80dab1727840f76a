package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

// spawn starts a follower process.
func spawn(t testing.TB, o orders) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(mustJSON(t, o)))
	cmd.Stderr = new(bytes.Buffer)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// wait returns whether the process was killed, and fails on any other failure.
func wait(t testing.TB, cmd *exec.Cmd) (killed bool) {
	t.Helper()
	err := cmd.Wait()
	if err == nil {
		return false
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	t.Fatalf("the follower failed: %v\n%s", err, cmd.Stderr)
	return false
}

// lines counts how often each id was shown.
func lines(t testing.TB, path string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for line := range strings.FieldsSeq(string(data)) {
		out[line]++
	}
	return out
}

// exact checks that the state holds what the provider said, each thing once and
// in order, and returns the ids in that order.
func exact(t testing.TB, dir string, f *fake) []string {
	t.Helper()
	s, err := sqlitestate.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
		t.Errorf("state has %d rows, provider %d", len(got), len(f.truth()))
	}
	var ids []string
	seen := make(map[string]bool)
	place := ""
	for e, err := range s.Receipts(t.Context(), sources(t, s)[0]) {
		if err != nil {
			t.Fatal(err)
		}
		if now := fmt.Sprintf("%08d %08d", e.Generation, e.Page); now < place {
			t.Errorf("receipts are out of order: %s after %s", now, place)
		} else {
			place = now
		}
		for _, o := range e.Observations {
			if seen[o.ID] {
				t.Errorf("%s is recorded twice", o.ID)
			}
			seen[o.ID] = true
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// TestC3_KilledAtNamedPoints kills a real follower process at each point of each
// page, starts it again, and looks at what its state and its output hold.
func TestC3_KilledAtNamedPoints(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before begin", "after begin", "before commit", "after commit", "shown", "before delivered", "after delivered"} {
		for _, at := range []int{1, 2, 4} { // first page, middle, live
			if strings.HasSuffix(point, "begin") && at > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s %d", point, at), func(t *testing.T) { killedAt(t, point, at, false) })
		}
	}
}

// TestC3_SignedKilledAtNamedPoints does the same to one that signs: its BRC-104
// session dies with it, and nothing else does.
func TestC3_SignedKilledAtNamedPoints(t *testing.T) {
	t.Parallel()
	for point, at := range map[string]int{"after begin": 1, "before commit": 2, "after commit": 4, "shown": 2} {
		t.Run(point, func(t *testing.T) { killedAt(t, point, at, true) })
	}
}

func killedAt(t *testing.T, point string, at int, signed bool) {
	t.Parallel()
	f := newFake(t).seed(5)
	if signed {
		f.signing()
	}
	dir := t.TempDir()
	f.before = func(endpoint string, n int, _ []byte) {
		if endpoint == "read" && n == 2 {
			f.put(8, 9)
			f.remove(1)
			f.skip()
		}
	}
	o := orders{Base: f.serve(), Dir: dir, Output: filepath.Join(dir, "shown"), KillPoint: point, KillAt: at, Signed: signed}
	o.Limits.MaxObservations = 2
	if !wait(t, spawn(t, o)) {
		t.Fatal("the follower was not killed")
	}
	o.KillPoint = ""
	if wait(t, spawn(t, o)) {
		t.Fatal("the second follower was killed")
	}
	ids := exact(t, dir, f)
	if len(ids) != 9 {
		t.Fatalf("%d observations, want 9: %v", len(ids), ids)
	}
	shown := lines(t, o.Output)
	for _, id := range ids {
		// Only between a commit and its delivery mark may a page be shown twice.
		again := point == "shown" || point == "before delivered"
		if shown[id] != 1 && (!again || shown[id] != 2) {
			t.Errorf("%s was shown %d times", id, shown[id])
		}
	}
	if n := len(f.seen("open")); n > 2 {
		t.Errorf("%d opens", n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sessions) != 1 {
		t.Errorf("%d sessions, want 1", len(f.sessions))
	}
}

// TestC3_KilledFromOutside kills a follower as an answer reaches it, again and
// again, so that death falls anywhere in the work on that answer.
func TestC3_KilledFromOutside(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(24)
	dir := t.TempDir()
	var (
		mu      sync.Mutex
		current *exec.Cmd
		count   int
	)
	f.raw = func(endpoint string, n int, body []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if count++; endpoint != "capabilities" && count%3 == 0 && current != nil {
			victim := current
			current = nil
			go func() { _ = victim.Process.Kill() }()
		}
		return body
	}
	o := orders{Base: f.serve(), Dir: dir, Output: filepath.Join(dir, "shown")}
	o.Limits.MaxObservations = 2
	kills := 0
	for round := range 40 {
		if round < 8 {
			f.put(100 + round)
		}
		cmd := spawn(t, o)
		mu.Lock()
		current = cmd
		mu.Unlock()
		if wait(t, cmd) {
			kills++
		} else if round >= 8 {
			break
		}
	}
	ids := exact(t, dir, f)
	shown := lines(t, o.Output)
	for _, id := range ids {
		if shown[id] == 0 {
			t.Errorf("%s was never shown", id)
		}
	}
	if len(ids) != len(f.truth()) {
		t.Errorf("%d observations, want %d", len(ids), len(f.truth()))
	}
	if kills == 0 {
		t.Error("nothing was killed")
	}
}

// A batch that was read with a cursor which is not the recorded one is refused.
func TestC3_CursorBeforeCommitIsRefused(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.must(t)
	record := acquire(t, s)
	defer record.Release()
	st, err := record.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ahead := *st.Latest.Checkpoint
	ahead.Cursor, ahead.Through, ahead.HighWater = "session-1 live 9", 9, 9
	for _, from := range []string{"", "session-1 live 8", "session-1 live 9"} {
		if _, err := record.Commit(t.Context(), client.Commit{Generation: 1, From: from, Checkpoint: ahead}); err == nil {
			t.Errorf("a batch read with %q was recorded", from)
		}
	}
	after, err := record.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Latest.Checkpoint.Cursor != st.Latest.Checkpoint.Cursor {
		t.Fatal("the checkpoint moved")
	}
}

// A commit that fails leaves nothing, and the next run takes the same batch.
func TestC3_FailedCommitLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(3)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	full := errors.New("disk full")
	r.options.State = failing{s, full}
	if err := r.follow(t); !errors.Is(err, full) {
		t.Fatalf("error %v", err)
	}
	if len(r.events) != 0 {
		t.Fatalf("shown before recorded: %v", r.kinds())
	}
	r.options.State = s
	r.must(t)
	if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
		t.Fatalf("state has %v", got)
	}
	if len(f.seen("open")) != 2 || len(f.sessions) != 1 {
		t.Fatal("the open was not repeated")
	}
}

type failing struct {
	client.State
	err error
}

func (s failing) Acquire(ctx context.Context, key client.Key) (client.Record, error) {
	r, err := s.State.Acquire(ctx, key)
	return failingRecord{r, s.err}, err
}

type failingRecord struct {
	client.Record
	err error
}

func (r failingRecord) Commit(context.Context, client.Commit) (client.Committed, error) {
	return client.Committed{}, r.err
}

// acquire opens the record of the state's only source.
func acquire(t testing.TB, s *sqlitestate.Store) client.Record {
	t.Helper()
	src := sources(t, s)[0]
	r, err := s.Acquire(t.Context(), client.Key{Base: src.Base, Service: src.Service, Query: []byte(src.Query), QueryDigest: src.QueryDigest})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
