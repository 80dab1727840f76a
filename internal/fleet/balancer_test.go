package fleet_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// balancer carries connections to backends in turn. One that refuses a connection is passed over for this time; nothing is
// remembered of it.
type balancer struct {
	listener net.Listener
	backends []string
	turn     atomic.Uint64
	carried  atomic.Int64 // connections so far
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool                  // guarded by mu
	open   map[net.Conn]struct{} // guarded by mu
}

// newBalancer listens until the test ends.
func newBalancer(t *testing.T, backends ...string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: l, backends: backends, open: map[net.Conn]struct{}{}}
	b.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			b.running.Go(func() { b.carry(c) })
		}
	})
	t.Cleanup(b.close)
	return b
}

// address is where it listens.
func (b *balancer) address() string { return b.listener.Addr().String() }

// carry moves bytes both ways until one side is through. A connection that no backend takes is closed.
func (b *balancer) carry(client net.Conn) {
	if !b.keep(client) {
		return
	}
	defer b.drop(client)
	server, err := b.dial()
	if err != nil || !b.keep(server) {
		return
	}
	defer b.drop(server)
	b.carried.Add(1)
	b.running.Go(func() {
		// A node that stopped reading may still have an answer under way: only the client's end ends the connection here.
		if _, err := io.Copy(server, client); err == nil {
			_ = server.Close()
		}
	})
	_, _ = io.Copy(client, server) // however it ends, it is over
}

func (b *balancer) dial() (net.Conn, error) {
	err := errors.New("there is no backend")
	first := b.turn.Add(1)
	for i := range uint64(len(b.backends)) {
		var c net.Conn
		if c, err = net.Dial("tcp", b.backends[(first+i)%uint64(len(b.backends))]); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (b *balancer) keep(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = c.Close()
		return false
	}
	b.open[c] = struct{}{}
	return true
}

func (b *balancer) drop(c net.Conn) {
	_ = c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, c)
}

// close ends it and every connection that it carries.
func (b *balancer) close() {
	_ = b.listener.Close()
	b.mu.Lock()
	b.closed = true
	for c := range b.open {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
}

// TestN6_TheBalancer takes backends in turn, goes past one that is dead, comes back to it when it lives again, and keeps the
// two ends of a connection together.
func TestN6_TheBalancer(t *testing.T) {
	t.Parallel()
	serve := func(address, name string) net.Listener {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name)
				_ = c.Close()
			}
		}()
		return l
	}
	first, second := freeAddress(t), freeAddress(t)
	a := serve(first, "a")
	serve(second, "b")
	b := newBalancer(t, first, second)
	ask := func() string {
		c, err := net.Dial("tcp", b.address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := ask() + ask() + ask() + ask(); got != "baba" && got != "abab" {
		t.Errorf("not in turn: %s", got)
	}
	_ = a.Close()
	if got := ask() + ask() + ask(); got != "bbb" {
		t.Errorf("with a dead backend: %s", got)
	}
	serve(first, "A")
	if got := ask() + ask(); got != "Ab" && got != "bA" {
		t.Errorf("with the backend back: %s", got)
	}
}
