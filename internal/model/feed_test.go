package model_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

func newKey() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) //nolint:errcheck // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// appending commits groups: new ones, known ones again, and some that must be refused. Mostly it is one; several are
// submitted together, so that the committer takes them as batches, and sometimes more than a read takes at a time.
func (d *drive) appending() error {
	n, at := d.node()
	count := 1
	switch {
	case d.chance(90):
		count = 100 + d.n(250)
	case d.chance(6):
		count = 2 + d.n(12)
	}
	ctx, cancel := context.WithTimeout(d.ctx, 20*time.Second)
	defer cancel()
	type sent struct {
		key, body string
		edits     []edit
		pending   *livefeed.Pending
	}
	var all []sent
	for range count {
		s := sent{key: newKey(), edits: d.edits(count > 50)}
		if len(d.keyList) > 0 && d.chance(15) {
			s.key = d.keyList[d.n(len(d.keyList))]
		}
		s.body = d.groupJSON(s.key, s.edits, d.r.people)
		if k, ok := d.keys[s.key]; ok && d.chance(2) {
			s.body = k.body
		}
		proposal, err := livefeed.DecodeGroup([]byte(s.body))
		if err != nil {
			return err
		}
		s.pending = n.feed.Submit(ctx, proposal)
		all = append(all, s)
	}
	if count > 1 {
		d.say("append %d groups together on node %d", count, at)
	}
	for _, s := range all {
		d.say("append on node %d: %s", at, tellEdits(s.edits))
		receipt, err := s.pending.Wait(ctx)
		v, seq := d.append(s.key, s.body, s.edits)
		got := map[livefeed.ErrorCode]verdict{livefeed.Conflict: conflicting, livefeed.Invalid: faulty, livefeed.Limited: oversized}[livefeed.CodeOf(err)]
		if receipt.Replayed {
			got = replayed
		}
		if err != nil && got == accepted || got != v || receipt.Sequence != seq || err == nil && (receipt.HighWater < seq || count == 1 && receipt.HighWater != d.head()) {
			return fmt.Errorf("append was answered %+v, %v; want %s as %d, head %d", receipt, err, v, seq, d.head())
		}
		d.say("  -> %s %d", v, seq)
	}
	return nil
}

func tellEdits(edits []edit) string {
	var out []string
	for _, e := range edits {
		switch e.op {
		case put:
			out = append(out, fmt.Sprintf("put %d %s", e.point, e.state))
		case spend:
			out = append(out, fmt.Sprintf("spend %d by %d", e.point, e.by))
		case withdraw:
			out = append(out, fmt.Sprintf("withdraw %d %q", e.point, e.reason))
		default:
			out = append(out, "invalidate")
		}
	}
	return strings.Join(out, "; ")
}

// edits draws a group, of one edit if it is to be small.
func (d *drive) edits(small bool) []edit {
	count := 1
	if !small && d.chance(3) {
		count += d.n(4)
	}
	if !small && d.chance(40) {
		count = 9
	}
	values := func(names ...string) (out []string) {
		for _, n := range names {
			if d.chance(2) {
				out = append(out, n)
			}
		}
		return out
	}
	var edits []edit
	for range count {
		e := edit{point: d.n(2 * len(d.coins)), reason: []string{"evicted", "a \u0000 reason", "\"quoted\""}[d.n(3)], by: d.n(2)}
		switch d.n(9) {
		case 0, 1:
			e.op = spend
		case 2:
			e.op = withdraw
		case 3:
			if d.chance(2) {
				e.op = invalidate
				e.point = 0
			}
		}
		if e.op == put {
			s := &state{evidence: d.n(4) / 3, artist: values("a", "b"), genre: values("x", "y"), order: []string{"", "", "1", "1\u0000", "2"}[d.n(5)], context: max(0, d.n(5)-2)}
			if before := d.now(e.point); before != nil && d.chance(3) { // change one thing of what is there, or nothing
				same := *before
				same.hidden = false
				switch d.n(4) {
				case 0:
					same.genre = s.genre
				case 1:
					same.order = s.order
				}
				s = &same
			} else {
				if d.chance(3) {
					s.expires = d.t + uint64(1+d.n(15))
				}
				switch d.n(6) {
				case 0:
					s.readers = []int{d.n(2)}
				case 1:
					s.readers = []int{0, 1}
				}
			}
			if d.chance(60) {
				s.expires = d.t
			}
			if d.chance(80) {
				s.readers = []int{}
			}
			e.state = s
		}
		edits = append(edits, e)
	}
	return edits
}

// ruling prohibits a row or allows it again.
func (d *drive) ruling() error {
	n, at := d.node()
	point := d.n(2 * len(d.coins))
	allow := d.chance(2)
	for p := range d.prohibited { // do not let everything be hidden for long
		if allow = allow || d.prohibited[p] && p == point; allow {
			break
		}
	}
	if allow {
		var list []int
		for p, yes := range d.prohibited {
			if yes {
				list = append(list, p)
			}
		}
		slices.Sort(list)
		if len(list) > 0 && !d.chance(5) {
			point = list[d.n(len(list))]
		}
	}
	d.say("prohibit %d on node %d, lift %v", point, at, allow)
	c := d.coins[point/2]
	o := livefeed.Outpoint{TxID: c.txid, Index: uint32(point % 2)}
	var changed bool
	var err error
	if allow {
		changed, err = n.feed.Allow(d.ctx, o)
	} else {
		changed, err = n.feed.Prohibit(d.ctx, o, "a court said so")
	}
	if err != nil {
		return err
	}
	if want := d.rule(point, allow); changed != want {
		return fmt.Errorf("it changed something: %v, want %v", changed, want)
	}
	return nil
}

// passing lets time pass: a little, or to a deadline, or to the second before it.
func (d *drive) passing() error {
	n, at := d.node()
	to := d.t + uint64(1+d.n(3))
	switch d.n(8) {
	case 0, 1:
		if s := d.pick(); s != nil {
			to = []uint64{s.expiresAt, s.expiresAt - 1, s.replayUntil, s.replayUntil - 1}[d.n(4)]
		}
	case 2, 3:
		for _, v := range d.versions {
			if v.state.expires > d.t && d.chance(3) {
				to = v.state.expires - uint64(d.n(2))
				break
			}
		}
	}
	to = max(min(to, d.t+60), d.t)
	d.say("time passes on node %d: %d -> %d", at, d.t, to)
	d.t = to
	return n.feed.Advance(d.ctx, n.running.pool, to)
}

// granting gives a grant or takes one away.
func (d *drive) granting() error {
	n, at := d.node()
	who := d.n(2)
	if d.grants[who] == 0 || d.chance(2) {
		d.say("grant %d on node %d", who, at)
		return d.grant(who, n)
	}
	d.say("revoke %d on node %d", who, at)
	changed, err := n.provider.Revoke(d.ctx, "ls_members", d.r.people[who].identity)
	if err != nil {
		return err
	}
	if !changed {
		return errors.New("there was nothing to revoke")
	}
	d.grants[who] = 0
	for _, s := range d.sessions {
		if s.who == who && s.state == living && !s.removed {
			s.state = revoked
		}
	}
	return nil
}

func (d *drive) grant(who int, n *node) error {
	changed, err := n.provider.Grant(d.ctx, "ls_members", d.r.people[who].identity)
	if err != nil {
		return err
	}
	if changed != (d.grants[who] == 0) {
		return fmt.Errorf("granting changed something: %v", changed)
	}
	if changed {
		d.granted++
		d.grants[who] = d.granted
	}
	return nil
}

// restarting ends a node's process and starts another on the same database.
func (d *drive) restarting() error {
	_, i := d.node()
	d.say("node %d starts anew", i)
	d.r.stores[i].stop()
	d.r.stores[i] = d.r.run()
	n, err := d.r.provide(i, d.name)
	if err != nil {
		return err
	}
	d.nodes[i] = n
	return nil
}

// auditing compares what operators are told.
func (d *drive) auditing() error {
	n, at := d.node()
	d.say("audit on node %d", at)
	stats, err := n.feed.Stats(d.ctx)
	if err != nil {
		return err
	}
	if stats.Head != d.head() || stats.Rows != int64(len(d.rows)) || stats.Epoch != d.epoch || stats.Floor != d.floor {
		return fmt.Errorf("%+v; want head %d, floor %d, %d rows, epoch %.8s", stats, d.head(), d.floor, len(d.rows), d.epoch)
	}
	list, err := n.provider.ListSessions(d.ctx, lookup.SessionFilter{})
	if err != nil {
		return err
	}
	got := map[uuid.UUID]string{}
	for _, s := range list {
		got[s.Ref] = s.State
	}
	for _, s := range d.sessions {
		ref, found, err := d.ref(s)
		if err != nil {
			return err
		}
		want := s.state.String()
		switch {
		case s.state != living:
		case s.turn < d.broken:
			want = "reset"
		case s.t < d.t && d.t >= s.expiresAt:
			want = "expired"
		}
		if found == s.removed || found && len(list) < 1000 && got[ref] != want {
			return fmt.Errorf("session #%d is stored %v as %q; want %q, removed %v", s.number, found, got[ref], want, s.removed)
		}
	}
	return nil
}
