package live_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// saga is what a follower that is killed follows: a snapshot, changes, a reset that
// takes two rows away, a second snapshot, and changes again. What happens next depends
// on the cursor that comes, so a killed follower meets the same.
type saga struct {
	*story
	orders orders

	mu        sync.Mutex
	delivered map[string][]wire.Observation // guarded by mu; by session, each once
}

func newSaga(t testing.TB, of *story) *saga {
	s := &saga{story: of.again(t), delivered: map[string][]wire.Observation{}}
	p, c := s.provider, s.chain
	var first, reset, last sync.Once
	p.before = func(_ context.Context, endpoint string, _ int, body []byte) {
		q, err := wire.ParseRead(body)
		if endpoint != "read" || err != nil {
			return
		}
		switch q.Cursor {
		case "session-1 live 5":
			first.Do(s.goOn)
		case "session-1 live 6":
			reset.Do(func() {
				p.edit(func() { p.rows = slices.Clone(p.rows[2:]) })
				p.endAll(wire.ResetRequired)
			})
		case "session-2 live 7":
			last.Do(func() {
				p.say(p.withdraws(s.rows[5].Outpoint(0), "changed"), lists(row(c, s.rows[0], 0, verifytest.Evidence{})))
				p.say(p.withdraws(s.rows[6].Outpoint(0), "changed"), lists(row(c, s.rows[5], 0, verifytest.Evidence{})))
			})
		}
	}
	p.bend = func(_ string, _ int, b *wire.Batch) {
		s.mu.Lock()
		defer s.mu.Unlock()
		have := s.delivered[b.Session]
		for i := range b.Groups {
			for _, o := range b.Groups[i].Observations {
				if !slices.ContainsFunc(have, func(h wire.Observation) bool { return h.ID == o.ID }) {
					have = append(have, o)
				}
			}
		}
		s.delivered[b.Session] = have
	}
	dir := t.TempDir()
	s.orders = orders{Base: p.serve(), Headers: filepath.Join(dir, "headers"), Told: filepath.Join(dir, "told"), Dir: filepath.Join(dir, "store")}
	if err := os.WriteFile(s.orders.Headers, c.Tip().Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// follow runs a child to its end and says whether it was killed.
func (s *saga) follow(t testing.TB, o orders, env ...string) (killed bool) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), env...), childVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	if err == nil {
		return false
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	t.Fatalf("the follower failed: %v\n%s", err, &stderr)
	return false
}

// verdict is what a killed and restarted follower left.
type verdict struct{ lost, doubled, disorder int }

func (v verdict) add(o verdict) verdict {
	return verdict{v.lost + o.lost, v.doubled + o.doubled, v.disorder + o.disorder}
}

// judge compares the store with everything the provider delivered. It opens the store
// that no follower has any more.
func (s *saga) judge(t testing.TB) (v verdict) {
	t.Helper()
	b, _, err := openKept(t.Context(), s.orders)
	if err != nil {
		t.Fatal(err)
	}
	store := openOver(t, b, reconcile.Budget{})
	defer store.Close() //nolint:errcheck // it is only read
	w := &wallet{t: t, store: store, chain: s.chain}
	w.audit()

	// Every observation once, in its order; the newest of each outpoint stands.
	type newest struct {
		present bool
		id      string
	}
	want := map[string]newest{}
	s.mu.Lock()
	for _, o := range s.delivered["session-2"] {
		switch {
		case o.Output != nil:
			want[fmt.Sprintf("%s.%d", o.Output.Evidence.TxID, o.Output.Evidence.OutputIndex)] = newest{true, o.ID}
		case o.Withdraw != nil:
			want[fmt.Sprintf("%s.%d", o.Withdraw.Outpoint.TxID, o.Withdraw.Outpoint.OutputIndex)] = newest{false, o.ID}
		}
	}
	s.mu.Unlock()
	for _, m := range w.memberships() {
		if m.Generation != 2 || want[m.Outpoint.String()] != (newest{m.Present, m.Observation}) {
			t.Logf("%+v stands, want %+v", m, want[m.Outpoint.String()])
			v.lost++
		}
		delete(want, m.Outpoint.String())
	}
	v.lost += len(want)
	if got, want := w.present(0), s.provider.truth(); !slices.Equal(got, want) {
		t.Logf("present are %v, want %v", got, want)
		v.lost++
	}
	at, err := store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	last := map[uint64]uint64{}
	revision := uint64(0)
	for c, err := range store.Watch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Revision.Accepted != revision+1 {
			t.Logf("revision %d follows %d", c.Revision.Accepted, revision)
			v.disorder++
		}
		revision = c.Revision.Accepted
		now := map[uint64]uint64{}
		for _, m := range c.Memberships {
			if m.Gone {
				continue
			}
			if seen[m.Observation] {
				t.Logf("%s was published twice", m.Observation)
				v.doubled++
			}
			seen[m.Observation] = true
			// Within one revision the order is that of outpoints.
			if m.Sequence < last[m.Generation] {
				t.Logf("sequence %d of generation %d follows %d", m.Sequence, m.Generation, last[m.Generation])
				v.disorder++
			}
			now[m.Generation] = max(now[m.Generation], m.Sequence)
		}
		for generation, sequence := range now {
			last[generation] = sequence
		}
		if revision == at.Accepted {
			break
		}
	}
	v = v.add(s.judgeProjections(t, b, w, at.Accepted))
	if s.provider.opened() != 2 {
		t.Logf("%d sessions", s.provider.opened())
		v.doubled++
	}
	return v
}

// judgeProjections checks the ledger, which saw each revision exactly once, and what
// was told, at least once and in order.
func (s *saga) judgeProjections(t testing.TB, b reconcile.Backend, w *wallet, accepted uint64) (v verdict) {
	t.Helper()
	for _, name := range []string{"outputs", "ledger"} {
		if n, err := w.store.Projected(t.Context(), name); err != nil || n != accepted {
			t.Logf("the projector %s is at %d of %d, %v", name, n, accepted, err)
			v.lost++
		}
	}
	// A projector that is new begins with everything there is; then every revision is
	// its own.
	next := uint64(0)
	for i, n := range revisions(t, b) {
		switch {
		case i == 0 || n == next:
		case n > next:
			t.Logf("the ledger goes from %d to %d", next-1, n)
			v.lost += int(n - next)
		default:
			t.Logf("the ledger has %d after %d", n, next-1)
			v.doubled++
		}
		next = max(next, n+1)
	}
	if next != accepted+1 {
		t.Logf("the ledger ends before %d", next)
		v.lost++
	}
	data, err := os.ReadFile(s.orders.Told)
	if err != nil {
		t.Fatal(err)
	}
	told, reset := uint64(0), false
	for line := range strings.Lines(string(data)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatalf("a line is %q", line)
		}
		switch {
		case what == "reset":
			reset = true
		case n > told+1:
			v.lost++
			fallthrough
		default:
			told = max(told, n)
		}
	}
	if told != accepted || !reset {
		t.Logf("told through %d of %d, the reset %v", told, accepted, reset)
		v.lost++
	}
	return v
}

// revisions is the ledger, in the order in which it was written.
func revisions(t testing.TB, b reconcile.Backend) (out []uint64) {
	t.Helper()
	err := b.Update(t.Context(), func(r reconcile.Reader) (reconcile.Writes, error) {
		var err error
		out, err = readLedger(t.Context(), r.Tx())
		return reconcile.Writes{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestC3_R7_FollowerKilledAroundItsCommits kills a real follower process before and
// after some of its commits and starts it again: nothing is lost, nothing doubled. The
// kill table, with the tag failpoint, does so at every named point.
func TestC3_R7_FollowerKilledAroundItsCommits(t *testing.T) {
	t.Parallel()
	first := newStory(t)
	for i, at := range []int{7, 17, 27} {
		after := i%2 == 0
		t.Run(fmt.Sprintf("commit %d, after %v", at, after), func(t *testing.T) {
			s := newSaga(t, first)
			o := s.orders
			o.KillUpdate, o.After = at, after
			if !s.follow(t, o) {
				t.Fatal("it was not killed")
			}
			if s.follow(t, s.orders) {
				t.Fatal("the second one was killed")
			}
			if v := s.judge(t); v != (verdict{}) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// What a whole run leaves is what the judge wants; a judge that is told of less finds
// it.
func TestR7_TheJudgeSees(t *testing.T) {
	t.Parallel()
	s := newSaga(t, newStory(t))
	if s.follow(t, s.orders) {
		t.Fatal("it was killed")
	}
	if v := s.judge(t); v != (verdict{}) {
		t.Fatalf("%+v", v)
	}
	s.mu.Lock()
	more := s.delivered["session-2"]
	extra := more[0]
	extra.Output = &wire.Output{Evidence: wire.Evidence{TxID: strings.Repeat("ab", 32)}}
	s.delivered["session-2"] = append(more, extra)
	s.mu.Unlock()
	if v := s.judge(t); v.lost != 1 {
		t.Errorf("%+v", v)
	}
	if err := os.WriteFile(s.orders.Told, []byte("accepted 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := s.judge(t); v.lost != 2 {
		t.Errorf("%+v", v)
	}
}
