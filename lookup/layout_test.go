package lookup

import (
	"bytes"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// groupsOf are the bytes of a body's groups.
func groupsOf(t *testing.T, body []byte) []byte {
	t.Helper()
	from, to := bytes.Index(body, []byte(`"groups":`)), bytes.LastIndex(body, []byte(`,"highWater"`))
	if from < 0 || to < from {
		t.Fatalf("no groups in %.300s", body)
	}
	return body[from:to]
}

// TestL4_GroupsAreLaidOutOnceForThoseWhoAskTheSame: the bytes are those that each would have been told alone, and nobody is told what
// another asked for.
func TestL4_GroupsAreLaidOutOnceForThoseWhoAskTheSame(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	p := n.provider
	const jazz, rock = `{"match":{"genre":"jazz"}}`, `{"match":{"genre":"rock"}}`
	queries := []string{jazz, jazz, rock, rock, `{}`, `{}`}
	var sessions []*wire.Batch
	for _, query := range queries {
		sessions = append(sessions, n.live(query))
	}
	const groups = 6
	coins := n.stock(groups)
	n.append(coins[0].put(genre(1), "")) // jazz becomes rock
	n.append(invalidated("context", "reason"))
	told := func() (all [][]byte) {
		for _, b := range sessions {
			all = append(all, groupsOf(t, n.request(readPath, readBody(b.Session, b.Cursor, wide)).body))
		}
		return all
	}
	shared := told()
	if kept := len(p.layouts.kept); kept == 0 || kept > 3*(groups+2) {
		t.Fatalf("%d layouts are kept for three queries and %d groups", kept, groups+2)
	}
	again := told()
	p.layouts = newRecent[kinKey, *draft](0)
	alone := told()
	for i := range shared {
		if !bytes.Equal(shared[i], alone[i]) || !bytes.Equal(again[i], alone[i]) {
			t.Errorf("%s is told\n%s\nthen\n%s\nand alone\n%s", queries[i], shared[i], again[i], alone[i])
		}
	}
	if bytes.Equal(alone[0], alone[2]) || bytes.Equal(alone[0], alone[4]) || !bytes.Equal(alone[0], alone[1]) {
		t.Fatal("the queries do not differ as they should")
	}
}

// TestA7_NothingIsSharedWithSignedSessions: what they are told names them.
func TestA7_NothingIsSharedWithSignedSessions(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	n.digest = n.capability()
	for seed := range byte(2) {
		someone := n.person(seed + 1)
		n.grant(someone, membersService)
		b := someone.open(membersService, ask{query: `{}`})
		if s := n.loaded(b.Session); s.kin != [32]byte{} {
			t.Fatal("a signed session has kin")
		}
		n.append(mint(string('a'+rune(seed)), 0).put(genre(0), ""))
		if got := someone.read(b, wide); len(got.Groups) == 0 || len(n.provider.layouts.kept) != 0 {
			t.Fatalf("%d groups, %d layouts are kept", len(got.Groups), len(n.provider.layouts.kept))
		}
	}
}
