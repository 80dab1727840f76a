package livefeed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// TestL1_SequencesBecomeVisibleInOrder has 16 writers on two nodes and a consumer that takes what is visible after the
// last sequence it saw. It must never see a gap: whatever it skipped, it would never read again.
func TestL1_SequencesBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	nodes := []*Feed{startStore(t, db).ensure(t, "f"), startStore(t, db).ensure(t, "f")}
	const writers, each = 16, 20

	var running atomic.Int32
	running.Store(writers)
	consumed := make(chan error, 1)
	pool := pgtest.NewPool(t, db)
	go func() {
		last, final := int64(0), false
		for {
			rows, err := pool.Query(context.Background(), "select seq from feed_group where feed_id = $1 and seq > $2 order by seq", nodes[0].id, last)
			if err != nil {
				consumed <- err
				return
			}
			for rows.Next() {
				var seq int64
				if err := rows.Scan(&seq); err != nil {
					consumed <- err
					return
				}
				if seq != last+1 {
					consumed <- fmt.Errorf("sequence %d became visible after %d", seq, last)
					return
				}
				last = seq
			}
			if err := rows.Err(); err != nil {
				consumed <- err
				return
			}
			if final {
				if last != writers*each {
					err = fmt.Errorf("%d sequences were seen, %d written", last, writers*each)
				}
				consumed <- err
				return
			}
			final = running.Load() == 0
		}
	}()

	var mu sync.Mutex
	acknowledged := map[uint64]string{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			defer running.Add(-1)
			f := nodes[w%2]
			for i := range each {
				p := group(fmt.Sprintf("%d-%d", w, i), put(i%7, attr("writer", fmt.Sprint(w))), put(1000+w)) // hot rows and cold ones
				r, err := f.Append(t.Context(), p)
				if err != nil || r.Replayed || r.HighWater < r.Sequence {
					t.Errorf("append: %+v, %v", r, err)
					return
				}
				mu.Lock()
				if other, ok := acknowledged[r.Sequence]; ok {
					t.Errorf("sequence %d was given to %s and %s", r.Sequence, other, p.Key)
				}
				acknowledged[r.Sequence] = p.Key
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := <-consumed; err != nil {
		t.Error(err)
	}
	if len(acknowledged) != writers*each {
		t.Errorf("%d sequences acknowledged, want %d", len(acknowledged), writers*each)
	}
	nodes[0].checkStored(t)
}

// TestF2_SubmitKeepsTheOrder: one goroutine's submissions are logged in their order, many to a transaction.
func TestF2_SubmitKeepsTheOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db)
	f := n.ensure(t, "f")
	var transactions atomic.Int32
	f.hooks.planned = func() { transactions.Add(1) }
	var list []*Pending
	for i := range 2*maxBatchGroups + 10 {
		list = append(list, f.Submit(t.Context(), group(fmt.Sprint(i), put(i))))
	}
	n.run(t)
	for i, p := range list {
		r, err := p.Wait(t.Context())
		if err != nil || r.Sequence != uint64(i+1) {
			t.Fatalf("submission %d: %+v, %v", i, r, err)
		}
	}
	if got := transactions.Load(); got != 3 {
		t.Errorf("%d transactions, want 3 of at most %d groups", got, maxBatchGroups)
	}
	f.checkStored(t)
}

// TestF2_BatchesAreBoundedInBytes: a heavy group is not joined by more than the bound allows, and goes alone if need be.
func TestF2_BatchesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := newStore(t, db, func(c *Config) { c.QueueBytes = 64 << 20 })
	f := n.ensure(t, "f")
	var transactions atomic.Int32
	f.hooks.planned = func() { transactions.Add(1) }
	heavy := make([]byte, maxBatchBytes*2/5)
	var list []*Pending
	for i := range 4 {
		heavy[0] = byte(i)
		list = append(list, f.Submit(t.Context(), group(fmt.Sprint(i), put(i, beefOf(string(heavy))))))
	}
	n.run(t)
	for _, p := range list {
		if _, err := p.Wait(t.Context()); CodeOf(err) != Limited { // above 4 MiB in base64: its batch is what matters here
			t.Fatal(err)
		}
	}
	if got := transactions.Load(); got != 2 {
		t.Errorf("%d transactions, want 2", got)
	}
}

// TestF1_TwoFeedsDoNotShareAnything: sequences, rows, keys and floors belong to one feed.
func TestF1_TwoFeedsDoNotShareAnything(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := startStore(t, db)
	a, b := n.ensure(t, "a"), n.ensure(t, "b")
	p := group("same", put(1, attr("x", "y")), spend(2))
	var wg sync.WaitGroup
	for _, f := range []*Feed{a, b} {
		wg.Go(func() {
			for i := range 20 { // the same evidence from both sides at once
				f.Append(t.Context(), group(fmt.Sprint(i), put(i), put(100-i)))
			}
		})
	}
	wg.Wait()
	ra, rb := a.mustAppend(t, p), b.mustAppend(t, p)
	if ra.Sequence != 21 || rb.Sequence != 21 || ra.Replayed || rb.Replayed {
		t.Errorf("%+v %+v", ra, rb)
	}
	a.checkStored(t)
	b.checkStored(t)
}

func TestF1_FeedsAreOpenedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	nodes := []*node{startStore(t, db), newStore(t, db)}
	var wg sync.WaitGroup
	var epochs sync.Map
	for i := range 8 {
		wg.Go(func() {
			f, err := nodes[i%2].Ensure(t.Context(), "f", testChain)
			if err != nil {
				t.Error(err)
				return
			}
			epochs.Store(f.cut(t).Epoch, true)
		})
	}
	wg.Wait()
	n := 0
	epochs.Range(func(k, v any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d epochs", n)
	}
	if nodes[0].Feed("f") == nil || nodes[0].Feed("g") != nil || len(nodes[0].Feeds()) != 1 {
		t.Error("the feeds of the store are not what was ensured")
	}
	if f := nodes[0].Feed("f"); f.Name() != "f" || f.Chain() != testChain || f.ID() == 0 {
		t.Errorf("%v %v %v", f.Name(), f.Chain(), f.ID())
	}
	for _, n := range nodes {
		if _, err := n.Ensure(t.Context(), "f", Chain{Network: "test", Genesis: [32]byte{2}}); err == nil {
			t.Error("a feed was opened for another chain")
		}
		if _, err := n.Ensure(t.Context(), "", testChain); err == nil {
			t.Error("a feed without a name was opened")
		}
	}
}
