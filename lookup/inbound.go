package lookup

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// inbound is what a request brought, checked as far as it can be without looking anything up.
type inbound struct {
	endpoint   string
	arrived    time.Time
	capability string            // the capability digest, when well formed
	profile    string            // the profile, when well formed
	origin     string            // the configured origin it came from, if any
	allow      string            // methods this path takes, when the request used another
	body       []byte            // nil until it was read
	peer       *brc104.Peer      // who signed the request; nil: anonymous
	seal       seal              // signs every answer to peer
	annotate   func(http.Header) // sets the headers of an unsigned refusal, if it has any
	client     client            // whose quotas it counts against
	slot       *slot             // among the bodies being built
	room       room              // of its body
}

// principal is the authenticated identity, or nil.
func (in *inbound) principal() *[33]byte {
	if in.peer == nil {
		return nil
	}
	return &in.peer.Identity
}

// principalHex is the authenticated identity in hex, or empty.
func (in *inbound) principalHex() string {
	if in.peer == nil {
		return ""
	}
	return hexOf(in.peer.Identity[:])
}

// The selection's headers as net/http spells them.
var capabilityKey, profileKey = http.CanonicalHeaderKey(wire.HeaderCapability), http.CanonicalHeaderKey(wire.HeaderProfile)

// headerBytes counts field names and values as they stand after header decompression (BRC-193 s8). net/http has moved some
// out of the map; they were fields all the same. (Of a Content-Length repeated with one value it keeps one.)
func headerBytes(r *http.Request) int {
	n := 0
	if r.Host != "" {
		n += len("host") + len(r.Host)
	}
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	for _, coding := range r.TransferEncoding {
		n += len("transfer-encoding") + len(coding)
	}
	for name := range r.Trailer { // as one field, the usual spelling
		n += len(name) + len(", ")
	}
	if len(r.Trailer) > 0 {
		n += len("trailer") - len(", ")
	}
	return n
}

// receive checks everything about a request that does not need its body: size of the headers, origin, method.
func (p *Provider) receive(c echo.Context, endpoint, method string) (*inbound, *refusal) {
	r := c.Request()
	in := &inbound{endpoint: endpoint, arrived: time.Now()}
	// Echoes come first, so that even a refusal carries them when they were well formed.
	if v := r.Header[capabilityKey]; len(v) == 1 {
		if _, err := canon.ParseHex32(v[0]); err == nil {
			in.capability = v[0]
		}
	}
	if v := r.Header[profileKey]; len(v) == 1 && (v[0] == wire.Profile || wire.CheckAbsoluteIRI(v[0]) == nil && len(v[0]) <= 1024) {
		in.profile = v[0]
	}
	// A page must be able to read a refusal, the one to begin a new session above all, so this comes before any.
	origins := r.Header.Values(echo.HeaderOrigin)
	if p.admitsOrigin(origins) {
		in.origin = origins[0]
	}
	// Who signed is answered with a signature, whatever else is wrong.
	if r := p.identify(c, in); r != nil {
		return in, r
	}
	if headerBytes(r) > wire.MaxHeaderBytes {
		return in, refuse(wire.Limited, textHeaders)
	}
	if len(origins) > 0 && in.origin == "" {
		return in, refuse(wire.Unauthorized, textOrigin)
	}
	if r.Method != method {
		in.allow = method
		return in, refuse(wire.Invalid, textMethod)
	}
	return in, nil
}

// select checks the headers by which every endpoint but discovery is selected, and reads the whole body.
func (p *Provider) accept(c echo.Context, in *inbound) *refusal {
	r := c.Request()
	if types := r.Header.Values(echo.HeaderContentType); len(types) != 1 || !isJSON(types[0]) {
		return refuse(wire.Invalid, textContentType)
	}
	if !identityEncoded(r.Header.Values(echo.HeaderContentEncoding)) {
		return refuse(wire.Unsupported, textEncoding)
	}
	// Official signed clients cannot send Cache-Control, so only public requests are judged by it (conformance row H1).
	if in.seal == nil && !noStore(r.Header.Values(echo.HeaderCacheControl)) {
		return refuse(wire.Invalid, textCacheControl)
	}
	if in.capability == "" {
		return refuse(wire.Invalid, textCapability)
	}
	switch profiles := r.Header[profileKey]; {
	case len(profiles) > 1:
		return refuse(wire.Invalid, textProfileTwice)
	case in.profile != wire.Profile:
		return refuse(wire.Unsupported, textProfile)
	}
	in.client = p.clientOf(c, in)
	in.room = room{bodies: p.quotas.bodies, who: in.client}
	in.slot = &slot{slots: p.quotas.slots, who: in.client}
	if in.peer != nil {
		return nil // it was read to be verified
	}
	body, refused := wholeBody(r)
	in.body = body
	return refused
}

// leaveSlot gives the slot of what was built back, if it is held.
func (in *inbound) leaveSlot() {
	if in.slot != nil {
		in.slot.leave()
	}
}

// smallBody is how long a body may be that is read into its own length: more is not taken on a peer's word.
const smallBody = 2048

// wholeBody reads a whole body within the protocol's bound.
func wholeBody(r *http.Request) ([]byte, *refusal) {
	if r.ContentLength > wire.MaxRequestBytes {
		return nil, refuse(wire.Limited, textBody)
	}
	if n := r.ContentLength; n >= 0 && n <= smallBody { // no more memory than a reader of its own would take
		body := make([]byte, n)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, refuse(wire.Invalid, textRead).because(err)
		}
		return body, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxRequestBytes+1))
	if err != nil {
		return nil, refuse(wire.Invalid, textRead).because(err)
	}
	if len(body) > wire.MaxRequestBytes {
		return nil, refuse(wire.Limited, textBody)
	}
	return body, nil
}

// parsed turns the fault of a message into a refusal.
func parsed[T any](v T, err error) (T, *refusal) {
	if err == nil {
		return v, nil
	}
	if w, ok := errors.AsType[*wire.Error](err); ok {
		return v, (&refusal{public: *w}).because(err)
	}
	return v, refuse(wire.Invalid, textRead).because(err)
}

func isJSON(value string) bool {
	if value == echo.MIMEApplicationJSON {
		return true
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil || media != echo.MIMEApplicationJSON {
		return false
	}
	for name, v := range params {
		if name != "charset" || !strings.EqualFold(v, "utf-8") {
			return false
		}
	}
	return true
}

func identityEncoded(values []string) bool {
	for _, v := range values {
		if !strings.EqualFold(strings.TrimSpace(v), "identity") {
			return false
		}
	}
	return true
}

func noStore(values []string) bool {
	for _, v := range values {
		for directive := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(directive), "no-store") {
				return true
			}
		}
	}
	return false
}
