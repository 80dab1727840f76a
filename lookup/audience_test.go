package lookup

import (
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// readersOf is the part of a put that names who may read the row.
func readersOf(people ...*person) string {
	var keys []string
	for _, p := range people {
		keys = append(keys, `"`+hexOf(p.identity[:])+`"`)
	}
	return `,"readers":[` + strings.Join(keys, ",") + `]`
}

// TestA7_WhatAReaderLostIsNotServedAgain: from the saved first body, from a page of S, from the log, first or again, on any node.
func TestA7_WhatAReaderLostIsNotServedAgain(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	one, two := n.person(1), n.person(2)
	const service = "ls_anyone"
	row, open := mint("row", 0), mint("open", 0)
	n.append(mint("before", 0).put(genre(1), ""))
	n.append(row.put(genre(0), `,"order":"ff"`+readersOf(one, two)))
	n.append(open.put(`{"genre":["pop"],"artist":["x"]}`, ""))
	all := func(limits wire.Limits) ask { return ask{id: newID(), limits: limits} }

	saved, savedTwo := all(wide), all(wide)
	one.open(service, saved)
	two.open(service, savedTwo)
	beyond, later := one.open(service, all(few(1))), one.open(service, all(few(1)))
	beyond, later = one.read(beyond, few(1)), one.read(later, few(1)) // the next row is the last, and it
	history, follower := one.open(service, all(wide)), one.open(service, all(wide))
	n.append(row.put(`{"genre":["jazz"],"artist":["y"]}`, `,"order":"fe"`+readersOf(two, one)))
	follower = one.read(follower, wide)
	if got := tellAll(observations(follower)); !slices.Equal(got, []string{"output " + row.short()}) {
		t.Fatalf("%v", got)
	}
	if got := tellAll(observations(one.read(history, wide))); !slices.Equal(got, []string{"output " + row.short()}) {
		t.Fatalf("%v", got)
	}
	rest := one.open(service, ask{query: `{"match":{"genre":"pop"}}`})
	anonymous, anonymousLater := all(wide), n.open(ask{limits: few(1)})
	n.open(anonymous)

	n.append(row.put(genre(0), readersOf(two)))
	// Live, it is withdrawn, and that names no row that was not known.
	if got := tellAll(observations(one.read(follower, wide))); !slices.Equal(got, []string{"withdraw " + row.short() + " audience"}) {
		t.Fatalf("%v", got)
	}
	for _, by := range []*node{m, n} {
		p := one.at(by)
		p.ask(openPath, saved.at(service)).refused(t, wire.ResetRequired)
		p.ask(readPath, readBody(beyond.Session, beyond.Cursor, few(1))).refused(t, wire.ResetRequired)
		p.ask(readPath, readBody(history.Session, history.Cursor, wide)).refused(t, wire.ResetRequired)
		// Who kept it, what does not serve it, and who never saw it go on.
		two.at(by).ask(openPath, savedTwo.at(service)).batch(t)
		p.read(rest, wide)
		by.request(openPath, anonymous.body()).batch(t)
	}
	// Given back: what was told reset stays so, what was not asked meanwhile goes on, new sessions see it.
	n.append(row.put(genre(0), readersOf(one)))
	one.ask(openPath, saved.at(service)).refused(t, wire.ResetRequired)
	one.ask(readPath, readBody(history.Session, history.Cursor, wide)).refused(t, wire.ResetRequired)
	one.read(later, few(1))
	two.ask(openPath, savedTwo.at(service)).refused(t, wire.ResetRequired)
	if got := outputs(one.open(service, all(wide))); !slices.Contains(got, row.hex()) {
		t.Fatalf("%v", got)
	}
	// A row of everyone that becomes a row of some is lost to callers without a name.
	n.append(open.put(genre(2), readersOf(two)))
	n.request(openPath, anonymous.body()).refused(t, wire.ResetRequired)
	for b := anonymousLater; ; {
		r := n.request(readPath, readBody(b.Session, b.Cursor, few(1)))
		if r.status != 200 {
			r.refused(t, wire.ResetRequired)
			break
		}
		if b = r.batch(t); b.SnapshotComplete {
			t.Fatal("a snapshot served a row that is no longer for everyone")
		}
	}
	// Spent, or gone and back again for fewer, it is lost all the same.
	again := all(wide)
	one.open(service, again)
	n.append(row.put(genre(0), readersOf(two)))
	n.append(row.spent(mint("by", 0, row.point())))
	one.ask(openPath, again.at(service)).refused(t, wire.ResetRequired)
	other, back := mint("other", 0), all(wide)
	n.append(other.put(genre(0), ""))
	one.open(service, back)
	n.append(other.withdrawn("evicted"))
	one.ask(openPath, back.at(service)).batch(t)
	n.append(other.put(genre(0), readersOf(two)))
	one.ask(openPath, back.at(service)).refused(t, wire.ResetRequired)
}

// TestA7_ARowIsNarrowedWhileItsBodyIsOnTheWay: the gate is the last word.
func TestA7_ARowIsNarrowedWhileItsBodyIsOnTheWay(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	one, two := n.person(1), n.person(2)
	for name, at := range map[string]moment{"before the gate": beforeGate, "between sign and the last gate": beforeLastGate} {
		row := mint(name, 0)
		b := one.open("ls_anyone", ask{})
		n.append(row.put(genre(0), readersOf(one, two)))
		done := false
		stop := n.during(at, func() {
			if !done {
				done = true
				m.append(row.put(genre(0), readersOf(two)))
			}
		})
		r := one.ask(readPath, readBody(b.Session, b.Cursor, wide))
		stop()
		if !done {
			t.Fatalf("%s: the moment did not come", name)
		}
		r.refused(t, wire.ResetRequired)
	}
}
