package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
)

// admin runs `overlayd admin` against a dev and returns what it printed, one object a line.
func admin(t *testing.T, data string, args ...string) []map[string]any {
	t.Helper()
	r := e2e.Run(t, append([]string{"admin", "--data", data}, args...)...)
	if r.Code != 0 || r.Stderr != "" {
		t.Fatalf("admin %v: code %d, %s", args, r.Code, r.Stderr)
	}
	var all []map[string]any
	for line := range strings.Lines(r.Stdout) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("admin %v: %v in %s", args, err, line)
		}
		all = append(all, one)
	}
	return all
}

// changes runs an order and checks what it says.
func changes(t *testing.T, data string, want bool, args ...string) {
	t.Helper()
	if got := admin(t, data, args...); len(got) != 1 || got[0]["changed"] != want {
		t.Errorf("admin %v: %v, want changed %v", args, got, want)
	}
}

func TestA3_AdminGrantsListsRemovesAndRevokes(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, ready := e2e.Dev(t, data, "--sample", "none")
	anybody := e2e.NewCaller(t, ready.BaseURL)
	m, _ := anybody.Capabilities()
	if len(m.Services) != 2 || m.Services[0].Name != devService || m.Services[1].Name != devMembers ||
		m.Services[1].Profiles[0].Authentication != wire.AuthenticationBRC103 || m.Services[0].RulesDigest != m.Services[1].RulesDigest {
		t.Fatalf("dev serves %+v", m.Services)
	}
	member := anybody.As(21)
	member.Open(devMembers).Refused(t, wire.Unauthorized) // dev grants nobody
	member.Open(devService).Refused(t, wire.Unauthorized)
	anybody.Open(devMembers).Refused(t, wire.Unauthorized)

	changes(t, data, true, "grant", devMembers, member.Identity())
	changes(t, data, false, "grant", devMembers, member.Identity())
	removed, kept := member.Open(devMembers).Batch(t), member.Open(devMembers).Batch(t)
	public := anybody.Open(devService).Batch(t)

	if all := admin(t, data, "sessions"); len(all) != 3 {
		t.Errorf("sessions %v", all)
	}
	if all := admin(t, data, "sessions", "--service", devService); len(all) != 1 || all[0]["principal"] != nil || all[0]["state"] != "open" {
		t.Errorf("public sessions %v", all)
	}
	all := admin(t, data, "sessions", "--principal", member.Identity(), "--service", devMembers)
	if len(all) != 2 || all[0]["principal"] != member.Identity() || all[1]["service"] != devMembers {
		t.Fatalf("the member's sessions %v", all)
	}
	if feeds := admin(t, data, "feeds"); len(feeds) != 1 || feeds[0]["feed"] != devFeed || feeds[0]["sessions"] != 3.0 {
		t.Errorf("feeds %v", feeds)
	}

	ref, _ := all[0]["ref"].(string)
	changes(t, data, true, "sessions", "--remove", ref)
	changes(t, data, false, "sessions", "--remove", ref)
	// Which of the two it was is not to be seen from outside: one of them goes on.
	good := 0
	for _, b := range []*wire.Batch{removed, kept} {
		if a := member.Read(b, 0); a.Status == http.StatusOK {
			good++
		} else {
			a.Refused(t, wire.Unauthorized)
		}
	}
	if good != 1 {
		t.Errorf("%d of the member's sessions go on", good)
	}
	changes(t, data, true, "revoke", devMembers, member.Identity())
	changes(t, data, false, "revoke", devMembers, member.Identity())
	changes(t, data, true, "grant", devMembers, member.Identity()) // which revives nothing
	for _, b := range []*wire.Batch{removed, kept} {
		member.Read(b, 0).Refused(t, wire.Unauthorized)
	}
	member.Open(devMembers).Batch(t)
	anybody.Read(public, 0).Batch(t)
}

func TestA5_AdminProhibitsAndAllows(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, ready := e2e.Dev(t, data, "--sample", "none")
	line := rows(t, 51, 1)[0]
	if status, body := call(t, ready, http.MethodPost, "/operator/v1/feeds/catalogue/groups", line); status != 200 {
		t.Fatal(body)
	}
	var group struct {
		Edits []struct {
			Output struct {
				TxID        string
				OutputIndex uint32
			}
		}
	}
	if err := json.Unmarshal([]byte(line), &group); err != nil {
		t.Fatal(err)
	}
	txid := group.Edits[0].Output.TxID
	at := fmt.Sprintf("%s.%d", txid, group.Edits[0].Output.OutputIndex)
	anybody := e2e.NewCaller(t, ready.BaseURL)
	shown := func() bool {
		return strings.Contains(string(anybody.Open(devService).Body), txid)
	}
	if !shown() {
		t.Fatal("the row is not there")
	}
	changes(t, data, true, "prohibit", devFeed, at, "--reason", "a test of it")
	changes(t, data, false, "prohibit", devFeed, at, "--reason", "again")
	if shown() {
		t.Error("a prohibited row is shown")
	}
	changes(t, data, true, "allow", devFeed, at)
	changes(t, data, false, "allow", devFeed, at)
	if !shown() {
		t.Error("a row is not shown again")
	}

	for want, args := range map[string][]string{
		"there is no feed of this name":    {"prohibit", "other", txid + ".0", "--reason", "r"},
		"an outpoint is written":           {"allow", devFeed, txid},
		"there is no service of this name": {"grant", devService, anybody.As(1).Identity()},
		"an identity is a compressed":      {"revoke", devMembers, "02"},
		"a session's ref is written":       {"sessions", "--remove", "x"},
		"a principal is a compressed":      {"sessions", "--principal", "x"},
	} {
		if r := e2e.Run(t, append([]string{"admin", "--data", data}, args...)...); r.Code != 1 || r.Stdout != "" ||
			!strings.HasPrefix(r.Stderr, "overlayd: the operator API refused: "+want) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("admin %v: code %d, %s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	for want, args := range map[string][]string{
		"say why with --reason":       {"admin", "prohibit", devFeed, txid + ".0"},
		"admin needs a command":       {"admin"},
		"leave --service":             {"admin", "sessions", "--remove", "x", "--service", "y"},
		"accepts 2 arg(s)":            {"admin", "grant", devMembers},
		`unknown command "bogus"`:     {"admin", "bogus"},
		"no overlayd dev was started": {"admin", "feeds", "--data", t.TempDir()},
	} {
		if r := e2e.Run(t, args...); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: code %d, %s", args, r.Code, r.Stderr)
		}
	}
	r := e2e.Run(t, "admin", "feeds", "--operator", "http://127.0.0.1:1", "--token", "0123456789abcdef")
	if r.Code != 1 || !strings.Contains(r.Stderr, "the operator API cannot be reached") {
		t.Errorf("nowhere: code %d, %s", r.Code, r.Stderr)
	}
}

func TestAdminTablesAreReadAndSteerNoTerminal(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	table := &table{columns: []string{"service", "principal", "openedAt", "rows"}, tab: tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)}
	for _, object := range []string{
		`{"service":"ls_a","openedAt":"1700000000","rows":12345678901234567,"more":1}`,
		`{"service":"\u001b[2J\nx","principal":"02ab","openedAt":"18446744073709551615","rows":0}`,
	} {
		if err := table.row(json.RawMessage(object)); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	want := "ls_a     -     2023-11-14T22:13:20Z  12345678901234567\n?[2J?x  02ab  18446744073709551615  0\n"
	if got := b.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") || strings.ContainsRune(got, 0x1b) {
		t.Errorf("table\n%s", got)
	}
	if err := table.row(json.RawMessage(`[]`)); err == nil {
		t.Error("a row that is no object is taken")
	}
}
