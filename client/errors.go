package client

import (
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/internal/wire"
)

// The protocol's own types, named here for importers.
type (
	// Chain names a blockchain: a network and its genesis hash.
	Chain = wire.Chain
	// Limits are the budgets of one request.
	Limits = wire.Limits
	// Observation is one assertion of a source.
	Observation = wire.Observation
	// Code is a protocol error code.
	Code = wire.Code
	// ProviderError is an error body whose shape, status and echoed selection
	// were right: what the provider really answered.
	ProviderError = wire.Error
)

// The codes a generation ends with.
const (
	CodeResetRequired  = wire.ResetRequired
	CodeExpired        = wire.Expired
	CodeUnauthorized   = wire.Unauthorized
	CodeContextChanged = wire.ContextChanged
	CodeEquivocation   = wire.Equivocation
	CodeCancelled      = wire.Cancelled // closed by this side
)

// ErrBusy says that this source is already being followed with this state.
var ErrBusy = errors.New("this source is already being followed with this state")

// ErrSigned says that the service takes authenticated requests only.
var ErrSigned = errors.New("this service takes signed requests (brc103) only: follow it with a key")

// ErrPublic says that the service takes no authenticated requests. None was sent
// to it.
var ErrPublic = errors.New("this service is for everybody and takes no signed requests: follow it without a key")

// PaymentError says that the provider asked for money, which this profile
// forbids. Nothing is ever paid.
type PaymentError struct{ Endpoint string }

func (e *PaymentError) Error() string {
	return fmt.Sprintf("the provider asked for a payment (402) at %s: charging is not supported, and nothing was paid", e.Endpoint)
}

// Rule names a check of an answer, in the order in which they are made (C1).
type Rule string

// The rules.
const (
	RuleSignature    Rule = "signature"    // BRC-104, by the pinned peer, for this request
	RuleHeaders      Rule = "headers"      // bound on all header bytes
	RuleRedirect     Rule = "redirect"     // none is followed
	RuleStatus       Rule = "status"       // 200, or the code's own
	RuleEcho         Rule = "echo"         // selection headers repeated exactly
	RuleEncoding     Rule = "encoding"     // identity only
	RuleSize         Rule = "size"         // bytes of the whole body
	RuleSchema       Rule = "schema"       // strict JSON and closed shape
	RuleScope        Rule = "scope"        // chain, provider, service, query, rules, access, epoch
	RuleDeadlines    Rule = "deadlines"    // expiresAt and replayUntil
	RuleLimits       Rule = "limits"       // exact echo of the effective limits
	RuleContinuation Rule = "continuation" // session, watermarks, phase, order
	RuleDuplicate    Rule = "duplicate"    // an id that is already recorded
)

// ViolationError says that an answer broke the protocol. Nothing of it was
// recorded or shown.
type ViolationError struct {
	Rule   Rule
	Detail string
	Err    error // nil when Detail says all
}

func (e *ViolationError) Error() string {
	s := fmt.Sprintf("the provider broke the protocol (%s): %s", e.Rule, e.Detail)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ViolationError) Unwrap() error { return e.Err }

// lasting reports whether the fault lies in the body, not in how it travelled.
func (e *ViolationError) lasting() bool {
	switch e.Rule {
	case RuleSchema, RuleScope, RuleDeadlines, RuleLimits, RuleContinuation, RuleDuplicate:
		return true
	}
	return false
}

func violation(rule Rule, format string, args ...any) *ViolationError {
	return &ViolationError{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// EquivocationError says that the provider gave one id two meanings. The
// source's continuity is not trusted any more; the claim is in quarantine.
type EquivocationError struct {
	What  string // "group" or "observation"
	ID    string
	Claim []byte // what was refused
}

func (e *EquivocationError) Error() string {
	return fmt.Sprintf("the provider gave the %s %q a second meaning: the claim is in quarantine and this generation is over; follow again to start a new one", e.What, e.ID)
}

// PinError says that a provider is not the one this state, or the caller, holds
// on to.
type PinError struct {
	What      string // "chain" or "identity"
	Want, Got string
}

func (e *PinError) Error() string {
	return fmt.Sprintf("the provider's %s is %s, but %s was expected: if the change is intended, name the new one or use another state", e.What, e.Got, e.Want)
}

// ManifestError says that a capabilities manifest cannot be used.
type ManifestError struct {
	Reason string
	Err    error
}

func (e *ManifestError) Error() string {
	s := "the provider's capabilities cannot be used: " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ManifestError) Unwrap() error { return e.Err }

// UnverifiedError says that an answer other than 200 did not have the
// protocol's shape, or not the signature it should have. It is not believed: at
// most it is a reason to try again.
type UnverifiedError struct {
	Status int
	Err    error

	passing bool // it may pass, whatever the status
}

func (e *UnverifiedError) Error() string {
	return fmt.Sprintf("status %d in another form than the protocol's, check the URL and what stands between: %v", e.Status, e.Err)
}

func (e *UnverifiedError) Unwrap() error { return e.Err }

// temporary reports whether a proxy or a restart could be the cause.
func (e *UnverifiedError) temporary() bool {
	return e.passing || e.Status >= 500 || e.Status == 408 || e.Status == 429
}

// EndedError says that the generation is over and that the policy does not open
// another one. Follow again with OnReset: Reopen to ask for one.
type EndedError struct{ Ending Ending }

func (e *EndedError) Error() string {
	return fmt.Sprintf("generation %d is over (%s: %s): its rows are kept and are stale; follow again with reopening allowed to replace them",
		e.Ending.Generation, e.Ending.Code, e.Ending.Reason)
}

// GaveUpError says that no verified answer came for as long as RetryFor allows, or none
// but refusals to open.
type GaveUpError struct{ Err error }

func (e *GaveUpError) Error() string {
	return "no verified answer came to go on with in the time allowed: " + e.Err.Error()
}

func (e *GaveUpError) Unwrap() error { return e.Err }

// transportError is a request without a complete answer: try again.
type transportError struct{ err error }

func (e *transportError) Error() string { return "the provider cannot be reached: " + e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }
