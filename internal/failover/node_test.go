package failover_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

const (
	feedName    = "catalogue"
	serviceName = "ls_catalogue"
)

// node is a provider on a database: store, sessions, and HTTP.
type node struct {
	t     *testing.T
	store *livefeed.Store
	feed  *livefeed.Feed
	base  string
	log   *testkit.Log
	begun string // what the log said before anything was served
	stop  func()
}

// place is where nodes of a test run: which database, where their state file is, and one identity and address for all of
// them, as those of a deployment have.
type place struct {
	t         *testing.T
	url       string
	stateFile string // "": memory
	identity  *ec.PrivateKey
	server    *httptest.Server
	mu        sync.Mutex
	handler   http.Handler // of the node that runs
}

func newPlace(t *testing.T, database string) *place {
	t.Helper()
	identity, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, url: database, stateFile: t.TempDir() + "/state.json", identity: identity}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		handler := p.handler
		p.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(p.server.Close)
	return p
}

// run starts a node; it ends with the test at the latest.
func (p *place) run() *node {
	p.t.Helper()
	n := &node{t: p.t, log: &testkit.Log{}, base: p.server.URL}
	log := slog.New(slog.NewTextHandler(n.log, nil))
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("log of a node:\n%s", n.log)
		}
	})
	witness, err := livefeed.OpenWitness(p.stateFile, log)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	var pools []*pgxpool.Pool
	for _, conns := range []int32{6, 2} {
		c, err := pgxpool.ParseConfig(p.url)
		if err != nil {
			p.t.Fatal(err)
		}
		livefeed.Configure(c)
		witness.Guard(c)
		c.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(ctx, c)
		if err != nil {
			p.t.Fatal(err)
		}
		pools = append(pools, pool)
	}
	chain := livefeed.Chain{Network: "test", Genesis: sha256.Sum256([]byte("genesis"))}
	if n.store, err = livefeed.NewStore(ctx, livefeed.Config{Pool: pools[0], Writer: pools[1], Log: log, Witness: witness}); err != nil {
		p.t.Fatal(err)
	}
	provider, err := lookup.New(ctx, lookup.Config{
		Store: n.store, Pool: pools[0], BaseURL: n.base, LocalDevelopment: true, Chain: chain, Identity: p.identity, Log: log,
		Services: []lookup.Service{{
			Name: serviceName, Feed: feedName, RulesParameters: json.RawMessage(`{"attributes":["artist"]}`),
			SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	n.feed, n.begun = n.store.Feed(feedName), n.log.String()
	p.mu.Lock()
	p.handler = provider.Echo()
	p.mu.Unlock()
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"store": n.store.Run, "provider": provider.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				p.t.Errorf("%s: %v", name, err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() {
		provider.Stop()
		cancel()
		running.Wait()
		for _, pool := range pools {
			pool.Close()
		}
	})
	p.t.Cleanup(n.stop)
	return n
}

// append puts a row of that number.
func (n *node) append(number int) livefeed.Receipt {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testkit.Patience)
	defer cancel()
	text := fmt.Sprint("row-", number)
	sum := sha256.Sum256([]byte(text))
	for {
		r, err := n.feed.Append(ctx, &livefeed.Proposal{Key: "failover-key-012345-" + text, Digest: [16]byte(sum[:16]), Edits: []livefeed.Edit{{
			Op: livefeed.Put, Outpoint: livefeed.Outpoint{TxID: sum}, BEEF: []byte(text), Order: fmt.Appendf(nil, "%06d", number),
			Attributes: []livefeed.Attribute{{Name: "artist", Values: []string{"a"}}},
		}}})
		if livefeed.CodeOf(err) == livefeed.Unavailable && ctx.Err() == nil {
			continue // as a client does: again, with the same key
		}
		if err != nil {
			n.t.Fatalf("append: %v", err)
		}
		return r
	}
}

// turns is what the database records of the feed's rotations.
func turns(t *testing.T, database string) string {
	t.Helper()
	return ask(t, database, `select coalesce(string_agg(turn || case mode when 1 then ' retire' else ' break' end || case when key is null then ' found' else '' end, ', ' order by turn), 'none') from feed_turn`)
}

// promise is what one client holds from a provider: a manifest, a session, its saved Open and the place it has read to.
type promise struct {
	caller  *e2e.Caller
	request []byte // the Open
	first   []byte // its answer
	at      *wire.Batch
	epoch   string
	// unknown: the restored database has not its manifest, so that an Open under it is context-changed: the client asks for
	// the present one and begins anew, as after reset-required.
	unknown bool
}

const openPath = "/overlay/v1/lookup/open"

// insist asks again while the provider cannot answer, as a client does: its database may be away.
func (n *node) insist(ask func() e2e.Answer) e2e.Answer {
	n.t.Helper()
	var a e2e.Answer
	testkit.Eventually(n.t, "another answer than that the provider is unavailable", func() bool {
		a = ask()
		return a.Status != http.StatusServiceUnavailable
	})
	return a
}

func (n *node) read(p *promise, at *wire.Batch) e2e.Answer {
	n.t.Helper()
	return n.insist(func() e2e.Answer { return p.caller.Read(at, 0) })
}

// open sends the promise's Open, once more.
func (n *node) open(p *promise) e2e.Answer {
	n.t.Helper()
	return n.insist(func() e2e.Answer {
		a, err := p.caller.Do(n.t.Context(), http.MethodPost, openPath, p.request)
		if err != nil {
			n.t.Fatal(err)
		}
		return a
	})
}

// promised opens a session and reads it up to the present.
func (n *node) promised(name string) *promise {
	n.t.Helper()
	p := &promise{caller: e2e.NewCaller(n.t, n.base)}
	id := sha256.Sum256([]byte(name + time.Now().String()))
	p.request = fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":"%s","query":{},"limits":{"maxBytes":4194304,"maxObservations":1024,"waitMs":0}}`,
		base64.RawURLEncoding.EncodeToString(id[:24]), serviceName)
	a := n.open(p)
	p.at, p.first = a.Batch(n.t), a.Body
	p.epoch = p.at.Scope.Epoch
	for !p.at.SnapshotComplete {
		p.at = n.read(p, p.at).Batch(n.t)
	}
	p.at = n.read(p, p.at).Batch(n.t)
	return p
}

// kept shows that everything promised is served, and that what comes next arrives.
func (n *node) kept(p *promise, next int) {
	n.t.Helper()
	if a := n.open(p); a.Status != http.StatusOK || !bytes.Equal(a.Body, p.first) {
		n.t.Errorf("the Open asked again: %d %s", a.Status, a.Body)
	}
	n.woken(p, next)
	if p.at.Scope.Epoch != p.epoch {
		n.t.Errorf("the session's epoch was %s and is %s", p.epoch, p.at.Scope.Epoch)
	}
}

// woken waits in a live poll while a row is appended, and gets it.
func (n *node) woken(p *promise, next int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testkit.Patience)
	defer cancel()
	done := make(chan e2e.Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := p.caller.ReadFrom(ctx, p.at, 25*time.Second)
		if err != nil {
			failed <- err
			return
		}
		done <- a
	}()
	n.append(next)
	select {
	case err := <-failed:
		n.t.Fatalf("a poll: %v", err)
	case a := <-done:
		p.at = a.Batch(n.t)
	}
	if len(p.at.Groups) != 1 {
		n.t.Errorf("the poll brought %d groups", len(p.at.Groups))
	}
}

// void shows that nothing of a promise is served any more, and that a client that begins anew is well.
func (n *node) void(next int, promises ...*promise) {
	n.t.Helper()
	for _, p := range promises {
		code := wire.ResetRequired
		if p.unknown {
			code = wire.ContextChanged
		}
		n.read(p, p.at).Refused(n.t, wire.ResetRequired)
		n.open(p).Refused(n.t, code)
		// Its manifest names the old epoch.
		n.insist(func() e2e.Answer { return p.caller.Open(serviceName) }).Refused(n.t, code)
	}
	fresh := n.promised("fresh")
	if slices.ContainsFunc(promises, func(p *promise) bool { return p.epoch == fresh.epoch }) {
		n.t.Errorf("the epoch %s came back", fresh.epoch)
	}
	n.woken(fresh, next)
}

// poll is a live poll under way.
type poll struct{ done chan e2e.Answer }

// wait starts a poll that nothing but a commit or a break ends soon.
func (n *node) wait(p *promise) *poll {
	out := &poll{done: make(chan e2e.Answer, 1)}
	go func() {
		a, err := p.caller.ReadFrom(context.WithoutCancel(n.t.Context()), p.at, 25*time.Second)
		if err != nil {
			a = e2e.Answer{Body: []byte(err.Error())}
		}
		out.done <- a
	}()
	testkit.Eventually(n.t, "the poll waits", func() bool {
		s, err := n.feed.Stats(n.t.Context())
		return err == nil && s.Waiters > 0
	})
	return out
}

// over checks that a poll ended without delivering anything: reset-required, or its connection was lost.
func (p *poll) over(t *testing.T) {
	t.Helper()
	if a := <-p.done; a.Status != http.StatusServiceUnavailable {
		a.Refused(t, wire.ResetRequired)
	}
}

// foundAtStart checks that the loss was noticed before the node served anything.
func (n *node) foundAtStart() {
	n.t.Helper()
	if !strings.Contains(n.begun, lostHistory) {
		n.t.Error("the loss was not noticed before the node served")
	}
}

// step names what a test does next.
func step(t *testing.T, name string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	t.Logf("%s: %v", name, time.Since(began).Round(time.Millisecond))
}

// logged waits until the node's log says it that often.
func (n *node) logged(text string, times int) {
	n.t.Helper()
	n.log.Await(n.t, text, times)
}
