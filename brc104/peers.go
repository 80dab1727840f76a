package brc104

import "sync"

// peerCache remembers what is shared with identities that have proven themselves. It is filled only after a valid signature:
// otherwise strangers could push proven identities out of it, and buy work with unsigned requests.
type peerCache struct {
	mu     sync.Mutex
	known  generations[[33]byte, *peerKey] // guarded by mu
	lookup func(*[33]byte) (*peerKey, error)
}

func newPeerCache(size int, lookup func(*[33]byte) (*peerKey, error)) *peerCache {
	return &peerCache{known: newGenerations[[33]byte, *peerKey](size / 2), lookup: lookup}
}

// find returns the peer from the cache, or computes it without keeping it.
func (c *peerCache) find(public *[33]byte) (*peerKey, error) {
	c.mu.Lock()
	p, ok := c.known.get(*public)
	c.mu.Unlock()
	if ok {
		return p, nil
	}
	return c.lookup(public)
}

// proven keeps a peer that has just signed validly. One that does so again gets a table.
func (c *peerCache) proven(public *[33]byte, p *peerKey) {
	c.mu.Lock()
	_, known := c.known.get(*public)
	if _, there := c.known.newer[*public]; !there {
		c.known.put(*public, p)
	}
	c.mu.Unlock()
	if known && p.quick.Load() == nil {
		p.hurry() // twice at worst, when two requests come at once
	}
}
