package echoauth_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

// countingGuard asks a real guard, each time about another request, so that one request can be sent many times.
type countingGuard struct {
	n     atomic.Uint64
	guard *brc104.MemoryGuard
}

func (g *countingGuard) Use(ctx context.Context, u brc104.Use) (brc104.Verdict, error) {
	binary.BigEndian.PutUint64(u.Key[:], g.n.Add(1))
	return g.guard.Use(ctx, u)
}

// counter is a response writer that keeps nothing but the count.
type counter struct {
	header http.Header
	status int
	bytes  int
}

func (c *counter) Header() http.Header    { return c.header }
func (c *counter) WriteHeader(status int) { c.status = status }
func (c *counter) Write(b []byte) (int, error) {
	c.bytes += len(b)
	return len(b), nil
}

// handling makes something that serves one signed request again and again, and returns what was written.
func handling(t testing.TB, answer []byte) (serve func() *counter) {
	t.Helper()
	s := newServer(t, brc104.Config{Replay: &countingGuard{guard: brc104.NewMemoryGuard(0, time.Time{})}})
	e := newEcho(t, echoauth.Options{Server: s}, func(signed, _ *echo.Group) {
		signed.POST("/x", func(c echo.Context) error { return echoauth.Blob(c, 200, echo.MIMEApplicationJSON, answer) })
	})
	c := must(brc104.NewClient(newKey(t)))
	hello := c.Hello()
	session := must(c.Begin(hello, must(s.Greet(t.Context(), hello.Body)).Body))
	r := must(http.NewRequest("POST", "http://h/signed/x", nil))
	r.Header.Set("Content-Type", "application/json")
	must(session.Sign(r, []byte(`{"a":1}`)))
	return func() *counter {
		again := r.Clone(t.Context())
		again.Body = io.NopCloser(strings.NewReader(`{"a":1}`))
		w := &counter{header: http.Header{}}
		e.ServeHTTP(w, again)
		if w.status != 200 || w.bytes != len(answer) || w.header.Get(brc104.HeaderSignature) == "" {
			t.Fatalf("answered %d with %d bytes", w.status, w.bytes)
		}
		return w
	}
}

func TestM6_BlobIsNotCopied(t *testing.T) {
	serve := handling(t, bytes.Repeat([]byte("x"), 4<<20))
	serve()
	serve()
	const n = 4
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		serve()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 64<<10 {
		t.Errorf("%d bytes allocated beside a body of 4 MiB", each)
	} else {
		t.Logf("%d bytes allocated beside a body of 4 MiB", each)
	}
}

func BenchmarkHandler(b *testing.B) {
	for name, size := range map[string]int{"300B": 300, "64KiB": 64 << 10, "4MiB": 4 << 20} {
		b.Run(name, func(b *testing.B) {
			serve := handling(b, bytes.Repeat([]byte("x"), size))
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
		})
	}
}
