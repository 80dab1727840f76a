package canon

import (
	"math"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plain are the bytes of characters that stand for themselves in a string.
var plain = func() (is [256]bool) {
	for c := byte(0x20); c < utf8.RuneSelf; c++ {
		is[c] = c != '"' && c != '\\'
	}
	return is
}()

// AppendCanonical appends the RFC 8785 form of v to dst.
func (v Value) AppendCanonical(dst []byte) []byte {
	switch x := v.v.(type) {
	case bool:
		return strconv.AppendBool(dst, x)
	case float64:
		return appendNumber(dst, x)
	case string:
		return AppendString(dst, x)
	case []Value:
		dst = append(dst, '[')
		for i, e := range x {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = e.AppendCanonical(dst)
		}
		return append(dst, ']')
	case []Member:
		dst = append(dst, '{')
		for i, m := range x {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendString(dst, m.Name)
			dst = append(dst, ':')
			dst = m.Value.AppendCanonical(dst)
		}
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

// Canonicalize parses data under the protocol's hard limits and returns its
// RFC 8785 form. Errors are those of [Parse].
func Canonicalize(data []byte) ([]byte, error) {
	v, err := Parse(data, Limits{})
	if err != nil {
		return nil, err
	}
	return v.AppendCanonical(make([]byte, 0, len(data))), nil
}

// appendNumber writes a finite double as ECMAScript's Number::toString does:
// the shortest digits that round-trip, plain between 1e-6 and 1e21, with an
// exponent without leading zeros outside.
func appendNumber(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0')
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// strconv pads the exponent to two digits: e-07 becomes e-7.
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// AppendString appends the RFC 8785 form of a string, quotes included.
// Malformed UTF-8 is written as U+FFFD, one for each byte.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\b':
				dst = append(dst, `\b`...)
			case '\t':
				dst = append(dst, `\t`...)
			case '\n':
				dst = append(dst, `\n`...)
			case '\f':
				dst = append(dst, `\f`...)
			case '\r':
				dst = append(dst, `\r`...)
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[from:i]...)
			dst = append(dst, "\uFFFD"...)
			from = i + 1
		}
		i += n
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// StringSize returns len(AppendString(nil, s)) without building it.
func StringSize(s string) int {
	n := 2 + len(s)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"', c == '\\', c == '\b', c == '\t', c == '\n', c == '\f', c == '\r':
				n++
			case c < 0x20:
				n += 5
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			n += len("\uFFFD") - 1
		}
		i += size
	}
	return n
}
