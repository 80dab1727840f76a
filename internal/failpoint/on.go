//go:build failpoint

package failpoint

import (
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
)

// armed is what Arm set before anything ran, and how often each point was hit.
var armed struct {
	mu    sync.Mutex
	rules map[string]Rule
	hits  map[string]uint64
}

// Arm puts a spec in force in place of what was. Call it before the program starts anything.
func Arm(spec string) error {
	rules, err := Parse(spec)
	if err != nil {
		return err
	}
	armed.mu.Lock()
	defer armed.mu.Unlock()
	armed.rules, armed.hits = map[string]Rule{}, map[string]uint64{}
	for _, r := range rules {
		armed.rules[r.Point] = r
	}
	return nil
}

// Hit does what is armed at the point.
func Hit(point string) {
	armed.mu.Lock()
	rule, ok := armed.rules[point]
	if !ok {
		armed.mu.Unlock()
		return
	}
	armed.hits[point]++
	kill := rule.Kill > 0 && armed.hits[point] == rule.Kill
	armed.mu.Unlock()
	switch {
	case kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // one's own process may always be killed
		select {}
	case rule.Pause > 0 && rand.IntN(100) < rule.Share:
		time.Sleep(rule.Pause)
	}
}
