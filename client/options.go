package client

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// Policy says what follows the end of a generation.
type Policy uint8

const (
	// Stop returns an [*EndedError]. It is the default: a new generation is the
	// caller's decision.
	Stop Policy = iota
	// Reopen begins a new generation after reset-required, expired and
	// context-changed, also when an earlier run ended so. What ends for lost
	// access, equivocation or a broken protocol stops the run all the same;
	// following again with Reopen then begins a new generation.
	Reopen
)

// Options say what to follow and how. BaseURL, Service and State are required;
// every other zero value is ready to use.
type Options struct {
	// BaseURL is the provider's base URL; https, or http on this machine.
	BaseURL string
	// Service is the lookup service.
	Service string
	// Query is the query as JSON. Empty means {}.
	Query []byte
	// State is where everything durable goes.
	State State
	// On takes the events, one at a time, on the goroutine of [Follow]. An error
	// stops the run and is returned; the page it came from is delivered again by
	// the next run. Nil discards the events.
	On func(context.Context, Event) error

	// OnReset says what follows the end of a generation.
	OnReset Policy
	// UntilLive ends the run, without an error, once it is live and has read
	// everything the provider knew of.
	UntilLive bool
	// MaxBatches ends the run, without an error, after that many recorded
	// batches. 0 means no end.
	MaxBatches int
	// CloseSession tells the provider, when the run ends, that the session will
	// not be used again. For states that are thrown away.
	CloseSession bool

	// Limits are the budgets of each request. Zero fields mean 1 MiB, 256
	// observations and 20000 ms.
	Limits Limits
	// StrictLimits forbids asking for more than Limits when a group does not fit
	// and the provider says what it takes. By default the one request is
	// repeated with that much, within the manifest's maxima.
	StrictLimits bool

	// Key signs the requests (BRC-104), for services that know their callers. Nil
	// means anonymous, for services that are for everybody. Neither ever takes the
	// place of the other: see [ErrSigned] and [ErrPublic]. What is said to one key
	// is a source of its own (see [Key]).
	Key *secp256k1.PrivateKey
	// Identity is the provider's expected identity key (66 hex characters), which
	// signs its manifest and, with Key, every answer. Empty means: whoever it is at
	// first use, and only that one afterwards.
	Identity string
	// Chain is the expected chain. Nil means: whatever it is at first use of the
	// state, and only that one afterwards.
	Chain *Chain
	// ClockSkew is how far the provider's clock may be ahead. 0 means 2 minutes.
	ClockSkew time.Duration
	// ManifestMaxAge is the greatest age of a manifest for a new generation. 0
	// means 31 days.
	ManifestMaxAge time.Duration

	// RetryFor gives up with a [*GaveUpError] when no verified answer came for
	// that long, or when every Open was refused for that long. 0 means never.
	RetryFor time.Duration
	// LocalDevelopment allows http to other machines.
	LocalDevelopment bool
	// Transport replaces the HTTP transport. It must not follow redirects, decode
	// bodies, or change x-bsv headers, which are signed. Nil means an own one,
	// without a proxy.
	Transport http.RoundTripper
	// Log takes what is worth knowing about retries; never a session, a cursor
	// or a request id. Nil discards it.
	Log *slog.Logger
}

const (
	defaultMaxBytes        = 1 << 20
	defaultMaxObservations = 256
	defaultWaitMs          = 20000
	defaultClockSkew       = 2 * time.Minute
	defaultManifestMaxAge  = 31 * 24 * time.Hour
)

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// normalise checks the options and fills in what is left out.
func (o *Options) normalise() (Key, canon.Value, error) {
	fail := func(err error) (Key, canon.Value, error) { return Key{}, canon.Value{}, err }
	base, err := canonicalBase(o.BaseURL, o.LocalDevelopment)
	if err != nil {
		return fail(err)
	}
	if err := canon.CheckString(o.Service, wire.MaxString); err != nil {
		return fail(fmt.Errorf("the service name %q: %w", o.Service, err))
	}
	if o.State == nil {
		return fail(errors.New("a state is needed: nothing is followed without a durable checkpoint"))
	}
	if o.Identity != "" {
		if _, err := canon.ParseIdentity(o.Identity); err != nil {
			return fail(fmt.Errorf("the expected identity: %w", err))
		}
	}
	text := o.Query
	if len(text) == 0 {
		text = []byte("{}")
	}
	query, err := canon.Parse(text, canon.Limits{MaxBytes: wire.MaxRequestBytes})
	if err == nil {
		err = query.CheckIntegers()
	}
	if err != nil {
		return fail(fmt.Errorf("the query is not acceptable JSON: %w", err))
	}
	if o.On == nil {
		o.On = func(context.Context, Event) error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = Limits{
		MaxBytes:        orDefault(o.Limits.MaxBytes, defaultMaxBytes),
		MaxObservations: orDefault(o.Limits.MaxObservations, defaultMaxObservations),
		WaitMs:          orDefault(o.Limits.WaitMs, defaultWaitMs),
	}
	key := Key{
		Base: base, Service: o.Service, Query: query.AppendCanonical(nil), QueryDigest: wire.QueryDigest(o.Service, query),
	}
	if o.Key != nil {
		key.Principal = hex.EncodeToString(o.Key.PubKey().SerializeCompressed())
	}
	return key, query, nil
}
