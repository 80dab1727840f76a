package livefeed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/overlayd/overlayd/internal/pgtest"
)

func TestL11_KnownKeys(t *testing.T) {
	t.Parallel()
	_, n, f := startQuietFeed(t)
	first := f.mustAppend(t, group("1", put(1)))
	f.mustAppend(t, group("2", put(2)))
	again := f.mustAppend(t, group("1", put(1)))
	if again.Sequence != first.Sequence || !again.Replayed || again.HighWater != 2 {
		t.Errorf("%+v after %+v", again, first)
	}
	f.refuse(t, Conflict, group("1", put(3)))

	// Asked again, a group is answered as it was, though its body would be refused by now.
	c := f.cut(t)
	soon := group("3", put(3, expires(c.Now+1)))
	r := f.mustAppend(t, soon)
	if err := f.Advance(t.Context(), n.pool, c.Now+5); err != nil {
		t.Fatal(err)
	}
	if again := f.mustAppend(t, soon); !again.Replayed || again.Sequence != r.Sequence {
		t.Errorf("%+v", again)
	}
	if err := f.refuse(t, Invalid, group("4", put(4), put(3, expires(c.Now+5)))); err.Edit != 1 {
		t.Errorf("edit %d is named, want 1", err.Edit)
	}
	faulty := *soon
	faulty.Err = fault(Invalid, "it was found faulty while it was decoded")
	if again := f.mustAppend(t, &faulty); !again.Replayed || again.Sequence != r.Sequence {
		t.Errorf("%+v", again)
	}
	faulty.Key += "-new"
	if err := f.refuse(t, Invalid, &faulty); err != faulty.Err {
		t.Errorf("%v", err)
	}
	// A refused group leaves its key free.
	faulty.Err = nil
	faulty.Edits = group("", put(9)).Edits
	if r := f.mustAppend(t, &faulty); r.Replayed {
		t.Errorf("%+v", r)
	}
	f.checkStored(t)
}

// TestL11_TheSameKeyTwiceInABatch is answered once as new and once as known.
func TestL11_TheSameKeyTwiceInABatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	var list []*Pending
	for _, p := range []*Proposal{group("1", put(1)), group("2", put(2)), group("1", put(1)), group("1", put(3))} {
		list = append(list, f.Submit(t.Context(), p))
	}
	n.run(t)
	for i, want := range []Receipt{{1, 2, false}, {2, 2, false}, {1, 2, true}} {
		if r, err := list[i].Wait(t.Context()); err != nil || r != want {
			t.Errorf("%d: %+v, %v; want %+v", i, r, err, want)
		}
	}
	if _, err := list[3].Wait(t.Context()); CodeOf(err) != Conflict {
		t.Errorf("another body: %v", err)
	}
	f.checkStored(t)
}

// TestL11_OneKeyFromManyNodes is one group, whoever wins.
func TestL11_OneKeyFromManyNodes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	feeds := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")}
	var fresh atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r, err := feeds[i%2].Append(t.Context(), group("1", put(1)))
			if err != nil || r.Sequence != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			if !r.Replayed {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 {
		t.Errorf("%d submissions were told that they were the first", fresh.Load())
	}
	feeds[0].checkStored(t)
}

// TestF3_ARefusedGroupLeavesItsNeighbours: refused by the feed, in the same batch.
func TestF3_ARefusedGroupLeavesItsNeighbours(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	bad := group("bad", put(1))
	bad.Err = fault(Invalid, "bad")
	var list []*Pending
	for _, p := range []*Proposal{group("1", put(1)), bad, group("2", put(2, expires(1))), group("3", put(3)), group("empty"), group("4", Edit{Op: Expire})} {
		list = append(list, f.Submit(t.Context(), p))
	}
	n.run(t)
	for i, want := range []struct {
		seq  uint64
		code ErrorCode
	}{{1, 0}, {0, Invalid}, {0, Invalid}, {2, 0}, {0, Invalid}, {0, Invalid}} {
		if r, err := list[i].Wait(t.Context()); CodeOf(err) != want.code || r.Sequence != want.seq {
			t.Errorf("%d: %+v, %v; want %+v", i, r, err, want)
		}
	}
	f.checkStored(t)
}

// TestF3_AGroupTheDatabaseRefuses aborts the whole batch; its neighbours are then tried one by one and all of them pass.
func TestF3_AGroupTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		create function refuse() returns trigger language plpgsql as $$ begin
			if substring(new.order_key from 1 for 6) = 'poison' then raise exception 'poisoned'; end if; return new;
		end $$;
		create trigger refuse before insert on row_version for each row execute function refuse()`); err != nil {
		t.Fatal(err)
	}
	n := newStore(t, db)
	f := n.ensure(t, "f")
	var list []*Pending
	for i := range 5 {
		e := put(i)
		if i == 2 {
			e.Order = []byte("poison")
		}
		list = append(list, f.Submit(t.Context(), group(fmt.Sprint(i), e)))
	}
	n.run(t)
	seq := uint64(0)
	for i, p := range list {
		r, err := p.Wait(t.Context())
		if i == 2 {
			if CodeOf(err) != Unavailable || err.(*Error).Reason != "the database did not take the group: it was not appended. Send it again with the same key" {
				t.Errorf("%v", err)
			}
			continue
		}
		seq++
		if err != nil || r.Sequence != seq || r.Replayed {
			t.Errorf("%d: %+v, %v; want sequence %d", i, r, err, seq)
		}
	}
	f.checkStored(t)
}

// TestF4_UnknownOutcomesAreResolvedByKey cuts the committer's connection while a commit is on its way, again and again.
// Every acknowledged group is in the log exactly once, at the acknowledged place, and nothing else is.
func TestF4_UnknownOutcomesAreResolvedByKey(t *testing.T) {
	t.Parallel()
	db, _, f := startFeed(t)
	var sent, cuts atomic.Int32
	killer := pgtest.NewPool(t, db)
	f.hooks.sent = func(pid uint32) {
		if sent.Add(1)%3 != 0 {
			return
		}
		cuts.Add(1)
		if _, err := killer.Exec(context.Background(), "select pg_terminate_backend($1)", int32(pid)); err != nil {
			t.Error(err)
		}
	}
	const writers, each = 8, 12
	var mu sync.Mutex
	places := map[uint64]string{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				p := group(fmt.Sprintf("%d-%d", w, i), put(w*100+i, attr("key", fmt.Sprintf("%d-%d", w, i))))
				r, err := f.Append(t.Context(), p)
				if err != nil || r.Replayed {
					t.Errorf("append: %+v, %v", r, err)
					return
				}
				mu.Lock()
				places[r.Sequence] = fmt.Sprintf("%d-%d", w, i)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	log := f.readLog(t, 0, f.start(t))
	if len(log) != writers*each || len(places) != len(log) {
		t.Fatalf("%d groups in the log, %d acknowledged, %d sent", len(log), len(places), writers*each)
	}
	for _, g := range log {
		if got := g.Changes[0].After.Attributes[0].Values[0]; got != places[g.Sequence] {
			t.Errorf("group %d is %s, acknowledged as %s", g.Sequence, got, places[g.Sequence])
		}
	}
	if cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	t.Logf("%d commits sent, %d connections cut", sent.Load(), cuts.Load())
	f.checkStored(t)
}

// TestF4_ALostCommitIsFoundAgain: the commit went through, its answer never arrived.
func TestF4_ALostCommitIsFoundAgain(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	f.mustAppend(t, group("0", put(0)))
	w := f.Watch(AttributeSelector("a", "b"))
	defer w.Close()
	var once sync.Once
	lost := make(chan struct{})
	f.hooks.committed = func(uint64) (err error) {
		once.Do(func() {
			close(lost)
			err = errors.New("the answer was lost")
		})
		return err
	}
	r := f.mustAppend(t, group("1", put(1, attr("a", "b"))))
	await(t, "the loss", lost)
	if r.Sequence != 2 || r.Replayed {
		t.Errorf("%+v", r)
	}
	await(t, "the wake-up by a group whose commit was lost", w.C())
	f.checkStored(t)
}

// TestF6_CancelledSubmitters: 32 of them give up at random moments. A group is in the log once or not at all, and one
// that was taken back in the queue is not.
func TestF6_CancelledSubmitters(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	var wg sync.WaitGroup
	var appended, withdrawn, unknown atomic.Int32
	type result struct {
		p   *Proposal
		r   Receipt
		err error
	}
	results := make(chan result, 32*4)
	for w := range 32 {
		wg.Go(func() {
			for i := range 4 {
				ctx, cancel := context.WithCancel(t.Context())
				p := group(fmt.Sprintf("%d-%d", w, i), put(w*10+i))
				pending := f.Submit(ctx, p)
				if (w+i)%2 == 0 {
					cancel()
				}
				r, err := pending.Wait(ctx)
				cancel()
				results <- result{p, r, err}
			}
		})
	}
	wg.Wait()
	close(results)
	for x := range results {
		again := f.mustAppend(t, x.p)
		switch {
		case x.err == nil:
			appended.Add(1)
			if !again.Replayed || again.Sequence != x.r.Sequence {
				t.Errorf("%s: %+v, then %+v", x.p.Key, x.r, again)
			}
		case CodeOf(x.err) != Unavailable || !errors.Is(x.err, context.Canceled):
			t.Errorf("%v", x.err)
		case x.err.Error() == "unavailable: the append was cancelled before its turn: nothing was appended":
			withdrawn.Add(1)
			if again.Replayed {
				t.Errorf("%s was taken back and is in the log", x.p.Key)
			}
		default:
			unknown.Add(1)
		}
	}
	t.Logf("appended %d, taken back %d, unknown %d", appended.Load(), withdrawn.Load(), unknown.Load())
	if log := f.readLog(t, 0, f.start(t)); len(log) != 32*4 {
		t.Errorf("%d groups", len(log))
	}
	f.checkStored(t)
}

// TestF6_CancelDuringTheCommit: the wait ends, the commit does not, and the key tells.
func TestF6_CancelDuringTheCommit(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	g := newGate(t)
	f.hooks.planned = g.stop
	ctx, cancel := context.WithCancel(t.Context())
	pending := f.Submit(ctx, group("1", put(1)))
	queued := make(chan *Pending, 1)
	await(t, "the plan", g.reached)
	queued <- f.Submit(ctx, group("2", put(2)))
	cancel()
	if _, err := pending.Wait(ctx); CodeOf(err) != Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := (<-queued).Wait(ctx); CodeOf(err) != Unavailable {
		t.Errorf("%v", err)
	}
	g.goOn()
	if r, err := pending.Wait(t.Context()); err != nil || r.Sequence != 1 {
		t.Errorf("asked again: %+v, %v", r, err)
	}
	if r := f.mustAppend(t, group("1", put(1))); !r.Replayed || r.HighWater != 1 {
		t.Errorf("%+v", r)
	}
}

// TestF6_AFullQueueHoldsSubmittersBack until there is room or they give up. No database is needed to see it.
func TestF6_AFullQueueHoldsSubmittersBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var q queue
		q.init(4 * weightGroup)
		ctx, cancel := context.WithCancel(t.Context())
		push := func() *Pending {
			n := &Pending{p: &Proposal{}, weight: 2 * weightGroup, done: make(chan struct{})}
			q.push(ctx, n)
			return n
		}
		push()
		push()
		third := make(chan *Pending)
		go func() { third <- push() }()
		synctest.Wait()
		select {
		case <-third:
			t.Fatal("the queue took more than its bytes")
		default:
		}
		if got := len(q.takeGroups()); got != 2 {
			t.Errorf("%d taken", got)
		}
		<-third
		push()
		full := make(chan *Pending)
		go func() { full <- push() }()
		synctest.Wait()
		cancel()
		if _, err := (<-full).Wait(t.Context()); CodeOf(err) != Unavailable {
			t.Errorf("%v", err)
		}
	})
}

// TestF7_Shutdown: what is under way is finished, what waits is told to come back, and so is whoever comes later.
func TestF7_Shutdown(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	g := newGate(t)
	f.hooks.planned = g.stop
	underWay := f.Submit(t.Context(), group("1", put(1)))
	await(t, "the plan", g.reached)
	waiting := f.Submit(t.Context(), group("2", put(2)))
	drained := make(chan error, 1)
	go func() {
		_, err := f.Drain(t.Context(), 1, 1)
		drained <- err
	}()
	n.cancel()
	g.goOn()
	n.stop()
	if r, err := underWay.Wait(t.Context()); err != nil || r.Sequence != 1 {
		t.Errorf("under way: %+v, %v", r, err)
	}
	if _, err := waiting.Wait(t.Context()); CodeOf(err) != Unavailable {
		t.Errorf("waiting: %v", err)
	}
	if err := <-drained; CodeOf(err) != Unavailable {
		t.Errorf("drain: %v", err)
	}
	f.refuse(t, Unavailable, group("3", put(3)))
	late := n.ensure(t, "late")
	late.refuse(t, Unavailable, group("3", put(3)))
	if err := n.Run(t.Context()); err == nil {
		t.Error("a store ran twice")
	}
}
