//go:build failpoint

package live_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/internal/pgtest"
)

// armVariable holds what is armed in a child.
const armVariable = "OVERLAYD_FAILPOINTS"

func arm() {
	if err := failpoint.Arm(os.Getenv(armVariable)); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

var (
	kills  = flag.Int("kills", 2, "how often a follower is killed at each point, on each store")
	stores = flag.String("stores", "sqlite,postgres", "on which stores")
)

// TestR7_C3_KillTable kills a real follower process at every named point, on SQLite and
// on Postgres, starts it again until it is live, and prints what was lost, doubled or
// out of order.
func TestR7_C3_KillTable(t *testing.T) {
	t.Parallel()
	first := newStory(t)
	fmt.Printf("%-9s %-30s %5s %5s %7s %8s\n", "store", "killed at", "kills", "lost", "doubled", "disorder")
	for _, kind := range strings.Split(*stores, ",") {
		for _, point := range failpoint.FollowerPoints() {
			var sum verdict
			for done, most := 0, 12; done < *kills; {
				s := newSaga(t, first)
				if kind == "postgres" {
					s.orders.URL = pgtest.NewEmpty(t).URL
				}
				at := 1 + rand.IntN(most)
				if !s.follow(t, s.orders, fmt.Sprintf("%s=%s=kill@%d", armVariable, point, at)) {
					if most = at - 1; most < 1 { // it is not passed that often
						t.Fatalf("%s is never passed", point)
					}
					continue
				}
				for s.follow(t, s.orders) {
					t.Error("a follower that nobody kills was killed")
				}
				sum = sum.add(s.judge(t))
				done++
			}
			fmt.Printf("%-9s %-30s %5d %5d %7d %8d\n", kind, point, *kills, sum.lost, sum.doubled, sum.disorder)
			if sum != (verdict{}) {
				t.Errorf("%s on %s: %+v", point, kind, sum)
			}
		}
	}
}
