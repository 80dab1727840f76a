package livefeed

import (
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestF17_TheBackstopComparesMarks too, if not at every look: a count that shrank breaks the epoch with nobody asking.
func TestF17_TheBackstopComparesMarks(t *testing.T) {
	t.Parallel()
	asked := &statements{}
	db := pgtest.New(t)
	n := startStore(t, db, traced(t, db, asked), func(c *Config) { c.Backstop, c.NoListen = 10*time.Millisecond, true })
	f := n.ensure(t, "f")
	counts(t, n, f, "a", 3)
	n.WatchMarks(readCounts)
	marks := func() int { return asked.so(witnessMarks(readCounts)) }
	testkit.Eventually(t, "the marks are compared", func() bool { return marks() > 2 })
	if heads := asked.so(witnessRead); heads < 3*marks() {
		t.Errorf("the marks were read %d times, the heads alone %d times", marks(), heads)
	}
	if others := asked.so(readCounts); others != 0 {
		t.Errorf("the marks were read in %d statements of their own", others)
	}
	before := len(f.turns(t))
	exec(t, n, "update counts set value = 2")
	testkit.Eventually(t, "the break", func() bool { return len(f.turns(t)) > before })
	if got := f.turns(t); !strings.HasSuffix(got[len(got)-1], " break found") {
		t.Errorf("turns %q", got)
	}
}
