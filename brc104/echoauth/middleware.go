package echoauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
)

// Defaults of Options.
const (
	DefaultMaxRequest  = 1 << 20
	DefaultMaxResponse = 4 << 20
)

// Options are what a Middleware needs. Server is required.
type Options struct {
	Server *brc104.Server
	// MaxRequest bounds the body of a request, in bytes. Zero means DefaultMaxRequest.
	MaxRequest int64
	// MaxResponse bounds the body of a response, in bytes. Zero means DefaultMaxResponse.
	MaxResponse int
	// Fault makes the body of a signed answer to a failure of the handler: a panic, a response that is too long, or one that
	// cannot be signed. Nil means {"version":1,"error":{"code":"unavailable",...}}. The status is 500.
	Fault func() []byte
	// Log gets the causes of failures. Nil means slog.Default().
	Log *slog.Logger
}

// Middleware authenticates requests and signs responses. It is safe for concurrent use.
type Middleware struct {
	server      *brc104.Server
	maxRequest  int64
	maxResponse int
	fault       func() []byte
	log         *slog.Logger
}

// New makes a Middleware.
func New(o Options) (*Middleware, error) {
	if o.Server == nil {
		return nil, errors.New("echoauth: Server is required")
	}
	if o.MaxRequest < 0 || o.MaxResponse < 0 {
		return nil, errors.New("echoauth: MaxRequest and MaxResponse must not be negative")
	}
	m := &Middleware{server: o.Server, maxRequest: o.MaxRequest, maxResponse: o.MaxResponse, fault: o.Fault, log: o.Log}
	if m.maxRequest == 0 {
		m.maxRequest = DefaultMaxRequest
	}
	if m.maxResponse == 0 {
		m.maxResponse = DefaultMaxResponse
	}
	if m.fault != nil && len(m.fault()) == 0 {
		return nil, errors.New("echoauth: Fault makes an empty body, which cannot be signed")
	}
	if m.fault == nil {
		m.fault = func() []byte {
			return []byte(`{"version":1,"error":{"code":"unavailable","message":"The server failed to answer. Try again.","retryable":true}}`)
		}
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	return m, nil
}

// Mount adds the handshake at the root of the origin, for every method. Not needed when Signed or Public is given to Echo.Use.
func (m *Middleware) Mount(e *echo.Echo) {
	e.Any(brc104.HandshakePath, m.handshake)
	e.RouteNotFound(brc104.HandshakePath, m.handshake) // methods Echo does not know
}

func (m *Middleware) handshake(c echo.Context) error {
	m.server.Handshake(c.Response(), c.Request())
	return nil
}

// Signed admits only authenticated requests.
func (m *Middleware) Signed() echo.MiddlewareFunc { return m.middleware(false) }

// Public admits anonymous requests too: those without any x-bsv-auth header. Their responses pass the gate and are not signed.
func (m *Middleware) Public() echo.MiddlewareFunc { return m.middleware(true) }

func (m *Middleware) middleware(public bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			if r.URL.EscapedPath() == brc104.HandshakePath { // in front of everything, it stands in front of the handshake too
				return m.handshake(c)
			}
			call := &call{}
			if !public || !brc104.Anonymous(r) {
				peer, err := m.authenticate(c, r)
				if err != nil {
					m.server.Refuse(c.Response(), r, err)
					return nil
				}
				call.peer = peer
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(peer.Body)), int64(len(peer.Body))
			} else {
				r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, m.maxRequest)
			}
			c.SetRequest(r.WithContext(context.WithValue(r.Context(), callKey{}, call)))
			return m.answer(c, call, next)
		}
	}
}

// authenticate opens the claim before it reads the body, and verifies it after.
func (m *Middleware) authenticate(c echo.Context, r *http.Request) (*brc104.Peer, error) {
	claim, err := m.server.Open(r)
	if err != nil {
		return nil, err
	}
	if r.ContentLength > m.maxRequest {
		return nil, &brc104.Error{Kind: brc104.TooLarge}
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, r.Body, m.maxRequest))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, &brc104.Error{Kind: brc104.TooLarge}
	}
	if err != nil {
		return nil, &brc104.Error{Kind: brc104.Invalid} // no whole body, no signature
	}
	return claim.Verify(body)
}

type callKey struct{}

// call is what belongs to one request.
type call struct {
	peer *brc104.Peer // nil: anonymous
	gate Gate
}

// PeerFrom tells who sent the request of this context. ok is false behind no middleware of this package; peer is nil for an
// anonymous request.
func PeerFrom(ctx context.Context) (peer *brc104.Peer, ok bool) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c.peer, true
	}
	return nil, false
}

// Stage is when a gate is asked.
type Stage int

// Stages.
const (
	BeforeSign  Stage = iota // the response is whole
	BeforeWrite              // it is signed, and the next thing is to write it
)

// Draft is a response about to leave. A gate must not change it.
type Draft struct {
	Status int
	Header http.Header
	Body   []byte
}

// Reply is what leaves in place of a draft that lost.
type Reply struct {
	Status int
	Header http.Header // may be nil
	Body   []byte      // JSON; not empty
}

// Gate judges a response; nil lets it out. It is asked at both stages unless it refuses at the first.
type Gate func(ctx context.Context, stage Stage, d Draft) *Reply

// SetGate sets the gate of this request's response. A handler calls it as soon as it knows what the response will hang on. It
// panics behind no middleware of this package: a gate that nobody asks would be worse.
func SetGate(c echo.Context, gate Gate) {
	call, ok := c.Request().Context().Value(callKey{}).(*call)
	if !ok {
		panic("echoauth: SetGate behind no middleware of this package")
	}
	call.gate = gate
}

// Blob answers with a body that the handler has whole and does not touch any more. Unlike c.Blob it copies nothing.
func Blob(c echo.Context, status int, contentType string, body []byte) error {
	c.Response().Header().Set(echo.HeaderContentType, contentType)
	if d, ok := c.Response().Writer.(*draft); ok {
		c.Response().WriteHeader(status)
		c.Response().Size += int64(len(body))
		return d.take(body)
	}
	return c.Blob(status, contentType, body)
}

// answer runs the handler into a draft and lets the draft out.
func (m *Middleware) answer(c echo.Context, call *call, next echo.HandlerFunc) error {
	res := c.Response()
	out := res.Writer
	d := &draft{before: out.Header(), header: http.Header{}, limit: m.maxResponse}
	d.reset()
	res.Writer = d
	defer func() { res.Writer = out }()
	head := c.Request().Method == http.MethodHead
	m.run(c, d, next)
	d.finish(call.peer != nil, head)
	if err := m.letOut(c.Request().Context(), call, d); err != nil {
		return err
	}
	res.Committed, res.Status, res.Size = true, d.status, int64(len(d.body))
	h := out.Header()
	clear(h)
	maps.Copy(h, d.header)
	if bodyAllowed(d.status) {
		h.Set(echo.HeaderContentLength, strconv.Itoa(len(d.body)))
	}
	out.WriteHeader(d.status)
	if head || !bodyAllowed(d.status) {
		return nil
	}
	_, err := out.Write(d.body)
	return err
}

// run calls the handler, and Echo's error handler if that fails; a panic of either becomes a failure.
func (m *Middleware) run(c echo.Context, d *draft, next echo.HandlerFunc) {
	defer func() {
		switch cause := recover(); {
		case cause == http.ErrAbortHandler:
			panic(cause) // a handler's wish to drop the connection
		case cause != nil:
			m.log.ErrorContext(c.Request().Context(), "a handler panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			d.replace(m.failure())
		case d.overflow:
			m.log.ErrorContext(c.Request().Context(), "a handler's response was too long", "limit", d.limit)
			d.replace(m.failure())
		}
	}()
	err := next(c)
	if err == nil || d.overflow {
		return
	}
	// A response that broke off is not sent half: the error is answered in its place.
	res := c.Response()
	d.reset()
	res.Committed, res.Status, res.Size = false, http.StatusOK, 0
	c.Error(err)
}

func (m *Middleware) failure() *Reply {
	return &Reply{Status: http.StatusInternalServerError, Body: m.fault()}
}

// letOut asks the gate, signs, and asks again.
func (m *Middleware) letOut(ctx context.Context, call *call, d *draft) error {
	lost := ask(ctx, call, BeforeSign, d)
	if err := m.sign(ctx, call, d); err != nil || lost {
		return err
	}
	if ask(ctx, call, BeforeWrite, d) {
		return m.sign(ctx, call, d)
	}
	return nil
}

func ask(ctx context.Context, call *call, stage Stage, d *draft) (lost bool) {
	if call.gate == nil {
		return false
	}
	reply := call.gate(ctx, stage, Draft{Status: d.status, Header: d.header, Body: d.body})
	if reply == nil {
		return false
	}
	d.replace(reply)
	return true
}

// sign seals the draft, or a failure in its place when it cannot be sealed.
func (m *Middleware) sign(ctx context.Context, call *call, d *draft) error {
	if call.peer == nil {
		return nil
	}
	err := call.peer.Seal(d.header, d.status, d.body)
	if err == nil {
		return nil
	}
	m.log.ErrorContext(ctx, "a response cannot be signed and was replaced", "cause", err.Error())
	d.replace(m.failure())
	d.drop(brc104.Signed) // the fault may lie in a header from in front of this middleware
	if err := call.peer.Seal(d.header, d.status, d.body); err != nil {
		return fmt.Errorf("echoauth: sign the answer to a failure: %w", err)
	}
	return nil
}

// bodyAllowed reports whether net/http lets a response of this status have a body.
func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}
