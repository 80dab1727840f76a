package wire

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/overlayd/overlayd/internal/canon"
)

// Code is an error code of BRC-192, or not-found of BRC-193.
type Code string

// The error codes.
const (
	Invalid        Code = "invalid"
	Unsupported    Code = "unsupported"
	Unauthorized   Code = "unauthorized"
	Conflict       Code = "conflict"
	Equivocation   Code = "equivocation"
	Limited        Code = "limited"
	Unavailable    Code = "unavailable"
	Expired        Code = "expired"
	ResetRequired  Code = "reset-required"
	Cancelled      Code = "cancelled" // local to a client, never sent
	ContextChanged Code = "context-changed"
	NotFound       Code = "not-found"
)

// Status returns the HTTP status of the code (BRC-193 s6): 0 for Cancelled and
// for a code that is not known, neither of which may be sent.
func (c Code) Status() int {
	switch c {
	case Invalid:
		return 400
	case Unauthorized:
		return 401
	case NotFound:
		return 404
	case Conflict, Equivocation, ResetRequired, ContextChanged:
		return 409
	case Expired:
		return 410
	case Limited:
		return 413
	case Unsupported:
		return 422
	case Unavailable:
		return 503
	}
	return 0
}

// Known reports whether c is one of the codes above.
func (c Code) Known() bool { return c == Cancelled || c.Status() != 0 }

// LimitKind says what did not fit (BRC-193 s8).
type LimitKind string

// The limit kinds.
const (
	LimitEnvelope       LimitKind = "envelope"        // not even an empty batch fits
	LimitGroup          LimitKind = "group"           // the next group fits larger limits
	LimitPermanentGroup LimitKind = "permanent-group" // the next group fits no limits of this session
)

func (k LimitKind) known() bool {
	return k == LimitEnvelope || k == LimitGroup || k == LimitPermanentGroup
}

// Limit is the detail of a Limited error. A nil minimum is absent; a present
// one is never above the hard maxima ([MaxResponseBytes], [MaxObservations]).
type Limit struct {
	Kind                LimitKind
	MinimumBytes        *uint32
	MinimumObservations *uint32
}

// Error is an error body, and the error every parser of this package returns.
// Message is public: it quotes nothing private.
type Error struct {
	Code         Code
	Message      string  // nonempty, at most 1024 bytes on the wire
	Retryable    bool    // whether the same request may succeed later
	RetryAfterMs *uint32 // milliseconds; nil is absent
	Limit        *Limit  // only with Limited; nil is absent

	cause error
}

// Error implements error.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the private cause, which belongs in a log only.
func (e *Error) Unwrap() error { return e.cause }

// WithCause returns a copy of e that carries a private cause.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// AppendCanonical appends the whole error body {version, error} to dst. The
// body is at most [MaxErrorBytes] and always one that [ParseError] accepts: a
// longer message is cut; a limit of an unknown kind or on another code than
// Limited, and a minimum above the hard maxima, are left out; a code that may
// not be sent is written as Unavailable.
func (e *Error) AppendCanonical(dst []byte) []byte {
	code := e.Code
	if code.Status() == 0 {
		code = Unavailable
	}
	dst = append(dst, `{"error":{"code":`...)
	dst = canon.AppendString(dst, string(code))
	if e.Limit != nil && code == Limited && e.Limit.Kind.known() {
		dst = e.Limit.appendCanonical(dst)
	}
	dst = append(dst, `,"message":`...)
	dst = canon.AppendString(dst, publicText(e.Message, string(code)))
	if e.RetryAfterMs != nil {
		dst = append(dst, `,"retryAfterMs":`...)
		dst = strconv.AppendUint(dst, uint64(*e.RetryAfterMs), 10)
	}
	dst = append(dst, `,"retryable":`...)
	dst = strconv.AppendBool(dst, e.Retryable)
	return append(dst, `},"version":1}`...)
}

func (l *Limit) appendCanonical(dst []byte) []byte {
	dst = append(dst, `,"limit":{"kind":`...)
	dst = canon.AppendString(dst, string(l.Kind))
	if n := l.MinimumBytes; n != nil && *n <= MaxResponseBytes {
		dst = append(dst, `,"minimumBytes":`...)
		dst = strconv.AppendUint(dst, uint64(*n), 10)
	}
	if n := l.MinimumObservations; n != nil && *n <= MaxObservations {
		dst = append(dst, `,"minimumObservations":`...)
		dst = strconv.AppendUint(dst, uint64(*n), 10)
	}
	return append(dst, '}')
}

// maxMessage bounds a message by its encoded size: the rest of a body is well
// under 512 bytes.
const maxMessage = MaxErrorBytes - 512

// publicText makes s a protocol string that fits an error body.
func publicText(s, otherwise string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if s == "" {
		s = otherwise
	}
	for len(s) > MaxString || canon.StringSize(s) > maxMessage {
		over := max(len(s)-MaxString, (canon.StringSize(s)-maxMessage)/6, 1)
		cut := len(s) - over
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return s
}

// ParseError reads an error body that came with an HTTP status. The shape is
// closed and the status must be the code's. A body that is not such an error is
// itself an [*Error], so a caller looks at the second result first.
func ParseError(body []byte, status int) (*Error, error) {
	root, err := parseBody(body, MaxErrorBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the error response", "version", "error")
	r.version(root)
	o := r.get(root, "error")
	r.closed(o, "error", "code", "message", "retryable", "retryAfterMs?", "limit?")
	e := &Error{
		Code:      Code(r.str(o, "code", MaxString)),
		Message:   r.str(o, "message", MaxString),
		Retryable: r.boolean(o, "retryable"),
	}
	e.RetryAfterMs = r.optionalU32(o, "retryAfterMs")
	if l, ok := o.Get("limit"); ok {
		e.Limit = r.limit(l)
		if e.Code != Limited {
			r.invalid("limit", "belongs to the code limited only")
		}
	}
	if e.Code.Status() == 0 || e.Code.Status() != status {
		r.invalid("code", "does not belong to the HTTP status")
	}
	if r.fault != nil {
		return nil, r.fault
	}
	return e, nil
}

func (r *reader) limit(o canon.Value) *Limit {
	r.closed(o, "limit", "kind", "minimumBytes?", "minimumObservations?")
	l := &Limit{Kind: LimitKind(r.str(o, "kind", MaxString))}
	if !l.Kind.known() {
		r.invalid("kind", "is not known")
	}
	l.MinimumBytes = r.optionalU32(o, "minimumBytes")
	l.MinimumObservations = r.optionalU32(o, "minimumObservations")
	if l.MinimumBytes != nil && *l.MinimumBytes > MaxResponseBytes {
		r.invalid("minimumBytes", "is above the profile's maximum")
	}
	if l.MinimumObservations != nil && *l.MinimumObservations > MaxObservations {
		r.invalid("minimumObservations", "is above the profile's maximum")
	}
	return l
}

func faultf(code Code, field, reason string) *Error {
	return &Error{Code: code, Message: field + " " + reason}
}

// fromCanon turns a representation error into one of the protocol's.
func fromCanon(err error) *Error {
	code, text := Invalid, "the body is not acceptable JSON"
	if c, ok := errors.AsType[*canon.Error](err); ok {
		text = c.Reason
		if c.Code == canon.TooLarge {
			code = Limited
		}
	}
	return &Error{Code: code, Message: text, cause: err}
}
