package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/livefeed"
)

// Retention says how the provider forgets what it no longer promises.
type Retention struct {
	// Every is how long after a round the next one begins; 0 means 10 s, negative means never. Of all nodes on a database
	// one works, and on each of several databases another may.
	Every time.Duration
}

// Retained is what one round of [Provider.Retain] did.
type Retained struct {
	Sessions  int64 // records of sessions removed: their replayUntil has come
	Void      int64 // sessions reset because the epoch of their feed was broken
	Manifests int64
	Groups    int64 // of all feeds
	Versions  int64
	Evidence  int64
	// More says that there is more to remove now: a bound of the round was reached.
	More bool
}

const (
	retainEvery = 10 * time.Second
	// sessionBatch is how many sessions one transaction ends or removes, sessionBatches how many of those one feed gets a
	// round, compactRounds how many rounds of compaction.
	sessionBatch   = 500
	sessionBatches = 40
	compactRounds  = 40
	// manifestKept is how long after its expiry a manifest that no session names is kept, in seconds: so long a client that
	// held on to it is told that it is old (410), and not that nobody knows it. Longer than a week nobody
	// holds on to a document that is renewed every day.
	manifestKept = 7 * 24 * 3600
	// retentionLock is held by the node that works; the number is arbitrary and only ours.
	retentionLock = 0x6f76_6c64_7265_7461
)

// sessionsLook says of every feed of the database, as sessions outlive a feed's place in the configuration, at which turn its epoch was
// last broken, and whether records of its sessions may go.
const sessionsLook = `
select c.feed_id, f.broken,
       (select 1 from lookup_session s where s.feed_id = c.feed_id and s.replay_until <= t.now order by s.replay_until limit 1) is not null
from feed_clock c
cross join lateral (select * from feed f where f.id = c.feed_id offset 0) f
cross join lateral (select ` + now + ` as now) t
order by c.feed_id`

// sessionsGone removes sessions of a feed ($1), at most $2, whose replayUntil has come, whatever their state. Those that
// nobody ended still count in the ledger, until now. The fence stays: alone it means expired. A session that another
// transaction is ending is left to the next round. Rows are found along the index and removed by their place, in every plan.
const sessionsGone = `
with due as materialized (
  select s.ctid as place
  from lookup_session s
  where s.feed_id = $1 and s.replay_until <= (select ` + now + ` from feed_clock c where c.feed_id = $1)
  order by s.replay_until limit $2
  for update skip locked
), gone as (
  delete from lookup_session s using due where s.ctid = due.place
  returning s.service, s.state, s.retained
), posted as (
  insert into lookup_ledger as l (feed_id, service, changes)
  select $1, service, 1 from gone where state = 1 group by service order by service
  on conflict (feed_id, service) do update set changes = l.changes + 1,
    sessions = l.sessions - (select count(*) from gone g where g.state = 1 and g.service = l.service),
    bytes = l.bytes - (select coalesce(sum(g.retained), 0) from gone g where g.state = 1 and g.service = l.service)
  returning l.service, l.changes
)
select (select count(*) from gone), p.service, p.changes from (select 1) one left join posted p on true`

// sessionsVoid names open sessions of a feed ($1), at most $2, that were opened before its epoch was last broken: nothing they
// were promised holds, so they keep nothing back.
const sessionsVoid = `
select o.id from (
  select s.id, s.turn from lookup_session s where s.feed_id = $1 and s.state = 1 order by s.w offset 0) o
where o.turn < (select broken from feed where id = $1)
limit $2`

// horizon is the smallest watermark of a feed that a session still holds on to. The fence keeps the walk in the order of
// w: what it passes over has fallen due since the round began.
const (
	horizon = `
select o.w from (
  select s.w, s.replay_until from lookup_session s where s.feed_id = $1 and s.state = 1 order by s.w offset 0) o
where o.replay_until > (select ` + now + ` from feed_clock c where c.feed_id = $1)
limit 1`

	// horizons is the same of several feeds, null where there is none.
	horizons = `
select c.feed_id, (
  select o.w from (
    select s.w, s.replay_until from lookup_session s where s.feed_id = c.feed_id and s.state = 1 order by s.w offset 0) o
  where o.replay_until > t.now limit 1)
from unnest($1::int[]) as u(id)
cross join lateral (select * from feed_clock c where c.feed_id = u.id offset 0) c
cross join lateral (select ` + now + ` as now) t`
)

const manifestsGone = `
delete from manifest m where m.expires_at <= (select ` + manifestNow + ` - $1)
  and not exists (select from lookup_session s where s.capability = m.digest offset 0)`

// keeper is what retention remembers between rounds.
type keeper struct {
	mu     sync.Mutex       // held over a round
	broken map[int32]uint64 // turn of the last break whose sessions were reset, by feed
}

// Retain does one round of forgetting: it resets sessions of broken epochs, removes the records of sessions whose replayUntil
// has come, and manifests that nobody names, and then lets every feed go of the log and the row versions that no
// session needs any more (BRC-193 s4, s8). It looks first, for all feeds together: where there is nothing to do a round is a
// few statements, however many feeds there are. It is bounded; Retained.More asks for another round. What fails in one feed does
// not keep the others.
func (p *Provider) Retain(ctx context.Context) (Retained, error) {
	var done Retained
	var faults []error
	for _, d := range p.shards {
		there, err := d.retain(ctx)
		done.add(there)
		faults = append(faults, err)
	}
	return done, errors.Join(faults...)
}

func (r *Retained) add(o Retained) {
	r.Sessions, r.Void, r.Manifests = r.Sessions+o.Sessions, r.Void+o.Void, r.Manifests+o.Manifests
	r.Groups, r.Versions, r.Evidence = r.Groups+o.Groups, r.Versions+o.Versions, r.Evidence+o.Evidence
	r.More = r.More || o.More
}

// retain is a round in one database.
func (p *shard) retain(ctx context.Context) (Retained, error) {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	var done Retained
	var faults []error
	note := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	note(p.forgetSessions(ctx, &done))
	tag, err := p.pool.Exec(ctx, manifestsGone, manifestKept)
	if err != nil {
		note(fmt.Errorf("lookup: remove manifests: %w", err))
	}
	done.Manifests = tag.RowsAffected()
	work, err := p.compactable(ctx)
	note(err)
	for _, feed := range work {
		note(p.compact(ctx, feed, &done))
	}
	note(p.source.Vacuum(ctx))
	p.kept.count(p.label(), done, len(faults) == 0)
	return done, errors.Join(faults...)
}

func (p *shard) feedsInOrder() []*livefeed.Feed {
	feeds := make([]*livefeed.Feed, 0, len(p.feeds))
	for _, f := range p.feeds {
		feeds = append(feeds, f)
	}
	slices.SortFunc(feeds, func(a, b *livefeed.Feed) int { return int(a.ID()) - int(b.ID()) })
	return feeds
}

func (p *shard) forgetSessions(ctx context.Context, done *Retained) error {
	rows, err := p.pool.Query(ctx, sessionsLook)
	if err != nil {
		return fmt.Errorf("lookup: look for sessions that may go: %w", err)
	}
	type look struct {
		feed   int32
		broken uint64
		due    bool
	}
	looks, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (l look, err error) {
		err = r.Scan(&l.feed, &l.broken, &l.due)
		return l, err
	})
	if err != nil {
		return fmt.Errorf("lookup: look for sessions that may go: %w", err)
	}
	var faults []error
	for _, l := range looks {
		if l.broken != p.keeper.broken[l.feed] {
			faults = append(faults, p.resetVoid(ctx, l.feed, l.broken, done))
		}
		if l.due {
			faults = append(faults, p.removeOld(ctx, l.feed, done))
		}
	}
	return errors.Join(faults...)
}

// resetVoid ends the sessions that a break of the epoch left behind, once a break.
func (p *shard) resetVoid(ctx context.Context, feed int32, broken uint64, done *Retained) error {
	for range sessionBatches {
		rows, err := p.pool.Query(ctx, sessionsVoid, feed, sessionBatch)
		if err != nil {
			return fmt.Errorf("lookup: find the sessions of a broken epoch: %w", err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return fmt.Errorf("lookup: find the sessions of a broken epoch: %w", err)
		}
		list, err := p.end(ctx, p.pool, stateReset, `s.id = any($2::bytea[])`, ids)
		if err != nil {
			return fmt.Errorf("lookup: reset the sessions of a broken epoch: %w", err)
		}
		p.told(list)
		done.Void += int64(len(list))
		if len(ids) < sessionBatch {
			p.keeper.broken[feed] = broken
			return nil
		}
	}
	done.More = true
	return nil
}

func (p *shard) removeOld(ctx context.Context, feed int32, done *Retained) error {
	for range sessionBatches {
		rows, err := p.pool.Query(ctx, sessionsGone, feed, sessionBatch)
		if err != nil {
			return fmt.Errorf("lookup: remove old sessions: %w", err)
		}
		var removed int64
		var service *string
		var changes *uint64
		if _, err := pgx.ForEachRow(rows, []any{&removed, &service, &changes}, func() error {
			if service != nil {
				p.marked(feed, *service, *changes)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("lookup: remove old sessions: %w", err)
		}
		failpoint.Hit(failpoint.RetainRemoved)
		done.Sessions += removed
		p.source.Removed(sessionRows * removed)
		if removed < sessionBatch {
			return nil
		}
	}
	done.More = true
	return nil
}

// compactable are the feeds of which something may go, in their order.
func (p *shard) compactable(ctx context.Context) ([]*livefeed.Feed, error) {
	feeds := p.feedsInOrder()
	ids := make([]int32, len(feeds))
	for i, feed := range feeds {
		ids[i] = feed.ID()
	}
	rows, err := p.pool.Query(ctx, horizons, ids)
	if err != nil {
		return nil, fmt.Errorf("lookup: ask for the oldest promises: %w", err)
	}
	promised := make(map[int32]uint64, len(feeds))
	var id int32
	var w *uint64
	if _, err := pgx.ForEachRow(rows, []any{&id, &w}, func() error {
		if w != nil {
			promised[id] = *w
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("lookup: ask for the oldest promises: %w", err)
	}
	for _, feed := range feeds {
		w, held := promised[feed.ID()]
		p.promises(feed, w, held)
	}
	return p.source.Compactable(ctx, p.pool, feeds, promised)
}

// promises tells the metrics of the oldest promise of a feed.
func (p *shard) promises(feed *livefeed.Feed, w uint64, held bool) {
	if held {
		p.kept.oldest.WithLabelValues(feed.Name()).Set(float64(w))
	} else {
		p.kept.oldest.DeleteLabelValues(feed.Name())
	}
}

func (p *shard) compact(ctx context.Context, feed *livefeed.Feed, done *Retained) error {
	for range compactRounds {
		c, err := feed.Compact(ctx, p.horizon)
		if err != nil {
			return fmt.Errorf("lookup: compact feed %s: %w", feed.Name(), err)
		}
		done.Groups += c.Groups
		done.Versions += c.Versions
		done.Evidence += c.Evidence
		if !c.More {
			return nil
		}
		if c.Groups+c.Versions+c.Evidence == 0 {
			return nil // somebody holds a lock: the next round
		}
	}
	done.More = true
	return nil
}

// horizon tells the compactor how far back the feed's promises reach. It is asked behind the lock that keeps Opens out, so that
// every Open has either committed its session or not yet chosen its watermark.
func (p *shard) horizon(ctx context.Context, tx pgx.Tx, feed *livefeed.Feed) (w uint64, ok bool, err error) {
	err = tx.QueryRow(ctx, horizon, feed.ID()).Scan(&w)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("lookup: ask for the oldest promise: %w", err)
	}
	p.promises(feed, w, err == nil)
	return w, err == nil, nil
}

// retainLoop forgets in rounds while this node holds the lock. A round that fails is logged and tried again.
func (p *shard) retainLoop(ctx context.Context) {
	every := p.retention.Every
	if every == 0 {
		every = retainEvery
	}
	if every < 0 {
		return
	}
	var lock nodeLock
	defer lock.drop()
	tick := time.NewTimer(every)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		leads, err := lock.try(ctx, p.pool.Config().ConnConfig)
		var done Retained
		if leads {
			done, err = p.retain(ctx)
		} else {
			for _, feed := range p.feeds { // whoever leads knows
				p.kept.oldest.DeleteLabelValues(feed.Name())
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !failing {
				p.log.ErrorContext(ctx, "what is no longer promised could not all be removed; tried again each period", "database", p.label(), "cause", err.Error(), "period", every)
			}
			p.kept.rounds.WithLabelValues(p.label(), "failed").Inc()
		}
		failing = err != nil
		if err == nil && done.More {
			tick.Reset(0)
		} else {
			tick.Reset(every)
		}
	}
}

// nodeLock is the advisory lock that makes one node of all work. It lives on a connection of its own: a node that dies
// hands it over with the connection.
type nodeLock struct {
	conn *pgx.Conn
	held bool
}

// try reports whether this node holds the lock, taking it if it is free.
func (l *nodeLock) try(ctx context.Context, config *pgx.ConnConfig) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, retainEvery)
	defer cancel()
	if l.conn == nil {
		if l.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
			return false, fmt.Errorf("lookup: connect for retention: %w", err)
		}
	}
	if l.held {
		_, err = l.conn.Exec(ctx, `select 1`)
	} else {
		err = l.conn.QueryRow(ctx, `select pg_try_advisory_lock($1)`, int64(retentionLock)).Scan(&l.held)
	}
	if err != nil {
		l.drop()
		return false, fmt.Errorf("lookup: hold the retention lock: %w", err)
	}
	return l.held, nil
}

func (l *nodeLock) drop() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.conn.Close(ctx) // it is thrown away, whatever it says
	l.conn, l.held = nil, false
}

// keptMetrics tell what retention does.
type keptMetrics struct {
	removed *prometheus.CounterVec // by what: session, void, manifest
	rounds  *prometheus.CounterVec // by database, and outcome: done, failed
	last    *prometheus.GaugeVec   // by database
	oldest  *prometheus.GaugeVec   // by feed
}

func newKeptMetrics(r prometheus.Registerer) (*keptMetrics, error) {
	m := &keptMetrics{
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_removed_total", Help: "Records removed because nothing promises them any more, by kind: session, manifest; void counts sessions reset after a broken epoch.",
		}, []string{"kind"}),
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "overlayd_lookup_retention_rounds_total", Help: "Rounds of retention by this node, by database, and by outcome: done or failed.",
		}, []string{"database", "outcome"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "overlayd_lookup_retention_success_seconds", Help: "Unix time of this node's last round of retention that succeeded, by database; 0: there was none.",
		}, []string{"database"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "overlayd_lookup_oldest_watermark", Help: "Smallest watermark that a session of the feed is still promised, when this node last asked.",
		}, []string{"feed"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.removed, m.rounds, m.last, m.oldest} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("lookup: register metrics: %w", err)
		}
	}
	return m, nil
}

// begin shows the series of a database from the start: one in which no round has succeeded yet is seen by it.
func (m *keptMetrics) begin(database string) {
	m.last.WithLabelValues(database)
	for _, outcome := range []string{"done", "failed"} {
		m.rounds.WithLabelValues(database, outcome)
	}
}

func (m *keptMetrics) count(database string, done Retained, success bool) {
	m.removed.WithLabelValues("session").Add(float64(done.Sessions))
	m.removed.WithLabelValues("void").Add(float64(done.Void))
	m.removed.WithLabelValues("manifest").Add(float64(done.Manifests))
	if success {
		m.rounds.WithLabelValues(database, "done").Inc()
		m.last.WithLabelValues(database).SetToCurrentTime()
	}
}
