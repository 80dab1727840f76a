package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

var (
	memoryRows    = flag.Int("memory.rows", 4000, "rows of TestN8_ScansAreHeldInPages")
	memoryScans   = flag.Int("memory.scans", 16, "sessions that scan them at once")
	memoryPage    = flag.Int("memory.page", 256, "rows of a page")
	memoryReaders = flag.Int("memory.readers", 20, "readers of TestN8_SlowReadersHoldUpNobody, which take a byte a second")
	memoryGroups  = flag.Int("memory.groups", 300, "groups that are committed, half of them while they read")
	memoryBodies  = flag.Int("memory.bodies", 16, "MiB of answers that a node may hold which nobody has taken")
	memoryRatio   = flag.Float64("memory.ratio", 0, "groups a second beside slow readers, of those without, below which the test fails")
)

const (
	// scanGrowth is how much a node's resident memory may grow by scans, as the 64 MB that are promised.
	scanGrowth = 64e6
	// built is how many answers the node of slow readers builds at once, each at the price of three.
	built = 8
	// memoryRounds is how often writers are measured with slow readers and without.
	memoryRounds = 5
)

// stock commits rows, as many in a group as one answer may hold.
func (f *fleet) stock(rows int, mark string) {
	f.t.Helper()
	const inGroup = 500
	var next atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for from := int(next.Add(inGroup)) - inGroup; from < rows; from = int(next.Add(inGroup)) - inGroup {
				var edits []edit
				for i := from; i < min(from+inGroup, rows); i++ {
					edits = append(edits, edit{row: fmt.Sprintf("row %09d", i), shelves: []string{"a"}, mark: mark})
				}
				if _, _, err := f.operator.append(f.t.Context(), fmt.Sprintf("memory-key-0123456789-%09d", from), edits...); err != nil {
					f.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// scanner scans a snapshot without looking at more of a page than it needs, for it shares the machine with what is measured.
type scanner struct {
	c               *e2e.Caller
	session, cursor string
	rows            int
	complete        bool
}

// scan begins a session of one row, so that pages are all of the same kind.
func (n *node) scan() (*scanner, error) {
	s := &scanner{c: n.caller()}
	body := bytes.Replace(openBody(forAll), []byte(`"maxObservations":1024`), []byte(`"maxObservations":1`), 1)
	a, err := open(n.t.Context(), s.c, body)
	if err != nil {
		return nil, err
	}
	b, err := wire.ParseBatch(a.Body)
	if err != nil {
		return nil, fmt.Errorf("%d %s: %w", a.Status, a.Body, err)
	}
	s.session, s.cursor, s.rows, s.complete = b.Session, b.Cursor, len(b.Groups), b.SnapshotComplete
	return s, nil
}

func (s *scanner) request(observations int) []byte {
	return fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":{"maxBytes":4194304,"maxObservations":%d,"waitMs":0}}`,
		strconv.Quote(s.session), strconv.Quote(s.cursor), observations)
}

// page reads the next page. Bodies are canonical: the cursor comes first.
func (s *scanner) page(ctx context.Context) error {
	a, err := s.c.Do(ctx, http.MethodPost, "/overlay/v1/lookup/read", s.request(*memoryPage))
	if err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(a.Body, []byte(`{"cursor":"`))
	cursor, _, _ := bytes.Cut(rest, []byte(`"`))
	if a.Status != http.StatusOK || !ok {
		return fmt.Errorf("%d %.200s", a.Status, a.Body)
	}
	s.cursor = string(cursor)
	s.rows += bytes.Count(a.Body, []byte(`"kind":"output"`))
	s.complete = bytes.Contains(a.Body, []byte(`"snapshotComplete":true`))
	return nil
}

// peak samples a node's memory until done is closed.
func peak(t *testing.T, n *node, done <-chan struct{}) (most float64) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		most = max(most, resident(t, n))
		select {
		case <-done:
			return most
		case <-tick.C:
		}
	}
}

// TestN8_ScansAreHeldInPages: many sessions scan all rows at once. The node holds of each what a page takes, however many rows there are.
func TestN8_ScansAreHeldInPages(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, settings{})
	one := f.nodes[0]
	began := time.Now()
	f.stock(*memoryRows, "m")
	stocked := time.Since(began)
	// What committing took is no part of what reading takes.
	one.stop()
	one.start()
	fresh := resident(t, one)
	warm, err := one.scan()
	for page := 0; err == nil && !warm.complete && page < 200; page++ {
		err = warm.page(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	before := resident(t, one)

	var all sync.WaitGroup
	var pages atomic.Int64
	began = time.Now()
	for range *memoryScans {
		all.Go(func() {
			s, err := one.scan()
			for err == nil && !s.complete {
				pages.Add(1)
				err = s.page(t.Context())
			}
			if err != nil || s.rows != *memoryRows {
				t.Errorf("a scan ended after %d of %d rows: %v", s.rows, *memoryRows, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	most := peak(t, one, done)
	took := time.Since(began)
	table(t, fmt.Sprintf("%d sessions scan %d rows at once, %d a page", *memoryScans, *memoryRows, *memoryPage), [][2]string{
		{"rows committed in", stocked.Round(time.Millisecond).String()},
		{"resident: just started / one has scanned / most of all", fmt.Sprintf("%.1f / %.1f / %.1f MB", fresh/1e6, before/1e6, most/1e6)},
		{"growth by the scans (goal 64 MB)", fmt.Sprintf("%.1f MB", (most-before)/1e6)},
		{"  since the start", fmt.Sprintf("%.1f MB", (most-fresh)/1e6)},
		{"pages / a second", fmt.Sprintf("%d / %.0f", pages.Load(), float64(pages.Load())/took.Seconds())},
	})
	if most-before > scanGrowth {
		t.Errorf("resident memory grew by %.1f MB while %d sessions scanned %d rows", (most-before)/1e6, *memoryScans, *memoryRows)
	}
}

// sluggards are readers that take a byte a second of large answers, for as long as they are let, and then ask again.
type sluggards struct {
	ctx            context.Context
	address        string
	served, told   atomic.Int64 // answers that began to come, and refusals
	first          sync.WaitGroup
	running        sync.WaitGroup
	mu             sync.Mutex
	wrong          error // guarded by mu
	requestsHeader string
}

// read is one reader's life.
func (s *sluggards) read(body []byte) {
	defer s.running.Done()
	came := sync.OnceFunc(s.first.Done)
	defer came()
	for s.ctx.Err() == nil {
		pause, err := s.once(body, came)
		if err != nil && s.ctx.Err() == nil {
			s.mu.Lock()
			s.wrong = err
			s.mu.Unlock()
			return
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
	}
}

// once asks once, and returns when to ask again.
func (s *sluggards) once(body []byte, came func()) (time.Duration, error) {
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // only read
	stop := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "POST /api/overlay/v1/lookup/read HTTP/1.1\r\nHost: overlay\r\n%sContent-Length: %d\r\n\r\n%s", s.requestsHeader, len(body), body); err != nil {
		return 0, err
	}
	first := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, first); err != nil {
		return 0, err
	}
	defer came()
	if string(first[9:]) != "200" {
		return s.refused(io.MultiReader(bytes.NewReader(first), conn))
	}
	s.served.Add(1)
	came()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := conn.Read(first[:1]); err != nil {
				return 0, nil // it was too slow, and asks again
			}
		case <-s.ctx.Done():
			return 0, nil
		}
	}
}

// refused is when a refusal says to come again.
func (s *sluggards) refused(answer io.Reader) (time.Duration, error) {
	r, err := http.ReadResponse(bufio.NewReader(answer), nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	e, err := wire.ParseError(text, r.StatusCode)
	if err != nil || !e.Retryable || e.RetryAfterMs == nil {
		return 0, fmt.Errorf("%d %s, %v", r.StatusCode, text, err)
	}
	s.told.Add(1)
	return time.Duration(*e.RetryAfterMs) * time.Millisecond, nil
}

// sluggards starts a reader for each request and returns once every one has an answer, if only that it shall come again.
func (n *node) sluggards(digest string, requests [][]byte) (s *sluggards, end func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	s = &sluggards{ctx: ctx, address: n.public}
	s.requestsHeader = fmt.Sprintf("Content-Type: application/json\r\nCache-Control: no-store\r\n%s: %s\r\n%s: %s\r\n", wire.HeaderCapability, digest, wire.HeaderProfile, wire.Profile)
	s.first.Add(len(requests))
	s.running.Add(len(requests))
	for _, body := range requests {
		go s.read(body)
	}
	s.first.Wait()
	return s, func() {
		cancel()
		s.running.Wait()
		if s.wrong != nil {
			n.t.Errorf("a slow reader: %v", s.wrong)
		}
	}
}

// TestN8_SlowReadersHoldUpNobody: many readers ask for answers of almost 4 MB and take a byte a second. The node holds what its quota
// lets it and goes on committing. Where the buffers of the system take whole answers there is little for it to hold; that it
// tells readers to come again is for the tests of lookup.
func TestN8_SlowReadersHoldUpNobody(t *testing.T) {
	t.Parallel()
	files(t, 2**memoryReaders)
	bound := *memoryBodies << 20
	f := newFleet(t, 1, settings{quotas: fmt.Sprintf("bodyBytes: %d, bodyBytesPerClient: %d, requests: %d", bound, bound, built)})
	one := f.nodes[0]
	f.stock(1000, string(bytes.Repeat([]byte("m"), 2200)))
	one.stop()
	one.start()
	o := one.of()
	capabilities, _ := one.caller().Capabilities()
	var requests [][]byte
	for range *memoryReaders {
		s, err := one.scan()
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, s.request(1024))
	}
	// One whole answer of each kind, so that what every process takes once is there before.
	each := len(one.answered(t, requests[0]))
	written := 0
	commit := func(groups int) float64 {
		t.Helper()
		began := time.Now()
		var next atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := next.Add(1); i <= int64(groups); i = next.Add(1) {
					name := fmt.Sprint("written ", written+int(i))
					if _, _, err := f.operator.append(t.Context(), fmt.Sprintf("memory-write-%020d", written+int(i)), edit{row: name, shelves: []string{"b"}, mark: "m"}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		written += groups
		return float64(groups) / time.Since(began).Seconds()
	}
	block := max(*memoryGroups/(2*memoryRounds), 1)
	commit(block)
	before := resident(t, one)
	head := o.feed().Head

	var ratios, alone, beside []float64
	var most, held float64
	var served, told int64
	for round := range memoryRounds {
		quiet := func() { alone = append(alone, commit(block)) }
		loaded := func() {
			slow, end := one.sluggards(capabilities.Digest(), requests)
			done := make(chan struct{})
			go func() {
				defer close(done)
				beside = append(beside, commit(block))
			}()
			most = max(most, peak(t, one, done))
			bytes := o.metric("overlayd_lookup_body_bytes")
			if held = max(held, bytes); bytes > float64(bound) {
				t.Errorf("%.0f bytes of answers are held; at most %d may be", bytes, bound)
			}
			end()
			served, told = served+slow.served.Load(), told+slow.told.Load()
			testkit.Eventually(t, "nothing is held of who has left", func() bool { return o.metric("overlayd_lookup_body_bytes") == 0 })
		}
		if round%2 == 0 {
			quiet()
			loaded()
		} else {
			loaded()
			quiet()
		}
		ratios = append(ratios, beside[round]/alone[round])
	}
	median := func(v []float64) float64 { v = slices.Sorted(slices.Values(v)); return v[len(v)/2] }
	table(t, fmt.Sprintf("%d readers take a byte a second of %.1f MB each while groups are committed", *memoryReaders, float64(each)/1e6), [][2]string{
		{"answers begun / told to come again", fmt.Sprintf("%d / %d", served, told)},
		{"most that is held of them (quota)", fmt.Sprintf("%.1f MB (%.1f)", held/1e6, float64(bound)/1e6)},
		{"resident: before / most", fmt.Sprintf("%.1f / %.1f MB", before/1e6, most/1e6)},
		{"groups a second: alone / beside them", fmt.Sprintf("%.0f / %.0f", median(alone), median(beside))},
		{"ratio, median of the rounds' (goal 0.9)", fmt.Sprintf("%.2f of %.2f", median(ratios), ratios)},
	})
	if got, want := o.feed().Head-head, uint64(2*memoryRounds*block); got != want {
		t.Errorf("%d groups were committed, not %d", got, want)
	}
	// The collector may let as much lie as is in use.
	if most-before > 2*float64(bound+built*3*each) {
		t.Errorf("resident memory grew by %.1f MB; %.1f MB of answers may be held", (most-before)/1e6, float64(bound)/1e6)
	}
	if got := median(ratios); got < *memoryRatio {
		t.Errorf("groups are committed at %.2f of their rate while slow readers are served, not %.2f", got, *memoryRatio)
	}
}

// answered is the whole answer to a Read.
func (n *node) answered(t *testing.T, body []byte) []byte {
	t.Helper()
	a, err := n.caller().Do(t.Context(), http.MethodPost, "/overlay/v1/lookup/read", body)
	if err != nil {
		t.Fatal(err)
	}
	if b := a.Batch(t); len(b.Groups) < 900 {
		t.Fatalf("%d groups", len(b.Groups))
	}
	return a.Body
}
