package lookup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// brittleRules are rules of somebody else, which panic when a stored session of their bad query is read.
type brittleRules struct{ AttributesRules }

func (brittleRules) ID() string { return "urn:test:brittle" }

func (r brittleRules) Contract(parameters json.RawMessage) (Contract, error) {
	c, err := r.AttributesRules.Contract(parameters)
	return brittleContract{c}, err
}

type brittleContract struct{ Contract }

func (c brittleContract) Query(query json.RawMessage) (Query, error) {
	if bytes.Contains(query, []byte("broken")) {
		panic("rules that panic")
	}
	return c.Contract.Query(query)
}

// TestW5_APanicIsOfNobodyElse: rules panic while sessions are loaded together. Whose session it is meets the panic, in his own
// request; the others are loaded, and the node goes on.
func TestW5_APanicIsOfNobodyElse(t *testing.T) {
	t.Parallel()
	n := start(t, setup{rules: []Rules{brittleRules{}}, service: func(s *Service) { s.RulesID = "urn:test:brittle" }, poolConns: 20})
	p := n.provider.main
	var ids []string
	for range 6 {
		ids = append(ids, n.open(ask{}).Session)
	}
	digest := func(id string) [32]byte { d, _ := p.sessionDigest(id); return d }
	bad := digest(ids[5])
	if _, err := n.db.Pool.Exec(t.Context(), `update lookup_session set query = '{"match":{"genre":"broken"}}' where id = $1`, bad[:]); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nobody asks", func() bool { waiting, flying := p.loads.queued(); return waiting+flying == 0 })
	var sent atomic.Int32
	send := p.loads.send
	p.loads.send = func(ctx context.Context, q livefeed.Querier, questions [][32]byte) ([]loaded, error) {
		sent.Add(1)
		return send(ctx, q, questions)
	}
	unlock := n.locked("lookup_session")
	results := make(chan string, len(ids))
	load := func(id string) {
		said := "panicked"
		defer func() { _ = recover(); results <- said }()
		s, err := p.load(context.Background(), id, digest(id))
		if said = "loaded"; err != nil || s == nil || s.id != id {
			said = fmt.Sprintf("%v, %v", s, err)
		}
	}
	for i, id := range ids {
		go load(id)
		if i < batchesAtOnce {
			testkit.Eventually(t, "it is alone in its statement", func() bool { return sent.Load() == int32(i+1) })
		}
	}
	testkit.Eventually(t, "the rest waits", func() bool { waiting, _ := p.loads.queued(); return waiting == len(ids)-batchesAtOnce })
	unlock()
	told := make(map[string]int)
	for range ids {
		told[within(t, "session", results)]++
	}
	if told["loaded"] != len(ids)-1 || told["panicked"] != 1 {
		t.Fatalf("%v", told)
	}
	testkit.Eventually(t, "nobody asks", func() bool { waiting, flying := p.loads.queued(); return waiting+flying == 0 })
	// Alone in a statement it is the same.
	go load(ids[5])
	if got := within(t, "session", results); got != "panicked" {
		t.Fatal(got)
	}
	n.open(ask{})
}

// TestA6_ManyAreAskedAgainOneByOne: the database gives a statement of 256 gates up, as its timeout does, and another beside it. Each
// of those who asked has his verdict in the end.
func TestA6_ManyAreAskedAgainOneByOne(t *testing.T) {
	t.Parallel()
	n, sessions, questions, want := fates(t)
	p := n.provider.main
	sizes, release := n.held(gateAnswered, sessions["open"])
	const each = 30 // of 11 fates
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
	count := each * len(questions)
	testkit.Eventually(t, "all wait", func() bool { waiting, _ := p.gates.queued(); return waiting == count })
	unlock := n.locked("feed")
	release()
	for _, pid := range n.blocked(batchesAtOnce) {
		if _, err := n.db.Pool.Exec(t.Context(), `select pg_cancel_backend($1)`, pid); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all ask again", func() bool { return n.metric("overlayd_lookup_gate_again_total", "") == float64(count) })
	unlock()
	all.Wait()
	if got := sizes(); len(got) < 2 || got[0]+got[1] != count || max(got[0], got[1]) != batchMost {
		t.Fatalf("statements of %v gates", got)
	}
}

// TestA6_WhoAsksAloneHasHisOwnTime: a statement of one question that has no answer in a batch's time is asked again, like one of many.
func TestA6_WhoAsksAloneHasHisOwnTime(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.provider.main.gates.within = 50 * time.Millisecond // before anything is asked
	s := n.loaded(n.open(ask{}).Session)
	unlock := n.locked("feed")
	again := n.metric("overlayd_lookup_gate_again_total", "")
	verdict := make(chan gate, 1)
	go func() {
		g, err := n.provider.main.gate(context.Background(), s, nil, nil)
		if err != nil {
			t.Error(err)
		}
		verdict <- g
	}()
	testkit.Eventually(t, "it is asked again", func() bool { return n.metric("overlayd_lookup_gate_again_total", "") > again })
	unlock()
	if g := within(t, "verdict", verdict); g.state != stateOpen {
		t.Fatalf("%+v", g)
	}
}

// TestA6_WhoLeftHoldsNothing: who left before his question was taken leaves none of what it named behind, however long the statements
// before it take.
func TestA6_WhoLeftHoldsNothing(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	s := n.loaded(n.open(ask{}).Session)
	_, release := n.held(gateAnswered, s)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() { _, err := n.provider.main.gate(ctx, s, make([]byte, 1000*outpointSize), nil); errs <- err }()
	testkit.Eventually(t, "it waits", func() bool { waiting, _ := n.provider.main.gates.queued(); return waiting == 1 })
	cancel()
	if err := within(t, "who left", errs); err == nil {
		t.Fatal("he had an answer")
	}
	g := n.provider.main.gates
	g.mu.Lock()
	held := len(g.waiting[0].question.disclosed)
	g.mu.Unlock()
	if held != 0 {
		t.Errorf("%d bytes are held of a question that nobody asks any more", held)
	}
	release()
	testkit.Eventually(t, "nobody asks", func() bool { waiting, flying := g.queued(); return waiting+flying == 0 })
}

// TestA6_AStopLeavesNothing: requests are cut off while their questions wait for a database that does not answer. When server and pool
// are closed nothing is left of them.
func TestA6_AStopLeavesNothing(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	p := n.provider.main
	b := n.live(`{}`)
	n.digest = n.capability()
	n.read(b, wide)
	unlock := n.locked("feed")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range 5 {
		go func() { _, _ = n.try(ctx, readPath, readBody(b.Session, b.Cursor, wait(25_000))) }() // it arrives, and would sleep
		if i < batchesAtOnce {                                                                   // alone in its statement
			n.blocked(i + 1)
		}
	}
	testkit.Eventually(t, "the rest waits", func() bool { waiting, _ := p.gates.queued(); return waiting == 5-batchesAtOnce })
	cancel()
	halted := make(chan struct{})
	go func() { n.halt(); close(halted) }()
	within(t, "stopped", halted)
	unlock()
	for name, queued := range map[string]func() (int, int){"gates": p.gates.queued, "loads": p.loads.queued, "evidence": p.reads.queued} {
		testkit.Eventually(t, name+": nobody asks", func() bool { waiting, flying := queued(); return waiting+flying == 0 })
	}
	if taken, waiting := p.quotas.slots.count(); taken+waiting+p.quotas.bodies.count()+p.quotas.waiters.count() != 0 {
		t.Fatalf("%d slots, %d wait, %d bytes of bodies, %d places", taken, waiting, p.quotas.bodies.count(), p.quotas.waiters.count())
	}
}

// TestA6_ARememberedSessionEndsElsewhere: a session that this node remembers ends at another one, or at its time. Its next read here
// says so, each time, whether it would find nothing, would sleep, finds a group at once, or finds its position compacted.
func TestA6_ARememberedSessionEndsElsewhere(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		do   func(m *node, b *wire.Batch)
		want wire.Code
	}{
		{"closed", func(m *node, b *wire.Batch) { m.request(closePath, closeBody(b.Session)) }, wire.Expired},
		{"expired", func(m *node, b *wire.Batch) { m.advance(b.ExpiresAt) }, wire.ResetRequired},
		{"epoch broken", func(m *node, _ *wire.Batch) { m.rotate(livefeed.Break) }, wire.ResetRequired},
		{"epoch retired", func(m *node, _ *wire.Batch) { m.rotate(livefeed.Retire) }, ""},
		{"removed", func(m *node, _ *wire.Batch) { m.removeAll() }, wire.Unauthorized},
		{"gone", func(m *node, _ *wire.Batch) {
			if _, err := m.db.Pool.Exec(context.Background(), `delete from lookup_session`); err != nil {
				m.t.Error(err)
			}
		}, wire.ResetRequired},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			key := identityKey(t)
			n := start(t, setup{identity: key})
			m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
			b := n.live(`{}`)
			n.digest = n.capability()
			b = n.read(b, wide)
			if n.provider.sessions.size() == 0 {
				t.Fatal("it is not remembered")
			}
			end.do(m, b)
			if end.want != "" { // a poll is refused soon, not at its deadline
				refused := make(chan reply, 1)
				go func() {
					r, err := n.try(t.Context(), readPath, readBody(b.Session, b.Cursor, wait(25_000)))
					if err != nil {
						t.Error(err)
					}
					refused <- r
				}()
				select {
				case r := <-refused:
					r.refused(t, end.want)
				case <-time.After(20 * time.Second):
					t.Fatal("the poll sleeps on")
				}
			}
			reads := func() {
				for _, l := range []wire.Limits{wide, wait(1), wait(25_000)} {
					if l.WaitMs > 1 {
						n.append(mint("after the end", 0).put(genre(0), "")) // known here
					}
					for range 2 {
						r := n.request(readPath, readBody(b.Session, b.Cursor, l))
						if end.want == "" {
							r.batch(t)
						} else {
							r.refused(t, end.want)
						}
					}
				}
			}
			reads()
			if end.want != "" { // a wrong selection is told only while there is something that it could be of
				own := n.digest
				n.digest = strings.Repeat("ab", 32)
				want := wire.ContextChanged
				if end.name == "gone" {
					want = wire.ResetRequired
				}
				n.request(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, want)
				n.digest = own
			}
			if end.want != "" {
				if _, err := n.provider.Retain(t.Context()); err != nil {
					t.Fatal(err)
				}
				reads()
			}
		})
	}
}

// TestA6_WhoLeavesAStatementHurtsNobody: of those whose statement stands in the database all but one leave. It goes on for him, and he is
// not asked again.
func TestA6_WhoLeavesAStatementHurtsNobody(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	p := n.provider.main
	s := n.loaded(n.open(ask{}).Session)
	_, release := n.held(gateAnswered, s)
	ctx, cancel := context.WithCancel(t.Context())
	errs, verdicts := make(chan error, 5), make(chan gate, 1)
	for range cap(errs) {
		go func() { _, err := p.gate(ctx, s, nil, nil); errs <- err }()
	}
	go func() {
		g, err := p.gate(context.Background(), s, nil, nil)
		if err != nil {
			t.Error(err)
		}
		verdicts <- g
	}()
	testkit.Eventually(t, "all wait", func() bool { waiting, _ := p.gates.queued(); return waiting == cap(errs)+1 })
	unlock := n.locked("feed")
	release()
	n.blocked(1)
	cancel()
	for range cap(errs) {
		if err := within(t, "one who left", errs); err == nil {
			t.Error("who left had an answer")
		}
	}
	unlock()
	if g := within(t, "verdict", verdicts); g.state != stateOpen {
		t.Fatalf("%+v", g)
	}
	if got := n.metric("overlayd_lookup_gate_again_total", ""); got != 0 {
		t.Fatalf("%v asked again", got)
	}
}

// TestW5_FewShareAStatement: while one is on its way, few wait for its end; a second sets out for many, or when the first takes long.
func TestW5_FewShareAStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		patience      time.Duration
		second, third int // who ask after the first until a second statement sets out, and after that until all have an answer
	}{
		"many":  {time.Hour, batchCrowd, 5},
		"late":  {time.Nanosecond, 1, 5},
		"alone": {time.Hour, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun, goOn := make(chan int, batchesAtOnce+1), make(chan struct{})
			b := &batcher[int, int]{pool: db.Pool, patience: c.patience, sent: func(int) {}, again: func() {},
				send: func(_ context.Context, _ livefeed.Querier, questions []int) ([]int, error) {
					begun <- len(questions)
					<-goOn
					return questions, nil
				}}
			var asking sync.WaitGroup
			asked := 0
			ask := func() {
				n := asked
				asked++
				asking.Go(func() {
					if got, err := b.ask(t.Context(), n); err != nil || got != n {
						t.Errorf("%d: %d, %v", n, got, err)
					}
				})
			}
			ask()
			if got := within(t, "the first statement", begun); got != 1 {
				t.Fatalf("%d questions", got)
			}
			for range c.second {
				ask()
			}
			if c.second > 0 {
				if got := within(t, "the second statement", begun); got != c.second {
					t.Fatalf("%d questions in the second, not %d", got, c.second)
				}
			}
			for range c.third {
				ask()
			}
			flying := min(1+c.second, batchesAtOnce)
			testkit.Eventually(t, "the rest waits", func() bool { w, f := b.queued(); return w == c.third && f == flying })
			close(goOn)
			asking.Wait()
			if got := within(t, "the next statement", begun); got != c.third {
				t.Errorf("%d questions in the next, not %d", got, c.third)
			}
			testkit.Eventually(t, "nobody flies", func() bool { w, f := b.queued(); return w+f == 0 })
			if b.mu.Lock(); b.late != 0 {
				t.Errorf("%d are late", b.late)
			}
			b.mu.Unlock()
		})
	}
}
