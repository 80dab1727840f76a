package lookup

import (
	"container/list"
	"sync"
)

// recent keeps what was used last, up to so many bytes; what has not been used for the longest goes first. What it holds is shared
// and never written to. It is safe for concurrent use.
type recent[K comparable, V any] struct {
	most int // bytes; static

	mu    sync.Mutex
	bytes int
	kept  map[K]*list.Element
	order list.List // of *kept[K, V], the one used last first
}

type kept[K comparable, V any] struct {
	key   K
	value V
	bytes int
}

func newRecent[K comparable, V any](most int) *recent[K, V] {
	return &recent[K, V]{most: most, kept: make(map[K]*list.Element)}
}

func (r *recent[K, V]) get(key K) (value V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.kept[key]
	if at == nil {
		return value, false
	}
	r.order.MoveToFront(at)
	return at.Value.(*kept[K, V]).value, true
}

// put keeps a value that takes so many bytes, unless it is there already or is larger than all that may be kept.
func (r *recent[K, V]) put(key K, value V, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[key] != nil || bytes > r.most {
		return
	}
	r.kept[key] = r.order.PushFront(&kept[K, V]{key, value, bytes})
	for r.bytes += bytes; r.bytes > r.most; {
		r.remove(r.order.Back())
	}
}

func (r *recent[K, V]) drop(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.kept[key]; at != nil {
		r.remove(at)
	}
}

func (r *recent[K, V]) remove(at *list.Element) {
	k := r.order.Remove(at).(*kept[K, V])
	delete(r.kept, k.key)
	r.bytes -= k.bytes
}

// size is how many bytes are kept.
func (r *recent[K, V]) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}
