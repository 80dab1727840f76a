package verify

import (
	"container/list"
	"sync"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// lru remembers which transactions' scripts hold: they hold under every view.
type lru struct {
	limit int

	mu    sync.Mutex
	order *list.List // of *verdict, the last used first
	index map[spend.TxID]*list.Element
}

type verdict struct {
	id    spend.TxID
	valid bool
	why   string
}

func newLRU(limit int) *lru {
	return &lru{limit: limit, order: list.New(), index: map[spend.TxID]*list.Element{}}
}

func (l *lru) get(id spend.TxID) (valid bool, why string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.index[id]
	if !ok {
		return false, "", false
	}
	l.order.MoveToFront(at)
	v := at.Value.(*verdict) //nolint:forcetypeassert // nothing else is put in
	return v.valid, v.why, true
}

func (l *lru) put(id spend.TxID, valid bool, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.index[id]; ok || l.limit <= 0 {
		return
	}
	if l.order.Len() >= l.limit {
		oldest := l.order.Back()
		delete(l.index, l.order.Remove(oldest).(*verdict).id) //nolint:forcetypeassert // as above
	}
	l.index[id] = l.order.PushFront(&verdict{id, valid, why})
}
