package lookup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/livefeed"
)

// loaded is a session as a request has found it.
func (n *node) loaded(id string) *session {
	n.t.Helper()
	digest, ok := n.provider.sessionDigest(id)
	if !ok {
		n.t.Fatalf("%q names no session", id)
	}
	s, err := n.provider.main.load(context.Background(), id, digest)
	if err != nil || s == nil {
		n.t.Fatalf("%v, %v", s, err)
	}
	return s
}

// queued is how many questions wait for the next statement, and how many statements are on their way.
func (b *batcher[Q, A]) queued() (waiting, flying int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting), b.flying
}

// held keeps every statement of the gate at a moment until release is called; sizes counts the questions of those that follow.
func (n *node) held(at moment, s *session) (sizes func() []int, release func()) {
	n.t.Helper()
	gates := n.provider.main.gates
	open := make(chan struct{})
	var came atomic.Int32
	n.during(at, func() {
		came.Add(1)
		<-open
	})
	var first sync.WaitGroup
	for i := range batchesAtOnce {
		first.Go(func() { _, _ = n.provider.main.gate(context.Background(), s, nil, nil) })
		testkit.Eventually(n.t, "a statement of the gate is held", func() bool { return came.Load() == int32(i+1) })
	}
	var mu sync.Mutex
	var seen []int
	sent := gates.sent
	gates.sent = func(k int) { mu.Lock(); seen = append(seen, k); mu.Unlock(); sent(k) }
	return func() []int { mu.Lock(); defer mu.Unlock(); return seen }, func() {
		n.provider.pause.Store(nil)
		close(open)
		first.Wait()
	}
}

// fates are sessions of a node of members, by what their gate has to say of them.
func fates(t *testing.T) (n *node, sessions map[string]*session, questions map[string]gateQuestion, want map[string]gate) {
	n = members(t, setup{})
	p := n.person(1)
	n.grant(p, membersService)
	banned, secret, plain := mint("banned", 0), mint("secret", 0), mint("plain", 0)
	for _, c := range []coin{banned, secret, plain} {
		n.append(c.put(genre(0), ""))
	}
	sessions = make(map[string]*session)
	open := func(fate string) { sessions[fate] = n.loaded(p.open(membersService, ask{}).Session) }
	open("broken")
	if _, err := n.feed.Rotate(t.Context(), newID(), livefeed.Break, "for a test"); err != nil {
		t.Fatal(err)
	}
	p.digest = ""
	for _, fate := range []string{"open", "closed", "expired", "revoked", "removed", "prohibited", "narrowed", "gone", "evidence lost", "evidence kept"} {
		open(fate)
	}
	n.prohibit(banned)
	n.append(secret.put(genre(0), readersOf(n.person(2))))
	for fate, sql := range map[string]string{
		"closed":  `update lookup_session set state = 2 where id = $1`,
		"expired": `update lookup_session set expires_at = 1 where id = $1`,
		"revoked": `update lookup_session set grant_id = 4711 where id = $1`,
		"removed": `update lookup_session set state = 4 where id = $1`,
		"gone":    `delete from lookup_session where id = $1`,
	} {
		if _, err := n.db.Pool.Exec(t.Context(), sql, sessions[fate].digest[:]); err != nil {
			t.Fatal(err)
		}
	}
	questions, want = make(map[string]gateQuestion), make(map[string]gate)
	stored, missing := sha256.Sum256(plain.beef), sha256.Sum256([]byte("nothing"))
	for fate, s := range sessions {
		point := plain.point().Bytes()
		q := gateQuestion{session: s.digest, feed: s.feed.ID(), disclosed: point[:]}
		g := gate{state: stateOpen, granted: true}
		switch fate {
		case "broken":
			g.broken = true
		case "closed":
			g.state = stateClosed
		case "expired":
			g.expired = true
		case "revoked":
			g.granted = false
		case "removed":
			g.state = stateRevoked
		case "gone":
			g = gate{}
		case "prohibited":
			more := banned.point().Bytes()
			q.disclosed = append(q.disclosed, more[:]...)
			g.prohibited = true
		case "narrowed":
			more := secret.point().Bytes()
			q.disclosed = append(more[:], q.disclosed...)
			g.narrowed = true
		case "evidence kept":
			q.evidence = stored[:]
		case "evidence lost":
			q.evidence = append(stored[:], missing[:]...)
			g.lost = true
		}
		questions[fate], want[fate] = q, g
	}
	return n, sessions, questions, want
}

// TestA6_GatesAskedTogetherHaveTheirOwnVerdicts: one statement, a verdict each.
func TestA6_GatesAskedTogetherHaveTheirOwnVerdicts(t *testing.T) {
	t.Parallel()
	n, sessions, questions, want := fates(t)
	p := n.provider.main
	sizes, release := n.held(gateAnswered, sessions["open"])
	const each = 5
	var all sync.WaitGroup
	for fate, q := range questions {
		for range each {
			all.Go(func() {
				g, err := p.gate(context.Background(), sessions[fate], q.disclosed, q.evidence)
				if g.now = 0; err != nil || g != want[fate] {
					t.Errorf("%s: %+v, %v; want %+v", fate, g, err, want[fate])
				}
			})
		}
	}
	testkit.Eventually(t, "all wait", func() bool { waiting, _ := p.gates.queued(); return waiting == each*len(questions) })
	release()
	all.Wait()
	if got := sizes(); len(got) != 1 || got[0] != each*len(questions) {
		t.Fatalf("statements of %v gates, not one of %d", got, each*len(questions))
	}
	testkit.Eventually(t, "nobody asks", func() bool { waiting, flying := p.gates.queued(); return waiting+flying == 0 })
}

// TestA6_NoGateHasAnOlderSnapshot: a prohibition is committed while a statement of the gate is answered and nobody told; whoever
// asks from then on knows of it, though a statement that does not is still on its way.
func TestA6_NoGateHasAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	for i := range 3 {
		c := mint(fmt.Sprint("late", i), 0)
		n.append(c.put(genre(0), ""))
		s := n.loaded(n.open(ask{}).Session)
		point := c.point().Bytes()
		// Before the statement is sent, and after it was answered.
		for _, at := range []moment{gateAsked, gateAnswered} {
			_, release := n.held(at, s)
			if at == gateAnswered {
				n.prohibit(c)
			}
			verdict := make(chan gate, 1)
			go func() {
				g, err := n.provider.main.gate(context.Background(), s, point[:], nil)
				if err != nil {
					t.Error(err)
				}
				verdict <- g
			}()
			testkit.Eventually(t, "it waits", func() bool { waiting, _ := n.provider.main.gates.queued(); return waiting == 1 })
			if at == gateAsked {
				n.prohibit(c) // committed after the question, before any statement: it may be known, and here it is
			}
			release()
			if g := within(t, "verdict", verdict); !g.prohibited || g.state != stateOpen {
				t.Fatalf("the gate was asked after the prohibition and says %+v", g)
			}
			n.allow(c)
		}
	}
}

// TestA6_WhoLeavesTheGateHurtsNobody: others are answered, and a statement that everybody has left is given up.
func TestA6_WhoLeavesTheGateHurtsNobody(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	p := n.provider.main
	s := n.loaded(n.open(ask{}).Session)
	_, release := n.held(gateAnswered, s)
	ctx, cancel := context.WithCancel(t.Context())
	errs, verdicts := make(chan error, 1), make(chan gate, 1)
	go func() { _, err := p.gate(ctx, s, nil, nil); errs <- err }()
	testkit.Eventually(t, "it waits", func() bool { waiting, _ := p.gates.queued(); return waiting == 1 })
	go func() {
		g, err := p.gate(context.Background(), s, nil, nil)
		if err != nil {
			t.Error(err)
		}
		verdicts <- g
	}()
	testkit.Eventually(t, "two wait", func() bool { waiting, _ := p.gates.queued(); return waiting == 2 })
	cancel()
	if err := within(t, "the one who left", errs); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release()
	if g := within(t, "the one who stayed", verdicts); g.forRead() != nil {
		t.Fatalf("%+v", g)
	}
	// The statement stands still in the database; nobody is left to be answered.
	lock := n.locked("feed")
	ctx, cancel = context.WithCancel(t.Context())
	for range 4 {
		go func() { _, err := p.gate(ctx, s, nil, nil); errs <- err }()
	}
	n.blocked(batchesAtOnce)
	cancel()
	for range 4 {
		if err := within(t, "one who left", errs); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the statements are given up", func() bool { waiting, flying := p.gates.queued(); return waiting+flying == 0 })
	lock()
}

// locked holds a table until the returned function is called.
func (n *node) locked(table string) (unlock func()) {
	n.t.Helper()
	conn := pgtest.Conn(n.t, n.db)
	if _, err := conn.Exec(context.Background(), `begin; lock table `+table+` in access exclusive mode`); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		if _, err := conn.Exec(context.Background(), `rollback`); err != nil {
			n.t.Fatal(err)
		}
	}
}

// blocked waits until so many statements of the gate wait for a lock, and returns their backends.
func (n *node) blocked(count int) (backends []int) {
	n.t.Helper()
	testkit.Eventually(n.t, "statements of the gate wait for a lock", func() bool {
		rows, err := n.db.Pool.Query(context.Background(), `select pid from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like 'with feeds as materialized%'`)
		if err != nil {
			n.t.Fatal(err)
		}
		if backends, err = pgx.CollectRows(rows, pgx.RowTo[int]); err != nil {
			n.t.Fatal(err)
		}
		return len(backends) >= count
	})
	return backends
}

// TestA6_AFailedStatementIsAskedOneByOne: a connection is lost under the questions of many, and each has its verdict.
func TestA6_AFailedStatementIsAskedOneByOne(t *testing.T) {
	t.Parallel()
	n, sessions, questions, want := fates(t)
	p := n.provider.main
	_, release := n.held(gateAnswered, sessions["open"])
	var all sync.WaitGroup
	for fate, q := range questions {
		all.Go(func() {
			g, err := p.gate(context.Background(), sessions[fate], q.disclosed, q.evidence)
			if g.now = 0; err != nil || g != want[fate] {
				t.Errorf("%s: %+v, %v; want %+v", fate, g, err, want[fate])
			}
		})
	}
	testkit.Eventually(t, "all wait", func() bool { waiting, _ := p.gates.queued(); return waiting == len(questions) })
	unlock := n.locked("feed")
	release()
	for _, pid := range n.blocked(1) {
		if _, err := n.db.Pool.Exec(t.Context(), `select pg_terminate_backend($1)`, pid); err != nil {
			t.Fatal(err)
		}
	}
	n.blocked(2) // they ask again, each by itself
	unlock()
	all.Wait()
	if got := n.metric("overlayd_lookup_gate_again_total", ""); got != float64(len(questions)) {
		t.Fatalf("%v asked again, not %d", got, len(questions))
	}
}

// TestA6_VerdictsAreNotMixedUp: many ask at once, and some leave.
func TestA6_VerdictsAreNotMixedUp(t *testing.T) {
	t.Parallel()
	n, sessions, questions, want := fates(t)
	var names []string
	for fate := range questions {
		names = append(names, fate)
	}
	var all sync.WaitGroup
	var told, left, statements atomic.Int32
	sent := n.provider.main.gates.sent
	n.provider.main.gates.sent = func(k int) { statements.Add(1); sent(k) }
	for i := range 64 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 40 {
				fate := names[r.IntN(len(names))]
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(3000))*time.Microsecond)
				}
				g, err := n.provider.main.gate(ctx, sessions[fate], questions[fate].disclosed, questions[fate].evidence)
				cancel()
				switch g.now = 0; {
				case err != nil && ctx.Err() == context.DeadlineExceeded:
					left.Add(1)
				case err != nil || g != want[fate]:
					t.Errorf("%s: %+v, %v", fate, g, err)
				default:
					told.Add(1)
				}
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, "nobody asks", func() bool { waiting, flying := n.provider.main.gates.queued(); return waiting+flying == 0 })
	t.Logf("%d verdicts in %d statements, %d left", told.Load(), statements.Load(), left.Load())
	if told.Load() < 1000 {
		t.Fatal("nothing was shown")
	}
}

// TestA6_ABatchIsBounded: in questions, and in what they name.
func TestA6_ABatchIsBounded(t *testing.T) {
	t.Parallel()
	b := &batcher[gateQuestion, gate]{items: gateQuestion.items}
	add := func(points int) {
		b.waiting = append(b.waiting, &asked[gateQuestion, gate]{question: gateQuestion{disclosed: make([]byte, points*outpointSize)}})
	}
	for range batchMost + 10 {
		add(1)
	}
	if got := len(b.board(&flight{}, nil)); got != batchMost || len(b.waiting) != 10 {
		t.Fatalf("%d asked, %d wait", got, len(b.waiting))
	}
	b.waiting = nil
	for range 3 {
		add(batchItems - 1)
	}
	first := b.board(&flight{}, nil)
	if len(first) != 2 || len(b.waiting) != 1 {
		t.Fatalf("%d asked, %d wait", len(first), len(b.waiting))
	}
	if again := b.board(&flight{}, first); len(again) != 2 || len(b.waiting) != 1 {
		t.Fatalf("%d asked, %d wait", len(again), len(b.waiting))
	}
	b.waiting = nil
	add(1 << 20) // a single one is asked whatever it names
	if got := len(b.board(&flight{}, nil)); got != 1 {
		t.Fatal(got)
	}
}

// TestA6_GateCost: the statement of the gate is planned while the tables are empty. What it touches for a body does not grow with
// the sessions, the prohibitions and the rows that were narrowed, nor with how many bodies it is asked of.
func TestA6_GateCost(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	conn, err := pgx.ConnectConfig(t.Context(), n.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	if _, err := conn.Exec(t.Context(), `prepare gate(bytea[], bytea[], bytea[], int[]) as `+gateAsk); err != nil {
		t.Fatal(err)
	}
	const nothing, point, sha = `''::bytea`, `sha256(convert_to('o' || i, 'UTF8')) || '\x00000000'::bytea`, `sha256(convert_to('b' || i, 'UTF8'))`
	var plan []byte
	touched := func(gates int, disclosed, evidence string) (sum int) {
		t.Helper()
		args := make([]string, 3)
		for k, expression := range []string{`sha256(convert_to('s' || i * 71, 'UTF8'))`, disclosed, evidence} {
			err := conn.QueryRow(t.Context(), `select quote_literal(array_agg(`+expression+` order by i)) || '::bytea[]' from generate_series(1, $1) i`, gates).Scan(&args[k])
			if err != nil {
				t.Fatal(err)
			}
		}
		if evidence == nothing {
			args[2] = `'{}'`
		}
		pgtest.Undisturbed(t, conn, func() {
			if err := conn.QueryRow(t.Context(), `explain (analyze, buffers, format json) execute gate(`+strings.Join(args, ", ")+fmt.Sprintf(`, array[%d])`, n.feed.ID()), pgx.QueryExecModeSimpleProtocol).Scan(&plan); err != nil {
				t.Fatal(err)
			}
			var out []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				}
			}
			if err := json.Unmarshal(plan, &out); err != nil {
				t.Fatal(err)
			}
			sum = out[0].Plan.Hit + out[0].Plan.Read
		})
		return sum
	}
	touched(1, point, sha)
	feed := n.feed.ID()
	for _, sql := range []string{
		`insert into manifest (digest, content, issued_at, expires_at, packet) values (sha256('m'), sha256('c'), 0, 10, 'x')`,
		`insert into lookup_session (id, fence, ref, feed_id, service, epoch, capability, w, w_tag, t, expires_at,
			replay_until, max_request_bytes, max_response_bytes, max_observations, max_wait_ms, rules_id, rules_parameters, query, scope, request, first_batch, principal)
		select sha256(convert_to('s' || i, 'UTF8')), sha256(convert_to('f' || i, 'UTF8')), gen_random_uuid(), $1, 'ls', 'e',
			sha256('m'), 1000, '\x0000000000000000', 0, 4000000000, 4000000000 + i, 1, 1, 1, 1, 'r', '', '', '', '', '', sha256('p') || '\x00'::bytea
		from generate_series(1, 20000) i`,
		`insert into row_audience (feed_id, outpoint, seq, readers)
		select $1, sha256(convert_to('n' || i, 'UTF8')) || '\x00000000', i % 999, '{}' from generate_series(1, 20000) i`,
		`insert into prohibition (feed_id, outpoint, reason, since)
		select $1, sha256(convert_to('x' || i, 'UTF8')) || '\x00000000', '', 0 from generate_series(1, 20000) i`,
		`insert into blob (sha, bytes) select sha256(convert_to('b' || i, 'UTF8')), 'x' from generate_series(1, 20000) i`,
	} {
		args := []any{feed}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := n.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	// The statement reads clock, feed and its last narrowing once, and a plain gate its session.
	const shared, plain, row, evidence = 12, 8, 8, 5
	check := func(what string, gates, most int, disclosed, evidence string) {
		t.Helper()
		got := touched(gates, disclosed, evidence)
		t.Logf("%-50s %5d buffers, %.1f a gate", what, got, float64(got)/float64(gates))
		if got > shared+most*gates {
			t.Errorf("%s: %d buffers for %d gates, at most %d and %d each are needed: %s", what, got, gates, shared, most, plan)
		}
		if bytes.Contains(plan, []byte("Seq Scan")) {
			t.Errorf("%s reads a table: %s", what, plan)
		}
	}
	check("one", 1, plain, point, nothing)
	check("256", 256, plain, point, nothing)
	check("256 with evidence", 256, plain+evidence, point, sha)
	if _, err := n.db.Pool.Exec(t.Context(), `update feed set prohibition_rev = 1 where id = $1`, feed); err != nil {
		t.Fatal(err)
	}
	check("one, where rows were prohibited", 1, plain+row, point, nothing)
	check("256, where rows were prohibited", 256, plain+row, point, nothing)
	check("256 with evidence, where rows were prohibited", 256, plain+row+evidence, point, sha)
}
