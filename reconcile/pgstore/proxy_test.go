package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/reconcile"
)

// loss says how a proxy loses the next COMMIT.
type loss int

const (
	none       loss = iota
	lostReply       // it reaches the server, which commits; its answer is dropped and the client cut off
	lostCommit      // it does not reach the server; both are cut off
	late            // the client is cut off; the COMMIT arrives when it is released
)

// simpleCommit is the message that pgx sends.
var simpleCommit = []byte("Q\x00\x00\x00\x0bcommit\x00")

// proxy stands between a pool and the server.
type proxy struct {
	t       testing.TB
	server  string
	listen  net.Listener
	release chan struct{} // lets a late COMMIT go
	arrived chan struct{} // closed when it went and the server has had its say

	mu    sync.Mutex
	next  loss
	conns []net.Conn
	work  sync.WaitGroup
}

func newProxy(t testing.TB, db *pgtest.DB) (*proxy, *pgxpool.Pool) {
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: u.Host, listen: listen, release: make(chan struct{}), arrived: make(chan struct{})}
	u.Host = listen.Addr().String()
	p.work.Go(p.accept)
	t.Cleanup(func() {
		_ = listen.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.work.Wait()
	})
	return p, pgtest.NewPool(t, &pgtest.DB{URL: u.String()}) // closed before the proxy
}

func (p *proxy) lose(l loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = l
}

func (p *proxy) take() (l loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, p.next = p.next, none
	return l
}

func (p *proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			p.t.Error(err)
			_ = client.Close()
			return
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		answers := make(chan struct{}) // closed when the answers of the server matter no more
		over := make(chan struct{})    // closed when there will be none
		p.work.Go(func() { defer close(over); p.answer(client, server, answers) })
		p.work.Go(func() { p.ask(client, server, answers, over) })
	}
}

// ask carries what the client says. A message of few bytes that is written alone
// arrives alone on this machine.
func (p *proxy) ask(client, server net.Conn, answers, over chan struct{}) {
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		l := none
		if bytes.Contains(buf[:n], simpleCommit) {
			l = p.take()
		}
		switch l {
		case lostCommit:
			_ = client.Close()
			return
		case lostReply:
			close(answers) // from here on answer only reads
		case late:
			_ = client.Close()
			<-p.release
			close(answers)
		}
		_, err = server.Write(buf[:n])
		if l == late {
			<-over
			close(p.arrived)
			return
		}
		if err != nil {
			return
		}
	}
}

// answer carries what the server says, until its answers are lost: then it waits
// for the one to COMMIT, and cuts the client off.
func (p *proxy) answer(client, server net.Conn, answers chan struct{}) {
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-answers:
			if bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
				return
			}
		default:
			// To a client that was cut off while its COMMIT is held nothing can be
			// said any more; what matters is still to come.
			_, _ = client.Write(buf[:n])
		}
	}
}

func TestR8_LostReplyOnPostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	p, pool := newProxy(t, db)
	b := open(t, pool)
	put(t, b, "a", "1")

	p.lose(lostReply)
	if err := try(t.Context(), b, "a", "2"); !errors.Is(err, reconcile.ErrUnknown) {
		t.Fatalf("a lost reply: %v", err)
	}
	if got := get(t, b, "a"); got != "2" {
		t.Errorf("committed, and a is %q", got)
	}
	put(t, b, "a", "3")

	p.lose(lostCommit)
	if err := try(t.Context(), b, "a", "4"); !errors.Is(err, reconcile.ErrUnknown) {
		t.Fatalf("a lost commit: %v", err)
	}
	if got := get(t, b, "a"); got != "3" {
		t.Errorf("not committed, and a is %q", got)
	}
	put(t, b, "a", "4")
}

// TestR8_ALateCommitDoesNotOvertakeTheQuestion: the COMMIT of a client that was
// cut off is still on its way while that client asks what became of it.
func TestR8_ALateCommitDoesNotOvertakeTheQuestion(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"it arrives while the question waits": true, "it arrives too late": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.NewEmpty(t)
			p, pool := newProxy(t, db)
			b := open(t, pool)
			put(t, b, "a", "1")
			p.lose(late)
			if err := try(t.Context(), b, "a", "2"); !errors.Is(err, reconcile.ErrUnknown) {
				t.Fatalf("cut off: %v", err)
			}
			type answer struct {
				value string
				err   error
			}
			answers := make(chan answer, 1)
			ctx := t.Context()
			go func() {
				value, err := read(ctx, b, "a")
				answers <- answer{value, err}
			}()
			if arrives {
				testkit.Eventually(t, "a question that waits for the lock", func() bool {
					var waiting int
					err := db.Pool.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&waiting)
					return err == nil && waiting > 0
				})
				close(p.release)
				<-p.arrived
			}
			got := <-answers
			want := map[bool]string{true: "2", false: "1"}[arrives]
			if got.err != nil || got.value != want {
				t.Fatalf("the question is answered with %q, %v; want %q", got.value, got.err, want)
			}
			if !arrives {
				close(p.release)
				<-p.arrived
			}
			if again := get(t, b, "a"); again != want {
				t.Errorf("asked again, a is %q", again)
			}
			put(t, b, "a", "3")
			if again := get(t, b, "a"); again != "3" {
				t.Errorf("the store does not go on: %q", again)
			}
		})
	}
}

// TestP3_AnOpenWaits for a commit that somebody else left under way.
func TestP3_AnOpenWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	p, pool := newProxy(t, db)
	put(t, open(t, pool), "a", "1")
	lost := open(t, pool)
	p.lose(late)
	if err := try(t.Context(), lost, "a", "2"); !errors.Is(err, reconcile.ErrUnknown) {
		t.Fatalf("cut off: %v", err)
	}
	values := make(chan string, 1)
	go func() { values <- get(t, open(t, db.Pool), "a") }()
	testkit.Eventually(t, "an open that waits for the lock", func() bool {
		var waiting int
		err := db.Pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting > 0
	})
	close(p.release)
	if got := <-values; got != "2" {
		t.Errorf("a is %q", got)
	}
}

// TestP3_AQuestionCanBeGivenUp: waiting for a lost commit ends with the context.
func TestP3_AQuestionCanBeGivenUp(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	p, pool := newProxy(t, db)
	b := open(t, pool)
	p.lose(late)
	if err := try(t.Context(), b, "a", "2"); !errors.Is(err, reconcile.ErrUnknown) {
		t.Fatalf("cut off: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := read(ctx, b, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	close(p.release)
	<-p.arrived
	if got := get(t, b, "a"); got != "2" {
		t.Errorf("a is %q", got)
	}
}

// TestR8_ALostReplyIsSettledByTheKey: the engine over a connection that loses the
// answer, the commit, or the time between takes each mutation once.
func TestR8_ALostReplyIsSettledByTheKey(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]loss{"the answer": lostReply, "the commit": lostCommit, "the time between": late} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, pool := newProxy(t, pgtest.NewEmpty(t))
			ctx := t.Context()
			store, err := reconcile.Open(ctx, open(t, pool), reconcile.Options{Partition: partition})
			if err != nil {
				t.Fatal(err)
			}
			source, err := store.Source(ctx, reconcile.SourceKey{Kind: "test"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.Begin(ctx, source, reconcile.Attach{}); err != nil {
				t.Fatal(err)
			}
			receive := func(n uint64) (reconcile.Committed, error) {
				return reconcile.Settle(ctx, store, reconcile.Receive{Context: "genesis", Batch: reconcile.Batch{
					Source: source, Generation: 1, Scope: []byte(`{}`), Phase: reconcile.PhaseSnapshot, Through: 7, HighWater: 7,
					Provenance: reconcile.Provenance{Adapter: "test", Authentication: "configured-transport", ReceivedAt: n},
					Groups:     []reconcile.Group{{ID: string('a' + rune(n)), Sequence: 7, Observations: []reconcile.Observation{{ID: string('o' + rune(n)), Kind: "withdraw", Canonical: []byte(`{}`), Effect: reconcile.Absent}}}},
				}})
			}
			for n := range uint64(3) {
				if n == 1 {
					p.lose(l)
				}
				c, err := receive(n)
				if err != nil || !c.Took() || c.Revision.Received != n+1 {
					t.Fatalf("receive %d: %+v, %v", n, c, err)
				}
				if n == 1 && l == late { // only now does it get there
					close(p.release)
					<-p.arrived
				}
			}
			if at, err := store.Revision(ctx); err != nil || at.Received != 3 {
				t.Errorf("%+v, %v; want 3 received", at, err)
			}
			if found, err := store.Audit(ctx); err != nil || len(found) > 0 {
				t.Errorf("%v, %v", found, err)
			}
		})
	}
}
