package canon

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

const generator = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"

func TestJ4_Hex32(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("0123456789abcdef", 4)
	b, err := ParseHex32(good)
	if err != nil || hex.EncodeToString(b[:]) != good {
		t.Fatalf("got %x, %v", b, err)
	}
	for _, bad := range []string{"", good[:63], good + "0", good[:62], strings.ToUpper(good), good[:63] + "g",
		good[:63] + " ", "0x" + good[:62], good[:63] + "\x00", strings.Repeat("é", 32)} {
		if _, err := ParseHex32(bad); err == nil {
			t.Errorf("accepted %q", bad)
		} else if codeOf(t, err) != Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestJ4_Identity(t *testing.T) {
	t.Parallel()
	for _, good := range []string{generator, "03" + generator[2:]} {
		if b, err := ParseIdentity(good); err != nil || hex.EncodeToString(b[:]) != good {
			t.Errorf("%s: %v", good, err)
		}
	}
	p := "fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc2f"
	for name, bad := range map[string]string{
		"empty":                 "",
		"short":                 generator[:64],
		"long":                  generator + "00",
		"upper case":            strings.ToUpper(generator),
		"uncompressed prefix":   "04" + generator[2:],
		"hybrid prefix":         "06" + generator[2:],
		"prefix 00":             "00" + generator[2:],
		"x not on the curve":    "02" + strings.Repeat("0", 63) + "5",
		"x is the field prime":  "02" + p,
		"x above the field":     "02" + strings.Repeat("f", 64),
		"x is zero":             "02" + strings.Repeat("0", 64),
		"x is prime plus one":   "02fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc30",
		"not hexadecimal":       "02" + strings.Repeat("z", 64),
		"uncompressed encoding": "04" + generator[2:] + generator[2:],
	} {
		if _, err := ParseIdentity(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestJ4_U64(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"0": 0, "1": 1, "10": 10, "9007199254740993": 9007199254740993,
		"18446744073709551615": 1<<64 - 1,
	} {
		if n, err := ParseU64(text); err != nil || n != want {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, bad := range []string{"", "00", "01", "-0", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "1_0", "١", "1\x00",
		"18446744073709551616", "99999999999999999999", "100000000000000000000", strings.Repeat("9", 1000)} {
		if _, err := ParseU64(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestJ4_Bytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "YQ==": "a", "YWI=": "ab", "YWJj": "abc", "+/+/": "\xfb\xff\xbf", "AAAA": "\x00\x00\x00"} {
		if b, err := ParseBytes(text); err != nil || string(b) != want {
			t.Errorf("%q: %q, %v", text, b, err)
		}
	}
	for _, bad := range []string{"YQ", "YQ=", "YQ===", "YQ====", "YR==", "YWJ=", "YWJ", "=", "====", "Y===", "YQ==YQ==", "YQ= =",
		" YQ==", "YQ==\n", "YQ\n==", "YQ=\r\n=", "YW\r\nJj", "YWJ\n", "\n\n\n\n", "-_-_", "YW\x00j", "YWé", "A", "AB", "ABC", "YWJjY"} {
		if b, err := ParseBytes(bad); err == nil {
			t.Errorf("accepted %q as %q", bad, b)
		}
	}
}

func TestJ4_String(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s  string
		ok bool
	}{
		"empty":                {"", false},
		"one":                  {"a", true},
		"NUL":                  {"\x00", true},
		"at the bound":         {strings.Repeat("a", 1024), true},
		"past the bound":       {strings.Repeat("a", 1025), false},
		"bytes, not runes":     {strings.Repeat("é", 512), true},
		"bytes, one rune past": {strings.Repeat("é", 513), false},
		"bad utf-8":            {"a\xff", false},
	} {
		if err := CheckString(c.s, MaxString); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzJ6_Bytes(f *testing.F) {
	for _, s := range []string{"", "YQ==", "YWI=", "YWJj", "YR==", "YQ\n=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			return
		}
		if back := encodeBase64(b); back != s {
			t.Errorf("%q decodes to %x, which encodes to %q", s, b, back)
		}
		if again, err := ParseBytes(s); err != nil || !bytes.Equal(again, b) {
			t.Error("decoding is not stable")
		}
	})
}
