package canon

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// MaxString is the bound in bytes of a protocol string that has no other.
const MaxString = 1024

// ParseHex32 reads exactly 64 lowercase hexadecimal characters (Hex32).
func ParseHex32(s string) ([32]byte, error) {
	var out [32]byte
	if len(s) != 2*len(out) || !parseHex(out[:], s) {
		return [32]byte{}, invalid(reasonHex32)
	}
	return out, nil
}

// ParseIdentity reads 66 lowercase hexadecimal characters that are a compressed
// secp256k1 public key on the curve (Identity).
func ParseIdentity(s string) ([33]byte, error) {
	var out [33]byte
	if len(s) != 2*len(out) || !parseHex(out[:], s) {
		return [33]byte{}, invalid(reasonIdentity)
	}
	if _, err := secp256k1.ParsePubKey(out[:]); err != nil {
		return [33]byte{}, invalid(reasonIdentity)
	}
	return out, nil
}

// parseHex fills dst from 2*len(dst) lowercase hexadecimal characters.
func parseHex(dst []byte, s string) bool {
	for i := range dst {
		hi, ok1 := nibble(s[2*i])
		lo, ok2 := nibble(s[2*i+1])
		if !ok1 || !ok2 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func nibble(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// ParseU64 reads "0" or a decimal without sign, leading zero or exponent, at
// most 18446744073709551615 (U64).
func ParseU64(s string) (uint64, error) {
	if s == "" || len(s) > 20 || (s[0] == '0' && len(s) > 1) {
		return 0, invalid(reasonU64)
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, invalid(reasonU64)
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, invalid(reasonU64)
	}
	return n, nil
}

// ParseBytes decodes canonical standard base64 (Bytes): padding required, pad
// bits zero, no white space. The empty string is the empty slice.
func ParseBytes(s string) ([]byte, error) {
	// Go's decoder skips line breaks and is otherwise exact in strict mode, so
	// with those refused there is one text for each value.
	if len(s)%4 != 0 || strings.IndexByte(s, '\n') >= 0 || strings.IndexByte(s, '\r') >= 0 {
		return nil, invalid(reasonBase64)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, invalid(reasonBase64)
	}
	return b, nil
}

// CheckString accepts a nonempty well-formed UTF-8 string of at most maxBytes.
// U+0000 is an ordinary character.
func CheckString(s string, maxBytes int) error {
	switch {
	case s == "":
		return invalid(reasonStrEmpty)
	case len(s) > maxBytes:
		return invalid(reasonStrLong)
	case !utf8.ValidString(s):
		return invalid(reasonStrUTF8)
	}
	return nil
}
