package brc104

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// Anonymous reports whether a request carries no authentication at all. One that carries any part of it is either valid or
// refused, and never taken for anonymous.
func Anonymous(r *http.Request) bool {
	for name := range r.Header {
		if Authentication(name) {
			return false
		}
	}
	return true
}

// Claim is a request that says whom it is from, in a session that this deployment once granted; its signature is not checked
// yet.
type Claim struct {
	server       *Server
	request      *http.Request
	identity     [33]byte
	requestID    [32]byte
	nonce        string // of the request, base64
	sessionNonce string // ours, base64
	session      session
	r, s         secp256k1.ModNScalar
}

// Peer is who sent a verified request, with what is needed to answer it in its own session.
type Peer struct {
	Identity  [33]byte  // compressed public key
	RequestID [32]byte  // chosen by the peer
	Expires   time.Time // of the session
	// Body is the body that was signed: the one given, or {} for an absent JSON one.
	Body []byte

	server *Server
	key    *peerKey
	client string // the client's initial nonce
	head   bool   // the request's method is HEAD: its response has no body
}

// Authenticate verifies a request with its whole body. The error is an *Error.
//
// It is Open and Verify in one. Who reads large bodies opens first, and spares reading what cannot be valid.
func (s *Server) Authenticate(r *http.Request, body []byte) (*Peer, error) {
	claim, err := s.Open(r)
	if err != nil {
		return nil, err
	}
	return claim.Verify(body)
}

// Open checks everything about the authentication of a request that needs neither its body nor a curve: all headers are there,
// once and well formed, and the session was granted to the identity that the request names. The error is an *Error.
func (s *Server) Open(r *http.Request) (*Claim, error) {
	if Anonymous(r) {
		return nil, fail(Unauthenticated, nil)
	}
	c := &Claim{server: s, request: r}
	if err := c.read(r.Header); err != nil {
		return nil, fail(Invalid, err)
	}
	ring, err := s.ring(r.Context())
	if err != nil {
		return nil, fail(Unavailable, err)
	}
	if c.session, err = openNonce(ring, &s.identity.public, &c.identity, c.sessionNonce, s.clock()); err != nil {
		if errors.Is(err, errNonceForm) {
			return nil, fail(Invalid, err)
		}
		return nil, fail(StaleSession, err)
	}
	return c, nil
}

func (s *Server) ring(ctx context.Context) (*Ring, error) {
	ring, err := s.sessions.Ring(ctx)
	if err == nil {
		err = ring.check()
	}
	if err != nil {
		return nil, fmt.Errorf("brc104: read the session secrets: %w", err)
	}
	return ring, nil
}

// single returns a header that must stand exactly once.
func single(h http.Header, name string) (string, error) {
	if v := h[name]; len(v) == 1 {
		return v[0], nil
	}
	return "", fmt.Errorf("header %s must stand exactly once", name)
}

// read reads the headers of the authentication.
func (c *Claim) read(h http.Header) error {
	var values [6]string
	for i, name := range [...]string{HeaderVersion, HeaderIdentityKey, HeaderNonce, HeaderYourNonce, HeaderSignature, HeaderRequestID} {
		v, err := single(h, name)
		if err != nil {
			return err
		}
		values[i] = v
	}
	version, identityHex, nonce, yourNonce, signature, requestID := values[0], values[1], values[2], values[3], values[4], values[5]
	if version != Version {
		return errors.New("the version is not " + Version)
	}
	if kind := h[HeaderMessageType]; len(kind) > 1 || len(kind) == 1 && kind[0] != typeGeneral {
		return errors.New("the message type is not " + typeGeneral)
	}
	if err := parseIdentity(&c.identity, identityHex); err != nil {
		return err
	}
	var room [maxNonceBytes + 3]byte
	if _, err := decodeNonce(room[:0], nonce); err != nil {
		return err
	}
	id, err := decodeNonce(room[:0], requestID)
	if err != nil || len(id) != len(c.requestID) {
		return errors.New("the request id is not 32 bytes of base64")
	}
	copy(c.requestID[:], id)
	der, err := hex.DecodeString(signature)
	if err != nil {
		return errSignature
	}
	if c.r, c.s, err = parseSignature(der); err != nil {
		return err
	}
	c.nonce, c.sessionNonce = nonce, yourNonce
	return nil
}

func parseIdentity(dst *[33]byte, text string) error {
	if len(text) == 2*len(dst) {
		if n, err := hex.Decode(dst[:], []byte(text)); err == nil && n == len(dst) && (dst[0] == 2 || dst[0] == 3) {
			return nil
		}
	}
	return errors.New("the identity key is not a compressed public key in hex")
}

// Verify checks the signature over the request and its whole body, and that the request was not seen before. The error is an
// *Error.
func (c *Claim) Verify(body []byte) (*Peer, error) {
	s, r := c.server, c.request
	key, err := s.peers.find(&c.identity)
	if err != nil {
		return nil, fail(Invalid, err)
	}
	fields, err := requestFields(r.Header)
	if err != nil {
		return nil, fail(Invalid, err)
	}
	parts := requestParts{
		id: c.requestID, method: r.Method, path: s.prefix + escapedPath(r.URL), fields: fields,
		body: effectiveBody(r.Method, r.Header, body),
	}
	if r.URL.RawQuery != "" {
		parts.query = "?" + r.URL.RawQuery
	}
	if !c.signed(key, &parts) {
		// One official client signs the decoded path. Only a path that every client would escape in the same way is also taken
		// in that form: another way of writing it could lead elsewhere.
		decoded := s.prefix + r.URL.Path
		if r.URL.RawPath != "" || decoded == parts.path {
			return nil, fail(Invalid, errors.New("the signature does not fit"))
		}
		if parts.path = decoded; !c.signed(key, &parts) {
			return nil, fail(Invalid, errors.New("the signature fits neither form of the path"))
		}
	}
	s.peers.proven(&c.identity, key)
	verdict, err := s.replay.Use(r.Context(), Use{Key: c.useKey(), Issued: c.session.issued, Expires: c.session.expires})
	switch {
	case err != nil:
		return nil, fail(Unavailable, fmt.Errorf("brc104: ask the replay guard: %w", err))
	case verdict == Replayed:
		return nil, fail(Invalid, errors.New("the request was seen before"))
	case verdict != Fresh:
		return nil, fail(StaleSession, errors.New("the replay guard has forgotten the session"))
	}
	return &Peer{
		Identity: c.identity, RequestID: c.requestID, Expires: c.session.expires, Body: parts.body,
		server: s, key: key, client: c.session.client, head: r.Method == http.MethodHead,
	}, nil
}

func escapedPath(u *url.URL) string {
	if p := u.EscapedPath(); p != "" {
		return p
	}
	return "/"
}

func (c *Claim) signed(key *peerKey, parts *requestParts) bool {
	digest := parts.digest()
	return key.verify(c.nonce, c.sessionNonce, &digest, &c.r, &c.s)
}

// useKey names the request for the replay guard by what a signature cannot be moved away from, and not by the signature, which
// anyone can write in another form.
func (c *Claim) useKey() [16]byte {
	var room [512]byte
	b := append(append(append(room[:0], c.sessionNonce...), ' '), c.nonce...)
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// Seal signs a response to the verified request and sets the x-bsv-auth headers. The signature covers the status, the body and
// every other x-bsv header in h as it then stands, so those are set before; Seal trims and joins their values. It may be called
// again with another answer.
//
// The body must not be empty and the status one that has a body, since clients cannot verify anything else. The response to a
// HEAD is signed without one.
func (p *Peer) Seal(h http.Header, status int, body []byte) error {
	if p.head {
		body = nil
	} else if len(body) == 0 {
		return errors.New("brc104: an empty response body cannot be verified by clients: send a JSON body")
	}
	if status < 200 || status > 599 || status == http.StatusNoContent || status == http.StatusNotModified {
		return fmt.Errorf("brc104: a response of status %d cannot be signed: use one that has a body", status)
	}
	fields, err := responseFields(h)
	if err != nil {
		return err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails: it ends the process instead
	nonce := base64.StdEncoding.EncodeToString(random[:])
	digest := (&responseParts{id: p.RequestID, status: status, fields: fields, body: body}).digest()
	signature := p.server.identity.sign(p.key, nonce, p.client, &digest)
	h[HeaderVersion] = []string{Version}
	h[HeaderMessageType] = []string{typeGeneral}
	h[HeaderIdentityKey] = []string{p.server.publicHex}
	h[HeaderNonce] = []string{nonce}
	h[HeaderYourNonce] = []string{p.client}
	h[HeaderSignature] = []string{hex.EncodeToString(signature)}
	h[HeaderRequestID] = []string{base64.StdEncoding.EncodeToString(p.RequestID[:])}
	return nil
}
