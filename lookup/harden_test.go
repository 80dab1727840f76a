package lookup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// wireRequest is a request of which every byte is the test's. Fields are "Name: value".
type wireRequest struct {
	line   string
	fields []string
	body   string
}

// good is a right request to a path; its Content-Length is set unless a field frames the body otherwise.
func good(digest, path, body string) wireRequest {
	return wireRequest{line: "POST " + path + " HTTP/1.1", body: body, fields: []string{
		"Host: x", "Content-Type: application/json", "Cache-Control: no-store",
		wire.HeaderCapability + ": " + digest, wire.HeaderProfile + ": " + wire.Profile,
	}}
}

func (w wireRequest) with(fields ...string) wireRequest {
	w.fields = append(slices.Clone(w.fields), fields...)
	return w
}

// sized frames the body by its length.
func (w wireRequest) sized() wireRequest {
	return w.with(fmt.Sprintf("Content-Length: %d", len(w.body)))
}

// padded adds a field so that names and values are exactly total bytes.
func (w wireRequest) padded(total int) wireRequest {
	return w.with("X-Pad: " + strings.Repeat("p", total-w.size()-len("X-Pad")))
}

// size counts the bytes of names and values.
func (w wireRequest) size() (n int) {
	for _, f := range w.fields {
		n += len(f) - len(": ")
	}
	return n
}

func (w wireRequest) String() string {
	return w.line + "\r\n" + strings.Join(w.fields, "\r\n") + "\r\n\r\n" + w.body
}

// exchange sends raw bytes on a connection of its own and reads one answer.
func exchange(t *testing.T, address, request string) reply {
	t.Helper()
	conn := dial(t, address)
	defer conn.Close() //nolint:errcheck // it is done with
	go func() { _, _ = io.WriteString(conn, request) }()
	return answered(t, bufio.NewReader(conn), strings.HasPrefix(request, http.MethodHead))
}

// answered reads one whole final answer.
func answered(t *testing.T, in *bufio.Reader, toHead bool) reply {
	t.Helper()
	method := http.MethodPost
	if toHead {
		method = http.MethodHead
	}
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, body}
}

func TestH2_HeaderFieldsAreCountedToTheByte(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 10*time.Second)
	digest := n.capability()
	body := func() string { return string(ask{}.body()) }
	chunked := func() wireRequest {
		b := body()
		w := good(digest, openPath, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(b), b))
		return w.with("Transfer-Encoding: chunked")
	}
	many := func(total int) wireRequest {
		w := good(digest, openPath, body()).sized()
		for i := 0; w.size() < total-1000; i++ {
			w = w.with(fmt.Sprintf("X-%d: %d", i, i))
		}
		return w.padded(total)
	}
	for name, make := range map[string]func(total int) wireRequest{
		"one long field": func(total int) wireRequest { return good(digest, openPath, body()).sized().padded(total) },
		"many fields":    many,
		"a long host": func(total int) wireRequest {
			w := good(digest, openPath, body())
			w.fields[0] = "Host: " + strings.Repeat("h", 5000)
			return w.sized().padded(total)
		},
		"chunked":   func(total int) wireRequest { return chunked().padded(total) },
		"a trailer": func(total int) wireRequest { return chunked().with("Trailer: X-Later").padded(total) },
		"repeated": func(total int) wireRequest {
			return good(digest, openPath, body()).sized().with("X-A: 1", "x-a: 2", "X-A: 3").padded(total)
		},
		"no-op ones": func(total int) wireRequest {
			return good(digest, openPath, body()).sized().with("Connection: keep-alive", "Pragma: no-cache", "Expect: ").padded(total)
		},
	} {
		t.Log(name)
		exchange(t, address, make(16384).String()).batch(t)
		exchange(t, address, make(16385).String()).refused(t, wire.Limited)
	}
	// Discovery, an endpoint that is not there, and what is asked before a request are no exceptions.
	for _, line := range []string{"GET /overlay/v1/capabilities HTTP/1.1", "GET /nothing HTTP/1.1", "OPTIONS " + openPath + " HTTP/1.1"} {
		w := wireRequest{line: line, fields: []string{"Host: x", "Access-Control-Request-Method: POST"}}
		exchange(t, address, w.padded(16385).String()).refused(t, wire.Limited)
	}
}

// TestH2_HandshakeAndPreflightCountTheirHeadersToo: they have ways of their own out.
func TestH2_HandshakeAndPreflightCountTheirHeadersToo(t *testing.T) {
	t.Parallel()
	const page = "https://app.example.org"
	n := members(t, setup{origins: []string{page}})
	n.request(brc104.HandshakePath, []byte("{}"), header("X-Pad", strings.Repeat("p", 16384))).refused(t, wire.Limited)
	r := n.request(openPath, nil, method(http.MethodOptions), header("Origin", page), header("Access-Control-Request-Method", "POST"),
		header("X-Pad", strings.Repeat("p", 16384)))
	r.refused(t, wire.Limited)
}

func TestH2_BodiesAreCountedBeforeTheyAreParsed(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	pad := func(size int) string { b := string(ask{}.body()); return b + strings.Repeat(" ", size-len(b)) }
	chunk := func(b string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(b), b) }
	chunked := func(body string) string {
		return good(digest, openPath, body).with("Transfer-Encoding: chunked").String()
	}
	exchange(t, address, good(digest, openPath, pad(1<<20)).sized().String()).batch(t)
	exchange(t, address, chunked(chunk(pad(1<<20))+"0\r\n\r\n")).batch(t)
	whole := pad(1<<20 + 1)
	exchange(t, address, chunked(chunk(whole[:1000])+chunk(whole[1000:])+"0\r\n\r\n")).refused(t, wire.Limited)
	// Said to be too long: refused without a byte of it. Without an end: refused at the bound.
	exchange(t, address, good(digest, openPath, "").with("Content-Length: 1048577").String()).refused(t, wire.Limited)
	exchange(t, address, chunked(strings.Repeat(chunk(strings.Repeat("[", 1<<16)), 40))).refused(t, wire.Limited)
	if n.count("open_fence") != 2 {
		t.Fatalf("%d fences", n.count("open_fence"))
	}
}

// TestH1_ExpectIsAnsweredBeforeTheBody: who asks whether to send a body is told so only if it will be read.
func TestH1_ExpectIsAnsweredBeforeTheBody(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	w := good(digest, openPath, string(ask{}.body())).sized().with("Expect: 100-continue")
	conn := dial(t, address)
	head := strings.TrimSuffix(w.String(), w.body)
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := io.WriteString(conn, w.body); err != nil {
		t.Fatal(err)
	}
	answered(t, in, false).batch(t)
	for name, bad := range map[string]wireRequest{
		"two types":   w.with("Content-Type: application/json"),
		"two digests": w.with(wire.HeaderCapability + ": " + digest),
		"an origin":   w.with("Origin: https://elsewhere.example.org"),
		"too long":    good(digest, openPath, "").with("Content-Length: 1048577", "Expect: 100-continue"),
	} {
		bad.body = ""
		r := exchange(t, address, bad.String()) // the body never comes, and the answer is not "continue"
		if r.status < 400 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

func TestH1_DuplicatedHeadersNeverChoose(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	base := func() wireRequest { return good(digest, openPath, string(ask{}.body())).sized() }
	for field, code := range map[string]wire.Code{
		"Content-Type: application/json":                wire.Invalid,
		wire.HeaderCapability + ": " + digest:           wire.Invalid,
		strings.ToUpper(wire.HeaderCapability) + ": ab": wire.Invalid,
		wire.HeaderProfile + ": " + wire.Profile:        wire.Invalid,
		"Content-Encoding: gzip":                        wire.Unsupported,
		"Content-Encoding: identity, gzip":              wire.Unsupported,
		"Origin: null":                                  wire.Unauthorized,
		brc104.HeaderSignature + ": 00":                 wire.Unauthorized,
	} {
		r := exchange(t, address, base().with(field).String())
		e, err := wire.ParseError(r.body, r.status)
		if err != nil || e.Code != code {
			t.Errorf("with another %q: %d %s", field, r.status, r.body)
		}
		if strings.HasPrefix(strings.ToLower(field), wire.HeaderCapability) && r.header.Get(wire.HeaderCapability) != "" {
			t.Errorf("one of two digests was echoed")
		}
	}
	// Two framings or two hosts are no request.
	for _, fields := range [][]string{{"Content-Length: 7"}, {"Host: y"}, {"Transfer-Encoding: gzip"}, {"Transfer-Encoding: chunked, chunked"}, {" folded"}, {"Bad Name: x"}} {
		w := base().with(fields...)
		conn := dial(t, address)
		go func() { _, _ = io.WriteString(conn, w.String()) }()
		got, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && len(got) == 0 {
			t.Fatalf("%q: %v", fields, err)
		}
		if line, _, _ := strings.Cut(string(got), "\r\n"); !strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.1 5") {
			t.Errorf("%q: %.200s", fields, got)
		}
	}
	if n.count("open_fence") != 0 {
		t.Error("one of them opened a session")
	}
	// Both framings: chunks count, and what follows them is the next request, whatever the length said.
	b := string(ask{}.body())
	both := good(digest, openPath, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(b), b)).with("Content-Length: 3", "Transfer-Encoding: chunked")
	conn := dial(t, address)
	go func() {
		_, _ = io.WriteString(conn, both.String()+good(digest, closePath, string(closeBody("x"))).sized().String())
	}()
	in := bufio.NewReader(conn)
	answered(t, in, false).batch(t)
	if r := answered(t, in, false); string(r.body) != string(closed) {
		t.Errorf("the second request: %d %s", r.status, r.body)
	}
}

// TestA1_ADuplicatedAuthenticationIsNone: a signed request with any of its authentication headers twice is refused, unsigned.
func TestA1_ADuplicatedAuthenticationIsNone(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	p := n.person(3)
	n.grant(p, membersService)
	p.open(membersService, ask{})
	for _, name := range []string{brc104.HeaderVersion, brc104.HeaderIdentityKey, brc104.HeaderNonce, brc104.HeaderYourNonce, brc104.HeaderSignature, brc104.HeaderRequestID} {
		for _, same := range []bool{true, false} {
			body := ask{}.at(membersService)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.base+openPath, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for field, value := range map[string]string{"Content-Type": "application/json", wire.HeaderCapability: p.digest, wire.HeaderProfile: wire.Profile} {
				req.Header.Set(field, value)
			}
			if _, err := p.session.Sign(req, body); err != nil {
				t.Fatal(err)
			}
			value := "00"
			if same {
				value = req.Header.Get(name)
			}
			if req.Header.Get(name) == "" {
				t.Fatalf("a signed request has no %s", name)
			}
			req.Header.Add(name, value)
			r, err := send(req)
			if err != nil {
				t.Fatal(err)
			}
			if e, err := wire.ParseError(r.body, r.status); err != nil || e.Code != wire.Unauthorized || r.header.Get(brc104.HeaderSignature) != "" {
				t.Errorf("%s twice, the same %v: %d %s", name, same, r.status, r.body)
			}
		}
	}
	if n.count("open_fence") != 1 {
		t.Error("one of them opened a session")
	}
}

func TestH1_MethodsAndVersions(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	request := func(line string) wireRequest {
		w := good(digest, openPath, string(ask{}.body())).sized()
		w.line = line
		return w
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "Post", "PROPFIND", "X"} {
		for _, path := range []string{openPath, readPath, closePath} {
			r := exchange(t, address, request(method+" "+path+" HTTP/1.1").String())
			if r.refused(t, wire.Invalid); r.header.Get("Allow") != http.MethodPost {
				t.Errorf("%s %s: Allow %q", method, path, r.header.Get("Allow"))
			}
		}
		if method == "GET" {
			continue
		}
		r := exchange(t, address, request(method+" /overlay/v1/capabilities HTTP/1.1").String())
		if r.refused(t, wire.Invalid); r.header.Get("Allow") != http.MethodGet {
			t.Errorf("%s of the capabilities: Allow %q", method, r.header.Get("Allow"))
		}
	}
	for _, path := range []string{openPath, "/overlay/v1/capabilities", "/nothing"} {
		r := exchange(t, address, "HEAD "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if len(r.body) != 0 || r.header.Get("Cache-Control") != "private, no-store" || r.status != 400 && path != "/nothing" || r.status != 404 && path == "/nothing" {
			t.Errorf("HEAD %s: %d %q %v", path, r.status, r.body, r.header)
		}
	}
	exchange(t, address, request("OPTIONS * HTTP/1.1").String()).refused(t, wire.NotFound)
	exchange(t, address, request("CONNECT x:443 HTTP/1.1").String()).refused(t, wire.NotFound)
	// An older version and the form that proxies use are the same request.
	exchange(t, address, request("POST "+openPath+" HTTP/1.0").String()).batch(t)
	exchange(t, address, request("POST http://elsewhere.example.org"+openPath+" HTTP/1.1").String()).batch(t)
	for _, line := range []string{"POST " + openPath + " HTTP/3.0", "POST " + openPath, "POST  " + openPath + " HTTP/1.1", "P\x00ST " + openPath + " HTTP/1.1"} {
		if r := exchange(t, address, request(line).String()); r.status != 400 && r.status != 505 {
			t.Errorf("%q: %d %s", line, r.status, r.body)
		}
	}
	if n.count("open_fence") != 2 {
		t.Errorf("%d fences", n.count("open_fence"))
	}
}

func TestH3_PathsAreExact(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	for _, path := range []string{
		"/overlay/v1/lookup/../lookup/open", "/overlay/v1/lookup/./open", "/./overlay/v1/lookup/open", "/x/../overlay/v1/lookup/open",
		"/overlay//v1/lookup/open", "/overlay/v1/lookup//open", "//overlay/v1/lookup/open", "/overlay/v1/lookup/open//",
		"/overlay%2Fv1/lookup/open", "/overlay/v1/lookup%2fopen", "/%2e/overlay/v1/lookup/open", "/overlay/v1/lookup/ope%6E",
		"/OVERLAY/v1/lookup/open", "/overlay/V1/lookup/open", "/overlay/v1/lookup/open;x=1", "/overlay/v1/lookup/open%00", "/overlay/v1/lookup/open%20",
		"/overlay/v1/lookup/open.json", "/overlay/v1/lookup/open%3Fx", "/overlay/v1/lookup/open/", "\\overlay\\v1\\lookup\\open",
		"http://x/", "http://x//overlay/v1/lookup/open",
	} {
		w := good(digest, path, string(ask{}.body())).sized()
		r := exchange(t, address, w.String())
		if r.status == http.StatusBadRequest && !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "http") {
			continue // no target at all: net/http's own answer
		}
		if r.refused(t, wire.NotFound); r.header.Get("Location") != "" {
			t.Errorf("%s is redirected to %s", path, r.header.Get("Location"))
		}
	}
	if n.count("open_fence") != 0 {
		t.Error("one of them opened a session")
	}
	// Below a base path there is nothing at the root, and the other way round.
	m := start(t, setup{base: "http://localhost/api"})
	m.digest = strings.Repeat("0", 64) // what is asked with before it is known
	digest = m.capabilityAt("/api")
	m.request(openPath, ask{}.body(), capabilityHeader(digest)).refused(t, wire.NotFound)
	m.request("/api"+openPath, ask{}.body(), capabilityHeader(digest)).batch(t)
	for _, path := range []string{"/API" + openPath, "/api/api" + openPath, "/api/" + openPath, "/apix" + openPath, "/api", "/api/"} {
		m.request(path, ask{}.body(), capabilityHeader(digest)).refused(t, wire.NotFound)
	}
}

// capabilityAt is the digest that a node serves under a base path.
func (n *node) capabilityAt(base string) string {
	n.t.Helper()
	r := n.request(base+"/overlay/v1/capabilities", nil, method(http.MethodGet))
	c, err := wire.VerifyCapabilities(r.body)
	if err != nil {
		n.t.Fatalf("%v in %s", err, r.body)
	}
	return c.Digest()
}

func TestH8_OriginsAreExact(t *testing.T) {
	t.Parallel()
	const page, other = "https://app.example.org", "https://b.example.org:8443"
	n := start(t, setup{origins: []string{page, other}})
	address := served(t, n, 20*time.Second)
	digest := n.capability()
	plain := func(origins ...string) wireRequest {
		w := good(digest, openPath, string(ask{}.body())).sized()
		for _, o := range origins {
			w = w.with("Origin: " + o)
		}
		return w
	}
	preflight := func(origins ...string) wireRequest {
		w := plain(origins...).with("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type,"+wire.HeaderCapability)
		w.line, w.body = "OPTIONS "+openPath+" HTTP/1.1", ""
		w.fields = slices.DeleteFunc(w.fields, func(f string) bool { return strings.HasPrefix(f, "Content-Length") })
		return w
	}
	for _, origin := range []string{page, other} {
		if r := exchange(t, address, plain(origin).String()); r.status != 200 || r.header.Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("%s: %d %v", origin, r.status, r.header)
		}
		if r := exchange(t, address, preflight(origin).String()); r.status != 204 || r.header.Get("Access-Control-Allow-Origin") != origin || len(r.body) != 0 {
			t.Errorf("%s before its request: %d %v", origin, r.status, r.header)
		}
	}
	for _, origins := range [][]string{
		{"null"}, {"*"}, {""}, {"https://APP.example.org"}, {"HTTPS://app.example.org"}, {page + ":443"}, {page + "."}, {page + "/"}, {"http://app.example.org"},
		{"https://b.example.org"}, {other + "0"}, {"https://x.app.example.org"}, {page + "@evil.example"}, {page, page}, {page, other}, {page, "null"},
		{page + ", " + other}, {page + " " + page},
	} {
		for kind, w := range map[string]wireRequest{"request": plain(origins...), "preflight": preflight(origins...)} {
			r := exchange(t, address, w.String())
			e, err := wire.ParseError(r.body, r.status)
			if err != nil || e.Code != wire.Unauthorized {
				t.Errorf("%s of %q: %d %s", kind, origins, r.status, r.body)
			}
			for name := range r.header {
				if strings.HasPrefix(name, "Access-Control") {
					t.Errorf("%s of %q got %s", kind, origins, name)
				}
			}
		}
	}
}
