package lookup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// TestO10_RoomIsCounted: by node and by client, whatever way it is given back.
func TestO10_RoomIsCounted(t *testing.T) {
	t.Parallel()
	b := newBodies(1000, 600)
	mine, more, other := &room{bodies: b, who: nth(1)}, &room{bodies: b, who: nth(1)}, &room{bodies: b, who: nth(2)}
	take := func(r *room, bytes int, want quota) {
		t.Helper()
		if refused := r.take(bytes); want == "" && refused != nil || want != "" && (refused == nil || refused.quota != want) {
			t.Fatalf("%+v, want a refusal by %q", refused, want)
		} else if refused != nil {
			refusedBy(t, refused, want)
		}
	}
	take(mine, 600, "")
	take(more, 1, quotaBodyBytesPerClient)
	take(other, 401, quotaBodyBytes)
	take(other, 400, "")
	take(mine, 599, "") // instead of what was held
	if b.count() != 999 {
		t.Fatal(b.count())
	}
	for _, r := range []*room{mine, more, other, other} {
		r.leave(true)
	}
	if b.count() != 0 || len(b.of) != 0 {
		t.Fatalf("%d held, of %d clients", b.count(), len(b.of))
	}
}

// TestO10_BuffersAreNotShared: bodies that are held at once have memory of their own, and each has what it asked for.
func TestO10_BuffersAreNotShared(t *testing.T) {
	t.Parallel()
	b := newBodies(1<<30, 1<<30)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for i := range 60 {
				h := &room{bodies: b, who: nth(g)}
				size := 1 + r.IntN(2*smallestBuffer<<r.IntN(len(buffers)))
				body, refused := h.lay(size)
				if refused != nil || len(body) != 0 || cap(body) < size || h.held < cap(body) {
					t.Errorf("%d of %d bytes, %d held, %v", len(body), cap(body), h.held, refused)
				}
				body = append(body, bytes.Repeat([]byte{byte(g)}, size)...)
				runtime.Gosched()
				if bytes.Count(body, []byte{byte(g)}) != size {
					t.Error("somebody else wrote into a body")
				}
				h.leave(i%3 > 0)
			}
		})
	}
	all.Wait()
	if b.count() != 0 {
		t.Fatal(b.count())
	}
}

// narrow is a listener whose connections hold back as little as the system lets them.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// trickle is a peer that asks and takes a byte a second of the answer.
func trickle(t *testing.T, address, digest string, body []byte) (first []byte, conn net.Conn) {
	t.Helper()
	dialer := net.Dialer{}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: overlay\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n%s: %s\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		readPath, wire.HeaderCapability, digest, wire.HeaderProfile, wire.Profile, len(body), body)
	first = make([]byte, len("HTTP/1.1 200"))
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(conn, first); err != nil {
		t.Fatal(err)
	}
	return first, conn
}

// TestO10_SlowReadersAreBounded: a hundred peers ask for large bodies and take next to nothing. What they hold is at most what the
// configuration lets them, who comes too late is told to come again, those who read are served meanwhile and groups are committed; a
// peer that is too slow is cut off and its room free again.
func TestO10_SlowReadersAreBounded(t *testing.T) {
	t.Parallel()
	const bound, readers, each = 16 << 20, 100, 1 << 20
	n := start(t, setup{quotas: Quotas{BodyBytes: bound, BodyBytesPerClient: bound, BodyBytesPerSecond: 1_000_000_000}})
	server := httptest.NewUnstartedServer(n.provider.Echo())
	server.Listener = narrow{server.Listener}
	server.Start()
	defer server.Close()
	n.digest = n.capability()
	for i := range 12 { // about 100 kB each
		n.append(mint(fmt.Sprint("wide", i), 75_000).put(genre(0), ""))
	}
	b := n.open(ask{limits: few(1)})
	body := readBody(b.Session, b.Cursor, wire.Limits{MaxBytes: each, MaxObservations: 1024})
	sound := n.request(readPath, body)
	if size := len(sound.body); size < each*8/10 || size > each {
		t.Fatalf("a body of %d bytes", size)
	}
	n.provider.quotas.BodyBytesPerSecond = 1 // for ever, as far as this test is concerned

	var least, most runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&least)
	served, refused := 0, 0
	var conns []net.Conn
	for range readers {
		first, conn := trickle(t, server.Listener.Addr().String(), n.digest, body)
		conns = append(conns, conn)
		switch status := string(first[len(first)-3:]); status {
		case "200":
			served++
		case "503":
			refused++
		default:
			t.Fatalf("status %s", status)
		}
		if held := n.provider.quotas.bodies.count(); held > bound {
			t.Fatalf("%d bytes are held, at most %d may be", held, bound)
		}
	}
	held := n.provider.quotas.bodies.count()
	if served < bound/each || served > bound/each*2 || refused != readers-served || held < bound/2 {
		t.Fatalf("%d served, %d refused, %d bytes held", served, refused, held)
	}
	runtime.GC()
	runtime.ReadMemStats(&most)
	grown := int64(most.HeapAlloc) - int64(least.HeapAlloc)
	t.Logf("%d slow readers of %d kB each: %d served, %d told to come again; %d kB held, heap %+d kB", readers, len(sound.body)>>10, served, refused, held>>10, grown>>10)
	if grown > 2*bound {
		t.Errorf("the heap grew by %d bytes under a bound of %d", grown, bound)
	}
	// The refusal is whole: what it says, and when to come again.
	toldBy(t, n.request(readPath, body), quotaBodyBytesPerClient, false)
	// Groups are committed all the while, and small answers still fit beside what is held.
	live := n.live(`{"match":{"genre":"rock"}}`)
	for i := range 20 {
		n.append(mint(fmt.Sprint("meanwhile", i), 0).put(genre(1), ""))
		if live = n.read(live, wait(25_000)); len(live.Groups) != 1 {
			t.Fatalf("%d groups", len(live.Groups))
		}
	}
	// Who departs frees his room at once.
	for _, c := range conns {
		_ = c.Close()
	}
	testkit.Eventually(t, "the room is free", func() bool { return n.provider.quotas.bodies.count() == 0 })
	n.request(readPath, body).batch(t)

	// A peer that stays and takes nothing is cut off when its time is over.
	n.provider.quotas.BodyBytesPerSecond = 1 << 30
	n.provider.grace = 50 * time.Millisecond
	_, conn := trickle(t, server.Listener.Addr().String(), n.digest, body)
	defer conn.Close() //nolint:errcheck // it is closed already
	testkit.Eventually(t, "it is cut off", func() bool { return n.provider.quotas.bodies.count() == 0 })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if rest, err := io.ReadAll(conn); err == nil && len(rest) >= len(sound.body) {
		t.Fatalf("it was sent all %d bytes", len(rest))
	}
}

// TestO10_AFastReaderKeepsItsConnection: the deadline of one answer is none of the next, which may be a poll that sleeps for longer.
func TestO10_AFastReaderKeepsItsConnection(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.provider.grace = 300 * time.Millisecond
	n.digest = n.capability()
	b := n.live(`{}`)
	var opened atomic.Int32
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}}
	defer client.CloseIdleConnections()
	for i := range 3 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.base+readPath, bytes.NewReader(readBody(b.Session, b.Cursor, wait(700))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Cache-Control", "no-store")
		req.Header.Set(wire.HeaderCapability, n.digest)
		req.Header.Set(wire.HeaderProfile, wire.Profile)
		res, err := client.Do(req)
		if err != nil {
			t.Fatalf("poll %d: %v", i, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("poll %d: %d %s, %v", i, res.StatusCode, body, err)
		}
	}
	if opened.Load() != 1 {
		t.Fatalf("%d connections", opened.Load())
	}
}
