package lookup

import "sync"

// closing tells the polls of this process that their session has ended, so that they answer at once instead of at their
// deadline. It is a hint: the gate decides, and a session ended on another node ends its polls here at the gate.
type closing struct {
	mu    sync.Mutex
	polls map[[32]byte]*farewell // guarded by mu
}

// farewell is what the polls of one session wait for.
type farewell struct {
	ended chan struct{} // closed when the session ends
	polls int           // greater than 0; guarded by closing.mu
}

func newClosing() *closing { return &closing{polls: make(map[[32]byte]*farewell)} }

// watch registers a poll, which must leave.
func (c *closing) watch(session [32]byte) *farewell {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.polls[session]
	if f == nil {
		f = &farewell{ended: make(chan struct{})}
		c.polls[session] = f
	}
	f.polls++
	return f
}

// leave takes a poll back.
func (c *closing) leave(session [32]byte, f *farewell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.polls--; f.polls == 0 && c.polls[session] == f {
		delete(c.polls, session)
	}
}

// announce wakes the polls of a session.
func (c *closing) announce(session [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.polls[session]; f != nil {
		close(f.ended)
		delete(c.polls, session)
	}
}
