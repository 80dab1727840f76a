package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// callTimeout is above the longest poll.
const callTimeout = 60 * time.Second

// Caller is a client of a provider: anonymous, or one identity whose requests
// are signed and whose answers are verified, whatever they say.
type Caller struct {
	// Client carries the requests; its transport must not ask for compression.
	Client *http.Client

	t       T
	base    string
	client  *brc104.Client // nil: anonymous
	key     [33]byte
	session *brc104.Session
	digest  string
}

// NewCaller is an anonymous caller of a base URL; an https one must be served
// with one of the certificates.
func NewCaller(t T, base string, trusted ...Certificate) *Caller {
	t.Helper()
	transport := Transport(t, trusted...)
	return &Caller{t: t, base: base, Client: &http.Client{Transport: transport}}
}

// As is a caller at the same place with the identity of a private key, 32 bytes
// of seed. Its BRC-104 session begins with its first request.
func (c *Caller) As(seed byte) *Caller {
	c.t.Helper()
	key := secp256k1.PrivKeyFromBytes(bytes.Repeat([]byte{seed}, 32))
	client, err := brc104.NewClient(key)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return &Caller{t: c.t, base: c.base, Client: c.Client, client: client, key: [33]byte(key.PubKey().SerializeCompressed())}
}

// Identity is the caller's public key in hex.
func (c *Caller) Identity() string { return fmt.Sprintf("%x", c.key) }

// Answer is one whole answer. One to a signed request was signed, and is exactly
// what was signed.
type Answer struct {
	Status int
	Proto  int // major version of HTTP
	Header http.Header
	Body   []byte
}

// Batch is the batch that the answer must be.
func (a Answer) Batch(t T) *wire.Batch {
	t.Helper()
	b, err := wire.ParseBatch(a.Body)
	if a.Status != http.StatusOK || err != nil {
		t.Fatalf("no batch but %d %s, %v", a.Status, a.Body, err)
	}
	return b
}

// Refused checks that the answer is an error of that code.
func (a Answer) Refused(t T, code wire.Code) {
	t.Helper()
	e, err := wire.ParseError(a.Body, a.Status)
	if err != nil || e.Code != code {
		t.Fatalf("not refused as %s but %d %s, %v", code, a.Status, a.Body, err)
	}
}

// Capabilities asks for the manifest, as this caller sees it, and verifies it.
func (c *Caller) Capabilities() (*wire.Capabilities, Answer) {
	c.t.Helper()
	a, err := c.Do(context.Background(), http.MethodGet, "/overlay/v1/capabilities", nil)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	m, err := wire.VerifyCapabilities(a.Body)
	if err != nil {
		c.t.Fatalf("%v in %s", err, a.Body)
	}
	return m, a
}

// Open opens a session of everything a service shows; waitMs is not part of it.
func (c *Caller) Open(service string) Answer {
	c.t.Helper()
	var id [24]byte
	_, _ = rand.Read(id[:]) // never fails
	return c.post("open", fmt.Sprintf(`{"version":1,"requestId":"%s","service":"%s","query":{},"limits":{"maxBytes":4194304,"maxObservations":1024,"waitMs":0}}`,
		base64.RawURLEncoding.EncodeToString(id[:]), service))
}

// Read reads on behind a batch, waiting at most wait.
func (c *Caller) Read(b *wire.Batch, wait time.Duration) Answer {
	c.t.Helper()
	return c.post("read", readBody(b, wait))
}

// ReadFrom is Read under a context, with an error instead of the end of the test.
func (c *Caller) ReadFrom(ctx context.Context, b *wire.Batch, wait time.Duration) (Answer, error) {
	return c.Do(ctx, http.MethodPost, "/overlay/v1/lookup/read", []byte(readBody(b, wait)))
}

func readBody(b *wire.Batch, wait time.Duration) string {
	return fmt.Sprintf(`{"version":1,"session":%s,"cursor":%s,"limits":{"maxBytes":4194304,"maxObservations":1024,"waitMs":%d}}`,
		strconv.Quote(b.Session), strconv.Quote(b.Cursor), wait.Milliseconds())
}

// Close closes the session of a batch.
func (c *Caller) Close(b *wire.Batch) Answer {
	c.t.Helper()
	return c.post("close", fmt.Sprintf(`{"version":1,"session":%s}`, strconv.Quote(b.Session)))
}

func (c *Caller) post(endpoint, body string) Answer {
	c.t.Helper()
	a, err := c.Do(context.Background(), http.MethodPost, "/overlay/v1/lookup/"+endpoint, []byte(body))
	if err != nil {
		c.t.Fatalf("%s: %v", endpoint, err)
	}
	return a
}

// Do sends one request and, if it was signed, verifies its answer.
func (c *Caller) Do(ctx context.Context, method, path string, body []byte) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if c.client != nil && c.session == nil {
		if err := c.greet(ctx); err != nil {
			return Answer{}, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	if method == http.MethodPost {
		if c.digest == "" {
			m, _ := c.Capabilities()
			c.digest = m.Digest()
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(wire.HeaderCapability, c.digest)
		r.Header.Set(wire.HeaderProfile, wire.Profile)
	}
	if c.client == nil {
		r.Header.Set("Cache-Control", "no-store")
		return c.send(r)
	}
	sent, err := c.session.Sign(r, body)
	if err != nil {
		return Answer{}, err
	}
	a, err := c.send(r)
	if err != nil {
		return a, err
	}
	if err := sent.Verify(a.Status, a.Header, a.Body); err != nil {
		return a, fmt.Errorf("the answer %d %s: %w", a.Status, a.Body, err)
	}
	return a, nil
}

// greet begins the caller's BRC-104 session, at the root of the origin.
func (c *Caller) greet(ctx context.Context) error {
	u, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	hello := c.client.Hello()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.Scheme+"://"+u.Host+brc104.HandshakePath, bytes.NewReader(hello.Body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := c.send(r)
	if err != nil {
		return err
	}
	c.session, err = c.client.Begin(hello, a.Body)
	return err
}

func (c *Caller) send(r *http.Request) (Answer, error) {
	response, err := c.Client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(response.Body)
	return Answer{Status: response.StatusCode, Proto: response.ProtoMajor, Header: response.Header, Body: body}, err
}
