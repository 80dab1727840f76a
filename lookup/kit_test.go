package lookup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// node is one running provider on a database: store, provider and a real HTTP server, as another process would be.
type node struct {
	t        testing.TB
	db       *pgtest.DB
	pool     *pgxpool.Pool
	store    *livefeed.Store
	provider *Provider
	feed     *livefeed.Feed
	base     string
	log      *testkit.Log
	metrics  *prometheus.Registry
	digest   string // the capability digest to send; empty: the one now served
	halt     func()
}

type setup struct {
	db        *pgtest.DB // nil: a new one
	identity  *ec.PrivateKey
	service   func(*Service)
	services  []Service // instead of the one
	base      string    // of an earlier node, so that this one stands for the same provider
	manifest  uint64
	origins   []string
	poolConns int32
	retention Retention // zero: no rounds but those the test asks for
	rules     []Rules
	quotas    Quotas // zero fields: so large that no test meets them by accident
	extractor echo.IPExtractor
	tracer    pgx.QueryTracer            // of the pool; nil: none
	tracers   map[string]pgx.QueryTracer // of the pools of databases besides the main one, by feed
	config    func(*Config)              // the last word, if it is set
}

const testService = "ls_catalogue"

func testChain() livefeed.Chain {
	return livefeed.Chain{Network: "test", Genesis: sha256.Sum256([]byte("genesis"))}
}

// start runs a node until the test ends or halt is called.
func start(t testing.TB, s setup) *node {
	t.Helper()
	n := &node{t: t, db: s.db, log: &testkit.Log{}, metrics: prometheus.NewRegistry()}
	if n.db == nil {
		n.db = pgtest.New(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	conns := s.poolConns
	if conns == 0 {
		conns = 12
	}
	n.pool = pool(t, n.db.URL, conns, s.tracer)
	writer := pool(t, n.db.URL, 3, nil)
	log := slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if n.store, err = livefeed.NewStore(ctx, livefeed.Config{Pool: n.pool, Writer: writer, Log: log, Metrics: n.metrics}); err != nil {
		t.Fatal(err)
	}
	if s.identity == nil {
		if s.identity, err = ec.NewPrivateKey(); err != nil {
			t.Fatal(err)
		}
	}
	if s.services == nil {
		service := Service{
			Name: testService, Feed: "catalogue", RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`),
			SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}
		if s.service != nil {
			s.service(&service)
		}
		s.services = []Service{service}
	}
	server := httptest.NewUnstartedServer(nil)
	n.base = "http://" + server.Listener.Addr().String()
	if s.base != "" {
		n.base = s.base
	}
	if s.retention == (Retention{}) {
		s.retention.Every = -1
	}
	config := Config{
		Retention: s.retention, Rules: s.rules,
		Store: n.store, Pool: n.pool, BaseURL: n.base, LocalDevelopment: true, Chain: testChain(), Identity: s.identity,
		Services: s.services, ManifestSeconds: s.manifest, Quotas: roomy(s.quotas), Log: log, Origin: s.origins, Metrics: n.metrics,
	}
	if s.config != nil {
		s.config(&config)
	}
	n.provider, err = New(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	n.feed = n.store.Feed(s.services[0].Feed)
	n.base = "http://" + server.Listener.Addr().String()
	handler := n.provider.Echo()
	handler.IPExtractor = s.extractor
	server.Config.Handler = handler
	server.Config.MaxHeaderBytes = 64 << 10
	server.Start()
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.store.Run(ctx); err != nil {
			t.Errorf("store: %v", err)
		}
	})
	running.Go(func() {
		if err := n.provider.Run(ctx); err != nil {
			t.Errorf("provider: %v", err)
		}
	})
	n.halt = sync.OnceFunc(func() {
		n.provider.Stop()
		server.Close()
		cancel()
		running.Wait()
		n.pool.Close()
		writer.Close()
	})
	t.Cleanup(func() {
		n.halt()
		if t.Failed() {
			t.Logf("log of the node:\n%s", n.log)
		}
	})
	return n
}

// roomy are quotas for tests, which come from one address and open at once what clients open in a year.
func roomy(q Quotas) Quotas {
	q.OpensPerSecond, q.OpenBurst = cmp.Or(q.OpensPerSecond, 1_000_000), cmp.Or(q.OpenBurst, 1_000_000)
	q.ServiceOpensPerSecond, q.ServiceOpenBurst = cmp.Or(q.ServiceOpensPerSecond, 1_000_000), cmp.Or(q.ServiceOpenBurst, 1_000_000)
	q.WaitersPerClient = cmp.Or(q.WaitersPerClient, 20_000)
	q.SessionsPerClient = cmp.Or(q.SessionsPerClient, 1_000_000)
	return q
}

func pool(t testing.TB, url string, conns int32, tracer pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	livefeed.Configure(cfg)
	cfg.MaxConns, cfg.ConnConfig.Tracer = conns, tracer
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reply is one whole HTTP answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) batch(t testing.TB) *wire.Batch {
	t.Helper()
	if r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	b, err := wire.ParseBatch(r.body)
	if err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	if again := b.AppendCanonical(nil); !bytes.Equal(again, r.body) {
		t.Fatalf("body is not canonical:\n%s\n%s", r.body, again)
	}
	return b
}

// refused asserts an error answer of the protocol's shape and returns it.
func (r reply) refused(t testing.TB, code wire.Code) *wire.Error {
	t.Helper()
	e, err := wire.ParseError(r.body, r.status)
	if err != nil {
		t.Fatalf("status %d: %v in %s", r.status, err, r.body)
	}
	if e.Code != code {
		t.Fatalf("%s (%s), want %s", e.Code, e.Message, code)
	}
	if len(r.body) > wire.MaxErrorBytes {
		t.Fatalf("error of %d bytes", len(r.body))
	}
	return e
}

// request is one request with everything right unless edit spoils it.
func (n *node) request(path string, body []byte, edit ...func(*http.Request)) reply {
	n.t.Helper()
	r, err := n.try(context.Background(), path, body, edit...)
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

func (n *node) try(ctx context.Context, path string, body []byte, edit ...func(*http.Request)) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Cache-Control", "no-store")
	req.Header.Set(wire.HeaderCapability, n.capability())
	req.Header.Set(wire.HeaderProfile, wire.Profile)
	for _, e := range edit {
		e(req)
	}
	return send(req)
}

func send(req *http.Request) (reply, error) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	body, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, body}, err
}

func (n *node) manifest() *wire.Capabilities {
	n.t.Helper()
	req, err := http.NewRequest(http.MethodGet, n.base+"/overlay/v1/capabilities", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	r, err := send(req)
	if err != nil {
		n.t.Fatal(err)
	}
	c, err := wire.VerifyCapabilities(r.body)
	if err != nil {
		n.t.Fatalf("%v in %s", err, r.body)
	}
	return c
}

func (n *node) capability() string {
	if n.digest != "" {
		return n.digest
	}
	return n.manifest().Digest()
}

// ask is an Open in the making.
type ask struct {
	id     string
	query  string
	limits wire.Limits
	rules  string
	more   string // further members, with a leading comma
}

func newID() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) //nolint:errcheck // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

var wide = wire.Limits{MaxBytes: 4 << 20, MaxObservations: 1024}

func limitsJSON(l wire.Limits) string {
	return fmt.Sprintf(`{"maxBytes":%d,"maxObservations":%d,"waitMs":%d}`, l.MaxBytes, l.MaxObservations, l.WaitMs)
}

func (a ask) body() []byte {
	if a.id == "" {
		a.id = newID()
	}
	if a.query == "" {
		a.query = "{}"
	}
	if a.limits == (wire.Limits{}) {
		a.limits = wide
	}
	if a.rules != "" {
		a.more += `,"requiredRulesDigest":"` + a.rules + `"`
	}
	return fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":"%s","query":%s,"limits":%s%s}`,
		a.id, testService, a.query, limitsJSON(a.limits), a.more)
}

func readBody(session, cursor string, l wire.Limits) []byte {
	s, _ := json.Marshal(session) //nolint:errcheck // strings marshal
	c, _ := json.Marshal(cursor)  //nolint:errcheck // strings marshal
	return fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":%s}`, s, c, limitsJSON(l))
}

func closeBody(session string) []byte {
	s, _ := json.Marshal(session) //nolint:errcheck // strings marshal
	return fmt.Appendf(nil, `{"version":1,"session":%s}`, s)
}

const (
	openPath  = "/overlay/v1/lookup/open"
	readPath  = "/overlay/v1/lookup/read"
	closePath = "/overlay/v1/lookup/close"
)

func (n *node) open(a ask) *wire.Batch {
	n.t.Helper()
	return n.request(openPath, a.body()).batch(n.t)
}

func (n *node) read(b *wire.Batch, l wire.Limits) *wire.Batch {
	n.t.Helper()
	return n.request(readPath, readBody(b.Session, b.Cursor, l)).batch(n.t)
}

// scan pages a snapshot to its end and returns the batches.
func (n *node) scan(a ask) []*wire.Batch {
	n.t.Helper()
	if a.limits == (wire.Limits{}) {
		a.limits = wide
	}
	all := []*wire.Batch{n.open(a)}
	for !all[len(all)-1].SnapshotComplete {
		all = append(all, n.read(all[len(all)-1], a.limits))
	}
	return all
}

// live opens and pages to the boundary.
func (n *node) live(query string) *wire.Batch {
	n.t.Helper()
	all := n.scan(ask{query: query})
	return all[len(all)-1]
}

func observations(batches ...*wire.Batch) []wire.Observation {
	var out []wire.Observation
	for _, b := range batches {
		for _, g := range b.Groups {
			out = append(out, g.Observations...)
		}
	}
	return out
}

// told is an observation in short: "output <txid prefix>.<index>" and the like.
func told(o wire.Observation) string {
	switch {
	case o.Output != nil:
		return fmt.Sprintf("output %.8s.%d", o.Output.Evidence.TxID, o.Output.Evidence.OutputIndex)
	case o.Spend != nil:
		return fmt.Sprintf("spend %.8s.%d", o.Spend.Previous.TxID, o.Spend.Previous.OutputIndex)
	case o.Withdraw != nil:
		return fmt.Sprintf("withdraw %.8s.%d %s", o.Withdraw.Outpoint.TxID, o.Withdraw.Outpoint.OutputIndex, o.Withdraw.Reason)
	default:
		return fmt.Sprintf("invalidated %s %s", o.Invalidated.ContextID, o.Invalidated.Reason)
	}
}

func tellAll(observations []wire.Observation) []string {
	out := make([]string, len(observations))
	for i, o := range observations {
		out[i] = told(o)
	}
	return out
}

// coin is a transaction of the test's own chain: structure is all that ingest asks of it.
type coin struct {
	txid [32]byte // display order
	raw  []byte
	beef []byte
}

// mint makes a distinct transaction that spends the given outpoints, with pad bytes in its output script.
func mint(name string, pad int, spends ...livefeed.Outpoint) coin {
	seed := sha256.Sum256([]byte(name))
	if len(spends) == 0 {
		spends = []livefeed.Outpoint{{TxID: seed}}
	}
	raw := []byte{1, 0, 0, 0, byte(len(spends))}
	for _, s := range spends {
		prev := slices.Clone(s.TxID[:])
		slices.Reverse(prev)
		raw = append(raw, prev...)
		raw = binary.LittleEndian.AppendUint32(raw, s.Index)
		raw = append(raw, 0, 0xff, 0xff, 0xff, 0xff)
	}
	raw = append(raw, 2)
	for i := range 2 {
		script := append([]byte{0x6a, 32}, seed[:]...)
		script = append(script, make([]byte, pad*(1-i))...)
		raw = binary.LittleEndian.AppendUint64(raw, 1)
		raw = appendVarInt(raw, len(script))
		raw = append(raw, script...)
	}
	raw = append(raw, 0, 0, 0, 0)
	first := sha256.Sum256(raw)
	txid := sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	// BEEF V2: no proofs, one raw transaction.
	beef := append([]byte{0x02, 0x00, 0xbe, 0xef, 0, 1, 0}, raw...)
	return coin{txid, raw, beef}
}

func appendVarInt(dst []byte, n int) []byte {
	switch {
	case n < 0xfd:
		return append(dst, byte(n))
	case n <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(dst, 0xfd), uint16(n))
	}
	return binary.LittleEndian.AppendUint32(append(dst, 0xfe), uint32(n))
}

func (c coin) point() livefeed.Outpoint { return livefeed.Outpoint{TxID: c.txid} }
func (c coin) hex() string              { return hex.EncodeToString(c.txid[:]) }

// short is the coin's first output as told names it.
func (c coin) short() string { return c.hex()[:8] + ".0" }

// put is the JSON of an edit that lists the coin's first output; more is further members with a leading comma.
func (c coin) put(attributes, more string) string {
	return fmt.Sprintf(`{"op":"put","output":{"txid":"%s","outputIndex":0,"beef":"%s"},"attributes":%s%s}`,
		c.hex(), base64.StdEncoding.EncodeToString(c.beef), attributes, more)
}

// spent is the JSON of an edit that says by spends the coin's first output.
func (c coin) spent(by coin) string {
	return fmt.Sprintf(`{"op":"spend","outpoint":{"txid":"%s","outputIndex":0},"spendingTxid":"%s","beef":"%s"}`,
		c.hex(), by.hex(), base64.StdEncoding.EncodeToString(by.beef))
}

func (c coin) withdrawn(reason string) string {
	r, _ := json.Marshal(reason) //nolint:errcheck // strings marshal
	return fmt.Sprintf(`{"op":"withdraw","outpoint":{"txid":"%s","outputIndex":0},"reason":%s}`, c.hex(), r)
}

func invalidated(context, reason string) string {
	return fmt.Sprintf(`{"op":"invalidate","contextId":"%s","reason":"%s"}`, context, reason)
}

// append commits one group of edits and returns its sequence.
func (n *node) append(edits ...string) uint64 {
	n.t.Helper()
	seq, err := n.tryAppend(edits...)
	if err != nil {
		n.t.Fatal(err)
	}
	return seq
}

func (n *node) tryAppend(edits ...string) (uint64, error) {
	body := `{"key":"` + newID() + `","edits":[` + strings.Join(edits, ",") + `]}`
	p, err := livefeed.DecodeGroup([]byte(body))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	receipt, err := n.feed.Append(ctx, p)
	return receipt.Sequence, err
}

// stock appends count rows in one group each, orders "0000".. and genres jazz and rock in turn.
func (n *node) stock(count int) []coin {
	n.t.Helper()
	coins := make([]coin, count)
	for i := range coins {
		coins[i] = mint(n.t.Name()+strconv.Itoa(i), 0)
		n.append(coins[i].put(genre(i), fmt.Sprintf(`,"order":"%04d"`, i)))
	}
	return coins
}

func genre(i int) string {
	if i%2 == 0 {
		return `{"genre":["jazz"]}`
	}
	return `{"genre":["rock"]}`
}

func wait(ms uint32) wire.Limits {
	return wire.Limits{MaxBytes: 4 << 20, MaxObservations: 1024, WaitMs: ms}
}

// clockNow is the database's clock.
func (n *node) clockNow() uint64 {
	n.t.Helper()
	var t uint64
	if err := n.pool.QueryRow(context.Background(), `select `+clock).Scan(&t); err != nil {
		n.t.Fatal(err)
	}
	return t
}

// room is that of a body that no request asked for.
func (n *node) room() *room { return &room{bodies: n.provider.quotas.bodies} }

// during runs f whenever the provider comes to a moment, until the returned function is called.
func (n *node) during(m moment, f func()) (stop func()) {
	pause := func(at moment) {
		if at == m {
			f()
		}
	}
	n.provider.pause.Store(&pause)
	return func() { n.provider.pause.Store(nil) }
}
