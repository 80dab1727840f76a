package livefeed

import (
	"context"
	"strings"
	"sync/atomic"
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
	var marks atomic.Int64
	n.WatchMarks(func(ctx context.Context, q Querier) ([]Mark, error) {
		marks.Add(1)
		return readCounts(ctx, q)
	})
	testkit.Eventually(t, "the marks are compared", func() bool { return marks.Load() > 2 })
	if heads := asked.so(witnessRead); int64(heads) < 4*marks.Load() {
		t.Errorf("the marks were read %d times in %d looks at the heads", marks.Load(), heads)
	}
	before := len(f.turns(t))
	exec(t, n, "update counts set value = 2")
	testkit.Eventually(t, "the break", func() bool { return len(f.turns(t)) > before })
	if got := f.turns(t); !strings.HasSuffix(got[len(got)-1], " break found") {
		t.Errorf("turns %q", got)
	}
}
