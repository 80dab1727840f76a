package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
)

const reconcileLong = `
With --reconcile any number of providers are followed at once, and none of them is believed about
Bitcoin: what each lists, what transactions prove and what is merely pending are kept apart, in one
store of knowledge, DIR/knowledge.db of --state or a Postgres database. Evidence is checked here:
scripts are run, and Merkle paths are held against the chain of --headers (a file of 80-byte headers
from block 0, or from --checkpoint HEIGHT:HASH; it is watched) or of --roots (lines of
{"height":885570,"merkleRoot":"..."}, trusted as they are: for samples). Without either nothing can be
proved, and everything waits. A directory is of one kind: of --reconcile, or not.

On a terminal that is a table, drawn again at most 5 times a second: the sources, how many listed
outputs are current, spent, pending, conflicting or unknown, and those that changed last. "current"
means created by a selected transaction, with no known selected spend: it never means unspent.
Otherwise stdout has one JSON object a line; numbers that may grow are strings:

  {"event":"store","received":"12","accepted":"9","context":"...","height":"905906"}
        where the store stands as the run begins
  {"event":"source","source":"https://...","generation":1,"phase":"snapshot","groups":12,
   "sequence":"40","highWater":"41","received":"13"}
        a batch is durable; nothing of it need be accepted
  {"event":"live","source":"https://...","generation":1,"sequence":"40"}
        the snapshot is received whole; what follows of that source are changes
  {"event":"output","outpoint":"txid.0","state":"spent","was":"current","by":"txid","accepted":"41",
   "sources":["https://..."]}
        state, spender or sources of a listed output changed in that accepted revision; "sources":[]
        when nobody lists it any more. state is current, spent, pending, conflicting or unknown.
        What is pending is looked for at most 5 times a second, the first 1000 outputs and the first
        1000 waiting changes each time: reconcile inspect shows them all
  {"event":"conflict","txid":"...","state":"conflicting","reason":"first-seen","by":"txid","accepted":"41"}
        a transaction was not selected, because of another one
  {"event":"pending","source":"https://...","generation":1,"group":"...","sequence":"41",
   "reason":"...","waiting":["txid.0"]}
        a change whose evidence is not enough: it counts for nothing until it is
  {"event":"quarantined","source":"https://...","generation":1,"reason":"..."}
        something it said is invalid; a "reset" line says that the generation is over
  {"event":"reset","source":"https://...","generation":1,"code":"...","reason":"..."}
        its rows stay, stale, until the snapshot of the next generation is accepted whole
  {"event":"stopped","source":"https://...","reason":"..."}
        it is not followed any more in this run; the others are
  {"event":"context","context":"...","height":"905906"}
        another view of the chain is in force
  {"event":"waiting","source":"https://...","reason":"...","retryInMs":480}
        something failed in a way that may pass; "retryInMs":0 waits for room
  {"event":"lagging","reason":"...","accepted":"41"}
        the table overlay_outputs, kept for SQL beside the store, could not be written

"output" lines come in the order of revisions, each at least once: killed and started again with the
same store, a run goes on after the last one that was printed, or prints some of them again.
` + "`overlayd reconcile inspect`" + ` looks at a store, also while a run writes to it.
`

// reconcileFlags are the flags that only follow --reconcile has.
type reconcileFlags struct {
	reconcile bool
	chain     chainFlags
	keep      storeFlags
}

// storeFlags say which store of knowledge is meant.
type storeFlags struct {
	store, database, account string
	nonFinal                 bool
}

// Kinds of stores.
const (
	storeSQLite   = "sqlite"
	storePostgres = "postgres"
)

// reconcileNames are the flags that need --reconcile.
var reconcileNames = []string{"headers", "checkpoint", "roots", "store", "database", "account", "non-final"}

func (f *reconcileFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.reconcile, "reconcile", false, "follow several providers at once, and verify what they say")
	flags.StringVar(&f.chain.headers, "headers", "", "with --reconcile: `file` of consecutive 80-byte block headers, the selected chain")
	flags.StringVar(&f.chain.checkpoint, "checkpoint", "", "with --headers: `HEIGHT:HASH` of its first header, when that is not block 0")
	flags.StringVar(&f.chain.roots, "roots", "", "with --reconcile: `file` of Merkle roots by height, trusted as they are")
	flags.StringVar(&f.keep.store, "store", storeSQLite, "with --reconcile: `kind` of store, sqlite (in --state) or postgres (in --database)")
	flags.StringVar(&f.keep.database, "database", "", "with --store postgres: `URL` of the database; a password is better in PGPASSWORD or ~/.pgpass")
	flags.StringVar(&f.keep.account, "account", "main", "with --reconcile: `name` of whose knowledge it is; a directory holds one, a database any number")
	flags.BoolVar(&f.keep.nonFinal, "non-final", false, "with --reconcile: select transactions that are not final too, and let them be replaced; fixed when the store is made")
}

// reconcileOnly names a given flag that needs --reconcile; empty: there is none.
func reconcileOnly(c *cobra.Command) string {
	i := slices.IndexFunc(reconcileNames, c.Flags().Changed)
	if i < 0 {
		return ""
	}
	return reconcileNames[i]
}

// partition is whose knowledge it is.
func (f *storeFlags) partition() reconcile.Partition {
	return reconcile.Partition{Application: "overlayd", Account: f.account, Access: "local"}
}

// check judges the flags without opening anything.
func (f *storeFlags) check(state string) error {
	switch {
	case f.store != storeSQLite && f.store != storePostgres:
		return usagef("--store is %q; use sqlite or postgres", f.store)
	case f.store == storePostgres && f.database == "":
		return usagef("--store postgres needs --database URL")
	case f.store == storePostgres && state != "":
		return usagef("--state is a directory of --store sqlite; with postgres everything is in --database")
	case f.store == storeSQLite && f.database != "":
		return usagef("--database needs --store postgres")
	case f.account == "" || len(f.account) > 256:
		return usagef("--account has %d bytes; 1 to 256 are allowed", len(f.account))
	}
	return nil
}

// knowledge is an open store with what belongs to it.
type knowledge struct {
	reconcile.Store
	outputs reconcile.Projector
	pool    *pgxpool.Pool // nil: no database
}

func (k *knowledge) Close() error {
	err := k.Store.Close()
	if k.pool != nil {
		k.pool.Close()
	}
	return err
}

// open opens the store for writing, and makes it where there is none.
func (f *storeFlags) open(ctx context.Context, dir string, log *slog.Logger) (_ *knowledge, err error) {
	k := &knowledge{}
	var backend reconcile.Backend
	where := dir
	switch f.store {
	case storePostgres:
		where = "the database"
		if k.pool, err = knowledgePool(ctx, f.database); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				k.pool.Close()
			}
		}()
		b, err := pgstore.Open(ctx, k.pool, pgstore.Options{Partition: f.partition()})
		if err != nil {
			return nil, unreachable(f.database, err)
		}
		backend, k.outputs = b, pgstore.NewOutputs(b)
	default:
		b, err := sqlitestore.Open(ctx, dir, sqlitestore.Options{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		backend, k.outputs = b, sqlitestore.NewOutputs(b)
	}
	k.Store, err = reconcile.Open(ctx, backend, reconcile.Options{Partition: f.partition(), NonFinal: f.nonFinal, Log: log})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", where, err), backend.Close())
	}
	return k, nil
}

// knowledgePool connects to the database of a store.
func knowledgePool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("--database is not usable: %w; write a Postgres URL", err)
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "overlayd follow"
	}
	c.MaxConns = max(c.MaxConns, 8)
	return pgxpool.NewWithConfig(ctx, c)
}

// checkReconcile judges the command line before anything is opened.
func (f *followFlags) checkReconcile(urls []string) error {
	if f.maxBatches != 0 {
		return usagef("--max-batches is for one source without --reconcile; use --until-live")
	}
	if n := len(f.expect); n != 0 && n != len(urls) {
		return usagef("--expect-identity is there %d times for %d URLs; give it once for each, in their order", n, len(urls))
	}
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			return usagef("%s is there twice; each provider is followed once", url)
		}
		if !strings.Contains(url, "://") {
			return usagef("%q is not a URL; the service comes last, after the URLs", url)
		}
	}
	if _, err := f.chain.check(); err != nil {
		return err
	}
	return f.keep.check(f.state)
}

// followReconcile follows several providers and reconciles what they say.
func followReconcile(ctx context.Context, e *env, urls []string, service string, f followFlags) (err error) {
	if err := f.checkReconcile(urls); err != nil {
		return err
	}
	policy, err := f.policy()
	if err != nil {
		return err
	}
	key, err := f.key(e)
	if err != nil {
		return err
	}
	var view viewer
	log := newLogger(e.stderr, "warn", "")
	if out, ok := e.stdout.(*os.File); ok && isTerminal(out) {
		n := &notes{}
		log = newLogger(n, "warn", "text")
		view = newTableViewer(out, "overlayd follow --reconcile "+service, f.chain == chainFlags{}, n)
	} else {
		view = newLineViewer(e.stdout)
	}
	chain, err := f.chain.open(log)
	if err != nil {
		return err
	}
	if f.chain == (chainFlags{}) {
		fmt.Fprintln(e.stderr, "overlayd: no header chain: nothing can be proved; give --headers or --roots")
	}
	dir := f.state
	if dir == "" && f.keep.store == storeSQLite {
		if dir, err = os.MkdirTemp("", "overlayd-follow-"); err != nil {
			return fmt.Errorf("make a temporary state: %w", err)
		}
		defer os.RemoveAll(dir)
		fmt.Fprintln(e.stderr, "overlayd: without --state the state is temporary: the next run begins anew")
	}
	store, err := f.keep.open(ctx, dir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	w := newWatcher(store, service, view)
	c := live.Config{
		Store: store, Chain: chain, On: w.on, UntilLive: f.untilLive, RetryFor: f.retryFor, Log: log,
		Projectors: map[string]reconcile.Projector{"outputs": store.outputs},
	}
	for i, url := range urls {
		s := live.Source{
			BaseURL: url, Service: service, Query: []byte(f.query), Key: key, Limits: f.limits,
			LocalDevelopment: f.localDevelopment, Transport: followTransport(), OnReset: policy,
		}
		if len(f.expect) > 0 {
			s.Identity = f.expect[i]
		}
		c.Sources = append(c.Sources, s)
	}
	return followEnd(ctx, watched(ctx, w, c))
}

// lastLook bounds the look at the end of a run.
const lastLook = 5 * time.Second

// watched runs with the watcher beside, and looks once more at the end.
func watched(parent context.Context, w *watcher, c live.Config) error {
	ctx, cancel := context.WithCancelCause(parent)
	looked := make(chan struct{})
	go func() { // ends with ctx
		defer close(looked)
		if err := w.run(ctx); err != nil {
			cancel(err)
		}
	}()
	err := live.Run(ctx, c)
	cancel(nil)
	<-looked
	if parent.Err() == nil && errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	final, done := context.WithTimeout(context.WithoutCancel(parent), lastLook)
	defer done()
	return errors.Join(err, w.look(final))
}
