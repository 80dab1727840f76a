package lookup

import "sync"

// closing tells the polls of this process that their session has ended, so that they answer at once instead of at their
// deadline. It is a hint: the gate decides, and a session ended on another node ends its polls here at the gate.
type closing struct {
	mu    sync.Mutex
	polls map[[32]byte]map[chan struct{}]struct{} // guarded by mu; channels are buffered 1 and never closed
}

func newClosing() *closing { return &closing{polls: make(map[[32]byte]map[chan struct{}]struct{})} }

// watch registers a poll. The returned channel receives once if the session ends; stop must be called.
func (c *closing) watch(session [32]byte) (ended <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.polls[session] == nil {
		c.polls[session] = make(map[chan struct{}]struct{})
	}
	c.polls[session][ch] = struct{}{}
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.polls[session], ch)
		if len(c.polls[session]) == 0 {
			delete(c.polls, session)
		}
	}
}

// announce wakes the polls of a session.
func (c *closing) announce(session [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch := range c.polls[session] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
