package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// postmaster is the process id of the server behind a ready line.
func postmaster(t *testing.T, r e2e.Ready) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var dir string
	if err := conn.QueryRow(t.Context(), "show data_directory").Scan(&dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestDevGoesOnAfterKill9(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "overlay data") // a path with a space
	p, ready := e2e.Dev(t, data, "--sample", "small")

	if !regexp.MustCompile(`^http://127\.0\.0\.1:[1-9]\d*$`).MatchString(ready.BaseURL) || ready.BaseURL == ready.OperatorURL ||
		len(ready.OperatorToken) < 16 || !strings.HasPrefix(ready.DatabaseURL, "postgres://") {
		t.Errorf("ready line %+v", ready)
	}
	if raw, err := hex.DecodeString(ready.Identity); err != nil || len(raw) != 33 {
		t.Errorf("identity %q", ready.Identity)
	}
	for name, mode := range map[string]os.FileMode{".": 0o700 | os.ModeDir, "identity.key": 0o600, "operator.token": 0o600, "state.json": 0o600} {
		if info, err := os.Stat(filepath.Join(data, name)); err != nil || info.Mode()&^os.ModeSticky != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	first := feedOf(t, ready)
	if first.Rows < 20 || first.Sessions != 0 {
		t.Errorf("the sample holds %+v", first)
	}
	if status, body := call(t, ready, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
		t.Fatal(body)
	}
	pg := postmaster(t, ready)

	// A second start on the same folder.
	if r := e2e.Run(t, "dev", "--data", data); r.Code != 1 || !strings.Contains(r.Stderr, "another overlayd dev runs on") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("a second start: code %d, %s", r.Code, r.Stderr)
	}

	p.Kill()
	testkit.Eventually(t, "Postgres ends with its killed owner", func() bool { return !alive(pg) })

	for _, other := range []string{"none", "5"} {
		if r := e2e.Run(t, "dev", "--data", data, "--sample", other); r.Code != 1 || !strings.Contains(r.Stderr, "was made with --sample small") {
			t.Errorf("--sample %s: code %d, %s", other, r.Code, r.Stderr)
		}
	}

	again, second := e2e.Dev(t, data)
	if second != ready {
		t.Errorf("after kill -9 the ready line is %+v, was %+v", second, ready)
	}
	if v := feedOf(t, second); v.Epoch != first.Epoch || v.head(t) != first.head(t)+1 || v.Rows != first.Rows {
		t.Errorf("after kill -9 the feed holds %+v, was %+v", v, first)
	}
	if status, body := call(t, second, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 || !strings.Contains(body, `"replayed":true`) {
		t.Errorf("the same change again: %d %s", status, body)
	}
	pg = postmaster(t, second)
	if code := again.Interrupt(); code != 0 {
		t.Errorf("exit code %d after an interrupt; stderr\n%s", code, again.Stderr())
	}
	if alive(pg) {
		t.Error("Postgres outlives a stopped dev")
	}
	if strings.Contains(again.Stderr(), second.OperatorToken) {
		t.Error("the token is in the log")
	}

	// No flags at all: still the same addresses.
	third := e2e.Start(t, "dev", "--data", data)
	if r := third.Ready(); r.BaseURL != ready.BaseURL || r.OperatorURL != ready.OperatorURL {
		t.Errorf("without flags the ready line is %+v", r)
	}
}

func TestReadyLineIsOneObjectOfSixKeys(t *testing.T) {
	t.Parallel()
	p := e2e.Start(t, "dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--sample", "none")
	text, _ := p.Line()
	var line map[string]any
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ready", "baseURL", "operatorURL", "operatorToken", "identity", "databaseURL"} {
		if _, ok := line[key]; !ok {
			t.Errorf("%s is missing", key)
		}
	}
	if len(line) != 6 || line["ready"] != true {
		t.Errorf("ready line %s", text)
	}
	if code := p.Interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if more, ok := p.Line(); ok {
		t.Errorf("more on stdout: %s", more)
	}
}

func TestDevWithAGeneratedSampleResumesItsLoad(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	const n = 4000
	args := []string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--sample", strconv.Itoa(n)}
	p := e2e.Start(t, args...)
	testkit.Eventually(t, "the folder gets its state", func() bool {
		_, err := os.Stat(filepath.Join(data, "state.json"))
		return err == nil
	})
	p.Kill() // before, during or after the load: all are legal
	p = e2e.Start(t, args...)
	ready := p.Ready()
	v := feedOf(t, ready)
	if v.head(t) < n { // and the expiries that have come due
		t.Errorf("the feed holds %+v of %d groups", v, n)
	}
	if state, err := readState(data); err != nil || state.LoadedInto != v.Epoch || state.Network != "overlayd-synthetic" {
		t.Errorf("state %+v, %v", state, err)
	}
}

func TestDevTakesServicesFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "dev.yaml")
	text := "manifestSeconds: 30\nservices:\n" +
		"  - {name: ls_short, feed: catalogue, sessionSeconds: 3, replaySeconds: 2, rules: {id: 'urn:overlayd:rules:attributes:1', parameters: {attributes: [genre]}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ready := e2e.Dev(t, t.TempDir(), "--config", file)
	response, err := http.Get(ready.BaseURL + "/overlay/v1/capabilities")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var packet struct {
		Body struct {
			Identity, BaseURL   string
			IssuedAt, ExpiresAt string
			Services            []struct{ Name string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&packet); err != nil {
		t.Fatal(err)
	}
	b := packet.Body
	issued, _ := strconv.Atoi(b.IssuedAt)
	expires, _ := strconv.Atoi(b.ExpiresAt)
	if b.Identity != ready.Identity || b.BaseURL != ready.BaseURL || len(b.Services) != 1 || b.Services[0].Name != "ls_short" || expires-issued != 30 {
		t.Errorf("manifest %+v", b)
	}
}

func TestDevUsesADatabaseOfYours(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	data := t.TempDir()
	p := e2e.StartWith(t, e2e.Options{Env: []string{"OVERLAYD_DATABASE_URL=" + db.URL}},
		"dev", "--data", data, "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0")
	ready := p.Ready()
	if ready.DatabaseURL != db.URL {
		t.Errorf("the database is %s", ready.DatabaseURL)
	}
	if _, err := os.Stat(filepath.Join(data, "postgres")); err == nil {
		t.Error("a private Postgres was made besides")
	}
	if v := feedOf(t, ready); v.Rows < 20 {
		t.Errorf("the sample holds %+v", v)
	}
	if code := p.Interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestH8_DevServesItsPageAndAnswersItAlone(t *testing.T) {
	t.Parallel()
	_, ready := e2e.Dev(t, t.TempDir(), "--sample", "none")
	ask := func(method, path, origin string) (int, string, http.Header) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, ready.BaseURL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Cache-Control", "no-store")
		if origin != "" {
			request.Header.Set("Origin", origin)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body), response.Header
	}
	for _, path := range []string{"/demo/", "/demo", "/demo/client.js"} {
		if status, body, header := ask(http.MethodGet, path, ""); status != 200 || body == "" || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %v", path, status, header)
		}
	}
	if status, body, _ := ask(http.MethodPost, "/demo/", ""); status != 404 || !strings.Contains(body, `"code":"not-found"`) {
		t.Errorf("POST: %d %s", status, body)
	}
	if status, _, _ := ask(http.MethodGet, "/demo/none", ""); status != 404 {
		t.Errorf("no such file: %d", status)
	}
	const capabilities = "/overlay/v1/capabilities"
	for _, own := range []string{ready.BaseURL, strings.Replace(ready.BaseURL, "127.0.0.1", "localhost", 1)} {
		if status, body, header := ask(http.MethodGet, capabilities, own); status != 200 || header.Get("Access-Control-Allow-Origin") != own {
			t.Errorf("from %s: %d %s", own, status, body)
		}
	}
	for _, other := range []string{"http://localhost:1", "https://evil.example", "null"} {
		if status, body, header := ask(http.MethodGet, capabilities, other); status != 401 || header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("from %s: %d %s", other, status, body)
		}
	}
}
