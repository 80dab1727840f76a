package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/house"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// contextOf outlives the test: for what is cleaned up after it.
func contextOf(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// shippedFile is a file of this source tree.
func shippedFile(t *testing.T, path string) []byte {
	t.Helper()
	root, err := house.Root()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var (
	metricName = regexp.MustCompile(`\b(?:overlayd|process|go)_[a-z][a-z0-9_]*\b`)
	selector   = regexp.MustCompile(`(\b(?:overlayd|process|go)_[a-z0-9_]+)(\{[^}]*\})`)
	matcher    = regexp.MustCompile(`([a-z_]+)(=~|=|!=)"`)
	variable   = regexp.MustCompile(`\$\{?([a-z_]+)`)
)

// dashboard is what is looked at of a Grafana dashboard.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, RefID string }
		Datasource  *struct{ Type, UID string }
		FieldConfig json.RawMessage
	}
}

// expressions are all queries of a dashboard.
func (d *dashboard) expressions() (list []string) {
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			list = append(list, v.Definition)
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			list = append(list, target.Expr)
		}
	}
	return list
}

func theDashboard(t *testing.T) *dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal(shippedFile(t, "deploy/grafana/overlayd.json"), &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

func TestDashboard_IsOne(t *testing.T) {
	t.Parallel()
	d := theDashboard(t)
	if d.Title != "overlayd" || d.UID == "" || d.SchemaVersion < 36 || len(d.Panels) < 20 {
		t.Errorf("%q %q version %d, %d panels", d.Title, d.UID, d.SchemaVersion, len(d.Panels))
	}
	names := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q is there twice or has no name", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, lies := taken[[2]int{x, y}]; lies || x > 23 {
					t.Fatalf("panel %q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 || p.Description == "" {
			t.Errorf("panel %q lacks a data source, a query or a word on what it is for", p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") || strings.Count(target.Expr, "{") != strings.Count(target.Expr, "}") {
				t.Errorf("panel %q asks %s", p.Title, target.Expr)
			}
			refs[target.RefID] = true
			for _, v := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(names, v[1]) {
					t.Errorf("panel %q asks for %s, which nobody sets", p.Title, v[0])
				}
			}
		}
	}
}

// TestDashboard_AsksForWhatThereIs: every metric that the dashboard or the documentation names is in /metrics of a provider that has
// done a little of everything, and has the labels that the dashboard chooses by.
func TestDashboard_AsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	options, at := served(t, pgtest.New(t).URL, setup{more: "retention: {everySeconds: 1}"})
	e2e.StartWith(t, options, "serve")
	ready(t, at)
	if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
		t.Fatal(body)
	}
	if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/catalogue/import", change(2)); status != 200 {
		t.Fatal(body)
	}
	s := openSession(t, at.BaseURL)
	if status, text := s.post("read", fmt.Sprintf(`{"version":1,"session":%q,"cursor":"none","limits":{"maxBytes":1000000,"maxObservations":100,"waitMs":0}}`, s.session)); status == 200 {
		t.Fatalf("a cursor of nobody's is taken: %s", text)
	}
	var text string
	testkit.Eventually(t, "retention has done a round that the session holds back", func() bool {
		_, text = call(t, at, http.MethodGet, "/metrics", "")
		return strings.Contains(text, `overlayd_lookup_oldest_watermark{feed="catalogue"} 2`) && strings.Contains(text, `overlayd_livefeed_floor_lag_groups{database="main",feed="catalogue"}`) &&
			strings.Contains(text, `overlayd_lookup_sessions{service="ls_catalogue"}`)
	})
	labels := map[string]map[string]bool{} // of each metric's series
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name := metricName.FindString(line)
		if labels[name] == nil {
			labels[name] = map[string]bool{"instance": true} // which Prometheus adds
		}
		for _, m := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(line, -1) {
			labels[name][m[1]] = true
		}
	}
	for name, has := range labels {
		if strings.HasPrefix(name, "overlayd_livefeed_") && !has["database"] {
			t.Errorf("%s does not say of which database", name)
		}
	}
	asked := map[string]bool{}
	for _, expr := range theDashboard(t).expressions() {
		for _, name := range metricName.FindAllString(expr, -1) {
			asked[name] = true
			if labels[name] == nil {
				t.Errorf("the dashboard asks for %s, which a running provider does not have", name)
			}
		}
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if labels[s[1]] != nil && !labels[s[1]][m[1]] {
					t.Errorf("the dashboard chooses %s by %s, which it does not have", s[1], m[1])
				}
			}
		}
	}
	// A histogram is named in the documentation as a whole.
	for _, file := range []string{"docs/scaling.md", "docs/operations.md"} {
		for _, name := range regexp.MustCompile(`\boverlayd_[a-z0-9_]+[a-z0-9]\b`).FindAllString(string(shippedFile(t, file)), -1) {
			if labels[name] == nil && labels[name+"_bucket"] == nil && name != "overlayd_schema_version" {
				t.Errorf("%s names %s, which a running provider does not have", file, name)
			}
		}
	}
	for _, name := range []string{
		"overlayd_lookup_waiting_polls", "overlayd_livefeed_notifications_total", "overlayd_livefeed_commit_seconds_bucket", "overlayd_lookup_refusals_total",
		"overlayd_livefeed_batch_groups_bucket", "overlayd_livefeed_floor_lag_groups", "overlayd_lookup_oldest_watermark", "overlayd_lookup_quota_refusals_total",
		"overlayd_livefeed_listening", "overlayd_livefeed_history_lost_total",
	} {
		if !asked[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	if status, body := call(t, at, http.MethodGet, "/debug/pprof/heap", ""); status != http.StatusOK || !strings.HasPrefix(body, "\x1f\x8b") {
		t.Errorf("the heap's profile: %d, %d bytes", status, len(body))
	}
}
