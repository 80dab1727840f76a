package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/lookup"
)

// TestServeFeedsFromDatabasesOfTheirOwn: migrated, filled, shown, one away and back, and a feed that is moved is refused.
func TestServeFeedsFromDatabasesOfTheirOwn(t *testing.T) {
	t.Parallel()
	main, prices := pgtest.NewEmpty(t), pgtest.NewEmpty(t)
	feeds := fmt.Sprintf("feeds: [{name: prices, database: {url: %q}}]", prices.URL)
	with, at := served(t, main.URL, setup{
		services: service("ls_catalogue") + "\n" + strings.Replace(service("ls_prices"), "feed: catalogue", "feed: prices", 1),
		more:     "stateFile: feeds.state\n" + feeds,
	})
	if r := e2e.RunWith(t, with, "migrate", "--dry-run"); r.Code != 0 || strings.Count(r.Stdout, "would apply 001_livefeed.sql\n") != 2 {
		t.Errorf("--dry-run: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := e2e.RunWith(t, with, "migrate"); r.Code != 0 || strings.Count(r.Stdout, "up to date") != 2 || strings.Count(r.Stdout, "the database of feed prices:\n") != 1 {
		t.Fatalf("migrate: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	id, err := lookup.Identify(t.Context(), prices.Pool)
	if err != nil {
		t.Fatal(err)
	}

	p := e2e.StartWith(t, with, "serve")
	is := func(checks string) {
		t.Helper()
		testkit.Eventually(t, "/readyz says "+checks, func() bool {
			status, body := call(t, at, http.MethodGet, "/readyz", "")
			return status == http.StatusOK && body == `{"checks":{`+checks+`},"ready":true}`+"\n"
		})
	}
	ready(t, at)
	is(`"database":"ok","database of prices":"ok","databases":"ok","notifications":"ok"`)
	for i, feed := range []string{"catalogue", "prices"} {
		if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/"+feed+"/groups", change(i)); status != 200 {
			t.Fatal(body)
		}
	}
	if status, body := call(t, at, http.MethodGet, "/operator/v1/feeds", ""); status != 200 || strings.Count(body, `"head":"1"`) != 2 || !strings.HasPrefix(body, `{"feeds":[{"feed":"catalogue"`) {
		t.Errorf("%d %s", status, body)
	}
	for of, db := range map[string]*pgtest.DB{"catalogue": main, "prices": prices} {
		var held string
		if err := db.Pool.QueryRow(t.Context(), `select string_agg(f.name || h.head, ',') from feed f join feed_head h on h.feed_id = f.id`).Scan(&held); err != nil || held != of+"1" {
			t.Errorf("the database of %s holds %s, %v", of, held, err)
		}
	}
	_, metrics := call(t, at, http.MethodGet, "/metrics", "")
	for _, series := range []string{`overlayd_livefeed_groups_total{database="main",feed="catalogue"} 1`, `overlayd_livefeed_groups_total{database="` + id.String() + `",feed="prices"} 1`} {
		if !strings.Contains(metrics, series) {
			t.Errorf("metrics lack %s", series)
		}
	}
	s := openSession(t, at.BaseURL)

	// The database of prices is shut: the other goes on, and /readyz says which it is.
	server, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close(t.Context()) //nolint:errcheck // it was only asked
	name := pgx.Identifier{prices.Pool.Config().ConnConfig.Database}.Sanitize()
	shut := func(yes bool) {
		t.Helper()
		if _, err := server.Exec(t.Context(), fmt.Sprintf("alter database %s with allow_connections %t", name, !yes)); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = $1`, prices.Pool.Config().ConnConfig.Database); err != nil {
			t.Fatal(err)
		}
	}
	shut(true)
	is(`"database":"ok","database of prices":"degraded","databases":"ok","notifications":"degraded"`)
	if status, body := call(t, at, http.MethodGet, "/operator/v1/feeds", ""); status != 200 || !strings.Contains(body, `"head":"1"`) || !strings.Contains(body, `{"feed":"prices","unavailable":true}`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, at, http.MethodGet, "/operator/v1/feeds/prices", ""); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(7)); status != 200 {
		t.Error(body)
	}
	if text := s.read(0); !strings.HasPrefix(text, "200 ") {
		t.Error(text)
	}
	openSession(t, at.BaseURL)
	shut(false)
	is(`"database":"ok","database of prices":"ok","databases":"ok","notifications":"ok"`)
	if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/prices/groups", change(8)); status != 200 {
		t.Error(body)
	}
	if code := p.Interrupt(); code != 0 {
		t.Errorf("exit code %d; stderr\n%s", code, p.Stderr())
	}
	if seen, err := os.ReadFile(filepath.Join(with.Dir, "feeds.state-"+id.String())); err != nil || !strings.Contains(string(seen), `"name":"prices"`) {
		t.Errorf("what was seen of the database of prices: %s, %v", seen, err)
	}

	// The feed is moved to the main database.
	file := filepath.Join(with.Dir, "overlayd.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), feeds, "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := e2e.RunWith(t, with, "serve"); r.Code != 1 || !strings.Contains(r.Stderr, "feed prices lives in a database ("+id.String()+") that is not configured") ||
		!strings.Contains(r.Stderr, "its database is fixed for its life") {
		t.Errorf("code %d, %s", r.Code, r.Stderr)
	}
}
