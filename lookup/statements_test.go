package lookup

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// counter counts the statements of a pool by what they are for.
type counter struct {
	mu    sync.Mutex
	kinds map[string]int
}

// kinds name statements by a part of their text that no other has. The last ones belong to the process, however many poll.
var kinds = []struct {
	name, part string
	process    bool
}{
	{"load", "select * from lookup_session s where s.id = u.id", false},
	{"gate", "select k.n, ", false},
	{"session", "select u.n, s.state", false}, // which the gate looks at where its glance does not tell
	{"log", "octet_length(k.changes)", false},
	{"evidence", "select sha, bytes from blob", false},
	{"drive", "from unnest($2::bytea[]) with ordinality as u(selector, n)", false},
	{"sessions that may go", "order by s.replay_until limit 1) is not null", false},
	{"manifests that may go", "delete from manifest m", false},
	{"promises", "where o.replay_until > t.now limit 1", false},
	{"what may be compacted", "as u(feed, groups, versions)", false},
	{"epochs", "select f.id, f.epoch, greatest(", false},
	{"manifest", "select packet from manifest", false},
	{"backstop", "as u(name, head, turn)", true},
	{"timers", "Seconds until the earliest deadline", true},
	{"gauges", "full join lookup_ledger", true},
	{"probe", "select pg_notify($1, '')", true},
	{"listen", "listen overlayd_", true},
	{"who listens", "feed_listener", true},
	{"a listener's heads", "set local lock_timeout = '2s'", true},
	{"memory", "select octet_length(repeat(", true}, // of a new connection
	{"ping", "-- ping", true},                       // of a connection that nobody used for a second
	{"timer lock", "select u.id, pg_try_advisory_lock($1, u.id)", true},
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	kind := q.SQL
	for _, k := range kinds {
		if strings.Contains(q.SQL, k.part) {
			kind = k.name
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[kind]++
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take is what was counted since the last time, what belongs to the process left out.
func (c *counter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.kinds
	c.kinds = make(map[string]int)
	for _, k := range kinds {
		if k.process {
			delete(got, k.name)
		}
	}
	return got
}

func (c *counter) is(t *testing.T, what string, want map[string]int) {
	t.Helper()
	got := c.take()
	sum := 0
	for _, n := range got {
		sum += n
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s cost %d statements, %v; want %v", what, sum, got, want)
		return
	}
	t.Logf("%-60s %d statements: %v", what, sum, got)
}

// TestW5_StatementsOfAPoll: what a poll costs the database. Asleep it costs nothing; a session that was read here before is not
// loaded again; evidence that somebody was served is not read again; gates of one moment are one statement.
func TestW5_StatementsOfAPoll(t *testing.T) {
	t.Parallel()
	c := &counter{kinds: make(map[string]int)}
	n := members(t, setup{tracer: c})
	n.digest = n.capability()
	p := n.person(1)
	n.grant(p, membersService)
	const query = `{"match":{"artist":"x","genre":"jazz"}}` // two postings, one of which drives
	commit := func(name string) { n.append(mint(name, 0).put(`{"genre":["jazz"],"artist":["x"]}`, "")) }
	public, same, signed := n.live(query), n.live(query), p.open(membersService, ask{query: query})
	c.take()

	public = n.read(public, wait(1))
	c.is(t, "a public poll for nothing, the first here", map[string]int{"load": 1, "drive": 1, "log": 2, "gate": 1})
	public = n.read(public, wait(1))
	c.is(t, "the next", map[string]int{"log": 1, "gate": 1})
	public = n.read(public, wait(0))
	c.is(t, "one that does not wait", map[string]int{"log": 1, "gate": 1})
	same = n.read(same, wait(0))
	c.take()

	commit("one")
	public = n.read(public, wait(25_000))
	c.is(t, "a public poll that finds a group", map[string]int{"log": 1, "evidence": 1, "gate": 1})
	same = n.read(same, wait(25_000))
	c.is(t, "another session that finds the same group", map[string]int{"log": 1, "gate": 1})
	signed = p.read(signed, wait(0))
	c.is(t, "a signed poll that finds it, the first here", map[string]int{"load": 1, "drive": 1, "log": 1, "gate": 2})
	p.read(signed, wait(1))
	c.is(t, "a signed poll for nothing, the next", map[string]int{"log": 1, "gate": 2})

	// Asleep, nobody asks anything, for four rounds of the backstop. Woken by a commit of this process, nobody reads the log,
	// unless the machine stood still for a second: then it takes another commit.
	slept := 0
	var mu sync.Mutex
	n.during(arrivedAsleep, func() { mu.Lock(); slept++; mu.Unlock() })
	for round := 0; ; round++ {
		done := make(chan *wire.Batch, 2)
		for _, b := range []*wire.Batch{public, same} {
			go func() { done <- n.read(b, wait(25_000)) }()
		}
		testkit.Eventually(t, "both sleep", func() bool { mu.Lock(); defer mu.Unlock(); return slept == 2*(round+1) })
		if got := c.take(); got["gate"] < 1 || got["gate"] > 2 || len(got) != 1 {
			t.Errorf("two polls that sleep on cost %v", got)
		}
		if round == 0 {
			rounds := n.backstops(c, 4)
			c.is(t, fmt.Sprintf("two polls asleep for %d rounds of the backstop", rounds), map[string]int{})
		}
		commit(fmt.Sprint("woken ", round))
		answers := []*wire.Batch{within(t, "answer", done), within(t, "answer", done)}
		for _, b := range answers {
			if len(b.Groups) != 1 {
				t.Fatalf("%d groups", len(b.Groups))
			}
		}
		public, same = answers[0], answers[1]
		got := c.take()
		if got["gate"] < 1 || got["gate"] > 2 || got["evidence"] > 2 {
			t.Errorf("two polls that are woken cost %v", got)
		}
		if len(got) == 1 { // the gate alone
			return
		}
		if round == 4 {
			t.Fatalf("two polls that are woken cost %v", got)
		}
	}
}

// backstops waits for so many rounds of the store's backstop.
func (n *node) backstops(c *counter, rounds int) int {
	n.t.Helper()
	count := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.kinds["backstop"] }
	began := time.Now()
	before := count()
	testkit.Eventually(n.t, "the backstop has looked", func() bool { return count() >= before+rounds })
	n.t.Logf("%d rounds of the backstop in %s", rounds, time.Since(began).Round(time.Millisecond))
	return rounds
}

// TestS4_AQuietRoundIsAFewStatements: where there is nothing to forget a round of retention looks once for all feeds, and no transaction begins.
// So does who asks for the manifest in force.
func TestS4_AQuietRoundIsAFewStatements(t *testing.T) {
	t.Parallel()
	c := &counter{kinds: make(map[string]int)}
	var services []Service
	for i := range 5 {
		services = append(services, Service{
			Name: []string{testService, "ls_b", "ls_c", "ls_d", "ls_e"}[i], Feed: fmt.Sprint("feed", i), RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`),
			SessionSeconds: 3600, ReplaySeconds: 600, MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		})
	}
	n := start(t, setup{tracer: c, services: services})
	x := mint("a row", 0)
	n.append(x.put(genre(0), ""))
	b := n.open(ask{})
	n.append(x.put(genre(1), ""), mint("another", 0).put(genre(0), ""))
	quiet := map[string]int{"sessions that may go": 1, "manifests that may go": 1, "promises": 1, "what may be compacted": 1}
	for round := range 3 {
		n.retain() // up to the session's watermark
		c.take()
		if done := n.mustRetain(); done != (Retained{}) {
			t.Fatalf("%+v", done)
		}
		c.is(t, fmt.Sprintf("quiet round %d", round), quiet)
	}
	if n.floor() != b.Through {
		t.Fatalf("floor %d, W %d", n.floor(), b.Through)
	}
	if got := n.metric("overlayd_lookup_oldest_watermark", "feed0"); uint64(got) != b.Through {
		t.Errorf("the oldest watermark is told as %v", got)
	}
	c.take()
	if _, err := n.provider.current(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	c.is(t, "the manifest of five feeds", map[string]int{"epochs": 1, "manifest": 1})

	n.shut(b)
	c.take()
	if done := n.mustRetain(); done.Versions != 1 {
		t.Fatalf("%+v", done)
	}
	if got := c.take(); got["begin isolation level read committed"] == 0 {
		t.Fatalf("what can go goes: %v", got)
	}
}

// mustRetain is one round of retention.
func (n *node) mustRetain() Retained {
	n.t.Helper()
	done, err := n.provider.Retain(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	return done
}
