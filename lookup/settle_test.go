package lookup

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/livefeed"
)

// configured tries to make a provider, without serving.
func (h homes) configured(t *testing.T, key *ec.PrivateKey, main string, services []Service, elsewhere ...string) error {
	t.Helper()
	x := &site{stores: map[string]*livefeed.Store{}}
	p := pool(t, h[main].URL, 8, nil)
	t.Cleanup(p.Close)
	store, err := livefeed.NewStore(t.Context(), livefeed.Config{Pool: p, Writer: p})
	if err != nil {
		t.Fatal(err)
	}
	x.pools = nil
	c := Config{
		Store: store, Pool: p, BaseURL: "https://overlay.example.com", Chain: testChain(), Identity: key, Services: services, Log: slog.New(slog.DiscardHandler),
	}
	for _, feed := range elsewhere {
		p := pool(t, h[feed].URL, 8, nil)
		t.Cleanup(p.Close)
		store, err := livefeed.NewStore(context.Background(), livefeed.Config{Pool: p, Writer: p})
		if err != nil {
			t.Fatal(err)
		}
		c.Databases = append(c.Databases, Database{Store: store, Pool: p, Feeds: []string{feed}})
	}
	_, err = New(t.Context(), c)
	return err
}

// refusedFor asserts that a configuration is refused in words that say what to do.
func refusedFor(t *testing.T, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Error("it was not refused")
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in: %v", s, err)
		}
	}
}

// TestD3_WhatLivesStays: a configuration that moves a feed or a service is refused, and nothing is made where it would have been.
func TestD3_WhatLivesStays(t *testing.T) {
	t.Parallel()
	h := threeDatabases(t)
	key := identityKey(t)
	both := append(servicesOf(feedMain), servicesOf(feedPrices)...)
	if err := h.configured(t, key, feedMain, both, feedPrices); err != nil {
		t.Fatal(err)
	}
	const stays = "its database is fixed for its life"
	prices, main, orders := h.idOf(t, feedPrices), h.idOf(t, feedMain), h.idOf(t, feedOrders)

	// To the main database, with its own still configured for another feed, and without.
	h["extra"] = h[feedPrices]
	refusedFor(t, h.configured(t, key, feedMain, both, "extra"), "feed prices lives in the database of extra ("+prices+") and is configured to be in the main database ("+main+")", stays,
		"service ls_prices lives in", "service ls_prices_members lives in")
	refusedFor(t, h.configured(t, key, feedMain, both), "feed prices lives in a database ("+prices+") that is not configured", stays)
	if h.countIn(t, feedMain, "feed where name = 'prices'") != 0 {
		t.Error("the feed was begun anew where it does not live")
	}
	// From the main database, and from one of its own to another.
	h2 := homes{feedMain: h[feedOrders], feedPrices: h[feedPrices], "holder": h[feedMain]}
	refusedFor(t, homes{"holder": h2["holder"], feedMain: h2[feedMain], feedPrices: h2[feedPrices]}.configured(t, key, "holder", both, feedMain, feedPrices),
		"feed catalogue lives in the main database ("+main+")", "in the database of catalogue ("+orders+")", stays)
	if h.countIn(t, feedOrders, "feed") != 0 {
		t.Error("the feed was begun anew where it does not live")
	}
	// What is refused claims nothing.
	if h.countIn(t, feedOrders, "deployment where main_id is not null") != 0 || h.countIn(t, feedMain, "home") != 6 {
		t.Error("a refused configuration left something")
	}
	swapped := homes{feedMain: h[feedMain], feedPrices: h[feedOrders]}
	refusedFor(t, swapped.configured(t, key, feedMain, both, feedPrices), "feed prices lives in a database ("+prices+") that is not configured", "the database of prices ("+orders+")", stays)

	// A service that shows a feed of another database, while both stay.
	crossed := append(servicesOf(feedMain), servicesOf(feedPrices)...)
	crossed[2].Feed = feedMain
	refusedFor(t, h.configured(t, key, feedMain, crossed, feedPrices), "service ls_prices lives in the database of prices", "give the service another name")

	// What is as it was is served as before, and so is what is new.
	if err := h.configured(t, key, feedMain, append(both, servicesOf(feedOrders)...), feedOrders, feedPrices); err != nil {
		t.Error(err)
	}
}

// TestD3_OneMainDatabase: a node with another main database than the others is refused, and so is a database that is somebody's.
func TestD3_OneMainDatabase(t *testing.T) {
	t.Parallel()
	h := threeDatabases(t)
	key := identityKey(t)
	both := append(servicesOf(feedMain), servicesOf(feedPrices)...)
	if err := h.configured(t, key, feedMain, both, feedPrices); err != nil {
		t.Fatal(err)
	}
	main, prices := h.idOf(t, feedMain), h.idOf(t, feedPrices)
	refusedFor(t, h.configured(t, key, feedPrices, both, feedMain), "the main database ("+prices+") belongs to the provider whose main database is "+main, "same main database")
	refusedFor(t, h.configured(t, key, feedPrices, servicesOf(feedPrices)), "belongs to the provider whose main database is "+main)
	if err := h.configured(t, key, feedOrders, servicesOf(feedOrders)); err != nil {
		t.Fatal(err)
	}
	refusedFor(t, h.configured(t, key, feedMain, both, feedPrices, feedOrders), "the database of orders", "is the main database of another provider")

	// One database under two names would be two shards of one: so would a copy.
	h["alias"] = h[feedPrices]
	refusedFor(t, h.configured(t, key, feedMain, both, feedPrices, "alias"), "the database of prices and the database of alias are one database", "or a copy")
	h["alias"] = h[feedMain]
	refusedFor(t, h.configured(t, key, feedMain, both, "alias"), "the main database and the database of alias are one database")
	refusedFor(t, h.configured(t, key, feedMain, both, feedPrices, feedPrices), "feed prices is in two databases")
}

// TestD3_OlderDatabasesKnowTheirOwn: what a database held before homes were recorded lives there.
func TestD3_OlderDatabasesKnowTheirOwn(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t), feedPrices: pgtest.New(t)}
	key := identityKey(t)
	both := append(servicesOf(feedMain), servicesOf(feedPrices)...)
	x := h.serve(t, setup{identity: key, services: both})
	x.openIn(feedPrices, ask{})
	x.halt()
	// As the migration found it and left it.
	if _, err := h[feedMain].Pool.Exec(t.Context(), `
		truncate home;
		update deployment set main_id = null;
		insert into home (kind, name, database_id) select 'feed', f.name, d.database_id from feed f cross join deployment d;
		insert into home (kind, name, database_id) select distinct 'service', l.service, d.database_id from lookup_ledger l cross join deployment d`); err != nil {
		t.Fatal(err)
	}
	refusedFor(t, h.configured(t, key, feedMain, both, feedPrices), "feed prices lives in the main database", "service ls_prices lives in the main database")
	if err := h.configured(t, key, feedMain, both); err != nil {
		t.Error(err)
	}
}

func TestD3_ADatabaseNeedsFeeds(t *testing.T) {
	t.Parallel()
	h := homes{feedMain: pgtest.New(t)}
	p := pool(t, h[feedMain].URL, 4, nil)
	t.Cleanup(p.Close)
	store, err := livefeed.NewStore(t.Context(), livefeed.Config{Pool: p, Writer: p})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), Config{
		Store: store, Pool: p, BaseURL: "https://overlay.example.com", Chain: testChain(), Identity: identityKey(t),
		Services:  []Service{{Name: testService, RulesParameters: json.RawMessage(`{"attributes":["artist"]}`), SessionSeconds: 1, ReplaySeconds: 1}},
		Databases: []Database{{Store: store, Pool: p}},
	})
	refusedFor(t, err, "a database needs Store, Pool and Feeds")
}
