package main

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
)

// hushedKey is a private key for tests, and what it looks like everywhere.
const hushedKey = "b1e55ed0000000000000000000000000000000000000000000000000000000a5"

// TestA8_NothingSecretIsLogged has a provider log everything it can while callers and operators do what they may and may not.
func TestA8_NothingSecretIsLogged(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	p := e2e.StartWith(t, e2e.Options{Env: []string{"OVERLAYD_IDENTITY_KEY=" + hushedKey}},
		"dev", "--data", data, "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--sample", "none", "--log-level", "debug")
	ready := p.Ready()
	secret := map[string]string{"the identity's key": hushedKey, "the operator's token": ready.OperatorToken}
	if u, err := url.Parse(ready.DatabaseURL); err != nil {
		t.Fatal(err)
	} else if password, ok := u.User.Password(); ok {
		secret["the database's password"] = password
	}
	unused, err := os.ReadFile(filepath.Join(data, "identity.key"))
	if err != nil {
		t.Fatal(err)
	}
	secret["the key that is not used"] = strings.TrimSpace(string(unused))

	anybody := e2e.NewCaller(t, ready.BaseURL)
	member, stranger := anybody.As(31), anybody.As(32)
	secret["a caller's key"] = strings.Repeat(hex.EncodeToString([]byte{31}), 32)
	grant := "/operator/v1/services/" + devMembers + "/grants/" + member.Identity()
	if status, body := call(t, ready, http.MethodPut, grant, ""); status != 200 {
		t.Fatal(body)
	}
	keep := func(what string, a e2e.Answer) e2e.Answer {
		for _, name := range []string{brc104.HeaderSignature, brc104.HeaderNonce, brc104.HeaderYourNonce, brc104.HeaderRequestID} {
			if v := a.Header.Get(name); v != "" {
				secret[name+" of "+what] = v
			}
		}
		return a
	}
	keepBatch := func(what string, a e2e.Answer) *wire.Batch {
		b := keep(what, a).Batch(t)
		secret["the session of "+what], secret["the cursor of "+what] = b.Session, b.Cursor
		return b
	}
	public := keepBatch("a public open", anybody.Open(devService))
	signed := keepBatch("a signed open", member.Open(devMembers))
	keep("a stranger's open", stranger.Open(devMembers)).Refused(t, wire.Unauthorized)
	keep("a read of another's session", stranger.Read(signed, 0)).Refused(t, wire.ResetRequired)
	keep("an anonymous read of a signed session", anybody.Read(signed, 0)).Refused(t, wire.Unauthorized)
	keepBatch("a read", member.Read(signed, 0))
	keepBatch("a public read", anybody.Read(public, 0))
	altered := *signed
	altered.Cursor = "x" + signed.Cursor
	if a := keep("a read with an altered cursor", member.Read(&altered, 0)); a.Status == http.StatusOK {
		t.Error("an altered cursor is taken")
	}
	keep("a close", anybody.Close(public))
	// A request whose signature does not fit.
	if a, err := forged(t, member); err != nil || a != http.StatusUnauthorized {
		t.Errorf("a forged request: %d, %v", a, err)
	}
	if status, body := call(t, ready, http.MethodDelete, grant, ""); status != 200 {
		t.Fatal(body)
	}
	keep("a read without its grant", member.Read(signed, 0)).Refused(t, wire.Unauthorized)
	for _, path := range []string{"/operator/v1/sessions", "/operator/v1/feeds", "/metrics"} {
		status, body := call(t, ready, http.MethodGet, path, "")
		if status != 200 {
			t.Error(body)
		}
		for what, text := range secret {
			if strings.Contains(body, text) {
				t.Errorf("%s is in %s", what, path)
			}
		}
	}
	status, body := call(t, e2e.Ready{OperatorURL: ready.OperatorURL, OperatorToken: "a-wrong-operator-token"}, http.MethodGet, "/operator/v1/feeds", "")
	secret["a wrong token"] = "a-wrong-operator-token"
	if status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d %s", status, body)
	}

	conn, err := pgx.Connect(t.Context(), ready.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), `select encode(secret, 'hex') from session_secret union all select encode(cursor_secret, 'hex') from deployment`)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(stored) < 2 {
		t.Fatalf("%d secrets, %v", len(stored), err)
	}
	for i, text := range stored {
		secret[fmt.Sprintf("stored secret %d", i)] = text
	}
	_ = conn.Close(t.Context())

	if code := p.Interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log := p.Stderr()
	if !strings.Contains(log, `"level":"DEBUG"`) || !strings.Contains(log, "an operator changed a grant") {
		t.Errorf("the log is not what was asked for:\n%s", log)
	}
	for what, text := range secret {
		if len(text) < 8 {
			t.Errorf("%s is too short to look for: %q", what, text)
		} else if strings.Contains(log, text) {
			t.Errorf("%s is in the log", what)
		}
	}
}

// forged sends a signed request that is changed on its way, and returns the status.
func forged(t *testing.T, as *e2e.Caller) (int, error) {
	t.Helper()
	real := as.Client
	defer func() { as.Client = real }()
	as.Client = &http.Client{Transport: altering{real.Transport}}
	a, err := as.Do(t.Context(), http.MethodPost, "/overlay/v1/lookup/close", []byte(`{"version":1,"session":"a-session"}`))
	if err != nil && a.Status == 0 {
		return 0, err
	}
	return a.Status, nil // such an answer is not signed, which Do says
}

type altering struct{ http.RoundTripper }

func (a altering) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/close") {
		r = r.Clone(r.Context())
		r.Header.Set("X-Bsv-Altered", "on its way")
	}
	return a.RoundTripper.RoundTrip(r)
}

func TestServeRefusesKeysThatOthersMayRead(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	with, at := served(t, db.URL, setup{key: hushedKey, services: service("ls_a", "authentication: brc103")})
	for name, mode := range map[string]os.FileMode{"identity.key": 0o640, "overlayd.yaml": 0o644} {
		if err := os.Chmod(filepath.Join(with.Dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if r := e2e.RunWith(t, with, "migrate"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	r := e2e.RunWith(t, with, "serve")
	if r.Code != 1 || !strings.Contains(r.Stderr, "chmod 600 identity.key") || strings.Count(r.Stderr, "\n") != 1 || strings.Contains(r.Stderr, hushedKey) {
		t.Errorf("an open key: code %d, %s", r.Code, r.Stderr)
	}
	// The variable wins over the file, and a wrong one is not told.
	wrong := e2e.Options{Dir: with.Dir, Env: append(with.Env, "OVERLAYD_IDENTITY_KEY="+hushedKey[:60])}
	if r := e2e.RunWith(t, wrong, "serve"); r.Code != 1 || !strings.Contains(r.Stderr, "the identity key in OVERLAYD_IDENTITY_KEY is neither") || strings.Contains(r.Stderr, hushedKey[:60]) {
		t.Errorf("a wrong key: code %d, %s", r.Code, r.Stderr)
	}
	right := e2e.Options{Dir: with.Dir, Env: append(with.Env, "OVERLAYD_IDENTITY_KEY="+hushedKey)}
	if r := e2e.RunWith(t, right, "config"); r.Code != 0 || strings.Contains(r.Stdout, hushedKey) || !strings.Contains(r.Stdout, "key: xxxxx # environment OVERLAYD_IDENTITY_KEY") {
		t.Errorf("config: code %d, %s", r.Code, r.Stdout)
	}
	p := e2e.StartWith(t, right, "serve")
	ready(t, at)
	e2e.NewCaller(t, at.BaseURL).As(41).Open("ls_a").Batch(t)
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
