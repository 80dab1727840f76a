package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/client/sqlitestate"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// event is a line of `overlayd follow`, as far as these tests look.
type event struct{ Event, Sequence, ContextID string }

// next reads lines up to the first of that event.
func next(t *testing.T, p *Process, want string) event {
	t.Helper()
	for {
		text, ok := p.Line()
		if !ok {
			t.Fatalf("the follower ended (%d) before %s:\n%s", p.Wait(), want, p.Stderr())
		}
		var e event
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if e.Event == want {
			return e
		}
	}
}

// change appends a group that every follower observes, and returns its sequence.
func change(t *testing.T, ready Ready, name string) string {
	t.Helper()
	body := fmt.Sprintf(`{"key":"a-change-of-this-test-%s","edits":[{"op":"invalidate","contextId":"%s","reason":"test"}]}`, name, name)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ready.OperatorURL+"/operator/v1/feeds/catalogue/groups", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+ready.OperatorToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Sequence string }
	if err := json.Unmarshal(text, &answer); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	return answer.Sequence
}

// held is what a follower's state holds: the rows of its source and the invalidations in the order received.
func held(t *testing.T, dir string) (rows int, contexts []string) {
	t.Helper()
	state, err := sqlitestate.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close() //nolint:errcheck // it only read
	sources, err := state.Sources(t.Context())
	if err != nil || len(sources) != 1 || sources[0].Latest != 1 {
		t.Fatalf("%+v, %v", sources, err)
	}
	for row, err := range state.Rows(t.Context(), sources[0]) {
		if err != nil {
			t.Fatal(err)
		}
		if row.Present && row.Freshness == sqlitestate.Current {
			rows++
		}
	}
	return rows, contextsOf(t, state, sources[0])
}

// contextsOf are the invalidations of a source, in the order received.
func contextsOf(t *testing.T, state *sqlitestate.Store, source sqlitestate.Source) (contexts []string) {
	t.Helper()
	for entry, err := range state.Receipts(t.Context(), source) {
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range entry.Observations {
			var body struct{ Payload struct{ ContextID string } }
			if err := json.Unmarshal(o.Canonical, &body); err != nil {
				t.Fatal(err)
			}
			if body.Payload.ContextID != "" {
				contexts = append(contexts, body.Payload.ContextID)
			}
		}
	}
	return contexts
}

// TestC3_FollowerAndProviderAreKilled follows the sample with the real program while both ends are killed with -9: the
// state ends with the whole snapshot and every change exactly once, in order, in one generation.
func TestC3_FollowerAndProviderAreKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, state := filepath.Join(dir, "data"), filepath.Join(dir, "state")
	provider, ready := Dev(t, data)
	follow := func() *Process { return Start(t, "follow", ready.BaseURL, "ls_catalogue", "--state", state) }

	first := follow()
	next(t, first, "snapshot-complete")
	next(t, first, "live")
	want := []string{"while-it-watches"}
	if at := change(t, ready, want[0]); next(t, first, "invalidated").Sequence != at {
		t.Fatal("another sequence came")
	}
	first.Kill()
	for _, name := range []string{"while-away-1", "while-away-2", "while-away-3"} {
		change(t, ready, name)
		want = append(want, name)
	}
	second := follow()
	next(t, second, "resumed")
	for _, name := range want[1:] {
		if got := next(t, second, "invalidated").ContextID; got != name {
			t.Fatalf("%s came, want %s", got, name)
		}
	}
	if _, contexts := held(t, state); !slices.Equal(contexts, want) {
		t.Fatalf("the state holds %v, want %v", contexts, want)
	}

	// Now the provider dies under the waiting follower.
	provider.Kill()
	provider, again := Dev(t, data)
	if again != ready {
		t.Fatalf("the provider came back as %+v, was %+v", again, ready)
	}
	want = append(want, "after-the-restart")
	at := change(t, again, "after-the-restart")
	if e := next(t, second, "invalidated"); e.ContextID != "after-the-restart" || e.Sequence != at {
		t.Fatalf("%+v came", e)
	}
	if code := second.Interrupt(); code != 0 {
		t.Fatalf("the follower ended with %d:\n%s", code, second.Stderr())
	}
	rows, contexts := held(t, state)
	if !slices.Equal(contexts, want) {
		t.Fatalf("the state holds %v, want %v", contexts, want)
	}
	if rows != 58 {
		t.Fatalf("the state holds %d rows of the sample's 58", rows)
	}
	if code := provider.Interrupt(); code != 0 {
		t.Fatalf("the provider ended with %d:\n%s", code, provider.Stderr())
	}
}
