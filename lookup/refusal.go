package lookup

import (
	"context"
	"errors"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// refusal is an answer that is not a success: what the peer may read, and apart from it what only the log may.
type refusal struct {
	public wire.Error
	cause  error // nil when the public text says it all
	quota  quota // that refused; empty when none did
}

// Error implements error with the public text only.
func (r *refusal) Error() string { return string(r.public.Code) + ": " + r.public.Message }

// Unwrap gives the cause to the log.
func (r *refusal) Unwrap() error { return r.cause }

// because attaches the cause that goes to the log.
func (r *refusal) because(cause error) *refusal {
	r.cause = cause
	return r
}

// retryAfter is how long a peer is asked to wait after a passing fault, in milliseconds.
const retryAfter = 1000

// The fixed public texts, one for each thing that can be wrong. They name what to do and never a stored value.
const (
	textPath          = "There is nothing at this path. Check the base URL and the endpoint."
	textMethod        = "This endpoint does not take that method. See the Allow header."
	textService       = "This provider offers no lookup service of that name."
	textHeaders       = "The request headers are larger than 16384 bytes. Send fewer or shorter headers."
	textOrigin        = "This origin is not among those the provider answers."
	textContentType   = "Content-Type must be application/json."
	textCacheControl  = "Cache-Control must include no-store."
	textEncoding      = "Send the body without a content encoding."
	textCapability    = "Send one x-bsv-overlay-capability header holding a capability digest of 64 lowercase hex characters."
	textProfileTwice  = "Send one x-bsv-overlay-profile header."
	textProfile       = "Select the lookup-live profile in x-bsv-overlay-profile."
	textBody          = "The request body is larger than this service takes."
	textRead          = "The request body did not arrive whole. Send it again."
	textQuery         = "The query does not fit the rules of this service."
	textConflict      = "This requestId was used with other parameters. Use a new requestId."
	textOther         = "This requestId or session belongs to another capability digest. Send the one it was opened with."
	textUnknownCap    = "This capability digest is not one that this provider now stands by. Fetch the capabilities and open anew."
	textRules         = "The service's rules are not the required ones."
	textManifestOld   = "This manifest has expired. Fetch the capabilities and open with the new one."
	textExpired       = "This session was closed or has expired. Open a new one with a new requestId."
	textReset         = "This session cannot go on from here. Open a new snapshot."
	textEpoch         = "The service has begun a new epoch. Fetch the capabilities and open anew."
	textEnvelope      = "The response envelope is larger than maxBytes. Raise maxBytes to the minimum given."
	textGroup         = "The next group is larger than the limits. Raise them to the minimum given."
	textPermanent     = "The next group is larger than this service can ever deliver."
	textNotSigned     = "No service here takes signed requests. Send it without authentication."
	textAnonymousOnly = "This service answers unsigned requests only."
	textUnauthorized  = "This service does not admit the caller."
	textUnavailable   = "The provider cannot answer just now. Try again."
	textStopping      = "This node is stopping. Try again."
)

func refuse(code wire.Code, text string) *refusal {
	return &refusal{public: wire.Error{Code: code, Message: text}}
}

func refuseReset(cause error) *refusal { return refuse(wire.ResetRequired, textReset).because(cause) }

func refuseUnavailable(text string, cause error) *refusal {
	r := refuse(wire.Unavailable, text).because(cause)
	r.public.Retryable = true
	r.public.RetryAfterMs = new(uint32(retryAfter))
	return r
}

func refuseLimit(limit wire.Limit) *refusal {
	text := map[wire.LimitKind]string{
		wire.LimitEnvelope: textEnvelope, wire.LimitGroup: textGroup, wire.LimitPermanentGroup: textPermanent,
	}[limit.Kind]
	r := refuse(wire.Limited, text)
	r.public.Limit = &limit
	return r
}

// asRefusal turns any error into what may be answered: a refusal as it is, a faulty message by its wire error, a hole or
// rewritten history in the feed as reset-required, and every other fault as unavailable, to be tried again.
func asRefusal(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if w, ok := errors.AsType[*wire.Error](err); ok {
		return &refusal{public: *w}
	}
	if f, ok := errors.AsType[*livefeed.Error](err); ok && f.Code == livefeed.Reset {
		return refuseReset(err)
	}
	return refuseUnavailable(textUnavailable, err)
}

// gone reports whether an error is only the caller's own departure.
func gone(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
