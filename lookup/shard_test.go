package lookup

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// TestD1_AFeedLivesInItsDatabase: opened, paged, polled and closed on each feed, and everything of it is where its rows are.
func TestD1_AFeedLivesInItsDatabase(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	x := h.serve(t, setup{}, feedPrices)
	for i, feed := range []string{feedMain, feedPrices} {
		n := x.in(feed)
		for k := range 3 + i {
			n.append(mint(fmt.Sprint(feed, k), 0).put(genre(0), fmt.Sprintf(`,"order":"%04d"`, k)))
		}
		again := ask{id: newID(), limits: wire.Limits{MaxBytes: 1 << 20, MaxObservations: 2}}
		saved := x.request(openPath, again.at("ls_"+feed))
		first := saved.batch(t)
		if got := prefix(first.Session); got != "n"+h.idOf(t, feed) {
			t.Errorf("a session of %s is called %s", feed, got)
		}
		all := []*wire.Batch{first}
		for !all[len(all)-1].SnapshotComplete {
			all = append(all, x.read(all[len(all)-1], again.limits))
		}
		if got := len(observations(all...)); got != 3+i {
			t.Fatalf("%s has %d rows", feed, got)
		}
		last := all[len(all)-1]
		var once sync.Once
		stop := x.during(beforeSleep, func() { once.Do(func() { n.append(mint(feed+"live", 0).put(genre(1), "")) }) })
		if got := x.read(last, wait(20000)); len(got.Groups) != 1 || got.Through != uint64(4+i) {
			t.Fatalf("%s: %d groups through %d", feed, len(got.Groups), got.Through)
		}
		stop()
		if r := x.request(openPath, again.at("ls_"+feed)); !bytes.Equal(r.body, saved.body) {
			t.Errorf("%s: a repeated Open: %d %s", feed, r.status, r.body)
		}
		for what, want := range map[string]int{
			"lookup_session": 1, "open_fence": 1, "lookup_ledger": 1, "feed": 1, "feed_group": 4 + i,
			"(select from manifest m join lookup_session s on s.capability = m.digest) named": 1, // which the session keeps
		} {
			if got := h.countIn(t, feed, what); got != want {
				t.Errorf("the database of %s has %d of %s, want %d", feed, got, what, want)
			}
		}
		if n, err := x.provider.CountSessions(t.Context(), feed); err != nil || n.Open != 1 {
			t.Errorf("%s: %+v, %v", feed, n, err)
		}
		if r := x.request(closePath, closeBody(first.Session)); !bytes.Equal(r.body, closed) {
			t.Fatalf("%s", r.body)
		}
		x.request(readPath, readBody(last.Session, last.Cursor, wide)).refused(t, wire.Expired)
		x.request(openPath, again.at("ls_"+feed)).refused(t, wire.Expired)
	}
	// An id that names a database of somebody else's, or nothing, is as unknown as any.
	for _, id := range []string{"n00000000." + strings.Repeat("A", 43), "x" + h.idOf(t, feedPrices) + "." + strings.Repeat("A", 43), "n" + h.idOf(t, feedPrices) + "-" + strings.Repeat("A", 43), "n"} {
		x.request(readPath, readBody(id, strings.Repeat("c", cursorSize), wide)).refused(t, wire.ResetRequired)
		if r := x.request(closePath, closeBody(id)); !bytes.Equal(r.body, closed) {
			t.Errorf("close of %s: %s", id, r.body)
		}
	}
	// A cursor is bound to its session, in whichever database both were.
	a, b := x.openIn(feedMain, ask{}), x.openIn(feedPrices, ask{})
	x.request(readPath, readBody(a.Session, b.Cursor, wide)).refused(t, wire.ResetRequired)
}

// TestD1_ProhibitionsGrantsAndRemovalsLandThere: what operators do to a feed is done in its database, and nowhere else.
func TestD1_ProhibitionsGrantsAndRemovalsLandThere(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	x := h.serve(t, setup{}, feedPrices)
	coin := mint("everywhere", 0)
	open := map[string]*wire.Batch{}
	one := x.person(1)
	for _, feed := range []string{feedMain, feedPrices} {
		x.in(feed).append(coin.put(genre(0), ""))
		open[feed] = x.openIn(feed, ask{limits: wait(0)})
		one.ask(openPath, ask{}.at("ls_"+feed+"_members")).refused(t, wire.Unauthorized)
	}
	x.in(feedPrices).prohibit(coin)
	if h.countIn(t, feedPrices, "prohibition") != 1 || h.countIn(t, feedMain, "prohibition") != 0 {
		t.Error("a prohibition is in the wrong database")
	}
	if got := observations(x.openIn(feedPrices, ask{})); len(got) != 0 {
		t.Errorf("the prohibited row is served: %v", tellAll(got))
	}
	if got := observations(x.openIn(feedMain, ask{})); len(got) != 1 {
		t.Errorf("the other feed's row is not: %v", tellAll(got))
	}

	x.grant(one, "ls_prices_members")
	if h.countIn(t, feedPrices, "service_grant") != 1 || h.countIn(t, feedMain, "service_grant") != 0 {
		t.Error("a grant is in the wrong database")
	}
	b := one.open("ls_prices_members", ask{})
	one.ask(openPath, ask{}.at("ls_catalogue_members")).refused(t, wire.Unauthorized)
	if got := prefix(b.Session); got != "b"+h.idOf(t, feedPrices) {
		t.Errorf("a session is called %s", got)
	}
	if changed, err := x.provider.Revoke(t.Context(), "ls_prices_members", one.identity); err != nil || !changed {
		t.Fatal(changed, err)
	}
	one.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Unauthorized)

	// The list is one, in the order of refs, whatever the page; a ref finds its session wherever that is.
	var paged []SessionInfo
	for after := (uuid.UUID{}); ; {
		page, err := x.provider.ListSessions(t.Context(), SessionFilter{After: after, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if paged = append(paged, page...); len(page) < 2 {
			break
		}
		after = page[1].Ref
	}
	if len(paged) != 5 || !slices.IsSortedFunc(paged, func(a, b SessionInfo) int { return bytes.Compare(a.Ref[:], b.Ref[:]) }) {
		t.Errorf("%d sessions, or not in order: %v", len(paged), paged)
	}
	mine, err := x.provider.ListSessions(t.Context(), SessionFilter{Service: "ls_prices"})
	if err != nil || len(mine) != 2 {
		t.Fatal(len(mine), err)
	}
	for _, s := range mine {
		if changed, err := x.provider.RemoveSession(t.Context(), s.Ref); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	x.request(readPath, readBody(open[feedPrices].Session, open[feedPrices].Cursor, wide)).refused(t, wire.Unauthorized)
	x.read(open[feedMain], wide)
	u, err := x.provider.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]int64{}
	for _, s := range u.Services {
		held[s.Service+" of "+s.Feed] = s.Sessions
	}
	if len(held) != 4 || held["ls_catalogue of catalogue"] != 2 || held["ls_prices of prices"] != 0 {
		t.Errorf("%v", held)
	}
}

// TestD1_ASecondNodeAndARestart: any node finds a session, whatever the order in which its databases are given.
func TestD1_ASecondNodeAndARestart(t *testing.T) {
	t.Parallel()
	h := threeDatabases(t)
	key := identityKey(t)
	one := h.serve(t, setup{identity: key}, feedPrices, feedOrders)
	two := h.serve(t, setup{identity: key, base: one.provider.baseURL}, feedOrders, feedPrices)
	if one.manifest().Digest() != two.manifest().Digest() {
		t.Error("two nodes serve two manifests")
	}
	at := map[string]*wire.Batch{}
	for _, feed := range []string{feedMain, feedPrices, feedOrders} {
		at[feed] = one.openIn(feed, ask{})
		// A commit on one node wakes a poll that sleeps on the other.
		var once sync.Once
		stop := two.during(beforeSleep, func() { once.Do(func() { one.in(feed).append(mint(feed, 0).put(genre(0), "")) }) })
		if got := two.read(at[feed], wait(20000)); len(got.Groups) != 1 {
			t.Fatalf("%s: %d groups", feed, len(got.Groups))
		}
		stop()
	}
	one.halt()
	again := h.serve(t, setup{identity: key, base: one.provider.baseURL}, feedOrders, feedPrices)
	for feed, b := range at {
		if got := again.read(b, wide); len(got.Groups) != 1 {
			t.Fatalf("%s after a restart: %d groups", feed, len(got.Groups))
		}
		if r := two.request(closePath, closeBody(b.Session)); !bytes.Equal(r.body, closed) {
			t.Fatalf("%s", r.body)
		}
		again.request(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Expired)
	}
}

// TestD1_AServiceThatIsGone: a service that is not offered any more is answered by the database it had.
func TestD1_AServiceThatIsGone(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	key := identityKey(t)
	services := slices.Concat(servicesOf(feedMain), servicesOf(feedPrices))
	x := h.serve(t, setup{identity: key, services: services}, feedPrices)
	kept := ask{id: newID()}.at("ls_prices")
	capability := x.capability()
	saved := x.request(openPath, kept)
	saved.batch(t)
	x.halt()
	y := h.serve(t, setup{identity: key, base: x.provider.baseURL, services: slices.Concat(services[:2], services[3:])}, feedPrices)
	if r := y.request(openPath, kept, header(wire.HeaderCapability, capability)); !bytes.Equal(r.body, saved.body) {
		t.Errorf("a repeated Open: %d %s", r.status, r.body)
	}
	y.request(openPath, ask{}.at("ls_prices")).refused(t, wire.NotFound)
}

// TestD1_EachDatabaseForgets: retention's rounds are made in every database.
func TestD1_EachDatabaseForgets(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	x := h.serve(t, setup{}, feedPrices)
	for _, feed := range []string{feedMain, feedPrices} {
		n := x.in(feed)
		b := x.openIn(feed, ask{})
		for k := range 3 {
			n.append(mint(fmt.Sprint(feed, k), 0).put(genre(0), ""))
		}
		n.advance(b.ReplayUntil)
	}
	done, err := x.provider.Retain(t.Context())
	if err != nil || done.Sessions != 2 || done.Groups != 6 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, feed := range []string{feedMain, feedPrices} {
		if h.countIn(t, feed, "lookup_session") != 0 || h.countIn(t, feed, "feed_group") != 0 || h.countIn(t, feed, "open_fence") != 1 {
			t.Errorf("%s forgot too little or too much", feed)
		}
	}
}

// TestD2_ADatabaseThatIsAway: its feeds are unavailable, the others go on as if it were there, and when it is back nothing is lost.
func TestD2_ADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	for _, how := range []string{cutOff, standsStill} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
			leave, comeBack := h.severable(t, how, feedPrices)
			x := h.serve(t, setup{quotas: Quotas{Requests: 2}}, feedPrices)
			x.provider.within = 8 * time.Second
			for _, feed := range []string{feedMain, feedPrices} {
				x.in(feed).append(mint(feed, 0).put(genre(0), ""))
			}
			there, here := x.openIn(feedPrices, ask{}), x.openIn(feedMain, ask{})
			capability := x.manifest().Digest()
			x.digest = capability

			leave()
			left := sync.OnceFunc(comeBack)
			defer left()
			// More of them than may be built at once hang on the database that is away.
			var away sync.WaitGroup
			bodies := make([]reply, 6)
			paths := []string{openPath, readPath, closePath}
			for i := range bodies {
				body := [][]byte{ask{}.at("ls_prices"), readBody(there.Session, there.Cursor, wait(1000)), closeBody(there.Session)}[i%3]
				away.Go(func() {
					var err error
					if bodies[i], err = x.try(context.Background(), paths[i%3], body); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range 3 {
				if got := x.manifest().Digest(); got != capability {
					t.Error("the manifest is another one")
				}
				fresh := x.openIn(feedMain, ask{})
				if got := x.read(fresh, wide); got.Phase != wire.PhaseLive {
					t.Error(got.Phase)
				}
				var once sync.Once
				stop := x.during(beforeSleep, func() {
					once.Do(func() { x.append(mint(fmt.Sprint("meanwhile", i), 0).put(genre(0), "")) })
				})
				if here = x.read(here, wait(20000)); len(here.Groups) != 1 {
					t.Errorf("%d groups", len(here.Groups))
				}
				stop()
				x.request(closePath, closeBody(fresh.Session))
			}
			away.Wait()
			for i, r := range bodies {
				if e := r.refused(t, wire.Unavailable); !e.Retryable || r.status != http.StatusServiceUnavailable {
					t.Errorf("%s: %d %s", paths[i%3], r.status, r.body)
				}
			}
			if !strings.Contains(x.log.String(), "a database does not answer") {
				t.Error("the log does not say so")
			}
			if _, err := x.provider.ListSessions(t.Context(), SessionFilter{Service: testService}); err != nil {
				t.Error(err)
			}

			left()
			testkit.Eventually(t, "the feed is served again", func() bool {
				return x.request(openPath, ask{}.at("ls_prices")).status == http.StatusOK
			})
			r := x.request(readPath, readBody(there.Session, there.Cursor, wide))
			if r.status != http.StatusOK {
				r.refused(t, wire.Expired) // the close that was not answered may have come through
			}
			if how == cutOff && r.status != http.StatusOK {
				t.Errorf("%s", r.body)
			}
			x.in(feedPrices).append(mint("after", 0).put(genre(0), ""))
		})
	}
}

// TestD2_AnEpochThatTurnedMeanwhile: a manifest issued while a database is away names the epoch it had, and an Open under it is told.
func TestD2_AnEpochThatTurnedMeanwhile(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	direct := h[feedPrices]
	db, way := over(t, direct)
	h[feedPrices] = db
	x := h.serve(t, setup{}, feedPrices)
	before := x.manifest().Digest()
	way.cut()
	if _, err := direct.Pool.Exec(t.Context(), `update feed set epoch = repeat('e', 64), turn = turn + 1`); err != nil {
		t.Fatal(err)
	}
	if x.manifest().Digest() != before {
		t.Fatal("who could have told?")
	}
	way.mend()
	testkit.Eventually(t, "the manifest names the new epoch", func() bool { return x.manifest().Digest() != before })
	x.request(openPath, ask{}.at("ls_prices"), header(wire.HeaderCapability, before)).refused(t, wire.ResetRequired)
	x.openIn(feedPrices, ask{})
}

// TestD2_TheMainDatabaseIsAway: sessions elsewhere go on, and so do new ones under a manifest that was used there.
func TestD2_TheMainDatabaseIsAway(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	db, way := over(t, h[feedMain])
	h[feedMain] = db
	x := h.serve(t, setup{}, feedPrices)
	x.digest = x.manifest().Digest()
	one := x.person(1)
	x.grant(one, "ls_prices_members")
	one.digest = one.n.digest
	member := one.open("ls_prices_members", ask{})
	b, gone := x.openIn(feedPrices, ask{}), x.openIn(feedMain, ask{})

	way.cut()
	x.request(readPath, readBody(gone.Session, gone.Cursor, wide)).refused(t, wire.Unavailable)
	x.openIn(feedPrices, ask{})
	var once sync.Once
	stop := x.during(beforeSleep, func() { once.Do(func() { x.in(feedPrices).append(mint("alone", 0).put(genre(0), "")) }) })
	if got := x.read(b, wait(20000)); len(got.Groups) != 1 {
		t.Errorf("%d groups", len(got.Groups))
	}
	stop()
	if got := one.read(member, wide); len(got.Groups) != 1 {
		t.Errorf("%d groups", len(got.Groups))
	}
	way.mend()
	testkit.Eventually(t, "the main feed is served again", func() bool {
		return x.request(readPath, readBody(gone.Session, gone.Cursor, wide)).status == http.StatusOK
	})
}
