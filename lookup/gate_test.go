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
	sessions["expired"].expiresAt = 1
	questions, want = make(map[string]gateQuestion), make(map[string]gate)
	stored, missing := sha256.Sum256(plain.beef), sha256.Sum256([]byte("nothing"))
	for fate, s := range sessions {
		point := plain.point().Bytes()
		q := gateQuestion{session: s, disclosed: point[:]}
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
			where datname = current_database() and wait_event_type = 'Lock' and query like 'select k.n,%'`)
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
	for name, sql := range map[string]string{"whole(bytea[], bytea[], int[])": gateAsk, "glance(int[], text[], bytea[])": gateGlance} {
		if _, err := conn.Exec(t.Context(), `prepare `+name+` as `+sql); err != nil {
			t.Fatal(err)
		}
	}
	const point, sha = `sha256(convert_to('o' || i, 'UTF8')) || '\x00000000'::bytea`, `sha256(convert_to('b' || i, 'UTF8'))`
	var plan []byte
	run := func(statement string) (sum int) {
		t.Helper()
		pgtest.Undisturbed(t, conn, func() {
			if err := conn.QueryRow(t.Context(), `explain (analyze, buffers, format json) execute `+statement, pgx.QueryExecModeSimpleProtocol).Scan(&plan); err != nil {
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
	list := func(many int, expression string) (literal string) {
		t.Helper()
		if many == 0 {
			return `'{}'`
		}
		err := conn.QueryRow(t.Context(), `select quote_literal(array_agg(`+expression+` order by i)) || '::bytea[]' from generate_series(1, $1) i`, many).Scan(&literal)
		if err != nil {
			t.Fatal(err)
		}
		return literal
	}
	whole := func(gates int, disclosed string) int {
		t.Helper()
		return run(`whole(` + list(gates, `sha256(convert_to('s' || i * 71, 'UTF8'))`) + `, ` + list(gates, disclosed) + fmt.Sprintf(`, array[%d])`, n.feed.ID()))
	}
	glanced := func(evidence int) int {
		t.Helper()
		return run(fmt.Sprintf(`glance(array[%d], array['ls'], `, n.feed.ID()) + list(evidence, sha) + `)`)
	}
	whole(1, point)
	glanced(1)
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
		`insert into lookup_ledger (feed_id, service) values ($1, 'ls')`,
	} {
		args := []any{feed}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := n.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	// Both read clock, feed and its last narrowing once; a glance the ledger, and a whole look at a body its session and the ledger.
	const shared, ledger, session, row, evidence = 12, 3, 8, 8, 5
	check := func(what string, gates, got, most int) {
		t.Helper()
		t.Logf("%-50s %5d buffers, %.1f a gate", what, got, float64(got)/float64(gates))
		if got > most {
			t.Errorf("%s: %d buffers for %d gates, at most %d are needed: %s", what, got, gates, most, plan)
		}
		if bytes.Contains(plan, []byte("Seq Scan")) {
			t.Errorf("%s reads a table: %s", what, plan)
		}
	}
	check("256 that stand", 256, glanced(0), shared+ledger)
	check("256 that stand, with evidence", 256, glanced(256), shared+ledger+256*evidence)
	check("one", 1, whole(1, point), shared+session+ledger)
	check("256", 256, whole(256, point), shared+256*(session+ledger))
	if _, err := n.db.Pool.Exec(t.Context(), `update feed set prohibition_rev = 1 where id = $1`, feed); err != nil {
		t.Fatal(err)
	}
	check("one, where rows were prohibited", 1, whole(1, point), shared+session+ledger+row)
	check("256, where rows were prohibited", 256, whole(256, point), shared+256*(session+ledger+row))
}

// TestA6_AGlanceTellsWhatStands: of a session that was looked at here the gate reads nothing while nothing of its service ended; whatever
// ends is known at once, of that session or of another, and none that was expired or whose epoch was broken is served by a glance.
func TestA6_AGlanceTellsWhatStands(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	row := mint("glance", 0)
	n.append(row.put(genre(0), ""))
	point := row.point().Bytes()
	a, b := n.open(ask{}), n.open(ask{})
	s, other := n.loaded(a.Session), n.loaded(b.Session)
	looked := func() float64 { return n.metric("overlayd_lookup_gate_whole_total", "") }
	before := looked()
	asks := func(what string, s *session, looks float64, want error) {
		t.Helper()
		g, err := n.provider.main.gate(t.Context(), s, point[:], nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.forRead(); want == nil && got != nil || want != nil && (got == nil || !errors.Is(got, want)) {
			t.Errorf("%s: the gate says %v, want %v", what, got, want)
		}
		if got := looked() - before; got != looks {
			t.Errorf("%s: %v sessions were looked at, want %v", what, got, looks)
		}
		before = looked()
	}
	asks("one that was loaded", s, 0, nil)
	n.request(closePath, closeBody(b.Session))
	asks("another has ended", s, 1, nil)
	asks("nothing since", s, 0, nil)
	before = looked()
	if g, err := n.provider.main.gate(t.Context(), other, nil, nil); err != nil || g.state != stateClosed {
		t.Fatalf("%+v, %v", g, err)
	}
	before = looked()
	n.open(ask{})
	before = looked()
	asks("another was opened", s, 0, nil)
	late, terms := *s, *s.terms
	late.terms, terms.expiresAt = &terms, 1
	if g, err := n.provider.main.gate(t.Context(), &late, nil, nil); err != nil || !g.expired || looked() != before {
		t.Fatalf("%+v, %v", g, err)
	}
	n.prohibit(row)
	asks("a row of it is prohibited", s, 1, errProhibited)
	if _, err := n.feed.Rotate(t.Context(), newID(), livefeed.Break, "for a test"); err != nil {
		t.Fatal(err)
	}
	if g, err := n.provider.main.gate(t.Context(), s, nil, nil); err != nil || !g.broken {
		t.Fatalf("%+v, %v", g, err)
	}
	// Without its ledger nothing stands, and what is missing is missed all the same.
	if _, err := n.db.Pool.Exec(t.Context(), `delete from lookup_ledger`); err != nil {
		t.Fatal(err)
	}
	missing := sha256.Sum256([]byte("nothing"))
	before = looked()
	if g, err := n.provider.main.gate(t.Context(), s, nil, missing[:]); err != nil || !g.lost || looked() != before+1 {
		t.Fatalf("%+v, %v", g, err)
	}
}
