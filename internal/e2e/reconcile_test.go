package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// told is a line of `overlayd follow --reconcile`, as far as these tests look.
type told struct {
	Event, Source, Outpoint, State, By, TxID, Group, Reason, Accepted string
	Sources, Waiting                                                  []string
}

// until reads lines up to the first that is wanted, and returns all of them.
func until(t *testing.T, p *Process, what string, want func(told) bool) (lines []told) {
	t.Helper()
	for {
		text, ok := p.Line()
		if !ok {
			t.Fatalf("the follower ended (%d) before %s:\n%s", p.Wait(), what, p.Stderr())
		}
		var line told
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if lines = append(lines, line); want(line) {
			return lines
		}
	}
}

// appendGroup puts a group into a provider's feed.
func appendGroup(t *testing.T, ready Ready, key string, edits ...string) {
	t.Helper()
	body := fmt.Sprintf(`{"key":"a-group-of-this-test-%s","edits":[%s]}`, key, strings.Join(edits, ","))
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
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("group %s: %d %s", key, res.StatusCode, text)
	}
}

func put(tx *verifytest.Tx, index uint32, beef []byte) string {
	return fmt.Sprintf(`{"op":"put","output":{"txid":"%s","outputIndex":%d,"beef":"%s"}}`, tx.ID, index, base64.StdEncoding.EncodeToString(beef))
}

func spends(o spend.Outpoint, by *verifytest.Tx, beef []byte) string {
	return fmt.Sprintf(`{"op":"spend","outpoint":{"txid":"%s","outputIndex":%d},"spendingTxid":"%s","beef":"%s"}`,
		o.TxID, o.Index, by.ID, base64.StdEncoding.EncodeToString(beef))
}

// coinsOf makes n mined transactions with one output each.
func coinsOf(c *verifytest.Chain, n int) []*verifytest.Tx {
	var out []*verifytest.Tx
	for i := range n {
		out = append(out, verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(uint32(i))}}))
	}
	c.Mine(out...)
	return out
}

// knowledge looks at the store of a directory.
func knowledge(t *testing.T, dir string) reconcile.Store {
	t.Helper()
	b, err := sqlitestore.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := reconcile.Open(t.Context(), b, reconcile.Options{ReadOnly: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// states are the listed outputs of a store and how many sources list each; the store computes the same anew.
func states(t *testing.T, dir string) (states map[string]reconcile.OutputState, sources map[string]int) {
	t.Helper()
	s := knowledge(t, dir)
	if differences, err := s.Audit(context.Background()); err != nil || len(differences) > 0 {
		t.Errorf("the audit of the store finds %+v, %v", differences, err)
	}
	snap, err := s.Read(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close() //nolint:errcheck // it only read
	states, sources = map[string]reconcile.OutputState{}, map[string]int{}
	for o, err := range snap.Outputs("") {
		if err != nil {
			t.Fatal(err)
		}
		states[o.Outpoint.String()], sources[o.Outpoint.String()] = o.State, len(o.Sources)
	}
	return states, sources
}

// TestR2_R9_SampleIsProvedFromTwoProviders follows two providers of the sample: every row of it is real, and is listed by
// both. Without a chain to prove it with, none of it counts.
func TestR2_R9_SampleIsProvedFromTwoProviders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, one := Dev(t, filepath.Join(dir, "one"))
	_, two := Dev(t, filepath.Join(dir, "two"))
	roots, state := filepath.Join(dir, "one", "roots.ndjson"), filepath.Join(dir, "state")
	args := []string{"follow", "--reconcile", one.BaseURL, two.BaseURL, "ls_catalogue", "--until-live", "--wait-ms", "0",
		"--expect-identity", one.Identity, "--expect-identity", two.Identity}

	if r := Run(t, args...); r.Code != 1 || !strings.Contains(r.Stderr, "nothing can be proved") || !strings.Contains(r.Stderr, "still pending") ||
		strings.Contains(r.Stdout, `"output"`) || !strings.Contains(r.Stdout, `"event":"pending"`) {
		t.Errorf("without a chain: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	r := Run(t, append(args, "--roots", roots, "--state", state)...)
	if r.Code != 0 {
		t.Fatalf("code %d:\n%s", r.Code, r.Stderr)
	}
	last := map[string]told{}
	for text := range strings.Lines(r.Stdout) {
		var line told
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if line.Event == "output" {
			last[line.Outpoint] = line
		}
	}
	kept, listed := states(t, state)
	if len(last) != 58 || len(kept) != 58 {
		t.Fatalf("%d outputs were told and %d are kept of the sample's 58", len(last), len(kept))
	}
	for o, line := range last {
		if line.State != "current" || kept[o] != reconcile.Current || listed[o] != 2 || !slices.Contains(line.Sources, one.BaseURL) || !slices.Contains(line.Sources, two.BaseURL) {
			t.Errorf("%s: told %+v, kept %s of %d sources", o, line, kept[o], listed[o])
		}
	}
	// Nothing is new to a second run, which says where the store stands.
	if r := Run(t, append(args, "--roots", roots, "--state", state)...); r.Code != 0 || strings.Contains(r.Stdout, `"output"`) || !strings.Contains(r.Stdout, `"event":"store"`) {
		t.Errorf("again: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	// A state is of one kind.
	if r := Run(t, "follow", one.BaseURL, "ls_catalogue", "--until-live", "--state", state); r.Code != 1 || !strings.Contains(r.Stderr, "use another directory") {
		t.Errorf("without --reconcile in the same directory: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestC3_R4_R7_ReconcilingFollowerIsKilled follows two providers while it and one of them are killed with -9: a child
// before its parent is pending and counts for nothing, a spend that only one of them tells of ends what both list, and
// the store is the same whenever anybody was killed.
func TestC3_R4_R7_ReconcilingFollowerIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chain := verifytest.NewChain(t)
	coins := coinsOf(chain, 4)
	child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coins[3].Out(0)}})
	spender := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{coins[0].Out(0)}})
	headers, state := filepath.Join(dir, "headers.bin"), filepath.Join(dir, "state")
	if err := os.WriteFile(headers, chain.Tip().Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "one")
	provider, one := Dev(t, data, "--sample", "none")
	_, two := Dev(t, filepath.Join(dir, "two"), "--sample", "none")
	for _, ready := range []Ready{one, two} {
		appendGroup(t, ready, "coin-0", put(coins[0], 0, chain.BEEF(coins[0], verifytest.Evidence{})))
		appendGroup(t, ready, "coin-1", put(coins[1], 0, chain.BEEF(coins[1], verifytest.Evidence{})))
	}
	follow := func() *Process {
		return Start(t, "follow", "--reconcile", one.BaseURL, two.BaseURL, "ls_catalogue", "--headers", headers, "--state", state)
	}

	first := follow()
	seen := map[string]int{}
	until(t, first, "both coins of both providers", func(l told) bool {
		if l.Event == "output" && l.State == "current" {
			seen[l.Outpoint] = max(seen[l.Outpoint], len(l.Sources))
		}
		return seen[coins[0].Outpoint(0).String()] == 2 && seen[coins[1].Outpoint(0).String()] == 2
	})
	// The child comes alone: it waits, named with what it waits for.
	appendGroup(t, one, "child", put(child, 0, chain.BEEF(child, verifytest.Evidence{RawOnly: true})))
	lines := until(t, first, "the child is pending", func(l told) bool { return l.Event == "pending" })
	if l := lines[len(lines)-1]; l.Source != one.BaseURL || !slices.Equal(l.Waiting, []string{coins[3].Outpoint(0).String()}) {
		t.Errorf("pending: %+v", l)
	}
	first.Kill()

	// While it is away: the second provider tells of a spend, and of the parent.
	appendGroup(t, two, "spend", spends(coins[0].Outpoint(0), spender, chain.BEEF(spender, verifytest.Evidence{})))
	appendGroup(t, two, "parent", put(coins[3], 0, chain.BEEF(coins[3], verifytest.Evidence{})))
	second := follow()
	want := map[spend.Outpoint]string{coins[0].Outpoint(0): "spent", coins[3].Outpoint(0): "spent", child.Outpoint(0): "current"}
	until(t, second, "the spends and the child", func(l told) bool {
		for o, state := range want {
			if l.Event == "output" && l.Outpoint == o.String() && l.State == state {
				if o == coins[0].Outpoint(0) && l.By != spender.ID.String() || o == coins[3].Outpoint(0) && l.By != child.ID.String() {
					t.Errorf("spent by another: %+v", l)
				}
				delete(want, o)
			}
		}
		return len(want) == 0
	})

	// The first provider dies under it, comes back, and lists the spent coin anew: it stays spent.
	provider.Kill()
	until(t, second, "the provider is away", func(l told) bool { return l.Event == "waiting" && l.Source == one.BaseURL })
	_, again := Dev(t, data)
	if again.BaseURL != one.BaseURL {
		t.Fatalf("the provider came back as %+v, was %+v", again, one)
	}
	appendGroup(t, again, "again", put(coins[0], 0, chain.BEEF(coins[0], verifytest.Evidence{})), put(coins[2], 0, chain.BEEF(coins[2], verifytest.Evidence{})))
	for _, l := range until(t, second, "a coin after the restart", func(l told) bool { return l.Outpoint == coins[2].Outpoint(0).String() }) {
		if l.Outpoint == coins[0].Outpoint(0).String() && l.State != "spent" {
			t.Errorf("the spent coin came back: %+v", l)
		}
	}
	if code := second.Interrupt(); code != 0 {
		t.Fatalf("the follower ended with %d:\n%s", code, second.Stderr())
	}
	kept, _ := states(t, state)
	for o, want := range map[spend.Outpoint]reconcile.OutputState{
		coins[0].Outpoint(0): reconcile.Spent, coins[1].Outpoint(0): reconcile.Current, coins[2].Outpoint(0): reconcile.Current,
		coins[3].Outpoint(0): reconcile.Spent, child.Outpoint(0): reconcile.Current,
	} {
		if kept[o.String()] != want {
			t.Errorf("%s is %q, want %q", o, kept[o.String()], want)
		}
	}
	if len(kept) != 5 {
		t.Errorf("%d outputs are kept: %v", len(kept), kept)
	}
}

// TestC1_C7_SignedSourceIsReconciled follows the members' service: only with a key that has a grant, and what it is told
// is a source of its own beside the public service of the same provider.
func TestC1_C7_SignedSourceIsReconciled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, public := member(t, dir, 'r')
	_, ready := Dev(t, filepath.Join(dir, "data"))
	roots, state := filepath.Join(dir, "data", "roots.ndjson"), filepath.Join(dir, "state")
	args := func(service string, more ...string) []string {
		return append([]string{"follow", "--reconcile", ready.BaseURL, service, "--roots", roots, "--state", state, "--until-live", "--expect-identity", ready.Identity}, more...)
	}
	if r := Run(t, args("ls_catalogue_members")...); r.Code != 1 || !strings.Contains(r.Stderr, "name its file with --identity") {
		t.Errorf("without a key: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := Run(t, args("ls_catalogue", "--identity", key)...); r.Code != 1 || !strings.Contains(r.Stderr, "leave out --identity") {
		t.Errorf("a public service with a key: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := Run(t, args("ls_catalogue")...); r.Code != 0 {
		t.Fatalf("the public service: %d %s", r.Code, r.Stderr)
	}
	if r := Run(t, args("ls_catalogue_members", "--identity", key, "--on-reset", "stop")...); r.Code != 1 || strings.Contains(r.Stdout, `"output"`) {
		t.Errorf("without a grant: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	grant(t, ready, http.MethodPut, public)
	r := Run(t, args("ls_catalogue_members", "--identity", key)...)
	if r.Code != 0 || !strings.Contains(r.Stderr, public) || !strings.Contains(r.Stdout, ready.BaseURL+" ls_catalogue\"") {
		t.Errorf("with a grant: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	_, listed := states(t, state)
	for o, n := range listed {
		if n != 2 {
			t.Errorf("%s is listed by %d sources", o, n)
		}
	}
	if len(listed) != 58 {
		t.Errorf("%d outputs of the sample's 58", len(listed))
	}
}
