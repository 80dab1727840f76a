package httpserve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/parking"
)

// lot is the connections that wait outside net/http (V5), parked ones and such as have not asked anything yet.
type lot struct {
	mu sync.Mutex
	// guarded by mu
	all   map[*parked]struct{}
	ended bool // nobody comes in any more, and who is answered does not stay
}

// add takes a connection in, unless the server is being stopped.
func (l *lot) add(p *parked) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if l.all == nil {
		l.all = make(map[*parked]struct{})
	}
	l.all[p] = struct{}{}
	return true
}

func (l *lot) remove(p *parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, p)
}

func (l *lot) closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// end closes the connections that wait for their peer's next request, and lets the others be closed with their answers.
func (l *lot) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for p := range l.all {
		p.mu.Lock()
		if p.answered {
			p.close()
		}
		p.mu.Unlock()
	}
}

// cut closes every connection, after the context of requests has ended.
func (l *lot) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.all {
		p.drop()
		p.wake()
	}
}

// parked is a connection outside net/http, which sleeps, or whose peer has its answer. A goroutine answers the peer when there is something to answer; the server's ears hear the
// peer meanwhile, or another goroutine where there are none. Both come to an end with done, and who is last gives the connection back.
type parked struct {
	server  *Server
	sleeper parking.Sleeper
	turn    atomic.Int32    // asleep, awake or again
	reply   reply           // belongs to the one that answers
	first   []byte          // of the peer's next request; belongs to the one that hears, then to who gives it back
	ticket  uint64          // guarded by ears.mu
	socket  syscall.RawConn // of conn; belongs to the ears

	mu sync.Mutex
	// guarded by mu
	conn     net.Conn           // nil: not taken yet, or given back
	cancel   context.CancelFunc // of what is awake; nil: nothing is
	gone     bool               // the peer, or the connection
	heard    bool               // the peer has begun its next request, or has gone
	answered bool               // or never will be, or asked for nothing yet
	dropped  bool               // closed
	idle     *time.Timer        // closes the connection when no request comes; nil: it is not answered yet
}

// The turns of a sleeper. Once it is done it is not asleep any more.
const (
	asleep int32 = iota
	awake        // also while it goes to sleep
	again        // woken since it is awake
)

// Park implements [parking.Lot]: only connections of HTTP/1.1 without TLS are parked, and none that their peer wants closed.
func (s *Server) Park(w http.ResponseWriter, r *http.Request, sleeper parking.Sleeper) bool {
	if s.tls != nil || r.ProtoMajor != 1 || r.ProtoMinor < 1 || r.Close || !s.running.enter() {
		return false
	}
	p := &parked{server: s, sleeper: sleeper}
	p.turn.Store(awake)
	if !s.lot.add(p) {
		s.running.leave()
		return false
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.lot.remove(p)
		s.running.leave()
		return false
	}
	if again, ok := conn.(*begun); ok && len(again.first) == 0 {
		conn = again.Conn
	}
	if n := buffered.Reader.Buffered(); n > 0 { // the peer sends its next request before this one is answered
		first, _ := buffered.Reader.Peek(n) // they are there
		p.first = append(p.first, first...)
	}
	p.reply.server, p.reply.conn = s, conn
	gone := r.Context().Err() != nil // net/http has seen the peer go
	p.mu.Lock()
	p.conn, p.gone = conn, gone
	if p.dropped { // meanwhile
		_ = conn.Close()
	}
	p.mu.Unlock()
	switch {
	case len(p.first) > 0:
		p.done(&p.heard, true)
	case s.ears == nil || !s.ears.add(p, conn):
		go p.hear(conn)
	}
	if !p.sleeps() {
		p.turn.Store(awake)
		go p.answer()
	} else if gone {
		p.wake()
	}
	return true
}

// greet has a new connection wait until its peer begins a request. Only then net/http gets it.
func (s *Server) greet(conn net.Conn) {
	p := &parked{server: s, conn: conn, answered: true}
	p.turn.Store(again) // it has nobody to wake
	if !s.running.enter() {
		_ = conn.Close()
		return
	}
	p.mu.Lock()
	p.idle = time.AfterFunc(s.http.ReadHeaderTimeout, p.drop)
	p.mu.Unlock()
	if !s.lot.add(p) {
		p.hears(nil, false)
		return
	}
	if !s.ears.add(p, conn) {
		p.hears(nil, true)
	}
}

// sleeps has the sleeper sleep, unless it was woken already. The caller had the turn.
func (p *parked) sleeps() bool {
	p.sleeper.Sleep(p.wake)
	return p.turn.CompareAndSwap(awake, asleep)
}

// wake has the sleeper woken.
func (p *parked) wake() {
	for {
		switch p.turn.Load() {
		case asleep:
			if p.turn.CompareAndSwap(asleep, awake) {
				go p.answer()
				return
			}
		case awake:
			if p.turn.CompareAndSwap(awake, again) {
				return
			}
		default:
			return
		}
	}
}

// hear waits until the peer begins its next request, or goes.
func (p *parked) hear(conn net.Conn) {
	b := make([]byte, 1)
	n, _ := conn.Read(b)
	p.hears(b[:n], n > 0)
}

// hears is told that the peer begins its next request, with what was read of that, or that it has gone. It is called once.
func (p *parked) hears(first []byte, there bool) {
	p.first = first
	if !there {
		p.mu.Lock()
		p.gone = true
		if p.cancel != nil {
			p.cancel()
		}
		p.mu.Unlock()
		p.wake()
	}
	p.done(&p.heard, there)
}

// answer has the sleeper answer, until it sleeps again or is done.
func (p *parked) answer() {
	for !p.woken() {
		if p.sleeps() {
			return
		}
		p.turn.Store(awake)
	}
}

// woken has the sleeper woken once.
func (p *parked) woken() (done bool) {
	ctx, cancel := context.WithCancel(p.server.requests)
	p.mu.Lock()
	p.cancel = cancel
	if p.gone {
		cancel()
	}
	p.mu.Unlock()
	done = true // also by a panic
	well := false
	defer func() {
		if done && !well {
			p.told(recover())
		}
		cancel()
		p.mu.Lock()
		p.cancel = nil
		p.mu.Unlock()
		if !done {
			return
		}
		p.done(&p.answered, well)
		if well && p.server.lot.closing() {
			p.drop() // unless end did
		}
	}()
	if done = p.sleeper.Wake(ctx, &p.reply); done {
		well = p.reply.whole()
	}
	return done
}

// told tells of a panic, as net/http does.
func (p *parked) told(v any) {
	if err, ok := v.(error); v != nil && (!ok || !errors.Is(err, http.ErrAbortHandler)) {
		p.server.log.Error("a handler panicked while it waited", "panic", v, "stack", string(debug.Stack()))
	}
}

// drop closes the connection.
func (p *parked) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close()
}

// close closes the connection. The caller holds mu.
func (p *parked) close() {
	p.dropped = true
	if p.conn == nil {
		return
	}
	_ = p.conn.Close()
	if p.idle != nil {
		p.idle.Stop()
	}
	if e := p.server.ears; e != nil && e.forget(p) {
		go p.hears(nil, false) // who closes may hold what done needs
	}
}

// done says that one of the two has ended. The one that ends last gives the connection back.
func (p *parked) done(mine *bool, well bool) {
	p.mu.Lock()
	*mine = true
	if !well {
		p.close()
	}
	last := p.heard && p.answered
	switch {
	case p.dropped:
	case last:
		p.goOn()
	case p.answered: // as net/http does between two requests
		p.idle = time.AfterFunc(p.server.http.IdleTimeout, p.drop)
	}
	p.mu.Unlock()
	if last {
		p.server.lot.remove(p)
		p.server.running.leave()
	}
}

// goOn gives the connection back to net/http, with the beginning of its next request. The caller holds mu.
func (p *parked) goOn() {
	if p.idle != nil {
		p.idle.Stop()
	}
	l := &single{conn: p.conn, addr: p.server.listener.Addr()}
	if len(p.first) > 0 {
		l.conn = &begun{Conn: p.conn, first: p.first}
	}
	_ = p.server.http.Serve(l) // returns at once; errSingle, or http.ErrServerClosed
	if l.conn != nil {
		p.close()
	}
	p.conn = nil
}

// begun is a connection of which something was read already.
type begun struct {
	net.Conn
	first []byte
}

func (c *begun) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite is what net/http does before it closes on a peer that still sends.
func (c *begun) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// single is a listener of one connection.
type single struct {
	conn net.Conn // nil: it was accepted
	addr net.Addr
}

var errSingle = errors.New("there was one connection")

func (l *single) Accept() (net.Conn, error) {
	conn := l.conn
	if conn == nil {
		return nil, errSingle
	}
	l.conn = nil
	return conn, nil
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return l.addr }

// reply writes one answer to a parked connection.
type reply struct {
	server *Server
	conn   net.Conn
	header http.Header
	head   []byte // not sent yet
	status int    // 0: not written yet
	left   int64  // bytes of the body to come; less than 0: nobody knows
	failed bool
}

func (w *reply) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// WriteHeader keeps the head until there is something behind it.
func (w *reply) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	h := w.Header()
	w.status = status
	var err error
	if w.left, err = strconv.ParseInt(h.Get("Content-Length"), 10, 64); err != nil {
		w.left = -1
	}
	if h.Get("Date") == "" {
		h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	if w.server.lot.closing() {
		h.Set("Connection", "close")
	}
	head := bytes.NewBuffer(make([]byte, 0, 1024))
	fmt.Fprintf(head, "HTTP/1.1 %03d %s\r\n", status, http.StatusText(status))
	_ = h.Write(head) // to memory
	head.WriteString("\r\n")
	w.head = head.Bytes()
}

func (w *reply) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if int64(len(b)) > w.left {
		w.failed = true
		return 0, http.ErrContentLength
	}
	n, err := w.send(b)
	w.left -= int64(n)
	return n, err
}

// send sends what stands of the head and then b; n is of b.
func (w *reply) send(b []byte) (n int, err error) {
	head := len(w.head)
	parts := net.Buffers{w.head, b}
	w.head = nil
	all, err := parts.WriteTo(w.conn)
	if err != nil {
		w.failed = true
	}
	return max(0, int(all)-head), err
}

// FlushError sends the head, if nothing has come behind it.
func (w *reply) FlushError() error {
	w.WriteHeader(http.StatusOK)
	if w.head == nil {
		return nil
	}
	_, err := w.send(nil)
	return err
}

// SetWriteDeadline is asked for by [http.ResponseController].
func (w *reply) SetWriteDeadline(t time.Time) error { return w.conn.SetWriteDeadline(t) }

// whole reports whether an answer was sent to its end.
func (w *reply) whole() bool { return w.status != 0 && w.head == nil && w.left == 0 && !w.failed }
