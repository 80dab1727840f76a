package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/overlayd/overlayd/brc104"
)

// discard is a response writer that keeps nothing.
type discard struct {
	header http.Header
	status int
	bytes  int
}

func (d *discard) Header() http.Header  { return d.header }
func (d *discard) WriteHeader(code int) { d.status = code }
func (d *discard) Write(b []byte) (int, error) {
	d.bytes += len(b)
	return len(b), nil
}

// manyGuard asks a real guard, each time about another request, so that one request can be sent many times.
type manyGuard struct {
	n     uint64
	guard *brc104.MemoryGuard
}

func (g *manyGuard) Use(ctx context.Context, u brc104.Use) (brc104.Verdict, error) {
	g.n++
	binary.BigEndian.PutUint64(u.Key[:], g.n)
	return g.guard.Use(ctx, u)
}

// subject is a handler with a session, in this process.
type subject struct {
	h       http.Handler
	session *brc104.Session
}

func newSubject(kind string, big []byte) (*subject, error) {
	h, err := handler(kind, big, &manyGuard{guard: brc104.NewMemoryGuard(0, time.Time{})})
	if err != nil {
		return nil, err
	}
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	c, err := brc104.NewClient(key)
	if err != nil {
		return nil, err
	}
	hello := c.Hello()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, brc104.HandshakePath, bytes.NewReader(hello.Body)))
	session, err := c.Begin(hello, w.Body.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return &subject{h, session}, nil
}

// run serves a request n times and returns the processor time of one. The official server does not mind the same request again.
func (s *subject) run(path string, n int) (time.Duration, error) {
	r, _, err := aim(s.session, "http://h")
	if err != nil {
		return 0, err
	}
	if path != "/small" {
		r = httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Content-Type", "application/json")
		if _, err := s.session.Sign(r, []byte(question)); err != nil {
			return 0, err
		}
	}
	r.RequestURI = r.URL.Path
	before := cpuTime()
	for range n {
		again := *r
		again.Header = r.Header.Clone()
		again.Body = io.NopCloser(strings.NewReader(question))
		w := &discard{header: http.Header{}}
		s.h.ServeHTTP(w, &again)
		if w.status != http.StatusOK || w.bytes == 0 || w.header.Get(brc104.HeaderSignature) == "" {
			return 0, fmt.Errorf("answered %d with %d bytes, signature %q", w.status, w.bytes, w.header.Get(brc104.HeaderSignature))
		}
	}
	return (cpuTime() - before) / time.Duration(n), nil
}

// floor is the processor time of one plain verification and one plain signature.
func floor(n int) (time.Duration, error) {
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return 0, err
	}
	public, digest := key.PubKey(), [32]byte{1}
	before := cpuTime()
	for range n {
		if !ecdsa.Sign(key, digest[:]).Verify(digest[:], public) {
			return 0, fmt.Errorf("not verified")
		}
	}
	return (cpuTime() - before) / time.Duration(n), nil
}

// allocated is how much memory a request for a large answer takes, apart from that answer.
func allocated(kind string, size int) (uint64, error) {
	s, err := newSubject(kind, bytes.Repeat([]byte("x"), size))
	if err != nil {
		return 0, err
	}
	const n = 5
	if _, err := s.run("/big", 1); err != nil {
		return 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := s.run("/big", n); err != nil {
		return 0, err
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / n, nil
}
