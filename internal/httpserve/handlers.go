package httpserve

import (
	"net/http"
	"sync"
)

// handlers counts the handlers that run, since http.Server.Close does not wait
// for them (V2).
type handlers struct {
	next http.Handler
	idle chan struct{} // closed once ended and nothing runs

	mu sync.Mutex
	// guarded by mu
	count int
	ended bool
}

// ServeHTTP runs the handler, or drops a request that slipped in after the end.
func (h *handlers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.enter() {
		panic(http.ErrAbortHandler)
	}
	defer h.leave()
	h.next.ServeHTTP(w, r)
}

func (h *handlers) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.count++
	return true
}

func (h *handlers) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count--
	if h.ended && h.count == 0 {
		close(h.idle)
	}
}

// end lets no further request in; idle is closed when the last one has left. It may be called more than once.
func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended && h.count == 0 {
		close(h.idle)
	}
	h.ended = true
}
