package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Config is everything a provider can be told. The keys of the YAML file are
// the koanf tags; "Default" is what holds when no layer says anything.
type Config struct {
	// BaseURL is the public base of every endpoint, as clients write it. It is
	// never taken from request headers; a change issues a new manifest, and old
	// sessions keep the scope they were opened with. Canonical by BRC-194 s6:
	// https (http only with LocalDevelopment), lower-case host, no default port,
	// no trailing slash, at most 2048 bytes. Default: none, serve needs one.
	BaseURL string `koanf:"baseURL"`
	// LocalDevelopment allows an http base URL. Default: false; dev sets it.
	LocalDevelopment bool `koanf:"localDevelopment"`
	// PlainListener says that Listen speaks plain HTTP although BaseURL is https,
	// because a proxy in front of it ends TLS. Default: false.
	PlainListener bool `koanf:"plainListener"`
	// Chain is what every feed of this provider is about.
	Chain Chain `koanf:"chain"`
	// Identity is the key that signs the manifest.
	Identity Identity `koanf:"identity"`
	// Listen is the public listener, host:port; an empty host means every
	// address. Default: ":8443".
	Listen string `koanf:"listen"`
	// Operator is the private listener.
	Operator Operator `koanf:"operator"`
	// Database holds feeds, sessions, fences and manifests.
	Database Database `koanf:"database"`
	// StateFile is a small file of this process's own, outside the database, that
	// remembers how far every feed had come: a database that was set back while
	// nothing ran is then found out at start, and the epochs it broke are broken.
	// One file a process, on a disk that no restore of the database touches; a
	// missing one is made. A database of feeds besides the main one has a file
	// beside it, whose name has a dash and the database's id added. Default: none, and then only what this process, a
	// cursor or another node has seen since gives a restore away; dev keeps one.
	StateFile string `koanf:"stateFile"`
	// Limits bound the work and memory of feeds.
	Limits Limits `koanf:"limits"`
	// Retention is about what nobody is promised any more.
	Retention Retention `koanf:"retention"`
	// Quotas bound what clients may ask for and leave behind.
	Quotas Quotas `koanf:"quotas"`
	// TLS on the public listener itself. Default: none, a proxy in front ends it.
	TLS TLS `koanf:"tls"`
	// CORS is what browsers of other origins may do.
	CORS CORS `koanf:"cors"`
	// ManifestSeconds is how long an issued manifest may be used for a new Open;
	// it is renewed at half its life. Bounds: 1..31536000 s. Default: 86400 s.
	ManifestSeconds uint64 `koanf:"manifestSeconds"`
	// TrustedProxies are the addresses or networks (CIDR) whose X-Forwarded-For
	// counts when the client address is looked for. Default: none, the address
	// of the connection is the client's.
	TrustedProxies []string `koanf:"trustedProxies"`
	// ShutdownSeconds is how long running requests may take to finish when the
	// program is asked to stop; then they are cut. Bounds: 1..3600 s. Default: 30 s.
	ShutdownSeconds uint64 `koanf:"shutdownSeconds"`
	// Log is about the program's own log on stderr.
	Log Log `koanf:"log"`
	// Feeds lists feeds that need a setting of their own, or that no service
	// shows yet. A feed a service names need not be listed. Default: none.
	Feeds []Feed `koanf:"feeds"`
	// Services are what clients can open. serve needs at least one, at most 256.
	Services []Service `koanf:"services"`
}

// Chain names the chain of every feed; fixed for a feed's life.
type Chain struct {
	// Network is the operator's name of the chain, 1..64 bytes. Default: none.
	Network string `koanf:"network"`
	// GenesisHash is the hash of its first block, 64 lower-case hex characters
	// in display order. Default: none.
	GenesisHash string `koanf:"genesisHash"`
}

// Identity is the provider's key: the manifest and every answer to an
// authenticated request are signed with it. Another identity belongs on another
// origin: changing it ends authenticated sessions.
type Identity struct {
	// KeyFile holds the private key, as 64 hex characters or as WIF; nobody but
	// its owner may be able to read the file. Default: none, serve needs one or
	// Key; dev generates one and keeps it.
	KeyFile string `koanf:"keyFile"`
	// Key is the private key itself, for where secrets come as variables. It is
	// read from OVERLAYD_IDENTITY_KEY alone and wins over KeyFile. Default: none.
	Key string `koanf:"key"`
}

// Operator is the private listener for engines and operators.
type Operator struct {
	// Listen is its host:port. Default: "127.0.0.1:8081".
	Listen string `koanf:"listen"`
	// TokenFile holds the bearer token, 16..1024 visible ASCII characters.
	// Default: none, serve needs one; dev generates one and keeps it.
	TokenFile string `koanf:"tokenFile"`
}

// Database is the connection of the provider.
type Database struct {
	// URL is a Postgres URL or keyword string. Default: none, serve needs one;
	// dev starts a private Postgres when it is absent.
	URL string `koanf:"url"`
	// MaxConnections bounds the pool that requests use, of each database. Bounds: 4..1000.
	// Default: 20.
	MaxConnections uint32 `koanf:"maxConnections"`
	// WriterConnections bounds the pool that commits, timers and LISTEN use, of each
	// database, so that readers can never starve them. Bounds: 3..100. Default: 6.
	WriterConnections uint32 `koanf:"writerConnections"`
	// Notifications wakes waiting polls through LISTEN and NOTIFY, over one
	// connection of a process. Turn it off behind a pooler that cannot keep a
	// session: polls are then woken by PollMs alone. Default: true.
	Notifications bool `koanf:"notifications"`
	// PollMs is how often the heads of all feeds are read in case a notification
	// was lost. Bounds: 10..60000 ms. Default: 250 ms.
	PollMs uint32 `koanf:"pollMs"`
}

// Limits bound the work and memory of each feed in a process.
type Limits struct {
	// QueueBytes is how much may wait for a feed's committer; appends wait above
	// it. Bounds: 16777216..1073741824 bytes. Default: 67108864.
	QueueBytes uint32 `koanf:"queueBytes"`
	// ScanRows is how many rows a snapshot page examines before it answers with
	// what it has. Bounds: 1024..1000000. Default: 8192.
	ScanRows uint32 `koanf:"scanRows"`
	// ScanBytes is how much log a live read examines before it answers with what
	// it has. Bounds: 1048576..268435456 bytes. Default: 8388608.
	ScanBytes uint32 `koanf:"scanBytes"`
	// TailGroups is how many of a feed's last groups are kept in memory for those
	// who follow it, and TailBytes how many bytes they take there, about. With 0 of
	// either none is kept, and every read asks the database.
	// Bounds: 0..65536 groups, 0..1073741824 bytes. Defaults: 1024 and 8388608.
	TailGroups uint32 `koanf:"tailGroups"`
	TailBytes  uint32 `koanf:"tailBytes"`
}

// Retention is how what nobody is promised any more is removed: log and row
// versions that no session needs, ended sessions, old manifests.
type Retention struct {
	// EverySeconds is how long after a round the next one begins. Of all processes
	// on a database one works at a time; 0 leaves it to others, and when it is 0 in
	// all of them disk use grows for ever. Bounds: 0..3600 s. Default: 30 s.
	EverySeconds uint32 `koanf:"everySeconds"`
}

// Quotas bound what clients may ask for and leave behind (row O10). A client is
// an identity, or for anonymous callers an address, of IPv6 its /64 (see
// TrustedProxies).
//
// The first group is about load and is counted by each process by itself; what is
// above it is answered `unavailable`, to be tried again. The second group is about
// what lasts and is counted in the database, over all processes; above it an Open
// is `limited`.
type Quotas struct {
	// OpensPerSecond is how many new sessions a client may open a second, on
	// average. A fraction is allowed. Bounds: 0.001..1000000. Default: 20.
	OpensPerSecond float64 `koanf:"opensPerSecond"`
	// OpenBurst is how many it may open at once after a rest. Bounds: 1..1000000.
	// Default: 200.
	OpenBurst uint32 `koanf:"openBurst"`
	// ServiceOpensPerSecond is the same rate for all clients of a service
	// together. Bounds: 0.001..1000000. Default: 500.
	ServiceOpensPerSecond float64 `koanf:"serviceOpensPerSecond"`
	// ServiceOpenBurst is their burst. Bounds: 1..1000000. Default: 2000.
	ServiceOpenBurst uint32 `koanf:"serviceOpenBurst"`
	// Clients is of how many clients it is remembered how fast they open; those
	// beyond share one rate. 16384 take about 4 MB. Bounds: 1..1000000.
	// Default: 16384.
	Clients uint32 `koanf:"clients"`
	// Waiters bounds the long polls that sleep. Bounds: 1..1000000. Default: 20000.
	Waiters uint32 `koanf:"waiters"`
	// WaitersPerClient bounds those of one client. Bounds: 1..1000000.
	// Default: 1000.
	WaitersPerClient uint32 `koanf:"waitersPerClient"`
	// Requests bounds the answers under way at once for each database, from the
	// look at the session until they are signed; each may take a few times
	// maxResponseBytes of memory. 0 means eight for each processor, at least 16.
	// Bounds: 0..100000. Default: 0.
	Requests uint32 `koanf:"requests"`
	// RequestsWaiting bounds the requests that wait for their turn to be built.
	// Bounds: 1..1000000. Default: 4096.
	RequestsWaiting uint32 `koanf:"requestsWaiting"`
	// RequestWaitMs is how long each of them waits. Bounds: 1..60000 ms.
	// Default: 5000.
	RequestWaitMs uint32 `koanf:"requestWaitMs"`
	// BodyBytes bounds the finished answers that the process holds because their
	// peers have not taken them yet. Bounds: 8388608..1099511627776 bytes.
	// Default: 268435456.
	BodyBytes uint64 `koanf:"bodyBytes"`
	// BodyBytesPerClient bounds those of one client. Bounds:
	// 8388608..1099511627776 bytes. Default: 134217728.
	BodyBytesPerClient uint64 `koanf:"bodyBytesPerClient"`
	// BodyBytesPerSecond is how slowly a peer may take an answer, besides 15 s
	// that it has for any; then the answer is cut off. Bounds: 1..1000000000
	// bytes a second. Default: 16384.
	BodyBytesPerSecond uint32 `koanf:"bodyBytesPerSecond"`

	// SessionsPerClient bounds the sessions of one service that a client holds:
	// opened, not closed, replayUntil not reached. Bounds: 1..1000000000.
	// Default: 256.
	SessionsPerClient uint64 `koanf:"sessionsPerClient"`
	// Sessions bounds the sessions that a service holds. Bounds: 1..1000000000.
	// Default: 100000.
	Sessions uint64 `koanf:"sessions"`
	// RetainedBytes bounds what those keep in the database: first answers and
	// requests. Row versions and log are not counted. Bounds:
	// 65536..1125899906842624 bytes. Default: 10737418240.
	RetainedBytes uint64 `koanf:"retainedBytes"`
}

// TLS names the files of a certificate; both or none. With them the public
// listener speaks TLS 1.2 or newer and HTTP/2. They are read again when they
// change, without a restart.
type TLS struct {
	// CertFile is the PEM certificate chain, the server's own first. Default: none.
	CertFile string `koanf:"certFile"`
	// KeyFile is its PEM private key. Default: none.
	KeyFile string `koanf:"keyFile"`
}

// Set reports whether the public listener speaks TLS.
func (t TLS) Set() bool { return t != TLS{} }

// CORS is for browsers.
type CORS struct {
	// Origins may read answers, exactly as browsers write them (scheme, host,
	// port); never with credentials, no wildcard. Default: none.
	Origins []string `koanf:"origins"`
}

// Log is about the program's own log.
type Log struct {
	// Level is the least important level written: debug, info, warn or error.
	// Default: info.
	Level string `koanf:"level"`
	// Format is text, json or auto (text on a terminal, else json). Default: auto.
	Format string `koanf:"format"`
}

// Feed is a feed with a setting of its own.
type Feed struct {
	// Name is the feed's name, 1..64 of [A-Za-z0-9_.-], not starting with a dot.
	Name string `koanf:"name"`
	// Database is where this feed lives, for its life: a configuration that names
	// another is refused at start, since rows, log and sessions would be left
	// behind. Default: the provider's database.
	Database FeedDatabase `koanf:"database"`
}

// FeedDatabase is the database of one feed: rows, log, fences, sessions, grants and
// prohibitions are all there. The provider's own database stays the main one, with
// the manifests and the secrets that nodes share, and is the same for every node.
// Each database has two pools of its own, with all settings of database but url.
type FeedDatabase struct {
	// URL is as database.url; feeds that write the same URL share a database.
	// Default: database.url.
	URL string `koanf:"url"`
}

// Service is one thing clients can open. Its fields but Name, Feed, Access and
// Hidden are in the manifest as they are here (H6).
type Service struct {
	// Name is what clients open, 1..256 bytes; unique.
	Name string `koanf:"name"`
	// Feed is the feed it shows. Default: Name.
	Feed string `koanf:"feed"`
	// Authentication is none, or brc103: every request is signed by its caller's
	// identity and every answer by the provider's. Default: none.
	Authentication string `koanf:"authentication"`
	// Access of a brc103 service is open to whoever proves an identity, or list:
	// to those the operator granted it. Default: open.
	Access string `koanf:"access"`
	// Rules are the selection rules and their parameters.
	Rules Rules `koanf:"rules"`
	// Hidden leaves a brc103 service out of the manifest of callers it does not
	// admit: to them it does not exist. Default: false.
	Hidden bool `koanf:"hidden"`
	// SessionSeconds is how long a session may be read, fixed at open: a scan
	// and a long follow must fit, and each session pins row versions that long.
	// Bounds: 1..31536000 s. Default: 86400 s.
	SessionSeconds uint64 `koanf:"sessionSeconds"`
	// ReplaySeconds is how much longer its records are kept. Bounds:
	// 1..31536000 s. Default: 3600 s.
	ReplaySeconds uint64 `koanf:"replaySeconds"`
	// MaxRequestBytes bounds a request body. Bounds: 4096..1048576 bytes.
	// Default: 1048576.
	MaxRequestBytes uint32 `koanf:"maxRequestBytes"`
	// MaxResponseBytes bounds a response body. Bounds: 65536..4194304 bytes.
	// Default: 4194304.
	MaxResponseBytes uint32 `koanf:"maxResponseBytes"`
	// MaxObservations bounds the observations of a response. Bounds: 1..1024.
	// Default: 1024.
	MaxObservations uint32 `koanf:"maxObservations"`
	// MaxWaitMs bounds a long poll. Bounds: 0..25000 ms. Default: 25000.
	MaxWaitMs uint32 `koanf:"maxWaitMs"`
}

// Rules names an installed rules contract.
type Rules struct {
	// ID is the contract's IRI. Default: none.
	ID string `koanf:"id"`
	// Parameters is an object whose schema the contract fixes. Default: {}.
	Parameters map[string]any `koanf:"parameters"`
}

// ParametersJSON is the parameters as JSON.
func (r Rules) ParametersJSON() (json.RawMessage, error) {
	if r.Parameters == nil {
		return json.RawMessage("{}"), nil
	}
	data, err := json.Marshal(r.Parameters)
	if err != nil {
		return nil, fmt.Errorf("rules %s: parameters cannot be written as JSON: %w", r.ID, err)
	}
	return data, nil
}

// FeedNames are the feeds of the configuration, each once, sorted: those that
// services show and those that are listed.
func (c *Config) FeedNames() []string {
	var names []string
	for _, f := range c.Feeds {
		names = append(names, f.Name)
	}
	for _, s := range c.Services {
		names = append(names, s.Feed)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Elsewhere is a database besides the main one, with the feeds that live there.
type Elsewhere struct {
	URL   string
	Feeds []string // sorted
}

// Elsewhere lists the databases besides database.url, in the order of the names of
// their first feeds: the order of the file means nothing.
func (c *Config) Elsewhere() []Elsewhere {
	var all []Elsewhere
	for _, f := range slices.SortedFunc(slices.Values(c.Feeds), func(a, b Feed) int { return strings.Compare(a.Name, b.Name) }) {
		if f.Database.URL == "" || f.Database.URL == c.Database.URL {
			continue
		}
		at := slices.IndexFunc(all, func(e Elsewhere) bool { return e.URL == f.Database.URL })
		if at < 0 {
			at = len(all)
			all = append(all, Elsewhere{URL: f.Database.URL})
		}
		all[at].Feeds = append(all[at].Feeds, f.Name)
	}
	return all
}

// defaults is the lowest layer, keyed as in the file.
func defaults() map[string]any {
	return map[string]any{
		"listen":                       ":8443",
		"operator.listen":              "127.0.0.1:8081",
		"database.maxConnections":      20,
		"database.writerConnections":   6,
		"database.notifications":       true,
		"database.pollMs":              250,
		"limits.queueBytes":            64 << 20,
		"limits.scanRows":              8192,
		"limits.scanBytes":             8 << 20,
		"limits.tailGroups":            1024,
		"limits.tailBytes":             8 << 20,
		"retention.everySeconds":       30,
		"quotas.opensPerSecond":        20,
		"quotas.openBurst":             200,
		"quotas.serviceOpensPerSecond": 500,
		"quotas.serviceOpenBurst":      2000,
		"quotas.clients":               16384,
		"quotas.waiters":               20000,
		"quotas.waitersPerClient":      1000,
		"quotas.requests":              0,
		"quotas.requestsWaiting":       4096,
		"quotas.requestWaitMs":         5000,
		"quotas.bodyBytes":             256 << 20,
		"quotas.bodyBytesPerClient":    128 << 20,
		"quotas.bodyBytesPerSecond":    16384,
		"quotas.sessionsPerClient":     256,
		"quotas.sessions":              100000,
		"quotas.retainedBytes":         10 << 30,
		"manifestSeconds":              86400,
		"shutdownSeconds":              30,
		"log.level":                    "info",
		"log.format":                   "auto",
	}
}

// serviceDefaults is what a service is when it says nothing; Feed follows Name.
func serviceDefaults() map[string]any {
	return map[string]any{
		"authentication":   "none",
		"access":           "open",
		"hidden":           false,
		"sessionSeconds":   86400,
		"replaySeconds":    3600,
		"maxRequestBytes":  1 << 20,
		"maxResponseBytes": 4 << 20,
		"maxObservations":  1024,
		"maxWaitMs":        25000,
	}
}
