package echoauth_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsv-blockchain/go-sdk/auth/clients/authhttp"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/bsv-blockchain/go-sdk/wallet"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

func newKey(t testing.TB) *secp256k1.PrivateKey {
	t.Helper()
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func identityOf(key *secp256k1.PrivateKey) [33]byte {
	return [33]byte(key.PubKey().SerializeCompressed())
}

func newRing(t testing.TB) *brc104.Ring {
	t.Helper()
	secret := make([]byte, brc104.MinSecretBytes)
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	return &brc104.Ring{Epoch: 1, Secrets: [][]byte{secret}}
}

func newServer(t testing.TB, c brc104.Config) *brc104.Server {
	t.Helper()
	if c.Key == nil {
		c.Key = newKey(t)
	}
	if c.Sessions == nil {
		c.Sessions = newRing(t)
	}
	c.Log = slog.New(slog.DiscardHandler)
	s, err := brc104.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// node is an Echo server whose every route below /signed needs a signature and below /public may have one. What serves can be
// exchanged while clients live, as a restart does.
type node struct {
	URL        string
	handshakes atomic.Int64
	echo       atomic.Pointer[echo.Echo]
}

// newEcho makes the Echo of a node.
func newEcho(t testing.TB, o echoauth.Options, routes func(signed, public *echo.Group)) *echo.Echo {
	t.Helper()
	if o.Server == nil {
		o.Server = newServer(t, brc104.Config{})
	}
	o.Log = slog.New(slog.DiscardHandler)
	m, err := echoauth.New(o)
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	m.Mount(e)
	routes(e.Group("/signed", m.Signed()), e.Group("/public", m.Public()))
	return e
}

func start(t testing.TB, e *echo.Echo) *node {
	t.Helper()
	n := &node{}
	n.echo.Store(e)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == brc104.HandshakePath {
			n.handshakes.Add(1)
		}
		n.echo.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(ts.Close)
	n.URL = ts.URL
	return n
}

// reflect answers with what it was sent.
func reflect(c echo.Context) error {
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		body = []byte(`"` + c.Request().Method + ` without a body"`)
	}
	c.Response().Header().Set("X-Bsv-Overlay-Profile", c.Request().Header.Get("X-Bsv-Overlay-Profile"))
	return echoauth.Blob(c, http.StatusOK, echo.MIMEApplicationJSON, body)
}

// device is an official Go client of a key.
type device struct {
	t      testing.TB
	client *clients.AuthFetch
}

func newDevice(t testing.TB, key *secp256k1.PrivateKey) device {
	t.Helper()
	priv, _ := ec.PrivateKeyFromBytes(key.Serialize())
	w, err := wallet.NewCompletedProtoWallet(priv)
	if err != nil {
		t.Fatal(err)
	}
	return device{t, clients.New(w, clients.WithoutLogging())}
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends one request and returns the verified answer.
func (d device) do(method, url, body string, headers ...string) (answer, error) {
	h := map[string]string{}
	if body != "" {
		h["content-type"] = "application/json"
	}
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = headers[i+1]
	}
	resp, err := d.client.Fetch(d.t.Context(), url, &clients.SimplifiedFetchRequestOptions{Method: method, Headers: h, Body: []byte(body)})
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(out)}, err
}

func (d device) must(method, url, body string, headers ...string) answer {
	d.t.Helper()
	a, err := d.do(method, url, body, headers...)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// raw is our own client: it shows what the official one hides.
type raw struct {
	t       testing.TB
	url     string
	session *brc104.Session
}

func newRaw(t testing.TB, n *node, key *secp256k1.PrivateKey) *raw {
	t.Helper()
	c, err := brc104.NewClient(key)
	if err != nil {
		t.Fatal(err)
	}
	hello := c.Hello()
	a := send(t, must(http.NewRequest(http.MethodPost, n.URL+brc104.HandshakePath, bytes.NewReader(hello.Body))))
	s, err := c.Begin(hello, []byte(a.body))
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, n.URL, s}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func send(t testing.TB, r *http.Request) answer {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// do signs and sends, and returns the answer and whether its signature holds.
func (c *raw) do(method, path, body string) (answer, error) {
	c.t.Helper()
	r := must(http.NewRequest(method, c.url+path, bytes.NewReader([]byte(body))))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	sent := must(c.session.Sign(r, []byte(body)))
	a := send(c.t, r)
	return a, sent.Verify(a.status, a.header, []byte(a.body))
}

// clock is a clock that a test moves.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }
