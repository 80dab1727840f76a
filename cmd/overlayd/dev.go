package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/demo"
	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/operator"
	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// devFeed is the feed of dev, and where its sample goes.
const devFeed = "catalogue"

// The services of dev: one for everybody, one for those the operator grants it to.
const (
	devService = "ls_catalogue"
	devMembers = "ls_catalogue_members"
)

// stopPostgres bounds the private Postgres' shutdown; then it is stopped without
// its checkpoint.
const stopPostgres = 20 * time.Second

type devOptions struct {
	settings
	data, listen, operator, sample string
}

func newDevCommand(e *env) *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole provider on this machine, nothing to prepare",
		Long: "Dev starts a private Postgres (or uses OVERLAYD_DATABASE_URL), makes an identity and an operator token,\n" +
			"loads a sample catalogue and serves it, with a page at /demo/ that shows it. When requests are answered it\n" +
			"prints one line of JSON on stdout.\n" +
			"Ctrl-C stops everything it started. A second start on the same --data goes on where the first ended: same\n" +
			"database, identity, epochs, chain and ports.\n\n" +
			"Where the sample's Merkle paths lead to is in --data too, for `overlayd follow --reconcile`: " + rootsName + " (--roots)\n" +
			"with the small sample, " + headersName + " (--headers) with a generated one.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return dev(c.Context(), e, c, &o) },
	}
	c.Flags().StringVar(&o.data, "data", ".overlayd", "`folder` that keeps everything")
	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "public `address`; port 0 takes a free one and keeps it")
	c.Flags().StringVar(&o.operator, "operator", "127.0.0.1:8081", "operator `address`; port 0 takes a free one and keeps it")
	c.Flags().StringVar(&o.sample, "sample", sampleSmall, "`what` to start with: small (real transactions), a number of generated groups, or none")
	o.register(c, flagLogLevel, flagLogFormat)
	return c
}

// readyLine is the one line on stdout; its fields are a contract.
type readyLine struct {
	Ready         bool   `json:"ready"`
	BaseURL       string `json:"baseURL"`
	OperatorURL   string `json:"operatorURL"`
	OperatorToken string `json:"operatorToken"`
	Identity      string `json:"identity"`
	DatabaseURL   string `json:"databaseURL"`
}

func dev(ctx context.Context, e *env, c *cobra.Command, o *devOptions) (err error) {
	if c.Flags().Changed("sample") {
		if err := checkSample(o.sample); err != nil {
			return err
		}
	}
	folder, err := openFolder(o.data)
	if err != nil {
		return err
	}
	defer folder.close()
	if err := folder.adopt(c, o); err != nil {
		return err
	}
	if err := errors.Join(
		createSecret(folder.path("identity.key"), newIdentity),
		createSecret(folder.path("operator.token"), newToken),
	); err != nil {
		return err
	}
	l, err := o.load(e, c, folder.defaults(o))
	if err != nil {
		return err
	}
	log := newLogger(e.stderr, l.Log.Level, l.Log.Format)

	p := &provider{config: &l.Config, log: log, exit: e.exit}
	if p.public, p.private, err = listen(ctx, &l.Config, log); err != nil {
		return err
	}
	started := false
	defer func() {
		if !started {
			err = errors.Join(err, p.public.Close(), p.private.Close())
		}
	}()
	scheme := "http"
	if l.TLS.Set() {
		scheme = "https"
	}
	if l.BaseURL == "" {
		l.BaseURL = localURL(scheme, p.public.Addr())
	}
	// The page that shows two clients comes from here, and browsers name where a page is from in every POST.
	p.demo = demo.Handler()
	if base, err := wire.CanonicalBase(l.BaseURL, true); err == nil { // else Validate says so
		l.CORS.Origins = append(l.CORS.Origins, wire.Origin(base))
	}
	l.CORS.Origins = append(l.CORS.Origins, ownOrigins(scheme, p.public.Addr())...)
	operatorURL := localURL("http", p.private.Addr())
	if err := folder.keepPorts(p.public.Addr().String(), p.private.Addr().String(), operatorURL); err != nil {
		return err
	}

	if l.Database.URL == "" {
		pg, err := localpg.Start(ctx, localpg.Options{Data: folder.path("postgres"), Log: log})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop(ctx, pg)) }() // step 7
		l.Database.URL = pg.URL()
		failed := make(chan error, 1)
		go func() { // ends with the server, at the latest in Stop
			<-pg.Done()
			if err := pg.Err(); err != nil {
				failed <- err
			}
		}()
		p.failed = failed
	}
	if err := l.Validate(); err != nil {
		return invalid(err)
	}
	if p.identity, err = identityOf(&l.Config); err != nil {
		return err
	}
	if p.token, err = loadToken(l.Operator.TokenFile); err != nil {
		return err
	}
	if err := migrateQuietly(ctx, log, &l.Config); err != nil {
		return err
	}
	p.fill = func(ctx context.Context, store *livefeed.Store) error {
		return folder.load(ctx, e, log, store, l.Config.Chain)
	}
	p.ready = func() error {
		log.Info("a page shows what is served", "url", wire.Origin(l.BaseURL)+"/demo/")
		return json.NewEncoder(e.stdout).Encode(readyLine{
			Ready: true, BaseURL: l.BaseURL, OperatorURL: operatorURL, OperatorToken: p.token,
			Identity: hex.EncodeToString(p.identity.PubKey().Compressed()), DatabaseURL: l.Database.URL,
		})
	}
	started = true
	return p.run(ctx)
}

// stop ends the private Postgres whatever the state of ctx.
func stop(ctx context.Context, pg *localpg.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPostgres)
	defer cancel()
	return pg.Stop(ctx)
}

// checkSample reads the value of --sample.
func checkSample(name string) error {
	if name == sampleNone || name == sampleSmall {
		return nil
	}
	if n, err := strconv.Atoi(name); err != nil || n < 1 || strconv.Itoa(n) != name {
		return usagef("--sample %q is neither none, small nor a positive number of groups", name)
	}
	return nil
}

// localURL is how this machine reaches a listener.
func localURL(scheme string, addr *net.TCPAddr) string {
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// ownOrigins are what a browser on this machine may call the origin of a listener's pages.
func ownOrigins(scheme string, addr *net.TCPAddr) []string {
	origins := []string{localURL(scheme, addr)}
	if addr.IP.IsLoopback() || addr.IP.IsUnspecified() {
		origins = append(origins, scheme+"://"+net.JoinHostPort("localhost", strconv.Itoa(addr.Port)))
	}
	return origins
}

// defaults are dev's own layer of settings, below the file and the environment.
func (f *folder) defaults(o *devOptions) map[string]any {
	service := func(name, authentication, access string) any {
		return map[string]any{
			"name": name, "feed": devFeed, "authentication": authentication, "access": access,
			"rules": map[string]any{
				"id":         lookup.AttributesRulesID,
				"parameters": map[string]any{"attributes": []any{"artist", "genre"}},
			},
		}
	}
	return map[string]any{
		"localDevelopment":   true,
		"listen":             o.listen,
		"operator.listen":    o.operator,
		"operator.tokenFile": f.path("operator.token"),
		"identity.keyFile":   f.path("identity.key"),
		"stateFile":          f.path("feeds.state"),
		"chain.network":      f.state.Network,
		"chain.genesisHash":  f.state.GenesisHash,
		"services": []any{
			service(devService, "none", lookup.AccessOpen),
			service(devMembers, "brc103", lookup.AccessList),
		},
	}
}

// load puts the sample into the feed, unless it is there. Every group has its
// key, so that what a killed start left half done is completed.
func (f *folder) load(ctx context.Context, e *env, log *slog.Logger, store *livefeed.Store, chain config.Chain) error {
	if f.state.Sample == sampleNone {
		return nil
	}
	if chain.Network != f.state.Network || chain.GenesisHash != f.state.GenesisHash {
		return fmt.Errorf("the sample %s is about the chain %s; remove chain from the configuration or use --sample none", f.state.Sample, f.state.Network)
	}
	of, err := chainOf(chain)
	if err != nil {
		return err
	}
	feed, err := store.Ensure(ctx, devFeed, of)
	if err != nil {
		return err
	}
	before, err := feed.Stats(ctx)
	if err != nil {
		return err
	}
	if f.state.LoadedInto == before.Epoch {
		return f.keepChain(ctx)
	}

	start := time.Now()
	total := int64(-1)
	if n, err := strconv.ParseInt(f.state.Sample, 10, 64); err == nil {
		total = n
	}
	bar := newProgress(e.stderr, total, "loading the sample")
	var refused int
	var first error
	lines, sink := io.Pipe()
	made := make(chan error, 1)
	go func() { // ends when everything is written, or when the reader goes away
		err := f.generate(ctx, sink)
		sink.CloseWithError(err)
		made <- err
	}()
	err = operator.Import(ctx, feed, lines, func(res operator.Result, _ bool) error {
		bar.add(1)
		if res.Err == nil {
			return nil
		}
		refused++
		if first == nil {
			first = fmt.Errorf("group %d: %w", res.Line, res.Err)
		}
		if f.state.Sample == sampleSmall || livefeed.CodeOf(res.Err) != livefeed.Invalid {
			lines.CloseWithError(res.Err) // Import waits for its reader
			return first
		}
		return nil
	})
	bar.finish()
	lines.CloseWithError(io.ErrClosedPipe)
	if merr := <-made; err == nil {
		err = merr
	}
	if err != nil {
		return fmt.Errorf("loading the sample: %w", err)
	}
	if refused > 0 {
		// A start that was killed long ago: expiries of what it had not loaded are over.
		log.Warn("groups of the sample were left out", "groups", refused, "first", first)
	}
	after, err := feed.Stats(ctx)
	if err != nil {
		return err
	}
	log.Info("loaded the sample", "sample", f.state.Sample, "groups", after.Head-before.Head, "rows", after.Rows,
		"seconds", time.Since(start).Round(time.Millisecond).Seconds())
	f.state.LoadedInto = before.Epoch
	return f.save()
}

// sampleChain is the chain a sample is about.
func sampleChain(name string) (network string, genesis [32]byte) {
	if name == sampleNone || name == sampleSmall {
		return "main", sample.MainGenesis
	}
	return sample.SyntheticNetwork, sample.SyntheticGenesis
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }
