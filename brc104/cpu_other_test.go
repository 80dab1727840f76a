//go:build !unix

package brc104

import "time"

// cpuTime falls back to the clock.
func cpuTime() time.Duration { return time.Duration(time.Now().UnixNano()) }
