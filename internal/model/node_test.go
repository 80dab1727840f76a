package model_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

const (
	base           = "http://model.test"
	rulesParameter = `{"attributes":["artist","genre"]}`
	// beginning is T when a case begins.
	beginning = 4_000_000_000
	// timerLockClass is the first key of the advisory lock by which one process drains a feed's timers.
	timerLockClass = 0x6f76746d
)

func chain() livefeed.Chain {
	return livefeed.Chain{Network: "test", Genesis: sha256.Sum256([]byte("model"))}
}

// rig is what a few cases share: a database, two nodes' stores, people with keys, and a connection that holds the timer
// locks, so that no worker expires rows at a moment of its own.
type rig struct {
	t        *testing.T
	db       *pgtest.DB
	identity *ec.PrivateKey
	stores   []*running
	locks    *pgx.Conn
	people   []*person
}

// running is one node's store at work.
type running struct {
	pool, writer *pgxpool.Pool
	store        *livefeed.Store
	cancel       context.CancelFunc
	done         sync.WaitGroup
}

// person is an identity that signs its requests.
type person struct {
	identity [33]byte
	client   *brc104.Client
	session  *brc104.Session
	answers  int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, db: pgtest.New(t)}
	var err error
	if r.identity, err = ec.NewPrivateKey(); err != nil {
		t.Fatal(err)
	}
	r.locks = pgtest.Conn(t, r.db)
	for range 2 {
		r.stores = append(r.stores, r.run())
	}
	t.Cleanup(func() {
		for _, s := range r.stores {
			s.stop()
		}
	})
	for i := range 2 {
		key := secp256k1.PrivKeyFromBytes(bytes.Repeat([]byte{byte(i + 1)}, 32))
		client, err := brc104.NewClient(key)
		if err != nil {
			t.Fatal(err)
		}
		r.people = append(r.people, &person{identity: [33]byte(key.PubKey().SerializeCompressed()), client: client})
	}
	return r
}

// run starts a store as a new process would.
func (r *rig) run() *running {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	s := &running{cancel: cancel}
	s.pool, s.writer = r.pool(4), r.pool(2)
	var err error
	if s.store, err = livefeed.NewStore(ctx, livefeed.Config{Pool: s.pool, Writer: s.writer, Log: slog.New(slog.DiscardHandler)}); err != nil {
		r.t.Fatal(err)
	}
	s.done.Go(func() {
		if err := s.store.Run(ctx); err != nil {
			r.t.Errorf("store: %v", err)
		}
	})
	return s
}

func (s *running) stop() {
	s.cancel()
	s.done.Wait()
	s.pool.Close()
	s.writer.Close()
}

func (r *rig) pool(conns int32) *pgxpool.Pool {
	r.t.Helper()
	c, err := pgxpool.ParseConfig(r.db.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	livefeed.Configure(c)
	c.MaxConns = conns
	p, err := pgxpool.NewWithConfig(context.WithoutCancel(r.t.Context()), c)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// node is one node's provider of a case's feed.
type node struct {
	running  *running
	provider *lookup.Provider
	feed     *livefeed.Feed
	handler  http.Handler
}

// feedName ensures a feed that no worker holds the timers of.
func (r *rig) feedName(prefix string) (string, error) {
	for i := 0; ; i++ {
		name := fmt.Sprint(prefix, "-", i)
		f, err := r.stores[0].store.Ensure(r.t.Context(), name, chain())
		if err != nil {
			return "", err
		}
		// The clock is far ahead of any real one before anything is promised by it: only the test moves it.
		if err := f.Advance(r.t.Context(), r.stores[0].pool, beginning); err != nil {
			return "", err
		}
		var got bool
		if err := r.locks.QueryRow(r.t.Context(), `select pg_try_advisory_lock($1, $2)`, timerLockClass, f.ID()).Scan(&got); err != nil {
			return "", err
		}
		if got {
			return name, nil
		}
	}
}

// provide makes node i's provider of a feed.
func (r *rig) provide(i int, feed string) (*node, error) {
	s := r.stores[i]
	service := func(who int, authentication, access string) lookup.Service {
		name, most := serviceOf(who)
		return lookup.Service{
			Name: name, Feed: feed, Authentication: authentication, Access: access, RulesParameters: json.RawMessage(rulesParameter),
			SessionSeconds: sessionSeconds, ReplaySeconds: replaySeconds,
			MaxRequestBytes: 65536, MaxResponseBytes: most.MaxBytes, MaxObservations: most.MaxObservations, MaxWaitMs: most.WaitMs,
		}
	}
	p, err := lookup.New(r.t.Context(), lookup.Config{
		Store: s.store, Pool: s.pool, BaseURL: base, LocalDevelopment: true, Chain: chain(), Identity: r.identity,
		Services: []lookup.Service{service(-1, "none", ""), service(0, "brc103", lookup.AccessList)},
		Log:      slog.New(slog.DiscardHandler),
		Quotas: lookup.Quotas{
			OpensPerSecond: 1e6, OpenBurst: 1e6, ServiceOpensPerSecond: 1e6, ServiceOpenBurst: 1e6, SessionsPerClient: 1e6,
		},
	})
	if err != nil {
		return nil, err
	}
	n := &node{running: s, provider: p, feed: s.store.Feed(feed), handler: p.Echo()}
	for _, person := range r.people {
		if person.session == nil {
			if err := person.greet(n); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

func (p *person) greet(n *node) error {
	hello := p.client.Hello()
	r := httptest.NewRequest(http.MethodPost, base+brc104.HandshakePath, bytes.NewReader(hello.Body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	n.handler.ServeHTTP(w, r)
	var err error
	p.session, err = p.client.Begin(hello, w.Body.Bytes())
	return err
}

const (
	openPath  = "/overlay/v1/lookup/open"
	readPath  = "/overlay/v1/lookup/read"
	closePath = "/overlay/v1/lookup/close"
)

// call is one request, in memory, signed if a person sends it.
func (n *node) call(p *person, path string, body []byte, capability string) (status int, answer []byte, err error) {
	r := httptest.NewRequest(http.MethodPost, base+path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(wire.HeaderCapability, capability)
	r.Header.Set(wire.HeaderProfile, wire.Profile)
	w := httptest.NewRecorder()
	if p == nil {
		r.Header.Set("Cache-Control", "no-store")
		n.handler.ServeHTTP(w, r)
		return w.Code, w.Body.Bytes(), nil
	}
	sent, err := p.session.Sign(r, body)
	if err != nil {
		return 0, nil, err
	}
	n.handler.ServeHTTP(w, r)
	// One signature in so many is verified: they are costly, and shown elsewhere.
	if p.answers++; p.answers%16 == 0 {
		err = sent.Verify(w.Code, w.Header(), w.Body.Bytes())
	} else if w.Header().Get(brc104.HeaderSignature) == "" {
		err = errors.New("it has none")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("the answer's signature: %w in %d %s", err, w.Code, w.Body.Bytes())
	}
	return w.Code, w.Body.Bytes(), nil
}

// manifest is the manifest in force.
func (n *node) manifest() (*wire.Capabilities, error) {
	r := httptest.NewRequest(http.MethodGet, base+"/overlay/v1/capabilities", nil)
	w := httptest.NewRecorder()
	n.handler.ServeHTTP(w, r)
	return wire.VerifyCapabilities(w.Body.Bytes())
}
