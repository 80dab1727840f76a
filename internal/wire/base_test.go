package wire

import (
	"strings"
	"testing"
)

func TestBase_Accepted(t *testing.T) {
	t.Parallel()
	long := "https://example.test/" + strings.Repeat("a", MaxBaseBytes-len("https://example.test/"))
	for raw, want := range map[string]string{
		"https://example.test":                         "https://example.test",
		"https://example.test/":                        "https://example.test",
		"https://EXAMPLE.test:443/api/":                "https://example.test/api",
		"HTTPS://Example.Test/API":                     "https://example.test/API",
		"https://example.test:8443/a%20b":              "https://example.test:8443/a%20b",
		"https://example.test/a%c3%a9":                 "https://example.test/a%C3%A9",
		"https://example.test/é":                       "https://example.test/%C3%A9",
		"https://example.test:80":                      "https://example.test:80",
		"https://example.test:08443":                   "https://example.test:8443",
		"https://example.test:65535/a/b/c/":            "https://example.test:65535/a/b/c",
		"https://[2001:db8::1]:8443/api":               "https://[2001:db8::1]:8443/api",
		"https://[2001:DB8:0:0:0:0:0:1]/":              "https://[2001:db8::1]",
		"https://[2001:db8:0:0:1:0:0:1]":               "https://[2001:db8::1:0:0:1]",
		"https://[::]":                                 "https://[::]",
		"https://[::ffff:c000:201]":                    "https://[::ffff:c000:201]",
		"https://192.0.2.1:444":                        "https://192.0.2.1:444",
		"https://xn--bcher-kva.example/api":            "https://xn--bcher-kva.example/api",
		"https://XN--BCHER-KVA.example/api":            "https://xn--bcher-kva.example/api",
		"https://localhost/a-._~:@!$&'()*+,;=b":        "https://localhost/a-._~:@!$&'()*+,;=b",
		"https://example.test/...":                     "https://example.test/...",
		"https://example.test/a%40%3a":                 "https://example.test/a%40%3A",
		"https://a.b.c.d.e/f":                          "https://a.b.c.d.e/f",
		"https://3com.test":                            "https://3com.test",
		"https://" + strings.Repeat("a", 63) + ".test": "https://" + strings.Repeat("a", 63) + ".test",
		long:       long,
		long + "/": "", // 2049 bytes
	} {
		got, err := CanonicalBase(raw, false)
		if want == "" {
			wantCode(t, raw, err, Invalid)
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", raw, got, err, want)
			continue
		}
		if again, err := CanonicalBase(got, false); err != nil || again != got {
			t.Errorf("%s: not a fixed point: %q, %v", raw, again, err)
		}
	}
}

func TestBase_Refused(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "https:", "https:/", "https://", "https:///", "https:///a", "example.test", "//example.test", "/a",
		"ftp://example.test", "wss://example.test", "http://example.test", "HTTP://example.test", "javascript://example.test",
		"https:example.test", "https:/example.test", "https:\\\\example.test", " https://example.test", "https://example.test ", "https://example.test\n",
		"https://example.test.", "https://example.test./", "https://.example.test", "https://example..test", "https://.", "https://..",
		"https://user@example.test", "https://user:pw@example.test", "https://@example.test", "https://example.test@",
		"https://example.test?", "https://example.test/?a", "https://example.test/a?b=c", "https://example.test#", "https://example.test/#x", "https://example.test/a#",
		"https://example.test/a/../b", "https://example.test/..", "https://example.test/.", "https://example.test/./a", "https://example.test/a/.", "https://example.test/a/./",
		"https://example.test//", "https://example.test//a", "https://example.test/a//b", "https://example.test/a//",
		"https://example.test/a%2Fb", "https://example.test/a%2fb", "https://example.test/%2e/", "https://example.test/%2E%2e", "https://example.test/%5C", "https://example.test/%5c",
		"https://example.test/%25", "https://example.test/%00", "https://example.test/%41", "https://example.test/%7E", "https://example.test/%7e", "https://example.test/%2D", "https://example.test/%5f", "https://example.test/%30",
		"https://example.test/%", "https://example.test/%2", "https://example.test/%G0", "https://example.test/%zz", "https://example.test/a%",
		"https://example.test\\a", "https://example.test/a\\b", "https://example.test/a b", "https://example.test/\x00", "https://example.test/\x7f", "https://example.test/\t",
		"https://example.test/<", "https://example.test/\"", "https://example.test/`", "https://example.test/{}", "https://example.test/|", "https://example.test/^", "https://example.test/[]",
		"https://bücher.example", "https://exam%70le.test", "https://exa_mple.test", "https://-a.test", "https://a-.test", "https://exa mple.test", "https://ex*mple.test",
		"https://" + strings.Repeat("a", 64) + ".test", "https://" + strings.Repeat("a.", 127) + "a",
		"https://xn--a.example", "https://xn--.example", "https://xn--bcher-kva-.example", "https://xn--ascii-.example",
		"https://example.test:", "https://example.test:/", "https://example.test:0", "https://example.test:65536", "https://example.test:-1", "https://example.test:+1", "https://example.test:a", "https://example.test:443:443", "https://example.test:99999999999999999999",
		"https://[::1", "https://::1", "https://[::1]x", "https://[::1]:", "https://[fe80::1%25eth0]", "https://[fe80::1%eth0]", "https://[::ffff:192.0.2.1]", "https://[192.0.2.1]", "https://[]", "https://[:]", "https://[1::2::3]", "https://[g::1]", "https://[12345::1]", "https://[v1.x]",
		"https://127.1", "https://1", "https://0x7f.0.0.1", "https://0x7f000001", "https://2130706433", "https://1.2.3", "https://1.2.3.4.5", "https://256.0.0.1", "https://01.2.3.4", "https://1.2.3.0x4", "https://a.0x", "https://a.1",
	} {
		if got, err := CanonicalBase(raw, false); err == nil {
			t.Errorf("accepted %q as %q", raw, got)
		} else {
			wantCode(t, raw, err, Invalid)
		}
	}
}

func TestH12_HTTPBaseNeedsLocalDevelopment(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://127.0.0.1:8080":    "http://127.0.0.1:8080",
		"HTTP://Localhost:80/api/": "http://localhost/api",
		"http://[::1]:443":         "http://[::1]:443",
		"https://example.test:443": "https://example.test",
	} {
		if got, err := CanonicalBase(raw, true); err != nil || got != want {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
	_, err := CanonicalBase("http://127.0.0.1:8080", false)
	wantCode(t, "http", err, Invalid)
	_, err = CanonicalBase("ws://127.0.0.1:8080", true)
	wantCode(t, "ws", err, Invalid)
}

func TestBase_Origin(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"https://example.test":           "https://example.test",
		"https://example.test/api":       "https://example.test",
		"https://example.test:8443/a/b":  "https://example.test:8443",
		"http://[::1]:8080/a":            "http://[::1]:8080",
		"https://xn--bcher-kva.example/": "https://xn--bcher-kva.example",
	} {
		if got := Origin(base); got != want {
			t.Errorf("%s: got %s", base, got)
		}
	}
}

func TestJ4_AbsoluteIRI(t *testing.T) {
	t.Parallel()
	for _, good := range []string{Profile, EpochExtension, "urn:x", "a:b", "https://example.test/é?x=ü#f", "x+y-z.1:%C3%A9", "https://[::1]/",
		"https://bsv.brc.dev/apps/0192#legacy-lookup-context-json-v1", "urn:" + strings.Repeat("a", 1020), "urn:\U00010000\ue000"} {
		if err := CheckAbsoluteIRI(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", ":", ":x", "x:", "x", "1a:b", "é:b", "-a:b", "a b:c", "urn:a b", "urn:a\n", "urn:\x00", "urn:<a>", `urn:"`, `urn:\`, "urn:^", "urn:`", "urn:{", "urn:|",
		"urn:%", "urn:%0", "urn:%zz", "urn:\xff", "urn:\u0080", "urn:\ufffd", "urn:\ufdd0", "urn:\U0001fffe", "urn:\U000e0001", "/relative", "#fragment", "//host/a", "urn:" + strings.Repeat("a", 1021)} {
		if err := CheckAbsoluteIRI(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
