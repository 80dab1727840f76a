package fleet_test

import (
	"flag"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
)

var (
	herdFollowers = flag.Int("herd.followers", 40, "followers of TestN3_AHerdComesBack")
	herdShelves   = flag.Int("herd.shelves", 9, "shelves that they ask for")
)

// TestN3_AHerdComesBack: the only node is killed under its followers and started again at once. All of them come back by
// themselves and go on where they were.
func TestN3_AHerdComesBack(t *testing.T) {
	t.Parallel()
	files(t, 8**herdFollowers)
	database := pgtest.New(t).URL
	statements, through := newTap(t, database)
	f := newFleet(t, 1, settings{database: through})
	shelves := shelvesOf(*herdShelves)
	l := &ledger{}
	followers := newCrowd(t, f.base(), *herdFollowers, shelves)
	began := time.Now()
	followers.follow()
	followers.bell(l, f.operator, shelves, 0, 10*time.Minute)
	opened := time.Now()
	peakOpen, sumOpen := statements.peak(began, opened)

	rung := time.Now()
	followers.bell(l, f.operator, shelves, 1, 10*time.Minute)
	usual := time.Since(rung)
	peakUsual, sumUsual := statements.peak(rung, time.Now())

	retries := followers.retries.Load()
	killed := time.Now()
	f.nodes[0].kill()
	f.nodes[0].start()
	up := time.Now()
	followers.bell(l, f.operator, shelves, 2, 10*time.Minute)
	back := time.Now()
	peakBack, sumBack := statements.peak(killed, back)
	retries = followers.retries.Load() - retries

	v := l.judge(followers.held()...)
	users := followers.errorsSeen()
	n := int64(*herdFollowers)
	table(t, fmt.Sprintf("%d followers of one node, which is killed and started again", n), [][2]string{
		{"all opened and live", opened.Sub(began).Round(time.Millisecond).String()},
		{"  statements: peak in a second / for each follower", fmt.Sprintf("%d / %.1f", peakOpen, float64(sumOpen)/float64(n))},
		{"a group to all of them, usually", usual.Round(time.Millisecond).String()},
		{"  statements: peak in a second / for each follower", fmt.Sprintf("%d / %.1f", peakUsual, float64(sumUsual)/float64(n))},
		{"kill to the node being ready again", up.Sub(killed).Round(time.Millisecond).String()},
		{"ready to a new group at every follower", back.Sub(up).Round(time.Millisecond).String()},
		{"  statements: peak in a second / for each follower", fmt.Sprintf("%d / %.1f", peakBack, float64(sumBack)/float64(n))},
		{"requests sent again", fmt.Sprint(retries)},
		{"errors seen by followers' users (goal 0)", fmt.Sprint(len(users))},
		{"lost / doubled / wrong in followers' states", fmt.Sprintf("%d / %d / %d", v.lost, v.doubled, v.wrong)},
	})
	for _, err := range users {
		t.Error(err)
	}
	if !v.clean() || v.delivered == 0 || retries == 0 {
		t.Errorf("delivered %d, retries %d, lost %d, doubled %d, wrong %d:\n%s", v.delivered, retries, v.lost, v.doubled, v.wrong, strings.Join(v.words, "\n"))
	}
}

// files says so when this process may not open that many.
func files(t *testing.T, n int) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur < uint64(n)+200 {
		t.Fatalf("a process may have %d files open, and this takes %d: raise it (ulimit -n %d) or ask for less", limit.Cur, n+200, n+200)
	}
}
