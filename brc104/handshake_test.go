package brc104

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestA1_HandshakeRefusals(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	c, err := NewClient(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	good := string(c.Hello().Body)
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
	}{
		{"good", "POST", HandshakePath, good, 200},
		{"get", "GET", HandshakePath, good, 405},
		{"head", "HEAD", HandshakePath, good, 405},
		{"options", "OPTIONS", HandshakePath, good, 405},
		{"below a base path", "POST", "/base" + HandshakePath, good, 400},
		{"empty", "POST", HandshakePath, "", 400},
		{"not JSON", "POST", HandshakePath, "{", 400},
		{"version of the text", "POST", HandshakePath, strings.Replace(good, `"0.1"`, `"1.0"`, 1), 400},
		{"certificates", "POST", HandshakePath, strings.Replace(good, typeInitialRequest, "certificateRequest", 1), 400},
		{"no point", "POST", HandshakePath, strings.Replace(good, c.publicHex, "02"+strings.Repeat("f", 64), 1), 400},
		{"no identity", "POST", HandshakePath, strings.Replace(good, c.publicHex, "", 1), 400},
		{"short nonce", "POST", HandshakePath, `{"version":"0.1","messageType":"initialRequest","identityKey":"` + c.publicHex + `","initialNonce":"AAAA"}`, 400},
		{"large", "POST", HandshakePath, good + strings.Repeat(" ", MaxHandshakeBytes), 413},
	} {
		w := httptest.NewRecorder()
		s.Handshake(w, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
		if w.Code != tc.status {
			t.Errorf("%s: %d %s", tc.name, w.Code, w.Body)
		}
		if tc.method != "HEAD" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %q is not JSON", tc.name, w.Body)
		}
		if got := w.Header().Get("Allow"); (got == "POST") != (tc.status == 405) {
			t.Errorf("%s: Allow %q", tc.name, got)
		}
	}
}

// Every length of nonce that a client may choose, the padded ones included, can be used to the end.
func TestB9_HandshakeNonceLengths(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	key := newKey(t)
	for _, n := range []int{16, 31, 32, 33, 48, 96} {
		c, err := NewClient(key)
		if err != nil {
			t.Fatal(err)
		}
		nonce := base64.StdEncoding.EncodeToString(randomBytes(random(uint64(n)), n))
		hello := &Hello{nonce: nonce, Body: []byte(`{"version":"0.1","messageType":"initialRequest","identityKey":"` + c.publicHex + `","initialNonce":"` + nonce + `"}`)}
		g, err := s.Greet(t.Context(), hello.Body)
		if err != nil {
			t.Fatal(err)
		}
		session, err := c.Begin(hello, g.Body)
		if err != nil {
			t.Fatal(err)
		}
		r, sent := signed(t, session, "/x", "{}")
		p, err := s.Authenticate(r, []byte("{}"))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		h := http.Header{}
		if err := p.Seal(h, 200, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := sent.Verify(200, h, []byte("{}")); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// A client refuses an answer to its handshake that is not for it or not well signed.
func TestA1_AlteredGreetingsAreRefused(t *testing.T) {
	t.Parallel()
	s, key := newServer(t, Config{}), newKey(t)
	c, err := NewClient(key)
	if err != nil {
		t.Fatal(err)
	}
	hello, other := c.Hello(), c.Hello()
	g, err := s.Greet(t.Context(), hello.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a map[string]any
	if err := json.Unmarshal(g.Body, &a); err != nil {
		t.Fatal(err)
	}
	stranger := newServer(t, Config{})
	for name, v := range map[string]any{
		"version": "1.0", "messageType": "general", "identityKey": stranger.publicHex, "initialNonce": randomNonce(), "yourNonce": other.nonce,
		"signature": []int{1, 2, 3},
	} {
		changed := map[string]any{}
		for k := range a {
			changed[k] = a[k]
		}
		changed[name] = v
		body, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Begin(hello, body); err == nil {
			t.Errorf("another %s was taken", name)
		}
	}
	for name, body := range map[string]string{
		"nothing": "", "bytes that are none": strings.Replace(string(g.Body), `"signature":[`, `"signature":[256,`, 1),
	} {
		if _, err := c.Begin(hello, []byte(body)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := c.Begin(hello, g.Body); err != nil {
		t.Error(err)
	}
}

// Without secrets the handshake drops the connection: a status would make a client go on unsigned.
func TestB7_HandshakeWithoutSecretsDropsTheConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Sessions: failing{}})
	c, err := NewClient(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	ts := serve(t, http.HandlerFunc(s.Handshake))
	resp, err := http.Post(ts.URL+HandshakePath, "application/json", strings.NewReader(string(c.Hello().Body)))
	if err == nil {
		resp.Body.Close()
		t.Errorf("answered %d", resp.StatusCode)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	full := newServer(t, Config{})
	for range cap(full.greeting) {
		full.greeting <- struct{}{}
	}
	if _, err := full.Greet(ctx, c.Hello().Body); kindOf(t, err) != Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
}

// Handshakes keep nothing, and many sessions of one identity slow nothing: there is nothing to look through.
func TestB4_HandshakesRetainNothing(t *testing.T) {
	n := 20_000
	if raceEnabled {
		n = 200
	}
	s := newServer(t, Config{})
	alice := newKey(t)
	c, err := NewClient(alice)
	if err != nil {
		t.Fatal(err)
	}
	session := begin(t, s, alice)
	before := heap()
	for range n {
		if _, err := s.Greet(t.Context(), c.Hello().Body); err != nil {
			t.Fatal(err)
		}
	}
	grown := heap() - before
	if grown > 2<<20 {
		t.Errorf("%d handshakes retain %d bytes", n, grown)
	}
	t.Logf("%d handshakes retain %d bytes", n, grown)
	if k := len(s.peers.known.newer) + len(s.peers.known.older); k != 0 {
		t.Errorf("%d identities are cached that never signed", k)
	}
	r, _ := signed(t, session, "/x", "{}")
	if _, err := s.Authenticate(r, []byte("{}")); err != nil {
		t.Error(err)
	}
}

// The cache is filled by valid signatures only, and stays within its bound.
func TestB4_PeersAreCachedAfterASignature(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Peers: 6})
	cached := func() int {
		s.peers.mu.Lock()
		defer s.peers.mu.Unlock()
		return len(s.peers.known.newer) + len(s.peers.known.older)
	}
	for i := range 10 {
		session := begin(t, s, newKey(t))
		bad, _ := signed(t, session, "/x", "{}")
		was := cached()
		if _, err := s.Authenticate(bad, []byte("[]")); err == nil {
			t.Fatal("a forgery passed")
		}
		if cached() != was {
			t.Fatal("a forgery filled the cache")
		}
		for range 2 {
			r, _ := signed(t, session, "/x", "{}")
			if _, err := s.Authenticate(r, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		if n := cached(); n < min(i+1, 3) || n > 6 {
			t.Fatalf("%d of %d identities cached, room for 6", n, i+1)
		}
	}
}

func TestH8_HeaderLists(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{SessionTTL: time.Minute})
	session := begin(t, s, newKey(t))
	r, _ := signed(t, session, "/x", "{}")
	p, err := s.Authenticate(r, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	if err := p.Seal(h, 200, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	g, err := s.Greet(t.Context(), session.client.Hello().Body)
	if err != nil {
		t.Fatal(err)
	}
	stale := http.Header{}
	fail(StaleSession, nil).Annotate(stale)
	for _, set := range []http.Header{h, g.Header, stale} {
		for name := range set {
			if !slices.Contains(ExposedHeaders(), strings.ToLower(name)) {
				t.Errorf("%s is sent but not exposed", name)
			}
		}
	}
	for name := range r.Header {
		if lower := strings.ToLower(name); !slices.Contains(AllowedHeaders(), lower) && lower != "x-bsv-overlay-profile" {
			t.Errorf("%s is sent by clients but not allowed", name)
		}
	}
}

// FuzzA1_Headers: whatever stands in the headers of a request, nothing panics, nothing passes but what was signed, and a refusal
// has a status that may be told without a signature.
func FuzzA1_Headers(f *testing.F) {
	s := newServer(f, Config{})
	session := begin(f, s, newKey(f))
	request := func(t testing.TB) *http.Request {
		r, _ := signed(t, session, "/x", "{}")
		return r
	}
	for _, name := range []string{HeaderVersion, HeaderIdentityKey, HeaderNonce, HeaderYourNonce, HeaderSignature, HeaderRequestID, HeaderMessageType, "X-Bsv-Overlay-Profile"} {
		value := request(f).Header.Get(name)
		f.Add(name, value)
		f.Add(name, strings.ToUpper(value))
		f.Add(name, value+"=")
	}
	f.Add("X-Bsv-Other", "")
	f.Add("x-bsv-auth-nonce", "AAAA")
	f.Fuzz(func(t *testing.T, name, value string) {
		r := request(t)
		was := r.Header.Clone()
		r.Header[name] = []string{value}
		p, err := s.Authenticate(r, []byte("{}"))
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Status() != 401 {
				t.Fatalf("%q: %q: %v", name, value, err)
			}
			if name == HeaderMessageType && value == typeGeneral || !Authentication(name) && !requestName(strings.ToLower(name)) {
				t.Fatalf("%q: %q: refused: %v", name, value, errors.Unwrap(err))
			}
			return
		}
		switch {
		case name == HeaderIdentityKey || name == HeaderSignature: // hex in either case is the same bytes
			if !strings.EqualFold(value, was.Get(name)) {
				t.Fatalf("%q: %q passed", name, value)
			}
		case Authentication(name) && slices.Contains(ExposedHeaders(), strings.ToLower(name)) && was[name] != nil || requestName(strings.ToLower(name)):
			media, _, _ := strings.Cut(value, ";")
			if value != was.Get(name) && !(name == headerContentType && strings.TrimSpace(media) == "application/json") {
				t.Fatalf("%q: %q passed, was %q", name, value, was.Get(name))
			}
		}
		h := http.Header{name: {value}}
		if err := p.Seal(h, 200, []byte("{}")); err == nil && !Authentication(name) && Signed(name) && h[name][0] != join([]string{value}) {
			t.Fatalf("%q: %q was sealed as %q", name, value, h[name])
		}
	})
}
