package livefeed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// patience is how long a test waits for what must happen. Nothing waits for it to pass.
const patience = 30 * time.Second

var testChain = Chain{Network: "test", Genesis: [32]byte{1}}

// node is one process's view of a database.
type node struct {
	*Store
	pool, writer *pgxpool.Pool
	cancel       context.CancelFunc // ends Run
	stop         func()             // and waits for it
}

type option func(*Config)

// newStore makes a store on the database without running it.
func newStore(t testing.TB, db *pgtest.DB, options ...option) *node {
	t.Helper()
	n := &node{pool: pgtest.NewPool(t, db, Configure), writer: pgtest.NewPool(t, db, Configure)}
	c := Config{Pool: n.pool, Writer: n.writer, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, o := range options {
		o(&c)
	}
	s, err := NewStore(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	n.Store = s
	return n
}

// run starts the store; it has stopped when the test's cleanup is over, or after stop.
func (n *node) run(t testing.TB) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	n.cancel = cancel
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func startStore(t testing.TB, db *pgtest.DB, options ...option) *node {
	t.Helper()
	return newStore(t, db, options...).run(t)
}

func (n *node) ensure(t testing.TB, name string) *Feed {
	t.Helper()
	f, err := n.Ensure(t.Context(), name, testChain)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// startFeed is the usual beginning: a database, a running store and a feed.
func startFeed(t testing.TB, options ...option) (*pgtest.DB, *node, *Feed) {
	t.Helper()
	db := pgtest.New(t)
	n := startStore(t, db, options...)
	return db, n, n.ensure(t, "catalogue")
}

// startQuietFeed is startFeed with nobody logging timers but the test: it holds the lock itself.
func startQuietFeed(t testing.TB, options ...option) (*pgtest.DB, *node, *Feed) {
	t.Helper()
	db := pgtest.New(t)
	stopTimers(t, db)
	n := startStore(t, db, options...)
	return db, n, n.ensure(t, "catalogue")
}

// stopTimers keeps timer workers off the first feeds of a database.
func stopTimers(t testing.TB, db *pgtest.DB) {
	t.Helper()
	if _, err := pgtest.Conn(t, db).Exec(t.Context(), "select pg_advisory_lock($1, n) from generate_series(1, 4) n", timerLockClass); err != nil {
		t.Fatal(err)
	}
}

func txid(n int) [32]byte { return sha256.Sum256(fmt.Append(nil, "tx", n)) }

func outpoint(n int) Outpoint { return Outpoint{TxID: txid(n), Index: uint32(n % 3)} }

// put is an edit whose evidence is not real: only DecodeGroup looks at it.
func put(n int, changes ...func(*Edit)) Edit {
	e := Edit{Op: Put, Outpoint: outpoint(n), BEEF: fmt.Append(nil, "beef", n), Order: fmt.Appendf(nil, "%06d", n)}
	for _, c := range changes {
		c(&e)
	}
	return e
}

func attr(name string, values ...string) func(*Edit) {
	return func(e *Edit) { e.Attributes = append(e.Attributes, Attribute{Name: name, Values: values}) }
}

func expires(t uint64) func(*Edit) { return func(e *Edit) { e.ExpiresAt = t } }

func beefOf(s string) func(*Edit) { return func(e *Edit) { e.BEEF = []byte(s) } }

func readers(ids ...byte) func(*Edit) {
	return func(e *Edit) {
		e.HasReaders = true
		for _, id := range ids {
			e.Readers = append(e.Readers, reader(id))
		}
	}
}

func reader(id byte) [33]byte { return [33]byte{2, 32: id} }

func spend(n int) Edit {
	return Edit{Op: Spend, Outpoint: outpoint(n), SpendingTxID: txid(-n), BEEF: fmt.Append(nil, "spend", n)}
}

func withdraw(n int) Edit { return Edit{Op: Withdraw, Outpoint: outpoint(n), Reason: "evicted"} }

func invalidate(id string) Edit { return Edit{Op: Invalidate, ContextID: id, Reason: "reorg"} }

// group names a proposal by its key; its digest follows from the edits.
func group(key string, edits ...Edit) *Proposal {
	h := sha256.New()
	for _, e := range edits {
		h.Write(e.BEEF)
		e.BEEF = nil
		fmt.Fprintf(h, "%+v", e)
	}
	return &Proposal{Key: "test-key-0123456-" + key, Digest: [16]byte(h.Sum(nil)), Edits: edits}
}

func (f *Feed) mustAppend(t testing.TB, p *Proposal) Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := f.Append(ctx, p)
	if err != nil {
		t.Fatalf("append %s: %v (%v)", p.Key, err, err.(*Error).cause)
	}
	return r
}

func (f *Feed) refuse(t testing.TB, want ErrorCode, p *Proposal) *Error {
	t.Helper()
	r, err := f.Append(t.Context(), p)
	if CodeOf(err) != want {
		t.Fatalf("append %s: %+v, %v; want %v", p.Key, r, err, want)
	}
	return err.(*Error)
}

// readLog reads the whole log after a position, in pages.
func (f *Feed) readLog(t testing.TB, after uint64, tag [8]byte, selectors ...Selector) []Group {
	t.Helper()
	var out []Group
	for {
		p, err := f.Log(t.Context(), f.store.cfg.Pool, LogQuery{After: after, AfterTag: tag, Selectors: selectors, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p.Groups...)
		if !p.Full {
			if p.Examined != p.Head {
				t.Fatalf("examined %d of %d without being full", p.Examined, p.Head)
			}
			return out
		}
		after, tag = p.Groups[len(p.Groups)-1].Sequence, p.Groups[len(p.Groups)-1].Tag
	}
}

// start returns the position before the first group.
func (f *Feed) start(t testing.TB) [8]byte {
	t.Helper()
	tag, err := f.TagAt(t.Context(), f.store.cfg.Pool, 0)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func (f *Feed) cut(t testing.TB) Cut {
	t.Helper()
	c, err := f.Cut(t.Context(), f.store.cfg.Pool)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scan reads a whole snapshot in pages of limit rows. Without a tag it takes that of W.
func (f *Feed) scan(t testing.TB, q PageQuery) []PageRow {
	t.Helper()
	if q.WTag == ([8]byte{}) {
		q.WTag = groupTag(t, f, q.W)
	}
	var out []PageRow
	for {
		p, err := f.Page(t.Context(), f.store.cfg.Pool, q)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p.Rows...)
		if !p.More {
			return out
		}
		if p.Last == q.After {
			t.Fatalf("the page after %d stands still", q.After)
		}
		q.After = p.Last
	}
}

func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
}

// gate is a place where a hook stops until the test lets it go on. A test that fails lets it go too.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
	goOn          func()
}

func newGate(t testing.TB) *gate {
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	g.goOn = sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(g.goOn) // before the store is stopped: cleanups run last in, first out
	return g
}

// stop stops the first who comes.
func (g *gate) stop() {
	g.once.Do(func() {
		close(g.reached)
		<-g.open
	})
}

func silent(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		t.Fatalf("%s happened", what)
	default:
	}
}

// checkStored compares the tables with the log: they must say the same at every sequence.
func (f *Feed) checkStored(t testing.TB) {
	t.Helper()
	f.checkHistory(t, f.readLog(t, 0, f.start(t)), 0)
}

// checkHistory compares the tables with the whole history, of which groups at or below the floor are forgotten: what is above it,
// and nothing else, must be there.
func (f *Feed) checkHistory(t testing.TB, history []Group, floor uint64) {
	t.Helper()
	type version struct {
		from  uint64
		state *State
	}
	rows := map[Outpoint]*version{}
	want := map[string]int{} // outpoint, from, to and state of every version that outlived its group
	listed := map[string]int{}
	evidence := map[[32]byte]bool{}
	note := func(o Outpoint, v *version, to uint64) {
		switch {
		case to <= floor:
		case v.from < to:
			want[versionText(o, v.from, to, v.state)]++
			evidence[v.state.Evidence.SHA256] = true
		default: // only the log knows it
			listed[fmt.Sprintf("%d %x", to, v.state.Evidence.SHA256)] = 1
		}
	}
	selectors := map[string]int{}
	last := uint64(0)
	for _, g := range history {
		if g.Sequence != last+1 {
			t.Fatalf("group %d follows %d", g.Sequence, last)
		}
		last = g.Sequence
		if last > floor {
			for _, sha := range recordEvidence(g.Changes) {
				evidence[[32]byte(sha)] = true
			}
		}
		for _, c := range g.Changes {
			for _, s := range append(c.Before.Selectors(), c.After.Selectors()...) {
				if last > floor {
					selectors[fmt.Sprintf("%x %d", s, g.Sequence)] = 1
				}
			}
			if c.Op == Spend && last > floor {
				listed[fmt.Sprintf("%d %x", last, c.SpendEvidence.SHA256)] = 1
			}
			if c.Op == Invalidate {
				if last > floor {
					selectors[fmt.Sprintf("%x %d", All, g.Sequence)] = 1
				}
				continue
			}
			v := rows[c.Outpoint]
			if (v == nil) != (c.Before == nil) || (v != nil && !sameState(v.state, c.Before)) {
				t.Fatalf("group %d says %v was %+v, the log before it says %+v", g.Sequence, c.Outpoint, c.Before, v)
			}
			if v != nil && c.After != nil && sameState(c.Before, c.After) {
				continue
			}
			if v != nil {
				note(c.Outpoint, v, g.Sequence)
			}
			if rows[c.Outpoint] = nil; c.After != nil {
				rows[c.Outpoint] = &version{from: g.Sequence, state: c.After}
			}
		}
	}
	present := 0
	for o, v := range rows {
		if v != nil {
			note(o, v, math.MaxInt64)
			present++
		}
	}
	got, postings := f.storedVersions(t)
	compareBags(t, "row versions", got, want)
	compareBags(t, "postings", postings, expectedPostings(want))
	f.compareTable(t, "group selectors", "select encode(selector, 'hex') || ' ' || seq from group_selector where feed_id = $1", selectors)
	f.compareTable(t, "evidence of groups", "select seq || ' ' || encode(sha, 'hex') from group_evidence where feed_id = $1", listed)
	blobs := map[string]int{}
	for sha := range evidence {
		blobs[hex.EncodeToString(sha[:])] = 1
	}
	f.compareTable(t, "evidence that something refers to", `select encode(sha, 'hex') from blob
		where encode(sha, 'hex') = any($2) and $1 > 0`, blobs, slices.Collect(maps.Keys(blobs)))
	s, err := f.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Rows != int64(present) || s.Versions != int64(len(got)) || s.Head != last || s.Floor != floor || s.Groups != int64(last-floor) {
		t.Errorf("stats %+v, want %d rows, %d versions, head %d, floor %d", s, present, len(got), last, floor)
	}
	var groups, loose int64
	if err := f.store.cfg.Pool.QueryRow(t.Context(), `select (select count(*) from feed_group where feed_id = $1),
		-- where no version of its run has its selector, above the floor
		(select count(*) from posting p where feed_id = $1 and p.valid_to::numeric - greatest(p.valid_from, $2) <> (
			select coalesce(sum(least(p.valid_to, v.valid_to)::numeric - greatest(p.valid_from, v.valid_from, $2)), 0) from row_version v
			where v.feed_id = p.feed_id and v.ver = p.ver and v.order_key = p.order_key and p.selector = any(v.selectors)
			  and v.valid_from < p.valid_to and v.valid_to > p.valid_from))`, f.id, int64(floor)).Scan(&groups, &loose); err != nil {
		t.Fatal(err)
	}
	if groups != int64(last-floor) || loose != 0 {
		t.Errorf("%d groups stored, want %d; %d postings lead to no version somewhere", groups, last-floor, loose)
	}
}

// compareTable compares what a query says, each once, with what is wanted.
func (f *Feed) compareTable(t testing.TB, what, sql string, want map[string]int, args ...any) {
	t.Helper()
	rows, err := f.store.cfg.Pool.Query(t.Context(), sql, append([]any{f.id}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, s := range list {
		got[s]++
	}
	compareBags(t, what, got, want)
}

func versionText(o Outpoint, from, to uint64, s *State) string {
	return fmt.Sprintf("%v [%d,%d) %x", o, from, to, appendState(nil, s))
}

func (f *Feed) storedVersions(t testing.TB) (versions, postings map[string]int) {
	t.Helper()
	versions, postings = map[string]int{}, map[string]int{}
	rows, err := f.store.cfg.Pool.Query(t.Context(), "select "+stateColumns+", v.valid_to, v.outpoint from row_version v where feed_id = $1", f.id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s stateScan
		var to int64
		var o []byte
		if err := rows.Scan(append(s.targets(), &to, &o)...); err != nil {
			t.Fatal(err)
		}
		v, err := s.row()
		if err != nil {
			t.Fatal(err)
		}
		if b := v.outpoint.Bytes(); string(o) != string(b[:]) {
			t.Errorf("outpoint %x of version %d is not that of its order key", o, v.ver)
		}
		versions[versionText(v.outpoint, v.from, uint64(to), v.state)]++
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	// The part of a posting that leads to a version, for each of them.
	rows, err = f.store.cfg.Pool.Query(t.Context(), `select p.selector, greatest(p.valid_from, v.valid_from), least(p.valid_to, v.valid_to), p.order_key
		from posting p join row_version v using (feed_id, ver)
		where feed_id = $1 and p.order_key = v.order_key and p.selector = any(v.selectors) and v.valid_from < p.valid_to and v.valid_to > p.valid_from`, f.id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var selector, key []byte
		var from, to int64
		if err := rows.Scan(&selector, &from, &to, &key); err != nil {
			t.Fatal(err)
		}
		_, o, err := orderOf(key)
		if err != nil {
			t.Fatal(err)
		}
		postings[fmt.Sprintf("%x %v [%d,%d)", selector, o, from, to)]++
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return versions, postings
}

func expectedPostings(versions map[string]int) map[string]int {
	out := map[string]int{}
	for text := range versions {
		span, encoded, _ := strings.Cut(text, ") ")
		b, _ := hex.DecodeString(encoded)
		for _, s := range (&recordReader{b: b}).state().Selectors() {
			out[fmt.Sprintf("%x %s)", s, span)]++
		}
	}
	return out
}

func compareBags(t testing.TB, what string, got, want map[string]int) {
	t.Helper()
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%s: %d of %s, want %d", what, got[k], k, n)
		}
	}
	for k, n := range got {
		if want[k] != n {
			t.Errorf("%s: %d of %s, want %d", what, n, k, want[k])
		}
	}
}
