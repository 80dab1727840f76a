package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// Paths of the protocol, below the base URL.
const (
	capabilitiesPath = "/overlay/v1/capabilities"
	lookupPath       = "/overlay/v1/lookup/"
)

// caller is one client with one connection: anonymous, or one identity. It is used by one goroutine.
type caller struct {
	t       *Target
	c       *conn
	client  *brc104.Client // nil: anonymous
	session *brc104.Session
	digest  string // of the manifest; "" until it is asked for
}

func (t *Target) caller() (*caller, error) {
	c, err := newConn(strings.TrimSuffix(t.BaseURL, "/"))
	if err != nil {
		return nil, fmt.Errorf("the target: %w", err)
	}
	out := &caller{t: t, c: c}
	if !t.Signed {
		return out, nil
	}
	key := t.Identity
	if key == nil {
		if key, err = secp256k1.GeneratePrivateKey(); err != nil {
			return nil, fmt.Errorf("make a key: %w", err)
		}
	}
	if out.client, err = brc104.NewClient(key); err != nil {
		return nil, err
	}
	return out, nil
}

func (c *caller) close() { c.c.close() }

// manifest asks for the capabilities, verifies them and keeps their digest.
func (c *caller) manifest(ctx context.Context) error {
	a, err := c.retry(ctx, http.MethodGet, capabilitiesPath, nil, 0, wire.MaxManifestBytes)
	if err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}
	m, err := wire.VerifyCapabilities(a)
	if err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}
	if m.Find("lookup", c.t.Service) == nil {
		return fmt.Errorf("the manifest shows no service %s; name one of the target with --service", c.t.Service)
	}
	c.digest = m.Digest()
	return nil
}

// retry sends a request until it is answered with 200; what may be tried again is.
func (c *caller) retry(ctx context.Context, method, path string, body []byte, wait time.Duration, most int64) ([]byte, error) {
	var p patience
	for {
		a, err := c.send(ctx, method, path, body, wait, most)
		if err == nil && a.status == http.StatusOK {
			return a.body, nil
		}
		if errors.Is(err, brc104.ErrStaleSession) {
			c.session, err = nil, brokenError{err}
		}
		if err = p.again(ctx, c.t, a, err); err != nil {
			return nil, err
		}
	}
}

// send sends a request once. Of an answer nothing is looked at before its signature, and then its echo, were right.
func (c *caller) send(ctx context.Context, method, path string, body []byte, wait time.Duration, most int64) (reply, error) {
	if c.client != nil && c.session == nil {
		if err := c.greet(ctx); err != nil {
			return reply{}, err
		}
	}
	r, err := http.NewRequest(method, c.c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set("Cache-Control", "no-store")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(wire.HeaderCapability, c.digest)
		r.Header.Set(wire.HeaderProfile, wire.Profile)
	}
	var sent *brc104.Sent
	if c.client != nil {
		if sent, err = c.session.Sign(r, body); err != nil {
			return reply{}, err
		}
	}
	a, err := c.c.do(ctx, r, wait, max(most, wire.MaxErrorBytes))
	if err != nil {
		return a, err
	}
	if sent != nil {
		if err := sent.Verify(a.status, a.header, a.body); err != nil {
			return a, err
		}
	}
	if method == http.MethodPost && (a.header.Get(wire.HeaderCapability) != c.digest || a.header.Get(wire.HeaderProfile) != wire.Profile) {
		return a, fmt.Errorf("an answer with status %d that does not repeat the selection", a.status)
	}
	return a, nil
}

func (c *caller) greet(ctx context.Context) error {
	hello := c.client.Hello()
	r, err := http.NewRequest(http.MethodPost, c.c.origin()+brc104.HandshakePath, bytes.NewReader(hello.Body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := c.c.do(ctx, r, 0, brc104.MaxHandshakeBytes)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("the handshake was answered with status %d", a.status)
	}
	c.session, err = c.client.Begin(hello, a.body)
	return err
}

// session is one lookup session of a caller.
type session struct {
	*caller
	batch *wire.Batch // the last one
	rows  uint32      // of a page, at most
}

// open opens a session of what has the value, or of everything, and returns with its first page.
func (c *caller) open(ctx context.Context, value string, rows uint32) (*session, error) {
	if c.digest == "" {
		if err := c.manifest(ctx); err != nil {
			return nil, err
		}
	}
	s := &session{caller: c, rows: rows}
	body, err := c.retry(ctx, http.MethodPost, lookupPath+"open", s.openBody(value), 0, wire.MaxResponseBytes)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return s, s.take(body)
}

func (s *session) openBody(value string) []byte {
	var id [24]byte
	_, _ = rand.Read(id[:]) // never fails: it ends the process instead
	query := "{}"
	if s.t.Attribute != "" && value != "" {
		query = fmt.Sprintf(`{"match":{%q:%q}}`, s.t.Attribute, value)
	}
	return fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":%q,"query":%s,"limits":%s}`,
		base64.RawURLEncoding.EncodeToString(id[:]), s.t.Service, query, s.limits(0))
}

func (s *session) limits(wait time.Duration) string {
	return fmt.Sprintf(`{"maxBytes":%d,"maxObservations":%d,"waitMs":%d}`, wire.MaxResponseBytes, s.rows, wait.Milliseconds())
}

// take parses an answer and checks that it continues the session.
func (s *session) take(body []byte) error {
	b, err := wire.ParseBatch(body)
	if err != nil {
		return fmt.Errorf("an answer that is no batch: %w", err)
	}
	if last := s.batch; last != nil {
		switch {
		case b.Session != last.Session || b.Scope != last.Scope:
			return errors.New("an answer of another session")
		case b.Through < last.Through:
			return fmt.Errorf("through fell from %d to %d", last.Through, b.Through)
		case b.Phase == wire.PhaseLive && len(b.Groups) > 0 && b.Groups[0].Sequence <= last.Through:
			return fmt.Errorf("group %d came after %d", b.Groups[0].Sequence, last.Through)
		}
	}
	s.batch = b
	return nil
}

// readBody is a read behind a cursor.
func (s *session) readBody(cursor string, wait time.Duration) ([]byte, error) {
	c, err := json.Marshal(cursor)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":%s}`, strconv.Quote(s.batch.Session), c, s.limits(wait)), nil
}

// read reads on, waiting at most wait for something new.
func (s *session) read(ctx context.Context, wait time.Duration) error {
	request, err := s.readBody(s.batch.Cursor, wait)
	if err != nil {
		return err
	}
	body, err := s.retry(ctx, http.MethodPost, lookupPath+"read", request, wait, wire.MaxResponseBytes)
	if err != nil {
		return err
	}
	return s.take(body)
}

// toLive pages the snapshot to its end.
func (s *session) toLive(ctx context.Context) error {
	for !s.batch.SnapshotComplete {
		if err := s.read(ctx, 0); err != nil {
			return fmt.Errorf("page the snapshot: %w", err)
		}
	}
	return nil
}

// leaveTime bounds the good-bye of a session.
const leaveTime = 10 * time.Second

// leave closes the session, whatever the state of ctx (Y8).
func (s *session) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	_, err := s.retry(ctx, http.MethodPost, lookupPath+"close", fmt.Appendf(nil, `{"version":1,"session":%s}`, strconv.Quote(s.batch.Session)), 0, wire.MaxResponseBytes)
	s.close()
	return err
}
