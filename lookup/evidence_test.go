package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// TestW5_EvidenceIsReadOnceForAll: those who need it at the same moment share a statement, and who comes next needs none.
func TestW5_EvidenceIsReadOnceForAll(t *testing.T) {
	t.Parallel()
	c := &counter{kinds: make(map[string]int)}
	n := start(t, setup{tracer: c, poolConns: 30, quotas: Quotas{Requests: 30}})
	n.digest = n.capability()
	const readers = 20
	var all []*wire.Batch
	for range readers {
		all = append(all, n.live(`{}`))
	}
	n.append(mint("big", 50_000).put(genre(0), ""))
	c.take()
	unlock := n.locked("blob")
	bodies := make(chan []byte, readers)
	sent := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.kinds["evidence"] }
	for i, b := range all {
		go func() { bodies <- n.request(readPath, readBody(b.Session, b.Cursor, wide)).body }()
		if i < batchesAtOnce { // alone in its statement
			testkit.Eventually(t, "it is asked for", func() bool { return sent() == i+1 })
		}
	}
	testkit.Eventually(t, "all need it", func() bool {
		waiting, flying := n.provider.main.reads.queued()
		return waiting == readers-batchesAtOnce && flying == batchesAtOnce
	})
	unlock()
	var evidence string
	for range readers {
		body := within(t, "body", bodies)
		b, err := wire.ParseBatch(body)
		if err != nil || !bytes.Equal(b.AppendCanonical(nil), body) || len(b.Groups) != 1 {
			t.Fatalf("%v in %.200s", err, body)
		}
		got := fmt.Sprint(b.Groups[0].Observations[0].Output.Evidence.BEEF)
		if evidence == "" {
			evidence = got
		}
		if got != evidence {
			t.Fatal("not the same evidence for all")
		}
	}
	if got := c.take()["evidence"]; got != batchesAtOnce {
		t.Fatalf("%d statements, not the %d that were on their way at first", got, batchesAtOnce)
	}
}

// TestL10_KeptEvidenceIsAskedFor: what a node has kept is not served after the database lost it, however late.
func TestL10_KeptEvidenceIsAskedFor(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	first, second := n.live(`{}`), n.live(`{}`)
	n.append(mint("kept", 0).put(genre(0), ""))
	if len(n.read(first, wide).Groups) != 1 || n.provider.encoded.size() == 0 {
		t.Fatal("nothing was kept")
	}
	var once sync.Once
	n.during(beforeGate, func() {
		once.Do(func() {
			if tag, err := n.db.Pool.Exec(context.Background(), `delete from blob`); err != nil || tag.RowsAffected() != 1 {
				t.Errorf("%v, %v", tag, err)
			}
		})
	})
	r := n.request(readPath, readBody(second.Session, second.Cursor, wide))
	r.refused(t, wire.ResetRequired)
	n.request(readPath, readBody(second.Session, second.Cursor, wide)).refused(t, wire.ResetRequired)
}

// TestW5_L10_FreshEvidenceIsKept: a poll that a commit of its node wakes reads no evidence, unless it is large. It is refused
// all the same when the database has lost it.
func TestW5_L10_FreshEvidenceIsKept(t *testing.T) {
	t.Parallel()
	c := &counter{kinds: make(map[string]int)}
	n := start(t, setup{tracer: c})
	n.digest = n.capability()
	polled := func(padding int) reply {
		b := n.live(`{}`)
		answered := make(chan reply, 1)
		go func() {
			answered <- n.request(readPath, readBody(b.Session, b.Cursor, wire.Limits{MaxBytes: wide.MaxBytes, MaxObservations: wide.MaxObservations, WaitMs: 20_000}))
		}()
		testkit.Eventually(t, "it sleeps", func() bool { return n.provider.quotas.waiters.count() == 1 })
		c.take()
		n.append(mint(fmt.Sprint("fresh ", padding), padding).put(genre(0), ""))
		return within(t, "answer", answered)
	}
	for padding, want := range map[int]int{0: 0, freshEvidence + 1: 1} {
		r := polled(padding)
		b, err := wire.ParseBatch(r.body)
		if err != nil || len(b.Groups) != 1 {
			t.Fatalf("%v in %.200s", err, r.body)
		}
		if got := c.take()["evidence"]; got != want {
			t.Errorf("%d statements for evidence padded with %d bytes, want %d", got, padding, want)
		}
	}
	n.during(beforeGate, func() {
		if _, err := n.db.Pool.Exec(context.Background(), `delete from blob`); err != nil {
			t.Error(err)
		}
	})
	polled(1).refused(t, wire.ResetRequired)
}

// TestW5_SessionsLoadedTogether: each is its own, and what is wrong with one is told to nobody else.
func TestW5_SessionsLoadedTogether(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	p := n.provider.main
	jazz, rock, strange := n.open(ask{query: `{"match":{"genre":"jazz"}}`}), n.open(ask{query: `{"match":{"genre":"rock"}}`}), n.open(ask{})
	digest := func(id string) [32]byte { d, _ := p.sessionDigest(id); return d }
	of := digest(strange.Session)
	if _, err := n.db.Pool.Exec(t.Context(), `update lookup_session set rules_id = 'urn:test:gone' where id = $1`, of[:]); err != nil {
		t.Fatal(err)
	}
	all, err := p.loadAll(t.Context(), n.pool, [][32]byte{digest(rock.Session), {1}, of, digest(jazz.Session), digest(rock.Session)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"rock", "", "", "jazz", "rock"} {
		l := all[i]
		if (l.session != nil) != (want != "") || l.session != nil && !l.session.viewer.query.Match(&livefeed.State{Attributes: []livefeed.Attribute{{Name: "genre", Values: []string{want}}}}) {
			t.Errorf("%d: %+v", i, l)
		}
	}
	if r, ok := errors.AsType[*refusal](all[2].err); !ok || r.public.Code != wire.ResetRequired || all[1].err != nil {
		t.Errorf("%v, %v", all[2].err, all[1].err)
	}
	// What is remembered is frozen; what may change is asked for, each time.
	s, err := p.load(t.Context(), jazz.Session, digest(jazz.Session))
	if err != nil || s.state != stateOpen || p.sessions.size() == 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	n.request(closePath, closeBody(jazz.Session))
	if s, err = p.load(t.Context(), jazz.Session, digest(jazz.Session)); err != nil || s.asked || s.id != jazz.Session {
		t.Fatalf("%+v, %v", s, err)
	}
	if r, ok := errors.AsType[*refusal](p.arrive(t.Context(), s)); !ok || r.public.Code != wire.Expired || s.state != stateClosed {
		t.Fatalf("%v, %+v", r, s)
	}
	of = digest(jazz.Session)
	if _, err := n.db.Pool.Exec(t.Context(), `delete from lookup_session where id = $1`, of[:]); err != nil {
		t.Fatal(err)
	}
	if r, ok := errors.AsType[*refusal](p.arrive(t.Context(), &session{terms: &terms{shard: p, digest: of, feed: s.feed}})); !ok || r.public.Code != wire.ResetRequired {
		t.Fatalf("%v", r)
	}
	for range 2 {
		if s, err = p.load(t.Context(), jazz.Session, of); err != nil || s != nil {
			t.Fatalf("%+v, %v", s, err)
		}
		if _, ok := p.sessions.get(p.stored(of)); ok {
			t.Fatal("a session that is gone is remembered")
		}
	}
}

// TestO10_WhatIsRememberedIsBounded: in bytes; what was not used for the longest goes first.
func TestO10_WhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	r := newRecent[int, string](100)
	for i := range 4 {
		r.put(i, fmt.Sprint(i), 30)
		r.get(0)
	}
	r.put(5, "too large", 101)
	r.put(3, "another", 1) // it is there already
	for key, want := range map[int]string{0: "0", 1: "", 2: "2", 3: "3", 5: ""} {
		if got, ok := r.get(key); got != want || ok != (want != "") {
			t.Errorf("%d is %q, want %q", key, got, want)
		}
	}
	r.drop(2)
	r.drop(2)
	if r.size() != 60 || len(r.kept) != 2 || r.order.Len() != 2 {
		t.Fatalf("%d bytes, %d kept, %d in order", r.size(), len(r.kept), r.order.Len())
	}
}
