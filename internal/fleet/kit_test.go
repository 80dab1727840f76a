package fleet_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(generatorVariable); text != "" {
		if err := generate(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "generator:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(e2e.Main(m))
}

// caller is an anonymous client past the balancer.
func (n *node) caller() *e2e.Caller { return e2e.NewCaller(n.t, n.base()) }

// caughtUp opens a session of everything a service shows, and reads up to the present.
func caughtUp(t *testing.T, c *e2e.Caller, service string) *wire.Batch {
	t.Helper()
	b := c.Open(service).Batch(t)
	for !b.SnapshotComplete {
		b = c.Read(b, 0).Batch(t)
	}
	return c.Read(b, 0).Batch(t)
}

// poll is a long poll under way.
type poll struct {
	t    *testing.T
	done chan e2e.Answer
	err  error // valid after done, of a poll without an answer
}

// sleeps starts a poll behind a batch at a node and returns once it sleeps there, one more than before.
func (n *node) sleeps(c *e2e.Caller, b *wire.Batch, wait time.Duration) *poll {
	n.t.Helper()
	o := n.of()
	before := o.feed().Waiters
	p := &poll{t: n.t, done: make(chan e2e.Answer, 1)}
	ctx := context.WithoutCancel(n.t.Context())
	go func() {
		a, err := c.ReadFrom(ctx, b, wait)
		p.err = err
		p.done <- a
	}()
	testkit.Eventually(n.t, "the poll sleeps", func() bool { return o.feed().Waiters > before })
	return p
}

// answer is what came, however the poll ended.
func (p *poll) answer() e2e.Answer {
	p.t.Helper()
	select {
	case a := <-p.done:
		return a
	case <-time.After(testkit.Patience):
		p.t.Fatal("the poll has no answer")
		return e2e.Answer{}
	}
}

// openBody is an Open of all rows of a service under a request id of its own.
func openBody(service string) []byte {
	var id [24]byte
	_, _ = rand.Read(id[:]) // never fails
	return fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":"%s","query":{},"limits":{"maxBytes":4194304,"maxObservations":1024,"waitMs":0}}`,
		base64.RawURLEncoding.EncodeToString(id[:]), service)
}

// open sends an Open.
func open(ctx context.Context, c *e2e.Caller, body []byte) (e2e.Answer, error) {
	return c.Do(ctx, http.MethodPost, "/overlay/v1/lookup/open", body)
}
