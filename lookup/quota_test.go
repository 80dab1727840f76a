package lookup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	dto "github.com/prometheus/client_model/go"

	"github.com/overlayd/overlayd/internal/wire"
)

const otherService = "ls_other"

// shops is a node of two public services on one feed, behind a proxy that it trusts: who says from is who asks.
func shops(t *testing.T, s setup) *node {
	t.Helper()
	for _, name := range []string{testService, otherService} {
		s.services = append(s.services, Service{
			Name: name, Feed: "catalogue", RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`),
			SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		})
	}
	if s.extractor == nil {
		s.extractor = echo.ExtractIPFromXFFHeader(echo.TrustLoopback(true))
	}
	n := start(t, s)
	n.digest = n.manifest().Digest()
	return n
}

func from(address string) func(*http.Request) { return header(echo.HeaderXForwardedFor, address) }

// Callers of the tests.
const (
	alice = "203.0.113.1"
	bob   = "203.0.113.2"
	carol = "203.0.113.3"
)

// later moves the clock by which the node's buckets fill.
func (n *node) later(d time.Duration) {
	o := n.provider.quotas.opens
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.now
	o.now = func() time.Time { return was().Add(d) }
}

// refusals are the counts of all quotas that refused anything, as the metrics and as Usage say, which must agree.
func (n *node) refusals() map[string]uint64 {
	n.t.Helper()
	u, err := n.provider.Usage(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	some := make(map[string]uint64)
	for name, count := range u.Node.Refusals {
		if n.metric("overlayd_lookup_quota_refusals_total", name) != float64(count) {
			n.t.Errorf("the metric of %s is not %d", name, count)
		}
		if count > 0 {
			some[name] = count
		}
	}
	return some
}

// metric is the value of a metric with that label value, or of the only one when it is empty.
func (n *node) metric(name, label string) float64 {
	n.t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	n.t.Fatalf("there is no metric %s of %q", name, label)
	return 0
}

// toldBy asserts the whole of what a peer may read of a quota's refusal (conformance rows O10, H5).
func toldBy(t *testing.T, r reply, q quota, lasting bool) *wire.Error {
	t.Helper()
	code := wire.Unavailable
	if lasting {
		code = wire.Limited
	}
	e := r.refused(t, code)
	if e.Message != quotaTexts[q] || !strings.Contains(e.Message, "("+string(q)+")") || e.Limit != nil {
		t.Fatalf("%s: %+v", q, e)
	}
	if e.Retryable == lasting || (e.RetryAfterMs == nil) != lasting || !lasting && *e.RetryAfterMs == 0 {
		t.Fatalf("%s: retryable %v after %v", q, e.Retryable, e.RetryAfterMs)
	}
	return e
}

// whence is an Open: who asks for which service.
type whence struct{ who, service string }

func (n *node) openAs(w whence, a ask) reply {
	n.t.Helper()
	return n.request(openPath, a.at(w.service), from(w.who))
}

func TestO10_EveryQuotaOfOpens(t *testing.T) {
	t.Parallel()
	wait := func(n *node, e *wire.Error, _ *wire.Batch) {
		n.later(time.Duration(*e.RetryAfterMs) * time.Millisecond)
	}
	end := func(n *node, _ *wire.Error, first *wire.Batch) {
		n.request(closePath, closeBody(first.Session), from(alice))
	}
	for _, c := range []struct {
		quota   quota
		lasting bool
		quotas  Quotas
		fill    []whence // alice's Open of testService comes before these
		refused []whence
		others  []whence // not concerned
		most    uint32   // what retryAfterMs may be at most
		recover func(n *node, e *wire.Error, first *wire.Batch)
	}{
		{
			quota: quotaOpens, quotas: Quotas{OpensPerSecond: 0.5, OpenBurst: 2}, most: 2000, recover: wait,
			fill: []whence{{alice, otherService}}, refused: []whence{{alice, testService}, {alice, otherService}}, others: []whence{{bob, testService}},
		},
		{
			quota: quotaServiceOpens, quotas: Quotas{ServiceOpensPerSecond: 0.5, ServiceOpenBurst: 2}, most: 2000, recover: wait,
			fill: []whence{{bob, testService}}, refused: []whence{{alice, testService}, {carol, testService}}, others: []whence{{alice, otherService}},
		},
		{
			quota: quotaClients, quotas: Quotas{OpensPerSecond: 0.001, OpenBurst: 1, Clients: 1}, most: 1_000_000, recover: wait,
			fill: []whence{{bob, testService}}, refused: []whence{{carol, testService}, {bob, testService}},
		},
		{
			quota: quotaSessionsPerClient, lasting: true, quotas: Quotas{SessionsPerClient: 2}, recover: end,
			fill: []whence{{alice, testService}}, refused: []whence{{alice, testService}}, others: []whence{{bob, testService}, {alice, otherService}},
		},
		{
			quota: quotaSessions, lasting: true, quotas: Quotas{Sessions: 2}, recover: end,
			fill: []whence{{bob, testService}}, refused: []whence{{alice, testService}, {carol, testService}}, others: []whence{{alice, otherService}},
		},
		{ // half of the room and more is taken by the first
			quota: quotaRetainedBytes, lasting: true, quotas: Quotas{RetainedBytes: 65536}, recover: end,
			refused: []whence{{alice, testService}, {carol, testService}}, others: []whence{{alice, otherService}},
		},
	} {
		t.Run(string(c.quota), func(t *testing.T) {
			t.Parallel()
			n := shops(t, setup{quotas: c.quotas})
			n.append(mint("big", 27_000).put(genre(0), ""))
			kept := ask{id: newID()}
			saved := n.openAs(whence{alice, testService}, kept)
			first := saved.batch(t)
			for _, w := range c.fill {
				n.openAs(w, ask{}).batch(t)
			}
			fences, sessions := n.count("open_fence"), n.count("lookup_session")
			var e *wire.Error
			again := make([]ask, len(c.refused))
			for i, w := range c.refused {
				again[i] = ask{id: newID()}
				e = toldBy(t, n.openAs(w, again[i]), c.quota, c.lasting)
				if !c.lasting && *e.RetryAfterMs > c.most {
					t.Errorf("retryAfterMs %d", *e.RetryAfterMs)
				}
			}
			// Nothing is left of what was refused, and nothing was ended to make room.
			if n.count("open_fence") != fences || n.count("lookup_session") != sessions {
				t.Errorf("a refused Open left something")
			}
			if got := n.refusals(); len(got) != 1 || got[string(c.quota)] != uint64(len(c.refused)) {
				t.Errorf("refusals %v", got)
			}
			// An existing fence is answered whatever its client has spent, and its session goes on.
			if r := n.openAs(whence{alice, testService}, kept); !bytes.Equal(r.body, saved.body) {
				t.Errorf("the repeated Open: %d %s", r.status, r.body)
			}
			n.openAs(whence{alice, testService}, ask{id: kept.id, query: `{"match":{"genre":"jazz"}}`}).refused(t, wire.Conflict)
			n.request(readPath, readBody(first.Session, first.Cursor, wide), from(alice)).batch(t)
			for _, w := range c.others {
				if r := n.openAs(w, ask{}); r.status != http.StatusOK {
					t.Errorf("%v is concerned: %s", w, r.body)
				}
			}
			// A load that passed, or an end, makes room at once, and the request that was refused has it.
			c.recover(n, e, first)
			last := len(again) - 1
			if c.quota == quotaClients {
				last = 0 // by now bob would be the one who is told apart
			}
			n.openAs(c.refused[last], again[last]).batch(t)
			if strings.Contains(n.log.String(), "level=ERROR") || !strings.Contains(n.log.String(), "quota="+string(c.quota)) {
				t.Errorf("a quota is no fault, and is named in the log:\n%s", n.log)
			}
		})
	}
}

// TestO10_ExactOverNodes: Opens of two nodes that have all passed the early look, and hold all they need but their place, end
// with exactly as many sessions as may be. The pause makes it so; without the lock of own, or the ledger's, more get in.
func TestO10_ExactOverNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		quota  quota
		quotas Quotas
		who    func(i int) string
	}{
		{quotaSessionsPerClient, Quotas{SessionsPerClient: 3}, func(int) string { return alice }},
		{quotaSessions, Quotas{Sessions: 3}, func(i int) string { return fmt.Sprintf("203.0.113.%d", i) }},
		{quotaRetainedBytes, Quotas{RetainedBytes: 3 * 22_000}, func(i int) string { return fmt.Sprintf("203.0.113.%d", i) }},
	} {
		t.Run(string(c.quota), func(t *testing.T) {
			t.Parallel()
			const crowd = 16
			key := identityKey(t)
			one := shops(t, setup{identity: key, quotas: c.quotas})
			two := shops(t, setup{identity: key, quotas: c.quotas, db: one.db, base: one.provider.baseURL})
			one.append(mint("big", 15_000).put(genre(0), ""))
			for round, room := range []int{3, 0, 1} {
				var there sync.WaitGroup
				there.Add(crowd)
				pause := func() { there.Done(); there.Wait() }
				stop := func() {}
				if room == 3 { // later rounds are refused by the early look, some of them
					stopOne, stopTwo := one.during(afterFirst, pause), two.during(afterFirst, pause)
					stop = func() { stopOne(); stopTwo() }
				}
				before := one.count("open_fence")
				replies := make([]reply, crowd)
				errs := make([]error, crowd)
				var all sync.WaitGroup
				for i := range crowd {
					all.Go(func() {
						n := []*node{one, two}[i%2]
						replies[i], errs[i] = n.try(context.Background(), openPath, ask{}.at(testService), from(c.who(i)))
					})
				}
				all.Wait()
				stop()
				var opened []*wire.Batch
				for i, r := range replies {
					switch {
					case errs[i] != nil:
						t.Fatal(errs[i])
					case r.status == http.StatusOK:
						opened = append(opened, r.batch(t))
					default:
						toldBy(t, r, c.quota, true)
					}
				}
				if len(opened) != room || one.count("open_fence") != before+room {
					t.Fatalf("round %d: %d opened, room was for %d", round, len(opened), room)
				}
				if room == 0 { // an end at either node makes room at once
					var ref [16]byte
					if err := one.pool.QueryRow(t.Context(), `select ref from lookup_session where state = 1 limit 1`).Scan(&ref); err != nil {
						t.Fatal(err)
					}
					if changed, err := two.provider.RemoveSession(t.Context(), ref); err != nil || !changed {
						t.Fatal(changed, err)
					}
				}
			}
			ledgerHolds(t, one)
		})
	}
}

// ledgerHolds compares what Usage says with the sessions themselves.
func ledgerHolds(t *testing.T, n *node) {
	t.Helper()
	u, err := n.provider.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range u.Services {
		var sessions, retained int64
		if err := n.pool.QueryRow(t.Context(), `select count(*), coalesce(sum(retained), 0) from lookup_session where state = 1 and service = $1`,
			s.Service).Scan(&sessions, &retained); err != nil {
			t.Fatal(err)
		}
		if s.Sessions != sessions || s.RetainedBytes != retained {
			t.Fatalf("%+v, the sessions are %d with %d bytes", s, sessions, retained)
		}
	}
}

// TestO10_TheSameOpenIsAnswered: of two identical Opens that ask for the last place, the second is answered as the first was.
func TestO10_TheSameOpenIsAnswered(t *testing.T) {
	t.Parallel()
	for _, q := range []Quotas{{SessionsPerClient: 1}, {Sessions: 1}} {
		n := shops(t, setup{quotas: q})
		body := ask{id: newID()}.at(testService)
		var once sync.Once
		var first reply
		n.during(admitted, func() {
			once.Do(func() { // the later one has found no fence; now the other comes and takes the place
				n.provider.pause.Store(nil)
				first = n.request(openPath, body, from(alice))
			})
		})
		second := n.request(openPath, body, from(alice))
		if first.status != http.StatusOK || !bytes.Equal(first.body, second.body) {
			t.Fatalf("%d %s\n%d %s", first.status, first.body, second.status, second.body)
		}
		if got := n.refusals(); len(got) != 0 {
			t.Fatalf("%v", got)
		}
	}
}

// TestO10_HeldUntilReplayUntil: a session counts for its client as long as its records are promised, and not a second longer.
func TestO10_HeldUntilReplayUntil(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{SessionsPerClient: 1}})
	b := n.openAs(whence{alice, testService}, ask{}).batch(t)
	for _, at := range []uint64{b.ExpiresAt, b.ReplayUntil - 1} {
		n.advance(at)
		toldBy(t, n.openAs(whence{alice, testService}, ask{}), quotaSessionsPerClient, true)
	}
	n.advance(b.ReplayUntil)
	n.openAs(whence{alice, testService}, ask{}).batch(t)
}

// TestO10_AFirstBodyAboveTheQuota: a service that keeps nothing yet keeps no more than it may either.
func TestO10_AFirstBodyAboveTheQuota(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{RetainedBytes: 65536}})
	n.append(mint("vast", 60_000).put(genre(0), ""))
	again := ask{id: newID()}
	toldBy(t, n.openAs(whence{alice, testService}, again), quotaRetainedBytes, true)
	if n.count("open_fence")+n.count("lookup_session")+n.count("lookup_ledger") != 0 {
		t.Error("a refused Open left something")
	}
	again.query = `{"match":{"genre":"rock"}}`
	n.openAs(whence{alice, testService}, again).batch(t)
	ledgerHolds(t, n)
}

// TestO10_AnonymousCallersCountByAddress: behind a trusted proxy by the address that it names, otherwise by the peer's.
func TestO10_AnonymousCallersCountByAddress(t *testing.T) {
	t.Parallel()
	const warning = "X-Forwarded-For came from a peer that is not a trusted proxy"
	nobody := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for name, c := range map[string]struct {
		extractor echo.IPExtractor
		trusted   bool
	}{
		"trusted proxy":     {echo.ExtractIPFromXFFHeader(echo.TrustLoopback(true)), true},
		"proxy not trusted": {echo.ExtractIPFromXFFHeader(nobody...), false},
		"no proxies":        {echo.ExtractIPDirect(), false},
		"nothing said":      {func(r *http.Request) string { return echo.New().NewContext(r, nil).RealIP() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := shops(t, setup{quotas: Quotas{SessionsPerClient: 1}, extractor: c.extractor})
			n.request(openPath, ask{}.at(testService)).batch(t) // straight from loopback
			if strings.Contains(n.log.String(), warning) {
				t.Fatal("warned of nothing")
			}
			for _, who := range []struct {
				address string
				known   bool // as one that has its session already
			}{
				{alice, false}, {alice, true}, {bob, false}, {"::ffff:" + bob, true}, {"198.51.100.7, " + bob, true},
				{"2001:db8:1:1::1", false}, {"2001:db8:1:1:ffff::2", true}, {"2001:db8:1:2::1", false},
				{"not an address", true}, // then the proxy itself counts
			} {
				r := n.request(openPath, ask{}.at(testService), from(who.address))
				if who.known || !c.trusted {
					toldBy(t, r, quotaSessionsPerClient, true)
				} else {
					r.batch(t)
				}
			}
			if got, want := strings.Count(n.log.String(), warning), map[bool]int{false: 1}[c.trusted]; got != want {
				t.Errorf("warned %d times, want %d", got, want)
			}
		})
	}
}

func TestO10_Networks(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{"192.0.2.1", "::ffff:192.0.2.1"}, {"192.0.2.2"},
		{"2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff:ffff:ffff:ffff", "2001:db8::1%eth0"}, {"2001:db8:0:1::1"},
		{"fe80::1%a", "fe80::1%b"}, {"", "unknown", "192.0.2.1:80", "@"},
	} {
		for _, address := range same {
			if !bytes.Equal(network(address), network(same[0])) {
				t.Errorf("%q is another client than %q", address, same[0])
			}
			for _, other := range []string{"192.0.2.3", "2001:db8:0:2::1"} {
				if bytes.Equal(network(address), network(other)) {
					t.Errorf("%q is the same client as %q", address, other)
				}
			}
		}
	}
}

// TestO10_PrincipalsCountApart: an identity is one client wherever it comes from, and no other is concerned.
func TestO10_PrincipalsCountApart(t *testing.T) {
	t.Parallel()
	n := members(t, setup{quotas: Quotas{SessionsPerClient: 1}})
	one, two := n.person(1), n.person(2)
	n.grant(one, membersService)
	n.open(ask{})
	b := one.open("ls_anyone", ask{})
	two.open("ls_anyone", ask{})
	one.open(membersService, ask{})
	toldBy(t, one.ask(openPath, ask{}.at("ls_anyone"), from(bob)), quotaSessionsPerClient, true)
	toldBy(t, one.at(n).ask(openPath, ask{}.at("ls_anyone")), quotaSessionsPerClient, true)
	toldBy(t, n.request(openPath, ask{}.body()), quotaSessionsPerClient, true)
	one.ask(closePath, closeBody(b.Session))
	one.open("ls_anyone", ask{})
	// What is stored of a client is a digest of 16 bytes, one a client.
	rows, clients := n.count("lookup_session where octet_length(client) = 16"), n.count("(select distinct client from lookup_session) c")
	if rows != n.count("lookup_session") || clients != 3 || n.count("lookup_session where position(client in principal) > 0") != 0 {
		t.Errorf("%d rows of %d clients", rows, clients)
	}
}

func TestO10_QuotasHaveDefaultsAndBounds(t *testing.T) {
	t.Parallel()
	q, err := Quotas{}.filled()
	if err != nil || q.Requests != max(16, 8*runtime.GOMAXPROCS(0)) || q.OpensPerSecond != DefaultOpensPerSecond || q.RetainedBytes != 10<<30 {
		t.Fatalf("%+v, %v", q, err)
	}
	for name, limit := range q.limits() {
		if limit <= 0 {
			t.Errorf("%s has no default", name)
		}
	}
	if same, err := q.filled(); err != nil || same != q {
		t.Fatalf("%+v, %v", same, err)
	}
	for _, bad := range []Quotas{
		{OpensPerSecond: -1}, {OpensPerSecond: math.NaN()}, {OpensPerSecond: math.Inf(1)}, {OpensPerSecond: 0.0001}, {OpenBurst: -1},
		{ServiceOpensPerSecond: 1e9}, {ServiceOpenBurst: 1e9}, {Clients: -1}, {Waiters: -1}, {WaitersPerClient: 1e9}, {Requests: -1},
		{RequestsWaiting: -1}, {RequestWaitMs: 60_001},
		{BodyBytes: leastBodyBytes - 1}, {BodyBytesPerClient: -1}, {BodyBytesPerSecond: -1}, {SessionsPerClient: -1}, {Sessions: -1}, {RetainedBytes: 65535},
	} {
		if _, err := bad.filled(); err == nil || strings.Count(err.Error(), "set it to") != 1 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	_, err = Quotas{OpenBurst: -1, Sessions: -1}.filled()
	if err == nil || strings.Count(err.Error(), "set it to") != 2 {
		t.Errorf("not every fault is named: %v", err)
	}
}

// TestO10_UsageIsShown: what operators see, and its metrics.
func TestO10_UsageIsShown(t *testing.T) {
	t.Parallel()
	n := shops(t, setup{quotas: Quotas{Sessions: 7, RetainedBytes: 1 << 20, Waiters: 5}})
	b := n.openAs(whence{alice, otherService}, ask{}).batch(t)
	n.openAs(whence{alice, otherService}, ask{}).batch(t)
	ledgerHolds(t, n)
	u, err := n.provider.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, s := range u.Services {
		names = append(names, s.Service)
		if s.MaxSessions != 7 || s.MaxRetainedBytes != 1<<20 || s.Feed != "catalogue" || (s.Sessions == 2) != (s.Service == otherService) {
			t.Errorf("%+v", s)
		}
	}
	if !slices.Equal(names, []string{testService, otherService}) {
		t.Errorf("%v", names)
	}
	if x := u.Node; x.MaxWaiters != 5 || x.MaxRequests != u.Node.Quotas.Requests || x.MaxRequests < LeastDefaultRequests || x.MaxRequestsWaiting != DefaultRequestsWaiting || x.MaxClients != DefaultClients || len(x.Refusals) != len(quotaTexts) {
		t.Errorf("%+v", x)
	}
	for _, want := range []float64{2, 1} {
		if err := n.provider.main.gauges(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := n.metric("overlayd_lookup_sessions", otherService); got != want {
			t.Errorf("%v sessions, want %v", got, want)
		}
		if got := n.metric("overlayd_lookup_retained_bytes", otherService); (got > 500*want) != (got > 0) || got == 0 {
			t.Errorf("%v bytes", got)
		}
		n.request(closePath, closeBody(b.Session))
	}
	for name, limit := range n.provider.quotas.limits() {
		if got := n.metric("overlayd_lookup_quota_limit", name); got != limit {
			t.Errorf("%s: limit %v, want %v", name, got, limit)
		}
	}
	// A service that is gone is listed while it holds sessions.
	n.halt()
	m := start(t, setup{db: n.db, base: n.provider.baseURL, identity: n.provider.identity})
	left := func() []string {
		u, err := m.provider.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range u.Services {
			names = append(names, s.Service)
		}
		return names
	}
	if got := left(); !slices.Equal(got, []string{testService, otherService}) {
		t.Errorf("%v", got)
	}
	if _, err := m.provider.main.end(t.Context(), m.pool, stateRevoked, `true`); err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{testService}) {
		t.Errorf("%v", got)
	}
}
