package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/openfence"
)

// Database is a database besides the main one, and the feeds that live in it.
type Database struct {
	Store *livefeed.Store // must be running while the provider answers
	Pool  *pgxpool.Pool   // of the same database, made with livefeed.Configure
	Feeds []string        // at least one
}

// shard is the provider on one of its databases: what a feed holds, its sessions, fences, grants, prohibitions and ledger, is
// all in the shard's, so that whatever a request does is done on one shard. The service that an Open names leads
// to it, and the session id of a Read or Close says it in the clear.
type shard struct {
	*Provider

	// Static after New.
	pool       *pgxpool.Pool
	source     *livefeed.Store
	named      []string // the feeds it was configured for; none of the main database
	feeds      map[int32]*livefeed.Feed
	fences     *openfence.Fences
	databaseID DatabaseID
	cursors    cursorSealer
	slots      *slots // a database that hangs keeps no others' requests waiting
	keeper     keeper
	alike      alike
	// What requests of the same moment ask together is of this database alone.
	gates *batcher[gateQuestion, gate]
	loads *batcher[[32]byte, loaded]
	reads *batcher[evidenceQuestion, evidenceAnswer]

	endings *endings // told to the other nodes of this database
	seen    seen
}

// stored is a digest in one of the databases. Equal digests of two are two things: each may be lost by itself.
type stored struct {
	database DatabaseID
	digest   [32]byte
}

func (p *shard) stored(digest [32]byte) stored { return stored{p.databaseID, digest} }

// seen is what was last known of a database that may be away.
type seen struct {
	mu     sync.Mutex
	epochs map[int32]string // by feed
	away   time.Time        // when it last did not answer; zero: it did
}

// openShards makes one for every database, the main one first, and settles what lives in each.
func (p *Provider) openShards(ctx context.Context, c Config, limits Quotas) error {
	all := append([]Database{{Store: c.Store, Pool: c.Pool}}, c.Databases...)
	places := make([]Place, len(all))
	for i, db := range all {
		if db.Store == nil || db.Pool == nil || i > 0 && len(db.Feeds) == 0 {
			return errors.New("lookup: a database needs Store, Pool and Feeds")
		}
		d := &shard{
			Provider: p, pool: db.Pool, source: db.Store, named: db.Feeds, feeds: make(map[int32]*livefeed.Feed),
			slots: p.quotas.slots, keeper: keeper{broken: make(map[int32]uint64)}, endings: newEndings(), seen: seen{epochs: make(map[int32]string)},
		}
		if i > 0 {
			d.slots = p.quotas.another(limits)
		}
		d.together()
		p.shards = append(p.shards, d)
		for _, feed := range db.Feeds {
			if p.homes[feed] != nil {
				return fmt.Errorf("lookup: feed %s is in two databases", feed)
			}
			p.homes[feed] = d
		}
		places[i] = Place{Pool: db.Pool, Feeds: slices.Clone(db.Feeds)}
		for _, feed := range db.Store.Feeds() {
			places[i].Feeds = append(places[i].Feeds, feed.Name())
		}
	}
	p.main = p.shards[0]
	for _, s := range c.Services {
		feed := s.Feed
		if feed == "" {
			feed = s.Name
		}
		at := slices.Index(p.shards, p.homeOf(feed))
		places[at].Feeds, places[at].Services = append(places[at].Feeds, feed), append(places[at].Services, s.Name)
	}
	for i := range places {
		slices.Sort(places[i].Feeds)
		places[i].Feeds = slices.Compact(places[i].Feeds)
	}
	if err := Settle(ctx, places[0], places[1:]...); err != nil {
		return err
	}
	for _, d := range p.shards {
		if err := d.secrets(ctx); err != nil {
			return err
		}
		p.born[d.databaseID.String()] = d
		p.kept.begin(d.label())
	}
	return p.recall(ctx)
}

// together makes what requests of the same moment share.
func (p *shard) together() {
	p.gates = &batcher[gateQuestion, gate]{
		pool: p.pool, send: p.askGates, items: gateQuestion.items,
		sent: func(n int) { p.metrics.gates.Observe(float64(n)) }, again: p.metrics.gatesAgain.Inc,
	}
	p.loads = &batcher[[32]byte, loaded]{pool: p.pool, send: p.loadAll, sent: func(int) {}, again: func() {}}
	p.reads = &batcher[evidenceQuestion, evidenceAnswer]{
		pool: p.pool, send: p.readEvidence, items: evidenceQuestion.items, sent: func(int) {}, again: func() {},
	}
}

// secrets loads what every node shares of the database, drawing it on first use.
func (p *shard) secrets(ctx context.Context) (err error) {
	if p.fences, err = openfence.Load(ctx, p.pool); err != nil {
		return err
	}
	p.databaseID, p.cursors.secret, err = identify(ctx, p.pool)
	p.cursors.idle = &sync.Pool{}
	return err
}

// recall learns where services lived that are not configured any more: their Opens are still answered as they were.
func (p *Provider) recall(ctx context.Context) error {
	rows, err := p.main.pool.Query(ctx, `select name, encode(database_id, 'hex') from home where kind = 'service' order by kind, name`)
	if err != nil {
		return fmt.Errorf("lookup: read where services live: %w", err)
	}
	for rows.Next() {
		var service, id string
		if err := rows.Scan(&service, &id); err != nil {
			rows.Close()
			return fmt.Errorf("lookup: read where services live: %w", err)
		}
		if d := p.born[id]; d != nil {
			p.served[service] = d
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("lookup: read where services live: %w", err)
	}
	return nil
}

// each asks all databases at once, and waits for all.
func (p *Provider) each(ask func(i int, d *shard)) {
	var asked sync.WaitGroup
	for i, d := range p.shards {
		asked.Go(func() { ask(i, d) })
	}
	asked.Wait()
}

// label is the database in metrics and the log.
func (p *shard) label() string {
	if p == p.main {
		return "main"
	}
	return p.databaseID.String()
}

// homeOf is the shard of a feed.
func (p *Provider) homeOf(feed string) *shard {
	if d := p.homes[feed]; d != nil {
		return d
	}
	return p.main
}

// serving is the shard on which a service's Opens are answered, whether or not it is still configured.
func (p *Provider) serving(service string) *shard {
	if s := p.services[service]; s != nil {
		return s.shard
	}
	if d := p.served[service]; d != nil {
		return d
	}
	return p.main
}

// bearing is the shard that a session id names, or nil.
func (p *Provider) bearing(id string) *shard {
	if len(id) != sessionIDSize || id[0] != modeNone && id[0] != modeBRC103 || id[sessionIDPrefix-1] != '.' {
		return nil
	}
	return p.born[id[1:sessionIDPrefix-1]]
}

const (
	// awayWithin is how long a database besides the main one may take where others are answered too, awayFor how long it is
	// not asked again there after it did not answer.
	awayWithin = 2 * time.Second
	awayFor    = 5 * time.Second
)

var errAway = errors.New("lookup: a database did not answer a moment ago")

// reach asks something on which the answer to all feeds waits. The main database is waited for; another that is away keeps
// nobody waiting for long, and not each time.
func (p *shard) reach(ctx context.Context, ask func(ctx context.Context) error) error {
	if p == p.main {
		return ask(ctx)
	}
	p.seen.mu.Lock()
	away := p.seen.away
	p.seen.mu.Unlock()
	if !away.IsZero() && time.Since(away) < awayFor {
		return errAway
	}
	within, cancel := context.WithTimeout(ctx, min(awayWithin, p.within/4))
	defer cancel()
	err := ask(within)
	if _, told := errors.AsType[*refusal](err); told {
		return err
	}
	p.seen.mu.Lock()
	defer p.seen.mu.Unlock()
	switch {
	case err == nil:
		p.seen.away = time.Time{}
	case ctx.Err() == nil:
		p.seen.away = time.Now()
		if away.IsZero() {
			p.log.WarnContext(ctx, "a database does not answer: its feeds are unavailable, and the manifest names the epochs they had", "database", p.label(), "feeds", p.named, "cause", err.Error())
		}
	}
	return err
}

// epochsOf reads the epochs of the feeds that are shown of a database, and the latest time of any. If another database than the main one is
// away they are those last seen: an Open under one that has turned since is told so.
func (p *shard) epochsOf(ctx context.Context, q livefeed.Querier, into map[*livefeed.Feed]string) (latest uint64, err error) {
	err = p.reach(ctx, func(ctx context.Context) error {
		epochs, time, err := p.source.Epochs(ctx, q, p.feedsInOrder())
		if err != nil {
			return fmt.Errorf("lookup: %w", err)
		}
		latest = time
		p.seen.mu.Lock()
		defer p.seen.mu.Unlock()
		for id, epoch := range epochs {
			into[p.feeds[id]] = epoch
			p.seen.epochs[id] = epoch
		}
		return nil
	})
	if err == nil || p == p.main {
		return latest, err
	}
	p.seen.mu.Lock()
	defer p.seen.mu.Unlock()
	for id, feed := range p.feeds {
		epoch, ok := p.seen.epochs[id]
		if !ok {
			return 0, err
		}
		into[feed] = epoch
	}
	return latest, nil
}
