package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/operator"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// database is one of a provider's, opened.
type database struct {
	*pools
	label string   // in metrics: main, or the database's id
	feeds []string // that live in it; of the main one: all that live in no other
	store *livefeed.Store
}

// called says which it is, as /readyz and errors do.
func (d *database) called() string {
	if d.label == mainLabel {
		return "database"
	}
	return "database of " + strings.Join(d.feeds, ", ")
}

const mainLabel = "main"

// databases are all of a provider, the main one first. It finds feeds wherever they live.
type databases []*database

// Feed returns a feed of any of them, or nil.
func (all databases) Feed(name string) *livefeed.Feed {
	for _, d := range all {
		if slices.Contains(d.feeds, name) {
			return d.store.Feed(name)
		}
	}
	return nil
}

// Feeds returns the feeds of all.
func (all databases) Feeds() []*livefeed.Feed {
	var feeds []*livefeed.Feed
	for _, d := range all {
		for _, f := range d.store.Feeds() {
			if slices.Contains(d.feeds, f.Name()) {
				feeds = append(feeds, f)
			}
		}
	}
	return feeds
}

// close closes the pools.
func (all databases) close() {
	for _, d := range all {
		d.pools.close()
	}
}

// openDatabases opens the pools of every database, sees to it that nothing lives elsewhere than it did, and makes the
// stores. Close it, also after an error.
func (p *provider) openDatabases(ctx context.Context, registry prometheus.Registerer) (all databases, err error) {
	witness, err := p.witness()
	if err != nil {
		return nil, err
	}
	db, err := openPools(ctx, p.config.Database, witness)
	if err != nil {
		return nil, err
	}
	witnesses := []*livefeed.Witness{witness}
	main := &database{pools: db, label: mainLabel, feeds: p.config.FeedNames()}
	all = databases{main}
	for _, e := range p.config.Elsewhere() {
		d, witness, err := p.openElsewhere(ctx, e)
		if err != nil {
			return all, fmt.Errorf("the database of feed %s: %w", strings.Join(e.Feeds, ", "), err)
		}
		all, witnesses = append(all, d), append(witnesses, witness)
		main.feeds = slices.DeleteFunc(main.feeds, func(name string) bool { return slices.Contains(d.feeds, name) })
	}
	places := make([]lookup.Place, len(all))
	for i, d := range all {
		places[i] = lookup.Place{Pool: d.main, Feeds: d.feeds}
		for _, s := range p.config.Services {
			if slices.Contains(d.feeds, s.Feed) {
				places[i].Services = append(places[i].Services, s.Name)
			}
		}
	}
	if err := lookup.Settle(ctx, places[0], places[1:]...); err != nil {
		return all, err
	}
	for i, d := range all {
		if d.store, err = livefeed.NewStore(ctx, livefeed.Config{
			Pool: d.main, Writer: d.writer, Log: p.log, Witness: witnesses[i],
			Metrics:  prometheus.WrapRegistererWith(prometheus.Labels{"database": d.label}, registry),
			Backstop: time.Duration(p.config.Database.PollMs) * time.Millisecond, NoListen: !p.config.Database.Notifications,
			QueueBytes: int64(p.config.Limits.QueueBytes), ScanRows: int(p.config.Limits.ScanRows), ScanBytes: int64(p.config.Limits.ScanBytes),
			TailGroups: orNone(int(p.config.Limits.TailGroups)), TailBytes: orNone(int64(p.config.Limits.TailBytes)),
		}); err != nil {
			return all, err
		}
	}
	return all, nil
}

// openElsewhere opens a database besides the main one. Its id is asked for before its pools are made, since what this process
// has seen of it is kept under that.
func (p *provider) openElsewhere(ctx context.Context, e config.Elsewhere) (*database, *livefeed.Witness, error) {
	conn, err := connect(ctx, e.URL)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the session ends with the process at the latest
	if err := schema.Check(ctx, conn); err != nil {
		return nil, nil, err
	}
	id, err := lookup.Identify(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	file := p.config.StateFile
	if file != "" {
		file += "-" + id.String()
	}
	witness, err := livefeed.OpenWitness(file, p.log)
	if err != nil {
		return nil, nil, err
	}
	settings := p.config.Database
	settings.URL = e.URL
	db, err := openPools(ctx, settings, witness)
	if err != nil {
		return nil, nil, err
	}
	return &database{pools: db, label: id.String(), feeds: e.Feeds}, witness, nil
}

// run is the life of all stores.
func (all databases) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make([]error, len(all))
	var running sync.WaitGroup
	for i, d := range all {
		running.Go(func() {
			results[i] = d.store.Run(ctx)
			cancel()
		})
	}
	running.Wait()
	return errors.Join(results...)
}

// ensure makes the feeds that are not there yet.
func (all databases) ensure(ctx context.Context, chain livefeed.Chain) error {
	for _, d := range all {
		for _, name := range d.feeds {
			if _, err := d.store.Ensure(ctx, name, chain); err != nil {
				return fmt.Errorf("feed %s: %w", name, err)
			}
		}
	}
	return nil
}

// homeOf is the store of the database in which a feed lives, or would.
func (all databases) homeOf(feed string) *livefeed.Store {
	for _, d := range all {
		if slices.Contains(d.feeds, feed) {
			return d.store
		}
	}
	return all[0].store
}

// elsewhere are all but the main one, as lookup takes them.
func (all databases) elsewhere() []lookup.Database {
	var list []lookup.Database
	for _, d := range all[1:] {
		list = append(list, lookup.Database{Store: d.store, Pool: d.main, Feeds: d.feeds})
	}
	return list
}

// checks are what /readyz asks. Without its database a provider is of no use; of
// several each is shown, and one that is away takes the feeds of the others out of
// service no more than they are: not ready is only who reaches none.
func (all databases) checks() []operator.Check {
	if len(all) == 1 {
		return []operator.Check{{Name: all[0].called(), Probe: all[0].check}}
	}
	checks := []operator.Check{{Name: "databases", Probe: all.any}}
	for _, d := range all {
		checks = append(checks, operator.Check{Name: d.called(), Advisory: true, Probe: d.check})
	}
	return checks
}

// any asks all at once and is content with the first that answers.
func (all databases) any(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(all))
	for _, d := range all {
		go func() { results <- d.check(ctx) }() // ends with ctx at the latest
	}
	var faults error
	for range all {
		err := <-results
		if err == nil {
			return nil
		}
		faults = errors.Join(faults, err)
	}
	return faults
}

// migrateAll brings every database of a configuration up to date, in its order.
func migrateAll(ctx context.Context, c *config.Config, one func(ctx context.Context, of, url string) error) error {
	if err := one(ctx, "", c.Database.URL); err != nil {
		return err
	}
	for _, e := range c.Elsewhere() {
		of := "the database of feed " + strings.Join(e.Feeds, ", ")
		if err := one(ctx, of, e.URL); err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
	}
	return nil
}

// migrateQuietly is migrate for dev: into the log.
func migrateQuietly(ctx context.Context, log *slog.Logger, c *config.Config) error {
	return migrateAll(ctx, c, func(ctx context.Context, of, url string) error {
		conn, err := connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the session ends with the process at the latest
		return schema.Migrate(ctx, conn, func(version int, name string) {
			log.Info("applying a migration", "version", version, "name", name, "database", cmp.Or(of, mainLabel))
		})
	})
}
