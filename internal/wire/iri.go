package wire

import (
	"strings"
	"unicode/utf8"
)

// CheckAbsoluteIRI accepts an absolute IRI (RFC 3987) of at most 1024 bytes: a
// scheme, a colon and something after it, of characters an IRI may hold, with
// well-formed percent escapes. A fragment is allowed, as the profile names here
// have one. Nothing is resolved. Errors are [*Error] with the code Invalid.
func CheckAbsoluteIRI(s string) error {
	if !isAbsoluteIRI(s) {
		return faultf(Invalid, "the name", "must be an absolute IRI")
	}
	return nil
}

func isAbsoluteIRI(s string) bool {
	scheme, rest, found := strings.Cut(s, ":")
	if !found || rest == "" || len(s) > MaxString || !utf8.ValidString(s) || !isScheme(scheme) {
		return false
	}
	for i, c := range rest {
		switch {
		case c == '%':
			if !isHexPair(rest[i+1:]) {
				return false
			}
		case c < utf8.RuneSelf && !isURIByte(byte(c)), c >= utf8.RuneSelf && !isIRIChar(c):
			return false
		}
	}
	return true
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

// isURIByte reports whether an ASCII byte may stand in a URI, % aside.
func isURIByte(c byte) bool {
	return isUnreserved(c) || strings.IndexByte(":/?#[]@!$&'()*+,;=", c) >= 0
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

// isIRIChar covers ucschar and iprivate of RFC 3987: no C1 controls, no
// U+FDD0..FDEF, no U+FFF0..FFFF, no U+E0000..E0FFF, no noncharacters.
func isIRIChar(c rune) bool {
	switch {
	case c < 0xA0, c >= 0xFDD0 && c <= 0xFDEF, c >= 0xFFF0 && c <= 0xFFFF, c >= 0xE0000 && c <= 0xE0FFF:
		return false
	}
	return c&0xFFFE != 0xFFFE
}

func isHexPair(s string) bool { return len(s) >= 2 && isHexDigit(s[0]) && isHexDigit(s[1]) }

func isHexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
