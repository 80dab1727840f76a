package lookup

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// TestS9_L10_WhatIsLostIsToldAsLost damages the database in every way that takes away part of what a session was promised. Through
// the whole server the answer is reset-required: never a shorter snapshot, never an empty success, and never the same
// answer again once the rest has moved on.
func TestS9_L10_WhatIsLostIsToldAsLost(t *testing.T) {
	t.Parallel()
	const jazz = `{"match":{"genre":"jazz"}}`
	for name, c := range map[string]struct {
		damage string
		query  string
		live   bool // the damage is met by the log; else by the snapshot
	}{
		"a group in the middle of the log":         {`delete from feed_group where seq = 8`, `{}`, true},
		"a group that a selector names":            {`delete from feed_group where seq = 8`, jazz, true},
		"the first group after the cursor":         {`delete from feed_group where seq = 7`, `{}`, true},
		"the last group of the log":                {`delete from feed_group where seq = 10`, `{}`, true},
		"the group at the cursor":                  {`delete from feed_group where seq = 6`, `{}`, true},
		"all of the log":                           {`delete from feed_group`, `{}`, true},
		"evidence of the log":                      {`delete from blob where sha in (select evidence from row_version where valid_from > 6)`, `{}`, true},
		"the floor above the cursor":               {`update feed_floor set floor = 8`, `{}`, true},
		"the floor above the cursor, sparse":       {`update feed_floor set floor = 8`, jazz, true},
		"the head before the cursor":               {`update feed_head set head = 3`, `{}`, true},
		"the floor above W":                        {`update feed_floor set floor = 7`, `{}`, false},
		"the floor above W, sparse":                {`update feed_floor set floor = 7`, jazz, false},
		"the head before W":                        {`update feed_head set head = 3`, jazz, false},
		"the group at W":                           {`delete from feed_group where seq = 6`, `{}`, false},
		"a row version of the page":                {`delete from row_version where order_key like '0004%'`, jazz, false},
		"the row version that the page goes on at": {`delete from row_version where order_key like '0000%'`, `{}`, false},
		"every row version":                        {`delete from row_version`, `{}`, false},
		"every row version, sparse":                {`delete from row_version`, jazz, false},
		"evidence of the snapshot":                 {`delete from blob`, jazz, false},
		"evidence of another size":                 {`update blob set bytes = '\x00'`, `{}`, false},
		"the feed":                                 {`delete from feed_clock`, `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, setup{})
			n.stock(6)
			n.digest = n.capability()
			b := n.open(ask{query: c.query, limits: few(1)})
			if c.live {
				b = n.live(c.query)
			}
			for i := range 4 {
				n.append(mint(fmt.Sprint("later", i), 0).put(genre(0), ""))
			}
			l := few(1)
			if c.live {
				l = few(1000)
			}
			sound := n.request(readPath, readBody(b.Session, b.Cursor, l))
			if len(sound.batch(t).Groups) == 0 {
				t.Fatal("there was nothing to lose")
			}
			tag, err := n.db.Pool.Exec(t.Context(), c.damage)
			if err != nil {
				t.Fatal(err)
			}
			if tag.RowsAffected() == 0 {
				t.Fatal("nothing was damaged")
			}
			r := n.request(readPath, readBody(b.Session, b.Cursor, l))
			if r.status == 200 {
				t.Fatalf("a success of %d groups, before it %d", len(r.batch(t).Groups), len(sound.batch(t).Groups))
			}
			r.refused(t, wire.ResetRequired)
			if bytes.Contains(r.body, []byte("beef")) {
				t.Fatalf("%s", r.body)
			}
		})
	}
}
