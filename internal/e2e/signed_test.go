package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/client/sqlitestate"
)

// member is an identity: the file with its key, and its public key in hex.
func member(t *testing.T, dir string, seed byte) (file, public string) {
	t.Helper()
	key := secp256k1.PrivKeyFromBytes([]byte(strings.Repeat(string(rune(seed)), 32)))
	file = filepath.Join(dir, fmt.Sprintf("member-%d.key", seed))
	if err := os.WriteFile(file, fmt.Appendf(nil, "%x\n", key.Serialize()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, fmt.Sprintf("%x", key.PubKey().SerializeCompressed())
}

// grant gives an identity access to the members' service, or takes it away.
func grant(t *testing.T, ready Ready, method, public string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, ready.OperatorURL+"/operator/v1/services/ls_catalogue_members/grants/"+public, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+ready.OperatorToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is read
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s of a grant got %d", method, res.StatusCode)
	}
}

// TestC3_SignedFollowerIsKilled follows the members' service of the sample with the real program and a key, while both
// ends are killed with -9: nothing before the grant, everything exactly once and in order after it, and the end of the
// grant as a durable ending.
func TestC3_SignedFollowerIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, state := filepath.Join(dir, "data"), filepath.Join(dir, "state")
	key, public := member(t, dir, 'm')
	provider, ready := Dev(t, data)
	args := []string{"follow", ready.BaseURL, "ls_catalogue_members", "--state", state, "--expect-identity", ready.Identity}
	follow := func() *Process { return Start(t, append(args, "--identity", key)...) }

	if r := Run(t, args...); r.Code != 1 || !strings.Contains(r.Stderr, "--identity") {
		t.Fatalf("without a key: %d %s", r.Code, r.Stderr)
	}
	if r := Run(t, append(args, "--identity", key, "--on-reset", "stop")...); r.Code != 1 || !strings.Contains(r.Stderr, public) || strings.Contains(r.Stdout, "opened") {
		t.Fatalf("without a grant: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := Run(t, "follow", ready.BaseURL, "ls_catalogue", "--identity", key); r.Code != 1 || !strings.Contains(r.Stderr, "leave out --identity") {
		t.Fatalf("a public service with a key: %d %s", r.Code, r.Stderr)
	}
	grant(t, ready, http.MethodPut, public)

	first := follow()
	next(t, first, "snapshot-complete")
	next(t, first, "live")
	want := []string{"signed-while-it-watches"}
	if at := change(t, ready, want[0]); next(t, first, "invalidated").Sequence != at {
		t.Fatal("another sequence came")
	}
	first.Kill()
	for _, name := range []string{"signed-while-away-1", "signed-while-away-2"} {
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

	// Now the provider dies under the waiting follower, whose BRC-104 session it may not know afterwards.
	provider.Kill()
	provider, again := Dev(t, data)
	if again != ready {
		t.Fatalf("the provider came back as %+v, was %+v", again, ready)
	}
	want = append(want, "signed-after-the-restart")
	at := change(t, again, "signed-after-the-restart")
	if e := next(t, second, "invalidated"); e.ContextID != "signed-after-the-restart" || e.Sequence != at {
		t.Fatalf("%+v came", e)
	}

	grant(t, ready, http.MethodDelete, public)
	next(t, second, "unauthorized")
	if code := second.Wait(); code != 1 {
		t.Fatalf("the follower ended with %d:\n%s", code, second.Stderr())
	}
	rows, contexts := signedState(t, state, public)
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

// signedState is what the state holds of the one source that was ever opened: its stale rows, and the invalidations in
// the order received.
func signedState(t *testing.T, dir, public string) (rows int, contexts []string) {
	t.Helper()
	state, err := sqlitestate.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close() //nolint:errcheck // it only read
	sources, err := state.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sources, func(s sqlitestate.Source) bool { return s.Principal == public })
	if i < 0 || sources[i].Ended == nil || sources[i].Ended.Code != "unauthorized" {
		t.Fatalf("sources %+v", sources)
	}
	for row, err := range state.Rows(t.Context(), sources[i]) {
		if err != nil {
			t.Fatal(err)
		}
		if row.Present && row.Freshness == sqlitestate.Stale {
			rows++
		}
	}
	return rows, contextsOf(t, state, sources[i])
}
