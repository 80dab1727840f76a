package lookup

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// homes are the databases of one provider, by the names of their feeds.
type homes map[string]*pgtest.DB

// The feeds of the tests, each in a database of its own; that of catalogue is the main one.
const (
	feedMain   = "catalogue"
	feedPrices = "prices"
	feedOrders = "orders"
)

func threeDatabases(t *testing.T) homes {
	t.Helper()
	return homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t), feedOrders: pgtest.New(t)}
}

// site is a node with feeds in several databases.
type site struct {
	*node
	stores map[string]*livefeed.Store
	feeds  map[string]*livefeed.Feed
	pools  map[string]*pgxpool.Pool
	traced map[string]pgx.QueryTracer
}

// servicesOf are those of a feed: a public one, and one for those it admits.
func servicesOf(feed string) []Service {
	public := Service{
		Name: "ls_" + feed, Feed: feed, RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`),
		SessionSeconds: 3600, ReplaySeconds: 600, MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
	}
	list := public
	list.Name, list.Authentication, list.Access = "ls_"+feed+"_members", wire.AuthenticationBRC103, AccessList
	return []Service{public, list}
}

// serve starts a node on the databases, those besides the main one in the order given.
func (h homes) serve(t *testing.T, s setup, elsewhere ...string) *site {
	t.Helper()
	x := &site{stores: map[string]*livefeed.Store{}, feeds: map[string]*livefeed.Feed{}, pools: map[string]*pgxpool.Pool{}, traced: s.tracers}
	s.db = h[feedMain]
	if s.services == nil {
		for _, feed := range append([]string{feedMain}, elsewhere...) {
			s.services = append(s.services, servicesOf(feed)...)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.config = func(c *Config) { c.Databases = h.elsewhere(t, ctx, x, elsewhere...) }
	x.node = start(t, s)
	for _, store := range x.stores {
		running.Go(func() {
			if err := store.Run(ctx); err != nil {
				t.Errorf("store: %v", err)
			}
		})
	}
	first := x.halt
	x.halt = sync.OnceFunc(func() {
		first()
		cancel()
		running.Wait()
		for _, p := range x.pools {
			p.Close()
		}
	})
	t.Cleanup(x.halt)
	x.stores[feedMain], x.pools[feedMain] = x.store, x.pool
	for feed, store := range x.stores {
		x.feeds[feed] = store.Feed(feed)
	}
	return x
}

// elsewhere makes what a configuration says of databases besides the main one.
func (h homes) elsewhere(t *testing.T, ctx context.Context, x *site, feeds ...string) []Database {
	t.Helper()
	var list []Database
	for _, feed := range feeds {
		p := pool(t, h[feed].URL, 8, x.traced[feed])
		store, err := livefeed.NewStore(ctx, livefeed.Config{Pool: p, Writer: p})
		if err != nil {
			t.Fatal(err)
		}
		x.stores[feed], x.pools[feed] = store, p
		list = append(list, Database{Store: store, Pool: p, Feeds: []string{feed}})
	}
	return list
}

// in is the node seen from one of its feeds: what it appends goes there.
func (x *site) in(feed string) *node {
	n := *x.node
	n.feed, n.pool = x.feeds[feed], x.pools[feed]
	return &n
}

// openIn opens a session of the public service of a feed.
func (x *site) openIn(feed string, a ask) *wire.Batch {
	x.t.Helper()
	return x.request(openPath, a.at("ls_"+feed)).batch(x.t)
}

// idOf is the id of a feed's database.
func (h homes) idOf(t *testing.T, feed string) string {
	t.Helper()
	id, err := Identify(t.Context(), h[feed].Pool)
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// countIn counts the rows of a table of a feed's database.
func (h homes) countIn(t *testing.T, feed, what string) (n int) {
	t.Helper()
	if err := h[feed].Pool.QueryRow(t.Context(), "select count(*) from "+what).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// bridge is a way to a database that can be cut: connections break, and new ones are refused.
type bridge struct {
	listener net.Listener
	work     sync.WaitGroup
	mu       sync.Mutex
	down     bool
	ends     map[net.Conn]struct{}
}

// over returns the database as it is reached over a bridge.
func over(t *testing.T, db *pgtest.DB) (*pgtest.DB, *bridge) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	b := &bridge{ends: map[net.Conn]struct{}{}}
	if b.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = b.listener.Addr().String()
	b.work.Go(func() {
		for {
			near, err := b.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil || !b.hold(near, far) {
				_ = near.Close()
				if err == nil {
					_ = far.Close()
				}
				continue
			}
			carry := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_, _ = to.Close(), from.Close()
			}
			b.work.Go(func() { carry(near, far) })
			b.work.Go(func() { carry(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = b.listener.Close()
		b.cut()
		b.work.Wait()
	})
	return &pgtest.DB{URL: u.String(), Pool: db.Pool}, b
}

func (b *bridge) hold(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		b.ends[c] = struct{}{}
	}
	return !b.down
}

func (b *bridge) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = true
	for c := range b.ends {
		_ = c.Close()
	}
	clear(b.ends)
}

func (b *bridge) mend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = false
}

// The ways in which a database is away.
const (
	cutOff      = "cut"  // connections break, and new ones are refused
	standsStill = "hung" // connections stand, and nothing passes
)

// severable returns the database of a feed as it can be away, and puts it in the other's place.
func (h homes) severable(t *testing.T, how, feed string) (leave, comeBack func()) {
	t.Helper()
	if how == cutOff {
		db, way := over(t, h[feed])
		h[feed] = db
		return way.cut, way.mend
	}
	db, way := through(t, h[feed])
	h[feed] = db
	return way.mu.Lock, way.mu.Unlock
}

// prefix is the clear part of a session id: its mode and its database.
func prefix(session string) string {
	mode, _, _ := strings.Cut(session, ".")
	return mode
}
