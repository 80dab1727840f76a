package livefeed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// deaf makes a node hear of other nodes' commits only what the test tells it.
func deaf(c *Config) { c.Backstop, c.NoListen = time.Hour, true }

// follow reads on after a cut.
func (n *node) follow(t *testing.T, f *Feed, after Cut, waiting Waiting, selectors ...Selector) LogPage {
	t.Helper()
	p, err := f.Follow(t.Context(), n.pool, LogQuery{After: after.W, AfterTag: after.Tag, Selectors: selectors, Limit: 10}, waiting)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestF20_WhatWokeIsInTheAnswer: what the tail knows may be fresh and reach beyond the follower's position, and yet lack the group that was
// announced. A follower who got that answer would sleep on.
func TestF20_WhatWokeIsInTheAnswer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, deaf), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	f.tail.fresh = time.Hour
	s := AttributeSelector("n", "1")
	c := f.cut(t)
	w := f.Watch(s)
	defer w.Close()
	if p := near.follow(t, f, c, Here, s); len(p.Groups) != 0 {
		t.Fatalf("%+v", p)
	}
	f.mustAppend(t, group("near", put(1))) // the tail is fresh, and ahead of the follower
	g.mustAppend(t, group("far", put(2, attr("n", "1"))))
	silent(t, "a wake-up by what does not match", w.C())
	f.hub.publish(0, 2, 2, announcement{everyone: true}) // as when there is too much to read
	await(t, "the wake-up", w.C())
	if p := near.follow(t, f, c, Woken, s); len(p.Groups) != 1 || p.Head != 2 {
		t.Errorf("a woken follower is told %+v", p)
	}
}

// TestF20_WhoIsRegisteredSleepsWithoutAStatement: when what is known holds nothing for it, however old that is. What is not known
// here wakes it; what is announced but not known is looked for, and so is what is there besides, a timer that is due above all.
func TestF20_WhoIsRegisteredSleepsWithoutAStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, deaf), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	c := f.cut(t)
	near.follow(t, f, c, Here)
	f.tail.fresh = 0 // all is old
	g.mustAppend(t, group("1", put(1)))
	looks := near.looked(f)
	w := f.Watch()
	defer w.Close()
	if p := near.follow(t, f, c, Registered); len(p.Groups) != 0 || p.Head != 0 {
		t.Errorf("one who is registered is told %+v", p)
	}
	if n := near.looked(f) - looks; n != 0 {
		t.Errorf("it cost %v statements", n)
	}
	silent(t, "a wake-up by what nobody told of", w.C())
	f.hub.publish(0, 1, 1, announcement{everyone: true})
	await(t, "the wake-up", w.C())
	if p := near.follow(t, f, c, Registered); len(p.Groups) != 1 {
		t.Errorf("of what was announced one who registers is told %+v", p)
	}
	f.tail.fresh = time.Hour
	looks = near.looked(f)
	if p := near.follow(t, f, c, Registered); len(p.Groups) != 1 || near.looked(f)-looks != 1 {
		t.Errorf("of what is there one who registers is told %+v, by %v statements", p, near.looked(f)-looks)
	}
}

// TestF20_ABreakIsInTheAnswer, also when a commit from before the break is announced after it.
func TestF20_ABreakIsInTheAnswer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, deaf), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	f.tail.fresh = time.Hour
	late := newGate(t)
	f.hooks.committed = func(uint64) error { late.stop(); return nil }
	c := f.cut(t)
	w := f.Watch(AttributeSelector("n", "1"))
	defer w.Close()
	near.follow(t, f, c, Here)
	pending := f.Submit(t.Context(), group("1", put(1)))
	await(t, "the commit", late.reached)
	if _, err := g.Rotate(t.Context(), "rotation-key-0123", Break, ""); err != nil {
		t.Fatal(err)
	}
	if err := near.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	late.goOn()
	if _, err := pending.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the wake-up", w.C())
	if p := near.follow(t, f, c, Woken); p.Broken == 0 || p.Head != 1 {
		t.Errorf("a woken follower is told %+v", p)
	}
}

// TestF20_TimeDoesNotRunBack: a commit read the clock before somebody was told a later time.
func TestF20_TimeDoesNotRunBack(t *testing.T) {
	t.Parallel()
	for source, bounds := range map[string]option{"shared": func(*Config) {}, "alone": func(c *Config) { c.TailGroups = 1 }} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			_, n, f := startQuietFeed(t, deaf, bounds)
			f.tail.fresh = time.Hour
			old := f.cut(t)
			for i := range 3 {
				f.mustAppend(t, group(fmt.Sprint(i), put(i)))
			}
			c := f.cut(t)
			told := c.Now + 1000
			f.hooks.planned = func() {
				f.hooks.planned = nil
				if err := f.Advance(t.Context(), n.pool, told); err != nil {
					t.Error(err)
				}
				if p := n.follow(t, f, old, Here); p.Now != told {
					t.Errorf("time %d, want %d", p.Now, told)
				}
			}
			f.mustAppend(t, group("late", put(4)))
			if n.followed(f, source) != 1 {
				t.Fatalf("nothing was %s", source)
			}
			if p := n.follow(t, f, c, Woken); p.Now < told || len(p.Groups) != 1 {
				t.Errorf("%d was told, and then %+v", told, p)
			}
			f.mustAppend(t, group("after", put(5)))
			memory := n.followed(f, "memory")
			if p := n.follow(t, f, c, Woken); p.Now < told || len(p.Groups) != 2 && source == "shared" {
				t.Errorf("%d was told, and then %+v", told, p)
			}
			if source == "shared" && n.followed(f, "memory") != memory+1 {
				t.Error("a commit after it is not known")
			}
		})
	}
}

// TestF20_WhatFallsDueLaterIsNotClaimed: an answer from memory is as of the moment that it names, and all that was due by then is in it
// (BRC-193 s8).
func TestF20_WhatFallsDueLaterIsNotClaimed(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	f.tail.fresh = time.Hour
	c := f.cut(t)
	deadline := c.Now + 1000
	f.mustAppend(t, group("1", put(1, expires(deadline))))
	if err := f.Advance(t.Context(), n.pool, deadline); err != nil { // the database's clock gets there
		t.Fatal(err)
	}
	p := n.follow(t, f, c, Woken)
	if n.followed(f, "memory") != 1 || p.Due || p.Now >= deadline || len(p.Groups) != 1 {
		t.Errorf("from memory: %+v", p)
	}
	if p := n.follow(t, f, c, Here); !p.Due || p.Now < deadline {
		t.Errorf("not from memory: %+v", p)
	}
	if p := n.follow(t, f, c, Woken); !p.Due {
		t.Errorf("after it: %+v", p)
	}
}

// TestF20_AForgottenPositionDropsNothing that others follow.
func TestF20_AForgottenPositionDropsNothing(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t, deaf)
	old := f.cut(t)
	for i := range 8 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	c := f.cut(t)
	n.follow(t, f, c, Here)
	f.compactAll(t, until(5))
	life := f.tail.latest().life
	for _, waiting := range []Waiting{Here, Registered, Woken} {
		if _, err := f.Follow(t.Context(), n.pool, LogQuery{After: old.W, AfterTag: old.Tag, Limit: 10}, waiting); CodeOf(err) != Reset {
			t.Errorf("waiting %v: %v", waiting, err)
		}
	}
	if f.tail.latest().life != life {
		t.Error("the tail was dropped")
	}
}

// TestF20_ALostAnswerIsFollowed: a commit whose answer was lost wakes, and is read once, also when the attempt that finds it again has the
// clock to write.
func TestF20_ALostAnswerIsFollowed(t *testing.T) {
	t.Parallel()
	for name, clock := range map[string]string{"the same second": "select 1", "a later second": "update feed_clock set evaluated = 0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, n, f := startFeed(t, deaf)
			f.tail.fresh = time.Hour
			s := AttributeSelector("n", "1")
			c := f.cut(t)
			w := f.Watch(s)
			defer w.Close()
			n.follow(t, f, c, Here, s)
			lost := true
			f.hooks.committed = func(uint64) error {
				if !lost {
					return nil
				}
				lost = false
				if _, err := db.Pool.Exec(t.Context(), clock); err != nil {
					t.Error(err)
				}
				return errors.New("lost")
			}
			r := f.mustAppend(t, group("1", put(1, attr("n", "1"))))
			await(t, "the wake-up", w.C())
			if p := n.follow(t, f, c, Woken, s); len(p.Groups) != 1 || p.Head != r.Sequence {
				t.Errorf("%+v", p)
			}
			f.mustAppend(t, group("2", put(2, attr("n", "1"))))
			await(t, "the wake-up", w.C())
			if p := n.follow(t, f, c, Woken, s); len(p.Groups) != 2 || n.followed(f, "memory") == 0 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestF20_TheTailKeepsUp with what another node commits for others than those who wait, so that this node's next commit finds its place.
func TestF20_TheTailKeepsUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, func(c *Config) { c.Backstop = time.Hour }), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	near.listening(t)
	f.tail.fresh = time.Hour
	s := AttributeSelector("n", "1")
	c := f.cut(t)
	w := f.Watch(s)
	defer w.Close()
	near.follow(t, f, c, Here, s)
	for i := range 3 {
		g.mustAppend(t, group(fmt.Sprint("far", i), put(10+i)))
		testkit.Eventually(t, "the tail has it", func() bool { at := f.tail.latest(); return at.head == uint64(2*i+1) && at.epoch != "" })
		f.mustAppend(t, group(fmt.Sprint("near", i), put(1, attr("n", "1"), beefOf(fmt.Sprint(i)))))
		await(t, "the wake-up", w.C())
		if p := near.follow(t, f, c, Woken, s); len(p.Groups) != i+1 || near.followed(f, "memory") != float64(i+1) {
			t.Errorf("%+v, %v from memory", p, near.followed(f, "memory"))
		}
	}
}

// TestF20_EveryPositionIsChecked, also that of one who joins a statement for others who are further on.
func TestF20_EveryPositionIsChecked(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t, deaf)
	var cuts []Cut
	for i := range 8 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
		cuts = append(cuts, f.cut(t))
	}
	n.follow(t, f, cuts[0], Here)
	block := pgtest.Conn(t, db)
	for _, sql := range []string{`update feed_group set tag = '\x0102030405060708' where seq = 6`, "begin", "lock table feed_floor in access exclusive mode"} {
		if _, err := block.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	state := func() (running bool, next uint64) {
		f.tail.mu.RLock()
		defer f.tail.mu.RUnlock()
		if next = maxSequence; f.tail.next != nil {
			next = f.tail.next.after
		}
		return f.tail.running != nil, next
	}
	ask := func(c Cut, want ErrorCode) {
		wg.Go(func() {
			if _, err := f.Follow(t.Context(), n.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 10}, Here); CodeOf(err) != want {
				t.Errorf("after %d: %v", c.W, err)
			}
		})
	}
	ask(cuts[7], 0)
	testkit.Eventually(t, "a statement is under way", func() bool { running, _ := state(); return running })
	ask(cuts[7], 0)
	testkit.Eventually(t, "another waits", func() bool { _, next := state(); return next == 8 })
	ask(cuts[5], Reset)
	testkit.Eventually(t, "a third joined", func() bool { _, next := state(); return next == 6 })
	if _, err := block.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// slow is a connection whose answers arrive, and are not looked at before the test says so.
type slow struct {
	Querier
	arrived *gate
}

type slowRows struct {
	pgx.Rows
	arrived *gate
}

func (s slow) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := s.Querier.Query(ctx, sql, args...)
	return slowRows{rows, s.arrived}, err
}

func (r slowRows) Next() bool {
	more := r.Rows.Next()
	r.arrived.stop()
	return more
}

// waiting tells when somebody begins to wait for its end.
type waiting struct {
	context.Context
	begins func()
}

func (w waiting) Done() <-chan struct{} {
	w.begins()
	return w.Context.Done()
}

// TestF20_AnOlderAnswerIsNotShared: who comes while a statement is under way is not told what it had seen before, be it a follower who
// begins or one who was woken by what is missing there.
func TestF20_AnOlderAnswerIsNotShared(t *testing.T) {
	t.Parallel()
	for how, called := range map[Waiting]string{Here: "one who begins", Registered: "one who is registered", Woken: "one who was woken"} {
		t.Run(called, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			near, far := startStore(t, db, deaf), startStore(t, db)
			f, g := near.ensure(t, "f"), far.ensure(t, "f")
			w := f.Watch()
			defer w.Close()
			c := f.cut(t)
			near.follow(t, f, c, Here)
			g.mustAppend(t, group("1", put(1)))
			arrived := newGate(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				p, err := f.Follow(t.Context(), slow{near.pool, arrived}, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 10}, Here)
				if err != nil || len(p.Groups) != 1 {
					t.Errorf("the first is told %+v, %v", p, err)
				}
			})
			await(t, "the answer", arrived.reached)
			g.mustAppend(t, group("2", put(2)))
			if how != Here {
				f.hub.publish(0, 1, 2, announcement{everyone: true})
				await(t, "the wake-up", w.C())
			}
			begun := make(chan struct{})
			ctx := waiting{t.Context(), sync.OnceFunc(func() { close(begun) })}
			wg.Go(func() {
				p, err := f.Follow(ctx, near.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 10}, how)
				if err != nil || len(p.Groups) != 2 {
					t.Errorf("the second is told %+v, %v", p, err)
				}
			})
			await(t, "the second's wait", begun)
			arrived.goOn()
			wg.Wait()
			if near.followed(f, "alone") != 0 {
				t.Errorf("%v answers alone", near.followed(f, "alone"))
			}
		})
	}
}

// TestF20_WhatIsOldIsAskedAgain: from memory comes only what is fresh.
func TestF20_WhatIsOldIsAskedAgain(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t, deaf)
	c := f.cut(t)
	f.mustAppend(t, group("1", put(1)))
	for fresh, source := range map[time.Duration]string{time.Hour: "memory", -1: "shared"} {
		f.tail.fresh = fresh
		if p := n.follow(t, f, c, Woken); len(p.Groups) != 1 || n.followed(f, source) != 1 {
			t.Errorf("%v: %+v, %v from %s", fresh, p, n.followed(f, source), source)
		}
	}
}

// TestF20_ALongLookIsOne: what another node committed is brought in as many statements as it has pages, for all, and announced.
func TestF20_ALongLookIsOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	near, far := startStore(t, db, deaf), startStore(t, db)
	f, g := near.ensure(t, "f"), far.ensure(t, "f")
	c := f.cut(t)
	near.follow(t, f, c, Here)
	w := f.Watch(AttributeSelector("n", "299"))
	defer w.Close()
	var pending []*Pending
	for i := range 300 {
		pending = append(pending, g.Submit(t.Context(), group(fmt.Sprint(i), put(i, attr("n", fmt.Sprint(i))))))
	}
	for _, p := range pending {
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	looks := near.looked(f)
	p, err := f.Follow(t.Context(), near.pool, LogQuery{After: c.W, AfterTag: c.Tag, Limit: 400}, Here)
	if err != nil || len(p.Groups) != 300 || p.Full || near.followed(f, "shared") != 2 || near.looked(f) != looks+2 {
		t.Errorf("%d groups, %v, %v shared, %v looks", len(p.Groups), err, near.followed(f, "shared"), near.looked(f)-looks)
	}
	await(t, "the wake-up by what a look found", w.C())
}
