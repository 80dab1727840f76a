//go:build unix

package localpg

import (
	"os/exec"
	"sync"
	"testing"
)

// TestP2_AReleasedLockIsFreeWhileOthersFork: a child that is being started holds copies of this process's files for a moment. A lock
// that was given up is free all the same.
func TestP2_AReleasedLockIsFreeWhileOthersFork(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_ = exec.Command("true").Run()
			}
		})
	}
	defer wg.Wait()
	defer close(done)
	for i := range 200 {
		release, err := acquire(data)
		if err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
		release()
	}
}
