package wire

import (
	"bytes"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
)

// checkFault holds every error of a parser to the promises of the package.
func checkFault(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%T is not a *wire.Error: %v", err, err)
	}
	if e.Code != Invalid && e.Code != Limited && e.Code != Unsupported {
		t.Errorf("code %s", e.Code)
	}
	body := e.AppendCanonical(nil)
	if len(body) > MaxErrorBytes {
		t.Errorf("error body of %d bytes", len(body))
	}
	if _, err := ParseError(body, e.Code.Status()); err != nil {
		t.Errorf("own error body is refused: %v", err)
	}
}

func FuzzJ6_Open(f *testing.F) {
	for _, p := range parsers {
		f.Add([]byte(p.text))
	}
	f.Add([]byte(also(openText, criticalText)))
	f.Add([]byte(also(openText, `"extensions":{},"critical":[],"requiredRulesDigest":"`+testHex+`"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := ParseOpen(data); err != nil {
			checkFault(t, err)
		} else {
			form, err := canon.Canonicalize(data)
			if err != nil || !bytes.Equal(form, o.Canonical) {
				t.Errorf("Canonical %s, %v; want %s", o.Canonical, err, form)
			}
			if got := o.Encode(); !bytes.Equal(got, o.Canonical) {
				t.Errorf("Encode %s, Canonical %s", got, o.Canonical)
			}
		}
		if q, err := ParseRead(data); err != nil {
			checkFault(t, err)
		} else if again, err := ParseRead(q.Encode()); err != nil || *again != *q {
			t.Errorf("read %+v, %v; want %+v", again, err, q)
		}
		if c, err := ParseClose(data); err != nil {
			checkFault(t, err)
		} else if again, err := ParseClose(c.Encode()); err != nil || *again != *c {
			t.Errorf("close %+v, %v; want %+v", again, err, c)
		}
	})
}

func FuzzJ6_Batch(f *testing.F) {
	f.Add([]byte(fullBatch()))
	f.Add([]byte(batchText()))
	f.Add([]byte(strings.Replace(batchText(groupText("g", 9, outputText, spendText)), `"live"`, `"snapshot"`, 1)))
	f.Add([]byte(also(batchText(groupText("g", 9, strings.Replace(outputText, `"kind"`, `"extensions":{"urn:x:1":[]},"kind"`, 1))), `"extensions":{},"critical":[]`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ParseBatch(data)
		if err != nil {
			checkFault(t, err)
			return
		}
		form, err := canon.Canonicalize(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.AppendCanonical(nil); !bytes.Equal(got, form) {
			t.Errorf("AppendCanonical:\n got %s\nwant %s", got, form)
		}
		for i := range b.Groups {
			for j := range b.Groups[i].Observations {
				o := &b.Groups[i].Observations[j]
				if got := o.AppendCanonical(nil); !bytes.Equal(got, o.Canonical) {
					t.Errorf("observation:\n got %s\nwant %s", got, o.Canonical)
				}
			}
		}
	})
}

func FuzzJ6_Error(f *testing.F) {
	f.Add([]byte(`{"version":1,"error":{"code":"limited","message":"m","retryable":true,"retryAfterMs":1,"limit":{"kind":"group","minimumBytes":1}}}`), 413, "m")
	f.Add([]byte(`{"version":1,"error":{"code":"invalid","message":"m","retryable":false}}`), 400, "\x00\xff😀")
	f.Fuzz(func(t *testing.T, data []byte, status int, message string) {
		if e, err := ParseError(data, status); err != nil {
			checkFault(t, err)
		} else {
			form, err := canon.Canonicalize(data)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.AppendCanonical(nil); !bytes.Equal(got, form) {
				t.Errorf("got %s, want %s", got, form)
			}
		}
		own := &Error{Code: Limited, Message: message, Limit: &Limit{Kind: LimitKind(message)}}
		body := own.AppendCanonical(nil)
		if len(body) > MaxErrorBytes {
			t.Errorf("%d bytes", len(body))
		}
		if _, err := ParseError(body, 413); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	})
}

func FuzzJ6_Packet(f *testing.F) {
	good := []byte(fixedPacket)
	packet, err := ParsePacket(good, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, packet.Signature)
	f.Add([]byte(`{"body":{},"signature":""}`), []byte{})
	f.Add([]byte(`{"body":{},"signature":"QkIzAQ=="}`), packet.Signature[:100])
	f.Fuzz(func(t *testing.T, data, sig []byte) {
		if body, signer, err := VerifyPacket("capabilities", data, 0); err != nil {
			checkFault(t, err)
		} else if body.Kind() != canon.Object || signer == [33]byte{} {
			t.Errorf("accepted %s", data)
		}
		// The same signed body with any other signature bytes: there is no
		// second spelling.
		p := &Packet{Body: packet.Body, Signature: sig}
		if _, err := p.Verify("capabilities"); err != nil {
			checkFault(t, err)
		} else if !bytes.Equal(sig, packet.Signature) {
			t.Errorf("another signature passes: %x", sig)
		}
	})
}

func FuzzJ6_Capabilities(f *testing.F) {
	f.Add([]byte(manifestText(f, serviceText(f, "ls_a", "lookup", profileText))))
	f.Add([]byte(also(manifestText(f), `"extensions":{"`+EpochExtension+`":{"version":1,"services":[{"service":"a","epoch":"e"}]}},"critical":[]`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := canon.Parse(data, canon.Limits{})
		if err != nil {
			return
		}
		c, err := ParseCapabilities(v)
		if err != nil {
			checkFault(t, err)
			return
		}
		if !c.Value().Equal(v) {
			t.Errorf("Value %s, want %s", c.Value().AppendCanonical(nil), v.AppendCanonical(nil))
		}
		if _, err := Epochs(c); err != nil {
			checkFault(t, err)
		}
		for i := range c.Services {
			if _, _, err := c.Services[i].Live(); err != nil {
				checkFault(t, err)
			}
		}
	})
}

func FuzzBase(f *testing.F) {
	for _, s := range []string{"https://EXAMPLE.test:443/api/", "http://[2001:DB8::1]:8080/a%20b", "https://xn--bcher-kva.example/é",
		"https://example.test./", "https://example.test/a/../b", "https://example.test/a%2Fb", "https://127.0.0.1", "https://u@h/?q#f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		base, err := CanonicalBase(raw, true)
		if err != nil {
			checkFault(t, err)
			return
		}
		if again, err := CanonicalBase(base, true); err != nil || again != base {
			t.Fatalf("%q -> %q -> %q, %v", raw, base, again, err)
		}
		if len(base) > MaxBaseBytes || strings.HasSuffix(base, "/") || strings.ContainsAny(base, "?#\\ @"+"\x00") && !strings.Contains(raw, "@") {
			t.Errorf("%q -> %q", raw, base)
		}
		u, err := url.Parse(base)
		if err != nil {
			t.Fatalf("%q -> %q: %v", raw, base, err)
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.EscapedPath() != strings.TrimPrefix(base, Origin(base)) {
			t.Errorf("%q -> %q is read as %+v", raw, base, u)
		}
		if u.Scheme+"://"+u.Host != Origin(base) {
			t.Errorf("%q: origin %q", base, Origin(base))
		}
	})
}
