package lookup

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// Quotas bound what clients may ask of a provider and leave behind in it (BRC-193 s8, conformance row O10). A client is an
// authenticated principal, or for anonymous callers an address, of IPv6 its /64 (see [Provider.Mount]). A zero field means its
// default; nothing is unlimited.
//
// The first group is about load, which passes. Each node counts it by itself; what is above the quota is unavailable, to be
// tried again after the time told. The second is about what lasts. The database counts it, exactly, over all nodes; above the
// quota an Open is limited and leaves nothing. No promised session is ever ended to make room for another, and an Open that
// was answered before is answered again before any quota is looked at.
type Quotas struct {
	// OpensPerSecond is how many new sessions a client may open a second on average, OpenBurst how many at once after a rest.
	// Bounds: 0.001..1000000 and 1..1000000. Defaults: 20 and 200, so that a device that lost everything can open what it had.
	OpensPerSecond float64
	OpenBurst      int
	// ServiceOpensPerSecond and ServiceOpenBurst are the same for all clients of a service together. Defaults: 500 and 2000.
	ServiceOpensPerSecond float64
	ServiceOpenBurst      int
	// Clients is of how many clients a node remembers how fast they open. Only one that opened within the last
	// OpenBurst / OpensPerSecond seconds is remembered; those for whom there is no room share one rate. Bounds: 1..1000000.
	// Default: 16384, which is about 5 MB.
	Clients int
	// Waiters is how many polls may sleep at a node, WaitersPerClient how many of one client. A poll that has something to
	// deliver does not sleep, and is never refused. Bounds: 1..1000000. Defaults: 20000 and 1000.
	Waiters, WaitersPerClient int
	// Requests is how many bodies of Opens and Reads a node has under way at once for each of its databases, from the look at the
	// session until they are checked and sealed. A sleeping poll has none, nor do a Close, discovery, and an Open that was
	// answered before. Bounds: 1..100000. Default: eight for every processor, at least 16, which keeps processors and
	// connections busy: with more under way each takes longer, the appends beside them too, and is older when it is sent. Where a
	// statement takes several milliseconds on its way to the database and back, more are worth their memory; each may take
	// a few times the service's MaxResponseBytes.
	Requests int
	// RequestsWaiting is how many more may wait for their turn, each at most RequestWaitMs milliseconds. Clients have their
	// turns one after the other, however many requests each of them sent. Bounds: 1..1000000 and 1..60000. Defaults: 4096 and
	// 5000.
	RequestsWaiting, RequestWaitMs int
	// BodyBytes is how many bytes of finished bodies a node holds that their peers have not taken yet, BodyBytesPerClient how
	// many of those of one client. Bounds: 8388608..2^40. Defaults: 256 MiB and 128 MiB.
	BodyBytes, BodyBytesPerClient int
	// BodyBytesPerSecond is how slowly a peer may take a body; to this come 15 s whatever its size. What is not taken by then is
	// cut off: an answer that is not whole is none, and the peer asks again. Bounds: 1..1000000000. Default: 16384.
	BodyBytesPerSecond int

	// SessionsPerClient is how many sessions of one service a client may hold: opened, not closed, not past replayUntil.
	// Bounds: 1..1000000000. Default: 256.
	SessionsPerClient int64
	// Sessions is how many sessions a service may hold, RetainedBytes how many bytes of first bodies and requests they may
	// keep. Here a session counts until it has ended or [Provider.Retain] has removed it. Bounds: 1..1000000000, and
	// 65536..2^50. Defaults: 100000 and 10 GiB.
	Sessions, RetainedBytes int64
}

// The defaults of Quotas. That of Requests follows from the processors.
const (
	DefaultOpensPerSecond        = 20
	DefaultOpenBurst             = 200
	DefaultServiceOpensPerSecond = 500
	DefaultServiceOpenBurst      = 2000
	DefaultClients               = 16384
	DefaultWaiters               = 20_000
	DefaultWaitersPerClient      = 1000
	DefaultRequestsPerProcessor  = 8
	LeastDefaultRequests         = 16
	DefaultRequestsWaiting       = 4096
	DefaultRequestWaitMs         = 5000
	DefaultBodyBytes             = 256 << 20
	DefaultBodyBytesPerClient    = 128 << 20
	DefaultBodyBytesPerSecond    = 16384
	DefaultSessionsPerClient     = 256
	DefaultSessions              = 100_000
	DefaultRetainedBytes         = 10 << 30
)

// leastBodyBytes is room for any one body.
const leastBodyBytes = 2 * wire.MaxResponseBytes

// filled is q with its defaults, or every fault that it has.
func (q Quotas) filled() (Quotas, error) {
	var faults []error
	const many, lasting = 1_000_000, 1_000_000_000
	faults = append(faults,
		fill(&q.OpensPerSecond, "OpensPerSecond", DefaultOpensPerSecond, 0.001, many),
		fill(&q.OpenBurst, "OpenBurst", DefaultOpenBurst, 1, many),
		fill(&q.ServiceOpensPerSecond, "ServiceOpensPerSecond", DefaultServiceOpensPerSecond, 0.001, many),
		fill(&q.ServiceOpenBurst, "ServiceOpenBurst", DefaultServiceOpenBurst, 1, many),
		fill(&q.Clients, "Clients", DefaultClients, 1, many),
		fill(&q.Waiters, "Waiters", DefaultWaiters, 1, many),
		fill(&q.WaitersPerClient, "WaitersPerClient", DefaultWaitersPerClient, 1, many),
		fill(&q.Requests, "Requests", max(LeastDefaultRequests, DefaultRequestsPerProcessor*runtime.GOMAXPROCS(0)), 1, 100_000),
		fill(&q.RequestsWaiting, "RequestsWaiting", DefaultRequestsWaiting, 1, many),
		fill(&q.RequestWaitMs, "RequestWaitMs", DefaultRequestWaitMs, 1, 60_000),
		fill(&q.BodyBytes, "BodyBytes", DefaultBodyBytes, leastBodyBytes, 1<<40),
		fill(&q.BodyBytesPerClient, "BodyBytesPerClient", DefaultBodyBytesPerClient, leastBodyBytes, 1<<40),
		fill(&q.BodyBytesPerSecond, "BodyBytesPerSecond", DefaultBodyBytesPerSecond, 1, lasting),
		fill(&q.SessionsPerClient, "SessionsPerClient", DefaultSessionsPerClient, 1, lasting),
		fill(&q.Sessions, "Sessions", DefaultSessions, 1, lasting),
		fill(&q.RetainedBytes, "RetainedBytes", DefaultRetainedBytes, wire.MinResponseBytes, 1<<50),
	)
	if err := errors.Join(faults...); err != nil {
		return q, fmt.Errorf("lookup: quotas: %w", err)
	}
	return q, nil
}

func fill[T int | int64 | float64](value *T, name string, otherwise, least, most T) error {
	if *value == 0 {
		*value = otherwise
	}
	if !(*value >= least && *value <= most) { // so that NaN is refused
		return fmt.Errorf("%s is %v; set it to %v..%v, or 0 for the default", name, *value, least, most)
	}
	return nil
}

// quota names a bound, as the configuration and the metrics do.
type quota string

const (
	quotaOpens              quota = "opensPerSecond"
	quotaServiceOpens       quota = "serviceOpensPerSecond"
	quotaClients            quota = "clients"
	quotaWaiters            quota = "waiters"
	quotaWaitersPerClient   quota = "waitersPerClient"
	quotaRequests           quota = "requests"
	quotaRequestsWaiting    quota = "requestsWaiting"
	quotaBodyBytes          quota = "bodyBytes"
	quotaBodyBytesPerClient quota = "bodyBytesPerClient"
	quotaSessionsPerClient  quota = "sessionsPerClient"
	quotaSessions           quota = "sessions"
	quotaRetainedBytes      quota = "retainedBytes"
)

// quotaTexts are what a peer is told: the bound, and what to do.
var quotaTexts = map[quota]string{
	quotaOpens:              "This client opens sessions faster than it may (opensPerSecond). Open again after retryAfterMs, and go on with sessions instead of opening new ones.",
	quotaServiceOpens:       "Sessions of this service are opened faster than it admits (serviceOpensPerSecond). Open again after retryAfterMs.",
	quotaClients:            "More clients open sessions at this node than it can tell apart (clients), so the latest share one rate. Open again after retryAfterMs.",
	quotaWaiters:            "As many polls wait at this node as may (waiters). Read again after retryAfterMs, or with waitMs 0.",
	quotaWaitersPerClient:   "As many polls of this client wait at this node as may (waitersPerClient). End one, or read again after retryAfterMs or with waitMs 0.",
	quotaRequests:           "This node builds as many answers as it may (requests), and none was done in time. Try again after retryAfterMs.",
	quotaRequestsWaiting:    "As many requests wait for their turn at this node as may (requestsWaiting). Try again after retryAfterMs.",
	quotaBodyBytes:          "This node holds as many bytes of answers that were not taken yet as it may (bodyBytes). Try again after retryAfterMs.",
	quotaBodyBytesPerClient: "This client has not taken as many bytes of answers as may wait for it (bodyBytesPerClient). Take them, or try again after retryAfterMs or with a smaller maxBytes.",
	quotaSessionsPerClient:  "This client holds as many sessions of this service as it may (sessionsPerClient). Close one, or let one run out, and open again.",
	quotaSessions:           "This service holds as many sessions as it may (sessions). Open again when others have ended.",
	quotaRetainedBytes:      "The sessions of this service keep as many bytes as they may (retainedBytes). Open again when others have ended, or with a smaller maxBytes.",
}

// Where no bucket says when there will be room, a peer is asked to wait this long. A poll that cannot wait has been answered
// what there was, so it may come back later than a request that was answered nothing. Bodies that are not taken make room slowly, and
// one that finds none has been all but built.
const (
	waiterRetry  = 5 * time.Second
	requestRetry = time.Second
	bodyRetry    = 5 * time.Second
)

// refuseLoad refuses what may be tried again after a while.
func refuseLoad(q quota, after time.Duration) *refusal {
	r := refuse(wire.Unavailable, quotaTexts[q])
	r.quota = q
	r.public.Retryable = true
	r.public.RetryAfterMs = new(milliseconds(after))
	return r
}

// refuseLasting refuses what no waiting of a stated length can cure. It has no limit object: that is for what does not fit a
// response (BRC-193 s8).
func refuseLasting(q quota) *refusal {
	r := refuse(wire.Limited, quotaTexts[q])
	r.quota = q
	return r
}

// milliseconds rounds up, to at least 1, so that who waits as long as told is not early. The bounds of Quotas keep it within
// a U32.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Millisecond-1)/time.Millisecond, 1), 1<<32-1))
}

// quotas are Quotas in force.
type quotas struct {
	Quotas
	opens   *opens
	waiters *places
	slots   *slots   // of the main database
	others  []*slots // of the other databases; complete when New returns
	bodies  *bodies
	refused map[quota]*atomic.Uint64 // since start; the map is static
	warned  atomic.Bool              // of X-Forwarded-For from a peer that is not a trusted proxy
}

func newQuotas(q Quotas) *quotas {
	all := &quotas{
		Quotas: q, opens: newOpens(q), waiters: newPlaces(q.Waiters, q.WaitersPerClient),
		bodies: newBodies(q.BodyBytes, q.BodyBytesPerClient),
		slots:  newSlots(q.Requests, q.RequestsWaiting, time.Duration(q.RequestWaitMs)*time.Millisecond), refused: make(map[quota]*atomic.Uint64),
	}
	for name := range quotaTexts {
		all.refused[name] = new(atomic.Uint64)
	}
	return all
}

// another makes the slots of another database: one that hangs must not keep what others could answer waiting.
func (q *quotas) another(with Quotas) *slots {
	s := newSlots(with.Requests, with.RequestsWaiting, time.Duration(with.RequestWaitMs)*time.Millisecond)
	q.others = append(q.others, s)
	return s
}

// building counts the bodies that are built, and the requests that wait for their turn.
func (q *quotas) building() (taken, waiting int) {
	taken, waiting = q.slots.count()
	for _, s := range q.others {
		t, w := s.count()
		taken, waiting = taken+t, waiting+w
	}
	return taken, waiting
}

// mostBuilding are the bounds of both, all databases together.
func (q *quotas) mostBuilding() (taken, waiting int) {
	taken, waiting = q.slots.most, q.slots.mostWaiting
	for _, s := range q.others {
		taken, waiting = taken+s.most, waiting+s.mostWaiting
	}
	return taken, waiting
}
