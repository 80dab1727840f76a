package lookup

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

func (n *node) prohibit(c coin) {
	n.t.Helper()
	if changed, err := n.feed.Prohibit(context.Background(), c.point(), "a court said so"); err != nil || !changed {
		n.t.Fatalf("prohibited %v, %v", changed, err)
	}
}

func (n *node) allow(c coin) {
	n.t.Helper()
	if changed, err := n.feed.Allow(context.Background(), c.point()); err != nil || !changed {
		n.t.Fatalf("allowed %v, %v", changed, err)
	}
}

func TestA5_AProhibitedRowIsNeverServedAgain(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	coins := n.stock(5) // jazz: 0, 2, 4
	first := ask{id: newID()}
	saved := n.open(first)                // its first body holds the row
	beyond := n.open(ask{limits: few(1)}) // its next page would
	jazzless := n.open(ask{query: `{"match":{"genre":"rock"}}`, limits: few(1)})
	history := n.live(`{"match":{"artist":"x"}}`) // its log will hold an output of it
	n.append(coins[1].put(`{"genre":["rock"],"artist":["x"]}`, ""))
	spender := n.live(`{}`)

	n.prohibit(coins[1])
	if changed, err := m.feed.Prohibit(t.Context(), coins[1].point(), "again"); err != nil || changed {
		t.Fatalf("again: %v, %v", changed, err)
	}
	// Live, it is withdrawn, with the provider's reason and not the operator's.
	if got := tellAll(observations(m.read(spender, wide))); !slices.Equal(got, []string{"withdraw " + coins[1].short() + " prohibited"}) {
		t.Fatalf("%v", got)
	}
	// From the saved first body, from S, from the log, on both nodes: reset, and durably so.
	for _, on := range []*node{n, m} {
		on.request(openPath, first.body()).refused(t, wire.ResetRequired)
		on.request(readPath, readBody(beyond.Session, beyond.Cursor, wide)).refused(t, wire.ResetRequired)
		on.request(readPath, readBody(history.Session, history.Cursor, wide)).refused(t, wire.ResetRequired)
		on.request(readPath, readBody(saved.Session, saved.Cursor, wide)).refused(t, wire.ResetRequired)
	}
	// Others go on.
	if got := outputs(n.read(jazzless, few(1))); !slices.Equal(got, []string{coins[3].hex()}) { // rock is 1, on page one, and 3
		t.Fatalf("%v", got)
	}
	if got := outputs(n.scan(ask{})...); len(got) != 4 || slices.Contains(got, coins[1].hex()) {
		t.Fatalf("new snapshot: %v", got)
	}
	// What is put meanwhile is kept, but invisible; and nothing it does is observed.
	at := n.live(`{}`)
	n.append(coins[1].put(`{"genre":["rock"],"artist":["y"]}`, ""))
	absent := mint("absent", 0)
	n.prohibit(absent)
	n.append(absent.put(genre(0), ""))
	if got := n.read(at, wide); len(got.Groups) != 0 {
		t.Fatalf("%v", tellAll(observations(got)))
	}
	// Lifting makes what is still listed enter again; the sessions that were reset stay so.
	n.allow(coins[1])
	n.allow(absent)
	if changed, err := n.feed.Allow(t.Context(), absent.point()); err != nil || changed {
		t.Fatalf("again: %v, %v", changed, err)
	}
	got := tellAll(observations(m.read(at, wide)))
	if !slices.Equal(got, []string{"output " + coins[1].short(), "output " + absent.short()}) {
		t.Fatalf("%v", got)
	}
	n.request(openPath, first.body()).refused(t, wire.ResetRequired)
	n.request(readPath, readBody(history.Session, history.Cursor, wide)).refused(t, wire.ResetRequired)
	// A spend of a prohibited row is not observed, and one from before is not replayed.
	b := n.live(`{}`)
	n.append(coins[3].spent(mint("s", 0, coins[3].point())))
	n.prohibit(coins[3])
	n.request(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.ResetRequired)
	b = n.live(`{}`)
	n.prohibit(coins[2])
	n.append(coins[2].spent(mint("t", 0, coins[2].point())))
	if got := tellAll(observations(n.read(b, wide))); !slices.Equal(got, []string{"withdraw " + coins[2].short() + " prohibited"}) {
		t.Fatalf("%v", got)
	}
}

// TestA6_TheGateIsTheLastWord ends a session's right to a body at every moment before the body is sent, on this node and by
// another one. No body whose gate started after the operator's reply leaves.
func TestA6_TheGateIsTheLastWord(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	p := n.person(1)
	for _, by := range []*node{n, m} {
		for name, c := range map[string]struct {
			act  func(c coin, b *wire.Batch)
			want wire.Code
		}{
			"prohibit": {func(c coin, _ *wire.Batch) { by.prohibit(c) }, wire.ResetRequired},
			"revoke":   {func(coin, *wire.Batch) { revokeOnce(t, by, p) }, wire.Unauthorized},
			"close": {func(_ coin, b *wire.Batch) {
				if _, err := p.at(by).try(context.Background(), closePath, closeBody(b.Session)); err != nil {
					t.Error(err)
				}
			}, wire.Expired},
			"expire": {func(_ coin, b *wire.Batch) { by.advance(b.ExpiresAt) }, wire.ResetRequired},
			"remove": {func(coin, *wire.Batch) {
				list, err := by.provider.ListSessions(context.Background(), SessionFilter{Service: membersService})
				if err != nil {
					t.Error(err)
				}
				for _, s := range list {
					if _, err := by.provider.RemoveSession(context.Background(), s.Ref); err != nil {
						t.Error(err)
					}
				}
			}, wire.Unauthorized},
		} {
			for at, moment := range map[string]moment{
				"arrival": arrived, "before build": beforeBuild, "between build and sign": beforeGate, "between sign and the last gate": beforeLastGate,
			} {
				n.grant(p, membersService)
				b := p.open(membersService, ask{})
				secret := mint(name+at+by.base, 0)
				n.append(secret.put(genre(0), ""))
				done := false
				stop := n.during(moment, func() {
					if !done {
						done = true
						c.act(secret, b)
					}
				})
				r := p.ask(readPath, readBody(b.Session, b.Cursor, wide))
				stop()
				if !done {
					t.Fatalf("%s %s: the moment did not come", name, at)
				}
				r.refused(t, c.want)
				if bytes.Contains(r.body, []byte(secret.hex())) {
					t.Fatalf("%s at %s: a private byte left", name, at)
				}
				where := "this node"
				if by == m {
					where = "another node"
				}
				t.Logf("%-8s on %-12s at %-30s -> %s, signed, no private byte", name, where, at, c.want)
			}
		}
	}
}
