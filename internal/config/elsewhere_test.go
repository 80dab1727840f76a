package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestDatabasesOfFeeds: feeds that write one URL share a database, the order of the file means nothing, and no password is printed.
func TestDatabasesOfFeeds(t *testing.T) {
	t.Parallel()
	for _, feeds := range []string{
		`[{name: prices, database: {url: 'postgres://u:secret@b/x'}}, {name: orders, database: {url: 'postgres://c/x'}}, {name: bids, database: {url: 'postgres://u:secret@b/x'}}, {name: catalogue}]`,
		`[{name: catalogue, database: {url: ''}}, {name: bids, database: {url: 'postgres://u:secret@b/x'}}, {name: orders, database: {url: 'postgres://c/x'}}, {name: prices, database: {url: 'postgres://u:secret@b/x'}}]`,
	} {
		l, err := Load(Input{File: write(t, complete+"feeds: "+feeds+"\n")})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
		want := []Elsewhere{{URL: "postgres://u:secret@b/x", Feeds: []string{"bids", "prices"}}, {URL: "postgres://c/x", Feeds: []string{"orders"}}}
		if got := l.Elsewhere(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
		// The provider's own database under its own URL is not another one.
		l.Feeds[0].Database.URL = l.Database.URL
		for _, e := range l.Elsewhere() {
			if e.URL == l.Database.URL {
				t.Errorf("%+v", e)
			}
		}
		var b strings.Builder
		if err := l.WriteYAML(&b); err != nil || strings.Contains(b.String(), "secret") {
			t.Errorf("%v\n%s", err, b.String())
		}
	}
}
