package livefeed

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// live is the valid_to of a row version that has not ended. SQL texts spell it out, because the planner must see it.
const live = math.MaxInt64

// maxSequence bounds sequences and times: they are kept as bigint, and the last one means "live".
const maxSequence = math.MaxInt64 - 1

// Feed is one ordered log and the rows it builds. Its methods may be called from any goroutine.
type Feed struct {
	// Static after construction.
	store *Store
	name  string
	id    int32
	chain Chain
	hooks hooks

	queue      queue
	hub        hub
	tail       tail
	compaction compaction

	// writer is the backend process id of the committer's connection while a transaction of ours is on it, else 0: the
	// listener leaves such notifications to the committer, which publishes without reading anything.
	writer atomic.Uint32
	// committing is closed when the groups that the committer has taken are committed and announced, or are not; nil: it has none.
	committing atomic.Pointer[chan struct{}]
	// nudged wakes followLoop to look at what is to be announced.
	nudged chan struct{}
}

// hooks let tests stop the feed at a point that matters. They are nil in production.
type hooks struct {
	planned   func()                  // the transaction's writes are planned, none is sent
	sent      func(pid uint32)        // the writes and the commit are on their way, no answer was read
	committed func(last uint64) error // committed, nobody was woken yet; an error stands for an answer that was lost
	horizon   func()                  // the compactor knows which watermarks are promised, and holds its lock
	turned    func() error            // a rotation is committed; an error stands for an answer that was lost
	mute      bool                    // benchmarks: commits are announced to nobody, neither here nor elsewhere
}

func newFeed(s *Store, name string) *Feed {
	f := &Feed{store: s, name: name, nudged: make(chan struct{}, 1)}
	f.queue.init(s.cfg.QueueBytes)
	f.hub.init(func(n int) { s.metrics.waiters.Add(float64(n)) }, s.metrics.wakes.WithLabelValues(name))
	f.tail.init(s.cfg.TailGroups, s.cfg.TailBytes,
		[2]prometheus.Gauge{s.metrics.tailGroups.WithLabelValues(name), s.metrics.tailBytes.WithLabelValues(name)})
	return f
}

// Committing is closed when what this process is committing now is committed and announced, or has failed; nil when it is committing
// nothing. Who is about to look at the log, and has time, sees more of it then.
func (f *Feed) Committing() <-chan struct{} {
	if c := f.committing.Load(); c != nil {
		return *c
	}
	return nil
}

// Name returns the feed's name.
func (f *Feed) Name() string { return f.name }

// ID returns the feed's number in its database.
func (f *Feed) ID() int32 { return f.id }

// Chain returns the chain of the feed's outputs.
func (f *Feed) Chain() Chain { return f.chain }

// Stats describes a feed for its operator.
type Stats struct {
	Feed, Epoch string
	Head, Floor uint64
	Rows        int64 // rows present
	Versions    int64 // row versions retained
	Groups      int64 // groups retained
	Waiters     int64 // of this process
	DueTimers   int64 // rows past their deadline that are not logged yet; counted up to 100 000
}

const feedStats = `
select f.epoch, h.head, fl.floor, h.live, h.versions - fl.removed,
       (select count(*) from (
          select from row_version v
          where v.feed_id = $1 and v.valid_to = 9223372036854775807 and v.expires_at is not null and v.expires_at <= t.now
          order by v.expires_at, v.order_key limit 100000) due)
from feed f
join feed_head h on h.feed_id = f.id
join feed_floor fl on fl.feed_id = f.id
join feed_clock c on c.feed_id = f.id
cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
where f.id = $1`

// Stats reads them. Its cost does not grow with the feed.
func (f *Feed) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Feed: f.name, Waiters: int64(f.hub.waiting())}
	var head, floor int64
	err := f.store.cfg.Pool.QueryRow(ctx, feedStats, f.id).Scan(&s.Epoch, &head, &floor, &s.Rows, &s.Versions, &s.DueTimers)
	if err != nil {
		return Stats{}, fmt.Errorf("livefeed: stats of feed %q: %w", f.name, err)
	}
	s.Head, s.Floor, s.Groups = uint64(head), uint64(floor), head-floor
	return s, nil
}
