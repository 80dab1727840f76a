package livefeed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Querier is what reads need of a connection: *pgxpool.Pool, pgx.Tx and *pgx.Conn have it.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Config is what a [Store] is made of. The caller owns the pools and closes them after [Store.Run] returned.
type Config struct {
	// Pool serves reads, and two connections of the same settings are opened beside it: one that listens, one that
	// holds the timer locks. Required.
	Pool *pgxpool.Pool
	// Writer serves the committers, at most one connection a feed at a time. It may be Pool. Required; prepare it with
	// [Configure].
	Writer *pgxpool.Pool
	// Log gets causes. Nil discards them.
	Log *slog.Logger
	// Backstop is how often all heads are read in case a notification was lost. Zero means 250 ms.
	Backstop time.Duration
	// NoListen turns notifications off: other processes' commits are then seen by the backstop alone.
	NoListen bool
	// Metrics registers the package's metrics. Nil keeps them unregistered.
	Metrics prometheus.Registerer
	// QueueBytes bounds what may wait for each feed's committer; [Feed.Submit] blocks above it. Zero means 64 MiB.
	QueueBytes int64
	// ScanRows is how many rows a page examines at most before it returns with what it has. Zero means 8192.
	ScanRows int
	// ScanBytes is how many bytes of log a read returns at most, one group more excepted. Zero means 8 MiB.
	ScanBytes int64
	// TailGroups is how many of each feed's last groups are kept in memory for [Feed.Follow], and TailBytes how many bytes they may take
	// there. Zero means 1024 groups and 8 MiB; with less than zero of either nothing is kept.
	TailGroups int
	TailBytes  int64
	// Witness is what this process has seen of the database; it serves one store at a time. [Witness.Guard] both pools with it.
	// Nil means one that begins with nothing and is kept in memory.
	Witness *Witness
}

// Defaults of Config.
const (
	defaultBackstop   = 250 * time.Millisecond
	defaultQueueBytes = 64 << 20
	defaultScanRows   = 8192
	defaultScanBytes  = 8 << 20
	defaultTailGroups = 1024
	defaultTailBytes  = 8 << 20
)

// maxFeedName bounds the name of a feed, in bytes.
const maxFeedName = 128

// keepMemory has the server's process take a block of 1 MiB and give it back. The GNU C library then keeps what a statement frees, up to
// twice that, for the next one. Else it returns to the system whatever is above 128 KiB, and a larger statement faults the same pages
// in each time: 9 to 13 of them a commit, and 28 where now are 15 at 32 groups a commit, which is 7 % of the groups a second. With another
// library it does nothing.
const keepMemory = `select octet_length(repeat('x', 1 << 20))`

// Configure sets what both pools want of a connection. Settings that only tune are kept where they are given; those that
// correctness or a hundredfold of speed depend on are not.
func Configure(c *pgxpool.Config) {
	params := c.ConnConfig.RuntimeParams
	if params == nil {
		params = map[string]string{}
		c.ConnConfig.RuntimeParams = params
	}
	for name, value := range map[string]string{
		"application_name": "overlayd",
		"random_page_cost": "1.1",
		// A process that was stopped while it held a head lock must not hold it for ever.
		"idle_in_transaction_session_timeout": "60s",
	} {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
	// Off, acknowledged groups are lost in a crash and their sequences given to others. (remote_* modes are stricter.)
	if v := params["synchronous_commit"]; v == "" || v == "off" || v == "local" {
		params["synchronous_commit"] = "on"
	}
	after := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		// It only tunes: a connection that is broken says so to whoever uses it.
		_, _ = conn.Exec(ctx, keepMemory, pgx.QueryExecModeSimpleProtocol)
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	// Every statement here is a walk along an index, or a few look-ups by key. Planned once, it stays planned, so the
	// plan must not depend on how full the tables were or whether they had statistics yet: what could
	// tempt the planner away is turned off.
	for name, value := range map[string]string{
		"plan_cache_mode":   "force_generic_plan",
		"jit":               "off",
		"enable_memoize":    "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
	} {
		params[name] = value
	}
}

// Store holds the feeds of one database in one process.
type Store struct {
	// Static after construction.
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	witness *Witness
	node    string        // names this process among the listeners
	looking chan struct{} // wakes the backstop
	hints   atomic.Pointer[func(string)]
	shown   atomic.Pointer[func([32]byte, []byte)]

	listenIdle, listenProbe time.Duration

	collector collector
	removed   atomic.Int64 // rows removed here since the last vacuum
	vacuum    vacuumState

	// mu guards what follows. It is held for no I/O and before no other lock.
	mu    sync.Mutex
	feeds map[string]*Feed
	phase phase
	start func(*Feed) // set while running: starts a feed's goroutines
}

type phase uint8

const (
	phaseNew phase = iota
	phaseRunning
	phaseStopped
)

// NewStore checks the configuration, the database's settings, and whether the database is the one that the witness has seen.
// It starts nothing: see [Store.Run].
func NewStore(ctx context.Context, c Config) (*Store, error) {
	if c.Pool == nil || c.Writer == nil {
		return nil, errors.New("livefeed: Config.Pool and Config.Writer are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Backstop <= 0 {
		c.Backstop = defaultBackstop
	}
	if c.QueueBytes <= 0 {
		c.QueueBytes = defaultQueueBytes
	}
	if c.ScanRows <= 0 {
		c.ScanRows = defaultScanRows
	}
	if c.ScanBytes <= 0 {
		c.ScanBytes = defaultScanBytes
	}
	if c.TailGroups == 0 {
		c.TailGroups = defaultTailGroups
	}
	if c.TailBytes == 0 {
		c.TailBytes = defaultTailBytes
	}
	var durable string
	if err := c.Writer.QueryRow(ctx, "show synchronous_commit").Scan(&durable); err != nil {
		return nil, fmt.Errorf("livefeed: ask the database for synchronous_commit: %w", err)
	}
	if durable == "off" {
		return nil, errors.New("livefeed: synchronous_commit is off for the writer's connections, so acknowledged groups could be lost: turn it on")
	}
	if c.Witness == nil {
		c.Witness, _ = OpenWitness("", c.Log) // no file, no error
	}
	m, err := newMetrics(c.Metrics, c.Pool, c.Writer, c.Witness)
	if err != nil {
		return nil, fmt.Errorf("livefeed: register metrics: %w", err)
	}
	s := &Store{cfg: c, log: c.Log, metrics: m, witness: c.Witness, node: rand.Text(), feeds: map[string]*Feed{}, looking: make(chan struct{}, 1),
		listenIdle: listenIdle, listenProbe: listenProbe}
	s.witness.attach(s.adopt)
	if err := s.Verify(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

const (
	feedInsert = `insert into feed (name, network, genesis, epoch) values ($1, $2, $3, $4) on conflict (name) do nothing returning id`
	feedFind   = `select f.id, f.network, f.genesis from feed f where f.name = $1`
)

// Ensure opens the feed, and creates it with a random epoch if it is not there. A feed's chain is fixed for its life:
// asking for another is an error. It may be called while the store runs.
func (s *Store) Ensure(ctx context.Context, name string, chain Chain) (*Feed, error) {
	if name == "" || len(name) > maxFeedName || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("livefeed: a feed's name has 1 to 128 bytes and no U+0000")
	}
	if f := s.Feed(name); f != nil {
		return f, f.sameChain(chain)
	}
	f := newFeed(s, name)
	err := pgx.BeginFunc(ctx, s.cfg.Writer, func(tx pgx.Tx) error {
		tag := make([]byte, 8)
		rand.Read(tag)
		var id int32
		err := tx.QueryRow(ctx, feedInsert, name, chain.Network, chain.Genesis[:], newEpoch()).Scan(&id)
		switch {
		case err == nil:
			b := &pgx.Batch{}
			b.Queue("insert into feed_head (feed_id, tag) values ($1, $2)", id, tag)
			b.Queue("insert into feed_floor (feed_id, tag) values ($1, $2)", id, tag)
			b.Queue("insert into feed_clock (feed_id) values ($1)", id)
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		// A lost race shows the winner's row: this is a later statement.
		var genesis []byte
		if err := tx.QueryRow(ctx, feedFind, name).Scan(&f.id, &f.chain.Network, &genesis); err != nil {
			return err
		}
		f.chain.Genesis = [32]byte(genesis)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("livefeed: open feed %q: %w", name, err)
	}
	if err := f.sameChain(chain); err != nil {
		return nil, err
	}
	s.witness.use(name, f.id)
	if err := s.Verify(ctx); err != nil {
		return nil, err
	}
	seen := s.witness.of(name)
	f.hub.begin(seen.broken, seen.head)
	f.tail.begin(seen.broken, seen.head, seen.tag)

	s.mu.Lock()
	defer s.mu.Unlock()
	if winner := s.feeds[name]; winner != nil {
		return winner, nil
	}
	s.feeds[name] = f
	s.metrics.begin(name)
	switch s.phase {
	case phaseRunning:
		s.start(f)
	case phaseStopped:
		f.queue.close()
	}
	return f, nil
}

func (f *Feed) sameChain(chain Chain) error {
	if f.chain != chain {
		return fmt.Errorf("livefeed: feed %q holds outputs of chain %s (genesis %x), not of %s (genesis %x): use another feed name or the feed's own chain",
			f.name, f.chain.Network, f.chain.Genesis, chain.Network, chain.Genesis)
	}
	return nil
}

// Feed returns an ensured feed, or nil.
func (s *Store) Feed(name string) *Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feeds[name]
}

// Feeds returns the ensured feeds by name.
func (s *Store) Feeds() []*Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.feeds), func(a, b *Feed) int { return strings.Compare(a.name, b.name) })
}

// Run is the store's life: the committer and the wake-up of every feed, the listener, the backstop and the timer worker
// run until ctx ends. Then commits under way are finished, what still waits is refused with Unavailable,
// the witness is saved, and Run returns once nothing of ours runs. It can be called once.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	s.mu.Lock()
	if s.phase != phaseNew {
		s.mu.Unlock()
		return errors.New("livefeed: a store runs once")
	}
	s.phase = phaseRunning
	s.start = func(f *Feed) {
		wg.Go(func() { f.commitLoop(ctx) })
		wg.Go(func() { f.followLoop(ctx) })
	}
	for _, f := range s.feeds {
		s.start(f)
	}
	s.mu.Unlock()

	if !s.cfg.NoListen {
		wg.Go(func() { s.listenLoop(ctx) })
	}
	wg.Go(func() { s.backstopLoop(ctx) })
	wg.Go(func() { s.timerLoop(ctx) })
	wg.Go(func() { s.witness.keep(ctx) })

	<-ctx.Done()
	s.mu.Lock()
	s.phase, s.start = phaseStopped, nil
	s.mu.Unlock()
	wg.Wait()
	return s.witness.save()
}

// adopt takes what a check saw of a feed.
func (s *Store) adopt(name string, is sight) {
	if f := s.Feed(name); f != nil && f.id == is.id {
		f.see(is.broken, is.head)
	}
}

// pause waits for d or the end of ctx, and reports whether ctx still runs.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
