package canon

// Code tells a malformed input from one that ran out of a limit.
type Code uint8

// The two ways an input is refused.
const (
	Invalid  Code = iota // not strict JSON, or not the scalar asked for
	TooLarge             // a size, depth, element or key limit was reached
)

// String returns "invalid" or "limited", the protocol's names.
func (c Code) String() string {
	if c == TooLarge {
		return "limited"
	}
	return "invalid"
}

// Error is the refusal of an input.
type Error struct {
	Code   Code
	Path   string // JSON pointer of where it happened, at most 256 bytes, may be empty; for logs only
	Reason string // one of a fixed set of texts, safe to show
}

// Error implements error.
func (e *Error) Error() string {
	if e.Path == "" {
		return "canon: " + e.Reason
	}
	return "canon: " + e.Reason + " at " + e.Path
}

const (
	reasonBytes     = "the message has too many bytes"
	reasonDepth     = "the message is nested too deeply"
	reasonElements  = "an array has too many elements"
	reasonKeys      = "an object has too many members"
	reasonSyntax    = "the message is not well-formed JSON"
	reasonEmpty     = "the message is empty or cut short"
	reasonDuplicate = "an object repeats a member name"
	reasonTrailing  = "there is data after the JSON value"
	reasonNumber    = "a number has no finite double, or is not zero and too small for one"
	reasonInteger   = "a number is not an integer within 2^53-1"
	reasonHex32     = "expected 64 lowercase hexadecimal characters"
	reasonU64       = "expected an unsigned 64-bit decimal string"
	reasonBase64    = "expected canonical padded base64"
	reasonIdentity  = "expected a compressed public key in lowercase hexadecimal"
	reasonStrEmpty  = "expected a string that is not empty"
	reasonStrLong   = "the string has too many bytes"
	reasonStrUTF8   = "the string is not well-formed UTF-8"
)

func invalid(reason string) *Error { return &Error{Code: Invalid, Reason: reason} }
