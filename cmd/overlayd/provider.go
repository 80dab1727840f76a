package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/httpserve"
	"github.com/overlayd/overlayd/internal/operator"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// provider is what serve and dev run.
type provider struct {
	config   *config.Config // validated
	identity *ec.PrivateKey
	token    string
	log      *slog.Logger

	// Bound already, so that ports are final; run closes them.
	public, private *httpserve.Server

	// fill, when set, is called with the running feeds before anything is served.
	fill func(ctx context.Context, store *livefeed.Store) error
	// demo, when set, answers at /demo/ on the public listener.
	demo http.Handler
	// ready is called once requests are answered.
	ready func() error
	// exit ends the process when stopping takes too long; see stopGrace. Nil: never.
	exit func(code int)
	// failed gives a failure of something run does not own, such as dev's Postgres.
	failed <-chan error
}

// stopGrace is how long after shutdownSeconds an orderly stop may take. Only a database that neither answers nor closes its
// connections takes longer; then the process ends as if it had been killed, which loses nothing.
const stopGrace = 15 * time.Second

// listen binds both listeners of a configuration.
func listen(ctx context.Context, c *config.Config, log *slog.Logger) (public, private *httpserve.Server, err error) {
	drain := time.Duration(c.ShutdownSeconds) * time.Second
	public, err = httpserve.Listen(ctx, httpserve.Config{
		Name: "public", Addr: c.Listen, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, Log: log, Drain: drain,
	})
	if err != nil {
		return nil, nil, err
	}
	private, err = httpserve.Listen(ctx, httpserve.Config{Name: "operator", Addr: c.Operator.Listen, Log: log, Drain: drain})
	if err != nil {
		return nil, nil, errors.Join(err, public.Close())
	}
	return public, private, nil
}

// run serves until ctx ends or something fails, then stops everything it
// started, in the order doc.go gives: every defer below is one step of it, the
// last one first.
func (p *provider) run(ctx context.Context) (err error) {
	var late *time.Timer
	defer func() {
		if late != nil {
			late.Stop()
		}
	}()
	// life ends at the first failure of anything, or with ctx.
	life, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// What is stopped later than the signal must not be ended by it.
	after := context.WithoutCancel(ctx)
	served := false
	defer func() {
		if !served {
			err = errors.Join(err, p.public.Close(), p.private.Close())
		}
	}()

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())

	dbs, err := p.openDatabases(life, registry)
	defer dbs.close() // step 6
	if err != nil {
		return err
	}
	feeds := background(after, "the feeds", dbs.run, fail)
	defer func() { err = errors.Join(err, feeds.stop()) }() // step 5
	chain, err := chainOf(p.config.Chain)
	if err != nil {
		return err
	}
	if err := dbs.ensure(life, chain); err != nil {
		return err
	}
	if p.fill != nil {
		if err := p.fill(life, dbs.homeOf(devFeed)); err != nil {
			return err
		}
	}

	services, err := servicesOf(p.config)
	if err != nil {
		return err
	}
	look, err := lookup.New(life, lookup.Config{
		Store: dbs[0].store, Pool: dbs[0].main, Databases: dbs.elsewhere(), Chain: chain, Log: p.log, Origin: p.config.CORS.Origins, Metrics: registry,
		BaseURL: p.config.BaseURL, LocalDevelopment: p.config.LocalDevelopment, Identity: p.identity,
		Services: services, ManifestSeconds: p.config.ManifestSeconds, Quotas: quotasOf(p.config.Quotas), Retention: retentionOf(p.config.Retention),
	})
	if err != nil {
		return err
	}
	upkeep := background(after, "the manifest's renewal and retention", look.Run, fail)
	defer func() { err = errors.Join(err, upkeep.stop()) }() // step 4

	api, err := operator.New(operator.Config{
		Store: dbs, Access: look, Token: p.token, Metrics: registry, Log: p.log,
		Sessions: look.CountSessions,
		Checks:   p.checks(dbs, registry),
	})
	if err != nil {
		return err
	}
	handler := look.Echo()
	if p.demo != nil {
		for _, path := range []string{"/demo", "/demo/*"} {
			handler.Match([]string{http.MethodGet, http.MethodHead}, path, echo.WrapHandler(p.demo))
		}
	}
	if handler.IPExtractor, err = clientAddress(p.config.TrustedProxies); err != nil {
		return err
	}

	served = true
	serving := background(after, "a listener", func(ctx context.Context) error {
		return serveBoth(ctx, map[*httpserve.Server]http.Handler{p.public: handler, p.private: api})
	}, fail)
	defer func() { // steps 1 to 3
		serving.cancel()
		api.Drain()
		look.Stop()
		err = errors.Join(err, serving.stop())
	}()

	if p.ready != nil {
		if err := p.ready(); err != nil {
			return err
		}
	}
	select {
	case <-life.Done():
	case err := <-p.failed:
		return err
	}
	p.log.Info("stopping")
	if limit := time.Duration(p.config.ShutdownSeconds)*time.Second + stopGrace; p.exit != nil {
		late = time.AfterFunc(limit, func() {
			p.log.Error("stopping takes too long, because the database does not answer: the process ends as it is; nothing committed is lost, and what was not answered is told by its key", "after", limit)
			p.exit(exitFailed)
		})
	}
	if ctx.Err() == nil {
		return context.Cause(life)
	}
	return nil
}

// witness is what this process remembers outside the database.
func (p *provider) witness() (*livefeed.Witness, error) {
	if p.config.StateFile == "" {
		p.log.Warn("stateFile is not set: a database that is set back while no node runs, to a backup say, is noticed by what a client holds and not at start; name a file outside the database")
	}
	return livefeed.OpenWitness(p.config.StateFile, p.log)
}

// checks are what /readyz asks. Without notifications polls are woken late, not
// never: that is shown, and takes nothing out of service.
func (p *provider) checks(dbs databases, registry prometheus.Gatherer) []operator.Check {
	checks := dbs.checks()
	if p.config.Database.Notifications {
		checks = append(checks, operator.Check{Name: "notifications", Advisory: true, Probe: func(context.Context) error {
			return listening(registry)
		}})
	}
	return checks
}

// listening asks the feeds' own gauge.
func listening(registry prometheus.Gatherer) error {
	families, err := registry.Gather()
	if err != nil {
		return fmt.Errorf("gathering metrics: %w", err)
	}
	for _, f := range families {
		if f.GetName() != "overlayd_livefeed_listening" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetGauge().GetValue() != 1 {
				return errors.New("a connection for notifications is down; it is being replaced")
			}
		}
	}
	return nil
}

// serveBoth serves every listener and returns when all have ended; a failure of
// one ends the others.
func serveBoth(ctx context.Context, servers map[*httpserve.Server]http.Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	results := make(chan error, len(servers))
	for server, handler := range servers {
		all.Go(func() {
			results <- server.Serve(ctx, handler)
			cancel()
		})
	}
	all.Wait()
	close(results)
	var err error
	for result := range results {
		err = errors.Join(err, result)
	}
	return err
}

// task is a goroutine that runs until it is stopped.
type task struct {
	cancel context.CancelFunc
	done   chan error // buffered; gets one result
}

// background starts run; when it ends without having been stopped, fail is told.
func background(ctx context.Context, what string, run func(context.Context) error, fail context.CancelCauseFunc) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{cancel: cancel, done: make(chan error, 1)}
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			fail(fmt.Errorf("%s stopped unexpectedly: %w", what, cmp.Or(err, errEnded)))
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		t.done <- err
	}()
	return t
}

var errEnded = errors.New("it returned without being asked to")

// stop ends the task, waits for it and returns its result.
func (t *task) stop() error {
	t.cancel()
	return <-t.done
}

func chainOf(c config.Chain) (livefeed.Chain, error) {
	genesis, err := canon.ParseHex32(c.GenesisHash)
	if err != nil {
		return livefeed.Chain{}, fmt.Errorf("chain.genesisHash: %w", err)
	}
	return livefeed.Chain{Network: c.Network, Genesis: genesis}, nil
}

func servicesOf(c *config.Config) ([]lookup.Service, error) {
	services := make([]lookup.Service, 0, len(c.Services))
	for _, s := range c.Services {
		parameters, err := s.Rules.ParametersJSON()
		if err != nil {
			return nil, err
		}
		services = append(services, lookup.Service{
			Name: s.Name, Feed: s.Feed, Authentication: s.Authentication, Access: s.Access, Hidden: s.Hidden,
			RulesID: s.Rules.ID, RulesParameters: parameters,
			SessionSeconds: s.SessionSeconds, ReplaySeconds: s.ReplaySeconds,
			MaxRequestBytes: s.MaxRequestBytes, MaxResponseBytes: s.MaxResponseBytes,
			MaxObservations: s.MaxObservations, MaxWaitMs: s.MaxWaitMs,
		})
	}
	return services, nil
}

// retentionOf reads 0 as never, which is what it says: another process does it.
// orNone turns the setting that keeps nothing into livefeed's, where 0 is the default.
func orNone[T int | int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

func retentionOf(r config.Retention) lookup.Retention {
	if r.EverySeconds == 0 {
		return lookup.Retention{Every: -1}
	}
	return lookup.Retention{Every: time.Duration(r.EverySeconds) * time.Second}
}

func quotasOf(q config.Quotas) lookup.Quotas {
	return lookup.Quotas{
		OpensPerSecond: q.OpensPerSecond, OpenBurst: int(q.OpenBurst),
		ServiceOpensPerSecond: q.ServiceOpensPerSecond, ServiceOpenBurst: int(q.ServiceOpenBurst), Clients: int(q.Clients),
		Waiters: int(q.Waiters), WaitersPerClient: int(q.WaitersPerClient),
		Requests: int(q.Requests), RequestsWaiting: int(q.RequestsWaiting), RequestWaitMs: int(q.RequestWaitMs),
		BodyBytes: int(q.BodyBytes), BodyBytesPerClient: int(q.BodyBytesPerClient), BodyBytesPerSecond: int(q.BodyBytesPerSecond),
		SessionsPerClient: int64(q.SessionsPerClient), Sessions: int64(q.Sessions), RetainedBytes: int64(q.RetainedBytes),
	}
}

// clientAddress finds a request's client: the connection's address, or what the
// trusted proxies say.
func clientAddress(proxies []string) (echo.IPExtractor, error) {
	if len(proxies) == 0 {
		return echo.ExtractIPDirect(), nil
	}
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, text := range proxies {
		prefix, err := config.ParseProxy(text)
		if err != nil {
			return nil, err
		}
		options = append(options, echo.TrustIPRange(&net.IPNet{
			IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		}))
	}
	return echo.ExtractIPFromXFFHeader(options...), nil
}

// buildInfo is the metric that names the version.
func buildInfo() prometheus.Collector {
	version, revision := buildVersion()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "overlayd_build_info", Help: "1, with the version as labels.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision},
	})
	g.Set(1)
	return g
}
