package brc104

import (
	"context"
	"sync"
	"time"
)

// Use is what a ReplayGuard is asked about: one request of one session.
type Use struct {
	Key     [16]byte  // names the request; never made of the signature, which may be written anew
	Issued  time.Time // when the session began, whole milliseconds
	Expires time.Time // when it ends; nothing need be remembered beyond
}

// Verdict is a guard's answer.
type Verdict int

// Verdicts.
const (
	Fresh    Verdict = iota // not seen before, and remembered from now on
	Replayed                // seen before
	Forgot                  // the guard cannot tell any more: the session must begin anew
)

// ReplayGuard tells whether a request was seen before. It is asked only about requests whose signature is valid. Of any number
// of equal uses at once exactly one is Fresh.
type ReplayGuard interface {
	Use(ctx context.Context, use Use) (Verdict, error)
}

// MemoryGuard is a ReplayGuard of one process, bounded in memory whatever happens.
//
// It remembers requests in two generations; when the newer one is full, the older one is let go. If that still spoke of living
// sessions, all sessions that began no later than the last of those are forgotten from then on, and their clients begin new
// ones: a memory too small costs handshakes and never lets a replay through.
type MemoryGuard struct {
	clock func() time.Time

	mu           sync.Mutex
	seen         generations[[16]byte, struct{}] // guarded by mu
	newer, older span                            // guarded by mu: of the sessions that the two generations speak of
	since        time.Time                       // guarded by mu: of sessions begun later, every request is remembered
}

// span is when the last of some sessions began and when the last of them ends.
type span struct{ issued, expires time.Time }

func (s *span) include(use Use) {
	if use.Issued.After(s.issued) {
		s.issued = use.Issued
	}
	if use.Expires.After(s.expires) {
		s.expires = use.Expires
	}
}

// DefaultReplays is the number of requests that a MemoryGuard remembers when it is given none: about 12 MB when full.
const DefaultReplays = 1 << 18

// NewMemoryGuard makes a guard that remembers up to size requests, 0 meaning DefaultReplays.
//
// since is the moment from which it knows everything. The zero time trusts that sessions older than the process were not
// replayed across its start: they live on, and a captured request of one can be used once more. time.Now() closes that, and
// every client begins a new session after a restart.
func NewMemoryGuard(size int, since time.Time) *MemoryGuard {
	return newMemoryGuard(size, since, time.Now)
}

func newMemoryGuard(size int, since time.Time, clock func() time.Time) *MemoryGuard {
	if size <= 0 {
		size = DefaultReplays
	}
	return &MemoryGuard{seen: newGenerations[[16]byte, struct{}](size / 2), since: since, clock: clock}
}

// Use implements ReplayGuard. It never blocks and never fails.
func (g *MemoryGuard) Use(_ context.Context, use Use) (Verdict, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen.full() {
		if g.clock().Before(g.older.expires) && g.older.issued.After(g.since) {
			g.since = g.older.issued
		}
		g.seen.turn()
		g.older, g.newer = g.newer, span{}
	}
	if !use.Issued.After(g.since) {
		return Forgot, nil
	}
	if _, dup := g.seen.get(use.Key); dup {
		return Replayed, nil
	}
	g.seen.newer[use.Key] = struct{}{}
	g.newer.include(use)
	return Fresh, nil
}
