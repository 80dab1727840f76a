package lookup

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// TestD1_EachDatabaseIsAskedByItself: polls of two feeds that are gated at one moment are gated in their own databases, and read
// evidence there though it is the same; what is remembered of one is not taken for the other's.
func TestD1_EachDatabaseIsAskedByItself(t *testing.T) {
	t.Parallel()
	feeds := []string{feedMain, feedPrices}
	h, asked := homes{}, map[string]*counter{}
	for _, feed := range feeds {
		h[feed], asked[feed] = pgtest.New(t), &counter{kinds: make(map[string]int)}
	}
	x := h.serve(t, setup{tracer: asked[feedMain], tracers: map[string]pgx.QueryTracer{feedPrices: asked[feedPrices]}}, feedPrices)
	x.digest = x.manifest().Digest()
	const polls = 6
	at := map[string][]*wire.Batch{}
	for _, feed := range feeds {
		for range polls {
			at[feed] = append(at[feed], x.openIn(feed, ask{}))
		}
	}

	// All sleep, and all come to the gate before any is asked about.
	var mu sync.Mutex
	came, all := 0, make(chan struct{})
	stop := x.during(beforeGate, func() {
		mu.Lock()
		if came++; came == 2*polls {
			close(all)
		}
		mu.Unlock()
		<-all
	})
	done := map[string]chan *wire.Batch{feedMain: make(chan *wire.Batch, polls), feedPrices: make(chan *wire.Batch, polls)}
	for _, feed := range feeds {
		for _, b := range at[feed] {
			go func() { done[feed] <- x.read(b, wait(25_000)) }()
		}
	}
	x.sleeping(t, 2*polls)
	for _, feed := range feeds {
		asked[feed].take()
	}
	same := mint("the same in both", 0)
	for _, feed := range feeds {
		x.in(feed).append(same.put(genre(0), ""))
	}
	for _, feed := range feeds {
		at[feed] = nil
		for range polls {
			b := within(t, "answer", done[feed])
			if got := tellAll(observations(b)); !slices.Equal(got, []string{"output " + same.short()}) || prefix(b.Session) != "n"+h.idOf(t, feed) {
				t.Fatalf("%s: %v in %s", feed, got, b.Session)
			}
			at[feed] = append(at[feed], b)
		}
		if got := asked[feed].take(); got["gate"] < 1 || got["gate"] > polls || got["evidence"] > polls {
			t.Errorf("%d polls of %s cost %v there", polls, feed, got)
		}
	}
	stop()

	// What was read of one database is read of the other too, once.
	more := mint("more of the same", 0)
	for _, feed := range feeds {
		x.in(feed).append(more.put(genre(0), ""))
		for i := range 2 {
			asked[feed].take()
			if at[feed][i] = x.read(at[feed][i], wide); len(at[feed][i].Groups) != 1 {
				t.Fatalf("%s: %d groups", feed, len(at[feed][i].Groups))
			}
			if got := asked[feed].take()["evidence"]; got != 1-i {
				t.Errorf("reader %d of %s took %d statements of evidence", i, feed, got)
			}
		}
	}
	// And what one has lost the other still has.
	if _, err := h[feedPrices].Pool.Exec(t.Context(), `delete from blob`); err != nil {
		t.Fatal(err)
	}
	x.request(readPath, readBody(at[feedPrices][2].Session, at[feedPrices][2].Cursor, wide)).refused(t, wire.ResetRequired)
	if got := x.read(at[feedMain][2], wide); len(got.Groups) != 1 {
		t.Errorf("%d groups", len(got.Groups))
	}

	digest, _ := x.provider.sessionDigest(at[feedMain][0].Session)
	for _, d := range x.provider.shards {
		if s, known := x.provider.sessions.get(d.stored(digest)); known != (d == x.provider.main) || known && s.shard != d {
			t.Errorf("a session of the main database is remembered in %s: %v", d.label(), known)
		}
	}
}

// TestD2_WhatEndsHereNeedsNoOtherDatabase: while a database is away and its gates stand still, rows of a feed in another are
// prohibited, sessions closed and removed, and each holds from its answer on; whoever waits for the one that is away is
// told that it is unavailable, and no more than that is lost.
func TestD2_WhatEndsHereNeedsNoOtherDatabase(t *testing.T) {
	t.Parallel()
	for _, away := range []string{feedPrices, feedMain} {
		for _, how := range []string{cutOff, standsStill} {
			t.Run(fmt.Sprintf("%s of %s", how, away), func(t *testing.T) {
				t.Parallel()
				here := feedPrices
				if away == feedPrices {
					here = feedMain
				}
				endsHere(t, here, away, how)
			})
		}
	}
}

func endsHere(t *testing.T, here, away, how string) {
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	leave, comeBack := h.severable(t, how, away)
	x := h.serve(t, setup{}, feedPrices)
	x.digest = x.manifest().Digest()
	banned := mint("banned", 0)
	for _, feed := range []string{here, away} {
		x.in(feed).append(banned.put(genre(0), ""))
	}
	first := ask{id: newID()}.at("ls_" + here)
	x.request(openPath, first).batch(t) // its saved body holds the row
	ended, removed := x.openIn(here, ask{}), x.openIn(here, ask{})

	// A poll that sleeps on the other, and more that are remembered than gates are asked at once.
	const many = batchesAtOnce + 2
	replies := make(chan reply, many+1)
	read := func(b *wire.Batch, l wire.Limits) {
		r, err := x.try(context.Background(), readPath, readBody(b.Session, b.Cursor, l))
		if err != nil {
			t.Error(err)
		}
		replies <- r
	}
	var there []*wire.Batch
	for range many + 1 {
		there = append(there, x.read(x.openIn(away, ask{}), wide))
	}
	go read(there[many], wait(3000))
	x.sleeping(t, 1)
	leave()
	back := sync.OnceFunc(comeBack)
	defer back()
	for _, b := range there[:many] {
		go read(b, wait(3000))
	}
	if how == standsStill {
		gates := x.provider.homeOf(away).gates
		testkit.Eventually(t, "gates stand still", func() bool {
			_, flying := gates.queued()
			return flying > 0 // how many questions are in each statement is chance
		})
	}

	x.in(here).prohibit(banned)
	x.request(openPath, first).refused(t, wire.ResetRequired)
	if r := x.request(closePath, closeBody(ended.Session)); !bytes.Equal(r.body, closed) {
		t.Errorf("%s", r.body)
	}
	x.request(readPath, readBody(ended.Session, ended.Cursor, wide)).refused(t, wire.Expired)
	list, err := x.provider.ListSessions(t.Context(), SessionFilter{Service: "ls_" + here})
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(s SessionInfo) bool { return s.State != "open" })
	changed := make(chan bool, 1)
	go func() {
		yes, err := x.provider.RemoveSession(context.Background(), list[0].Ref)
		if err != nil {
			t.Error(err)
		}
		changed <- yes
	}()
	if !within(t, "removal", changed) || len(list) != 1 {
		t.Errorf("not removed, or not the only one that is open: %v", list)
	}
	x.request(readPath, readBody(removed.Session, removed.Cursor, wide)).refused(t, wire.Unauthorized)

	if how == cutOff {
		for range many + 1 {
			within(t, "reply", replies).refused(t, wire.Unavailable)
		}
		ofHere, ofAway := x.provider.homeOf(here).label(), x.provider.homeOf(away).label()
		if _, err := x.provider.Retain(t.Context()); err == nil {
			t.Error("everything was forgotten")
		}
		const success = "overlayd_lookup_retention_success_seconds"
		if x.metric(success, ofHere) == 0 || x.metric(success, ofAway) != 0 {
			t.Errorf("rounds succeeded at %v here and %v there", x.metric(success, ofHere), x.metric(success, ofAway))
		}
		u, err := x.provider.Usage(t.Context())
		if err != nil || !slices.Equal(u.Unavailable, []string{away}) || len(u.Services) != 2 || u.Services[0].Feed != here {
			t.Errorf("%+v, %v", u, err)
		}
	}
	back()
	if how == standsStill {
		for range many + 1 {
			if r := within(t, "reply", replies); r.status != http.StatusOK {
				r.refused(t, wire.Unavailable)
			}
		}
	}
	testkit.Eventually(t, "the feed is served again", func() bool {
		return x.request(readPath, readBody(there[0].Session, there[0].Cursor, wide)).status == http.StatusOK
	})
}
