package failover_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

const lostHistory = "the database lost history"

// TestO12_ADataDirectoryCopiedBack: while the node is down, and while it is up; also when nothing but a session was lost.
func TestO12_ADataDirectoryCopiedBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := newPlace(t, c.url)
	n := p.run()
	n.append(1)
	before := n.promised("before")
	identity := c.ask("select system_identifier || ' ' || timeline_id from pg_control_system(), pg_control_checkpoint()")
	n.stop()
	saved := c.backup()

	// Nothing was lost by a stop and a start.
	n = p.run()
	n.kept(before, 2)
	n.append(3)
	after := n.promised("after")
	if got := turns(t, c.url); got != "none" {
		t.Fatalf("turns: %s", got)
	}

	step(t, "node down", func() {
		n.stop()
		c.restore(saved)
		n = p.run()
		n.foundAtStart()
		if got := c.ask("select system_identifier || ' ' || timeline_id from pg_control_system(), pg_control_checkpoint()"); got != identity {
			t.Logf("the restored cluster is %s, it was %s", got, identity)
		}
		if got := turns(t, c.url); got != "1 break found" {
			t.Fatalf("turns: %s", got)
		}
		n.void(4, before, after)
	})
	step(t, "node up", func() {
		again := n.promised("again")
		again.unknown = true // of after the break
		waits := n.wait(again)
		c.restore(saved)
		n.logged(lostHistory, 2)
		waits.over(t)
		if got := turns(t, c.url); !strings.HasSuffix(got, "2 break found") {
			t.Fatalf("turns: %s", got)
		}
		n.void(5, before, after, again)
		n.stop()
	})
	// The head did not move since the backup was made. A session and its fence are gone, so that the same Open would be
	// answered anew; the count of changes tells.
	p.stateFile = t.TempDir() + "/state.json"
	c.restore(saved)
	for i, up := range []bool{false, true} {
		step(t, fmt.Sprintf("only a session, node up: %t", up), func() {
			n = p.run()
			lost := n.promised("lost")
			lost.unknown = up // of after the first break
			if !up {
				n.stop()
			}
			c.restore(saved)
			if !up {
				n = p.run()
				n.foundAtStart()
			}
			n.logged(lostHistory, 1)
			if got := turns(t, c.url); !strings.HasSuffix(got, " break found") || strings.Contains(got, ",") {
				t.Errorf("turns: %s", got)
			}
			n.void(10+i, lost)
			n.stop()
		})
	}
}

// TestO12_ADumpRestored into the same cluster, in place of the database it was made of.
func TestO12_ADumpRestored(t *testing.T) {
	t.Parallel()
	const what = "a restored dump is noticed"
	dump, restore := tool(t, "pg_dump", what), tool(t, "pg_restore", what)
	if dump == "" || restore == "" {
		return
	}
	c := newCluster(t)
	admin := withDatabase(t, c.url, "postgres")
	p := newPlace(t, c.url)
	n := p.run()
	n.append(1)
	before := n.promised("before")
	n.stop()
	file := t.TempDir() + "/dump"
	run(t, dump, "-d", c.url, "-Fc", "-f", file)
	swap := func() {
		ask(t, admin, "create database fresh template template0")
		run(t, restore, "-d", withDatabase(t, c.url, "fresh"), file)
		ask(t, admin, "drop database overlayd with (force)")
		ask(t, admin, "alter database fresh rename to overlayd")
	}

	n = p.run()
	n.kept(before, 2)
	after := n.promised("after")
	step(t, "node down", func() {
		n.stop()
		swap()
		n = p.run()
		n.foundAtStart()
		n.void(3, before, after)
	})
	step(t, "node up", func() {
		again := n.promised("again")
		again.unknown = true // of after the break
		waits := n.wait(again)
		swap()
		waits.over(t)
		n.void(4, before, after, again)
	})
	// In one transaction, under connections that stay: the next look at the heads notices it, or whoever appends.
	step(t, "in place", func() {
		again := n.promised("again")
		again.unknown = true
		waits := n.wait(again)
		found := n.log.Count(lostHistory)
		run(t, restore, "--clean", "--if-exists", "--single-transaction", "-d", c.url, file)
		n.logged(lostHistory, found+1)
		waits.over(t)
		n.void(8, before, after, again)
	})
	step(t, "only a session", func() {
		n.stop()
		swap()
		n = p.run()
		n.stop()
		run(t, dump, "-d", c.url, "-Fc", "-f", file)
		n = p.run()
		lost := n.promised("lost")
		n.stop()
		swap()
		n = p.run()
		n.foundAtStart()
		n.void(5, lost)
	})
	// Nobody remembers: the state file was lost too. The first cursor that proves it breaks the epoch; other clients are told
	// so from then on.
	step(t, "no witness", func() {
		n.stop()
		run(t, dump, "-d", c.url, "-Fc", "-f", file)
		n = p.run()
		early := n.promised("early")
		n.stop()
		run(t, dump, "-d", c.url, "-Fc", "-f", file) // this one has the session, and not what it reads next
		n = p.run()
		n.woken(early, 6)
		proof, other := early.at, *early
		n.stop()
		swap()
		p.stateFile = t.TempDir() + "/state.json"
		n = p.run()
		if strings.Contains(n.log.String(), lostHistory) {
			t.Fatal("a node that saw nothing cannot know")
		}
		was := turns(t, c.url)
		n.read(early, proof).Refused(t, wire.ResetRequired)
		n.logged(lostHistory, 1)
		if got := turns(t, c.url); !strings.HasPrefix(got, was+", ") || !strings.HasSuffix(got, " break found") {
			t.Errorf("turns: %s, then %s", was, got)
		}
		n.void(7, &other)
	})
}
