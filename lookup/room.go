package lookup

import (
	"sync"
	"time"
)

// bodies counts what is held of finished bodies at a node: from when one is laid out until the connection has taken it, or it was
// thrown away. Who has no room is refused before the memory is taken.
type bodies struct {
	most, perClient int // bytes; static

	mu   sync.Mutex
	held int
	of   map[client]int // greater than 0
}

func newBodies(most, perClient int) *bodies {
	return &bodies{most: most, perClient: perClient, of: make(map[client]int)}
}

func (b *bodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// room is that of one request's body: none until it is taken. It belongs to the request's goroutine.
type room struct {
	bodies *bodies
	who    client
	held   int    // bytes
	buffer []byte // of the pool; nil: the body is none of its buffers
}

// take makes room for so many bytes instead of what is held.
func (r *room) take(bytes int) *refusal {
	r.leave(true)
	b := r.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.of[r.who]+bytes > b.perClient:
		return refuseLoad(quotaBodyBytesPerClient, bodyRetry)
	case b.held+bytes > b.most:
		return refuseLoad(quotaBodyBytes, bodyRetry)
	case bytes == 0:
		return nil
	}
	b.held += bytes
	b.of[r.who] += bytes
	r.held = bytes
	return nil
}

// leave gives the room back. The buffer may be used for other bodies if nobody reads it any more.
func (r *room) leave(unread bool) {
	if r.buffer != nil && unread {
		putBuffer(r.buffer)
	}
	r.buffer = nil
	if r.held == 0 {
		return
	}
	b := r.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= r.held
	if b.of[r.who] -= r.held; b.of[r.who] == 0 {
		delete(b.of, r.who)
	}
	r.held = 0
}

// lay makes room for a body of at most so many bytes, and returns an empty buffer for it, which is the room's.
func (r *room) lay(bytes int) ([]byte, *refusal) {
	class := classOf(bytes)
	capacity := bytes
	if class < len(buffers) {
		capacity = smallestBuffer << class
	}
	if refused := r.take(capacity); refused != nil {
		return nil, refused
	}
	if class == len(buffers) {
		return make([]byte, 0, bytes), nil
	}
	r.buffer = getBuffer(class)
	return r.buffer, nil
}

// Buffers have 4 KiB, 8 KiB and so on up to 256 KiB. A larger body costs more to build than its memory costs to get.
const smallestBuffer = 4096

var buffers [7]sync.Pool // of *[]byte, by class: smallestBuffer << class bytes

// classOf is the class of the smallest buffer for so many bytes; len(buffers): there is none.
func classOf(bytes int) int {
	class := 0
	for class < len(buffers) && smallestBuffer<<class < bytes {
		class++
	}
	return class
}

func getBuffer(class int) []byte {
	if b, ok := buffers[class].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, smallestBuffer<<class)
}

func putBuffer(b []byte) {
	b = b[:0]
	buffers[classOf(cap(b))].Put(&b)
}

// writeGrace is what a peer has to take any body at all, besides the time that the body's size gives it.
const writeGrace = 15 * time.Second

// writeWithin is how long a body may be on its way to its peer.
func (p *Provider) writeWithin(bytes int) time.Duration {
	return p.grace + seconds(float64(bytes)/float64(p.quotas.BodyBytesPerSecond))
}
