package lookup

import (
	"context"
	"encoding/base64"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// closing tells the polls of this process that their session has ended, here or on another node, or that this provider is stopped, so
// that they answer at once instead of at their deadline. It is a hint: the gate decides, and it does so at the deadline as well.
type closing struct {
	mu sync.Mutex
	// guarded by mu
	polls   map[[32]byte]*farewell // the first poll of each session
	stopped bool
}

// farewell is one poll's place among those of its session. It is guarded by closing.mu.
type farewell struct {
	session      [32]byte
	poll         *vigil // nil: it is not there, or not any more
	before, next *farewell
}

func newClosing() *closing { return &closing{polls: make(map[[32]byte]*farewell)} }

// watch registers a poll, before its session is looked up: what ends the session after that is heard. It must leave.
func (c *closing) watch(v *vigil, session [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		v.happened(byStop)
	}
	f, first := &v.farewell, c.polls[session]
	*f = farewell{session: session, poll: v, next: first}
	if first != nil {
		first.before = f
	}
	c.polls[session] = f
}

// leave takes a poll back. It may be called again.
func (c *closing) leave(v *vigil) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &v.farewell
	if f.poll == nil {
		return
	}
	if f.next != nil {
		f.next.before = f.before
	}
	switch {
	case f.before != nil:
		f.before.next = f.next
	case f.next != nil:
		c.polls[f.session] = f.next
	default:
		delete(c.polls, f.session)
	}
	*f = farewell{}
}

// announce wakes the polls of a session.
func (c *closing) announce(session [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := c.polls[session]; f != nil; {
		next := f.next
		f.poll.happened(byEnd)
		*f = farewell{}
		f = next
	}
	delete(c.polls, session)
}

// stop wakes all polls, and those to come at once.
func (c *closing) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	for _, f := range c.polls {
		for ; f != nil; f = f.next {
			f.poll.happened(byStop)
		}
	}
}

// endings are the sessions that ended here and of which the other nodes have not been told yet. Each node tells the others which, in
// digests, over the connection that hears of commits. What does not get through costs a poll there its deadline.
type endings struct {
	some chan struct{} // capacity 1, never closed

	mu   sync.Mutex
	list [][32]byte // at most mostEndings; guarded by mu
}

const (
	// mostEndings bounds what waits to be told, and endingsHint what one hint holds: 5760 bytes, 7680 in base64.
	mostEndings = 4096
	endingsHint = 180

	endingsPrefix = "ended:"
	spreadWithin  = 10 * time.Second
)

func newEndings() *endings { return &endings{some: make(chan struct{}, 1)} }

func (e *endings) add(list []ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range list[:min(len(list), mostEndings-len(e.list))] {
		e.list = append(e.list, one.id)
	}
	select {
	case e.some <- struct{}{}:
	default:
	}
}

// take hands out what waits, as hints.
func (e *endings) take() (hints []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for part := range slices.Chunk(e.list, endingsHint) {
		var raw []byte
		for _, id := range part {
			raw = append(raw, id[:]...)
		}
		hints = append(hints, endingsPrefix+base64.RawStdEncoding.EncodeToString(raw))
	}
	e.list = nil
	return hints
}

// spreadLoop tells the other nodes what ended here until ctx ends, one statement at a time: what comes meanwhile goes together.
func (p *shard) spreadLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.endings.some:
		}
		hints := p.endings.take()
		if len(hints) == 0 {
			continue
		}
		work, cancel := context.WithTimeout(ctx, spreadWithin)
		err := p.source.Hint(work, hints...)
		cancel()
		if err != nil && ctx.Err() == nil {
			p.log.LogAttrs(ctx, slog.LevelDebug, "other nodes were not told of ended sessions; polls there hear of it at their deadlines", slog.String("cause", err.Error()))
		}
	}
}

// hinted wakes the polls of sessions that a node has ended. What has another form is for a version of this program to come.
func (p *Provider) hinted(hint string) {
	text, ok := strings.CutPrefix(hint, endingsPrefix)
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if !ok || err != nil {
		return
	}
	for ; len(raw) >= digestSize; raw = raw[digestSize:] {
		p.closing.announce([digestSize]byte(raw))
	}
}
