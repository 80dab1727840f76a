package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

func poolOf(t *testing.T, list ...*authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	for _, a := range list {
		pool.AddCert(a.cert)
	}
	return pool
}

// front is a public listener whose handler a test chooses.
func front(t *testing.T, certFile, keyFile string) (base string, set func(http.Handler)) {
	t.Helper()
	handler := make(chan http.Handler, 1)
	handler <- http.NotFoundHandler()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := <-handler
		handler <- h
		h.ServeHTTP(w, r)
	}))
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, func(h http.Handler) { <-handler; handler <- h }
}

// provider is a real one for base, and its public key.
func provider(t *testing.T, base string) (http.Handler, string) {
	t.Helper()
	db := pgtest.New(t)
	pool := pgtest.NewPool(t, db, func(c *pgxpool.Config) { livefeed.Configure(c) })
	store, err := livefeed.NewStore(t.Context(), livefeed.Config{Pool: pool, Writer: pool})
	if err != nil {
		t.Fatal(err)
	}
	chain := livefeed.Chain{Network: sample.SyntheticNetwork, Genesis: sample.SyntheticGenesis}
	if _, err := store.Ensure(t.Context(), "catalogue", chain); err != nil {
		t.Fatal(err)
	}
	identity, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	p, err := lookup.New(t.Context(), lookup.Config{
		Store: store, Pool: pool, Chain: chain, BaseURL: base, Identity: identity, Log: slog.New(slog.DiscardHandler),
		Services: []lookup.Service{{
			Name: "ls_catalogue", Feed: "catalogue", Authentication: "none", Access: lookup.AccessOpen,
			RulesParameters: json.RawMessage(`{"attributes":["artist"]}`), SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p.Echo(), hex.EncodeToString(identity.PubKey().Compressed())
}

func TestPublicVerdicts(t *testing.T) {
	t.Parallel()
	root := newAuthority(t, "root", nil)
	now := time.Now()
	cert, key := root.issue("127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour))
	base, set := front(t, cert, key)
	real, identity := provider(t, base)

	c := away(t)
	c.BaseURL = base
	ask := func(change ...func(*Options)) map[string]Finding {
		return examined(t, c, append([]func(*Options){func(o *Options) {
			o.Offline, o.Roots = false, poolOf(t, root)
			o.Identity = func() (string, error) { return identity, nil }
		}}, change...)...)
	}
	set(real)
	says(t, ask(), "public", OK, "answers with a manifest of this identity")

	// Somebody else, or somewhere else.
	says(t, ask(func(o *Options) { o.Identity = func() (string, error) { return "02" + strings.Repeat("a", 64), nil } }), "public", Failure, "identity")
	says(t, ask(func(o *Options) { o.Roots = poolOf(t, newAuthority(t, "other", nil)) }), "public", Failure, "certificate")
	c.Chain.Network = "another"
	says(t, ask(), "public", Failure, "chain")
	c.Chain.Network = sample.SyntheticNetwork
	c.BaseURL = base + "/api"
	says(t, ask(), "public", Failure, "not as this provider")
	c.BaseURL = base

	// Proxies that change something.
	set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }))
	says(t, ask(), "public", Failure, "not as this provider")
	set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		real.ServeHTTP(w, r)
	}))
	says(t, ask(), "public", Failure, "compress")
	set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }))
	says(t, ask(), "public", Failure)

	// A proxy that lets the public come to the operator's listener.
	set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			_, _ = w.Write([]byte(`{"checks":{"database":"ok"},"ready":true}`))
			return
		}
		real.ServeHTTP(w, r)
	}))
	says(t, ask(), "public", Failure, "operator API", "loopback")

	// Nobody.
	c.BaseURL = "https://127.0.0.1:1"
	says(t, ask(), "public", Warning, "does not answer from here", "start the provider")
	c.BaseURL = "https://overlay.invalid"
	says(t, ask(), "public", Warning, "does not answer from here")
	if _, made := ask(func(o *Options) { o.Offline = true })["public"]; made {
		t.Error("the public URL was asked although it was not to be")
	}
	silent, hold := context.WithCancel(t.Context())
	defer hold()
	set(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-silent.Done():
		}
	}))
	c.BaseURL = base
	says(t, ask(func(o *Options) { o.Timeout = 300 * time.Millisecond }), "public", Warning, "does not answer from here")
}
