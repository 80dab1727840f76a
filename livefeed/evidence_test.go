package livefeed

import (
	"context"
	"crypto/sha256"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// stored fails unless the feed can fetch the evidence.
func (f *Feed) stored(t testing.TB, beef string) {
	t.Helper()
	sum := sha256.Sum256([]byte(beef))
	if got, err := f.Blobs(t.Context(), f.store.cfg.Pool, [][32]byte{sum}); err != nil || string(got[sum]) != beef {
		t.Errorf("the evidence %q: %q, %v", beef, got, err)
	}
}

// background runs a round of compaction, and gives what it did.
func (f *Feed) background(t testing.TB) <-chan Compacted {
	done := make(chan Compacted, 1)
	go func() {
		c, err := f.Compact(context.WithoutCancel(t.Context()), nobody)
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	return done
}

// TestF14_EvidenceOfTheLogIsKept as long as its group: that of spends, and of versions that no snapshot can show.
func TestF14_EvidenceOfTheLogIsKept(t *testing.T) {
	t.Parallel()
	db, _, f := startFeed(t)
	f.mustAppend(t, group("1", put(1, beefOf("one"))))
	f.mustAppend(t, group("2", spend(1), spend(9)))
	f.mustAppend(t, group("3", put(2, beefOf("for a moment")), put(2, beefOf("for another")), withdraw(2)))
	f.mustAppend(t, group("4", put(3, beefOf("stays"))))
	f.mustAppend(t, group("5", put(3, beefOf("stays")))) // the same again
	history := f.readLog(t, 0, f.start(t))
	for floor, want := range [][]string{
		{"one", "spend1", "spend9", "for a moment", "for another", "stays"},
		{"one", "spend1", "spend9", "for a moment", "for another", "stays"}, // group 2 shows the row before its spend
		{"for a moment", "for another", "stays"},
		{"stays"}, {"stays"}, {"stays"},
	} {
		f.compactAll(t, until(uint64(floor)))
		f.checkHistory(t, history, uint64(floor))
		for _, beef := range want {
			f.stored(t, beef)
		}
		if n := countRows(t, db, "blob"); n != len(want) {
			t.Errorf("floor %d: %d evidence is stored, want %d", floor, n, len(want))
		}
	}
	f.mustAppend(t, group("6", withdraw(3)))
	f.compactAll(t, nobody)
	for _, table := range []string{"blob", "blob_idle", "group_evidence", "row_version", "posting", "feed_group", "group_selector"} {
		if n := countRows(t, db, table); n != 0 {
			t.Errorf("%d rows of %s are left of a feed that is empty", n, table)
		}
	}
}

// TestF14_FeedsShareEvidence, and the last one takes it along.
func TestF14_FeedsShareEvidence(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	g := n.ensure(t, "another")
	for _, x := range []*Feed{f, g} {
		x.mustAppend(t, group("1", put(1, beefOf("shared"))))
	}
	f.mustAppend(t, group("2", withdraw(1)))
	if c := f.compactAll(t, nobody); c.Versions != 1 || c.Evidence != 0 {
		t.Errorf("%+v", c)
	}
	g.stored(t, "shared")
	g.mustAppend(t, group("2", Edit{Op: Spend, Outpoint: outpoint(1), SpendingTxID: txid(1), BEEF: []byte("shared")}))
	if c := g.compactAll(t, until(1)); c.Evidence != 0 {
		t.Errorf("%+v", c)
	}
	g.stored(t, "shared")
	if c := g.compactAll(t, nobody); c.Evidence != 1 {
		t.Errorf("%+v", c)
	}
	if n := countRows(t, db, "blob"); n != 0 {
		t.Errorf("%d evidence is left", n)
	}
}

// TestF14_EvidenceBroughtAgainIsKept: a committer that brings what the collector is about to remove, at every moment of either.
func TestF14_EvidenceBroughtAgainIsKept(t *testing.T) {
	t.Parallel()
	// Each begins with the evidence "again" stored and idle.
	start := func(t *testing.T) (*pgtest.DB, *node, *Feed) {
		t.Parallel()
		db, n, f := startFeed(t)
		f.mustAppend(t, group("1", put(1, beefOf("again"))))
		f.mustAppend(t, group("2", withdraw(1)))
		return db, n, f
	}
	again := group("3", put(2, beefOf("again")))
	check := func(t *testing.T, f *Feed) {
		t.Helper()
		f.stored(t, "again")
		f.compactAll(t, nobody)
		f.stored(t, "again")
	}
	for name, hook := range map[string]func(*Store) *func(){
		"the heads are locked":    func(s *Store) *func() { return &s.collector.hooks.locked },
		"the idle are chosen":     func(s *Store) *func() { return &s.collector.hooks.chosen },
		"the evidence is removed": func(s *Store) *func() { return &s.collector.hooks.removed },
	} {
		t.Run(name, func(t *testing.T) {
			db, n, f := start(t)
			g := newGate(t)
			*hook(n.Store) = g.stop
			done := f.background(t)
			await(t, name, g.reached)
			p := f.Submit(t.Context(), again)
			awaitWaiting(t, db, 1)
			silent(t, "the append", p.done)
			g.goOn()
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c := <-done; c.Evidence != 1 {
				t.Errorf("%+v", c)
			}
			check(t, f)
		})
		t.Run("a new feed, "+name, func(t *testing.T) {
			_, n, f := start(t)
			g := newGate(t)
			*hook(n.Store) = g.stop
			done := f.background(t)
			await(t, name, g.reached)
			other := n.ensure(t, "new")
			p := other.Submit(t.Context(), again) // its head is free: it waits for the removal at most
			if name != "the evidence is removed" {
				if _, err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			g.goOn()
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c := <-done; c.Evidence != 0 || !c.More {
				t.Errorf("%+v", c)
			}
			check(t, other)
		})
	}
	t.Run("the group is being written", func(t *testing.T) {
		db, n, f := start(t)
		// The append finds the evidence stored, and then waits for its group key.
		sum := sha256.Sum256([]byte(again.Key))
		tx := begin(t, db.Pool)
		if _, err := tx.Exec(t.Context(), "insert into group_key (feed_id, key, body, seq) values ($1, $2, $2, 99)", f.id, sum[:16]); err != nil {
			t.Fatal(err)
		}
		p := f.Submit(t.Context(), again)
		awaitWaiting(t, db, 1)
		if c, err := f.Compact(t.Context(), nobody); err != nil || c.Evidence != 0 || !c.More || c.Versions != 1 {
			t.Errorf("%+v, %v", c, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if removed, more, err := n.collectEvidence(t.Context()); err != nil || removed != 0 || more {
			t.Errorf("%d removed, more %v, %v", removed, more, err)
		}
		check(t, f)
	})
	t.Run("the removal is not committed", func(t *testing.T) {
		db, _, f := start(t)
		tx := begin(t, db.Pool)
		if _, err := tx.Exec(t.Context(), "delete from blob"); err != nil {
			t.Fatal(err)
		}
		p := f.Submit(t.Context(), again)
		awaitWaiting(t, db, 1)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(t, f)
	})
}

// TestF14_AReferenceRemovedMeanwhileIsLookedAtAgain: what the collector found referred to loses its reference before it is done.
func TestF14_AReferenceRemovedMeanwhileIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(*Store) *func(){
		"before it looks": func(s *Store) *func() { return &s.collector.hooks.chosen },
		"after it looked": func(s *Store) *func() { return &s.collector.hooks.removed },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			n := startStore(t, db)
			f, g := n.ensure(t, "f"), n.ensure(t, "g")
			elsewhere := startStore(t, db).ensure(t, "g")
			for _, x := range []*Feed{f, g} {
				x.mustAppend(t, group("1", put(1, beefOf("shared"))))
				x.mustAppend(t, group("2", withdraw(1)))
			}
			gate := newGate(t)
			*hook(n.Store) = gate.stop
			done := f.background(t) // f's reference is gone, g's is not
			await(t, name, gate.reached)
			other := elsewhere.background(t)
			awaitWaiting(t, db, 1) // it waits to list the evidence as idle
			gate.goOn()
			<-done
			<-other
			f.compactAll(t, nobody)
			g.compactAll(t, nobody)
			if n := countRows(t, db, "blob"); n != 0 {
				t.Errorf("%d evidence is left that nothing refers to", n)
			}
		})
	}
}

// TestF14_AReferenceBeingRemovedIsLookedAtLater: the collector meets evidence of which the last reference is removed, and listed as
// idle, in a transaction that is not committed. What it cannot see it must not settle.
func TestF14_AReferenceBeingRemovedIsLookedAtLater(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	g := n.ensure(t, "g")
	for _, x := range []*Feed{f, g} {
		x.mustAppend(t, group("1", put(1, beefOf("shared"))))
		x.mustAppend(t, group("2", withdraw(1)))
	}
	if _, err := f.raiseFloor(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	var c Compacted
	if _, err := f.removeVersions(t.Context(), 2, &c); err != nil || c.Versions != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	tx := begin(t, n.pool)
	if _, err := tx.Exec(t.Context(), versionsRemove, g.id, 0, 2, compactRows, compactPostings); err != nil {
		t.Fatal(err)
	}
	if removed, _, err := n.collectEvidence(t.Context()); err != nil || removed != 0 {
		t.Errorf("%d removed, %v", removed, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if removed, more, err := n.collectEvidence(t.Context()); err != nil || removed != 1 || more {
		t.Errorf("%d removed, more %v, %v", removed, more, err)
	}
	if n := countRows(t, db, "blob"); n != 0 {
		t.Errorf("%d evidence is left that nothing refers to", n)
	}
}

// TestF14_AnUntrackedLogKeepsEvidence: groups logged before their evidence was listed may refer to anything, until they are gone.
func TestF14_AnUntrackedLogKeepsEvidence(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	other := n.ensure(t, "other")
	f.mustAppend(t, group("1", put(1)))
	f.mustAppend(t, group("2", spend(1)))
	f.mustAppend(t, group("3", put(2, beefOf("for a moment")), withdraw(2)))
	f.mustAppend(t, group("4", put(4)))
	exec(t, n, "delete from group_evidence")
	exec(t, n, "update feed_floor set untracked = 3 where feed_id = $1", f.id)
	other.mustAppend(t, group("1", put(7)))
	other.mustAppend(t, group("2", withdraw(7)))
	other.compactAll(t, nobody)
	f.compactAll(t, until(2))
	if blobs, idle := countRows(t, db, "blob"), countRows(t, db, "blob_idle"); blobs != 5 || idle != 3 {
		t.Errorf("%d evidence, %d idle", blobs, idle)
	}
	f.stored(t, "for a moment")
	if c := f.compactAll(t, until(3)); c.Evidence != 4 {
		t.Errorf("%+v", c)
	}
	if n := countRows(t, db, "blob"); n != 1 {
		t.Errorf("%d evidence is left", n)
	}
}

// TestF14_AStepIsBounded in number and in bytes, and steps come round.
func TestF14_AStepIsBounded(t *testing.T) {
	t.Parallel()
	db, n, _ := startFeed(t)
	const total = 2*evidenceStep + 100
	exec(t, n, "insert into blob (sha, bytes) select sha256(n::text::bytea), '\\x00' from generate_series(1, $1::int) n", total)
	exec(t, n, "insert into blob_idle select sha from blob")
	if idle, _, err := n.findIdle(t.Context()); err != nil || len(idle) != evidenceStep {
		t.Errorf("%d idle, %v", len(idle), err)
	}
	removed, more, err := n.collectEvidence(t.Context())
	if err != nil || removed != total || more {
		t.Errorf("%d removed, more %v, %v", removed, more, err)
	}
	if left := countRows(t, db, "blob_idle"); left != 0 {
		t.Errorf("%d idle are left", left)
	}
	exec(t, n, "insert into blob (sha, bytes) select sha256(n::text::bytea), decode(repeat('00', 9 << 20), 'hex') from generate_series(1, 3) n")
	exec(t, n, "insert into blob_idle select sha from blob")
	if idle, _, err := n.findIdle(t.Context()); err != nil || len(idle) != 2 {
		t.Errorf("%d idle of 9 MiB each, %v", len(idle), err)
	}
	if removed, more, err := n.collectEvidence(t.Context()); err != nil || removed != 3 || more {
		t.Errorf("%d removed, more %v, %v", removed, more, err)
	}
}
