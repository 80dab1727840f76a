package lookup

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(name)
		for _, v := range values {
			r.Header.Add(name, v)
		}
	}
}

func method(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }

func TestH1_MalformedRequests(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	digest := capabilityHeader(n.capability())
	good := string(ask{}.body())
	swap := func(from, to string) []byte {
		if !strings.Contains(good, from) {
			t.Fatalf("%q is not in the body", from)
		}
		return []byte(strings.Replace(good, from, to, 1))
	}
	for name, body := range map[string][]byte{
		"empty": nil, "not JSON": []byte("hello"), "truncated": []byte(good[:40]), "trailing data": []byte(good + "{}"),
		"BOM": []byte("\xef\xbb\xbf" + good), "bad UTF-8": swap(`"query":{}`, "\"query\":{\"a\":\"\xff\"}"),
		"duplicate key":          swap(`"version":1`, `"version":1,"version":1`),
		"duplicate after escape": swap(`"version":1`, `"version":1,"\u0076ersion":1`),
		"unknown field":          swap(`"version":1`, `"version":1,"more":1`),
		"unknown nested field":   swap(`"waitMs":0`, `"waitMs":0,"more":1`),
		"fraction":               swap(`"waitMs":0`, `"waitMs":0.5`),
		"unsafe integer":         swap(`"query":{}`, `"query":{"match":9007199254740993}`),
		"wrong type":             swap(`"waitMs":0`, `"waitMs":"0"`),
		"null":                   swap(`"query":{}`, `"query":{},"requiredRulesDigest":null`),
		"zero limit":             swap(`"maxObservations":1024`, `"maxObservations":0`),
		"negative limit":         swap(`"maxObservations":1024`, `"maxObservations":-1`),
		"too wide a limit":       swap(`"maxObservations":1024`, `"maxObservations":4294967296`),
		"short requestId":        []byte(strings.Replace(good, `"requestId":"`, `"requestId":"!`, 1)),
		"other version":          swap(`"version":1`, `"version":2`),
		"array":                  []byte(`[]`), "lone surrogate": swap(`"query":{}`, `"query":{"a":"\ud800"}`),
		"query beside the rules": swap(`"query":{}`, `"query":{"match":{}}`),
	} {
		t.Log(name)
		e := n.request(openPath, body, digest).refused(t, wire.Invalid)
		if e.Retryable {
			t.Fatal("retryable")
		}
	}
	for name, edit := range map[string]func(*http.Request){
		"content type":         header("Content-Type", "text/plain"),
		"no content type":      header("Content-Type"),
		"two content types":    header("Content-Type", "application/json", "application/json"),
		"other charset":        header("Content-Type", "application/json; charset=latin1"),
		"no capability":        header(wire.HeaderCapability),
		"malformed capability": header(wire.HeaderCapability, "ABC"),
		"two capabilities":     header(wire.HeaderCapability, strings.Repeat("a", 64), strings.Repeat("a", 64)),
		"two profiles":         header(wire.HeaderProfile, wire.Profile, wire.Profile),
		"no cache control":     header("Cache-Control"),
		"other cache control":  header("Cache-Control", "no-cache"),
		"GET":                  method(http.MethodGet), "PUT": method(http.MethodPut), "OPTIONS": method(http.MethodOptions), "odd method": method("BREW"),
	} {
		t.Log(name)
		for _, path := range []string{openPath, readPath, closePath} {
			r := n.request(path, ask{}.body(), digest, edit)
			r.refused(t, wire.Invalid)
			if strings.ToUpper(name) == name && r.header.Get("Allow") != http.MethodPost {
				t.Fatalf("%s: Allow %q", path, r.header.Get("Allow"))
			}
		}
	}
	n.request(openPath, ask{}.body(), digest, header("Content-Type", "application/json; charset=UTF-8"), header("Cache-Control", "max-age=0, No-Store")).batch(t)
	if n.count("open_fence") != 1 {
		t.Fatal("a malformed request left a fence")
	}
}

func TestH2_TooLarge(t *testing.T) {
	t.Parallel()
	n := start(t, setup{service: func(s *Service) { s.MaxRequestBytes = 5000 }})
	digest := capabilityHeader(n.capability())
	pad := func(size int) []byte {
		body := ask{}.body()
		return append(body, bytes.Repeat([]byte(" "), size-len(body))...)
	}
	n.request(openPath, pad(5000), digest).batch(t)
	b := n.open(ask{})
	n.request(openPath, pad(5001), digest).refused(t, wire.Limited)
	n.request(openPath, pad(1<<20+1), digest).refused(t, wire.Limited)
	n.request(readPath, append(readBody(b.Session, b.Cursor, wide), bytes.Repeat([]byte(" "), 5000)...), digest).refused(t, wire.Limited)
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	n.request(openPath, pad(1<<20+1), digest, chunked).refused(t, wire.Limited)
	for name, query := range map[string]string{
		"depth": strings.Repeat(`{"a":`, 32) + "1" + strings.Repeat("}", 32),
		"array": "[" + strings.TrimSuffix(strings.Repeat("1,", 4097), ",") + "]",
		"keys":  "{" + strings.TrimSuffix(repeatf(257, `"k%d":1,`), ",") + "}",
	} {
		t.Log(name)
		n.request(openPath, ask{query: query}.body(), digest).refused(t, wire.Limited)
	}
	// Header fields are counted by us, names and values, to the byte.
	measure := func(total int) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("X-Pad", "")
			r.Header.Set("User-Agent", "t")
			r.Header.Set("Connection", "close")
			used := len("host") + len(r.URL.Host) + len("Content-Length") + len(fmt.Sprint(r.ContentLength)) + len("Accept-Encoding") - len("Accept-Encoding")
			for name, v := range r.Header {
				used += len(name) + len(v[0])
			}
			r.Header.Set("X-Pad", strings.Repeat("p", total-used))
		}
	}
	n.request(openPath, ask{}.body(), digest, measure(16384)).batch(t)
	n.request(openPath, ask{}.body(), digest, measure(16385)).refused(t, wire.Limited)
	n.request(openPath, ask{}.body(), digest, measure(60000)).refused(t, wire.Limited)
}

func repeatf(times int, format string) string {
	var b strings.Builder
	for i := range times {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestH3_SelectionAndPaths(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	digest := capabilityHeader(n.capability())
	for name, edit := range map[string]func(*http.Request){
		"content encoding": header("Content-Encoding", "gzip"),
		"no profile":       header(wire.HeaderProfile),
		"other profile":    header(wire.HeaderProfile, "https://bsv.brc.dev/overlays/0195#paid-lookup-v1"),
	} {
		t.Log(name)
		n.request(openPath, ask{}.body(), digest, edit).refused(t, wire.Unsupported)
		n.request(readPath, readBody("x", "y", wide), digest, edit).refused(t, wire.Unsupported)
		n.request(closePath, closeBody("x"), digest, edit).refused(t, wire.Unsupported)
	}
	n.request(openPath, ask{}.body(), digest, header("Content-Encoding", "identity")).batch(t)
	n.request(openPath, ask{more: `,"extensions":{"urn:x:y":1},"critical":["urn:x:y"]`}.body(), digest).refused(t, wire.Unsupported)
	n.request(openPath, ask{more: `,"extensions":{"urn:x:y":1}`}.body(), digest).batch(t)
	n.request(openPath, ask{more: `,"extensions":{},"critical":["urn:x:y"]`}.body(), digest).refused(t, wire.Invalid)
	for _, path := range []string{
		"/", "/overlay/v1/lookup", openPath + "/", "/overlay/v1/lookup/Open", "/overlay/v1/lookup/%6fpen", "//overlay/v1/lookup/open",
		"/overlay/v1/capabilities/", "/overlay/v2/lookup/open", "/overlay/v1/lookup/open/x",
	} {
		n.request(path, ask{}.body(), digest).refused(t, wire.NotFound)
		n.request(path, nil, digest, method(http.MethodGet)).refused(t, wire.NotFound)
	}
	b := n.open(ask{})
	n.request(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(strings.Repeat("cd", 32))).refused(t, wire.ContextChanged)
	// A new Open under an expired manifest; the session it was opened under goes on.
	if _, err := n.pool.Exec(t.Context(), `update manifest set expires_at = issued_at`); err != nil {
		t.Fatal(err)
	}
	n.request(openPath, ask{}.body(), digest).refused(t, wire.Expired)
	n.request(readPath, readBody(b.Session, b.Cursor, wide), digest).batch(t)
}

func TestH4_HeadersOfEveryResponse(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	digest := n.capability()
	b := n.open(ask{})
	for name, r := range map[string]reply{
		"open":       n.request(openPath, ask{}.body()),
		"read":       n.request(readPath, readBody(b.Session, b.Cursor, wide)),
		"close":      n.request(closePath, closeBody("x")),
		"malformed":  n.request(openPath, nil),
		"reset":      n.request(readPath, readBody("x", "y", wide)),
		"not found":  n.request("/nothing", nil),
		"too large":  n.request(openPath, nil, header("X-Pad", strings.Repeat("p", 17000))),
		"method":     n.request(openPath, nil, method(http.MethodDelete)),
		"discovery":  n.request("/overlay/v1/capabilities", nil, method(http.MethodGet)),
		"no encoder": n.request(openPath, ask{}.body(), header("Accept-Encoding", "gzip")),
	} {
		t.Log(name)
		h := r.header
		if h.Get("Cache-Control") != "private, no-store" || h.Get("Content-Encoding") != "" || h.Get("Content-Type") != "application/json" ||
			h.Get("Vary") != "Authorization, x-bsv-auth-identity-key, x-bsv-overlay-capability, x-bsv-overlay-profile" ||
			h.Get(wire.HeaderCapability) != digest || h.Get(wire.HeaderProfile) != wire.Profile {
			t.Fatalf("%v", h)
		}
		if len(h.Values("Cache-Control")) != 1 || len(h.Values("Vary")) != 1 {
			t.Fatalf("%v", h)
		}
	}
	bad := n.request(openPath, nil, header(wire.HeaderCapability, "x"), header(wire.HeaderProfile, "urn:other:profile"))
	if bad.header.Get(wire.HeaderCapability) != "" || bad.header.Get(wire.HeaderProfile) != "urn:other:profile" {
		t.Fatalf("%v", bad.header)
	}
}

func TestH5_ErrorsTellNothingPrivate(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	a := ask{id: newID()}
	b := n.open(a)
	n.digest = n.capability()
	n.pool.Close() // every further database call fails
	for _, r := range []reply{
		n.request(openPath, a.body()),
		n.request(readPath, readBody(b.Session, b.Cursor, wide)),
		n.request(closePath, closeBody(b.Session)),
	} {
		e := r.refused(t, wire.Unavailable)
		if r.status != http.StatusServiceUnavailable || !e.Retryable || e.RetryAfterMs == nil || *e.RetryAfterMs == 0 {
			t.Fatalf("%d %+v", r.status, e)
		}
		if strings.Contains(string(r.body), "pool") {
			t.Fatalf("the cause reached the peer: %s", r.body)
		}
	}
	log := n.log.String()
	if !strings.Contains(log, "closed pool") {
		t.Fatal("the cause is not in the log")
	}
	for _, secret := range []string{a.id, b.Session, b.Cursor} {
		if strings.Contains(log, secret) {
			t.Fatal("a bearer secret is in the log")
		}
	}
}

func TestH6_EffectiveLimits(t *testing.T) {
	t.Parallel()
	n := start(t, setup{service: func(s *Service) { s.MaxResponseBytes, s.MaxObservations, s.MaxWaitMs = 70000, 30, 900 }})
	for _, c := range []struct{ ask, want wire.Limits }{
		{wire.Limits{MaxBytes: 60000, MaxObservations: 5, WaitMs: 7}, wire.Limits{MaxBytes: 60000, MaxObservations: 5, WaitMs: 7}},
		{wire.Limits{MaxBytes: 70001, MaxObservations: 31, WaitMs: 901}, wire.Limits{MaxBytes: 70000, MaxObservations: 30, WaitMs: 900}},
		{wire.Limits{MaxBytes: 1<<32 - 1, MaxObservations: 1<<32 - 1, WaitMs: 1<<32 - 1}, wire.Limits{MaxBytes: 70000, MaxObservations: 30, WaitMs: 900}},
	} {
		b := n.open(ask{limits: c.ask})
		if b.Limits != c.want {
			t.Fatalf("open: %+v, want %+v", b.Limits, c.want)
		}
		n.provider.Stop() // so that the last one does not wait
		if got := n.read(b, c.ask); got.Limits != c.want {
			t.Fatalf("read: %+v, want %+v", got.Limits, c.want)
		}
	}
}

func TestH7_MinimumBytesAlwaysSucceed(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	snapshotOf := n.open(ask{})
	live := n.live(`{}`)
	var coins []coin
	for i, pad := range []int{0, 300, 5000, 40_000, 71_000, 700_000} {
		c := mint(fmt.Sprint("size", i), pad)
		coins = append(coins, c)
		n.append(c.put(genre(i), fmt.Sprintf(`,"order":"%d"`, i)))
	}
	_ = snapshotOf
	for _, ms := range []uint32{0, 10, 25000} {
		at := live
		for range coins {
			small := wire.Limits{MaxBytes: 1300, MaxObservations: 1, WaitMs: ms}
			e := n.request(readPath, readBody(at.Session, at.Cursor, small)).refused(t, wire.Limited)
			if e.Limit.Kind != wire.LimitGroup || e.Limit.MinimumBytes == nil || e.Limit.MinimumObservations != nil {
				t.Fatalf("%+v", e.Limit)
			}
			at = n.read(at, wire.Limits{MaxBytes: *e.Limit.MinimumBytes, MaxObservations: 1, WaitMs: ms})
			if len(at.Groups) != 1 {
				t.Fatalf("%d groups", len(at.Groups))
			}
		}
	}
	for i := range coins {
		query := ask{limits: wire.Limits{MaxBytes: 1300, MaxObservations: uint32(i + 1)}, query: `{}`}
		e := n.request(openPath, query.body()).refused(t, wire.Limited)
		n.open(ask{limits: wire.Limits{MaxBytes: *e.Limit.MinimumBytes, MaxObservations: uint32(i + 1)}})
	}
	// A group of several observations asks for both.
	n.append(coins[0].spent(mint("s", 0, coins[0].point())), mint("t", 0).put(genre(0), ""))
	at := n.live(`{}`)
	_ = at
	last := live
	for range coins {
		last = n.read(last, few(1))
	}
	e := n.request(readPath, readBody(last.Session, last.Cursor, few(1))).refused(t, wire.Limited)
	if e.Limit.MinimumObservations == nil || *e.Limit.MinimumObservations != 3 {
		t.Fatalf("%+v", e.Limit)
	}
	n.read(last, wire.Limits{MaxBytes: *e.Limit.MinimumBytes, MaxObservations: 3})
}

func TestH8_CrossOrigin(t *testing.T) {
	t.Parallel()
	const page = "https://app.example.org"
	n := start(t, setup{origins: []string{page}})
	from := func(origin string) func(*http.Request) { return header("Origin", origin) }
	r := n.request(openPath, ask{}.body(), from(page))
	r.batch(t)
	if r.header.Get("Access-Control-Allow-Origin") != page || r.header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(r.header.Get("Vary"), "Origin") || !strings.Contains(r.header.Get("Access-Control-Expose-Headers"), wire.HeaderCapability) {
		t.Fatalf("%v", r.header)
	}
	// Errors are readable too.
	if r := n.request(openPath, nil, from(page)); r.header.Get("Access-Control-Allow-Origin") != page {
		t.Fatalf("%v", r.header)
	}
	ask2 := header("Access-Control-Request-Method", http.MethodPost)
	pre := n.request(openPath, nil, from(page), method(http.MethodOptions), ask2)
	if pre.status != http.StatusNoContent || pre.header.Get("Access-Control-Allow-Origin") != page ||
		!strings.Contains(pre.header.Get("Access-Control-Allow-Headers"), "cache-control") || pre.header.Get("Access-Control-Allow-Methods") != "POST" {
		t.Fatalf("%d %v", pre.status, pre.header)
	}
	for _, origin := range []string{"https://other.example.org", "null", page + "/", "http://app.example.org"} {
		for _, edit := range [][]func(*http.Request){{}, {method(http.MethodOptions), ask2}} {
			r := n.request(openPath, ask{}.body(), append(edit, from(origin))...)
			r.refused(t, wire.Unauthorized)
			for name := range r.header {
				if strings.HasPrefix(name, "Access-Control") {
					t.Fatalf("%s got %v", origin, r.header)
				}
			}
		}
	}
}

// TestH9_BodiesAreCanonical reads bodies with every kind of observation and awkward text; reply.batch compares each with
// its own canonical form.
func TestH9_BodiesAreCanonical(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{}`)
	a := mint("a", 0)
	n.append(a.put(`{"genre":["jazz"]}`, `,"context":{"schema":"https://bsv.brc.dev/apps/0192#legacy-lookup-context-json-v1","bytes":"eyJhIjoxLjV9"}`),
		a.withdrawn("\u2028\u0007\"\\/é😀"), invalidated("ctx", "reason"))
	next := mint("next", 0, a.point())
	n.append(a.put(genre(0), ""), a.spent(next), next.put(genre(0), ""))
	got := n.read(b, wide)
	if len(observations(got)) != 7 {
		t.Fatalf("%v", tellAll(observations(got)))
	}
	n.scan(ask{})
}

func TestH10_Capabilities(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	get := func(n *node) reply {
		return n.request("/overlay/v1/capabilities", nil, method(http.MethodGet),
			header(wire.HeaderCapability), header(wire.HeaderProfile), header("Content-Type"), header("Cache-Control"))
	}
	one, two := get(n), get(m)
	if !bytes.Equal(one.body, two.body) {
		t.Fatal("two nodes serve different manifests")
	}
	c, err := wire.VerifyCapabilities(one.body)
	if err != nil {
		t.Fatal(err)
	}
	if c.BaseURL != n.provider.baseURL || len(c.Services) != 1 || c.ExpiresAt-c.IssuedAt != 86400 {
		t.Fatalf("%+v", c)
	}
	if one.header.Get("Cache-Control") != "private, no-store" {
		t.Fatal("the manifest may be cached")
	}
	n.request("/overlay/v1/capabilities", nil).refused(t, wire.Invalid) // POST
}

func TestH13_NULInEveryString(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	nul := "a\x00b"
	n.request(readPath, readBody(nul, nul, wide)).refused(t, wire.ResetRequired)
	b := n.open(ask{})
	n.request(readPath, readBody(b.Session, nul, wide)).refused(t, wire.ResetRequired)
	if r := n.request(closePath, closeBody(nul)); r.status != http.StatusOK {
		t.Fatalf("%d", r.status)
	}
	n.request(openPath, bytes.Replace(ask{}.body(), []byte(testService), []byte(`ls\u0000x`), 1)).refused(t, wire.NotFound)
	n.request(openPath, ask{query: `{"match":{"a\u0000":"b"}}`}.body()).refused(t, wire.Invalid)
	n.request(openPath, ask{query: `{"match":{"genre":"a\u0000"}}`}.body()).batch(t)
	n.request(openPath, ask{more: `,"extensions":{"urn:x:a":"\u0000"}`}.body()).batch(t)
	at := n.live(`{"match":{"genre":"x\u0000y"}}`)
	c := mint("nul", 0)
	n.append(c.put(`{"genre":["x\u0000y"],"\u0000":["\u0000"]}`, `,"order":"\u0000\u0000"`), c.withdrawn(nul))
	got := tellAll(observations(n.read(at, wide)))
	if len(got) != 2 || got[1] != "withdraw "+c.short()+" "+nul {
		t.Fatalf("%q", got)
	}
}

func TestA9_Close(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(3)
	a := ask{id: newID(), limits: few(1)}
	b, other := n.open(a), n.open(ask{})
	for range 2 {
		r := n.request(closePath, closeBody(b.Session))
		if r.status != http.StatusOK || string(r.body) != `{"closed":true,"version":1}` {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	// Under any digest and for any identifier, and it changes nothing but the match.
	n.request(closePath, closeBody("unknown"), capabilityHeader(strings.Repeat("ef", 32)))
	n.read(other, wide)
	n.request(readPath, readBody(b.Session, b.Cursor, few(1))).refused(t, wire.Expired)
	n.request(openPath, a.body()).refused(t, wire.Expired)
	n.request(closePath, []byte(`{"version":1}`)).refused(t, wire.Invalid)
	n.request(closePath, []byte(`{"version":1,"session":"x","more":1}`)).refused(t, wire.Invalid)
	// A close ends a waiting poll at once, as expired.
	live := n.live(`{}`)
	digest := capabilityHeader(n.capability())
	n.during(beforeSleep, func() {
		if _, err := n.try(context.Background(), closePath, closeBody(live.Session), digest); err != nil {
			t.Error(err)
		}
	})
	n.request(readPath, readBody(live.Session, live.Cursor, wait(25000))).refused(t, wire.Expired)
	// And a close between the build and the gate wins over the body.
	last := n.live(`{}`)
	n.during(beforeGate, func() {
		if _, err := n.pool.Exec(context.Background(), `update lookup_session set state = 2`); err != nil {
			t.Error(err)
		}
	})
	n.request(readPath, readBody(last.Session, last.Cursor, wide)).refused(t, wire.Expired)
}
