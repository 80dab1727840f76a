package lookup

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// TestA5_A6_A9_EveryEndByEveryPath ends sessions in every way there is, and then asks for what they were promised on every path on
// which it could leave: the saved first body of a repeated Open, a snapshot page, the log; at once, after compaction, and
// when the records themselves are gone; on the node that was told and on another. Nothing of the row ever leaves again.
func TestA5_A6_A9_EveryEndByEveryPath(t *testing.T) {
	t.Parallel()
	type paths struct{ retry, page, log wire.Code }
	const reset, expired, unauthorized = wire.ResetRequired, wire.Expired, wire.Unauthorized
	for name, c := range map[string]struct {
		end  func(n *node, p *person, secret coin, sessions []*wire.Batch)
		want paths
	}{
		"prohibit": {func(n *node, _ *person, secret coin, _ []*wire.Batch) { n.prohibit(secret) }, paths{reset, reset, reset}},
		"revoke": {func(n *node, p *person, _ coin, _ []*wire.Batch) { revokeOnce(n.t.(*testing.T), n, p) },
			paths{unauthorized, unauthorized, unauthorized}},
		"close": {func(_ *node, p *person, _ coin, sessions []*wire.Batch) {
			for _, b := range sessions {
				p.ask(closePath, closeBody(b.Session))
			}
		}, paths{expired, expired, expired}},
		"expire": {func(n *node, _ *person, _ coin, sessions []*wire.Batch) {
			n.advance(max(sessions[0].ExpiresAt, sessions[1].ExpiresAt, sessions[2].ExpiresAt))
		},
			paths{expired, reset, reset}},
		"remove": {func(n *node, _ *person, _ coin, _ []*wire.Batch) { n.removeAll() }, paths{unauthorized, unauthorized, unauthorized}},
		"break":  {func(n *node, _ *person, _ coin, _ []*wire.Batch) { n.rotate(livefeed.Break) }, paths{reset, reset, reset}},
		"prohibit while the epoch is retired": {func(n *node, _ *person, secret coin, _ []*wire.Batch) {
			n.rotate(livefeed.Retire)
			n.prohibit(secret)
		}, paths{reset, reset, reset}},
		"revoke, then grant again": {func(n *node, p *person, _ coin, _ []*wire.Batch) {
			revokeOnce(n.t.(*testing.T), n, p)
			n.grant(p, membersService)
		}, paths{unauthorized, unauthorized, unauthorized}},
		"prohibit, then allow": {func(n *node, p *person, secret coin, sessions []*wire.Batch) {
			n.prohibit(secret)
			for _, b := range sessions { // what it would have had to serve makes a reset durable
				p.ask(readPath, readBody(b.Session, b.Cursor, few(3))).refused(n.t, reset)
			}
			p.ask(openPath, ask{id: "the-first-of-the-request-ids", limits: few(3)}.at(membersService)).refused(n.t, reset)
			n.allow(secret)
		}, paths{reset, reset, reset}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := identityKey(t)
			n := members(t, setup{identity: key})
			m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
			p := n.person(1)
			n.grant(p, membersService)
			secret := mint("secret", 0)
			first, second, third := mint("first", 0), mint("second", 0), mint("third", 0)
			n.append(first.put(genre(0), `,"order":"1"`), second.put(genre(0), `,"order":"2"`))
			logged := p.open(membersService, ask{})
			n.append(secret.put(genre(0), `,"order":"3"`), third.put(genre(0), `,"order":"4"`))
			a := ask{id: "the-first-of-the-request-ids", limits: few(3)}
			saved := p.open(membersService, a)
			paged := p.open(membersService, ask{limits: few(2)})
			for path, b := range map[string][]byte{
				"retry": p.ask(openPath, a.at(membersService)).body,
				"page":  p.ask(readPath, readBody(paged.Session, paged.Cursor, few(2))).body,
				"log":   p.ask(readPath, readBody(logged.Session, logged.Cursor, few(2))).body,
			} {
				if !bytes.Contains(b, []byte(secret.hex())) {
					t.Fatalf("the row is not on the path %s: %s", path, b)
				}
			}
			// A saved session whose next answer discloses nothing is ended too, where all of its kind are.
			sessions := []*wire.Batch{paged, logged, saved}
			ended := sessions
			if name == "prohibit, then allow" {
				ended = sessions[:2]
			}
			c.end(n, p, secret, ended)
			check := func(when string, want paths) {
				t.Helper()
				for where, q := range map[string]*person{"here": p, "there": p.at(m)} {
					for path, r := range map[string]struct {
						r    reply
						want wire.Code
					}{
						"retry": {q.ask(openPath, a.at(membersService)), want.retry},
						"page":  {q.ask(readPath, readBody(paged.Session, paged.Cursor, few(2))), want.page},
						"log":   {q.ask(readPath, readBody(logged.Session, logged.Cursor, few(2))), want.log},
					} {
						e, err := wire.ParseError(r.r.body, r.r.status)
						if err != nil || e.Code != r.want {
							t.Errorf("%s, %s, %s: %v %s, want %s", when, where, path, err, r.r.body, r.want)
						}
						if bytes.Contains(r.r.body, []byte(secret.hex())) {
							t.Errorf("%s, %s, %s: the row left", when, where, path)
						}
					}
				}
				n.audit()
			}
			check("at once", c.want)
			n.append(second.withdrawn("gone"), mint("more", 0).put(genre(0), ""))
			n.retain()
			check("after compaction", c.want)
			n.advance(max(saved.ReplayUntil, paged.ReplayUntil, logged.ReplayUntil)) // the second may have turned between them
			n.retain()
			if got := n.count("lookup_session"); got != 0 {
				t.Fatalf("%d sessions are left", got)
			}
			check("when the records are gone", paths{expired, reset, reset})
		})
	}
}

// TestT4_AtEveryMoment lets a session expire at each moment of each kind of request: an answer that leaves was gated before, and
// nothing is sent on an expired promise.
func TestT4_AtEveryMoment(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	n.stock(3)
	p := n.person(1)
	for i, m := range []moment{arrived, beforeBuild, beforeSleep, beforeGate, beforeLastGate} {
		for _, path := range []string{"page", "log", "retry"} {
			a := ask{id: newID(), limits: few(1)}
			p.digest = n.capability()
			b := p.open("ls_anyone", a)
			if path == "log" {
				for !b.SnapshotComplete {
					b = p.read(b, wide)
				}
				if m != beforeSleep {
					n.append(mint(fmt.Sprint("t4", i, path), 0).put(genre(0), ""))
				}
			}
			if m == beforeSleep && path != "log" || path == "retry" && m < beforeGate {
				continue
			}
			came := false
			stop := n.during(m, func() {
				came = true
				n.advance(b.ExpiresAt)
			})
			want := wire.ResetRequired
			var r reply
			if path == "retry" {
				want = wire.Expired
				r = p.ask(openPath, a.at("ls_anyone"))
			} else {
				r = p.ask(readPath, readBody(b.Session, b.Cursor, wait(20000)))
			}
			stop()
			if !came {
				t.Fatalf("%s: moment %d did not come", path, m)
			}
			r.refused(t, want)
		}
	}
	// One second earlier, at the last moment, everything leaves.
	b := p.open("ls_anyone", ask{limits: few(1)})
	stop := n.during(beforeLastGate, func() { n.advance(b.ExpiresAt - 1) })
	p.read(b, few(1))
	stop()
	// And an Open whose session has expired before its first body leaves makes no promise.
	for _, m := range []moment{afterCommit, beforeGate, beforeLastGate} {
		at := n.clockNow()
		if err := n.pool.QueryRow(t.Context(), `select greatest($1, (select evaluated from feed_clock))`, int64(at)).Scan(&at); err != nil {
			t.Fatal(err)
		}
		p.digest = n.capability()
		stop := n.during(m, func() { n.advance(at + 3600 + 60) })
		p.ask(openPath, ask{}.at("ls_anyone")).refused(t, wire.ResetRequired)
		stop()
	}
}
