package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// asking is one request with everything right.
func (n *node) asking(t *testing.T, ctx context.Context, method, base, path string, body []byte) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Cache-Control", "no-store")
	req.Header.Set(wire.HeaderCapability, n.capability())
	req.Header.Set(wire.HeaderProfile, wire.Profile)
	return req
}

// settled asserts that nothing is left of any request.
func (n *node) settled(t *testing.T, after string) {
	t.Helper()
	q := n.provider.quotas
	testkit.Eventually(t, "nothing is held after "+after, func() bool {
		taken, waiting := q.slots.count()
		return taken+waiting+q.bodies.count()+q.waiters.count() == 0
	})
	q.bodies.mu.Lock()
	defer q.bodies.mu.Unlock()
	if len(q.bodies.of) != 0 {
		t.Errorf("after %s %d clients are remembered", after, len(q.bodies.of))
	}
}

// wideRows lists rows whose evidence makes a body of about 1 MB, and returns a Read of them that asks for it again and again.
func (n *node) wideRows() (read []byte) {
	n.t.Helper()
	for i := range 12 {
		n.append(mint(fmt.Sprint(n.t.Name(), i), 75_000).put(genre(0), ""))
	}
	b := n.open(ask{limits: few(1)})
	return readBody(b.Session, b.Cursor, wire.Limits{MaxBytes: 1 << 20, MaxObservations: 1024})
}

// TestO10_RoomOfAStreamIsGivenBack: over HTTP/2 a peer that takes no more of one answer has the others on the same connection all the
// same. Its room is free when it resets the stream, and when it has been too slow, and the connection lives on.
func TestO10_RoomOfAStreamIsGivenBack(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.digest = n.capability()
	read := n.wideRows()
	server := httptest.NewUnstartedServer(n.provider.Echo())
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var opened atomic.Int32
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 4 << 20}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	get := func(ctx context.Context) *http.Response {
		t.Helper()
		res, err := client.Do(n.asking(t, ctx, http.MethodPost, server.URL, readPath, read))
		if err != nil || res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
		return res
	}
	whole := func() {
		t.Helper()
		res := get(t.Context())
		defer res.Body.Close() //nolint:errcheck // read to its end
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		reply{status: res.StatusCode, body: body}.batch(t)
	}
	whole()
	n.settled(t, "a whole answer")

	ctx, reset := context.WithCancel(t.Context())
	defer reset()
	slow := get(ctx)
	if held := n.provider.quotas.bodies.count(); held < 900_000 {
		t.Fatalf("%d bytes are held of a body that nobody takes", held)
	}
	whole()
	if held := n.provider.quotas.bodies.count(); held < 900_000 {
		t.Fatalf("%d bytes are held of a body that nobody takes", held)
	}
	reset()
	n.settled(t, "a reset")
	_ = slow.Body.Close()
	whole()

	n.provider.quotas.BodyBytesPerSecond = 1 << 30
	n.provider.grace = 50 * time.Millisecond
	slow = get(t.Context())
	n.settled(t, "a slow peer")
	n.provider.grace = time.Minute
	if got, err := io.ReadAll(slow.Body); err == nil {
		t.Errorf("a peer that was too slow has %d bytes and no error", len(got))
	}
	_ = slow.Body.Close()
	whole()
	if opened.Load() != 1 {
		t.Errorf("%d connections", opened.Load())
	}
}

// brokenWriter is a connection that is lost after some bytes. It has no deadlines and no Flush.
type brokenWriter struct {
	header http.Header
	status int
	room   int // bytes that it takes; negative: all
	got    []byte
}

func (w *brokenWriter) Header() http.Header    { return w.header }
func (w *brokenWriter) WriteHeader(status int) { w.status = status }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.room >= 0 && len(w.got)+len(p) > w.room {
		return 0, errors.New("the connection is lost")
	}
	w.got = append(w.got, p...)
	return len(p), nil
}

// TestO10_RoomIsGivenBackOnEveryPath: a panic between the building of a body and its sending, a lost connection, a HEAD, a refusal
// in the body's place, a writer that cannot be flushed.
func TestO10_RoomIsGivenBackOnEveryPath(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.digest = n.capability()
	read := n.wideRows()
	handler := n.provider.Echo()
	serve := func(method, path string, body []byte, w *brokenWriter) (panicked any) {
		defer func() { panicked = recover() }()
		w.header = make(http.Header)
		handler.ServeHTTP(w, n.asking(t, t.Context(), method, "http://overlay", path, body))
		return nil
	}
	held := 0
	stop := n.during(beforeGate, func() {
		held = n.provider.quotas.bodies.count()
		panic("in the middle")
	})
	if serve(http.MethodPost, readPath, read, &brokenWriter{}) == nil || held < 900_000 {
		t.Fatalf("no panic, with %d bytes held", held)
	}
	stop()
	n.settled(t, "a panic")

	for _, room := range []int{0, 100} {
		if p := serve(http.MethodPost, readPath, read, &brokenWriter{room: room}); p != nil {
			t.Fatalf("panic: %v", p)
		}
		n.settled(t, "a lost connection")
	}

	w := &brokenWriter{room: -1}
	if p := serve(http.MethodPost, readPath, read, w); p != nil {
		t.Fatalf("a writer without Flush: %v", p)
	}
	reply{status: w.status, body: w.got}.batch(t)
	n.settled(t, "a writer without Flush")

	for _, path := range []string{readPath, openPath, "/overlay/v1/capabilities"} {
		w = &brokenWriter{room: -1}
		if p := serve(http.MethodHead, path, nil, w); p != nil || len(w.got) != 0 || w.status != http.StatusBadRequest && w.status != http.StatusMethodNotAllowed {
			t.Fatalf("HEAD %s: %d %s, %v", path, w.status, w.got, p)
		}
		n.settled(t, "a HEAD")
	}

	// The gate refuses what is built.
	var once sync.Once
	stop = n.during(beforeGate, func() { once.Do(n.removeAll) })
	w = &brokenWriter{room: -1}
	serve(http.MethodPost, readPath, read, w)
	stop()
	reply{status: w.status, body: w.got}.refused(t, wire.Unauthorized)
	n.settled(t, "a refusal at the gate")
}

// TestO10_ABufferIsNotUsedAgainWhileItIsSent: bodies of many sizes go to peers of every speed, and some are reset. None holds bytes of
// another, over either protocol.
func TestO10_ABufferIsNotUsedAgainWhileItIsSent(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.digest = n.capability()
	const rows = 6
	reads := make([][]byte, rows)
	want := make([]string, rows)
	for i := range reads {
		c := mint(fmt.Sprint("of its own", i), 20_000+i*7_000)
		n.append(c.put(fmt.Sprintf(`{"genre":["g%d"]}`, i), ""), mint(fmt.Sprint("second", i), 0).put(fmt.Sprintf(`{"genre":["g%d"]}`, i), ""))
		b := n.open(ask{query: fmt.Sprintf(`{"match":{"genre":"g%d"}}`, i), limits: few(1)})
		reads[i] = readBody(b.Session, b.Cursor, wide)
		want[i] = fmt.Sprint(outputs(n.request(readPath, reads[i]).batch(t)))
	}
	server := httptest.NewUnstartedServer(n.provider.Echo())
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			k := i % rows
			for round := range 8 {
				ctx, cancel := context.WithCancel(t.Context())
				res, err := client.Do(n.asking(t, ctx, http.MethodPost, server.URL, readPath, reads[k]))
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				if (i+round)%3 == 0 {
					_, _ = io.CopyN(io.Discard, res.Body, 100)
					cancel() // resets the stream
				} else {
					body, err := io.ReadAll(res.Body)
					b, perr := wire.ParseBatch(body)
					if err != nil || perr != nil || fmt.Sprint(outputs(b)) != want[k] || !bytes.Equal(b.AppendCanonical(nil), body) {
						t.Errorf("%v, %v: not the body of %d", err, perr, k)
					}
				}
				_ = res.Body.Close()
				cancel()
			}
		})
	}
	all.Wait()
	n.settled(t, "all of them")
}

// TestO10_EveryBodyNeedsRoom: when a client's room is taken, whatever would lay out or hold a body for it is told to come again, with
// nothing left behind; a Close and refusals are answered, and other clients too.
func TestO10_EveryBodyNeedsRoom(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{BodyBytes: 3 * leastBodyBytes, BodyBytesPerClient: leastBodyBytes}})
	n.digest = n.capability()
	n.stock(3)
	saved, fresh := ask{id: newID()}, ask{id: newID()}
	page := n.openAs(whence{alice, testService}, ask{id: saved.id, limits: few(1)}).batch(t)
	again := ask{id: saved.id, limits: few(1)}
	var live *wire.Batch
	for live = n.openAs(whence{alice, testService}, ask{}).batch(t); !live.SnapshotComplete; {
		live = n.request(readPath, readBody(live.Session, live.Cursor, wide), from(alice)).batch(t)
	}
	// The room is that of one of alice's requests.
	bodies := n.provider.quotas.bodies
	who := make(chan client, 1)
	stop := n.during(beforeGate, func() {
		bodies.mu.Lock()
		defer bodies.mu.Unlock()
		for c := range bodies.of {
			select {
			case who <- c:
			default:
			}
		}
	})
	n.settled(t, "what was before")
	n.request(readPath, readBody(live.Session, live.Cursor, wide), from(alice)).batch(t)
	stop()
	n.settled(t, "it")
	taken := &room{bodies: bodies, who: within(t, "a client with a body", who)}
	if r := taken.take(leastBodyBytes - 16); r != nil {
		t.Fatal(r)
	}
	sessions := n.count("lookup_session")
	for name, r := range map[string]reply{
		"open":    n.openAs(whence{alice, testService}, fresh),
		"again":   n.openAs(whence{alice, testService}, again),
		"page":    n.request(readPath, readBody(page.Session, page.Cursor, few(1)), from(alice)),
		"quiet":   n.request(readPath, readBody(live.Session, live.Cursor, wide), from(alice)),
		"waiting": n.request(readPath, readBody(live.Session, live.Cursor, wait(1)), from(alice)),
	} {
		if e := toldBy(t, r, quotaBodyBytesPerClient, false); *e.RetryAfterMs != 5000 {
			t.Errorf("%s: retryAfterMs %d", name, *e.RetryAfterMs)
		}
	}
	if got := n.count("lookup_session"); got != sessions {
		t.Errorf("%d sessions were stored", got-sessions)
	}
	n.openAs(whence{bob, testService}, ask{}).batch(t)
	n.request(closePath, closeBody(live.Session), from(alice))
	taken.leave(true)
	n.openAs(whence{alice, testService}, fresh).batch(t)
	n.openAs(whence{alice, testService}, again).batch(t)
	n.settled(t, "all of them")
}
