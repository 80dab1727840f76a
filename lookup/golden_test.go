package lookup

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// writeGolden rewrites the expected bodies. What they freeze is a promise to every client that was ever served (BRC-194 s6): a
// rules IRI that derives anything else needs another IRI.
var writeGolden = flag.Bool("golden", false, "rewrite the expected bodies of TestS10_WhatARulesIRIDerives")

// goldenCase is the input of one folder of testdata/rules: a service, who looks, what is committed before and after the snapshot,
// and the queries. Its groups are JSON as operators send it, without keys.
type goldenCase struct {
	RulesID    string                     `json:"rulesId"`
	Parameters json.RawMessage            `json:"parameters"`
	Reader     bool                       `json:"reader"` // looked at by an identity, on an authenticated service
	Before     []json.RawMessage          `json:"before"` // lists of edits, a group each
	After      []json.RawMessage          `json:"after"`
	Queries    map[string]json.RawMessage `json:"queries"`
}

// TestS10_WhatARulesIRIDerives: each folder holds input.json, digest (the rules digest) and, for each query, the exact snapshot and
// live bodies. Only the cursors are left out: they hold the random tags of the log. Epoch, session and deadlines are fixed.
func TestS10_WhatARulesIRIDerives(t *testing.T) {
	t.Parallel()
	folders, err := filepath.Glob("testdata/rules/*")
	if err != nil || len(folders) < 2 {
		t.Fatalf("%d folders, %v", len(folders), err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(filepath.Join(folder, "input.json"))
			if err != nil {
				t.Fatal(err)
			}
			var c goldenCase
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			for name, body := range c.derive(t) {
				file := filepath.Join(folder, name)
				if *writeGolden {
					if err := os.WriteFile(file, body, 0o644); err != nil {
						t.Fatal(err)
					}
					continue
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(body, want) {
					t.Errorf("%s: %s derives\n%s\nand always derived\n%s", name, c.RulesID, body, want)
				}
			}
		})
	}
}

var cursorIn = regexp.MustCompile(`"cursor":"[^"]*"`)

// derive runs the case against a real database and returns the files.
func (c *goldenCase) derive(t *testing.T) map[string][]byte {
	const epoch = "e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
	db := pgtest.New(t)
	chain := testChain()
	if _, err := db.Pool.Exec(t.Context(), `with f as (
			insert into feed (name, network, genesis, epoch) values ('catalogue', $1, $2, $3) returning id
		), h as (insert into feed_head (feed_id, tag) select id, '\x0000000000000001' from f
		), l as (insert into feed_floor (feed_id, tag) select id, '\x0000000000000001' from f
		) insert into feed_clock (feed_id) select id from f`, chain.Network, chain.Genesis[:], epoch); err != nil {
		t.Fatal(err)
	}
	// The partition of a reader is a keyed digest under this secret.
	if _, err := db.Pool.Exec(t.Context(), `insert into deployment (database_id, cursor_secret) values ('\x01020304', decode(repeat('05', 32), 'hex'))`); err != nil {
		t.Fatal(err)
	}
	key, _ := ec.PrivateKeyFromBytes(bytes.Repeat([]byte{7}, 32))
	n := start(t, setup{db: db, identity: key, base: "https://golden.example.org/api", service: func(s *Service) {
		s.RulesID, s.RulesParameters = c.RulesID, c.Parameters
		if c.Reader {
			s.Authentication = "brc103"
		}
	}})
	appendAll := func(groups []json.RawMessage) {
		for _, g := range groups {
			n.append(strings.TrimSuffix(strings.TrimPrefix(string(g), "["), "]"))
		}
	}
	appendAll(c.Before)
	files := map[string][]byte{"digest": []byte(n.provider.services[testService].rulesDigest + "\n")}
	sessions := make(map[string]*session)
	for name, query := range c.Queries {
		s := c.session(t, n, query)
		sessions[name] = s
		files[name+".snapshot.json"] = c.snapshot(t, n, s)
	}
	appendAll(c.After)
	for name, s := range sessions {
		files[name+".live.json"] = c.live(t, n, s)
		if again := c.snapshot(t, n, s); !bytes.Equal(files[name+".snapshot.json"], again) {
			t.Fatalf("%s: the snapshot changed with the log", name)
		}
	}
	return files
}

// session is one as an Open would freeze it, with everything random replaced.
func (c *goldenCase) session(t *testing.T, n *node, query json.RawMessage) *session {
	t.Helper()
	var reader *[33]byte
	if c.Reader {
		key, _ := ec.PrivateKeyFromBytes(bytes.Repeat([]byte{9}, 32))
		reader = new([33]byte(key.PubKey().Compressed()))
	}
	value, err := canon.Parse(query, canon.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	service := n.provider.services[testService]
	checked, err := service.contract.Query(value.AppendCanonical(nil))
	if err != nil {
		t.Fatal(err)
	}
	cut, err := n.feed.Cut(t.Context(), n.pool)
	if err != nil {
		t.Fatal(err)
	}
	id := "n01020304." + strings.Repeat("s", 43)
	return &session{id: id, state: stateOpen, terms: &terms{
		digest: sha256.Sum256([]byte(id)), feed: n.feed, service: testService, epoch: cut.Epoch,
		w: cut.W, wTag: cut.Tag, t: 1_700_000_000, expiresAt: 1_700_003_600, replayUntil: 1_700_004_200,
		most: service.most(), viewer: viewer{query: checked, reader: reader}, principal: reader,
		voice: newVoice(n.provider.main.scope(service, cut.Epoch, reader, wire.QueryDigest(testService, value))),
	}}
}

func (c *goldenCase) snapshot(t *testing.T, n *node, s *session) []byte {
	t.Helper()
	pg, err := n.provider.main.cutPage(t.Context(), n.pool, s, 0, s.most)
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.provider.main.finishPage(t.Context(), n.pool, n.feed, pg, s.w, true, n.room())
	if err != nil {
		t.Fatal(err)
	}
	return append(cursorIn.ReplaceAll(out.body, []byte(`"cursor":""`)), '\n')
}

func (c *goldenCase) live(t *testing.T, n *node, s *session) []byte {
	t.Helper()
	at, r := n.provider.main.newTail(s, position{live: true, after: s.w, tag: s.wTag}, s.most)
	if r != nil {
		t.Fatal(r)
	}
	selectors, err := n.feed.Drive(t.Context(), n.pool, s.viewer.query.Selectors())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.provider.main.advance(t.Context(), s, at, selectors, livefeed.Here); err != nil {
		t.Fatal(err)
	}
	out, err := n.provider.main.finish(t.Context(), s, at, n.room())
	if err != nil {
		t.Fatal(err)
	}
	return append(cursorIn.ReplaceAll(out.body, []byte(`"cursor":""`)), '\n')
}
