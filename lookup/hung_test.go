package lookup

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
)

// strait is a way to the database that can be shut without a word: connections stand, and nothing passes.
type strait struct {
	listener net.Listener
	done     sync.WaitGroup
	mu       sync.Mutex // held while it is shut
}

// through returns the database as it is reached through a strait.
func through(t *testing.T, db *pgtest.DB) (*pgtest.DB, *strait) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	s := &strait{}
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = s.listener.Addr().String()
	s.done.Go(func() {
		for {
			near, err := s.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				defer to.Close() //nolint:errcheck // the other end learns of it
				_, _ = io.Copy(to, readerFunc(func(b []byte) (int, error) {
					n, err := from.Read(b)
					s.mu.Lock()
					defer s.mu.Unlock()
					return n, err
				}))
			}
			s.done.Go(func() { pass(far, near) })
			s.done.Go(func() { pass(near, far) })
		}
	})
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.done.Wait()
	})
	return &pgtest.DB{URL: u.String(), Pool: db.Pool}, s
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A database that stands still, or a network that forgot its connections, keeps nobody waiting for ever: what is not known in
// time is unavailable, nothing is lost by it, and once the database answers again everything goes on.
func TestADatabaseThatHangsIsUnavailable(t *testing.T) {
	t.Parallel()
	db, way := through(t, pgtest.New(t))
	n := start(t, setup{db: db})
	n.digest = n.manifest().Digest()
	again := ask{id: newID()}.body()
	b := n.open(ask{})
	n.provider.within = 300 * time.Millisecond

	way.mu.Lock()
	for name, got := range map[string]reply{
		"open":  n.request(openPath, again),
		"read":  n.request(readPath, readBody(b.Session, b.Cursor, wide)),
		"close": n.request(closePath, closeBody(b.Session)),
	} {
		if e := got.refused(t, wire.Unavailable); !e.Retryable {
			t.Errorf("%s: not to be tried again: %s", name, got.body)
		}
	}
	way.mu.Unlock()

	n.provider.within = answerWithin
	n.request(openPath, again).batch(t)
	if r := n.request(readPath, readBody(b.Session, b.Cursor, wide)); r.status != 200 {
		r.refused(t, wire.Expired) // the close may have come through
	}
}
