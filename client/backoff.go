package client

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 30 * time.Second
	lastPace     = 5 * time.Second
)

// backoff grows with each failure in a row.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

// next returns the wait before the next attempt: doubling from 250 ms, at most
// limit, of which a random half is left out so that clients do not march in
// step. It is never less than what the provider asked for.
func (b *backoff) next(limit, asked time.Duration) time.Duration {
	d := limit
	if b.failures < 16 {
		d = min(limit, firstBackoff<<b.failures)
	}
	b.failures++
	jitter := time.Duration(rand.Int64N(int64(d/2) + 1))
	if asked > 0 {
		return max(d/2, asked) + jitter
	}
	return d/2 + jitter
}

// sleep waits, or returns early with the context's cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
