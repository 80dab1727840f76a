package brc104

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"runtime"
	"strconv"
)

// MaxHandshakeBytes bounds the body of a handshake.
const MaxHandshakeBytes = 16 << 10

// greeters is how many handshakes are computed at once. Anyone may ask for one, so they may not take every processor from
// requests that prove something; the others wait.
func greeters() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// Greeting is the answer to a handshake.
type Greeting struct {
	Header http.Header // x-bsv-auth headers that repeat the body; clients read the body
	Body   []byte      // JSON
}

// Greet answers the body of a handshake. Nothing is kept: whatever is asked here in anyone's name changes nothing for anyone
// else. The error is an *Error.
func (s *Server) Greet(ctx context.Context, body []byte) (*Greeting, error) {
	var ask struct {
		Version      string `json:"version"`
		MessageType  string `json:"messageType"`
		IdentityKey  string `json:"identityKey"`
		InitialNonce string `json:"initialNonce"`
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, fail(BadHandshake, err)
	}
	if ask.Version != Version || ask.MessageType != typeInitialRequest {
		return nil, fail(BadHandshake, errors.New("another version or message type"))
	}
	var client [33]byte
	if err := parseIdentity(&client, ask.IdentityKey); err != nil {
		return nil, fail(BadHandshake, err)
	}
	var room [maxNonceBytes + 3]byte
	clientNonce, err := decodeNonce(room[:0], ask.InitialNonce)
	if err != nil {
		return nil, fail(BadHandshake, err)
	}
	ring, err := s.ring(ctx)
	if err != nil {
		return nil, fail(Unavailable, err)
	}
	select {
	case s.greeting <- struct{}{}:
		defer func() { <-s.greeting }()
	case <-ctx.Done():
		return nil, fail(Unavailable, ctx.Err())
	}
	key, err := s.peers.find(&client)
	if err != nil {
		return nil, fail(BadHandshake, err)
	}
	now := s.clock()
	nonce := sealNonce(ring, &s.identity.public, &client, clientNonce, now, now.Add(s.ttl))
	raw, err := base64.StdEncoding.DecodeString(nonce)
	if err != nil {
		return nil, fail(Unavailable, err)
	}
	digest := sha256.Sum256(append(clientNonce, raw...))
	return s.greet(ask.InitialNonce, nonce, s.identity.sign(key, ask.InitialNonce, nonce, &digest)), nil
}

func (s *Server) greet(clientNonce, nonce string, signature []byte) *Greeting {
	b := make([]byte, 0, 1024)
	b = append(b, `{"version":"`+Version+`","messageType":"`+typeInitialResponse+`","identityKey":"`...)
	b = append(b, s.publicHex...)
	b = append(b, `","nonce":"`...) // one official server says it twice
	b = append(b, nonce...)
	b = append(b, `","initialNonce":"`...)
	b = append(b, nonce...)
	b = append(b, `","yourNonce":"`...)
	b = append(b, clientNonce...)
	b = append(b, `","requestedCertificates":{"certifiers":[],"types":{}},"signature":[`...)
	for i, c := range signature {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c), 10)
	}
	b = append(b, "]}"...)
	return &Greeting{Body: b, Header: http.Header{
		HeaderVersion:     {Version},
		HeaderMessageType: {typeInitialResponse},
		HeaderIdentityKey: {s.publicHex},
		HeaderNonce:       {nonce},
		HeaderYourNonce:   {clientNonce},
		HeaderSignature:   {hex.EncodeToString(signature)},
	}}
}

// Handshake serves HandshakePath, which must be mounted at the root of the origin and nowhere else. Preflights of other
// origins are answered in front of it.
//
// When nobody can be authenticated just now it drops the connection (http.ErrAbortHandler) and logs why: one official client
// takes any error status for "this server does not authenticate" and goes on without signatures.
func (s *Server) Handshake(w http.ResponseWriter, r *http.Request) {
	g, err := s.handshake(w, r)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == Unavailable {
			if r.Context().Err() == nil {
				s.log.ErrorContext(r.Context(), "handshake not answered", "cause", e.cause.Error())
			}
			panic(http.ErrAbortHandler)
		}
		s.Refuse(w, r, err)
		return
	}
	h := w.Header()
	maps.Copy(h, g.Header)
	h.Set(headerContentType, "application/json")
	h.Set("Cache-Control", "private, no-store")
	h.Set("Content-Length", strconv.Itoa(len(g.Body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(g.Body) // the peer may be gone; nothing was kept for it
}

func (s *Server) handshake(w http.ResponseWriter, r *http.Request) (*Greeting, error) {
	if r.Method != http.MethodPost {
		return nil, fail(BadMethod, nil)
	}
	if r.URL.EscapedPath() != HandshakePath {
		return nil, fail(BadHandshake, errors.New("mounted at another path"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxHandshakeBytes))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, fail(TooLarge, err)
	}
	if err != nil {
		return nil, fail(BadHandshake, err)
	}
	return s.Greet(r.Context(), body)
}
