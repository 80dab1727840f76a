package brc104

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// field is a signed header: name in lower case, value as it is signed.
type field struct{ name, value string }

// requestParts is everything that the signature of a request covers (see the package comment).
type requestParts struct {
	id                  [32]byte
	method, path, query string // query with its "?", or ""
	fields              []field
	body                []byte // empty: none
}

// responseParts is everything that the signature of a response covers.
type responseParts struct {
	id     [32]byte
	status int
	fields []field
	body   []byte // empty: none
}

// none stands for an absent query or body: the varint of -1.
const none = "\xff\xff\xff\xff\xff\xff\xff\xff\xff"

// appendVarInt appends n in the variable-length form of Bitcoin: 1, 3, 5 or 9 bytes, little endian.
func appendVarInt(dst []byte, n uint64) []byte {
	switch {
	case n < 0xfd:
		return append(dst, byte(n))
	case n <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(dst, 0xfd), uint16(n))
	case n <= 0xffffffff:
		return binary.LittleEndian.AppendUint32(append(dst, 0xfe), uint32(n))
	}
	return binary.LittleEndian.AppendUint64(append(dst, 0xff), n)
}

func appendText(dst []byte, s string) []byte {
	return append(appendVarInt(dst, uint64(len(s))), s...)
}

func appendFields(dst []byte, fields []field) []byte {
	dst = appendVarInt(dst, uint64(len(fields)))
	for _, f := range fields {
		dst = appendText(appendText(dst, f.name), f.value)
	}
	return dst
}

// appendHead appends the payload up to the body's length.
func (p *requestParts) appendHead(dst []byte) []byte {
	dst = append(dst, p.id[:]...)
	dst = appendText(dst, p.method)
	dst = appendText(dst, p.path)
	if p.query == "" {
		dst = append(dst, none...)
	} else {
		dst = appendText(dst, p.query)
	}
	return appendFields(dst, p.fields)
}

// digest is the SHA-256 of the payload, which itself is never built: the body is only read.
func (p *requestParts) digest() [32]byte {
	var room [1024]byte
	return digest(p.appendHead(room[:0]), p.body)
}

func (p *responseParts) appendHead(dst []byte) []byte {
	dst = append(dst, p.id[:]...)
	dst = appendVarInt(dst, uint64(p.status))
	return appendFields(dst, p.fields)
}

func (p *responseParts) digest() [32]byte {
	var room [1024]byte
	return digest(p.appendHead(room[:0]), p.body)
}

// small is the size of a body below which copying it costs less than a streaming hash does.
const small = 2048

func digest(head, body []byte) [32]byte {
	if len(body) == 0 {
		head = append(head, none...)
	} else {
		head = appendVarInt(head, uint64(len(body)))
	}
	if len(body) <= small {
		return sha256.Sum256(append(head, body...))
	}
	h := sha256.New()
	h.Write(head)
	h.Write(body)
	var sum [32]byte
	h.Sum(sum[:0])
	return sum
}

// Signed reports whether the signature of a response covers a header of this name, in whatever case.
func Signed(name string) bool { return responseName(strings.ToLower(name)) }

// Authentication reports whether a header of this name, in whatever case, belongs to the protocol itself.
func Authentication(name string) bool {
	return len(name) >= len(authPrefix) && strings.EqualFold(name[:len(authPrefix)], authPrefix)
}

// signedName reports whether a header of this lower-case name is signed because of its prefix.
func signedName(lower string) bool {
	return strings.HasPrefix(lower, signedPrefix) && !strings.HasPrefix(lower, authPrefix)
}

var errRepeated = errors.New("a signed header stands twice")

// collect gathers the headers that signed names, sorted by name, values as they are. One that stands twice is an error: clients
// disagree about how to sign it.
func collect(h http.Header, signed func(lower string) bool) ([]field, error) {
	fields := make([]field, 0, 4)
	for name, values := range h {
		lower := strings.ToLower(name)
		if !signed(lower) || len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return nil, errRepeated
		}
		fields = append(fields, field{lower, values[0]})
	}
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(fields); i++ {
		if fields[i].name == fields[i-1].name { // in different cases
			return nil, errRepeated
		}
	}
	return fields, nil
}

func requestName(lower string) bool {
	return signedName(lower) || lower == lowerContentType || lower == lowerAuthorization
}

func responseName(lower string) bool { return signedName(lower) || lower == lowerAuthorization }

// requestFields collects the signed headers of a request. Of the content type only the media type is signed.
func requestFields(h http.Header) ([]field, error) {
	fields, err := collect(h, requestName)
	for i := range fields {
		if fields[i].name == lowerContentType {
			media, _, _ := strings.Cut(fields[i].value, ";")
			fields[i].value = strings.TrimSpace(media)
		}
	}
	return fields, err
}

// responseFields collects the signed headers of a response about to be sent, and makes them such that every client reads back
// what was signed: values trimmed, several values of one name joined by ", ". What no client would read back is an error.
func responseFields(h http.Header) ([]field, error) {
	for name, values := range h {
		if lower := strings.ToLower(name); !responseName(lower) || len(values) == 0 {
			continue
		} else if !plainName(lower) {
			return nil, fmt.Errorf("brc104: response header %q: use letters, digits and hyphens only, which every client sorts alike", lower)
		}
		value := join(values)
		if !plainValue(value) {
			return nil, fmt.Errorf("brc104: response header %q: its value holds something other than printable ASCII, which clients read differently", name)
		}
		if len(values) > 1 || value != values[0] {
			h[name] = []string{value}
		}
	}
	fields, err := collect(h, responseName)
	if err != nil {
		return nil, fmt.Errorf("brc104: response headers: %w", err)
	}
	return fields, nil
}

func join(values []string) string {
	if len(values) == 1 {
		return strings.Trim(values[0], " \t")
	}
	trimmed := make([]string, len(values))
	for i, v := range values {
		trimmed[i] = strings.Trim(v, " \t")
	}
	return strings.Trim(strings.Join(trimmed, ", "), " \t")
}

func plainName(lower string) bool {
	for i := range len(lower) {
		c := lower[i]
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func plainValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c > '~' {
			return false
		}
	}
	return true
}

// typicallyHasBody reports whether clients sign an absent JSON body of this method as {}.
func typicallyHasBody(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// effectiveBody is the body that was signed and that the handler is to see: for an empty JSON body it is {}, which one of the
// official clients does not even transmit.
func effectiveBody(method string, h http.Header, body []byte) []byte {
	if len(body) == 0 && typicallyHasBody(method) && strings.Contains(h.Get(headerContentType), "application/json") {
		return []byte("{}")
	}
	return body
}
