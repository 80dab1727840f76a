package failover_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestO12_AStandbyTakesOver: with everything, on another timeline, nothing changes; then one without everything, and the
// epoch is broken.
func TestO12_AStandbyTakesOver(t *testing.T) {
	t.Parallel()
	basebackup := tool(t, "pg_basebackup", "a promoted standby is told from one that lost something")
	if basebackup == "" {
		return
	}
	a := newCluster(t)
	a.synchronous() // what is acknowledged is on the standby, and a promoted one replays all it has
	b := a.standby(basebackup)
	p := newPlace(t, either(t, a, b))
	n := p.run()
	n.append(1)
	before := n.promised("before")

	step(t, "lossless", func() {
		waits := n.wait(before)
		a.stop()
		// Until it is promoted it is a standby: read-only, and nothing is concluded from it.
		b.asynchronous() // a copy of a in this too, and without a standby
		b.promote()
		if got := b.ask("select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"); got == "00000001" {
			t.Errorf("the new primary is on timeline %s", got)
		}
		n.append(2)
		// The poll got the group, or lost its connection and the next one gets it: the session lives in any case.
		answer := <-waits.done
		if answer.Status != http.StatusOK {
			var err error
			if answer, err = before.caller.ReadFrom(t.Context(), before.at, 0); err != nil {
				t.Fatal(err)
			}
		}
		if before.at = answer.Batch(t); len(before.at.Groups) != 1 {
			t.Fatalf("%d groups after the promotion", len(before.at.Groups))
		}
		n.kept(before, 3)
		n.promised("new")
		if got := turns(t, b.url); got != "none" {
			t.Errorf("turns: %s", got)
		}
		if strings.Contains(n.log.String(), lostHistory) {
			t.Error("a false alarm")
		}
	})
	n.append(4)
	n.stop()

	c := b.standby(basebackup)
	c.cutOff()
	p.url = either(t, b, c)
	n = p.run()
	step(t, "lossy", func() {
		n.append(5)
		after := n.promised("after")
		waits := n.wait(after)
		b.crash()
		n.logged("the database is read-only", 1)
		if got := turns(t, c.url); got != "none" {
			t.Errorf("a standby that lags is no proof: %s", got)
		}
		c.promote()
		n.logged(lostHistory, 1)
		waits.over(t)
		if got := turns(t, c.url); got != "1 break found" {
			t.Errorf("turns: %s", got)
		}
		n.void(6, before, after)
	})
}
