//go:build crash

package crash

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// reader is a client of one service that believes nothing.
type reader struct {
	run     *run
	client  *http.Client
	name    string
	service string
	query   Query
	small   bool          // asks for few observations at a time
	wait    time.Duration // of its polls, at most
	digest  string        // of the manifest in use
}

func (r *run) newReader(name, service string, query Query, wait time.Duration) *reader {
	return &reader{
		run: r, name: name, service: service, query: query, wait: wait,
		client: &http.Client{Timeout: wait + 60*time.Second, Transport: &http.Transport{DisableCompression: true}},
	}
}

func (c *reader) send(ctx context.Context, method, path string, body any) (status int, text []byte, err error) {
	var content []byte
	if body != nil {
		if content, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	n := c.run.nodes[mrand.IntN(len(c.run.nodes))]
	request, err := http.NewRequestWithContext(ctx, method, "http://"+n.public+"/api/overlay/v1/"+path, bytes.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Cache-Control", "no-store")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set(wire.HeaderCapability, c.digest)
		request.Header.Set(wire.HeaderProfile, wire.Profile)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// errAgain says that a request has no answer yet and may be sent again.
var errAgain = errors.New("no answer; ask again")

// ask sends one request and sorts the answer: a batch, a refusal, or errAgain.
func (c *reader) ask(ctx context.Context, path string, body any) (b *wire.Batch, text []byte, err error) {
	asked := time.Now()
	status, text, err := c.send(ctx, http.MethodPost, path, body)
	if err != nil {
		c.pause(ctx)
		return nil, nil, errAgain
	}
	c.run.answered("reader", time.Since(asked)-c.wait)
	if status == http.StatusOK {
		if b, err = wire.ParseBatch(text); err != nil {
			c.run.ledger.Find(Refused, "%s: a batch that is none: %v", c.name, err)
			return nil, nil, err
		}
		c.run.ledger.Disclosed(b, asked)
		return b, text, nil
	}
	e, perr := wire.ParseError(text, status)
	if perr != nil {
		c.run.ledger.Find(Refused, "%s: an answer that is none: %d %s: %v", c.name, status, text, perr)
		return nil, nil, perr
	}
	if e.Code == wire.Unavailable {
		c.run.retryable.Add(1)
		c.pause(ctx)
		return nil, nil, errAgain
	}
	return nil, nil, e
}

func (c *reader) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(10+mrand.IntN(40)) * time.Millisecond):
	}
}

// discover fetches the manifest.
func (c *reader) discover(ctx context.Context) bool {
	for ctx.Err() == nil {
		status, text, err := c.send(ctx, http.MethodGet, "capabilities", nil)
		if err == nil && status == http.StatusOK {
			m, err := wire.VerifyCapabilities(text)
			if err != nil {
				c.run.ledger.Find(Refused, "%s: a manifest that is none: %v", c.name, err)
				return false
			}
			c.digest = m.Digest()
			return true
		}
		c.pause(ctx)
	}
	return false
}

type object = map[string]any

func (c *reader) limits(wait time.Duration) object {
	observations := 1024
	if c.small {
		observations = 10 + mrand.IntN(20) // a group of the lab has nine at most
	}
	return object{"maxBytes": 4194304, "maxObservations": observations, "waitMs": wait.Milliseconds()}
}

// session is one session from its Open to its end.
type session struct {
	*reader
	record *Session
	open   object
	first  []byte // body of the first batch
	at     *wire.Batch
	before *wire.Batch // the batch before, and how at was asked for behind it
	asked  object
}

// begin opens a session; nil when ctx ended before there was one.
func (c *reader) begin(ctx context.Context) *session {
	for ctx.Err() == nil {
		if !c.discover(ctx) {
			return nil
		}
		query := object{}
		if len(c.query) > 0 {
			query = object{"match": c.query}
		}
		s := &session{reader: c, record: c.run.ledger.Begin(c.name, c.query, lives[c.service])}
		s.open = object{"version": 1, "requestId": strings.ToLower(rand.Text()), "service": c.service, "query": query, "limits": c.limits(0)}
		for ctx.Err() == nil {
			b, text, err := c.ask(ctx, "lookup/open", s.open)
			if err == nil {
				s.record.Opened(b)
				s.at, s.first = b, text
				return s
			}
			if !errors.Is(err, errAgain) {
				break // the manifest or the epoch is old, or the session ended before its answer came
			}
		}
	}
	return nil
}

// next reads behind the cursor once. done: the session is over.
func (s *session) next(ctx context.Context, wait time.Duration) (done bool) {
	ask := object{"version": 1, "session": s.at.Session, "cursor": s.at.Cursor, "limits": s.limits(wait)}
	asked := time.Now()
	b, _, err := s.ask(ctx, "lookup/read", ask)
	switch {
	case err == nil:
		s.record.Delivered(b, asked)
		s.before, s.asked, s.at = s.at, ask, b
		return false
	case errors.Is(err, errAgain):
		return ctx.Err() != nil
	}
	s.over(err)
	return true
}

func (s *session) over(err error) {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		s.record.Refused(e.Code)
	}
}

// replay reads behind the cursor before once more, without waiting.
func (s *session) replay(ctx context.Context) (done bool) {
	if s.before == nil {
		return false
	}
	limits := object{}
	for k, v := range s.asked["limits"].(object) {
		limits[k] = v
	}
	limits["waitMs"] = 0
	b, _, err := s.ask(ctx, "lookup/read", object{"version": 1, "session": s.at.Session, "cursor": s.before.Cursor, "limits": limits})
	switch {
	case err == nil:
		s.record.Again(s.at, b)
		return false
	case errors.Is(err, errAgain):
		return ctx.Err() != nil
	}
	s.over(err)
	return true
}

// repeat sends the Open again.
func (s *session) repeat(ctx context.Context) (done bool) {
	_, text, err := s.ask(ctx, "lookup/open", s.open)
	switch {
	case err == nil:
		s.record.Reopened(s.first, text)
		return false
	case errors.Is(err, errAgain):
		return ctx.Err() != nil
	}
	s.over(err)
	return true
}

// close closes the session and then asks for more, in vain.
func (s *session) close(ctx context.Context) {
	s.record.End()
	for ctx.Err() == nil {
		status, _, err := s.send(ctx, http.MethodPost, "lookup/close", object{"version": 1, "session": s.at.Session})
		if err == nil && status == http.StatusOK {
			s.dead(ctx, wire.Expired)
			return
		}
		s.pause(ctx)
	}
}

// dead reads from a session that was ended: nothing may come.
func (s *session) dead(ctx context.Context, want wire.Code) {
	for ctx.Err() == nil {
		_, _, err := s.ask(ctx, "lookup/read", object{"version": 1, "session": s.at.Session, "cursor": s.at.Cursor, "limits": s.limits(0)})
		if errors.Is(err, errAgain) {
			continue
		}
		e, ok := errors.AsType[*wire.Error](err)
		// Past its replay time a session is unknown.
		if err == nil || ok && e.Code != want && e.Code != wire.ResetRequired {
			s.run.ledger.Find(Leaked, "%s: a session that was ended answered %v, not %s", s.name, err, want)
		}
		return
	}
}

// read runs sessions one after the other until ctx ends.
func (c *reader) read(ctx context.Context) {
	defer c.client.CloseIdleConnections()
	for ctx.Err() == nil {
		s := c.begin(ctx)
		if s == nil {
			return
		}
		for done := false; !done && ctx.Err() == nil; {
			switch dice := mrand.IntN(100); {
			case dice < 10:
				done = s.replay(ctx)
			case dice < 15:
				done = s.repeat(ctx)
			case dice < 17 && s.record.Complete():
				s.close(ctx)
				done = true
			default:
				wait := time.Duration(0)
				if c.wait > 0 && mrand.IntN(4) > 0 {
					wait = c.wait
				}
				done = s.next(ctx, wait)
			}
			if c.wait == 0 {
				c.pause(ctx)
			}
		}
	}
}

// removed opens sessions, and has each removed by the operator.
func (r *run) removed(ctx context.Context) {
	c := r.newReader("removed", "ls_long", nil, 0)
	defer c.client.CloseIdleConnections()
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	for ctx.Err() == nil {
		s := c.begin(ctx)
		if s == nil {
			return
		}
		for range 3 {
			if s.next(ctx, 0) {
				return
			}
			c.pause(ctx)
		}
		s.record.End()
		status, text := o.again(http.MethodGet, "/sessions?service=ls_long", nil)
		var list struct {
			Sessions []struct{ Ref, State string }
		}
		if err := json.Unmarshal(text, &list); err != nil || status != http.StatusOK {
			r.ledger.Find(Refused, "the list of sessions: %d %s, %v", status, text, err)
			return
		}
		for _, one := range list.Sessions {
			if one.State != "open" {
				continue
			}
			if status, text := o.again(http.MethodDelete, "/sessions/"+one.Ref, nil); status != http.StatusOK && status != http.StatusNotFound {
				r.ledger.Find(Refused, "removing a session: %d %s", status, text)
			}
		}
		s.dead(ctx, wire.Unauthorized)
		for range 10 {
			c.pause(ctx)
		}
	}
}

// ring has one poll wait for a group that nothing else announces, again and again. The group is committed about when the poll goes
// to sleep.
func (r *run) ring(ctx context.Context, kind string) {
	c := r.newReader("poll-"+kind, "ls_long", Query{"kind": kind}, 7*time.Second)
	defer c.client.CloseIdleConnections()
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	for i := 0; ctx.Err() == nil; {
		s := c.begin(ctx)
		if s == nil {
			return
		}
		for !s.record.Complete() {
			if s.next(ctx, 0) {
				return
			}
		}
		for done := false; !done && ctx.Err() == nil; i++ {
			over := make(chan bool, 1)
			go func() { over <- s.next(ctx, c.wait) }()
			time.Sleep(time.Duration(mrand.IntN(250)) * time.Millisecond)
			key := fmt.Sprintf("%s-%s-%d-crash-lab", r.name, kind, i)
			coin := mint(key, Outpoint{})
			o.append(key, []Edit{{Op: Put, Outpoint: coin.point, BEEF: coin.beef, Attributes: map[string]string{"kind": kind}, Order: "bell", Context: []byte(key)}})
			done = <-over
		}
	}
}

// brief opens a session, reads it for a moment and closes it, again and again.
func (r *run) brief(ctx context.Context, name string) {
	c := r.newReader(name, "ls_short", Query{"kind": "a"}, 0)
	defer c.client.CloseIdleConnections()
	for ctx.Err() == nil {
		s := c.begin(ctx)
		if s == nil {
			return
		}
		done := false
		for range 24 {
			if done = s.next(ctx, 0); done {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !done {
			s.close(ctx)
		}
		time.Sleep(time.Duration(200+mrand.IntN(1200)) * time.Millisecond)
	}
}

// last opens one session, and reads it up to a sequence.
func (r *run) last(ctx context.Context, upTo uint64) error {
	c := r.newReader("last", "ls_short", nil, 0)
	defer c.client.CloseIdleConnections()
	for ctx.Err() == nil {
		s := c.begin(ctx)
		if s == nil {
			break
		}
		for !s.next(ctx, 0) {
			if s.record.Complete() && s.record.Through() >= upTo && s.at.Phase == wire.PhaseLive && s.at.Through == s.at.HighWater {
				return nil
			}
		}
	}
	return fmt.Errorf("the last reader never came to %d: %w", upTo, ctx.Err())
}
