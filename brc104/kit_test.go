package brc104

import (
	"bytes"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/bsv-blockchain/go-sdk/auth/clients/authhttp"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/bsv-blockchain/go-sdk/wallet"
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

// handler signs what answer says about every verified request, without any middleware.
func handler(s *Server, answer func(h http.Header, r *http.Request, p *Peer) (int, []byte)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(HandshakePath, s.Handshake)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			s.Refuse(w, r, err)
			return
		}
		p, err := s.Authenticate(r, body)
		if err != nil {
			s.Refuse(w, r, err)
			return
		}
		status, out := answer(w.Header(), r, p)
		if err := p.Seal(w.Header(), status, out); err != nil {
			panic(err)
		}
		w.WriteHeader(status)
		_, _ = w.Write(out)
	})
	return mux
}

// echoBody answers with the body that was signed.
func echoBody(_ http.Header, _ *http.Request, p *Peer) (int, []byte) {
	if len(p.Body) == 0 {
		return http.StatusOK, []byte(`"empty"`)
	}
	return http.StatusOK, bytes.Clone(p.Body)
}

func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts
}

// official makes the official Go client of a key.
func official(t testing.TB, key *secp256k1.PrivateKey) *clients.AuthFetch {
	t.Helper()
	priv, _ := ec.PrivateKeyFromBytes(key.Serialize())
	w, err := wallet.NewCompletedProtoWallet(priv)
	if err != nil {
		t.Fatal(err)
	}
	return clients.New(w, clients.WithoutLogging())
}

// fetch sends one request by the official client and reads the whole answer.
func fetch(t testing.TB, c *clients.AuthFetch, method, url string, headers map[string]string, body []byte) (*http.Response, string, error) {
	t.Helper()
	resp, err := c.Fetch(t.Context(), url, &clients.SimplifiedFetchRequestOptions{Method: method, Headers: headers, Body: body})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(out), nil
}

func TestOfficial(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	ts := serve(t, handler(s, echoBody))
	resp, out, err := fetch(t, official(t, newKey(t)), "POST", ts.URL+"/a/b%20c?x=1", map[string]string{"content-type": "application/json", "x-bsv-overlay-profile": "p"}, []byte(`{"a": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || out != `{"a": 1}` {
		t.Fatal(resp.StatusCode, out)
	}
}
