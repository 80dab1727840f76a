package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// What follows the end of a source's generation; see [client.Policy].
const (
	Stop   = client.Stop
	Reopen = client.Reopen
)

// Source is one provider's service and what is asked of it. BaseURL and Service
// are required; every other zero value is ready to use.
type Source struct {
	// BaseURL is the provider's base URL; https, or http on this machine.
	BaseURL string
	// Service is the lookup service.
	Service string
	// Query is the query as JSON. Empty means {}.
	Query []byte
	// Identity is the provider's expected identity key (66 hex characters). Empty
	// means: whoever it is at first use, and only that one afterwards.
	Identity string
	// Chain is the expected chain. Nil means: that of the store.
	Chain *client.Chain
	// Key signs the requests (BRC-104). Nil means anonymous.
	Key *secp256k1.PrivateKey
	// Limits are the budgets of each request; zero fields mean the client's.
	Limits client.Limits
	// LocalDevelopment allows http to other machines.
	LocalDevelopment bool
	// Transport replaces the HTTP transport; see [client.Options].
	Transport http.RoundTripper
	// OnReset says what follows the end of a generation. The zero value stops the
	// source: a new generation is the caller's decision.
	OnReset client.Policy
	// Label tells two followers of the same thing apart, at most 256 bytes.
	Label string
}

// Config says what a run does. Store and Chain are required.
type Config struct {
	// Store keeps everything. Run does not close it.
	Store reconcile.Store
	// Chain is the selected chain: the only authority on headers and heights.
	Chain verify.ChainView

	// Sources are followed by BRC-193.
	Sources []Source
	// Finite are asked from time to time.
	Finite []Finite

	// Workers is how many candidates are verified at once. 0 means one for each
	// processor.
	Workers int
	// Budget bounds one candidate's evidence; zero fields mean their defaults. The
	// bounds of what is kept are the store's own.
	Budget reconcile.Budget

	// On takes the events, one at a time. An error ends the run and is returned.
	// Nil discards them.
	On func(context.Context, Event) error
	// Projectors keep views of their own, each with a checkpoint under its name.
	Projectors map[string]reconcile.Projector

	// UntilLive ends the run, without an error, once every source is live and has
	// read everything its provider knew of, each finite source was asked once, all
	// of it is accepted, and every projector has it.
	UntilLive bool
	// RetryFor gives up on a source when no verified answer came for that long; 0
	// means never. With UntilLive it is also how long evidence may stay unresolved
	// once nothing else is left to do: then the run ends with a [*PendingError].
	RetryFor time.Duration
	// Log takes what is worth knowing, and no secrets. Nil discards it.
	Log *slog.Logger
}

// normalise checks the configuration and fills in what is left out.
func (c *Config) normalise() error {
	switch {
	case c.Store == nil:
		return errors.New("a store is needed: nothing is followed without a durable checkpoint")
	case c.Chain == nil:
		return errors.New("a view of the chain is needed: without one nothing can be proved")
	}
	seen := map[reconcile.SourceKey]bool{}
	for i := range c.Finite {
		f := &c.Finite[i]
		if f.Fetch == nil {
			return fmt.Errorf("the finite source %q has nothing to fetch with", f.Label)
		}
		if seen[f.key()] {
			return fmt.Errorf("the finite source %q is there twice: give one another label", cmp.Or(f.Label, f.BaseURL))
		}
		seen[f.key()] = true
		f.Every = cmp.Or(f.Every, time.Minute)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Budget = c.Budget.Defaults()
	return nil
}
