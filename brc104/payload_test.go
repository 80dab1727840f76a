package brc104

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/auth/authpayload"
)

// payload builds what digest only hashes.
func payload(head, body []byte) []byte {
	if len(body) == 0 {
		return append(head, none...)
	}
	return append(appendVarInt(head, uint64(len(body))), body...)
}

func id32(b byte) (id [32]byte) {
	for i := range id {
		id[i] = b
	}
	return id
}

func TestB1_GoldenRequestPayloads(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("\x11", 32)
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name  string
		parts requestParts
		want  string
	}{
		{"nothing but a method", requestParts{method: "GET", path: "/"}, "\x03GET\x01/" + none + "\x00" + none},
		{
			"everything",
			requestParts{
				method: "POST", path: "/a", query: "?b=1",
				fields: []field{{"content-type", "application/json"}, {"x-bsv-a", "2"}, {"x-bsv-z", ""}}, body: []byte("{}"),
			},
			"\x04POST\x02/a\x04?b=1\x03\x0ccontent-type\x10application/json\x07x-bsv-a\x012\x07x-bsv-z\x00\x02{}",
		},
		{
			"lengths of three bytes",
			requestParts{method: "PUT", path: "/" + long, fields: []field{{"x-bsv-a", long}}, body: []byte(long)},
			"\x03PUT\xfd\x2d\x01/" + long + none + "\x01\x07x-bsv-a\xfd\x2c\x01" + long + "\xfd\x2c\x01" + long,
		},
		{
			"a body of 65536 bytes",
			requestParts{method: "PUT", path: "/", body: bytes.Repeat([]byte{7}, 1<<16)},
			"\x03PUT\x01/" + none + "\x00\xfe\x00\x00\x01\x00" + strings.Repeat("\x07", 1<<16),
		},
	} {
		c.parts.id = id32(0x11)
		if got := payload(c.parts.appendHead(nil), c.parts.body); string(got) != id+c.want {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, id+c.want)
		}
	}
}

func TestB1_GoldenResponsePayloads(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("\x22", 32)
	for _, c := range []struct {
		name  string
		parts responseParts
		want  string
	}{
		{"200", responseParts{status: 200, body: []byte("{}")}, "\xc8\x00\x02{}"},
		{"503 has a status of three bytes", responseParts{status: 503, body: []byte("x")}, "\xfd\xf7\x01\x00\x01x"},
		{"no body, one header", responseParts{status: 405, fields: []field{{"x-bsv-a", "b, c"}}}, "\xfd\x95\x01\x01\x07x-bsv-a\x04b, c" + none},
	} {
		c.parts.id = id32(0x22)
		if got := payload(c.parts.appendHead(nil), c.parts.body); string(got) != id+c.want {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, id+c.want)
		}
	}
}

// The digest of a fixed request, so that a change of the format cannot go unnoticed on both sides at once.
func TestB1_GoldenDigest(t *testing.T) {
	t.Parallel()
	parts := requestParts{
		id: id32(1), method: "POST", path: "/overlay/v1/lookup/open", query: "?x=a+b&y=%20",
		fields: []field{{"content-type", "application/json"}, {"x-bsv-overlay-profile", "p"}}, body: []byte(`{"version":1}`),
	}
	sum := parts.digest()
	const want = "3738c8c755320a383a4ced948bf2031057de7462886989eb23dc1bcb9d1db5f8"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

// Both ways of hashing give the same digest, at every size where they meet.
func TestB1_DigestOfLongBodies(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, small - 1, small, small + 1, 1 << 17} {
		parts := responseParts{id: id32(3), status: 200, body: bytes.Repeat([]byte{1}, n)}
		want := sha256.Sum256(payload(parts.appendHead(nil), parts.body))
		if got := parts.digest(); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
}

// requestOf makes the request that a server sees.
func requestOf(method, target string, headers map[string]string, body string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header = http.Header{}
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	return r
}

// What the official library signs for a request is what is verified here.
func TestB1_RequestPayloadEqualsGoSDK(t *testing.T) {
	t.Parallel()
	jsonType := map[string]string{"Content-Type": "application/json"}
	for _, c := range []struct {
		method, target string
		headers        map[string]string
		body           string
	}{
		{"GET", "http://h", nil, ""},
		{"GET", "http://h?", nil, ""},
		{"GET", "http://h/?x=", nil, ""},
		{"GET", "http://h/p?x=a+b&y=%20", nil, ""},
		{"GET", "http://h/p?%zz", nil, ""},
		{"POST", "http://h/p", jsonType, ""},
		{"POST", "http://h/p", jsonType, "{}"},
		{"POST", "http://h/p", jsonType, " { \"a\" : \"\\u003c\" } "},
		{"DELETE", "http://h/p", jsonType, ""},
		{"GET", "http://h/p", jsonType, ""},
		{"POST", "http://h/p", map[string]string{"Content-Type": "application/json; charset=utf-8"}, "1"},
		{"POST", "http://h/p", map[string]string{"Content-Type": "text/plain"}, ""},
		{"PUT", "http://h/p", map[string]string{"X-Bsv-F": "6", "X-Bsv-E": "5", "X-Bsv-D": "4", "X-Bsv-C-2": "3", "X-Bsv-C": "2", "X-Bsv-B": "1"}, "b"},
		{"PUT", "http://h/p", map[string]string{"X-Bsv-Auth-Nonce": "no", "Authorization": "Bearer x", "Accept": "no"}, "b"},
	} {
		r := requestOf(c.method, c.target, c.headers, c.body)
		id := id32(9)
		want, err := authpayload.FromHTTPRequest(id[:], r)
		if err != nil {
			t.Fatalf("%s %s: %v", c.method, c.target, err)
		}
		fields, err := requestFields(r.Header)
		if err != nil {
			t.Fatal(err)
		}
		parts := requestParts{id: id, method: r.Method, path: escapedPath(r.URL), fields: fields}
		if r.URL.RawQuery != "" {
			parts.query = "?" + r.URL.RawQuery
		}
		got := payload(parts.appendHead(nil), effectiveBody(c.method, r.Header, []byte(c.body)))
		if !bytes.Equal(got, want) {
			t.Errorf("%s %s %v:\n got %q\nwant %q", c.method, c.target, c.headers, got, want)
		}
	}
}

func TestB8_ResponsePayloadEqualsWhatGoSDKReads(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"X-Bsv-B": {" two ", "\tthree"}, "X-Bsv-A": {"one\t"}, "X-Bsv-Empty": {" "}, "Content-Type": {"application/json"},
		"X-Bsv-Auth-Nonce": {"no"}, "Cache-Control": {"no-store"},
	}
	fields, err := responseFields(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{200, 252, 253, 400, 503} {
		id := id32(4)
		parts := responseParts{id: id, status: status, fields: fields, body: []byte("body")}
		want, err := authpayload.FromHTTPResponse(id[:], &http.Response{
			StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("body")),
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := payload(parts.appendHead(nil), parts.body); !bytes.Equal(got, want) {
			t.Errorf("%d:\n got %q\nwant %q", status, got, want)
		}
	}
	if got := h["X-Bsv-B"]; len(got) != 1 || got[0] != "two, three" {
		t.Errorf("joined header is %q", got)
	}
}

func TestB8_HeadersThatClientsReadDifferently(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.Header{
		"underscore":   {"X-Bsv-A_b": {"1"}},
		"line break":   {"X-Bsv-A": {"1\n2"}},
		"not ASCII":    {"X-Bsv-A": {"é"}},
		"delete":       {"X-Bsv-A": {"\x7f"}},
		"stands twice": {"X-Bsv-A": {"1"}, "x-bsv-a": {"2"}},
	} {
		if _, err := responseFields(h); err == nil {
			t.Errorf("%s: %v was taken", name, h)
		}
	}
}

func TestB1_RepeatedRequestHeaders(t *testing.T) {
	t.Parallel()
	for _, h := range []http.Header{
		{"X-Bsv-A": {"1", "1"}}, {"X-Bsv-A": {"1"}, "x-bsv-a": {"1"}}, {"Content-Type": {"a", "a"}}, {"Authorization": {"a", "b"}},
	} {
		if _, err := requestFields(h); err == nil {
			t.Errorf("%v was taken", h)
		}
	}
	if f, err := requestFields(http.Header{"X-Bsv-Auth-Foo": {"1", "2"}, "Accept": {"a", "b"}, "X-Bsv-Gone": nil}); err != nil || len(f) != 0 {
		t.Errorf("unsigned headers: %v, %v", f, err)
	}
}

// FuzzA1_Codec: what is hashed equals what the official library makes of the same parts, and that reads back as those parts.
func FuzzA1_Codec(f *testing.F) {
	f.Add("POST", "/a", "b=1", "application/json", "x", "value", []byte("{}"), 200)
	f.Add("GET", "/", "", "", "", "", []byte(nil), 503)
	f.Add("DELETE", "/a%20b/c", "%zz&", "application/json;x", "auth-x", "v", []byte(nil), 252)
	f.Fuzz(func(t *testing.T, method, path, query, contentType, name, value string, body []byte, status int) {
		u := &url.URL{Scheme: "http", Host: "h", Path: path, RawQuery: query}
		h := http.Header{}
		if contentType != "" {
			h.Set("Content-Type", contentType)
		}
		h.Set("x-bsv-"+name, value)
		r := &http.Request{Method: method, URL: u, Header: h, Body: io.NopCloser(bytes.NewReader(body))}
		id := id32(5)
		want, err := authpayload.FromHTTPRequest(id[:], r)
		if err != nil {
			t.Fatal(err)
		}
		fields, err := requestFields(h)
		if err != nil {
			t.Fatal(err)
		}
		for i := range fields { // the official library does not trim what it cut
			if fields[i].name == lowerContentType {
				fields[i].value, _, _ = strings.Cut(contentType, ";")
			}
		}
		parts := requestParts{id: id, method: method, path: path, fields: fields, body: effectiveBody(method, h, body)}
		if path == "" {
			parts.path = "/"
		}
		if query != "" {
			parts.query = "?" + query
		}
		got := payload(parts.appendHead(nil), parts.body)
		// Its idea of which methods have a body does not mind their case.
		if !bytes.Equal(got, want) && method == strings.ToUpper(method) {
			t.Fatalf("request:\n got %q\nwant %q", got, want)
		}
		if sum := parts.digest(); sum != sha256.Sum256(got) {
			t.Fatal("the digest is not of the payload")
		}

		if status < 0 || status > 999 {
			return
		}
		kept := h.Clone()
		signed, err := responseFields(h)
		if err != nil {
			return
		}
		answer := responseParts{id: id, status: status, fields: signed, body: body}
		back, simple, err := authpayload.ToSimplifiedHttpResponse(payload(answer.appendHead(nil), body))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, id[:]) || simple.StatusCode != status || !bytes.Equal(simple.Body, body) {
			t.Fatalf("response read back as %x %d %q", back, simple.StatusCode, simple.Body)
		}
		for name, values := range simple.Header {
			if !Signed(name) || join(kept[name]) != values[0] {
				t.Fatalf("header %q: %q became %q", name, kept[name], values)
			}
		}
	})
}
