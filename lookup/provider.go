package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// Service is one lookup service: a feed, the rules by which it is asked, and limits. Every number is shown in the manifest
// and nothing else limits a session.
type Service struct {
	Name            string          // as clients name it; 1..256 bytes
	Feed            string          // the feed it shows; "" means one of the service's name
	Authentication  string          // "none" or "brc103"; "" means none
	Access          string          // of a brc103 service: AccessOpen (who can prove an identity) or AccessList (who has a grant); "" means open
	Hidden          bool            // of a brc103 service: to callers it does not admit it does not exist
	RulesID         string          // IRI of an installed contract; "" means AttributesRulesID
	RulesParameters json.RawMessage // what that contract's parameters are
	SessionSeconds  uint64          // life of a session from T; at least 1
	ReplaySeconds   uint64          // how long its records stay after that; at least 1
	// Maxima of one request and response. 65536..4194304 bytes, 1..1024 observations, at most 25000 ms.
	MaxRequestBytes, MaxResponseBytes, MaxObservations, MaxWaitMs uint32
}

// The values of Service.Access.
const (
	AccessOpen = "open"
	AccessList = "list"
)

// Config is what a provider needs. Store, Pool, BaseURL, Chain, Identity and Services are required.
type Config struct {
	Store *livefeed.Store // must be running (Store.Run) while the provider answers
	Pool  *pgxpool.Pool   // of the same database, made with livefeed.Configure
	// Databases are those of feeds that live in one of their own. All others live in that of Store and Pool, the main one,
	// which has the manifests too; every node has the same main one.
	Databases []Database
	Chain     livefeed.Chain // of every feed it shows
	Rules     []Rules        // installed besides AttributesRules
	Log       *slog.Logger   // nil: slog.Default()
	Origin    []string       // browser origins that are answered (CORS); none by default
	// BaseURL is the canonical base URL that clients use; LocalDevelopment admits an http one.
	BaseURL          string
	LocalDevelopment bool
	Identity         *ec.PrivateKey // signs the manifest, and every answer to who signed the request
	Services         []Service      // at most 256
	ManifestSeconds  uint64         // life of a manifest; 0 means 86400
	Retention        Retention      // how what is no longer promised is forgotten
	Quotas           Quotas         // zero fields mean their defaults
	Metrics          prometheus.Registerer
	// SessionCacheBytes and EvidenceCacheBytes bound what a node remembers of sessions that were read, which spares their polls
	// half a statement, and of the evidence of live groups, in base64, for the next who need it; LayoutCacheBytes what it keeps of the
	// last groups as anonymous sessions are told them. 65536..2^40; 0 means 32, 32 and 8 MiB.
	SessionCacheBytes, EvidenceCacheBytes, LayoutCacheBytes int
}

// defaultCacheBytes is about 12,000 sessions, defaultLayoutBytes about 4,000 groups of one row, each for all who ask the same.
const (
	defaultCacheBytes  = 32 << 20
	defaultLayoutBytes = 8 << 20
)

// service is a configured service made ready.
type service struct {
	Service
	feed        *livefeed.Feed
	shard       *shard // where it lives
	contract    Contract
	parameters  []byte // canonical JSON
	rulesDigest string
	entry       wire.ServiceEntry
	entryJSON   []byte
}

// most are the greatest limits of the service.
func (s *service) most() wire.Limits {
	return wire.Limits{MaxBytes: s.MaxResponseBytes, MaxObservations: s.MaxObservations, WaitMs: s.MaxWaitMs}
}

// Provider answers lookup sessions. It is safe for concurrent use.
type Provider struct {
	// Static after New.
	main            *shard            // holds the manifests and the secrets of authenticated sessions
	shards          []*shard          // all, the main one first
	homes           map[string]*shard // of feeds that live elsewhere than in the main one
	born            map[string]*shard // by the database's id as session ids show it
	served          map[string]*shard // where services live, also such as are not configured any more
	log             *slog.Logger
	baseURL, origin string
	chain           wire.Chain
	chainJSON       []byte
	identity        *ec.PrivateKey
	identityHex     string
	manifestSeconds uint64
	rules           map[string]Rules
	services        map[string]*service
	names           []string // of services, sorted
	origins         []string
	auth            *brc104.Server // nil: no service is authenticated
	closing         *closing
	turnstile       *turnstile // before signatures
	metrics         *metrics
	retention       Retention
	kept            *keptMetrics
	quotas          *quotas
	sessions        *recent[stored, *terms] // by the digest of the id
	encoded         *recent[stored, []byte] // evidence in base64, by its digest
	layouts         *recent[kinKey, *draft] // of the last groups, for anonymous sessions; nil: the group means nothing to them

	ring     atomic.Pointer[brc104.Ring]  // the session secrets now in force
	pause    atomic.Pointer[func(moment)] // tests only
	within   time.Duration                // answerWithin, but for tests
	grace    time.Duration                // writeGrace, but for tests
	dozing   time.Duration                // parkAfter, but for tests
	courtesy time.Duration                // giveWayFor, but for tests
}

// New makes a provider: it checks the configuration, ensures feeds, loads or creates the deployment's secrets, tells every
// feed the smallest maxima it is delivered under, and issues a manifest if none is in force.
func New(ctx context.Context, c Config) (*Provider, error) {
	p := &Provider{
		retention: c.Retention, log: c.Log, identity: c.Identity, manifestSeconds: c.ManifestSeconds, origins: c.Origin,
		rules: make(map[string]Rules), services: make(map[string]*service),
		homes: make(map[string]*shard), born: make(map[string]*shard), served: make(map[string]*shard),
		within: answerWithin, grace: writeGrace, dozing: parkAfter, courtesy: giveWayFor, closing: newClosing(), turnstile: newTurnstile(runtime.GOMAXPROCS(0)),
	}
	if c.Store == nil || c.Pool == nil || c.Identity == nil {
		return nil, errors.New("lookup: Store, Pool and Identity are required")
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	if p.manifestSeconds == 0 {
		p.manifestSeconds = 86400
	}
	base, err := wire.CanonicalBase(c.BaseURL, c.LocalDevelopment)
	if err != nil {
		return nil, fmt.Errorf("lookup: base URL %q: %w", c.BaseURL, err)
	}
	p.baseURL, p.origin = base, wire.Origin(base)
	p.chain = wire.Chain{Network: c.Chain.Network, GenesisHash: hexOf(c.Chain.Genesis[:])}
	p.chainJSON = newVoice(wire.Scope{Chain: p.chain}).chain
	p.identityHex = hexOf(c.Identity.PubKey().Compressed())
	for _, rules := range append([]Rules{AttributesRules{}}, c.Rules...) {
		if p.rules[rules.ID()] != nil {
			return nil, fmt.Errorf("lookup: rules %s are installed twice", rules.ID())
		}
		p.rules[rules.ID()] = rules
	}
	limits, err := c.Quotas.filled()
	if err != nil {
		return nil, err
	}
	p.quotas = newQuotas(limits)
	if p.metrics, err = newMetrics(c.Metrics, p.quotas, p.turnstile); err != nil {
		return nil, err
	}
	if p.kept, err = newKeptMetrics(c.Metrics); err != nil {
		return nil, err
	}
	if err := p.remember(c); err != nil {
		return nil, err
	}
	if err := p.openShards(ctx, c, limits); err != nil {
		return nil, err
	}
	if err := p.prepare(ctx, c); err != nil {
		return nil, err
	}
	if err := p.authenticate(ctx, c); err != nil {
		return nil, err
	}
	for _, d := range p.shards {
		if err := d.bound(ctx); err != nil {
			return nil, err
		}
		d.source.OnHint(p.hinted)
		d.source.OnEvidence(d.keepFresh)
		d.source.WatchMarks(ledgerMarks)
		// Before anything is issued or served: only now are the marks compared that this node saw in an earlier life.
		if err := d.source.Verify(ctx); err != nil {
			return nil, fmt.Errorf("lookup: %w", err)
		}
	}
	_, err = p.current(ctx, nil)
	return p, err
}

// remember makes room for what this node keeps of what it has read.
func (p *Provider) remember(c Config) error {
	err := errors.Join(
		fill(&c.SessionCacheBytes, "SessionCacheBytes", defaultCacheBytes, 65536, 1<<40),
		fill(&c.EvidenceCacheBytes, "EvidenceCacheBytes", defaultCacheBytes, 65536, 1<<40),
		fill(&c.LayoutCacheBytes, "LayoutCacheBytes", defaultLayoutBytes, 65536, 1<<40),
	)
	if err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	p.sessions, p.encoded = newRecent[stored, *terms](c.SessionCacheBytes), newRecent[stored, []byte](c.EvidenceCacheBytes)
	p.layouts = newRecent[kinKey, *draft](c.LayoutCacheBytes)
	return nil
}

// prepare makes the configured services ready, naming every fault at once.
func (p *Provider) prepare(ctx context.Context, c Config) error {
	var faults []error
	if len(c.Services) == 0 || len(c.Services) > 256 {
		faults = append(faults, fmt.Errorf("configure 1 to 256 services, not %d", len(c.Services)))
	}
	for _, given := range c.Services {
		s, err := p.ready(ctx, c, given)
		if err != nil {
			faults = append(faults, fmt.Errorf("service %q: %w", given.Name, err))
			continue
		}
		if p.services[s.Name] != nil {
			faults = append(faults, fmt.Errorf("service %q is configured twice", s.Name))
			continue
		}
		p.services[s.Name] = s
		p.names = append(p.names, s.Name)
		s.shard.feeds[s.feed.ID()] = s.feed
	}
	slices.Sort(p.names)
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	return nil
}

func (p *Provider) ready(ctx context.Context, c Config, given Service) (*service, error) {
	s := &service{Service: given}
	if s.Feed == "" {
		s.Feed = s.Name
	}
	if s.Authentication == "" {
		s.Authentication = wire.AuthenticationNone
	}
	if s.Access == "" {
		s.Access = AccessOpen
	}
	if s.RulesID == "" {
		s.RulesID = AttributesRulesID
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	rules := p.rules[s.RulesID]
	if rules == nil {
		return nil, fmt.Errorf("rules %q are not installed", s.RulesID)
	}
	parameters, err := canon.Parse(s.RulesParameters, canon.Limits{})
	if err != nil {
		return nil, fmt.Errorf("rules parameters: %w", err)
	}
	s.parameters = parameters.AppendCanonical(nil)
	if s.contract, err = rules.Contract(s.parameters); err != nil {
		return nil, err
	}
	s.shard = p.homeOf(s.Feed)
	if s.feed, err = s.shard.source.Ensure(ctx, s.Feed, c.Chain); err != nil {
		return nil, err
	}
	s.entry = entryOf(&s.Service, parameters)
	s.rulesDigest = s.entry.RulesDigest
	s.entryJSON = s.entry.Value().AppendCanonical(nil)
	return s, nil
}

// check names every number of a service that is out of its bounds (conformance row H12).
func (s *service) check() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(canon.CheckString(s.Name, 256) != nil, "the name must be 1 to 256 bytes of UTF-8")
	fault(s.Authentication != wire.AuthenticationNone && s.Authentication != wire.AuthenticationBRC103,
		"authentication %q is neither none nor brc103", s.Authentication)
	fault(s.Access != AccessOpen && s.Access != AccessList, "access %q is neither open nor list", s.Access)
	fault(s.Authentication == wire.AuthenticationNone && (s.Access != AccessOpen || s.Hidden),
		"access: list and hidden need authentication: brc103")
	fault(s.SessionSeconds == 0 || s.SessionSeconds > math.MaxInt32, "sessionSeconds must be 1 to %d", math.MaxInt32)
	fault(s.ReplaySeconds == 0 || s.ReplaySeconds > math.MaxInt32, "replaySeconds must be 1 to %d", math.MaxInt32)
	fault(s.MaxRequestBytes == 0 || s.MaxRequestBytes > wire.MaxRequestBytes, "maxRequestBytes must be 1 to %d", wire.MaxRequestBytes)
	fault(s.MaxResponseBytes < wire.MinResponseBytes || s.MaxResponseBytes > wire.MaxResponseBytes,
		"maxResponseBytes must be %d to %d", wire.MinResponseBytes, wire.MaxResponseBytes)
	fault(s.MaxObservations == 0 || s.MaxObservations > wire.MaxObservations, "maxObservations must be 1 to %d", wire.MaxObservations)
	fault(s.MaxWaitMs > wire.MaxWaitMs, "maxWaitMs must be at most %d", wire.MaxWaitMs)
	return errors.Join(faults...)
}

// scope is what a session's observations are about (BRC-192 s1). A service is spoken for by the provider's identity when the
// session is authenticated, else by its origin.
func (p *shard) scope(s *service, epoch string, principal *[33]byte, queryDigest string) wire.Scope {
	speaker := p.origin
	if principal != nil {
		speaker = p.identityHex
	}
	return wire.Scope{
		Chain: p.chain, Provider: speaker, Service: s.Name, QueryDigest: queryDigest,
		RulesDigest: s.rulesDigest, Access: p.access(s, principal), Epoch: epoch,
	}
}

// authenticate makes the BRC-104 server if any service needs it.
func (p *Provider) authenticate(ctx context.Context, c Config) error {
	if !slices.ContainsFunc(p.names, func(name string) bool {
		return p.services[name].Authentication == wire.AuthenticationBRC103
	}) {
		return nil
	}
	if err := p.refreshRing(ctx); err != nil {
		return err
	}
	auth, err := brc104.New(brc104.Config{
		Key: secp256k1.PrivKeyFromBytes(c.Identity.Serialize()), Sessions: p, ErrorBody: p.unsignedBody, Log: p.log,
	})
	if err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	p.auth = auth
	var foreign int64
	for _, d := range p.shards {
		var there int64
		err = d.pool.QueryRow(ctx, `select count(*) from lookup_session
			where principal is not null and state = $1 and position(convert_to($2, 'UTF8') in scope) = 0`,
			stateOpen, p.identityHex).Scan(&there)
		if err != nil {
			return fmt.Errorf("lookup: count the sessions of another identity: %w", err)
		}
		foreign += there
	}
	if foreign > 0 {
		p.log.WarnContext(ctx, "the identity is another one than before: authenticated sessions that were opened under it are reset", "sessions", foreign)
	}
	return nil
}

// Run renews the manifest before it is half way through its life, reads the session secrets, forgets what is no longer
// promised (see [Retention]), and tells other nodes of sessions that ended here, until ctx ends.
func (p *Provider) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	for _, d := range p.shards { // none waits for a database that is away
		keeping.Go(func() { d.retainLoop(ctx) })
		keeping.Go(func() { d.gaugeLoop(ctx) })
		keeping.Go(func() { d.spreadLoop(ctx) })
	}
	defer keeping.Wait()
	secrets := time.NewTicker(secretRefresh)
	defer secrets.Stop()
	every := min(max(time.Duration(p.manifestSeconds)*time.Second/8, time.Second), time.Minute)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-secrets.C:
			if p.auth == nil {
				continue
			}
			if err := p.refreshRing(ctx); err != nil && ctx.Err() == nil {
				p.log.ErrorContext(ctx, "the session secrets could not be read; trying again", "cause", err.Error())
			}
		case <-tick.C:
			if _, err := p.current(ctx, nil); err != nil && ctx.Err() == nil {
				p.log.ErrorContext(ctx, "capabilities could not be renewed; trying again", "cause", err.Error())
			}
		}
	}
}

// Stop lets every waiting poll answer at once with a whole, valid batch. Call it before shutting the HTTP server down.
func (p *Provider) Stop() { p.closing.stop() }
