package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestFollow_RefusesWithASentence(t *testing.T) {
	t.Parallel()
	locked := t.TempDir()
	state, err := sqlitestate.Open(t.Context(), locked)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() }) // after the parallel cases
	keys := t.TempDir()
	secret := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(keys, name)
		if err := errors.Join(os.WriteFile(path, []byte(text+"\n"), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const here = "http://127.0.0.1:1"
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no service", []string{here}, exitUsage, "accepts 2 arg"},
		{"unknown policy", []string{here, "ls", "--on-reset", "maybe"}, exitUsage, "use reopen or stop"},
		{"negative batches", []string{here, "ls", "--max-batches", "-1"}, exitUsage, "--max-batches"},
		{"no key there", []string{here, "ls", "--identity", filepath.Join(locked, "none")}, exitFailed, "--identity cannot be read"},
		{"key that others may read", []string{here, "ls", "--identity", secret("open.key", strings.Repeat("1", 64), 0o644)}, exitFailed, "run chmod 600"},
		{"no key in the file", []string{here, "ls", "--identity", secret("no.key", "not a key", 0o600)}, exitFailed, "neither 64 hex characters nor WIF"},
		{"key out of range", []string{here, "ls", "--identity", secret("zero.key", strings.Repeat("0", 64), 0o600)}, exitFailed, "out of range"},
		{"key and nobody there", []string{here, "ls", "--retry-for", "1ms", "--identity", secret("good.key", strings.Repeat("1", 64), 0o600)}, exitFailed,
			"requests are signed by 034f355bdcb7cc0af728ef3cceb9615d90684bb5b2ca5f859ab0f0b704075871aa"},
		{"plain http elsewhere", []string{"http://example.com", "ls"}, exitFailed, "use https"},
		{"query", []string{here, "ls", "--query", "{"}, exitFailed, "the query is not acceptable JSON"},
		{"fraction in the query", []string{here, "ls", "--query", `{"a":1.5}`}, exitFailed, "the query is not acceptable JSON"},
		{"identity", []string{here, "ls", "--expect-identity", "02"}, exitFailed, "the expected identity"},
		{"nobody there", []string{here, "ls", "--retry-for", "1ms"}, exitFailed, "no verified answer came"},
		{"state in use", []string{here, "ls", "--state", locked}, exitFailed, "in use by another follower"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			e := &env{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
			if code := run(t.Context(), e, append([]string{"follow"}, c.args...)); code != c.code {
				t.Errorf("code %d, want %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stderr is %q, want %q in it", stderr.String(), c.says)
			}
			if stdout.Len() != 0 {
				t.Errorf("stdout has %q", stdout.String())
			}
		})
	}
}

// An interrupt is a good end, and a temporary state is announced.
func TestFollow_Interrupt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var stderr bytes.Buffer
	e := &env{stdin: strings.NewReader(""), stdout: writer(func(line []byte) {
		if bytes.Contains(line, []byte(`"waiting"`)) {
			cancel()
		}
	}), stderr: &stderr}
	if code := run(ctx, e, []string{"follow", "http://127.0.0.1:1", "ls"}); code != exitFine {
		t.Errorf("code %d: %s", code, stderr.String())
	}
	if !strings.Contains(stderr.String(), "the state is temporary") {
		t.Errorf("stderr is %q", stderr.String())
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestFollow_Lines(t *testing.T) {
	t.Parallel()
	txid := strings.Repeat("ab", 32)
	group := client.Group{Generation: 1, Page: 2, Sequence: math.MaxUint64, ID: "group", Observations: []client.Observation{
		{ID: "o1", Kind: wire.KindSpend, Spend: &wire.Spend{Previous: wire.Outpoint{TxID: txid, OutputIndex: 3}, SpendingTxID: "cd", BEEF: make([]byte, 9)}},
		{ID: "o2", Kind: wire.KindWithdraw, Withdraw: &wire.Withdraw{Outpoint: wire.Outpoint{TxID: txid, OutputIndex: 3}, Reason: "spent <&>"}},
		{ID: "o3", Kind: wire.KindOutput, Output: &wire.Output{Evidence: wire.Evidence{TxID: txid, BEEF: make([]byte, 7)}, Context: &wire.Context{Schema: "urn:x", Bytes: make([]byte, 2)}}},
		{ID: "o4", Kind: wire.KindInvalidated, Invalidated: &wire.Invalidated{ContextID: "c", Reason: "reorg"}},
	}}
	snapshot := client.Group{Generation: 1, Sequence: 0, Snapshot: true, Observations: group.Observations[2:3]}
	for _, c := range []struct {
		event client.Event
		want  string
	}{
		{client.Opened{Generation: 1, Epoch: "e", W: 0, ExpiresAt: 9}, `{"event":"opened","generation":1,"sequence":"0","epoch":"e","expiresAt":"9"}`},
		{client.Resumed{Generation: 1, Phase: client.PhaseLive, Through: 4, HighWater: 5, ExpiresAt: 9}, `{"event":"resumed","generation":1,"phase":"live","sequence":"4","highWater":"5","expiresAt":"9"}`},
		{snapshot, `{"event":"output","generation":1,"phase":"snapshot","sequence":"0","id":"o3","group":[1,1],"outpoint":"` + txid + `.0","beefBytes":7,"context":{"schema":"urn:x","bytes":2},"verification":"pending"}`},
		{group, `{"event":"spend","generation":1,"phase":"live","sequence":"18446744073709551615","id":"o1","group":[1,4],"outpoint":"` + txid + `.3","spendingTxid":"cd","beefBytes":9,"verification":"pending"}
{"event":"withdraw","generation":1,"phase":"live","sequence":"18446744073709551615","id":"o2","group":[2,4],"outpoint":"` + txid + `.3","reason":"spent <&>"}
{"event":"output","generation":1,"phase":"live","sequence":"18446744073709551615","id":"o3","group":[3,4],"outpoint":"` + txid + `.0","beefBytes":7,"context":{"schema":"urn:x","bytes":2},"verification":"pending"}
{"event":"invalidated","generation":1,"phase":"live","sequence":"18446744073709551615","id":"o4","group":[4,4],"contextId":"c","reason":"reorg"}`},
		{client.SnapshotComplete{Generation: 1, W: 4}, `{"event":"snapshot-complete","generation":1,"sequence":"4"}`},
		{client.SnapshotComplete{Generation: 2, W: 4, Replaces: 1}, `{"event":"snapshot-complete","generation":2,"sequence":"4","replaces":1,"gone":0}`},
		{client.Live{Generation: 1, Through: 4, HighWater: 5}, `{"event":"live","generation":1,"sequence":"4","highWater":"5"}`},
		{client.Ended{Generation: 1, Code: client.CodeResetRequired, Reason: "r"}, `{"event":"reset","generation":1,"reason":"r"}`},
		{client.Ended{Generation: 1, Code: client.CodeExpired, Reason: "r"}, `{"event":"expired","generation":1,"reason":"r"}`},
		{client.Ended{Generation: 1, Code: client.CodeCancelled, Reason: "r"}, `{"event":"closed","generation":1,"reason":"r"}`},
		{client.Ended{Generation: 1, Code: wire.NotFound, Reason: "r"}, `{"event":"refused","generation":1,"reason":"r"}`},
		{client.Waiting{Err: errors.New("busy"), For: 480 * time.Millisecond}, `{"event":"waiting","reason":"busy","retryInMs":480}`},
	} {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		for _, line := range followLines(c.event) {
			if err := encoder.Encode(line); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != c.want {
			t.Errorf("%T:\n%s\nwant\n%s", c.event, got, c.want)
		}
	}
}
