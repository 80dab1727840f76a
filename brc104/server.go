package brc104

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// Defaults and bounds of a Config.
const (
	DefaultSessionTTL = time.Hour
	MaxSessionTTL     = 24 * time.Hour
	DefaultPeers      = 10240
)

// Config is what a Server needs. Key and Sessions are required.
type Config struct {
	// Key is the identity of the origin: there is one for everything below it.
	Key *secp256k1.PrivateKey
	// Sessions are the secrets that seal session nonces, shared by every node that has the same Key.
	Sessions KeySource
	// SessionTTL is the life of a session, up to MaxSessionTTL. Zero means DefaultSessionTTL. A session is no permission: what
	// its peer may do is judged at every request.
	SessionTTL time.Duration
	// Peers is how many proven identities stay ready, up to 2.5 kB each. Zero means DefaultPeers. Verifying a request of one that
	// is not ready costs three times as much.
	Peers int
	// Replay refuses requests seen before. Nil means a MemoryGuard with its defaults.
	Replay ReplayGuard
	// ExternalPrefix is a path that a proxy takes away in front of this server, such as "/api": clients sign the path as they
	// see it. Empty for none.
	ExternalPrefix string
	// ErrorBody makes the body of an unsigned error. Nil means {"version":1,"error":{"code","message","retryable"}}.
	ErrorBody func(*Error) []byte
	// Log gets the causes of refusals (debug) and failures (error); never nonces, keys or signatures. Nil means slog.Default().
	Log *slog.Logger
	// Clock tells the time. Nil means time.Now.
	Clock func() time.Time
}

// Server authenticates requests and signs responses. It keeps no sessions. It is safe for concurrent use.
type Server struct {
	identity  *identity
	publicHex string
	sessions  KeySource
	ttl       time.Duration
	peers     *peerCache
	replay    ReplayGuard
	prefix    string
	errorBody func(*Error) []byte
	log       *slog.Logger
	clock     func() time.Time
	greeting  chan struct{} // holds a token for each handshake in work
}

// New makes a Server.
func New(c Config) (*Server, error) {
	id, err := newIdentity(c.Key)
	if err != nil {
		return nil, err
	}
	if c.Sessions == nil {
		return nil, errors.New("brc104: Sessions is required")
	}
	if ring, ok := c.Sessions.(*Ring); ok {
		if err := ring.check(); err != nil {
			return nil, err
		}
	}
	s := &Server{
		identity: id, publicHex: fmt.Sprintf("%x", id.public), sessions: c.Sessions, ttl: c.SessionTTL, replay: c.Replay,
		prefix: c.ExternalPrefix, errorBody: c.ErrorBody, log: c.Log, clock: c.Clock, greeting: make(chan struct{}, greeters()),
	}
	if s.ttl == 0 {
		s.ttl = DefaultSessionTTL
	}
	if s.ttl < time.Second || s.ttl > MaxSessionTTL {
		return nil, fmt.Errorf("brc104: SessionTTL is %v, must be between 1s and %v", s.ttl, MaxSessionTTL)
	}
	if s.prefix != "" && (!strings.HasPrefix(s.prefix, "/") || strings.HasSuffix(s.prefix, "/")) {
		return nil, fmt.Errorf("brc104: ExternalPrefix is %q, must begin with a slash and not end with one", s.prefix)
	}
	peers := c.Peers
	if peers == 0 {
		peers = DefaultPeers
	}
	s.peers = newPeerCache(peers, id.meet)
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.replay == nil {
		s.replay = newMemoryGuard(0, time.Time{}, s.clock)
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.errorBody == nil {
		s.errorBody = defaultErrorBody
	}
	return s, nil
}

// Identity is the compressed public key of the server.
func (s *Server) Identity() [33]byte { return s.identity.public }

// ErrorBody is the body of an unsigned error.
func (s *Server) ErrorBody(e *Error) []byte { return s.errorBody(e) }

// Refuse writes an unsigned error whole. An error that is no *Error is answered as Unavailable.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = fail(Unavailable, err)
	}
	level := slog.LevelDebug
	if e.Kind == Unavailable {
		level = slog.LevelError
	}
	attrs := []slog.Attr{slog.Int("status", e.Status())}
	if e.cause != nil {
		attrs = append(attrs, slog.String("cause", e.cause.Error()))
	}
	s.log.LogAttrs(r.Context(), level, "request not authenticated", attrs...)
	body := s.errorBody(e)
	h := w.Header()
	e.Annotate(h)
	h.Set(headerContentType, "application/json")
	h.Set("Cache-Control", "private, no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status())
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the peer may be gone; there is nobody left to tell
	}
}

func defaultErrorBody(e *Error) []byte {
	code := "unauthorized"
	switch e.Kind {
	case BadHandshake, BadMethod:
		code = "invalid"
	case TooLarge:
		code = "limited"
	case Unavailable:
		code = "unavailable"
	}
	type fault struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		Retryable bool   `json:"retryable"`
	}
	body, err := json.Marshal(struct {
		Version int   `json:"version"`
		Error   fault `json:"error"`
	}{1, fault{code, e.Public(), e.Kind == Unavailable}})
	if err != nil {
		panic(err) // strings, a number and a bool always encode
	}
	return body
}
