package brc104

import "net/http"

// Kind is what is wrong with a request that cannot be answered with a signature.
type Kind int

// Kinds.
const (
	// Unauthenticated: there is no authentication at all.
	Unauthenticated Kind = iota + 1
	// Invalid: there is some, and it does not prove anything.
	Invalid
	// StaleSession: the session has expired, or is not one of this deployment. The answer carries the hint by which clients
	// begin a new session and send the request again.
	StaleSession
	// BadHandshake: a handshake that is not one.
	BadHandshake
	// BadMethod: a handshake by another method than POST.
	BadMethod
	// TooLarge: a body beyond the limit.
	TooLarge
	// Unavailable: nobody can be authenticated just now.
	Unavailable
)

// Error is an answer that carries no signature. Its text is fixed and may be told to anyone; the cause is for the log.
type Error struct {
	Kind  Kind
	cause error
}

// Status is the HTTP status of the answer.
func (e *Error) Status() int {
	switch e.Kind {
	case BadHandshake:
		return http.StatusBadRequest
	case BadMethod:
		return http.StatusMethodNotAllowed
	case TooLarge:
		return http.StatusRequestEntityTooLarge
	case Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusUnauthorized
}

// Public is the text for the peer: what happened and what to do.
func (e *Error) Public() string {
	switch e.Kind {
	case Unauthenticated:
		return "This request needs BRC-104 authentication. Begin a session at " + HandshakePath + " and sign the request."
	case Invalid:
		return "The authentication of this request is not valid. Sign the request anew."
	case StaleSession:
		return "The session of this request has ended. Begin a new one at " + HandshakePath + " and sign the request anew."
	case BadHandshake:
		return "This is not an initialRequest of version " + Version + "."
	case BadMethod:
		return "Send an initialRequest by POST."
	case TooLarge:
		return "The request body is too large."
	}
	return "The server cannot authenticate anyone just now. Try again."
}

// Error implements error with the public text.
func (e *Error) Error() string { return "brc104: " + e.Public() }

// Unwrap gives the cause, if any, to the log.
func (e *Error) Unwrap() error { return e.cause }

func fail(kind Kind, cause error) *Error { return &Error{Kind: kind, cause: cause} }

// staleHint is what makes clients begin a new session. One official client looks for this sentence in the error that an unknown
// message type gives it; the other sees an unsigned 401 and begins anew in any case.
const staleHint = "Session not found for nonce"

// Annotate sets the headers that go with the error: the hint of a StaleSession, Allow of a BadMethod. No other error may carry
// an x-bsv-auth header: clients take that for a forged signature.
func (e *Error) Annotate(h http.Header) {
	switch e.Kind {
	case StaleSession:
		h[HeaderVersion] = []string{Version}
		h[HeaderMessageType] = []string{staleHint}
	case BadMethod:
		h.Set("Allow", http.MethodPost)
	}
}
