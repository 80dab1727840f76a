package brc104

import (
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// newKey draws a key.
func newKey(t testing.TB) *secp256k1.PrivateKey {
	t.Helper()
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newRing draws a ring of n secrets.
func newRing(t testing.TB, n int) *Ring {
	t.Helper()
	r := &Ring{Epoch: 1}
	for range n {
		secret := make([]byte, MinSecretBytes)
		if _, err := rand.Read(secret); err != nil {
			t.Fatal(err)
		}
		r.Secrets = append(r.Secrets, secret)
	}
	return r
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newServer makes a server from a configuration whose gaps are filled.
func newServer(t testing.TB, c Config) *Server {
	t.Helper()
	if c.Key == nil {
		c.Key = newKey(t)
	}
	if c.Sessions == nil {
		c.Sessions = newRing(t, 1)
	}
	if c.Log == nil {
		c.Log = quiet()
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts
}
