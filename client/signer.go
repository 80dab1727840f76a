package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

const (
	handshakeTimeout = 10 * time.Second

	// handshakeBytes bounds the answer to a handshake, which a request of the
	// other direction is held to as well.
	handshakeBytes = brc104.MaxHandshakeBytes
)

// signer authenticates the requests of one transport and judges who answers
// (BRC-104). It is owned by the goroutine that sends the requests.
type signer struct {
	client  *brc104.Client
	peer    string          // identity key that must answer, hex; "" while nobody is known
	session *brc104.Session // nil: none was begun, or it is not to be used again
}

// expect names who must answer from now on; "" takes whoever begins the next
// session.
func (t *transport) expect(peer string) {
	s := t.signer
	if s == nil {
		return
	}
	s.peer = peer
	if s.session != nil && peer != "" && s.answerer() != peer {
		s.session = nil
	}
}

// answerer is the identity key of the session's other end.
func (s *signer) answerer() string { return hex.EncodeToString(s.session.Server[:]) }

// greet begins a session when there is none, with whom the pin says.
func (t *transport) greet(ctx context.Context) error {
	s := t.signer
	if s == nil || s.session != nil {
		return nil
	}
	session, err := t.handshake(ctx)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(session.Server[:]); s.peer != "" && got != s.peer {
		return &PinError{What: "identity", Want: s.peer, Got: got}
	}
	s.session = session
	return nil
}

// judge checks that an answer is signed by the peer, in the session and for the
// request it was asked for with.
func (s *signer) judge(sent *brc104.Sent, a *answer) error {
	err := sent.Verify(a.StatusCode, a.Header, a.body)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, brc104.ErrStaleSession):
		s.session = nil
		return err
	}
	return &ViolationError{Rule: RuleSignature, Detail: "nobody vouches for the answer", Err: err}
}

// handshake begins a session at the root of the origin. Whatever comes instead
// of one is a reason to try again, and never to go on without signatures.
func (t *transport) handshake(ctx context.Context) (*brc104.Session, error) {
	bounded, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	hello := t.signer.client.Hello()
	req, err := http.NewRequestWithContext(bounded, http.MethodPost, wire.Origin(t.base)+brc104.HandshakePath, bytes.NewReader(hello.Body))
	if err != nil {
		return nil, fmt.Errorf("make the handshake: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.http.Do(req)
	if err != nil {
		return nil, transportFailure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, &transportError{err: fmt.Errorf("the handshake of BRC-104 was answered with status %d", resp.StatusCode)}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, handshakeBytes+1))
	if err != nil {
		return nil, transportFailure(ctx, err)
	}
	if len(body) > handshakeBytes {
		return nil, &transportError{err: errors.New("the handshake of BRC-104 was answered with too many bytes")}
	}
	session, err := t.signer.client.Begin(hello, body)
	if err != nil {
		return nil, &transportError{err: err}
	}
	return session, nil
}
