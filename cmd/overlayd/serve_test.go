package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestServeFromAnEmptyDatabaseToItsStop(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	with, ready := served(t, db.URL, setup{base: "http://%s/api"})

	if r := e2e.RunWith(t, with, "serve"); r.Code != 1 || !strings.Contains(r.Stderr, "overlayd migrate") {
		t.Errorf("an unmigrated database: code %d, %s", r.Code, r.Stderr)
	}
	dry := e2e.RunWith(t, with, "migrate", "--dry-run")
	if dry.Code != 0 || !strings.Contains(dry.Stdout, "would apply 001_livefeed.sql\n") {
		t.Errorf("--dry-run: code %d, %s%s", dry.Code, dry.Stdout, dry.Stderr)
	}
	if r := e2e.RunWith(t, with, "migrate"); r.Code != 0 || !strings.Contains(r.Stdout, "applying 001_livefeed.sql\n") || !strings.Contains(r.Stdout, "up to date") {
		t.Errorf("migrate: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := e2e.RunWith(t, with, "migrate"); r.Code != 0 || strings.Contains(r.Stdout, "applying") {
		t.Errorf("migrate again: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}

	p := e2e.StartWith(t, with, "serve")
	testkit.Eventually(t, "the provider is ready", func() bool {
		response, err := http.Get(ready.OperatorURL + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && response.StatusCode == http.StatusOK && string(text) == `{"checks":{"database":"ok","notifications":"ok"},"ready":true}`+"\n"
	})
	if status, body := call(t, ready, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
		t.Fatal(body)
	}
	if _, text := call(t, ready, http.MethodGet, "/metrics", ""); !strings.Contains(text, "overlayd_build_info{") || !strings.Contains(text, "go_goroutines") ||
		!strings.Contains(text, "process_resident_memory_bytes") {
		t.Error("metrics lack the build, the Go runtime or the process")
	}

	// A long poll is under way when the provider is told to stop: it is answered whole (row W7).
	s := openSession(t, ready.BaseURL)
	testkit.Eventually(t, "the feed counts its session", func() bool { return feedOf(t, ready).Sessions == 1 })
	answer := make(chan string, 1)
	go func() { answer <- s.read(20000) }()
	testkit.Eventually(t, "the poll waits", func() bool {
		_, body := call(t, ready, http.MethodGet, "/operator/v1/feeds/catalogue", "")
		return strings.Contains(body, `"waiters":1`)
	})
	p.Signal(syscall.SIGTERM)
	if text := <-answer; !strings.HasPrefix(text, "200 ") {
		t.Errorf("the waiting poll was answered %s", text)
	} else if _, err := wire.ParseBatch([]byte(text[4:])); err != nil {
		t.Errorf("the waiting poll was answered %s: %v", text, err)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d; stderr\n%s", code, p.Stderr())
	}
	if strings.Contains(p.Stderr(), ready.OperatorToken) || strings.Contains(p.Stderr(), s.session) || strings.Contains(p.Stderr(), s.cursor) {
		t.Error("a token, session or cursor is in the log")
	}
}

// session is a lookup session that has read its snapshot.
type session struct {
	t               *testing.T
	base, digest    string
	session, cursor string
}

func openSession(t *testing.T, base string) *session {
	t.Helper()
	response, err := http.Get(base + "/overlay/v1/capabilities")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var packet struct{ Body json.RawMessage }
	if err := json.Unmarshal(data, &packet); err != nil {
		t.Fatalf("capabilities %s: %v", data, err)
	}
	body, err := canon.Canonicalize(packet.Body)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, base: base, digest: canon.Digest(canon.DomainCapabilities, body)}
	status, text := s.post("open", `{"version":1,"requestId":"`+hex.EncodeToString([]byte("sixteen bytes ok"))+`","service":"ls_catalogue","query":{},`+
		`"limits":{"maxBytes":1000000,"maxObservations":100,"waitMs":0}}`)
	if status != 200 {
		t.Fatalf("open: %d %s", status, text)
	}
	b, err := wire.ParseBatch([]byte(text))
	if err != nil || !b.SnapshotComplete {
		t.Fatalf("open: %v: %s", err, text)
	}
	s.session, s.cursor = b.Session, b.Cursor
	return s
}

// read asks for the next batch and returns status and body.
func (s *session) read(waitMs int) string {
	status, text := s.post("read", fmt.Sprintf(`{"version":1,"session":%q,"cursor":%q,"limits":{"maxBytes":1000000,"maxObservations":100,"waitMs":%d}}`,
		s.session, s.cursor, waitMs))
	return fmt.Sprintf("%d %s", status, text)
}

func (s *session) post(endpoint, body string) (int, string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/overlay/v1/lookup/"+endpoint, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cache-Control", "no-store")
	request.Header.Set(wire.HeaderCapability, s.digest)
	request.Header.Set(wire.HeaderProfile, wire.Profile)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(data)
}
