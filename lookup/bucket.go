package lookup

import (
	"container/heap"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// opens admits new sessions at the rates of [Quotas]: a token bucket a client and one a service.
//
// A full bucket says no more than none, so only buckets that are not full are kept, and of these at most a stated number. One
// leaves when it is full and never before: whatever others do, nobody loses the memory of what he spent. When all that are kept
// are busy, new clients share one bucket.
type opens struct {
	q Quotas // static

	mu       sync.Mutex
	now      func() time.Time // tests move it
	clients  map[client]*bucket
	byFull   fullest                  // all of clients
	shared   *rate.Limiter            // of those who found no room
	services map[string]*rate.Limiter // by configured service
}

// bucket is that of one client. It is guarded by opens.mu.
type bucket struct {
	who     client
	limiter *rate.Limiter
	full    time.Time // when it will be full if nothing more is taken
	place   int       // in opens.byFull
}

func newOpens(q Quotas) *opens {
	o := &opens{q: q, now: time.Now, clients: make(map[client]*bucket), services: make(map[string]*rate.Limiter)}
	o.shared = o.fresh()
	return o
}

// fresh is a full bucket of a client.
func (o *opens) fresh() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(o.q.OpensPerSecond), o.q.OpenBurst)
}

// take takes a token for an Open from its client's bucket and from its service's, or from neither: then it says whose was
// empty, and for how long.
func (o *opens) take(who client, service string) (spent quota, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.forget(now)
	mine, of, b := (*rate.Limiter)(nil), quotaOpens, o.clients[who]
	switch {
	case b != nil:
		mine = b.limiter
	case len(o.clients) < o.q.Clients:
		mine = o.fresh()
	default:
		mine, of = o.shared, quotaClients
	}
	if wait := lacks(mine, now); wait > 0 {
		return of, wait
	}
	all := o.services[service]
	if all == nil {
		all = rate.NewLimiter(rate.Limit(o.q.ServiceOpensPerSecond), o.q.ServiceOpenBurst)
		o.services[service] = all
	}
	if wait := lacks(all, now); wait > 0 {
		return quotaServiceOpens, wait
	}
	mine.AllowN(now, 1)
	all.AllowN(now, 1)
	switch {
	case b != nil:
		b.full = fullAt(mine, now)
		heap.Fix(&o.byFull, b.place)
	case of == quotaOpens:
		b = &bucket{who: who, limiter: mine, full: fullAt(mine, now)}
		o.clients[who] = b
		heap.Push(&o.byFull, b)
	}
	return "", 0
}

// forget drops the buckets that are full.
func (o *opens) forget(now time.Time) {
	for len(o.byFull) > 0 && !o.byFull[0].full.After(now) {
		delete(o.clients, heap.Pop(&o.byFull).(*bucket).who)
	}
}

// tracked is how many clients are remembered.
func (o *opens) tracked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(o.now())
	return len(o.clients)
}

// lacks is how long a bucket takes to hold a whole token; 0 when it does.
func lacks(l *rate.Limiter, now time.Time) time.Duration {
	return max(seconds((1-l.TokensAt(now))/float64(l.Limit())), 0)
}

// fullAt is when a bucket will be full if nothing more is taken; never a moment too early.
func fullAt(l *rate.Limiter, now time.Time) time.Time {
	return now.Add(seconds((float64(l.Burst())-l.TokensAt(now))/float64(l.Limit())) + 1)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// fullest is a heap of buckets, the one that is full first on top.
type fullest []*bucket

func (f fullest) Len() int           { return len(f) }
func (f fullest) Less(i, j int) bool { return f[i].full.Before(f[j].full) }
func (f fullest) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].place, f[j].place = i, j
}

func (f *fullest) Push(x any) {
	b := x.(*bucket)
	b.place = len(*f)
	*f = append(*f, b)
}

func (f *fullest) Pop() any {
	last := (*f)[len(*f)-1]
	(*f)[len(*f)-1] = nil
	*f = (*f)[:len(*f)-1]
	return last
}
