package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestFollow_SnapshotLiveResume(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(5)
	base := f.serve()
	s := openState(t, t.TempDir())
	r := follower(base, s)
	r.options.Limits.MaxObservations = 2
	r.must(t)
	want := []string{"Opened", "group@5 output", "group@5 output", "group@5 output", "group@5 output", "group@5 output", "SnapshotComplete", "Live"}
	if got := r.kinds(); !slices.Equal(got, want) {
		t.Fatalf("events %v, want %v", got, want)
	}

	f.skip()
	f.put(10, 11)
	f.remove(3)
	f.remove(10)
	f.put(10) // re-entry
	f.invalidate()
	r.must(t)
	want = []string{"Resumed", "group@7 output output", "group@8 spend withdraw", "group@9 spend withdraw", "group@10 output", "group@11 assessment-invalidated"}
	if got := r.kinds(); !slices.Equal(got, want) {
		t.Fatalf("events %v, want %v", got, want)
	}
	all := rows(t, s, sqlitestate.Current)
	if got := present(all); !maps.Equal(got, f.truth()) {
		t.Fatalf("state has %v, provider %v", got, f.truth())
	}
	gone := all[outpointName(output(3))]
	if gone.Present || gone.Sequence != 8 {
		t.Fatalf("a withdrawn row is %+v", gone)
	}

	r.must(t)
	if got := r.kinds(); !slices.Equal(got, []string{"Resumed"}) {
		t.Fatalf("a run with nothing new shows %v", got)
	}
	if n := len(f.seen("open")); n != 1 {
		t.Fatalf("%d opens, want 1", n)
	}
}

func TestFollow_EmptySnapshot(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := follower(f.serve(), openState(t, t.TempDir()))
	r.must(t)
	if got := r.kinds(); !slices.Equal(got, []string{"Opened", "SnapshotComplete", "Live"}) {
		t.Fatalf("events %v", got)
	}
}

func TestFollow_ReceiptsKeepOrderAndBytes(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(3)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.must(t)
	f.put(7, 8)
	f.remove(7)
	r.must(t)
	var ids []string
	for e, err := range s.Receipts(t.Context(), sources(t, s)[0]) {
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range e.Observations {
			ids = append(ids, o.ID)
			if len(o.Canonical) == 0 {
				t.Fatalf("%s has no bytes", o.ID)
			}
		}
	}
	want := []string{
		"session-1-row-0-o", "session-1-row-1-o", "session-1-row-2-o",
		"live-4-0", "live-4-1", "live-5-0", "live-5-1",
	}
	if !slices.Equal(ids, want) {
		t.Fatalf("order %v, want %v", ids, want)
	}
}

// A handler that fails keeps its page undelivered; the next run tells it again,
// with the same bytes.
func TestFollow_UndeliveredPageComesAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(4)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.must(t)
	f.put(8, 9)
	f.remove(8)
	first := r.options.On
	stop := errors.New("the consumer is full")
	var seen []client.Event
	r.options.On = func(_ context.Context, e client.Event) error {
		seen = append(seen, e)
		if g, ok := e.(client.Group); ok && g.Index == 1 {
			return stop
		}
		return nil
	}
	if err := r.follow(t); !errors.Is(err, stop) {
		t.Fatalf("error %v", err)
	}
	r.options.On = first
	r.must(t)
	if got, want := r.kinds(), []string{"group@5 output output", "group@6 spend withdraw", "Resumed"}; !slices.Equal(got, want) {
		t.Fatalf("events %v, want %v", got, want)
	}
	again, before := r.events[0].(client.Group), seen[1].(client.Group)
	for i := range before.Observations {
		if string(again.Observations[i].Canonical) != string(before.Observations[i].Canonical) ||
			string(again.Observations[i].Output.Evidence.BEEF) != string(before.Observations[i].Output.Evidence.BEEF) {
			t.Fatal("a redelivered observation has other bytes")
		}
	}
}

func TestFollow_Events(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(2)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.UntilLive = false
	n := 0
	for e, err := range client.Events(t.Context(), r.options) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if _, ok := e.(client.Live); ok {
			break
		}
	}
	if n != 5 {
		t.Fatalf("%d events, want 5", n)
	}
	for _, err := range client.Events(t.Context(), client.Options{BaseURL: "http://example.com", Service: service, State: s}) {
		if err == nil {
			t.Fatal("http to another machine was accepted")
		}
	}
}

func TestFollow_MaxBatches(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(9)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.Limits.MaxObservations = 2
	r.options.MaxBatches = 2
	r.must(t)
	if got := len(rows(t, s, sqlitestate.Partial)); got != 4 {
		t.Fatalf("%d partial rows, want 4", got)
	}
	r.options.MaxBatches = 0
	r.must(t)
	if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
		t.Fatalf("state has %v", got)
	}
}

func TestFollow_RaisesForOneGroup(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.Limits.MaxObservations = 2
	r.must(t)
	f.put(20, 21, 22)
	r.options.StrictLimits = true
	err := r.follow(t)
	if e, ok := errors.AsType[*client.ProviderError](err); !ok || e.Code != "limited" {
		t.Fatalf("error %v, want limited", err)
	}
	r.options.StrictLimits = false
	r.must(t)
	if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
		t.Fatalf("state has %v", got)
	}
}

// A first page that does not fit is opened again, with a new request.
func TestFollow_RaisesForTheOpen(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	big := output(1)
	big.Evidence.BEEF = make([]byte, 100_000)
	f.rows, f.head = append(f.rows, big), 1
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.Limits.MaxBytes = 65536
	r.must(t)
	if got := r.kinds(); !slices.Equal(got, []string{"ended limited", "Opened", "group@1 output", "SnapshotComplete", "Live"}) {
		t.Fatalf("events %v", got)
	}
	opens := f.seen("open")
	if len(opens) != 2 || string(opens[0].body) == string(opens[1].body) {
		t.Fatalf("%d opens", len(opens))
	}
}

func TestFollow_ClosesAThrownAwaySession(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.options.CloseSession = true
	r.must(t)
	if n := len(f.seen("close")); n != 1 {
		t.Fatalf("%d closes, want 1", n)
	}
	r.options.CloseSession = false
	r.must(t) // a session closed by this side is simply replaced
	if got := r.kinds(); !slices.Equal(got, []string{"ended cancelled", "Opened", "group@1 output", "SnapshotComplete", "Live"}) {
		t.Fatalf("events %v", got)
	}
}

// Whatever happens, logs, events and errors hold no request id, session or
// cursor.
func TestA8_NoBearerSecretsAreShown(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(b *wire.Batch){
		"violation":     func(b *wire.Batch) { b.Session += "x" },
		"fallen back":   func(b *wire.Batch) { b.Groups, b.Through = nil, 0 },
		"cursor stands": func(b *wire.Batch) { b.Cursor = "session-1 live 2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).seed(2)
			f.lose = func(endpoint string, n int) bool { return n == 1 && endpoint != "capabilities" }
			f.bend = func(endpoint string, n int, b *wire.Batch) {
				if endpoint == "read" && n == 3 {
					answer(b)
				}
			}
			dir := t.TempDir()
			r := follower(f.serve(), openState(t, dir))
			var log bytes.Buffer
			r.options.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			r.must(t)
			shown := fmt.Sprint(r.events)
			f.put(7)
			err := r.follow(t)
			if err == nil {
				t.Fatal("the lie was not seen")
			}
			shown += fmt.Sprint(r.events) + err.Error() + log.String()
			id, _, _, _ := saved(t, dir)
			for _, secret := range []string{id, "session-1 live", "session-1x"} {
				if strings.Contains(shown, secret) {
					t.Errorf("%q is shown", secret)
				}
			}
			if log.Len() == 0 {
				t.Error("the retries were not logged")
			}
		})
	}
}
