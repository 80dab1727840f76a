package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// year bounds every span: deadlines stay far from where sums could wrap.
const year = 31536000

// maxServices is the most a manifest can hold (BRC-194 s1).
const maxServices = 256

// maxDatabases bounds the databases of feeds besides the main one: each takes pools,
// goroutines and a listening connection of every process.
const maxDatabases = 64

var (
	feedName  = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$`)
	logLevels = []string{"debug", "info", "warn", "error"}
	logForms  = []string{"auto", "text", "json"}
)

// Validate reports everything that keeps a provider from being served with this
// configuration (row H12), joined, one sentence each; nil when there is nothing.
func (c *Config) Validate() error {
	var v validator
	c.checkBase(&v)
	c.checkFiles(&v)
	c.checkListeners(&v)
	c.checkSpans(&v)
	c.checkFeeds(&v)
	c.checkServices(&v)
	return errors.Join(v.faults...)
}

type validator struct{ faults []error }

func (v *validator) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf(format, args...))
}

// within checks an inclusive range.
func (v *validator) within(key string, n, low, high uint64, unit string) {
	if n < low || n > high {
		v.fault("%s is %d; set it to %d..%d%s", key, n, low, high, unit)
	}
}

// rate checks an inclusive range of a number that may have a fraction.
func (v *validator) rate(key string, n, low, high float64) {
	if !(n >= low && n <= high) { // so that NaN is refused
		v.fault("%s is %s; set it to %s..%s", key, decimal(n), decimal(low), decimal(high))
	}
}

func (c *Config) checkBase(v *validator) {
	switch {
	case c.BaseURL == "":
		v.fault("baseURL is missing; set it to the https URL clients use")
	case strings.HasPrefix(c.BaseURL, "http://") && !c.LocalDevelopment:
		v.fault("baseURL %s is plain http; use https, or set localDevelopment: true on a development machine", c.BaseURL)
	default:
		canonical, err := wire.CanonicalBase(c.BaseURL, c.LocalDevelopment)
		switch {
		case err != nil:
			v.fault("baseURL %s is not usable: %w; correct it", c.BaseURL, err)
		case canonical != c.BaseURL:
			v.fault("baseURL %s is not in canonical form; write %s", c.BaseURL, canonical)
		case strings.HasPrefix(canonical, "https://") && !c.PlainListener && !c.TLS.Set():
			v.fault("baseURL is https but listen speaks plain HTTP; set tls.certFile and tls.keyFile, or put a TLS proxy in front and set plainListener: true")
		case strings.HasPrefix(canonical, "http://") && c.TLS.Set():
			v.fault("baseURL is http but listen speaks TLS; use an https baseURL, or remove tls")
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		v.fault("tls names one file of two; set both tls.certFile and tls.keyFile")
	}
	if c.TLS.Set() && c.PlainListener {
		v.fault("plainListener and tls contradict each other; remove one of them")
	}
	if err := canon.CheckString(c.Chain.Network, 64); err != nil {
		v.fault("chain.network is missing or longer than 64 bytes; set it to the name of the chain, such as main")
	}
	if _, err := canon.ParseHex32(c.Chain.GenesisHash); err != nil {
		v.fault("chain.genesisHash is not a block hash; set it to 64 lower-case hex characters")
	}
	for i, origin := range c.CORS.Origins {
		if !isOrigin(origin) {
			v.fault("cors.origins[%d] %q is no origin; write scheme://host[:port] as browsers do, without a wildcard", i, origin)
		}
	}
	for i, proxy := range c.TrustedProxies {
		if _, err := ParseProxy(proxy); err != nil {
			v.fault("trustedProxies[%d] %q is neither an address nor a network; write 192.0.2.7 or 192.0.2.0/24", i, proxy)
		}
	}
}

func (c *Config) checkFiles(v *validator) {
	if c.Identity.KeyFile == "" && c.Identity.Key == "" {
		v.fault("identity.keyFile is missing; name a file that holds the private key, or set OVERLAYD_IDENTITY_KEY, since a key that is lost at exit would end every promise made with it")
	}
	if c.Operator.TokenFile == "" {
		v.fault("operator.tokenFile is missing; name a file that holds the operator token")
	}
	if c.Database.URL == "" {
		v.fault("database.url is missing; set it to a Postgres URL, or OVERLAYD_DATABASE_URL in the environment")
	}
	v.within("database.maxConnections", uint64(c.Database.MaxConnections), 4, 1000, "")
	v.within("database.writerConnections", uint64(c.Database.WriterConnections), 3, 100, "")
	v.within("database.pollMs", uint64(c.Database.PollMs), 10, 60000, " milliseconds")
	v.within("limits.queueBytes", uint64(c.Limits.QueueBytes), 16<<20, 1<<30, " bytes")
	v.within("limits.scanRows", uint64(c.Limits.ScanRows), 1024, 1000000, "")
	v.within("limits.scanBytes", uint64(c.Limits.ScanBytes), 1<<20, 256<<20, " bytes")
	v.within("limits.tailGroups", uint64(c.Limits.TailGroups), 0, 65536, "")
	v.within("limits.tailBytes", uint64(c.Limits.TailBytes), 0, 1<<30, " bytes")
	v.within("retention.everySeconds", uint64(c.Retention.EverySeconds), 0, 3600, " seconds")
	c.Quotas.check(v)
}

func (q *Quotas) check(v *validator) {
	const many, lasting = 1000000, 1000000000
	v.rate("quotas.opensPerSecond", q.OpensPerSecond, 0.001, many)
	v.within("quotas.openBurst", uint64(q.OpenBurst), 1, many, "")
	v.rate("quotas.serviceOpensPerSecond", q.ServiceOpensPerSecond, 0.001, many)
	v.within("quotas.serviceOpenBurst", uint64(q.ServiceOpenBurst), 1, many, "")
	v.within("quotas.clients", uint64(q.Clients), 1, many, "")
	v.within("quotas.waiters", uint64(q.Waiters), 1, many, "")
	v.within("quotas.waitersPerClient", uint64(q.WaitersPerClient), 1, many, "")
	v.within("quotas.requests", uint64(q.Requests), 0, 100000, "")
	v.within("quotas.requestsWaiting", uint64(q.RequestsWaiting), 1, many, "")
	v.within("quotas.requestWaitMs", uint64(q.RequestWaitMs), 1, 60000, " milliseconds")
	v.within("quotas.bodyBytes", q.BodyBytes, 2*wire.MaxResponseBytes, 1<<40, " bytes")
	v.within("quotas.bodyBytesPerClient", q.BodyBytesPerClient, 2*wire.MaxResponseBytes, 1<<40, " bytes")
	v.within("quotas.bodyBytesPerSecond", uint64(q.BodyBytesPerSecond), 1, lasting, " bytes a second")
	v.within("quotas.sessionsPerClient", q.SessionsPerClient, 1, lasting, "")
	v.within("quotas.sessions", q.Sessions, 1, lasting, "")
	v.within("quotas.retainedBytes", q.RetainedBytes, wire.MinResponseBytes, 1<<50, " bytes")
}

func (c *Config) checkListeners(v *validator) {
	for _, l := range []struct{ key, addr string }{{"listen", c.Listen}, {"operator.listen", c.Operator.Listen}} {
		if err := checkAddr(l.addr); err != nil {
			v.fault("%s %q is no address; write host:port, such as 127.0.0.1:8080", l.key, l.addr)
		}
	}
	if c.Listen == c.Operator.Listen && !strings.HasSuffix(c.Listen, ":0") {
		v.fault("listen and operator.listen are both %s; give the operator API a port of its own", c.Listen)
	}
	if !slices.Contains(logLevels, c.Log.Level) {
		v.fault("log.level is %q; set it to one of %s", c.Log.Level, strings.Join(logLevels, ", "))
	}
	if !slices.Contains(logForms, c.Log.Format) {
		v.fault("log.format is %q; set it to one of %s", c.Log.Format, strings.Join(logForms, ", "))
	}
}

func (c *Config) checkSpans(v *validator) {
	v.within("manifestSeconds", c.ManifestSeconds, 1, year, " seconds")
	v.within("shutdownSeconds", c.ShutdownSeconds, 1, 3600, " seconds")
}

func (c *Config) checkFeeds(v *validator) {
	seen := map[string]bool{}
	if n := len(c.Elsewhere()); n > maxDatabases {
		v.fault("feeds name %d databases besides database.url; use at most %d in one provider", n, maxDatabases)
	}
	for i, f := range c.Feeds {
		key := fmt.Sprintf("feeds[%d]", i)
		if !feedName.MatchString(f.Name) {
			v.fault("%s.name %q is no feed name; use 1..64 of A-Z a-z 0-9 _ . - and no leading dot", key, f.Name)
		}
		if seen[f.Name] {
			v.fault("%s.name %s is listed twice; remove one", key, f.Name)
		}
		seen[f.Name] = true
	}
}

func (c *Config) checkServices(v *validator) {
	if n := len(c.Services); n == 0 || n > maxServices {
		v.fault("services holds %d entries; list 1..%d", n, maxServices)
	}
	seen := map[string]bool{}
	for i, s := range c.Services {
		key := fmt.Sprintf("services[%d]", i)
		if err := canon.CheckString(s.Name, 256); err != nil {
			v.fault("%s.name is missing or longer than 256 bytes; set it to the name clients open", key)
		} else {
			key = fmt.Sprintf("services[%d] (%s)", i, s.Name)
		}
		if seen[s.Name] {
			v.fault("%s: the name is used twice; rename one", key)
		}
		seen[s.Name] = true
		s.check(v, key)
	}
}

func (s *Service) check(v *validator, key string) {
	if !feedName.MatchString(s.Feed) {
		v.fault("%s: feed %q is no feed name; use 1..64 of A-Z a-z 0-9 _ . - and no leading dot", key, s.Feed)
	}
	switch s.Authentication {
	case "none":
		if s.Access != "open" {
			v.fault("%s: access %q needs authentication: brc103; set access: open", key, s.Access)
		}
		if s.Hidden {
			v.fault("%s: hidden needs authentication: brc103; set hidden: false", key)
		}
	case "brc103":
		if s.Access != "open" && s.Access != "list" {
			v.fault("%s: access %q is unknown; set it to open or list", key, s.Access)
		}
	default:
		v.fault("%s: authentication %q is unknown; set it to none or brc103", key, s.Authentication)
	}
	if s.Rules.ID == "" {
		v.fault("%s: rules.id is missing; name an installed rules contract, such as urn:overlayd:rules:attributes:1", key)
	}
	v.within(key+": sessionSeconds", s.SessionSeconds, 1, year, " seconds")
	v.within(key+": replaySeconds", s.ReplaySeconds, 1, year, " seconds")
	v.within(key+": maxRequestBytes", uint64(s.MaxRequestBytes), 4096, wire.MaxRequestBytes, " bytes")
	v.within(key+": maxResponseBytes", uint64(s.MaxResponseBytes), wire.MinResponseBytes, wire.MaxResponseBytes, " bytes")
	v.within(key+": maxObservations", uint64(s.MaxObservations), 1, wire.MaxObservations, "")
	v.within(key+": maxWaitMs", uint64(s.MaxWaitMs), 0, wire.MaxWaitMs, " milliseconds")
}

// ParseProxy reads an address or a network as a network.
func ParseProxy(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network", text)
	}
	return prefix.Masked(), nil
}

func checkAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q: %w", port, err)
	}
	return nil
}

// isOrigin reports whether text is an origin as a browser serialises it.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" &&
		text == u.Scheme+"://"+u.Host && text == strings.ToLower(text) && !strings.Contains(text, "*")
}
