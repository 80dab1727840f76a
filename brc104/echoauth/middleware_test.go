package echoauth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

// Every answer after a valid signature is signed and whole, whatever the handler does.
func TestH4_M1_M2_WhateverAHandlerDoesIsSigned(t *testing.T) {
	t.Parallel()
	n := start(t, newEcho(t, echoauth.Options{MaxRequest: 1000, MaxResponse: 1000}, func(signed, _ *echo.Group) {
		for name, h := range map[string]echo.HandlerFunc{
			"error":      func(echo.Context) error { return errors.New("secret cause") },
			"http-error": func(echo.Context) error { return echo.NewHTTPError(409, "conflict") },
			"panic":      func(echo.Context) error { panic("secret panic") },
			"late-error": func(c echo.Context) error {
				c.Response().Header().Set("X-Bsv-Half", "1")
				_, _ = c.Response().Write([]byte(`{"half":`))
				return errors.New("broke off")
			},
			"late-panic": func(c echo.Context) error {
				_, _ = c.Response().Write([]byte(`{"half":`))
				panic("broke off")
			},
			"nothing":    func(echo.Context) error { return nil },
			"no-content": func(c echo.Context) error { return c.NoContent(204) },
			"reset":      func(c echo.Context) error { return c.NoContent(205) },
			"empty":      func(c echo.Context) error { return c.NoContent(410) },
			"unchanged":  func(c echo.Context) error { return c.NoContent(304) },
			"flush": func(c echo.Context) error {
				c.Response().Flush()
				return nil
			},
			"hijack": func(c echo.Context) error {
				_, _, err := c.Response().Hijack()
				return err
			},
			"unwrap": func(c echo.Context) error {
				if err := http.NewResponseController(c.Response()).Flush(); err == nil {
					t.Error("a way around the draft")
				}
				return nil
			},
			"long":       func(c echo.Context) error { return c.String(200, strings.Repeat("x", 1001)) },
			"long-blob":  func(c echo.Context) error { return echoauth.Blob(c, 200, "text/plain", make([]byte, 1001)) },
			"full":       func(c echo.Context) error { return c.String(200, strings.Repeat("x", 1000)) },
			"in-pieces":  func(c echo.Context) error { return json.NewEncoder(c.Response()).Encode(map[string]int{"a": 1}) },
			"bad-header": func(c echo.Context) error { c.Response().Header().Set("X-Bsv-A", "é"); return c.String(200, "x") },
			"spaces": func(c echo.Context) error {
				c.Response().Header()["X-Bsv-A"] = []string{" a ", "b\t"}
				return c.String(200, "x")
			},
			"fake": func(c echo.Context) error {
				c.Response().Header().Set(brc104.HeaderNonce, "x")
				return c.String(200, "x")
			},
			"early-hints": func(c echo.Context) error { c.Response().Writer.WriteHeader(103); return c.String(200, "x") },
			"see-other":   func(c echo.Context) error { return c.Redirect(303, "/signed/full") },
		} {
			signed.POST("/"+name, h)
		}
	}))
	c := newRaw(t, n, newKey(t))
	for path, want := range map[string]struct {
		status int
		body   string // a part of it
	}{
		"error": {500, "Internal Server Error"}, "http-error": {409, "conflict"}, "panic": {500, "unavailable"},
		"late-error": {500, "Internal Server Error"}, "late-panic": {500, "unavailable"},
		"nothing": {200, "{}"}, "no-content": {200, "{}"}, "reset": {200, "{}"}, "empty": {410, "{}"}, "unchanged": {500, "unavailable"},
		"flush": {500, "unavailable"}, "hijack": {500, "Internal Server Error"}, "unwrap": {500, "unavailable"},
		"long": {500, "unavailable"}, "long-blob": {500, "unavailable"}, "full": {200, "xxxx"}, "in-pieces": {200, `{"a":1}`},
		"bad-header": {500, "unavailable"}, "spaces": {200, "x"}, "fake": {200, "x"}, "early-hints": {200, "x"}, "see-other": {303, "{}"},
		"absent": {404, "Not Found"},
	} {
		a, err := c.do("POST", "/signed/"+path, `{}`)
		if err != nil {
			t.Errorf("%s: %d %q: %v", path, a.status, a.body, err)
			continue
		}
		if a.status != want.status || !strings.Contains(a.body, want.body) || strings.Contains(a.body, "secret") || strings.Contains(a.body, "half") {
			t.Errorf("%s: %d %q, want %d with %q", path, a.status, a.body, want.status, want.body)
		}
		if a.header.Get("X-Bsv-Half") != "" {
			t.Errorf("%s: a header of what broke off is left", path)
		}
		if path == "spaces" && a.header.Get("X-Bsv-A") != "a, b" {
			t.Errorf("joined header is %q", a.header["X-Bsv-A"])
		}
	}
	// Refused before the signature: too much of a body, unsigned.
	a, err := c.do("POST", "/signed/full", strings.Repeat("x", 1001))
	if err == nil || a.status != 413 || a.header.Get(brc104.HeaderSignature) != "" || !strings.Contains(a.body, "limited") {
		t.Errorf("a body of 1001 bytes: %d %q, %v", a.status, a.body, err)
	}
	if a, err := c.do("POST", "/signed/full", strings.Repeat("x", 1000)); err != nil || a.status != 200 {
		t.Errorf("a body of 1000 bytes: %d %q, %v", a.status, a.body, err)
	}
}

func TestM2_Methods(t *testing.T) {
	t.Parallel()
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, public *echo.Group) {
		signed.Match([]string{"HEAD", "OPTIONS", "GET"}, "/x", func(c echo.Context) error { return c.String(200, "body") })
		signed.POST("/post", reflect)
		public.HEAD("/x", func(c echo.Context) error { return c.NoContent(204) })
	}))
	c := newRaw(t, n, newKey(t))
	for _, tc := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/signed/x", 200, "body"},
		{"HEAD", "/signed/x", 200, ""},
		{"OPTIONS", "/signed/x", 200, "body"},
		{"HEAD", "/signed/post", 404, ""},
		{"GET", "/signed/post", 404, "{\"message\":\"Not Found\"}\n"},
	} {
		a, err := c.do(tc.method, tc.path, "")
		if err != nil || a.status != tc.status || a.body != tc.body {
			t.Errorf("%s %s: %d %q, %v", tc.method, tc.path, a.status, a.body, err)
		}
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST"} {
		a := send(t, must(http.NewRequest(method, n.URL+"/signed/x", nil)))
		if a.status != 401 || (a.body == "") != (method == "HEAD") {
			t.Errorf("anonymous %s: %d %q", method, a.status, a.body)
		}
	}
	if a := send(t, must(http.NewRequest("HEAD", n.URL+"/public/x", nil))); a.status != 204 {
		t.Errorf("anonymous HEAD on a public route: %d", a.status)
	}
	// The official client verifies a HEAD as well.
	if a, err := newDevice(t, newKey(t)).do("HEAD", n.URL+"/signed/x", ""); err != nil || a.status != 200 {
		t.Errorf("official HEAD: %d, %v", a.status, err)
	}
}

// The gate refuses at either stage; nothing of the private answer leaves, and the refusal is signed.
func TestA3_M3_Gate(t *testing.T) {
	t.Parallel()
	var refuseAt atomic.Int64
	var asked atomic.Int64
	refuseAt.Store(-1)
	private := func(c echo.Context) error {
		echoauth.SetGate(c, func(_ context.Context, stage echoauth.Stage, d echoauth.Draft) *echoauth.Reply {
			asked.Add(1)
			if d.Status != 200 || string(d.Body) != `"private"` {
				t.Errorf("the gate saw %d %q", d.Status, d.Body)
			}
			if signed := d.Header.Get(brc104.HeaderSignature) != ""; signed && stage == echoauth.BeforeSign {
				t.Error("signed before the first question")
			}
			if int64(stage) != refuseAt.Load() {
				return nil
			}
			return &echoauth.Reply{Status: 410, Header: http.Header{"X-Bsv-Refusal": {"1"}}, Body: []byte(`"expired"`)}
		})
		c.Response().Header().Set("X-Bsv-Private", "private")
		c.Response().Header().Set("Etag", "private")
		return echoauth.Blob(c, 200, "application/json", []byte(`"private"`))
	}
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, public *echo.Group) {
		signed.POST("/x", private)
		public.POST("/x", private)
	}))
	c := newRaw(t, n, newKey(t))
	anonymous := func() (answer, error) {
		return send(t, must(http.NewRequest("POST", n.URL+"/public/x", strings.NewReader("{}")))), nil
	}
	for name, do := range map[string]func() (answer, error){
		"signed":    func() (answer, error) { return c.do("POST", "/signed/x", "{}") },
		"public":    func() (answer, error) { return c.do("POST", "/public/x", "{}") },
		"anonymous": func() (answer, error) { return anonymous() },
	} {
		for _, tc := range []struct{ at, asked int64 }{{-1, 2}, {int64(echoauth.BeforeSign), 1}, {int64(echoauth.BeforeWrite), 2}} {
			refuseAt.Store(tc.at)
			asked.Store(0)
			a, err := do()
			if err != nil {
				t.Fatalf("%s, refused at %d: %v", name, tc.at, err)
			}
			if got := asked.Load(); got != tc.asked {
				t.Errorf("%s, refused at %d: asked %d times, want %d", name, tc.at, got, tc.asked)
			}
			if tc.at < 0 {
				if a.status != 200 || a.body != `"private"` || a.header.Get("X-Bsv-Private") != "private" {
					t.Errorf("%s, let out: %d %q", name, a.status, a.body)
				}
				continue
			}
			if a.status != 410 || a.body != `"expired"` || a.header.Get("X-Bsv-Refusal") != "1" {
				t.Errorf("%s, refused at %d: %d %q", name, tc.at, a.status, a.body)
			}
			for h, v := range a.header {
				if strings.Contains(strings.Join(v, ""), "private") && h != "Cache-Control" {
					t.Errorf("%s, refused at %d: header %s: %q left", name, tc.at, h, v)
				}
			}
		}
	}
}

// What revokes between signing and writing wins against a body that is already signed.
func TestA3_M3_RevokedBetweenSigningAndWriting(t *testing.T) {
	t.Parallel()
	var revoked atomic.Bool
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, _ *echo.Group) {
		signed.POST("/x", func(c echo.Context) error {
			peer, _ := echoauth.PeerFrom(c.Request().Context())
			echoauth.SetGate(c, func(_ context.Context, stage echoauth.Stage, d echoauth.Draft) *echoauth.Reply {
				if stage == echoauth.BeforeWrite && d.Header.Get(brc104.HeaderSignature) == "" {
					t.Error("the second question came before the signature")
				}
				if revoked.Load() {
					return &echoauth.Reply{Status: 401, Body: []byte(`"revoked"`)}
				}
				revoked.Store(true) // right after the first question
				return nil
			})
			return c.JSON(200, peer.Identity[:4])
		})
	}))
	a, err := newRaw(t, n, newKey(t)).do("POST", "/signed/x", "{}")
	if err != nil || a.status != 401 || a.body != `"revoked"` {
		t.Errorf("%d %q, %v", a.status, a.body, err)
	}
}

// A header from in front of the middleware that cannot be signed costs the answer, not the signature.
func TestM1_HeadersFromInFront(t *testing.T) {
	t.Parallel()
	s := newServer(t, brc104.Config{})
	m := must(echoauth.New(echoauth.Options{Server: s}))
	e := echo.New()
	var bad atomic.Bool
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Header().Set("X-Bsv-Front", map[bool]string{false: "front", true: "é"}[bad.Load()])
			c.Response().Header().Set("X-Request-Id", "1")
			return next(c)
		}
	}, m.Signed())
	e.POST("/x", func(c echo.Context) error { return c.JSON(200, 1) })
	n := start(t, e)
	c := newRaw(t, n, newKey(t))
	if a, err := c.do("POST", "/x", "{}"); err != nil || a.header.Get("X-Bsv-Front") != "front" || a.header.Get("X-Request-Id") != "1" {
		t.Errorf("good header: %v, %v", a.header, err)
	}
	bad.Store(true)
	if a, err := c.do("POST", "/x", "{}"); err != nil || a.status != 500 {
		t.Errorf("bad header: %d %q, %v", a.status, a.body, err)
	}
}

func TestM4_M5_Options(t *testing.T) {
	t.Parallel()
	s := newServer(t, brc104.Config{})
	for name, o := range map[string]echoauth.Options{
		"no server": {}, "negative": {Server: s, MaxRequest: -1}, "empty fault": {Server: s, Fault: func() []byte { return nil }},
	} {
		if _, err := echoauth.New(o); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, ok := echoauth.PeerFrom(t.Context()); ok {
		t.Error("a peer out of nowhere")
	}
	// An anonymous body is bounded too.
	n := start(t, newEcho(t, echoauth.Options{Server: s, MaxRequest: 10}, func(_, public *echo.Group) { public.POST("/x", reflect) }))
	if a := send(t, must(http.NewRequest("POST", n.URL+"/public/x", bytes.NewReader(make([]byte, 11))))); a.status != 500 {
		t.Errorf("an anonymous body of 11 bytes: %d %q", a.status, a.body)
	}
	// Of a length that is not announced.
	r := must(http.NewRequest("POST", n.URL+"/public/x", struct{ *bytes.Reader }{bytes.NewReader(make([]byte, 11))}))
	r.Header.Set(brc104.HeaderNonce, "x")
	if a := send(t, r); a.status != 401 {
		t.Errorf("half authenticated: %d %q", a.status, a.body)
	}
}

func TestM3_SetGateBehindNothing(t *testing.T) {
	t.Parallel()
	e := echo.New()
	defer func() {
		if recover() == nil {
			t.Error("a gate that nobody asks was taken")
		}
	}()
	echoauth.SetGate(e.NewContext(must(http.NewRequest("GET", "/", nil)), nil), nil)
}
