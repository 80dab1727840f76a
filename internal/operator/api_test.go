package operator

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/lookup"
)

const feedPath = "/operator/v1/feeds/catalogue"

func TestP1_WithoutTheTokenNothingIsToldButHealth(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + token + "x", "Basic " + token, token} {
		for _, path := range []string{"/operator/v1/feeds", feedPath, "/metrics", "/nothing", "/operator/v1/feeds/unknown"} {
			status, body, header := s.askAs(authorization, http.MethodGet, path, "")
			s.refused(status, body, 401, wire.Unauthorized)
			if header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: no challenge", path)
			}
		}
		status, body, _ := s.askAs(authorization, http.MethodPost, feedPath+"/groups", groups(t, 1, 1)[0])
		s.refused(status, body, 401, wire.Unauthorized)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body, _ := s.askAs("", http.MethodGet, path, ""); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _, _ := s.askAs("bearer "+token, http.MethodGet, "/operator/v1/feeds", ""); status != 200 {
		t.Error("the scheme's case is judged")
	}
	if _, err := New(Config{Token: "short"}); err == nil {
		t.Error("a short token is taken")
	}
}

func TestL11_OperatorReplaysAKeyAndRefusesAnotherBody(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 2, 3)
	for i, line := range lines {
		status, body, header := s.ask(http.MethodPost, feedPath+"/groups", line)
		n := strconv.Itoa(i + 1)
		if want := `{"highWater":"` + n + `","replayed":false,"sequence":"` + n + `"}`; status != 200 || body != want {
			t.Fatalf("group %d: %d %s, want %s", i, status, body, want)
		}
		if header.Get("Content-Type") != "application/json" || header.Get("Cache-Control") != "private, no-store" {
			t.Errorf("header %v", header)
		}
	}
	// The same body, spelled differently.
	respelled := " " + strings.Replace(lines[1], `"edits":`, `"edits" : `, 1) + "\n"
	if status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", respelled); status != 200 || body != `{"highWater":"3","replayed":true,"sequence":"2"}` {
		t.Errorf("replay: %d %s", status, body)
	}
	// The same key over another body, which is at fault besides: the key decides first.
	var group map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &group); err != nil {
		t.Fatal(err)
	}
	group["edits"] = []any{map[string]any{"op": "withdraw"}}
	other, err := json.Marshal(group)
	if err != nil {
		t.Fatal(err)
	}
	status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", string(other))
	s.refused(status, body, 409, wire.Conflict)
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != 3 {
		t.Errorf("head %d, %v", stats.Head, err)
	}
}

func TestH5_OperatorErrorsHaveTheCommonShape(t *testing.T) {
	t.Parallel()
	s := start(t)
	line := groups(t, 3, 1)[0]
	second := `,{"op":"withdraw","outpoint":{"txid":"` + strings.Repeat("0", 64) + `","outputIndex":0},"reason":""}]`
	atFault := line[:strings.LastIndex(line, "]")] + second + line[strings.LastIndex(line, "]")+1:]
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code               wire.Code
		says, allow        string
	}{
		"no JSON":               {"POST", feedPath + "/groups", "{", 400, wire.Invalid, "", ""},
		"no key":                {"POST", feedPath + "/groups", `{"edits":[]}`, 400, wire.Invalid, "key", ""},
		"an edit at fault":      {"POST", feedPath + "/groups", atFault, 400, wire.Invalid, "edit 1", ""},
		"too large":             {"POST", feedPath + "/groups", strings.Repeat(" ", MaxGroupBytes+1), 413, wire.Limited, "8388608", ""},
		"unknown feed":          {"GET", "/operator/v1/feeds/other", "", 404, wire.NotFound, "feed", ""},
		"group of unknown feed": {"POST", "/operator/v1/feeds/other/groups", line, 404, wire.NotFound, "feed", ""},
		"import of unknown":     {"POST", "/operator/v1/feeds/other/import", line, 404, wire.NotFound, "feed", ""},
		"unknown path":          {"GET", "/operator/v1/nothing", "", 404, wire.NotFound, "", ""},
		"slash at the end":      {"GET", "/operator/v1/feeds/", "", 404, wire.NotFound, "", ""},
		"other case":            {"GET", "/operator/v1/Feeds", "", 404, wire.NotFound, "", ""},
		"epoch of unknown":      {"POST", "/operator/v1/feeds/other/epoch", `{"key":"0123456789abcdef","mode":"retire"}`, 404, wire.NotFound, "feed", ""},
		"wrong method on epoch": {"GET", feedPath + "/epoch", "", 405, wire.Invalid, "Allow", "POST"},
		"wrong method":          {"DELETE", feedPath, "", 405, wire.Invalid, "Allow", "GET"},
		"wrong method on POST":  {"GET", feedPath + "/import", "", 405, wire.Invalid, "Allow", "POST"},
		"OPTIONS":               {"OPTIONS", feedPath, "", 405, wire.Invalid, "Allow", "GET"},
		"OPTIONS of nothing":    {"OPTIONS", "/nothing", "", 404, wire.NotFound, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, header := s.ask(c.method, c.path, c.body)
			e := s.refused(status, body, c.status, c.code)
			if !strings.Contains(e.Message, c.says) {
				t.Errorf("message %q does not say %q", e.Message, c.says)
			}
			if !strings.Contains(header.Get("Allow"), c.allow) {
				t.Errorf("Allow %q lacks %q", header.Get("Allow"), c.allow)
			}
			if e.Retryable || header.Get("Cache-Control") != "private, no-store" {
				t.Errorf("retryable %v, header %v", e.Retryable, header)
			}
		})
	}
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != 0 {
		t.Errorf("head %d, %v", stats.Head, err)
	}
}

func TestFeedsShowWhatTheyHold(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.Sessions = func(_ context.Context, feed string) (lookup.SessionCount, error) {
			if feed != "catalogue" {
				t.Errorf("asked for the sessions of %q", feed)
			}
			return lookup.SessionCount{Open: 4, Pins: 5, Oldest: 1}, nil
		}
	})
	for _, line := range groups(t, 4, 2) {
		if status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", line); status != 200 {
			t.Fatal(body)
		}
	}
	waiter := s.feed.Watch()
	defer waiter.Close()
	_, body, _ := s.ask(http.MethodGet, feedPath, "")
	var one feedView
	if err := json.Unmarshal([]byte(body), &one); err != nil {
		t.Fatal(err)
	}
	if one.Feed != "catalogue" || len(one.Epoch) == 0 || one.Head != "2" || one.Floor != "0" || one.Groups != 2 || one.Rows < 1 || one.Versions < one.Rows ||
		one.Sessions != 4 || one.Pins != 5 || one.Waiters != 1 || one.DueTimers != 0 ||
		one.OldestPin != "1" || one.Removable != 1 {
		t.Errorf("feed %+v", one)
	}
	_, body, _ = s.ask(http.MethodGet, "/operator/v1/feeds", "")
	var all struct{ Feeds []feedView }
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all.Feeds) != 1 || all.Feeds[0] != one {
		t.Errorf("feeds %s, %v", body, err)
	}
}

func TestReadyTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	failing := errors.New("a cause for the log only")
	s := start(t, func(c *Config) {
		c.Checks = []Check{
			{Name: "database", Probe: func(context.Context) error { return nil }},
			{Name: "notifications", Advisory: true, Probe: func(context.Context) error { return failing }},
		}
	})
	if status, body, _ := s.ask(http.MethodGet, "/readyz", ""); status != 200 || body != `{"checks":{"database":"ok","notifications":"degraded"},"ready":true}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
	s.api.checks[1].Advisory = false
	status, body, _ := s.ask(http.MethodGet, "/readyz", "")
	if status != 503 || body != `{"checks":{"database":"ok","notifications":"failing"},"ready":false}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
	s.api.checks = nil
	s.api.Drain()
	if status, body, _ := s.ask(http.MethodGet, "/readyz", ""); status != 503 || !strings.Contains(body, `"shutdown":"failing"`) {
		t.Errorf("while draining: %d %s", status, body)
	}
	if status, _, _ := s.ask(http.MethodGet, "/healthz", ""); status != 200 {
		t.Errorf("health while draining: %d", status)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.log.String(), failing.Error()) {
		t.Error("the cause is not in the log")
	}
}

func TestMetricsCountRequestsAndLines(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 5, 2)
	if status, body, _ := s.ask(http.MethodPost, feedPath+"/import", lines[0]+"\n"+lines[0]+"\nx\n"+lines[1]); status != 200 {
		t.Fatal(body)
	}
	status, body, _ := s.ask(http.MethodGet, "/metrics", "")
	if status != 200 {
		t.Fatal(body)
	}
	for _, want := range []string{
		`overlayd_import_lines_total{feed="catalogue",result="appended"} 2`,
		`overlayd_import_lines_total{feed="catalogue",result="replayed"} 1`,
		`overlayd_import_lines_total{feed="catalogue",result="invalid"} 1`,
		`overlayd_operator_requests_total{route="/operator/v1/feeds/:feed/import",status="200"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("missing %s", want)
		}
	}
}

func TestP5_APanicIsAnAnswerWithoutItsCause(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.Sessions = func(context.Context, string) (lookup.SessionCount, error) { panic("private detail") }
	})
	status, body, _ := s.ask(http.MethodGet, feedPath, "")
	e := s.refused(status, body, 503, wire.Unavailable)
	if strings.Contains(body, "private") || !e.Retryable {
		t.Errorf("body %s", body)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.log.String(), "private detail") {
		t.Error("the cause is not in the log")
	}
}
