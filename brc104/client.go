package brc104

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// Client is the other end: it begins sessions, signs requests and verifies answers. It sends nothing itself. It is safe for
// concurrent use, and so is every Session.
type Client struct {
	identity  *identity
	publicHex string
}

// NewClient makes a client of an identity.
func NewClient(key *secp256k1.PrivateKey) (*Client, error) {
	id, err := newIdentity(key)
	if err != nil {
		return nil, err
	}
	return &Client{identity: id, publicHex: hex.EncodeToString(id.public[:])}, nil
}

// Hello is the first half of a handshake.
type Hello struct {
	Body  []byte // JSON, to be sent by POST to HandshakePath
	nonce string
}

// Hello begins a handshake.
func (c *Client) Hello() *Hello {
	nonce := randomNonce()
	return &Hello{nonce: nonce, Body: []byte(`{"version":"` + Version + `","messageType":"` + typeInitialRequest +
		`","identityKey":"` + c.publicHex + `","initialNonce":"` + nonce + `","requestedCertificates":{"certifiers":[],"types":{}}}`)}
}

func randomNonce() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails: it ends the process instead
	return base64.StdEncoding.EncodeToString(random[:])
}

// Session is a session from the client's side.
type Session struct {
	Server [33]byte // whose signature the handshake carried

	client    *Client
	key       *peerKey
	ours      string // our initial nonce
	theirs    string // the server's session nonce
	serverHex string
}

// Begin finishes a handshake with the body of a 200 answer. Whether Server is whom the caller meant to talk to is the caller's
// to judge.
func (c *Client) Begin(hello *Hello, body []byte) (*Session, error) {
	var a struct {
		Version      string `json:"version"`
		MessageType  string `json:"messageType"`
		IdentityKey  string `json:"identityKey"`
		InitialNonce string `json:"initialNonce"`
		YourNonce    string `json:"yourNonce"`
		Signature    []int  `json:"signature"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("brc104: read the handshake's answer: %w", err)
	}
	if a.Version != Version || a.MessageType != typeInitialResponse || a.YourNonce != hello.nonce {
		return nil, errors.New("brc104: the handshake's answer is of another version, type or request")
	}
	s := &Session{client: c, ours: hello.nonce, theirs: a.InitialNonce, serverHex: a.IdentityKey}
	if err := parseIdentity(&s.Server, a.IdentityKey); err != nil {
		return nil, fmt.Errorf("brc104: handshake's answer: %w", err)
	}
	signed, err := strict64.DecodeString(hello.nonce)
	if err != nil {
		return nil, fmt.Errorf("brc104: decode our own nonce: %w", err)
	}
	signed, err = strict64.AppendDecode(signed, []byte(a.InitialNonce))
	if err != nil || hasBreak(a.InitialNonce) || len(a.InitialNonce) > maxPeerNonceText {
		return nil, fmt.Errorf("brc104: handshake's answer: %w", errNonceForm)
	}
	der := make([]byte, len(a.Signature))
	for i, n := range a.Signature {
		if n < 0 || n > 255 {
			return nil, fmt.Errorf("brc104: handshake's answer: %w", errSignature)
		}
		der[i] = byte(n)
	}
	if s.key, err = c.identity.meet(&s.Server); err != nil {
		return nil, fmt.Errorf("brc104: handshake's answer: %w", err)
	}
	digest := sha256.Sum256(signed)
	if err := s.check(hello.nonce, a.InitialNonce, &digest, der); err != nil {
		return nil, fmt.Errorf("brc104: handshake's answer: %w", err)
	}
	return s, nil
}

// maxPeerNonceText keeps key ids within the 800 characters that BRC-43 allows.
const maxPeerNonceText = 400

func (s *Session) check(first, second string, digest *[32]byte, der []byte) error {
	r, sc, err := parseSignature(der)
	if err != nil {
		return err
	}
	if !s.key.verify(first, second, digest, &r, &sc) {
		return errors.New("the signature does not fit")
	}
	return nil
}

// Sent is a signed request whose answer is awaited.
type Sent struct {
	session *Session
	id      [32]byte
}

// Sign signs a request over its method, path, query, body and signed headers as they stand, and sets the x-bsv-auth headers.
// The body is what will be sent; Sign does not touch r.Body.
func (s *Session) Sign(r *http.Request, body []byte) (*Sent, error) {
	fields, err := requestFields(r.Header)
	if err != nil {
		return nil, fmt.Errorf("brc104: %w", err)
	}
	sent := &Sent{session: s}
	_, _ = rand.Read(sent.id[:]) // never fails: it ends the process instead
	parts := requestParts{
		id: sent.id, method: r.Method, path: escapedPath(r.URL), fields: fields, body: effectiveBody(r.Method, r.Header, body),
	}
	if r.URL.RawQuery != "" {
		parts.query = "?" + r.URL.RawQuery
	}
	nonce, digest := randomNonce(), parts.digest()
	h := r.Header
	h[HeaderVersion] = []string{Version}
	h[HeaderMessageType] = []string{typeGeneral}
	h[HeaderIdentityKey] = []string{s.client.publicHex}
	h[HeaderNonce] = []string{nonce}
	h[HeaderYourNonce] = []string{s.theirs}
	h[HeaderSignature] = []string{hex.EncodeToString(s.client.identity.sign(s.key, nonce, s.theirs, &digest))}
	h[HeaderRequestID] = []string{base64.StdEncoding.EncodeToString(sent.id[:])}
	return sent, nil
}

// ErrStaleSession means that the server does not know the session any more: begin another and sign the request anew.
var ErrStaleSession = errors.New("brc104: the server does not know this session any more")

// Verify checks the answer to the request with its whole body. Nothing of an answer that fails may be used, its status
// included. An unsigned 401 is ErrStaleSession: nobody vouches for it, but a new session is the one thing to try.
func (s *Sent) Verify(status int, h http.Header, body []byte) error {
	if status == http.StatusUnauthorized && h[HeaderSignature] == nil {
		return ErrStaleSession
	}
	var values [6]string
	for i, name := range [...]string{HeaderVersion, HeaderIdentityKey, HeaderNonce, HeaderYourNonce, HeaderSignature, HeaderRequestID} {
		v, err := single(h, name)
		if err != nil {
			return fmt.Errorf("brc104: answer: %w", err)
		}
		values[i] = v
	}
	nonce := values[2]
	switch {
	case values[0] != Version:
		return errors.New("brc104: answer of another version")
	case values[1] != s.session.serverHex:
		return errors.New("brc104: answer of another server")
	case values[3] != s.session.ours:
		return errors.New("brc104: answer in another session")
	case values[5] != base64.StdEncoding.EncodeToString(s.id[:]):
		return errors.New("brc104: answer to another request")
	case len(nonce) > maxPeerNonceText:
		return fmt.Errorf("brc104: answer: %w", errNonceForm)
	}
	fields, err := collect(h, responseName)
	if err != nil {
		return fmt.Errorf("brc104: answer: %w", err)
	}
	der, err := hex.DecodeString(values[4])
	if err != nil {
		return fmt.Errorf("brc104: answer: %w", errSignature)
	}
	digest := (&responseParts{id: s.id, status: status, fields: fields, body: body}).digest()
	if err := s.session.check(nonce, s.session.ours, &digest, der); err != nil {
		return fmt.Errorf("brc104: answer: %w", err)
	}
	return nil
}
