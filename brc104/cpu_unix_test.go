//go:build unix

package brc104

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used: on a busy machine it says more than a clock does.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
