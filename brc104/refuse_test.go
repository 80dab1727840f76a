package brc104

import (
	"bytes"
	"context"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// begin does a handshake in memory.
func begin(t testing.TB, s *Server, key *secp256k1.PrivateKey) *Session {
	t.Helper()
	c, err := NewClient(key)
	if err != nil {
		t.Fatal(err)
	}
	hello := c.Hello()
	g, err := s.Greet(context.Background(), hello.Body)
	if err != nil {
		t.Fatal(err)
	}
	session, err := c.Begin(hello, g.Body)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// signed makes a signed POST as the server sees it.
func signed(t testing.TB, s *Session, target, body string) (*http.Request, *Sent) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Bsv-Overlay-Profile", "p")
	sent, err := s.Sign(r, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r, sent
}

// kindOf is the kind of a refusal, 0 for none.
func kindOf(t testing.TB, err error) Kind {
	t.Helper()
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%v is no *Error", err)
	}
	return e.Kind
}

func setHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = []string{value} }
}

func TestA1_B1_B2_AlteredRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	alice, bob := newKey(t), newKey(t)
	a, b := begin(t, s, alice), begin(t, s, bob)
	aliceAgain := begin(t, s, alice)
	elsewhere := begin(t, newServer(t, Config{}), alice)
	const target, body = "/overlay/v1/lookup/open?x=1&y=%20", `{"version":1}`
	flip := func(r *http.Request, name string, i int) {
		b := []byte(r.Header[name][0])
		if b[i] == '0' { // both are letters of hex and of base64
			b[i] = '1'
		} else {
			b[i] = '0'
		}
		r.Header[name] = []string{string(b)}
	}
	for _, c := range []struct {
		name  string
		alter func(*http.Request)
		body  string
		want  Kind
	}{
		{"nothing", func(*http.Request) {}, body, 0},
		{"a header that is not signed", setHeader("Accept", "x"), body, 0},
		{"the host, which is not signed", func(r *http.Request) { r.Host = "other" }, body, 0},
		{"charset, which is not signed", setHeader("Content-Type", "application/json; charset=utf-8"), body, 0},
		{"no message type", func(r *http.Request) { delete(r.Header, HeaderMessageType) }, body, 0},

		{"method", func(r *http.Request) { r.Method = http.MethodPut }, body, Invalid},
		{"path", func(r *http.Request) { r.URL.Path += "x" }, body, Invalid},
		{"path escaped in another way", func(r *http.Request) { r.URL.RawPath = "/overlay/v1/lookup/%6fpen" }, body, Invalid},
		{"query", func(r *http.Request) { r.URL.RawQuery = "x=2&y=%20" }, body, Invalid},
		{"query gone", func(r *http.Request) { r.URL.RawQuery = "" }, body, Invalid},
		{"query escaped in another way", func(r *http.Request) { r.URL.RawQuery = "x=1&y=+" }, body, Invalid},
		{"body", func(*http.Request) {}, `{"version":2}`, Invalid},
		{"body with another space", func(*http.Request) {}, `{"version": 1}`, Invalid},
		{"no body", func(*http.Request) {}, ``, Invalid},
		{"content type", setHeader("Content-Type", "text/plain"), body, Invalid},
		{"x-bsv header", setHeader("X-Bsv-Overlay-Profile", "q"), body, Invalid},
		{"x-bsv header gone", func(r *http.Request) { delete(r.Header, "X-Bsv-Overlay-Profile") }, body, Invalid},
		{"x-bsv header more", setHeader("X-Bsv-Overlay-Capability", "c"), body, Invalid},
		{"x-bsv header twice", func(r *http.Request) { r.Header["X-Bsv-Overlay-Profile"] = []string{"p", "p"} }, body, Invalid},
		{"x-bsv header renamed", func(r *http.Request) {
			delete(r.Header, "X-Bsv-Overlay-Profile")
			r.Header.Set("X-Bsv-Overlay-Profil", "ep")
		}, body, Invalid},
		{"authorization more", setHeader("Authorization", "Bearer x"), body, Invalid},
		{"request id", setHeader(HeaderRequestID, base64.StdEncoding.EncodeToString(make([]byte, 32))), body, Invalid},
		{"short request id", setHeader(HeaderRequestID, base64.StdEncoding.EncodeToString(make([]byte, 31))), body, Invalid},
		{"nonce", setHeader(HeaderNonce, base64.StdEncoding.EncodeToString(make([]byte, 32))), body, Invalid},
		{"nonce that is none", setHeader(HeaderNonce, "AAAA"), body, Invalid},
		{"signature", func(r *http.Request) { flip(r, HeaderSignature, 100) }, body, Invalid},
		{"signature that is none", setHeader(HeaderSignature, "xx"), body, Invalid},
		{"version", setHeader(HeaderVersion, "1.0"), body, Invalid},
		{"message type", setHeader(HeaderMessageType, typeInitialRequest), body, Invalid},
		{"no point", setHeader(HeaderIdentityKey, strings.Repeat("05", 33)), body, Invalid},

		{"foreign identity in the header", setHeader(HeaderIdentityKey, b.client.publicHex), body, StaleSession},
		{"foreign session", setHeader(HeaderYourNonce, b.theirs), body, StaleSession},
		{"session of another deployment", setHeader(HeaderYourNonce, elsewhere.theirs), body, StaleSession},
		{"another session of one's own", setHeader(HeaderYourNonce, aliceAgain.theirs), body, Invalid},
		{"foreign identity and its session", func(r *http.Request) {
			r.Header[HeaderIdentityKey], r.Header[HeaderYourNonce] = []string{b.client.publicHex}, []string{b.theirs}
		}, body, Invalid},
		{"session altered", func(r *http.Request) { flip(r, HeaderYourNonce, 60) }, body, StaleSession},
		{"session that is no base64", setHeader(HeaderYourNonce, "?"), body, Invalid},
	} {
		r, _ := signed(t, a, target, body)
		c.alter(r)
		p, err := s.Authenticate(r, []byte(c.body))
		if got := kindOf(t, err); got != c.want {
			t.Errorf("%s: kind %d (%v), want %d", c.name, got, errors.Unwrap(err), c.want)
		}
		if err == nil && p.Identity != a.client.identity.public {
			t.Errorf("%s: identity %x", c.name, p.Identity)
		}
	}

	// One of the headers missing, or standing twice.
	for _, name := range []string{HeaderVersion, HeaderIdentityKey, HeaderNonce, HeaderYourNonce, HeaderSignature, HeaderRequestID} {
		for _, n := range []int{0, 2} {
			r, _ := signed(t, a, target, body)
			v := r.Header[name]
			delete(r.Header, name)
			for range n {
				r.Header[name] = append(r.Header[name], v...)
			}
			if _, err := s.Authenticate(r, []byte(body)); kindOf(t, err) != Invalid {
				t.Errorf("%s %d times: %v", name, n, err)
			}
		}
	}

	// Bob signs on Alice's session: refused although his signature is good.
	stolen := *b
	stolen.theirs = a.theirs
	r, _ := signed(t, &stolen, target, body)
	if _, err := s.Authenticate(r, []byte(body)); kindOf(t, err) != StaleSession {
		t.Errorf("signed by another on a foreign session: %v", err)
	}
}

func TestA1_NoAuthentication(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	if _, err := s.Authenticate(r, nil); kindOf(t, err) != Unauthenticated || !Anonymous(r) {
		t.Errorf("no headers: %v", err)
	}
	for _, name := range []string{HeaderNonce, "X-Bsv-Auth-Foo", "x-bsv-auth", "X-Bsv-Authentic"} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header[name] = []string{""}
		if _, err := s.Authenticate(r, nil); kindOf(t, err) != Invalid || Anonymous(r) {
			t.Errorf("only %s: %v", name, err)
		}
	}
}

// highS writes a DER signature in its other form.
func highS(t testing.TB, text string) string {
	t.Helper()
	der, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		t.Fatal(err)
	}
	sig.S.Sub(secp256k1.Params().N, sig.S)
	if der, err = asn1.Marshal(sig); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(der)
}

func TestA1_B5_B6_ReplaysAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	session := begin(t, s, newKey(t))
	r, _ := signed(t, session, "/x", "{}")
	if _, err := s.Authenticate(r, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(r, []byte("{}")); kindOf(t, err) != Invalid {
		t.Errorf("the same bytes: %v", err)
	}
	upper := r.Clone(t.Context())
	upper.Header.Set(HeaderSignature, strings.ToUpper(upper.Header.Get(HeaderSignature)))
	upper.Header.Set(HeaderIdentityKey, strings.ToUpper(upper.Header.Get(HeaderIdentityKey)))
	if _, err := s.Authenticate(upper, []byte("{}")); kindOf(t, err) != Invalid {
		t.Errorf("hex in upper case: %v", err)
	}
	twin := r.Clone(t.Context())
	twin.Header.Set(HeaderSignature, highS(t, r.Header.Get(HeaderSignature)))
	if _, err := s.Authenticate(twin, []byte("{}")); kindOf(t, err) != Invalid {
		t.Errorf("signature in another form: %v", err)
	}
	// Also when nobody has seen the first form.
	fresh, _ := signed(t, session, "/x", "{}")
	fresh.Header.Set(HeaderSignature, highS(t, fresh.Header.Get(HeaderSignature)))
	if _, err := s.Authenticate(fresh, []byte("{}")); kindOf(t, err) != Invalid {
		t.Errorf("a high S: %v", err)
	}
	// A request refused for its signature is not used up.
	other, _ := signed(t, session, "/x", "{}")
	if _, err := s.Authenticate(other, []byte("[]")); kindOf(t, err) != Invalid {
		t.Errorf("another body: %v", err)
	}
	if _, err := s.Authenticate(other, []byte("{}")); err != nil {
		t.Errorf("after a forgery of it: %v", err)
	}
}

func TestA1_B3_AlteredResponsesAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	key := newKey(t)
	session := begin(t, s, key)
	answer := func(session *Session) (*Sent, http.Header) {
		r, sent := signed(t, session, "/x", "{}")
		p, err := s.Authenticate(r, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{"X-Bsv-Overlay-Profile": {"p"}, "Content-Type": {"application/json"}}
		if err := p.Seal(h, 200, []byte(`{"a":1}`)); err != nil {
			t.Fatal(err)
		}
		return sent, h
	}
	_, other := answer(begin(t, s, key))
	_, same := answer(session)
	for _, c := range []struct {
		name   string
		status int
		body   string
		alter  func(http.Header)
		ok     bool
	}{
		{"nothing", 200, `{"a":1}`, func(http.Header) {}, true},
		{"a header that is not signed", 200, `{"a":1}`, func(h http.Header) { h.Set("Content-Type", "text/html") }, true},
		{"status", 201, `{"a":1}`, func(http.Header) {}, false},
		{"body", 200, `{"a":2}`, func(http.Header) {}, false},
		{"no body", 200, ``, func(http.Header) {}, false},
		{"x-bsv header", 200, `{"a":1}`, func(h http.Header) { h.Set("X-Bsv-Overlay-Profile", "q") }, false},
		{"x-bsv header gone", 200, `{"a":1}`, func(h http.Header) { h.Del("X-Bsv-Overlay-Profile") }, false},
		{"x-bsv header more", 200, `{"a":1}`, func(h http.Header) { h.Set("X-Bsv-A", "") }, false},
		{"nonce", 200, `{"a":1}`, func(h http.Header) { h.Set(HeaderNonce, randomNonce()) }, false},
		{"high S", 200, `{"a":1}`, func(h http.Header) { h.Set(HeaderSignature, highS(t, h.Get(HeaderSignature))) }, false},
		{"no signature", 200, `{"a":1}`, func(h http.Header) { h.Del(HeaderSignature) }, false},
		{"answer to another request", 200, `{"a":1}`, func(h http.Header) { copyAuth(h, same) }, false},
		{"answer in another session", 200, `{"a":1}`, func(h http.Header) { copyAuth(h, other) }, false},
		{"another server", 200, `{"a":1}`, func(h http.Header) { h.Set(HeaderIdentityKey, "02"+strings.Repeat("11", 32)) }, false},
		{"another version", 200, `{"a":1}`, func(h http.Header) { h.Set(HeaderVersion, "1.0") }, false},
	} {
		sent, h := answer(session)
		c.alter(h)
		if err := sent.Verify(c.status, h, []byte(c.body)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func copyAuth(dst, src http.Header) {
	for name, v := range src {
		if Authentication(name) {
			dst[name] = v
		}
	}
}

func TestB2_SessionsEndAndRotate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	key, alice := newKey(t), newKey(t)
	ring := newRing(t, 2)
	server := func(r *Ring, at time.Duration) *Server {
		return newServer(t, Config{Key: key, Sessions: r, SessionTTL: time.Minute, Clock: func() time.Time { return now.Add(at) }})
	}
	session := begin(t, server(ring, 0), alice)
	for _, c := range []struct {
		name   string
		server *Server
		want   Kind
	}{
		{"restart, same ring", server(ring, time.Second), 0},
		{"a fresh secret first", server(&Ring{Epoch: 1, Secrets: append(newRing(t, 1).Secrets, ring.Secrets...)}, time.Second), 0},
		{"its secret dropped", server(&Ring{Epoch: 1, Secrets: ring.Secrets[1:]}, time.Second), StaleSession},
		{"next epoch", server(&Ring{Epoch: 2, Secrets: ring.Secrets}, time.Second), StaleSession},
		{"its last millisecond", server(ring, time.Minute-time.Millisecond), 0},
		{"its expiry", server(ring, time.Minute), StaleSession},
		{"another identity of the server", newServer(t, Config{Sessions: ring}), StaleSession},
	} {
		r, sent := signed(t, session, "/x", "{}")
		p, err := c.server.Authenticate(r, []byte("{}"))
		if kindOf(t, err) != c.want {
			t.Errorf("%s: %v, want kind %d", c.name, err, c.want)
		}
		if err != nil {
			continue
		}
		h := http.Header{}
		if err := p.Seal(h, 200, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := sent.Verify(200, h, []byte("{}")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestB8_WhatSealRefuses(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	session := begin(t, s, newKey(t))
	r, _ := signed(t, session, "/x", "{}")
	p, err := s.Authenticate(r, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"empty body": p.Seal(http.Header{}, 200, nil),
		"100":        p.Seal(http.Header{}, 100, []byte("{}")),
		"204":        p.Seal(http.Header{}, 204, []byte("{}")),
		"304":        p.Seal(http.Header{}, 304, []byte("{}")),
		"600":        p.Seal(http.Header{}, 600, []byte("{}")),
		"header":     p.Seal(http.Header{"X-Bsv-A": {"é"}}, 200, []byte("{}")),
	} {
		if err == nil {
			t.Errorf("%s was sealed", name)
		}
	}
}

// failing is a KeySource and a ReplayGuard that are out of order.
type failing struct{}

func (failing) Ring(context.Context) (*Ring, error)       { return nil, errors.New("out of order") }
func (failing) Use(context.Context, Use) (Verdict, error) { return Fresh, errors.New("out of order") }

func TestB7_UnsignedAnswers(t *testing.T) {
	t.Parallel()
	ring, key := newRing(t, 1), newKey(t)
	good := newServer(t, Config{Key: key, Sessions: ring})
	session := begin(t, good, newKey(t))
	anonymous := httptest.NewRequest(http.MethodPost, "/", nil)
	valid, _ := signed(t, session, "/x", "{}")
	altered, _ := signed(t, session, "/y", "{}")
	altered.Method = http.MethodPut
	for _, c := range []struct {
		name   string
		server *Server
		r      *http.Request
		status int
		code   string
		hint   bool
	}{
		{"anonymous", good, anonymous, 401, "unauthorized", false},
		{"altered", good, altered, 401, "unauthorized", false},
		{"stale", newServer(t, Config{Key: key}), valid, 401, "unauthorized", true},
		{"no secrets", newServer(t, Config{Key: key, Sessions: failing{}}), valid, 503, "unavailable", false},
		{"no guard", newServer(t, Config{Key: key, Sessions: ring, Replay: failing{}}), valid, 503, "unavailable", false},
	} {
		_, err := c.server.Authenticate(c.r, []byte("{}"))
		if err == nil {
			t.Errorf("%s: authenticated", c.name)
			continue
		}
		w := httptest.NewRecorder()
		c.server.Refuse(w, c.r, err)
		var body struct {
			Version int
			Error   struct {
				Code, Message string
				Retryable     bool
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if w.Code != c.status || body.Version != 1 || body.Error.Code != c.code || body.Error.Message == "" {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
		if strings.Contains(w.Body.String(), "out of order") {
			t.Errorf("%s: the cause is told: %s", c.name, w.Body)
		}
		if cc := w.Header().Get("Cache-Control"); cc != "private, no-store" {
			t.Errorf("%s: Cache-Control %q", c.name, cc)
		}
		auth := 0
		for name := range w.Header() {
			if Authentication(name) {
				auth++
			}
		}
		if hint := w.Header().Get(HeaderMessageType) == staleHint && w.Header().Get(HeaderVersion) == Version; hint != c.hint || auth != 0 != c.hint {
			t.Errorf("%s: hint %v, headers %v", c.name, hint, w.Header())
		}
	}
	w := httptest.NewRecorder()
	good.Refuse(w, anonymous, errors.New("some other fault"))
	if w.Code != 503 || bytes.Contains(w.Body.Bytes(), []byte("some other")) {
		t.Errorf("any error: %d %s", w.Code, w.Body)
	}
}

// A path is taken in the form that the client signed, and in no third one.
func TestB1_FormsOfAPath(t *testing.T) {
	t.Parallel()
	ring, key := newRing(t, 1), newKey(t)
	plain := newServer(t, Config{Key: key, Sessions: ring})
	behind := newServer(t, Config{Key: key, Sessions: ring, ExternalPrefix: "/api/v1"})
	session := begin(t, plain, newKey(t))
	for _, c := range []struct {
		name, signed, arrives string
		server                *Server
		ok                    bool
	}{
		{"escaped", "/a%20b", "/a%20b", plain, true},
		{"escaped without need", "/%61", "/%61", plain, true},
		{"escaped without need, arrives plain", "/%61", "/a", plain, false},
		{"plain, arrives escaped without need", "/a", "/%61", plain, false},
		{"a slash, arrives escaped", "/a/b", "/a%2Fb", plain, false},
		{"an escaped slash, arrives plain", "/a%2Fb", "/a/b", plain, false},
		{"a dot segment", "/a/../b", "/b", plain, false},
		{"empty", "", "/", plain, true},
		{"behind a prefix", "/api/v1/a%20b", "/a%20b", behind, true},
		{"behind another prefix", "/api/v2/a", "/a", behind, false},
		{"behind no prefix", "/a", "/a", behind, false},
		{"prefix that nobody took away", "/api/v1/a", "/api/v1/a", behind, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://h"+c.signed, nil)
		if c.signed == "" {
			r.URL.Path = ""
		}
		if _, err := session.Sign(r, nil); err != nil {
			t.Fatal(err)
		}
		arrived := httptest.NewRequest(http.MethodGet, "http://h"+c.arrives, nil)
		arrived.Header = r.Header
		if _, err := c.server.Authenticate(arrived, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, errors.Unwrap(err))
		}
	}
	// One official client signs what net/url decoded.
	decoded := httptest.NewRequest(http.MethodGet, "http://h/", nil)
	decoded.URL.Path, decoded.URL.RawPath = "/a b", "/a b"
	fields, err := requestFields(decoded.Header)
	if err != nil {
		t.Fatal(err)
	}
	for arrives, ok := range map[string]bool{"/a%20b": true, "/a%20%62": false} {
		if _, err := session.Sign(decoded, nil); err != nil { // for the headers; the signature is made anew
			t.Fatal(err)
		}
		id, err := decodeNonce(nil, decoded.Header.Get(HeaderRequestID))
		if err != nil {
			t.Fatal(err)
		}
		digest := (&requestParts{id: [32]byte(id), method: http.MethodGet, path: "/a b", fields: fields}).digest()
		nonce := decoded.Header.Get(HeaderNonce)
		decoded.Header.Set(HeaderSignature, hex.EncodeToString(session.client.identity.sign(session.key, nonce, session.theirs, &digest)))
		arrived := httptest.NewRequest(http.MethodGet, "http://h"+arrives, nil)
		arrived.Header = decoded.Header
		if _, err := plain.Authenticate(arrived, nil); (err == nil) != ok {
			t.Errorf("decoded, arrives as %s: %v", arrives, errors.Unwrap(err))
		}
	}
	for _, prefix := range []string{"api", "/api/", "/"} {
		if _, err := New(Config{Key: key, Sessions: ring, ExternalPrefix: prefix}); err == nil {
			t.Errorf("prefix %q was taken", prefix)
		}
	}
	for _, ttl := range []time.Duration{-1, time.Millisecond, MaxSessionTTL + 1} {
		if _, err := New(Config{Key: key, Sessions: ring, SessionTTL: ttl}); err == nil {
			t.Errorf("SessionTTL %v was taken", ttl)
		}
	}
	if _, err := New(Config{Key: key}); err == nil {
		t.Error("no Sessions were taken")
	}
}
