package wire

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// CanonicalBase returns the one spelling of a base URL (BRC-194 s6), to which
// endpoint suffixes are appended literally. It puts scheme and host in lower
// case, escapes in upper case, an IPv6 address in RFC 5952 form, escapes raw
// non-ASCII path characters, and drops a default port and one final slash. It
// refuses whatever a router might read in two ways: user information, query,
// fragment, dot segments, empty inner segments, backslashes, a final dot on the
// host, and escapes of slash, backslash, dot, percent, NUL or an unreserved
// character. An http base needs allowHTTP, which only local configuration may
// give. Input and result are at most 2048 bytes. Errors are [*Error] with the
// code Invalid.
func CanonicalBase(raw string, allowHTTP bool) (string, error) {
	if raw == "" || len(raw) > MaxBaseBytes {
		return "", badBase("must have 1 to 2048 bytes")
	}
	scheme, rest, found := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	switch {
	case !found || scheme != "https" && scheme != "http":
		return "", badBase("must begin with https://")
	case scheme == "http" && !allowHTTP:
		return "", badBase("must use https")
	}
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	host, port, err := splitAuthority(authority)
	if err != nil {
		return "", err
	}
	if scheme == "https" && port == 443 || scheme == "http" && port == 80 {
		port = 0
	}
	var b strings.Builder
	b.WriteString(scheme)
	b.WriteString("://")
	b.WriteString(host)
	if port != 0 {
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(port))
	}
	if err := writePath(&b, strings.TrimSuffix(path, "/")); err != nil {
		return "", err
	}
	if b.Len() > MaxBaseBytes {
		return "", badBase("has more than 2048 bytes in its canonical form")
	}
	return b.String(), nil
}

// Origin returns scheme, host and port of a canonical base.
func Origin(base string) string {
	_, rest, found := strings.Cut(base, "://")
	if !found {
		return base
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return base[:len(base)-len(rest)+i]
	}
	return base
}

func badBase(reason string) *Error { return faultf(Invalid, "the base URL", reason) }

// splitAuthority returns the canonical host and the port, 0 when there is none.
func splitAuthority(authority string) (host string, port int, err error) {
	text := ""
	if strings.HasPrefix(authority, "[") {
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return "", 0, badBase("has a malformed IPv6 address")
		}
		if host, err = canonicalIPv6(authority[1:end]); err != nil {
			return "", 0, err
		}
		text = authority[end+1:]
	} else {
		name := authority
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			name, text = authority[:i], authority[i:]
		}
		if host, err = canonicalName(strings.ToLower(name)); err != nil {
			return "", 0, err
		}
	}
	if text == "" {
		return host, 0, nil
	}
	if text[0] != ':' || len(text) == 1 {
		return "", 0, badBase("has a malformed port")
	}
	for i := 1; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return "", 0, badBase("has a malformed port")
		}
	}
	n, err := strconv.ParseUint(text[1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, badBase("must have a port from 1 to 65535, or none")
	}
	return host, int(n), nil
}

func canonicalIPv6(s string) (string, error) {
	// Only hexadecimal groups: no zone, and no dotted tail, which has two
	// spellings of one address.
	for i := range len(s) {
		if s[i] != ':' && !isHexDigit(s[i]) {
			return "", badBase("has a malformed IPv6 address")
		}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is6() {
		return "", badBase("has a malformed IPv6 address")
	}
	if a.Is4In6() {
		v4 := a.Unmap().As4()
		return fmt.Sprintf("[::ffff:%x:%x]", int(v4[0])<<8|int(v4[1]), int(v4[2])<<8|int(v4[3])), nil
	}
	return "[" + a.String() + "]", nil
}

// canonicalName checks a lowercase DNS name of A-labels or a dotted IPv4
// address.
func canonicalName(name string) (string, error) {
	if name == "" || len(name) > 253 {
		return "", badBase("must have a host of 1 to 253 bytes")
	}
	labels := strings.Split(name, ".")
	alabel := false
	for _, l := range labels {
		if !isLabel(l) {
			return "", badBase("must have a host of lowercase DNS labels, without a final dot")
		}
		alabel = alabel || strings.HasPrefix(l, "xn--")
	}
	// A last label of digits, or of 0x and digits, is read as an address by URL
	// parsers, some of them in surprising ways: only the plain form passes.
	if last := labels[len(labels)-1]; isNumber(last) {
		if a, err := netip.ParseAddr(name); err != nil || !a.Is4() {
			return "", badBase("has a malformed IPv4 address")
		}
	}
	if alabel {
		profile := idna.New(idna.ValidateLabels(true), idna.CheckHyphens(false), idna.BidiRule())
		u, err := profile.ToUnicode(name)
		if err != nil {
			return "", badBase("has a host label that is not a valid A-label")
		}
		if back, err := profile.ToASCII(u); err != nil || back != name {
			return "", badBase("has a host label that is not a valid A-label")
		}
	}
	return name, nil
}

func isLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for i := range len(l) {
		c := l[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func isNumber(l string) bool {
	digits, hex := strings.CutPrefix(l, "0x")
	for i := range len(digits) {
		if c := digits[i]; (c < '0' || c > '9') && (!hex || !isHexDigit(c)) {
			return false
		}
	}
	return true
}

// writePath appends a path without its final slash.
func writePath(b *strings.Builder, path string) error {
	if path == "" {
		return nil
	}
	for _, segment := range strings.Split(path[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return badBase("must not have empty or dot path segments")
		}
		b.WriteByte('/')
		for i := 0; i < len(segment); i++ {
			c := segment[i]
			switch {
			case c == '%':
				if !isHexPair(segment[i+1:]) {
					return badBase("has a malformed percent escape")
				}
				escape := strings.ToUpper(segment[i : i+3])
				n, err := strconv.ParseUint(escape[1:], 16, 8)
				if d := byte(n); err != nil || d == 0 || d == '/' || d == '\\' || d == '%' || isUnreserved(d) {
					return badBase("escapes a slash, backslash, dot, percent, NUL or unreserved character")
				}
				b.WriteString(escape)
				i += 2
			case c >= 0x80:
				b.WriteByte('%')
				b.WriteByte(upperHex[c>>4])
				b.WriteByte(upperHex[c&15])
			case isUnreserved(c) || strings.IndexByte(":@!$&'()*+,;=", c) >= 0:
				b.WriteByte(c)
			default:
				return badBase("has a character that a path may not hold")
			}
		}
	}
	return nil
}

const upperHex = "0123456789ABCDEF"
