package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

func openState(t testing.TB, dir string) *sqlitestate.Store {
	t.Helper()
	s, err := sqlitestate.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run is one follower in a test.
type run struct {
	options client.Options
	events  []client.Event
}

// follower makes options that end as soon as everything is read.
func follower(base string, state client.State) *run {
	r := &run{}
	r.options = client.Options{
		BaseURL: base, Service: service, State: state, UntilLive: true,
		On: func(_ context.Context, e client.Event) error {
			r.events = append(r.events, e)
			return nil
		},
	}
	return r
}

func (r *run) follow(t testing.TB) error {
	t.Helper()
	r.events = nil
	return client.Follow(t.Context(), r.options)
}

// must follows and expects no error.
func (r *run) must(t testing.TB) {
	t.Helper()
	if err := r.follow(t); err != nil {
		t.Fatalf("follow: %v", err)
	}
}

// kinds names the events in order, groups by what is in them.
func (r *run) kinds() []string {
	var out []string
	for _, e := range r.events {
		switch ev := e.(type) {
		case client.Group:
			s := fmt.Sprintf("group@%d", ev.Sequence)
			for _, o := range ev.Observations {
				s += " " + o.Kind
			}
			out = append(out, s)
		case client.Ended:
			out = append(out, "ended "+string(ev.Code))
		default:
			out = append(out, fmt.Sprintf("%T", e)[len("client."):])
		}
	}
	return out
}

// rows returns the state's rows as "txid.index" -> row, for one generation
// freshness.
func rows(t testing.TB, s *sqlitestate.Store, fresh sqlitestate.Freshness) map[string]sqlitestate.Row {
	t.Helper()
	out := make(map[string]sqlitestate.Row)
	for _, src := range sources(t, s) {
		for r, err := range s.Rows(t.Context(), src) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Freshness == fresh {
				out[fmt.Sprintf("%s.%d", r.TxID, r.OutputIndex)] = r
			}
		}
	}
	return out
}

func sources(t testing.TB, s *sqlitestate.Store) []sqlitestate.Source {
	t.Helper()
	out, err := s.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// present lists the outpoints that are present among rows.
func present(rows map[string]sqlitestate.Row) map[string]bool {
	out := make(map[string]bool)
	for name, r := range rows {
		if r.Present {
			out[name] = true
		}
	}
	return out
}

// truth lists the outpoints the provider has now.
func (f *fake) truth() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]bool)
	for _, o := range f.rows {
		out[fmt.Sprintf("%s.%d", o.Evidence.TxID, o.Evidence.OutputIndex)] = true
	}
	return out
}

func violated(t testing.TB, err error, rule client.Rule) {
	t.Helper()
	v, ok := errors.AsType[*client.ViolationError](err)
	if !ok {
		t.Fatalf("error is %v, want a violation of %s", err, rule)
	}
	if v.Rule != rule {
		t.Fatalf("violated %s (%v), want %s", v.Rule, v, rule)
	}
}

// hooked is a state whose records call back around their writes.
type hooked struct {
	client.State
	mu     sync.Mutex
	counts map[string]int
	at     func(point string, n int)
}

func hook(s client.State, at func(point string, n int)) *hooked {
	return &hooked{State: s, counts: make(map[string]int), at: at}
}

func (h *hooked) reach(point string) {
	h.mu.Lock()
	h.counts[point]++
	n := h.counts[point]
	h.mu.Unlock()
	h.at(point, n)
}

func (h *hooked) Acquire(ctx context.Context, key client.Key) (client.Record, error) {
	r, err := h.State.Acquire(ctx, key)
	return hookedRecord{r, h}, err
}

type hookedRecord struct {
	client.Record
	h *hooked
}

func (r hookedRecord) Begin(ctx context.Context, i client.Intent) (uint64, error) {
	r.h.reach("before begin")
	n, err := r.Record.Begin(ctx, i)
	r.h.reach("after begin")
	return n, err
}

func (r hookedRecord) Commit(ctx context.Context, c client.Commit) (client.Committed, error) {
	r.h.reach("before commit")
	done, err := r.Record.Commit(ctx, c)
	r.h.reach("after commit")
	return done, err
}

func (r hookedRecord) Delivered(ctx context.Context, m client.Mark) error {
	r.h.reach("before delivered")
	err := r.Record.Delivered(ctx, m)
	r.h.reach("after delivered")
	return err
}

func (r hookedRecord) End(ctx context.Context, e client.Ending) error {
	r.h.reach("before end")
	err := r.Record.End(ctx, e)
	r.h.reach("after end")
	return err
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func outpointName(o wire.Output) string {
	return fmt.Sprintf("%s.%d", o.Evidence.TxID, o.Evidence.OutputIndex)
}
