package lookup

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
)

// wireTap stands between a provider and its database and cuts a connection around a commit.
type wireTap struct {
	listener net.Listener
	target   string
	mode     atomic.Int32 // what happens to the next commit
	conns    sync.WaitGroup
}

const (
	passCommits int32 = iota
	dropCommit        // the connection ends before the database hears of it
	dropReply         // the database commits, its answer is lost
)

// tap starts one and returns the database's URL through it.
func tap(t *testing.T, db *pgtest.DB) (*wireTap, string) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	w := &wireTap{target: u.Host}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = w.listener.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	w.conns.Go(func() {
		for {
			conn, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.conns.Go(func() { w.carry(t, conn) })
		}
	})
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.conns.Wait()
	})
	return w, u.String()
}

// commit is how pgx ends a transaction: a simple query.
var commit = []byte("Q\x00\x00\x00\x0bcommit\x00")

func (w *wireTap) carry(t *testing.T, client net.Conn) {
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		t.Error(err)
		_ = client.Close()
		return
	}
	cut := func() { _, _ = client.Close(), server.Close() }
	defer cut()
	var swallow atomic.Bool
	var back sync.WaitGroup
	back.Go(func() {
		defer cut()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil || swallow.Load() { // the answer has come, so it is committed; nobody hears it
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	defer back.Wait()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			cut()
			return
		}
		if bytes.Contains(buffer[:n], commit) {
			switch w.mode.Swap(passCommits) {
			case dropCommit:
				cut()
				return
			case dropReply:
				swallow.Store(true)
			}
		}
		if _, err := io.Copy(server, bytes.NewReader(buffer[:n])); err != nil {
			cut()
			return
		}
	}
}

// TestO6_ALostCommitReplyIsResolvedByTheRetry cuts the connection to the database around the commit of an Open, both ways. The
// client is told that the outcome is not known; its retry finds what there is: the one session, or none and
// begins it.
func TestO6_ALostCommitReplyIsResolvedByTheRetry(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	db := pgtest.New(t)
	wireTap, through := tap(t, db)
	n := start(t, setup{db: &pgtest.DB{URL: through, Pool: db.Pool}, identity: key})
	m := start(t, setup{db: db, identity: key, base: n.provider.baseURL})
	m.stock(3)
	n.digest = n.capability()
	m.digest = n.digest
	for name, c := range map[string]struct {
		mode      int32
		committed int
	}{"before it arrives": {dropCommit, 0}, "after it is done": {dropReply, 1}} {
		for _, retryAt := range []*node{n, m} {
			a := ask{id: newID(), limits: few(2)}
			before := m.count("lookup_session")
			wireTap.mode.Store(c.mode)
			e := n.request(openPath, a.body()).refused(t, wire.Unavailable)
			if !e.Retryable || e.RetryAfterMs == nil {
				t.Fatalf("%s: %+v", name, e)
			}
			if wireTap.mode.Load() != passCommits {
				t.Fatalf("%s: no commit was met", name)
			}
			if got := m.count("lookup_session") - before; got != c.committed {
				t.Fatalf("%s: %d sessions", name, got)
			}
			if m.count("open_fence") != m.count("lookup_session") {
				t.Fatalf("%s: a fence without its session", name)
			}
			m.append(mint(name+retryAt.base, 0).put(genre(0), `,"order":"0"`)) // not in the snapshot that was committed
			again := retryAt.request(openPath, a.body())
			b := again.batch(t)
			head := m.headNow()
			if want := head - uint64(c.committed); b.Through != want {
				t.Fatalf("%s: W %d of head %d: another snapshot", name, b.Through, head)
			}
			if got := m.count("lookup_session") - before; got != 1 {
				t.Fatalf("%s: %d sessions after the retry", name, got)
			}
			for _, on := range []*node{n, m} {
				if r := on.request(openPath, a.body()); !bytes.Equal(r.body, again.body) {
					t.Fatalf("%s: another answer: %s", name, r.body)
				}
			}
			m.audit()
		}
	}
}

func (n *node) headNow() uint64 {
	n.t.Helper()
	cut, err := n.feed.Cut(n.t.Context(), n.pool)
	if err != nil {
		n.t.Fatal(err)
	}
	return cut.W
}
