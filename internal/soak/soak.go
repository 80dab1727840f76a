package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// Config says how long and how much. Zero fields mean what stands beside them.
type Config struct {
	URL      string        // of an empty database, as its owner
	Time     time.Duration // of the measured run: 3 minutes
	WarmUp   time.Duration // before it: 30 seconds
	Every    time.Duration // between lines of the table: 10 seconds
	Writers  int           // 8
	Sessions int           // at a time: 50
	Rows     int           // live all the time: 20000
	Genres   int           // a session that asks for one sees so many times fewer rows: 20
	Whole    int           // one session in so many asks for all rows: 25
	Pause    time.Duration // of a writer after each group: none
	Out      io.Writer     // gets the table
	Log      *slog.Logger  // nil: nowhere
}

func (c *Config) fill() {
	set := func(to *int, otherwise int) {
		if *to == 0 {
			*to = otherwise
		}
	}
	for to, otherwise := range map[*time.Duration]time.Duration{&c.Time: 3 * time.Minute, &c.WarmUp: 30 * time.Second, &c.Every: 10 * time.Second} {
		if *to == 0 {
			*to = otherwise
		}
	}
	set(&c.Writers, 8)
	set(&c.Sessions, 50)
	set(&c.Rows, 20_000)
	set(&c.Genres, 20)
	set(&c.Whole, 25)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
}

const (
	feedName    = "soak"
	serviceName = "ls_soak"
	// A session follows for up to followTime after its scan, and is closed then.
	followTime = 12 * time.Second
	// On a slow machine a scan takes long.
	sessionSeconds = 900
	replaySeconds  = 10
)

// soak is one run.
type soak struct {
	Config
	pool    *pgxpool.Pool
	store   *livefeed.Store
	feed    *livefeed.Feed
	handler http.Handler
	digest  string // of the manifest
	rows    []*row
	numbers map[string]int // of rows, by txid

	groups, live, sessions, compared, retried atomic.Int64
	latency                                   atomic.Pointer[latencies] // of pages, where they are counted now
	mu                                        sync.Mutex
	faults                                    []error
}

// Run runs it. What it measured is in the report, also when the error says what was wrong.
func Run(ctx context.Context, c Config) (Report, error) {
	c.fill()
	s := &soak{Config: c, numbers: map[string]int{}}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	stop, err := s.start(ctx, &running)
	if err != nil {
		return Report{}, err
	}
	defer stop()
	return s.run(ctx)
}

// start migrates the database and brings a provider up on it.
func (s *soak) start(ctx context.Context, running *sync.WaitGroup) (stop func(), err error) {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	err = schema.Migrate(ctx, conn, nil)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return nil, err
	}
	pools := make([]*pgxpool.Pool, 2)
	for i, conns := range []int32{int32(8 + 4*runtime.NumCPU()), 2} {
		cfg, err := pgxpool.ParseConfig(s.URL)
		if err != nil {
			return nil, err
		}
		livefeed.Configure(cfg)
		cfg.MaxConns = conns
		if pools[i], err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
			return nil, err
		}
	}
	s.pool = pools[0]
	if s.store, err = livefeed.NewStore(ctx, livefeed.Config{Pool: pools[0], Writer: pools[1], Log: s.Log}); err != nil {
		return nil, err
	}
	identity, err := ec.NewPrivateKey()
	if err != nil {
		return nil, err
	}
	provider, err := lookup.New(ctx, lookup.Config{
		Store: s.store, Pool: s.pool, BaseURL: base, LocalDevelopment: true, Identity: identity, Log: s.Log,
		Chain: livefeed.Chain{Network: "soak"},
		Services: []lookup.Service{{
			Name: serviceName, Feed: feedName, RulesParameters: json.RawMessage(`{"attributes":["genre"]}`),
			SessionSeconds: sessionSeconds, ReplaySeconds: replaySeconds, MaxRequestBytes: 65536, MaxResponseBytes: wire.MaxResponseBytes,
			MaxObservations: wire.MaxObservations, MaxWaitMs: 25_000,
		}},
		Retention: lookup.Retention{Every: time.Second},
		Quotas:    lookup.Quotas{OpensPerSecond: 1000, OpenBurst: 1000},
	})
	if err != nil {
		return nil, err
	}
	s.feed, s.handler = s.store.Feed(feedName), provider.Echo()
	for _, run := range []func(context.Context) error{s.store.Run, provider.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				s.fault(err)
			}
		})
	}
	status, body := s.get(ctx, "/overlay/v1/capabilities")
	manifest, err := wire.VerifyCapabilities(body)
	if err != nil {
		return nil, fmt.Errorf("the manifest: %d: %w", status, err)
	}
	s.digest = manifest.Digest()
	return provider.Stop, nil
}

func (s *soak) fault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) < 20 {
		s.faults = append(s.faults, err)
	}
}

func (s *soak) run(ctx context.Context) (Report, error) {
	r := Report{Config: s.Config, load: &latencies{}}
	if err := s.fillRows(ctx); err != nil {
		return r, fmt.Errorf("list the rows: %w", err)
	}
	if err := s.idle(ctx, &r.Idle); err != nil {
		return r, err
	}

	load, stop := context.WithCancel(ctx)
	defer stop()
	var working sync.WaitGroup
	s.latency.Store(&latencies{})
	for i := range s.Writers {
		working.Go(func() { s.write(load, i) })
	}
	for i := range s.Sessions {
		working.Go(func() { s.visit(load, i) })
	}
	r.header(s.Out)
	began := time.Now()
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	var last sample
	for time.Since(began) < s.WarmUp+s.Time && ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-tick.C:
		}
		now, err := s.sample(ctx, time.Since(began))
		if err != nil {
			s.fault(err)
			break
		}
		pages := s.latency.Swap(&latencies{})
		now.pages = pages.summary()
		if now.at > s.WarmUp {
			r.load.add(pages)
		}
		now.rate = float64(now.groups-last.groups) / (now.at - last.at).Seconds()
		r.samples = append(r.samples, now)
		r.line(s.Out, now)
		last = now
	}
	stop()
	working.Wait()
	r.Load = r.load.summary()
	if err := s.idle(ctx, &r.After); err != nil {
		return r, err
	}
	r.Compared, r.Sessions, r.Live = s.compared.Load(), s.sessions.Load(), s.live.Load()
	r.judge()
	s.mu.Lock()
	defer s.mu.Unlock()
	return r, errors.Join(append(s.faults, r.faults...)...)
}

// idle reads pages with nothing else going on.
func (s *soak) idle(ctx context.Context, to *summary) error {
	l := &latencies{}
	s.latency.Store(l)
	for i := range 2 * s.Genres {
		v := &visitor{soak: s, genre: i % s.Genres, whole: i%s.Whole == 0}
		if err := v.snapshot(ctx); err != nil {
			return fmt.Errorf("pages without load: %w", err)
		}
		if err := v.leave(ctx); err != nil {
			return err
		}
	}
	*to = l.summary()
	return ctx.Err()
}
