package lookup

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// identityKey is one identity for several nodes of a provider.
func identityKey(t *testing.T) *ec.PrivateKey {
	t.Helper()
	key, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// advance moves the feed's evaluated time, and with it T, forward: the clock of the test.
func (n *node) advance(to uint64) {
	n.t.Helper()
	if err := n.feed.Advance(context.Background(), n.pool, to); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) count(table string) (count int) {
	n.t.Helper()
	if err := n.pool.QueryRow(context.Background(), `select count(*) from `+table).Scan(&count); err != nil {
		n.t.Fatal(err)
	}
	return count
}

func capabilityHeader(digest string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(wire.HeaderCapability, digest) }
}

func TestO1_RepeatedOpenGetsTheFirstBody(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	n.stock(5)
	a := ask{id: newID(), limits: wire.Limits{MaxBytes: 100000, MaxObservations: 2, WaitMs: 0}}
	body := a.body()
	first := n.request(openPath, body)
	b := first.batch(t)
	same := func(who string, on *node) {
		t.Helper()
		again := on.request(openPath, body)
		if again.status != http.StatusOK || !bytes.Equal(first.body, again.body) {
			t.Fatalf("%s: %d %s", who, again.status, again.body)
		}
	}
	same("at once", n)
	n.stock(0)
	n.append(mint("later", 0).put(genre(0), ""))
	same("after a write", n)
	n.read(b, a.limits)
	same("after a read", n)
	// The same parameters in another spelling are the same parameters.
	spelled := bytes.Replace(body, []byte(`"version":1,`), []byte(`"version": 1.0, `), 1)
	if again := n.request(openPath, spelled); !bytes.Equal(first.body, again.body) {
		t.Fatalf("another spelling: %s", again.body)
	}
	other := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	same("on another node", other)
	n.halt()
	restarted := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	same("after a restart", restarted)
}

func TestO2_ChangedParametersConflict(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(2)
	a := ask{id: newID()}
	b := n.open(a)
	digest := n.manifest().Services[0].RulesDigest
	for name, changed := range map[string]ask{
		"query":            {id: a.id, query: `{"match":{"genre":"jazz"}}`},
		"limits":           {id: a.id, limits: wire.Limits{MaxBytes: 1 << 20, MaxObservations: 1024}},
		"clamped limits":   {id: a.id, limits: wire.Limits{MaxBytes: 5 << 20, MaxObservations: 1024}},
		"optional present": {id: a.id, rules: digest},
		"extensions":       {id: a.id, more: `,"extensions":{"urn:test:x":1}`},
		"empty extensions": {id: a.id, more: `,"extensions":{}`},
		"invalid query":    {id: a.id, query: `{"match":{"nobody":"declared"}}`},
	} {
		n.request(openPath, changed.body()).refused(t, wire.Conflict)
		t.Log(name)
	}
	n.request(closePath, closeBody(b.Session))
	n.request(openPath, ask{id: a.id, query: `{"match":{"genre":"jazz"}}`}.body()).refused(t, wire.Conflict)
	n.advance(b.ExpiresAt)
	n.request(openPath, ask{id: a.id, query: `{"match":{"genre":"jazz"}}`}.body()).refused(t, wire.Conflict)
	if got := n.count("lookup_session"); got != 1 {
		t.Fatalf("%d sessions", got)
	}
}

func TestO3_OtherCapabilityIsContextChanged(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	a := ask{id: newID()}
	b := n.open(a)
	other := capabilityHeader(strings.Repeat("ab", 32))
	n.request(openPath, a.body(), other).refused(t, wire.ContextChanged)
	// In that order: conflict before context-changed before expired.
	n.request(openPath, ask{id: a.id, query: `{"match":{"genre":"x"}}`}.body(), other).refused(t, wire.Conflict)
	n.advance(b.ExpiresAt)
	n.request(openPath, a.body(), other).refused(t, wire.ContextChanged)
	n.request(openPath, a.body()).refused(t, wire.Expired)
	n.request(openPath, ask{}.body(), other).refused(t, wire.ContextChanged)
}

func TestO4_RetryAtExpiryOrAfterCloseIsExpired(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(1)
	a := ask{id: newID()}
	first := n.request(openPath, a.body())
	b := first.batch(t)
	n.advance(b.ExpiresAt - 1)
	if again := n.request(openPath, a.body()); !bytes.Equal(again.body, first.body) {
		t.Fatalf("a second before expiry: %s", again.body)
	}
	n.advance(b.ExpiresAt)
	n.request(openPath, a.body()).refused(t, wire.Expired)

	closed := ask{id: newID()}
	c := n.open(closed)
	n.request(closePath, closeBody(c.Session))
	n.request(openPath, closed.body()).refused(t, wire.Expired)
	// The fence alone is enough: with every record of the sessions gone, both are still expired.
	if _, err := n.pool.Exec(t.Context(), `delete from lookup_session`); err != nil {
		t.Fatal(err)
	}
	n.request(openPath, a.body()).refused(t, wire.Expired)
	n.request(openPath, closed.body()).refused(t, wire.Expired)
	if got := n.count("lookup_session"); got != 0 {
		t.Fatalf("%d sessions came back", got)
	}
}

func TestO5_ConcurrentIdenticalOpensAreOneSession(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	one := start(t, setup{identity: key, poolConns: 4})
	one.stock(4)
	two := start(t, setup{db: one.db, identity: key, base: one.provider.baseURL, poolConns: 4})
	digest := capabilityHeader(one.capability())
	for round := range 5 {
		body := ask{id: newID()}.body()
		var wg sync.WaitGroup
		replies := make([]reply, 32)
		errs := make([]error, len(replies))
		for i := range replies {
			wg.Go(func() {
				replies[i], errs[i] = []*node{one, two}[i%2].try(context.Background(), openPath, body, digest)
			})
		}
		wg.Wait()
		for i, r := range replies {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if r.status != http.StatusOK || !bytes.Equal(r.body, replies[0].body) {
				t.Fatalf("reply %d: %d %s", i, r.status, r.body)
			}
		}
		if got := one.count("lookup_session"); got != round+1 {
			t.Fatalf("%d sessions after round %d", got, round)
		}
		one.append(mint(fmt.Sprint("between", round), 0).put(genre(0), ""))
	}
}

func TestO6_FenceSessionAndBodyCommitTogether(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(3)
	kill := func() {
		_, err := n.db.Pool.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and state = 'idle in transaction'`)
		if err != nil {
			t.Error(err)
		}
	}
	for name, m := range map[string]moment{"fence claimed": afterClaim, "page cut": afterFirst} {
		a := ask{id: newID()}
		before := n.count("open_fence")
		stop := n.during(m, kill)
		e := n.request(openPath, a.body()).refused(t, wire.Unavailable)
		if !e.Retryable || e.RetryAfterMs == nil {
			t.Fatalf("%s: %+v", name, e)
		}
		stop()
		if n.count("open_fence") != before || n.count("lookup_session") != before {
			t.Fatalf("%s: something was left behind", name)
		}
		n.open(a)
		if n.count("open_fence") != before+1 || n.count("lookup_session") != before+1 {
			t.Fatalf("%s: the retry did not open", name)
		}
	}
	// After the commit the reply is lost: the retry gets what was saved.
	a := ask{id: newID()}
	ctx, cancel := context.WithCancel(t.Context())
	digest := capabilityHeader(n.capability())
	stop := n.during(afterCommit, cancel)
	if r, err := n.try(ctx, openPath, a.body(), digest); err == nil {
		t.Fatalf("a reply came: %d", r.status)
	}
	stop()
	var saved []byte
	if err := n.pool.QueryRow(t.Context(), `select first_batch from lookup_session order by xmin::text::bigint desc limit 1`).Scan(&saved); err != nil {
		t.Fatal(err)
	}
	n.append(mint("after", 0).put(genre(0), ""))
	if again := n.request(openPath, a.body()); !bytes.Equal(again.body, saved) {
		t.Fatalf("%s\n%s", again.body, saved)
	}
}

func TestO8_RequiredRulesAndUnknownService(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.request(openPath, ask{rules: strings.Repeat("0f", 32)}.body()).refused(t, wire.ContextChanged)
	unknown := bytes.Replace(ask{}.body(), []byte(testService), []byte("ls_nothing"), 1)
	n.request(openPath, unknown).refused(t, wire.NotFound)
	if n.count("open_fence") != 0 {
		t.Fatal("a refused Open left a fence")
	}
	n.open(ask{rules: n.manifest().Services[0].RulesDigest})
	n.open(ask{})
}

func TestO9_FirstPageThatDoesNotFitLeavesNothing(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.append(mint("wide", 3000).put(genre(0), ""))
	id := newID()
	e := n.request(openPath, ask{id: id, limits: wire.Limits{MaxBytes: 3000, MaxObservations: 10}}.body()).refused(t, wire.Limited)
	if e.Limit == nil || e.Limit.Kind != wire.LimitGroup || e.Limit.MinimumBytes == nil {
		t.Fatalf("%+v", e)
	}
	if n.count("open_fence") != 0 || n.count("lookup_session") != 0 {
		t.Fatal("something was stored")
	}
	b := n.open(ask{id: id, limits: wire.Limits{MaxBytes: *e.Limit.MinimumBytes, MaxObservations: 10}})
	if len(b.Groups) != 1 {
		t.Fatalf("%d groups", len(b.Groups))
	}
}

func TestO11_ManifestNamesTheEpoch(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	before := n.capability()
	epochs, err := wire.Epochs(n.manifest())
	if err != nil {
		t.Fatal(err)
	}
	b := n.open(ask{})
	if epochs[testService] == "" || b.Scope.Epoch != epochs[testService] {
		t.Fatalf("manifest %q, scope %q", epochs[testService], b.Scope.Epoch)
	}
	// The epoch of the storage turns: a new Open that names the old one is reset-required, whatever else it says.
	turned, err := n.feed.Rotate(t.Context(), "the-epoch-turns-once", livefeed.Retire, "a test")
	if err != nil {
		t.Fatal(err)
	}
	n.request(openPath, ask{}.body(), capabilityHeader(before)).refused(t, wire.ResetRequired)
	if n.count("open_fence") != 1 {
		t.Fatal("a refused Open left a fence")
	}
	after := n.capability()
	if after == before {
		t.Fatal("the manifest still names the old epoch")
	}
	if b := n.open(ask{}); b.Scope.Epoch != turned.Epoch {
		t.Fatalf("scope names %q", b.Scope.Epoch)
	}
}

func TestO13_SessionIdentifiers(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	seen := make(map[string]bool)
	for range 50 {
		id := n.open(ask{}).Session
		if seen[id] || len(id) != sessionIDSize {
			t.Fatalf("session id of %d bytes, seen %v", len(id), seen[id])
		}
		seen[id] = true
	}
	for _, any := range []string{"x", strings.Repeat("s", 1024), "späť\u0000\n\"", "n" + strings.Repeat("0", 52), strings.Repeat("é", 512)} {
		n.request(readPath, readBody(any, "c", wide)).refused(t, wire.ResetRequired)
		if r := n.request(closePath, closeBody(any)); string(r.body) != string(closed) {
			t.Fatalf("close answered %s", r.body)
		}
	}
	for _, bad := range []string{"", strings.Repeat("s", 1025)} {
		n.request(readPath, readBody(bad, "c", wide)).refused(t, wire.Invalid)
		n.request(readPath, readBody("s", bad, wide)).refused(t, wire.Invalid)
		n.request(closePath, closeBody(bad)).refused(t, wire.Invalid)
	}
}

func TestO14_DeadlinesAreFrozenAtOpen(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key, service: func(s *Service) { s.SessionSeconds, s.ReplaySeconds = 100, 7 }})
	ahead := n.clockNow() + 50_000
	n.advance(ahead)
	b := n.open(ask{})
	if b.ExpiresAt != ahead+100 || b.ReplayUntil != ahead+107 {
		t.Fatalf("T %d, expiresAt %d, replayUntil %d", ahead, b.ExpiresAt, b.ReplayUntil)
	}
	n.advance(ahead + 60)
	if again := n.read(b, wide); again.ExpiresAt != b.ExpiresAt || again.ReplayUntil != b.ReplayUntil {
		t.Fatalf("deadlines moved to %d, %d", again.ExpiresAt, again.ReplayUntil)
	}
	// A later configuration does not touch them.
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL, service: func(s *Service) { s.SessionSeconds = 3000 }})
	r := m.request(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(n.capability()))
	if again := r.batch(t); again.ExpiresAt != b.ExpiresAt {
		t.Fatalf("deadline moved to %d", again.ExpiresAt)
	}
	if _, _, err := deadlines(1, 1<<63-1, 1); err == nil {
		t.Fatal("a deadline wrapped")
	}
	if _, _, err := deadlines(1<<62, 1<<62, 1<<62); err == nil {
		t.Fatal("a deadline wrapped")
	}
}

func TestO15_FencesHoldKeyedDigestsOnly(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	a := ask{id: newID()}
	b := n.open(a)
	rows, err := n.pool.Query(t.Context(), `select f::text from open_fence f`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{a.id, b.Session, b.Cursor, testService, n.capability()} {
			if strings.Contains(text, secret) || strings.Contains(text, hex.EncodeToString([]byte(secret))) {
				t.Fatalf("a fence row shows %q", secret)
			}
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	// Keyed: another database makes another fence of the same Open.
	m := start(t, setup{db: pgtest.New(t)})
	if n.provider.main.fences.Key(testService, "", a.id) == m.provider.main.fences.Key(testService, "", a.id) {
		t.Fatal("two databases share a fence key")
	}
}
