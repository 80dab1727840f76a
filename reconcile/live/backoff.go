package live

import (
	"math/rand/v2"
	"time"
)

// Pauses of D11: between a quarantine and the source's next generation.
const (
	firstPause = time.Second
	lastPause  = 10 * time.Minute
)

// backoff grows with each failure in a row.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

// next is the wait before the next attempt: doubling from 250 ms, at most limit, of
// which a random half is left out.
func (b *backoff) next(limit time.Duration) time.Duration {
	d := limit
	if b.failures < 16 {
		d = min(limit, 250*time.Millisecond<<b.failures)
	}
	b.failures++
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1))
}

// pause is the wait before a source that broke its word is believed again: it
// doubles from firstPause to lastPause, and an eighth of it at random comes on top.
func (b *backoff) pause() time.Duration {
	d := lastPause
	if b.failures < 16 {
		d = min(d, firstPause<<b.failures)
	}
	b.failures++
	return d + time.Duration(rand.Int64N(int64(d/8)+1))
}
