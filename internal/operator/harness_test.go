package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/httpserve"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

const token = "a-token-for-tests-only"

// server is an API on a real listener, over a real store.
type server struct {
	t     *testing.T
	url   string
	api   *API
	feed  *livefeed.Feed
	look  *lookup.Provider
	base  string // of the public API
	pool  *pgxpool.Pool
	log   *bytes.Buffer // read after stop
	http  *bytes.Buffer // net/http's own complaints; read after stop
	halt  func()        // ends the store, which then takes no group
	stop  func() error  // of the listener
	serve chan error
}

func start(t *testing.T, change ...func(*Config)) *server {
	t.Helper()
	return startWith(t, lookup.Quotas{}, change...)
}

// startWith is start with quotas.
func startWith(t *testing.T, quotas lookup.Quotas, change ...func(*Config)) *server {
	t.Helper()
	db := pgtest.New(t)
	pool := pgtest.NewPool(t, db, func(c *pgxpool.Config) { livefeed.Configure(c) })
	store, err := livefeed.NewStore(t.Context(), livefeed.Config{Pool: pool, Writer: pool})
	if err != nil {
		t.Fatal(err)
	}
	background := context.WithoutCancel(t.Context())
	feeding, endFeeding := context.WithCancel(background)
	fed := make(chan error, 1)
	go func() { fed <- store.Run(feeding) }()
	halt := sync.OnceFunc(func() {
		endFeeding()
		if err := <-fed; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(halt)
	feed, err := store.Ensure(t.Context(), "catalogue", livefeed.Chain{Network: sample.SyntheticNetwork, Genesis: sample.SyntheticGenesis})
	if err != nil {
		t.Fatal(err)
	}

	s := &server{t: t, feed: feed, pool: pool, log: &bytes.Buffer{}, http: &bytes.Buffer{}, halt: halt, serve: make(chan error, 1)}
	s.public(store, quotas)
	c := Config{Store: store, Access: s.look, Token: token, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(s.log, nil))}
	for _, f := range change {
		f(&c)
	}
	if s.api, err = New(c); err != nil {
		t.Fatal(err)
	}
	listener, err := httpserve.Listen(background, httpserve.Config{Name: "test", Addr: "127.0.0.1:0", Drain: 20 * time.Second,
		Log: slog.New(slog.NewTextHandler(s.http, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	serving, end := context.WithCancel(background)
	go func() { s.serve <- listener.Serve(serving, s.api) }()
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		s.api.Drain()
		end()
		return <-s.serve
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The services of the provider beside the API.
const (
	everybody = "ls_catalogue"
	members   = "ls members/1" // a name that has to be escaped in a path
)

// public serves the feed to callers, on a listener of its own.
func (s *server) public(store *livefeed.Store, quotas lookup.Quotas) {
	s.t.Helper()
	background := context.WithoutCancel(s.t.Context())
	listener, err := httpserve.Listen(background, httpserve.Config{Name: "public", Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.base = "http://" + listener.Addr().String()
	identity, err := ec.NewPrivateKey()
	if err != nil {
		s.t.Fatal(err)
	}
	service := func(name, authentication, access string) lookup.Service {
		return lookup.Service{
			Name: name, Feed: "catalogue", Authentication: authentication, Access: access,
			RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`), SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}
	}
	s.look, err = lookup.New(s.t.Context(), lookup.Config{
		Store: store, Pool: s.pool, Chain: livefeed.Chain{Network: sample.SyntheticNetwork, Genesis: sample.SyntheticGenesis},
		BaseURL: s.base, LocalDevelopment: true, Identity: identity, Log: slog.New(slog.DiscardHandler),
		Services: []lookup.Service{service(everybody, "none", lookup.AccessOpen), service(members, "brc103", lookup.AccessList)},
		Quotas:   quotas,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	serving, end := context.WithCancel(background)
	done := make(chan error, 1)
	go func() { done <- listener.Serve(serving, s.look.Echo()) }()
	s.t.Cleanup(func() {
		s.look.Stop()
		end()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}

// ask sends a request with the token and returns status, body and header.
func (s *server) ask(method, path, body string) (int, string, http.Header) {
	s.t.Helper()
	return s.askAs("Bearer "+token, method, path, body)
}

func (s *server) askAs(authorization, method, path, body string) (int, string, http.Header) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(data), response.Header
}

// refused checks a whole error answer against the closed shape (row H5).
func (s *server) refused(status int, body string, wantStatus int, wantCode wire.Code) *wire.Error {
	s.t.Helper()
	if status != wantStatus {
		s.t.Fatalf("status %d, want %d: %s", status, wantStatus, body)
	}
	code := status
	if status == http.StatusMethodNotAllowed {
		code = http.StatusBadRequest // a wrong method is invalid, with a status of its own
	}
	e, err := wire.ParseError([]byte(body), code)
	if err != nil {
		s.t.Fatalf("no error body: %v: %s", err, body)
	}
	if e.Code != wantCode {
		s.t.Fatalf("code %s, want %s: %s", e.Code, wantCode, body)
	}
	return e
}

// groups are n generated groups, each one new row.
func groups(t *testing.T, seed uint64, n int) []string {
	t.Helper()
	var b bytes.Buffer
	if err := sample.Generate(t.Context(), &b, sample.Options{Seed: seed, Groups: n, PutsOnly: true}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != n {
		t.Fatalf("%d lines of %d", len(lines), n)
	}
	return lines
}

// result is one answer line, or the answer to one group.
type result struct {
	Sequence, HighWater string
	Replayed            bool
	Error               *struct {
		Code, Message string
		Retryable     bool
	}
}

func parseResult(t *testing.T, text string) result {
	t.Helper()
	var r result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("answer %q: %v", text, err)
	}
	return r
}
