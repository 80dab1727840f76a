package interop

import (
	"bytes"
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
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

const (
	publicService  = "ls_catalogue" // none
	openService    = "ls_anyone"    // brc103, open
	membersService = "ls_members"   // brc103, list
	feedName       = "catalogue"
)

// startTime bounds starting and stopping a provider.
const startTime = time.Minute

// kit is a provider on a database of its own, which can be stopped and started again at the same address.
type kit struct {
	t        *testing.T
	db       *pgtest.DB
	identity *ec.PrivateKey
	origins  []string
	addr     string // of the listener, the same after a restart

	provider *lookup.Provider
	feed     *livefeed.Feed
	halt     func()

	// brief, when set, answers the next handshake in the provider's place.
	brief atomic.Pointer[brc104.Server]

	mu sync.Mutex
	// guarded by mu
	log    strings.Builder
	record []exchange
}

// exchange is one answer as it left the provider.
type exchange struct {
	method, path, identity string
	status                 int
	signed                 bool
}

// newKit starts a provider that answers pages of the given origins.
func newKit(t *testing.T, origins ...string) *kit {
	t.Helper()
	k := &kit{t: t, db: pgtest.New(t), origins: origins}
	var err error
	if k.identity, err = ec.NewPrivateKey(); err != nil {
		t.Fatal(err)
	}
	k.start()
	t.Cleanup(func() {
		k.halt()
		if t.Failed() {
			k.mu.Lock()
			defer k.mu.Unlock()
			t.Logf("log of the provider:\n%s", k.log.String())
		}
	})
	return k
}

// Write takes a line of the provider's log.
func (k *kit) Write(line []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Write(line)
}

func (k *kit) base() string { return "http://" + k.addr }

// start runs a provider, at the address of the one before if there was one.
func (k *kit) start() {
	k.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(k.t.Context()))
	starting, started := context.WithTimeout(ctx, startTime)
	defer started()
	listener, err := (&net.ListenConfig{}).Listen(starting, "tcp", orFree(k.addr))
	if err != nil {
		k.t.Fatalf("listen again at the address of before: %v", err)
	}
	k.addr = listener.Addr().String()

	main, writer := k.pool(12), k.pool(3)
	log := slog.New(slog.NewTextHandler(k, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store, err := livefeed.NewStore(starting, livefeed.Config{Pool: main, Writer: writer, Log: log})
	if err != nil {
		k.t.Fatal(err)
	}
	service := func(name, authentication, access string) lookup.Service {
		return lookup.Service{
			Name: name, Feed: feedName, Authentication: authentication, Access: access,
			RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`), SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}
	}
	k.provider, err = lookup.New(starting, lookup.Config{
		Store: store, Pool: main, BaseURL: k.base(), LocalDevelopment: true, Identity: k.identity, Log: log, Origin: k.origins,
		Chain: livefeed.Chain{Network: "test", Genesis: sha256.Sum256([]byte("genesis"))},
		Services: []lookup.Service{
			service(publicService, "none", ""), service(openService, "brc103", lookup.AccessOpen),
			service(membersService, "brc103", lookup.AccessList),
		},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.feed = store.Feed(feedName)

	server := httptest.NewUnstartedServer(k.recorded(k.provider.Echo()))
	if err := server.Listener.Close(); err != nil {
		k.t.Fatal(err)
	}
	server.Listener = listener
	server.Config.MaxHeaderBytes = 64 << 10
	server.Start()
	provider := k.provider
	var running sync.WaitGroup
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			k.t.Errorf("store: %v", err)
		}
	})
	running.Go(func() {
		if err := provider.Run(ctx); err != nil {
			k.t.Errorf("provider: %v", err)
		}
	})
	k.halt = sync.OnceFunc(func() {
		provider.Stop()
		server.Close()
		cancel()
		running.Wait()
		main.Close()
		writer.Close()
	})
}

func orFree(addr string) string {
	if addr == "" {
		return "127.0.0.1:0"
	}
	return addr
}

func (k *kit) restart() {
	k.t.Helper()
	k.halt()
	k.start()
}

func (k *kit) pool(conns int32) *pgxpool.Pool {
	k.t.Helper()
	config, err := pgxpool.ParseConfig(k.db.URL)
	if err != nil {
		k.t.Fatal(err)
	}
	livefeed.Configure(config)
	config.MaxConns = conns
	// Not the test's context: the provider is stopped in a cleanup.
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(k.t.Context()), config)
	if err != nil {
		k.t.Fatal(err)
	}
	return pool
}

// recorded notes every answer, and lets another server answer a handshake if there is one.
func (k *kit) recorded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &watched{ResponseWriter: w}
		e := exchange{method: r.Method, path: r.URL.Path, identity: r.Header.Get(brc104.HeaderIdentityKey)}
		answer := next
		if r.URL.Path == brc104.HandshakePath && r.Method == http.MethodPost {
			e.identity = greeter(r)
			if brief := k.brief.Swap(nil); brief != nil {
				answer = crossOrigin(brief.Handshake)
			}
		}
		answer.ServeHTTP(seen, r)
		e.status, e.signed = seen.status, w.Header().Get(brc104.HeaderSignature) != ""
		k.mu.Lock()
		defer k.mu.Unlock()
		k.record = append(k.record, e)
	})
}

// greeter is the identity in whose name a handshake is made. The body is there to be read again.
func greeter(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var hello struct {
		IdentityKey string `json:"identityKey"`
	}
	if err != nil || json.Unmarshal(body, &hello) != nil {
		return ""
	}
	return hello.IdentityKey
}

// crossOrigin lets pages of every origin read what a handler says of authentication.
func crossOrigin(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); origin != "" {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Expose-Headers", strings.Join(brc104.ExposedHeaders(), ", "))
		}
		next(w, r)
	})
}

// watched is a writer that remembers the status.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// answered counts the handshakes made in an identity's name and returns the answers of its other requests.
func (k *kit) answered(identity string) (handshakes int, rest []exchange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.record {
		switch {
		case e.identity != identity:
		case e.path == brc104.HandshakePath:
			handshakes++
		default:
			rest = append(rest, e)
		}
	}
	return handshakes, rest
}

// anyAnswer reports whether an answer was given that fits.
func (k *kit) anyAnswer(fits func(exchange) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.record, fits)
}

// shortLived makes the next handshake grant a session of the given life, by the provider's own keys.
func (k *kit) shortLived(life time.Duration) {
	k.t.Helper()
	server, err := brc104.New(brc104.Config{
		Key: secp256k1.PrivKeyFromBytes(k.identity.Serialize()), Sessions: k.provider, Log: slog.New(slog.DiscardHandler), SessionTTL: life,
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.brief.Store(server)
}

// forget draws new secrets and restarts, so that no nonce granted before is known any more.
func (k *kit) forget() {
	k.t.Helper()
	k.halt()
	if _, err := k.db.Pool.Exec(k.t.Context(), "delete from session_secret"); err != nil {
		k.t.Fatal(err)
	}
	k.start()
}

// outage takes the database away, until the returned function is called.
func (k *kit) outage() (end func()) {
	k.t.Helper()
	ctx := context.WithoutCancel(k.t.Context())
	config, err := pgx.ParseConfig(k.db.URL)
	if err != nil {
		k.t.Fatal(err)
	}
	server, err := pgx.Connect(ctx, pgtest.URL(k.t))
	if err != nil {
		k.t.Fatal(err)
	}
	allow := func(allowed bool) {
		sql := fmt.Sprintf("alter database %s with allow_connections %v", pgx.Identifier{config.Database}.Sanitize(), allowed)
		if _, err := server.Exec(ctx, sql); err != nil {
			k.t.Error(err)
		}
	}
	end = sync.OnceFunc(func() {
		allow(true)
		if err := server.Close(ctx); err != nil {
			k.t.Error(err)
		}
	})
	k.t.Cleanup(end)
	allow(false)
	if _, err := server.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", config.Database); err != nil {
		k.t.Error(err)
	}
	return end
}

// polls waits until exactly n long polls wait at the provider.
func (k *kit) polls(t *testing.T, n int64) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d long polls waiting", n), func() bool {
		stats, err := k.feed.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Waiters == n
	})
}

// grant admits an identity to the members' service.
func (k *kit) grant(t *testing.T, identity [33]byte) {
	t.Helper()
	if _, err := k.provider.Grant(t.Context(), membersService, identity); err != nil {
		t.Fatal(err)
	}
}

// coin is a transaction of the test's own chain.
type coin struct {
	txid [32]byte // display order
	beef []byte
}

func (c coin) hex() string { return hex.EncodeToString(c.txid[:]) }

// mint makes a distinct transaction that spends the first output of each given coin, with pad bytes in its output.
func mint(pad int, spends ...coin) coin {
	seed := make([]byte, 32)
	_, _ = rand.Read(seed) //nolint:errcheck // never fails
	inputs := [][32]byte{[32]byte(seed)}
	if len(spends) > 0 {
		inputs = nil
		for _, s := range spends {
			inputs = append(inputs, s.txid)
		}
	}
	raw := []byte{1, 0, 0, 0, byte(len(inputs))}
	for _, previous := range inputs {
		slices.Reverse(previous[:])
		raw = append(raw, previous[:]...)
		raw = append(raw, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	}
	script := append(append([]byte{0x6a, 32}, seed...), make([]byte, pad)...)
	raw = appendSize(binary.LittleEndian.AppendUint64(append(raw, 1), 1), len(script))
	raw = append(append(raw, script...), 0, 0, 0, 0)
	first := sha256.Sum256(raw)
	txid := sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	// BEEF V2: no proofs, one raw transaction.
	return coin{txid, append([]byte{0x02, 0x00, 0xbe, 0xef, 0, 1, 0}, raw...)}
}

// appendSize writes a size as transactions do.
func appendSize(dst []byte, n int) []byte {
	switch {
	case n < 0xfd:
		return append(dst, byte(n))
	case n <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(dst, 0xfd), uint16(n))
	}
	return binary.LittleEndian.AppendUint32(append(dst, 0xfe), uint32(n))
}

// put is the edit that lists a coin's first output in a genre.
func (c coin) put(genre string) string {
	return fmt.Sprintf(`{"op":"put","output":{"txid":"%s","outputIndex":0,"beef":"%s"},"attributes":{"genre":["%s"]}}`,
		c.hex(), base64.StdEncoding.EncodeToString(c.beef), genre)
}

// spent is the edit that says by spends the coin's first output.
func (c coin) spent(by coin) string {
	return fmt.Sprintf(`{"op":"spend","outpoint":{"txid":"%s","outputIndex":0},"spendingTxid":"%s","beef":"%s"}`,
		c.hex(), by.hex(), base64.StdEncoding.EncodeToString(by.beef))
}

// append commits one group of edits.
func (k *kit) append(t *testing.T, edits ...string) {
	t.Helper()
	p, err := livefeed.DecodeGroup([]byte(`{"key":"` + newID() + `","edits":[` + strings.Join(edits, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	if _, err := k.feed.Append(ctx, p); err != nil {
		t.Fatal(err)
	}
}

func newID() string { return rand.Text() + rand.Text() }
