package fleet_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// follower is one source, followed with the package client for as long as its crowd lives.
type follower struct {
	name    string
	shelf   string // "": all rows
	service string
	key     *secp256k1.PrivateKey // nil: unsigned
	store   *sqlitestate.Store
	wrap    func(http.RoundTripper) http.RoundTripper // nil: the client's own transport

	w atomic.Uint64 // of its snapshot
	// guarded by crowd.mu
	at   uint64 // the last live group
	gone bool   // its run ended: it is not waited for
}

// crowd is followers at one place, each with a durable state.
type crowd struct {
	t         *testing.T
	base      string
	followers []*follower
	stores    []*sqlitestate.Store
	running   sync.WaitGroup
	stop      context.CancelFunc
	retries   atomic.Int64 // that followers were told of: requests that will be sent again

	mu sync.Mutex
	// guarded by mu
	faults []error       // what the followers' users saw: the end of a generation, or of a run
	target uint64        // every follower is to come to this group
	left   int           // followers that have not
	there  chan struct{} // closed when left is 0
}

// shelvesOf are n names of shelves.
func shelvesOf(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("shelf-%02d", i))
	}
	return out
}

// newCrowd makes n followers, spread over state files with one source for each shelf and one for all rows; every second
// file belongs to an identity of its own, whose requests are signed.
func newCrowd(t *testing.T, base string, n int, shelves []string) *crowd {
	t.Helper()
	c := &crowd{t: t, base: base}
	dir := t.TempDir()
	per := len(shelves) + 1
	for i := range n {
		number := i / per
		if i%per == 0 {
			store, err := sqlitestate.Open(t.Context(), filepath.Join(dir, fmt.Sprint("state-", number)))
			if err != nil {
				t.Fatal(err)
			}
			c.stores = append(c.stores, store)
			t.Cleanup(func() {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		f := &follower{name: fmt.Sprint("follower-", i), service: forAll, store: c.stores[number]}
		if i%per > 0 {
			f.shelf = shelves[i%per-1]
		}
		if number%2 == 1 {
			f.service, f.key = forSigned, secp256k1.PrivKeyFromBytes(fmt.Appendf(nil, "%032d", number+1))
		}
		c.followers = append(c.followers, f)
	}
	return c
}

// query is what a follower asks for.
func (f *follower) query() []byte {
	if f.shelf == "" {
		return []byte(`{}`)
	}
	return fmt.Appendf(nil, `{"match":{"shelf":"%s"}}`, f.shelf)
}

// follow starts them all. They end with the test at the latest.
func (c *crowd) follow() {
	ctx, stop := context.WithCancel(context.WithoutCancel(c.t.Context()))
	c.stop = stop
	for _, f := range c.followers {
		c.running.Go(func() {
			o := client.Options{
				BaseURL: c.base, Service: f.service, Query: f.query(), State: f.store, Key: f.key,
				On: func(_ context.Context, e client.Event) error { c.event(f, e); return nil },
			}
			if f.wrap != nil {
				o.Transport = f.wrap(&http.Transport{DisableCompression: true})
			}
			if err := client.Follow(ctx, o); !errors.Is(err, context.Canceled) {
				c.fault(fmt.Errorf("%s: %w", f.name, err))
				c.leaves(f)
			}
		})
	}
	c.t.Cleanup(c.end)
}

func (c *crowd) end() {
	c.stop()
	c.running.Wait()
}

func (c *crowd) fault(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, err)
}

func (c *crowd) event(f *follower, e client.Event) {
	switch e := e.(type) {
	case client.Opened:
		f.w.Store(e.W)
	case client.Waiting:
		c.retries.Add(1)
	case client.Ended:
		c.fault(fmt.Errorf("%s: generation %d ended: %s, %s", f.name, e.Generation, e.Code, e.Reason))
	case client.Live:
		c.came(f, e.Through)
	case client.Group:
		if !e.Snapshot {
			c.came(f, e.Sequence)
		}
	}
}

// came notes how far a follower is.
func (c *crowd) came(f *follower, to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := f.at
	f.at = max(f.at, to)
	if before < c.target && f.at >= c.target {
		c.arrived()
	}
}

// leaves stops waiting for a follower.
func (c *crowd) leaves(f *follower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.gone = true
	if f.at < c.target {
		c.arrived()
	}
}

// arrived counts one follower that is not waited for any more. The caller holds mu.
func (c *crowd) arrived() {
	if c.left--; c.left == 0 {
		close(c.there)
	}
}

// reaches returns a channel that is closed when every follower that still runs has come to a group, which must concern all of
// them.
func (c *crowd) reaches(sequence uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target, c.left, c.there = sequence, 0, make(chan struct{})
	for _, f := range c.followers {
		if f.at < sequence && !f.gone {
			c.left++
		}
	}
	if c.left == 0 {
		close(c.there)
	}
	return c.there
}

// await waits until every follower has come to a group.
func (c *crowd) await(sequence uint64, patience time.Duration) {
	c.t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	select {
	case <-c.reaches(sequence):
	case <-end.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Fatalf("%d of %d followers did not come to %d within %v; faults: %v", c.left, len(c.followers), sequence, patience, c.faults)
	}
}

// errorsSeen is what the followers' users saw so far.
func (c *crowd) errorsSeen() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faults)
}

// held ends the followers and reads what their states hold.
func (c *crowd) held() []held {
	c.t.Helper()
	c.end()
	var out []held
	for _, f := range c.followers {
		h, err := f.held(context.WithoutCancel(c.t.Context()))
		if err != nil {
			c.t.Fatalf("%s: %v", f.name, err)
		}
		out = append(out, h)
	}
	return out
}

func (f *follower) held(ctx context.Context) (held, error) {
	h := held{name: f.name, shelf: f.shelf, w: f.w.Load()}
	sources, err := f.store.Sources(ctx)
	if err != nil {
		return h, err
	}
	principal := ""
	if f.key != nil {
		principal = hex.EncodeToString(f.key.PubKey().SerializeCompressed())
	}
	at := slices.IndexFunc(sources, func(s sqlitestate.Source) bool { return s.Query == string(f.query()) && s.Principal == principal })
	if at < 0 {
		return h, errors.New("there is nothing of it in its state")
	}
	for entry, err := range f.store.Receipts(ctx, sources[at]) {
		if err != nil {
			return h, err
		}
		r := received{sequence: entry.Sequence}
		for _, o := range entry.Observations {
			s, err := read(o.Canonical)
			if err != nil {
				return h, err
			}
			r.observations = append(r.observations, s)
		}
		if entry.Snapshot {
			h.snapshot = append(h.snapshot, r)
		} else {
			h.live = append(h.live, r)
		}
	}
	for row, err := range f.store.Rows(ctx, sources[at]) {
		if err != nil {
			return h, err
		}
		if row.Present {
			h.present = append(h.present, row.TxID)
		}
	}
	slices.Sort(h.present)
	return h, nil
}

// read takes from an observation what the judge looks at.
func read(canonical []byte) (seen, error) {
	var o struct {
		Kind    string
		Payload struct {
			Evidence struct{ TxID string }
			Context  struct{ Bytes string }
			Outpoint struct{ TxID string }
			Reason   string
		}
	}
	if err := json.Unmarshal(canonical, &o); err != nil {
		return seen{}, err
	}
	mark, err := base64.StdEncoding.DecodeString(o.Payload.Context.Bytes)
	s := seen{kind: o.Kind, txid: o.Payload.Evidence.TxID, mark: string(mark), reason: o.Payload.Reason}
	if o.Kind == wire.KindWithdraw {
		s.txid = o.Payload.Outpoint.TxID
	}
	return s, err
}

// bell commits a group that concerns every follower, and waits until all have it.
func (c *crowd) bell(l *ledger, o *operator, shelves []string, number int, patience time.Duration) {
	c.t.Helper()
	key := fmt.Sprintf("fleet-bell-0123456789-%d", number)
	e := edit{row: "bell", shelves: shelves, mark: key}
	sequence, replayed, err := o.append(c.t.Context(), key, e)
	if err != nil {
		c.t.Fatal(err)
	}
	l.note(committed{sequence, key, []edit{e}}, replayed)
	c.await(sequence, patience)
}

// writer commits one to three edits of its own rows at a time until its context ends.
type writer struct {
	name    string
	shelves []string
	pause   time.Duration
	rows    map[int]bool // that are present
	marks   int
}

func newWriter(name string, shelves []string, pause time.Duration) *writer {
	return &writer{name: name, shelves: shelves, pause: pause, rows: map[int]bool{}}
}

// next is its next group: puts of rows that are there and that are not, and withdrawals.
func (w *writer) next(number int) committed {
	g := committed{key: fmt.Sprintf("fleet-writer-%s-%08d", w.name, number)}
	for i := range 1 + number%3 {
		row := (number*7 + i*11) % 40
		e := edit{row: fmt.Sprintf("%s-row-%d", w.name, row), shelves: w.shelves[row%len(w.shelves) : row%len(w.shelves)+1]}
		if w.rows[row] && (number+i)%5 == 0 {
			e.withdraw, w.rows[row] = true, false
		} else {
			w.marks++
			e.mark, w.rows[row] = fmt.Sprint(w.name, " ", w.marks), true
		}
		g.edits = append(g.edits, e)
	}
	return g
}

// write runs until ctx ends. What was sent is waited for: its outcome must be known.
func (w *writer) write(ctx context.Context, l *ledger, o *operator) error {
	for number := 0; ctx.Err() == nil; number++ {
		g := w.next(number)
		sequence, replayed, err := o.append(context.WithoutCancel(ctx), g.key, g.edits...)
		if err != nil {
			return err
		}
		g.sequence = sequence
		l.note(g, replayed)
		select {
		case <-ctx.Done():
		case <-time.After(w.pause):
		}
	}
	return nil
}
