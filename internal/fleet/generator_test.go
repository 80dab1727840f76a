package fleet_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// generatorVariable holds the orders of a process of its own that keeps polls waiting: what it costs is not the node's.
const generatorVariable = "OVERLAYD_FLEET_GENERATOR"

// orders are what a generator is to do.
type orders struct {
	Host    string        // of the node's public listener; the base URL has /api behind it
	Service string        // one that takes signed requests
	Waiters int           // each with a connection, an identity and a session of its own
	Polls   int           // of each, signed ahead of time and sent one after the other
	Wait    time.Duration // of each poll
	Ramp    time.Duration // over which the first polls are sent
}

// told is a line that a generator writes: when it is ready, and each time that every waiter has one more answer.
type told struct {
	Ready    bool
	Answered int    // polls, in all
	Bad      int    // of these, other than a quiet batch
	Word     string // about one of those
}

// waiter is one connection and what it has to say.
type waiter struct {
	*line
	polls [][]byte // whole requests
}

// line is one connection.
type line struct {
	conn net.Conn
	in   *bufio.Reader
}

// generator is the process.
type generator struct {
	orders
	digest  string // of the manifest
	waiters []*waiter

	answered, bad atomic.Int64
	mu            sync.Mutex
	word          string        // guarded by mu
	out           *json.Encoder // guarded by mu
}

// generate is the process's main: it prepares everything, says so, waits for a line, and polls until each waiter has sent all
// it has.
func generate(text string, in io.Reader, out io.Writer) error {
	g := &generator{out: json.NewEncoder(out)}
	if err := json.Unmarshal([]byte(text), &g.orders); err != nil {
		return err
	}
	if err := g.prepare(); err != nil {
		return err
	}
	g.tell(told{Ready: true})
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	began := time.Now()
	var all sync.WaitGroup
	for i, w := range g.waiters {
		// The schedule of the load: polls that end in step would be renewed in step.
		time.Sleep(time.Until(began.Add(g.Ramp * time.Duration(i) / time.Duration(g.Waiters))))
		if _, err := w.conn.Write(w.polls[0]); err != nil {
			return err
		}
		all.Go(func() { g.poll(w) })
	}
	all.Wait()
	return nil
}

func (g *generator) tell(t told) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t.Word = g.word
	_ = g.out.Encode(t) // nobody listens any more
}

// poll reads the answers of a waiter, and sends its next poll after each.
func (g *generator) poll(w *waiter) {
	for i := range w.polls {
		status, body, err := w.answer()
		if err != nil || status != http.StatusOK || !bytes.Contains(body, []byte(`"groups":[]`)) {
			g.bad.Add(1)
			g.mu.Lock()
			g.word = fmt.Sprintf("%d %s %v", status, body, err)
			g.mu.Unlock()
		}
		if i+1 < len(w.polls) {
			_, _ = w.conn.Write(w.polls[i+1]) // its answer will not come
		}
		if n := g.answered.Add(1); n%int64(g.Waiters) == 0 {
			g.tell(told{Answered: int(n), Bad: int(g.bad.Load())})
		}
	}
}

// prepare opens every session, reads it up to the present, and signs the polls.
func (g *generator) prepare() error {
	response, err := http.Get("http://" + g.Host + "/api/overlay/v1/capabilities")
	if err != nil {
		return err
	}
	packet, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return err
	}
	manifest, err := wire.VerifyCapabilities(packet)
	if err != nil {
		return err
	}
	g.digest = manifest.Digest()
	g.waiters = make([]*waiter, g.Waiters)
	// Sessions first, over a few connections: a node ends one that is quiet for minutes.
	if err := g.each(func(l *line, i int) (err error) {
		g.waiters[i], err = g.waiter(l, i)
		return err
	}); err != nil {
		return err
	}
	return g.each(func(_ *line, i int) (err error) {
		g.waiters[i].line, err = g.dial()
		return err
	})
}

// each calls do for every waiter, from several goroutines, each of which has a connection.
func (g *generator) each(do func(l *line, i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, 16)
	for k := range errs {
		all.Go(func() {
			l, err := g.dial()
			if err != nil {
				errs[k] = err
				return
			}
			defer l.conn.Close() //nolint:errcheck // it is over
			for errs[k] == nil {
				i := int(next.Add(1)) - 1
				if i >= g.Waiters {
					return
				}
				if err := do(l, i); err != nil {
					errs[k] = fmt.Errorf("waiter %d: %w", i, err)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (g *generator) dial() (*line, error) {
	conn, err := net.Dial("tcp", g.Host)
	if err != nil {
		return nil, err
	}
	return &line{conn: conn, in: bufio.NewReaderSize(conn, 512)}, nil
}

// waiter opens a session for an identity of its own, reads it up to the present, and signs its polls.
func (g *generator) waiter(l *line, i int) (*waiter, error) {
	c, err := brc104.NewClient(secp256k1.PrivKeyFromBytes(fmt.Appendf(nil, "%032d", i+1)))
	if err != nil {
		return nil, err
	}
	hello := c.Hello()
	request, err := g.request(brc104.HandshakePath, hello.Body)
	if err != nil {
		return nil, err
	}
	if err := request.Write(l.conn); err != nil {
		return nil, err
	}
	status, body, err := l.answer()
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("handshake: %d %s, %v", status, body, err)
	}
	session, err := c.Begin(hello, body)
	if err != nil {
		return nil, err
	}
	b, err := g.ask(l, session, "open", openBody(g.Service))
	for err == nil && b.Phase != wire.PhaseLive {
		b, err = g.ask(l, session, "read", g.read(b, 0))
	}
	if err != nil {
		return nil, err
	}
	w := &waiter{}
	for range g.Polls {
		// Nothing is committed, so that every answer repeats the cursor.
		poll, err := g.signed(session, "read", g.read(b, g.Wait))
		if err != nil {
			return nil, err
		}
		w.polls = append(w.polls, poll)
	}
	return w, nil
}

func (g *generator) read(b *wire.Batch, wait time.Duration) []byte {
	return fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":{"maxBytes":1048576,"maxObservations":256,"waitMs":%d}}`,
		strconv.Quote(b.Session), strconv.Quote(b.Cursor), wait.Milliseconds())
}

func (g *generator) request(path string, body []byte) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+g.Host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// signed is a whole request as bytes.
func (g *generator) signed(session *brc104.Session, endpoint string, body []byte) ([]byte, error) {
	r, err := g.request("/api/overlay/v1/lookup/"+endpoint, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set(wire.HeaderCapability, g.digest)
	r.Header.Set(wire.HeaderProfile, wire.Profile)
	if _, err := session.Sign(r, body); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = r.Write(&out)
	return out.Bytes(), err
}

func (g *generator) ask(l *line, session *brc104.Session, endpoint string, body []byte) (*wire.Batch, error) {
	request, err := g.signed(session, endpoint, body)
	if err != nil {
		return nil, err
	}
	if _, err := l.conn.Write(request); err != nil {
		return nil, err
	}
	status, answer, err := l.answer()
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d %s, %v", endpoint, status, answer, err)
	}
	return wire.ParseBatch(answer)
}

// answer is the next answer on the connection.
func (l *line) answer() (status int, body []byte, err error) {
	response, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
