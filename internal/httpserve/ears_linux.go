package httpserve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// ears hear, with one goroutine for all of them, when the peer of a parked connection says something or goes. They are an epoll
// instance, which itself is in the runtime's poller: nobody sits in a system call for it.
type ears struct {
	file  *os.File
	raw   syscall.RawConn // of file
	ended chan struct{}   // closed when the goroutine has ended

	mu sync.Mutex
	// guarded by mu
	last uint64
	all  map[uint64]*parked // by ticket
}

// newEars begins to listen. The caller must close.
func newEars() (*ears, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // what tells os that the runtime's poller can wait for it
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	e := &ears{file: os.NewFile(uintptr(fd), "epoll"), ended: make(chan struct{}), all: make(map[uint64]*parked)}
	if e.raw, err = e.file.SyscallConn(); err != nil {
		_ = e.file.Close()
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	go e.run()
	return e, nil
}

// close ends the goroutine, and waits for it. Nobody is listened to any more.
func (e *ears) close() {
	_ = e.file.Close()
	<-e.ended
}

func (e *ears) run() {
	defer close(e.ended)
	events := make([]syscall.EpollEvent, 128)
	for {
		n := 0
		err := e.raw.Read(func(fd uintptr) bool {
			n, _ = uninterrupted(func() (int, error) { return syscall.EpollWait(int(fd), events, 0) }) // it has no other errors
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for i := range events[:n] {
			if p := e.take(ticketOf(&events[i])); p != nil {
				e.hear(p)
			}
		}
	}
}

// hear looks whether the peer of a connection begins its next request, and leaves that where it is.
func (e *ears) hear(p *parked) {
	var b [1]byte
	var n int
	var failed error
	closed := p.socket.Read(func(fd uintptr) bool {
		n, failed = uninterrupted(func() (int, error) {
			n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
			return n, err
		})
		return true
	})
	switch {
	case closed == nil && n == 1:
		_ = e.control(p, 0, syscall.EPOLL_CTL_DEL) // else it is closed
		p.hears(nil, true)
	case closed == nil && errors.Is(failed, syscall.EAGAIN): // nothing has happened
		if !e.listen(p, syscall.EPOLL_CTL_MOD) {
			p.hears(nil, false)
		}
	default:
		p.hears(nil, false)
	}
}

// add listens to the peer of a connection, once: [parked.hears] will be called, unless forget comes first. False: it cannot be done.
func (e *ears) add(p *parked, conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	var err error
	if p.socket, err = c.SyscallConn(); err != nil {
		return false
	}
	return e.listen(p, syscall.EPOLL_CTL_ADD)
}

// listen returns false if nobody will call [parked.hears] or has called forget with success.
func (e *ears) listen(p *parked, how int) bool {
	e.mu.Lock()
	e.last++
	ticket := e.last
	p.ticket = ticket
	e.all[ticket] = p
	e.mu.Unlock()
	return e.control(p, ticket, how) == nil || e.take(ticket) == nil
}

// control changes what is listened to.
func (e *ears) control(p *parked, ticket uint64, how int) error {
	event := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLRDHUP | syscall.EPOLLONESHOT}
	event.Fd, event.Pad = int32(ticket), int32(ticket>>32)
	var closed, refused error
	err := p.socket.Control(func(socket uintptr) {
		closed = e.raw.Control(func(fd uintptr) { refused = syscall.EpollCtl(int(fd), how, int(socket), &event) })
	})
	return errors.Join(err, closed, refused)
}

// take takes away who has a ticket; nil: he was taken before.
func (e *ears) take(ticket uint64) *parked {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.all[ticket]
	delete(e.all, ticket)
	return p
}

// forget does not listen to a connection, which is closed, any more; false: that was over, or never begun.
func (e *ears) forget(p *parked) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, there := e.all[p.ticket]
	delete(e.all, p.ticket)
	return there
}

// ticketOf is what stands in an event for a connection: descriptors are used again.
func ticketOf(e *syscall.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// uninterrupted repeats a call that a signal has interrupted.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
