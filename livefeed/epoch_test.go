package livefeed

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
)

const rotationKey = "rotation-key-0123456"

// mustRotate rotates and fails the test if that fails.
func (f *Feed) mustRotate(t testing.TB, key string, mode Mode) Rotation {
	t.Helper()
	r, err := f.Rotate(t.Context(), key, mode, "a test")
	if err != nil {
		t.Fatalf("rotate: %v (%v)", err, errors.Unwrap(err))
	}
	return r
}

// turns is what the database records of a feed's rotations: "turn mode by" each, by is key or found.
func (f *Feed) turns(t testing.TB) []string {
	t.Helper()
	rows, err := f.store.cfg.Pool.Query(t.Context(), `select turn || case mode when 1 then ' retire' else ' break' end || case when key is null then ' found' else '' end
		from feed_turn where feed_id = $1 order by turn`, f.id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return out
}

func (f *Feed) wantTurns(t testing.TB, want ...string) {
	t.Helper()
	if got := f.turns(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the feed's turns are %q, want %q", got, want)
	}
}

// page reads the log after a position.
func (f *Feed) page(t testing.TB, after uint64, tag [8]byte) LogPage {
	t.Helper()
	p, err := f.Log(t.Context(), f.store.cfg.Pool, LogQuery{After: after, AfterTag: tag, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestO12_ARetiredEpochKeepsItsPromises: positions stay good, nothing is void, nobody is woken.
func TestO12_ARetiredEpochKeepsItsPromises(t *testing.T) {
	t.Parallel()
	_, _, f := startQuietFeed(t)
	f.mustAppend(t, group("1", put(1)))
	before := f.cut(t)
	w := f.Watch()
	defer w.Close()
	r := f.mustRotate(t, rotationKey, Retire)
	if r.Turn != 1 || r.Mode != Retire || r.Replayed || len(r.Epoch) != 64 || r.Epoch == before.Epoch {
		t.Errorf("%+v", r)
	}
	f.mustAppend(t, group("2", put(2)))
	await(t, "the wake-up by the group", w.C())
	f.mustRotate(t, rotationKey+"-2", Retire)
	p := f.page(t, before.W, before.Tag)
	if p.Broken != 0 || len(p.Groups) != 1 || p.Epoch == before.Epoch || p.Epoch == r.Epoch {
		t.Errorf("%+v", p)
	}
	if c := f.cut(t); c.Turn != 2 || c.Epoch != p.Epoch {
		t.Errorf("%+v", c)
	}
	f.wantTurns(t, "1 retire", "2 retire")
	if err := f.store.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	f.wantTurns(t, "1 retire", "2 retire")
	silent(t, "a wake-up by a retired epoch", w.C())
}

// TestO12_ABreakReachesEveryNode: by notification, and by the backstop alone.
func TestO12_ABreakReachesEveryNode(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here := startStore(t, db, func(c *Config) { c.Backstop = time.Hour })
	told := startStore(t, db, func(c *Config) { c.Backstop = time.Hour })
	polls := startStore(t, db, func(c *Config) { c.NoListen = true; c.Backstop = 20 * time.Millisecond })
	var waiters []*Waiter
	f := here.ensure(t, "f")
	for _, n := range []*node{here, told, polls} {
		g := n.ensure(t, "f")
		for _, s := range []Selector{All, AttributeSelector("n", "1")} {
			w := g.Watch(s)
			defer w.Close()
			waiters = append(waiters, w)
		}
	}
	told.listening(t)
	before := f.cut(t)
	r := f.mustRotate(t, rotationKey, Break)
	for _, w := range waiters {
		await(t, "the wake-up by the break", w.C())
	}
	if p := f.page(t, 0, before.Tag); p.Broken != r.Turn || p.Epoch != r.Epoch {
		t.Errorf("%+v after %+v", p, r)
	}
	f.mustAppend(t, group("1", put(1, attr("n", "1"))))
	for _, w := range waiters {
		await(t, "the wake-up by a group after the break", w.C())
	}
	f.wantTurns(t, "1 break")
}

// TestO12_AKeyRotatesOnce, whoever sends it and however often; another mode is a conflict.
func TestO12_AKeyRotatesOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	feeds := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")}
	var mu sync.Mutex
	var wg sync.WaitGroup
	fresh, epochs := 0, map[string]uint64{}
	for i := range 12 {
		wg.Go(func() {
			key := fmt.Sprint(rotationKey, i%3)
			r, err := feeds[i%2].Rotate(t.Context(), key, Mode(1+i%3%2), "")
			if err != nil {
				t.Errorf("%v (%v)", err, errors.Unwrap(err))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			epochs[key+r.Epoch] = r.Turn
			if !r.Replayed {
				fresh++
			}
		})
	}
	wg.Wait()
	if fresh != 3 || len(epochs) != 3 || len(feeds[0].turns(t)) != 3 {
		t.Errorf("%d fresh, %v, %v", fresh, epochs, feeds[0].turns(t))
	}
	first := feeds[0].mustRotate(t, rotationKey+"0", Retire)
	if !first.Replayed {
		t.Errorf("%+v", first)
	}
	if _, err := feeds[1].Rotate(t.Context(), rotationKey+"0", Break, ""); CodeOf(err) != Conflict {
		t.Errorf("the key of another mode: %v", err)
	}
	if len(feeds[0].turns(t)) != 3 {
		t.Errorf("%v", feeds[0].turns(t))
	}
}

// TestO12_ALostReplyIsResolvedByTheKey: the caller's own rotation is not a replay.
func TestO12_ALostReplyIsResolvedByTheKey(t *testing.T) {
	t.Parallel()
	_, _, f := startQuietFeed(t)
	lost := 0
	f.hooks.turned = func() error {
		if lost++; lost <= 2 {
			return errors.New("the answer was lost")
		}
		return nil
	}
	r := f.mustRotate(t, rotationKey, Break)
	if r.Replayed || r.Turn != 1 || lost != 3 {
		t.Errorf("%+v after %d answers", r, lost)
	}
	again := f.mustRotate(t, rotationKey, Break)
	r.Replayed = true
	if again != r {
		t.Errorf("%+v, then %+v", r, again)
	}
	f.wantTurns(t, "1 break")
}

// TestO12_WhatARotationIsAskedWith has bounds.
func TestO12_WhatARotationIsAskedWith(t *testing.T) {
	t.Parallel()
	_, _, f := startQuietFeed(t)
	for _, c := range []struct {
		key    string
		mode   Mode
		reason string
	}{{"short", Retire, ""}, {rotationKey + "!", Retire, ""}, {rotationKey, 0, ""}, {rotationKey, 3, ""}, {rotationKey, Break, strings.Repeat("x", maxTurnReason+1)}} {
		if _, err := f.Rotate(t.Context(), c.key, c.mode, c.reason); CodeOf(err) != Invalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
	f.wantTurns(t)
	if r, err := f.Rotate(t.Context(), strings.Repeat("k", 128), Retire, strings.Repeat("\x00", maxTurnReason)); err != nil || r.Turn != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := Retire.String() + Break.String() + Mode(7).String(); got != "retirebreakmode(7)" {
		t.Error(got)
	}
}

// TestO12_AGroupIsOnOneSideOfABreak: a rotation waits for the transaction that holds the head.
func TestO12_AGroupIsOnOneSideOfABreak(t *testing.T) {
	t.Parallel()
	db, n, f := startQuietFeed(t)
	g := newGate(t)
	f.hooks.planned = g.stop
	pending := f.Submit(t.Context(), group("1", put(1)))
	await(t, "the plan", g.reached)
	done := make(chan Rotation, 1)
	go func() {
		r, err := f.Rotate(t.Context(), rotationKey, Break, "")
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	awaitWaiting(t, db, 1)
	if c := f.cut(t); c.Turn != 0 || c.W != 0 {
		t.Errorf("%+v while the head is held", c)
	}
	g.goOn()
	if _, err := pending.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if r := <-done; r.Turn != 1 {
		t.Errorf("%+v", r)
	}
	if r := f.hub.reach(); r.era != 1 || r.published != 1 {
		t.Errorf("%+v", r)
	}
	_ = n
}

// TestO12_AProofBreaksTheEpochOnce: a position beyond the head, and one with another tag.
func TestO12_AProofBreaksTheEpochOnce(t *testing.T) {
	t.Parallel()
	for name, position := range map[string]func(*Feed) (uint64, [8]byte){
		"beyond the head": func(f *Feed) (uint64, [8]byte) { return 4, [8]byte{} },
		"another tag":     func(f *Feed) (uint64, [8]byte) { return 2, [8]byte{1} },
		"another head":    func(f *Feed) (uint64, [8]byte) { return 3, [8]byte{1} },
		"another floor":   func(f *Feed) (uint64, [8]byte) { return 0, [8]byte{1} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			f, other := startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")
			for i := range 3 {
				f.mustAppend(t, group(fmt.Sprint(i), put(i)))
			}
			w := other.Watch(AttributeSelector("n", "nobody"))
			defer w.Close()
			seq, tag := position(f)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if broken, err := []*Feed{f, other}[i%2].Suspect(t.Context(), seq, tag, 0); err != nil || !broken {
						t.Errorf("%v, %v", broken, err)
					}
				})
			}
			wg.Wait()
			await(t, "the wake-up by the break", w.C())
			f.wantTurns(t, "1 break found")
			// What was promised after the break may be proof again.
			if broken, err := f.Suspect(t.Context(), seq, tag, 1); err != nil || !broken {
				t.Errorf("%v, %v", broken, err)
			}
			f.wantTurns(t, "1 break found", "2 break found")
			f.mustAppend(t, group("after", put(9, attr("n", "nobody"))))
			await(t, "the wake-up by a group", w.C())
			f.checkStored(t)
		})
	}
}

// TestO12_WhatIsNoProof changes nothing: a position that fits, one below the floor, one in a hole, numbers nobody was given.
func TestO12_WhatIsNoProof(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	tags := map[uint64][8]byte{}
	for _, g := range f.readLog(t, 0, f.start(t)) {
		tags[g.Sequence] = g.Tag
	}
	exec(t, n, "update feed_floor set floor = 2, tag = (select tag from feed_group where seq = 2)")
	exec(t, n, "delete from feed_group where seq <= 2 or seq = 4")
	for _, p := range []struct {
		seq  uint64
		tag  [8]byte
		turn uint64
	}{
		{2, tags[2], 0}, {3, tags[3], 0}, {5, tags[5], 0}, {5, tags[5], 9}, // they fit
		{0, [8]byte{}, 0}, {1, [8]byte{1}, 0}, // below the floor
		{4, [8]byte{1}, 0}, // a hole
		{1 << 63, [8]byte{}, 0}, {1<<64 - 1, [8]byte{}, 0}, {9, [8]byte{}, 1<<64 - 1},
	} {
		if broken, err := f.Suspect(t.Context(), p.seq, p.tag, p.turn); err != nil || broken {
			t.Errorf("%+v: %v, %v", p, broken, err)
		}
	}
	f.wantTurns(t)
	f.mustRotate(t, rotationKey, Break)
	if broken, err := f.Suspect(t.Context(), 99, [8]byte{}, 0); err != nil || !broken {
		t.Errorf("a position of before a break: %v, %v", broken, err)
	}
	f.wantTurns(t, "1 break")
}

// TestL9_APositionThatDoesNotFit is ErrRewritten when it proves something, and Reset in any case.
func TestL9_APositionThatDoesNotFit(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	for i := range 3 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	exec(t, n, "update feed_floor set floor = 1, tag = (select tag from feed_group where seq = 1)")
	for after, rewritten := range map[uint64]bool{0: false, 1: true, 2: true, 3: true, 4: true, 1 << 63: false} {
		_, err := f.Log(t.Context(), n.pool, LogQuery{After: after, AfterTag: [8]byte{1}, Limit: 1})
		if CodeOf(err) != Reset || errors.Is(err, ErrRewritten) != rewritten {
			t.Errorf("after %d: %v", after, err)
		}
	}
}
