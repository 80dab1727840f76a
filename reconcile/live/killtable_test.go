//go:build failpoint

package live_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
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
	first := newStory(t)
	fmt.Printf("%-9s %-30s %5s %5s %7s %8s\n", "store", "killed at", "kills", "lost", "doubled", "disorder")
	for _, kind := range strings.Split(*stores, ",") {
		for _, point := range failpoint.FollowerPoints() {
			var mu sync.Mutex
			var sum verdict
			done, most := 0, 12 // most: it is not passed more often in one run
			t.Run(kind+"/"+point, func(t *testing.T) {
				for n := range *kills {
					t.Run(fmt.Sprint(n), func(t *testing.T) {
						t.Parallel()
						for {
							mu.Lock()
							at := 1 + rand.IntN(most)
							mu.Unlock()
							s := newSaga(t, first)
							if kind == "postgres" {
								s.orders.URL = pgtest.NewEmpty(t).URL
							}
							if !s.follow(t, s.orders, fmt.Sprintf("%s=%s=kill@%d", armVariable, point, at)) {
								if at == 1 {
									t.Fatalf("%s is never passed", point)
								}
								mu.Lock()
								most = min(most, at-1)
								mu.Unlock()
								continue
							}
							if s.follow(t, s.orders) {
								t.Fatal("a follower that nobody kills was killed")
							}
							v := s.judge(t)
							mu.Lock()
							defer mu.Unlock()
							sum = sum.add(v)
							done++
							if v != (verdict{}) {
								t.Errorf("killed at hit %d of %s: %+v", at, point, v)
							}
							return
						}
					})
				}
			})
			fmt.Printf("%-9s %-30s %5d %5d %7d %8d\n", kind, point, done, sum.lost, sum.doubled, sum.disorder)
		}
	}
}
