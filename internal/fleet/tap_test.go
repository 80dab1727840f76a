package fleet_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// tap stands between a node and its database and counts what the node asks: each simple query, and each execution of a
// prepared one. It reads the types and lengths of the messages and nothing else.
type tap struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex
	total   int64                 // guarded by mu
	tenths  map[int64]int64       // guarded by mu; statements by tenth of a second
	open    map[net.Conn]struct{} // guarded by mu
	stopped bool                  // guarded by mu
}

// newTap listens in front of a database until the test ends, and returns the database's URL through it.
func newTap(t *testing.T, database string) (*tap, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	if u.Query().Get("sslmode") != "disable" {
		t.Fatalf("statements are counted on plain connections only, and %s is none (sslmode=disable)", u.Redacted())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{listener: l, target: u.Host, tenths: map[int64]int64{}, open: map[net.Conn]struct{}{}}
	p.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.running.Go(func() { p.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.stopped = true
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.running.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *tap) carry(client net.Conn) {
	defer client.Close() //nolint:errcheck // it is over
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // it is over
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return
	}
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	p.running.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, io.TeeReader(client, &messages{tap: p}))
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
}

// messages follows the frontend's messages as their bytes pass. The first has no type: the start of a session, or a cancel.
type messages struct {
	tap     *tap
	started bool
	header  []byte // of the message that begins, as far as it has come
	left    int    // bytes of the message under way
}

func (m *messages) Write(b []byte) (int, error) {
	n, asked := len(b), int64(0)
	for len(b) > 0 {
		if m.left > 0 {
			k := min(m.left, len(b))
			m.left, b = m.left-k, b[k:]
			continue
		}
		size := 5
		if !m.started {
			size = 4
		}
		k := min(size-len(m.header), len(b))
		m.header, b = append(m.header, b[:k]...), b[k:]
		if len(m.header) < size {
			continue
		}
		if kind := m.header[0]; m.started && (kind == 'E' || kind == 'Q') {
			asked++
		}
		m.left = int(binary.BigEndian.Uint32(m.header[size-4:])) - 4
		m.started, m.header = true, m.header[:0]
	}
	if asked > 0 {
		m.tap.mu.Lock()
		defer m.tap.mu.Unlock()
		m.tap.total += asked
		m.tap.tenths[time.Now().UnixMilli()/100] += asked
	}
	return n, nil
}

// statements is how many were asked so far.
func (p *tap) statements() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// peak is the most that were asked in any second from begin to end, and their sum.
func (p *tap) peak(begin, end time.Time) (second, sum int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, last := begin.UnixMilli()/100, end.UnixMilli()/100
	window := int64(0)
	for at := first; at <= last; at++ {
		sum += p.tenths[at]
		window += p.tenths[at]
		if at-10 >= first {
			window -= p.tenths[at-10]
		}
		second = max(second, window)
	}
	return second, sum
}

// TestN6_TheTap counts simple queries and executions, whatever pieces their bytes come in.
func TestN6_TheTap(t *testing.T) {
	t.Parallel()
	message := func(kind string, body int) []byte {
		return append(binary.BigEndian.AppendUint32([]byte(kind), uint32(4+body)), make([]byte, body)...)
	}
	var stream []byte
	for _, m := range [][]byte{message("", 30), message("p", 9), message("Q", 0), message("P", 300), message("B", 5), message("E", 5), message("S", 0), message("E", 70), message("X", 0)} {
		stream = append(stream, m...)
	}
	for size := range 20 {
		p := &tap{tenths: map[int64]int64{}}
		m := &messages{tap: p}
		for rest := stream; len(rest) > 0; {
			k := min(size+1, len(rest))
			if n, err := m.Write(rest[:k]); n != k || err != nil {
				t.Fatal(n, err)
			}
			rest = rest[k:]
		}
		if p.statements() != 3 {
			t.Errorf("in pieces of %d: %d statements", size+1, p.statements())
		}
	}
	begin := time.UnixMilli(1000)
	p := &tap{tenths: map[int64]int64{9: 100, 10: 1, 12: 5, 19: 7, 20: 3, 22: 4, 31: 100}}
	if second, sum := p.peak(begin, begin.Add(2*time.Second)); second != 15 || sum != 20 {
		t.Errorf("the peak is %d, the sum %d", second, sum)
	}
}
