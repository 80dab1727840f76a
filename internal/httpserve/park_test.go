package httpserve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/parking"
	"github.com/overlayd/overlayd/internal/testkit"
)

// waiting is a request that is parked: what its test lets it do next.
type waiting struct {
	turn int           // its query
	gone chan struct{} // closed when it is told that its peer has gone, or the server gives up

	mu   sync.Mutex
	next []func(w http.ResponseWriter) bool // what it does when it is woken; guarded by mu
	wake func()                             // guarded by mu
	told chan *waiting                      // gets it once it sleeps; guarded by mu, nil after that
}

// then wakes it to do something, after which it is done.
func (w *waiting) then(do func(w http.ResponseWriter)) {
	w.may(func(to http.ResponseWriter) bool { do(to); return true })
}

// may wakes it to do something, after which it is done or sleeps on.
func (w *waiting) may(do func(w http.ResponseWriter) bool) {
	w.mu.Lock()
	w.next = append(w.next, do)
	wake := w.wake
	w.mu.Unlock()
	wake()
}

// lost reports whether it was told that its peer has gone, or the server gives up.
func (w *waiting) lost() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

func (w *waiting) Sleep(wake func()) {
	w.mu.Lock()
	w.wake = wake
	told, more := w.told, len(w.next) > 0
	w.told = nil
	w.mu.Unlock()
	if told != nil {
		told <- w
	}
	if more {
		wake()
	}
}

func (w *waiting) Wake(ctx context.Context, to http.ResponseWriter) bool {
	if ctx.Err() != nil {
		close(w.gone)
		return true
	}
	w.mu.Lock()
	var do func(w http.ResponseWriter) bool
	if len(w.next) > 0 {
		do, w.next = w.next[0], w.next[1:]
	}
	w.mu.Unlock()
	return do != nil && do(to)
}

// garage parks every request for /wait, and answers others at once.
type garage struct {
	parked chan *waiting
	log    *testkit.Log
	addr   string
	stop   func() error
}

func newGarage(t *testing.T, drain time.Duration, set ...func(*Server)) *garage {
	t.Helper()
	g := &garage{parked: make(chan *waiting, 16), log: &testkit.Log{}}
	s, err := Listen(t.Context(), Config{Name: "test", Addr: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(g.log, nil)), Drain: drain})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range set {
		set(s)
	}
	g.addr = s.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			wait := &waiting{gone: make(chan struct{}), told: g.parked}
			wait.turn, _ = strconv.Atoi(r.URL.RawQuery)
			if r.URL.Path == "/wait" && parking.From(r.Context()).Park(w, r, wait) {
				return
			}
			say(r.URL.Path + " at once")(w)
		}))
	}()
	g.stop = func() error { cancel(); return <-done }
	return g
}

// hearing runs a test with the ears of this platform, and with a goroutine for each connection.
func hearing(t *testing.T, test func(t *testing.T, hear func(*Server))) {
	t.Run("together", func(t *testing.T) {
		t.Parallel()
		test(t, func(*Server) {})
	})
	t.Run("one by one", func(t *testing.T) {
		t.Parallel()
		test(t, func(s *Server) { s.listen = func() (*ears, error) { return nil, errors.ErrUnsupported } })
	})
}

// say answers with a text.
func say(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		w.Header().Set("X-Test", "yes")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
	}
}

// client is a connection.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (g *garage) dial(t *testing.T) *client {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) wants(body string) *http.Response {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if err != nil || string(got) != body || r.StatusCode != http.StatusOK || r.Header.Get("X-Test") != "yes" || r.Header.Get("Date") == "" {
		c.t.Fatalf("%s %v with %q, %v; want %q", r.Status, r.Header, got, err, body)
	}
	return r
}

// closed waits until the server has closed the connection, without another word.
func (c *client) closed() {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	if rest, err := io.ReadAll(c.in); len(rest) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		c.t.Errorf("%q, %v instead of an end", rest, err)
	}
}

const (
	waitRequest = "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
	nowRequest  = "GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
)

func TestV5_AParkedConnectionGoesOn(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear)
		c := g.dial(t)
		for i, body := range []string{"one", "", strings.Repeat("x", 4<<20), "four"} {
			c.send(waitRequest)
			(<-g.parked).then(say(body))
			c.wants(body)
			if i%2 == 1 {
				c.send(nowRequest)
				c.wants("/now at once")
			}
		}
		// The next requests come before the answer, whole or in part.
		c.send(waitRequest + waitRequest + nowRequest[:10])
		for range 2 {
			(<-g.parked).then(say("two"))
			c.wants("two")
		}
		c.send(nowRequest[10:] + waitRequest)
		c.wants("/now at once")
		w := <-g.parked
		c.send(nowRequest + waitRequest)
		w.then(say("three"))
		c.wants("three")
		c.wants("/now at once")
		(<-g.parked).then(say("last"))
		c.wants("last")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestV5_WhoCannotBeParkedIsNot(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear)
		for _, request := range []string{
			"GET /wait HTTP/1.0\r\n\r\n", "GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		} {
			c := g.dial(t)
			c.send(request)
			c.wants("/wait at once")
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a peer must not take for an answer ends its connection, and whoever has gone is noticed.
func TestV5_NoHalfAnswerAndNobodyWaitsForTheGone(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear)
		for _, do := range []func(http.ResponseWriter){
			func(http.ResponseWriter) {},
			func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			func(http.ResponseWriter) { panic("on the way") },
			func(w http.ResponseWriter) {
				if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrContentLength) {
					t.Errorf("written without a length: %v", err)
				}
			},
		} {
			c := g.dial(t)
			c.send(waitRequest)
			(<-g.parked).then(do)
			c.closed()
		}
		if n := g.log.Count("panicked while it waited"); n != 1 {
			t.Errorf("a panic is told %d times", n)
		}
		half := g.dial(t)
		half.send(waitRequest)
		(<-g.parked).then(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		})
		r, err := http.ReadResponse(half.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("half an answer is whole")
		}
		gone := g.dial(t)
		gone.send(waitRequest)
		w := <-g.parked
		_ = gone.conn.Close()
		<-w.gone
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestV5_ADrainAnswersThemAndKeepsNone(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear)
		var waits []*waiting
		var clients []*client
		for range 20 {
			c := g.dial(t)
			c.send(waitRequest)
			clients, waits = append(clients, c), append(waits, <-g.parked)
		}
		idle := g.dial(t)
		idle.send(waitRequest)
		(<-g.parked).then(say("before"))
		idle.wants("before")
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		idle.closed()
		for i, w := range waits {
			if w.lost() {
				t.Error("a request being drained lost its context")
			}
			w.then(say(fmt.Sprint(i)))
		}
		for i, c := range clients {
			if r := c.wants(fmt.Sprint(i)); !r.Close {
				t.Error("the answer does not say that the connection ends")
			}
			c.closed()
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

func TestV2_TheBoundCutsTheParked(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, 50*time.Millisecond, hear)
		c := g.dial(t)
		c.send(waitRequest)
		w := <-g.parked
		if err := g.stop(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Serve returned %v", err)
		}
		if !w.lost() {
			t.Error("Serve returned while somebody still waited")
		}
		c.closed()
	})
}

func TestV5_AParkedConnectionWithoutARequestIsClosed(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear, func(s *Server) { s.http.IdleTimeout = 50 * time.Millisecond })
		waits, idle := g.dial(t), g.dial(t)
		waits.send(waitRequest)
		w := <-g.parked
		idle.send(waitRequest)
		(<-g.parked).then(say("an answer"))
		idle.wants("an answer")
		idle.closed()
		w.then(say("another")) // who waits for an answer may be as quiet as he likes
		waits.wants("another")
		waits.closed()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Many peers send, go and wait at once, over and over on the same descriptors: each hears of its own connection.
func TestV5_ManyParkedAtOnce(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear)
		go func() {
			for w := range g.parked {
				go func() {
					if w.turn%3 == 0 {
						<-w.gone // its peer goes
						return
					}
					w.then(say(fmt.Sprint(w.turn)))
				}()
			}
		}()
		var all sync.WaitGroup
		for k := range 50 {
			all.Go(func() {
				var c *client
				for i := range 40 {
					turn := 40*k + i
					if c == nil {
						c = g.dial(t)
					}
					c.send(strings.Replace(waitRequest, "/wait", "/wait?"+strconv.Itoa(turn), 1))
					if turn%3 == 0 {
						_ = c.conn.Close()
						c = nil
						continue
					}
					c.wants(fmt.Sprint(turn))
				}
			})
		}
		all.Wait()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		close(g.parked)
	})
}

// Who is woken again and again, also while it is awake, misses none of it, and sleeps on until it is done.
func TestV5_NoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	g := newGarage(t, time.Minute)
	c := g.dial(t)
	c.send(waitRequest)
	w := <-g.parked
	var all sync.WaitGroup
	var done atomic.Int32
	for range 8 {
		all.Go(func() {
			for range 500 {
				w.may(func(http.ResponseWriter) bool { done.Add(1); return false })
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, "each was done", func() bool { return done.Load() == 4000 })
	w.then(say("at last"))
	c.wants("at last")
	w.wake() // it is over
	c.send(nowRequest)
	c.wants("/now at once")
	if err := g.stop(); err != nil {
		t.Error(err)
	}
}

// A connection on which nothing was asked yet takes no place in net/http. It may be quiet for as long as a header may take, and is closed
// when the server drains.
func TestV5_ANewConnectionIsQuietOutside(t *testing.T) {
	t.Parallel()
	hearing(t, func(t *testing.T, hear func(*Server)) {
		g := newGarage(t, time.Minute, hear, func(s *Server) { s.http.ReadHeaderTimeout = 50 * time.Millisecond })
		c := g.dial(t)
		c.closed()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		if strings.HasSuffix(t.Name(), "/one_by_one") || runtime.GOOS != "linux" {
			return // net/http gives it five seconds
		}
		g = newGarage(t, time.Minute, hear)
		quiet, held := g.dial(t), g.dial(t)
		held.send(waitRequest)
		w := <-g.parked
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		quiet.closed()
		w.then(say("whole"))
		held.wants("whole")
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}
