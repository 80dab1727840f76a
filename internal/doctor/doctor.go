package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/config"
)

// Verdict says how well something is.
type Verdict string

// The verdicts, from best to worst.
const (
	OK      Verdict = "ok"
	Warning Verdict = "warning"
	Failure Verdict = "failure"
)

func (v Verdict) rank() int {
	switch v {
	case OK:
		return 0
	case Warning:
		return 1
	}
	return 2
}

// Finding is what one check has to say.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`        // one sentence without its full stop
	Do      string  `json:"do,omitempty"` // one sentence without its full stop; empty when all is well
}

// Options say what is examined and by what means.
type Options struct {
	// Config is the configuration in force. Required.
	Config *config.Config
	// Identity reads the identity key and returns the public key, 66 hex characters. Nil leaves the check out.
	Identity func() (string, error)
	// Token reads the operator token. Nil leaves the check out.
	Token func() error
	// Unreachable puts an error of connecting to a database into one sentence without secrets. Nil names the database and nothing
	// of the cause.
	Unreachable func(url string, err error) error
	// Nodes is how many processes share the database. Zero means 1.
	Nodes int
	// Timeout bounds each check. Zero means 10 s.
	Timeout time.Duration
	// Offline leaves out what asks the public URL.
	Offline bool
	// Transport asks the public URL; nil means one of its own. It must not follow redirects.
	Transport http.RoundTripper
	// Roots are the certificates that clients trust. Nil means this machine's.
	Roots *x509.CertPool
	// Now is this machine's clock. Nil means time.Now.
	Now func() time.Time

	limits *limits // nil: those in force
}

const defaultTimeout = 10 * time.Second

// Examine makes every check and returns what each found, in a fixed order.
func Examine(ctx context.Context, o Options) []Finding {
	x := &examination{Options: o}
	if x.Now == nil {
		x.Now = time.Now
	}
	x.Nodes = max(x.Nodes, 1)
	x.Timeout = cmp.Or(x.Timeout, defaultTimeout)
	if x.limits == nil {
		x.limits = defaultLimits()
	}
	x.url, x.feeds = o.Config.Database.URL, x.feedsAt(o.Config.Database.URL)
	findings := x.all(ctx, checks())
	seen := map[string]bool{x.url: true}
	for _, f := range o.Config.Feeds {
		if to := f.Database.URL; to != "" && !seen[to] {
			seen[to] = true
			other := &examination{Options: x.Options, url: to, feeds: x.feedsAt(to)}
			for _, found := range other.all(ctx, databaseChecks()) {
				found.Check += "@" + f.Name
				findings = append(findings, found)
			}
		}
	}
	return findings
}

// all makes checks, each when what it needs is there.
func (x *examination) all(ctx context.Context, list []check) []Finding {
	defer x.close(context.WithoutCancel(ctx))
	var left []string
	for _, c := range list {
		if c.needs != nil && !c.needs(x) {
			left = append(left, c.name)
			continue
		}
		if f, made := x.make(ctx, c); made {
			x.findings = append(x.findings, f)
		}
	}
	x.tellLeft(left)
	return x.findings
}

// feedsAt are the feeds that live in a database.
func (x *examination) feedsAt(url string) []string {
	own := map[string]string{}
	for _, f := range x.Config.Feeds {
		own[f.Name] = f.Database.URL
	}
	return slices.DeleteFunc(x.Config.FeedNames(), func(name string) bool {
		return cmp.Or(own[name], x.Config.Database.URL) != url
	})
}

// examination is one Examine.
type examination struct {
	Options
	url      string   // of the database
	feeds    []string // that live there
	findings []Finding

	// What a check found out for later ones; nil and zero where it did not.
	plain    *pgx.Conn // with the settings of the URL alone
	own      *pgx.Conn // with overlayd's own besides
	migrated bool
	pooled   bool   // in transactions: what a session keeps does not hold
	identity string // public key
	room     *room  // of the database's disk
}

// check is one question. A nil needs means that it can always be asked.
type check struct {
	name  string
	needs func(*examination) bool
	ask   func(*examination, context.Context) (Finding, error)
}

func checks() []check {
	return slices.Concat([]check{
		{"configuration", nil, (*examination).configuration},
		{"identity", nil, (*examination).identityKey},
		{"operator.token", nil, (*examination).operatorToken},
		{"operator.listen", nil, (*examination).operatorListen},
		{"stateFile", nil, (*examination).stateFile},
		{"tls", nil, (*examination).certificate},
		{"proxy", nil, (*examination).proxy},
		{"public", nil, (*examination).publicURL},
	}, databaseChecks(), []check{{"quotas", nil, (*examination).quotas}})
}

// databaseChecks are made of each database that feeds live in. A later one builds on what an earlier one found out.
func databaseChecks() []check {
	reached := func(x *examination) bool { return x.plain != nil }
	prepared := func(x *examination) bool { return x.own != nil }
	migrated := func(x *examination) bool { return x.migrated && x.own != nil }
	return []check{
		{"database.connection", nil, (*examination).connection},
		{"database.version", reached, (*examination).version},
		{"database.role", reached, (*examination).role},
		{"database.durability", reached, (*examination).durability},
		{"database.checksums", reached, (*examination).checksums},
		{"database.connections", reached, (*examination).connections},
		{"database.pooler", reached, (*examination).pooler},
		{"clock", reached, (*examination).clock},
		{"database.settings", reached, (*examination).settings},
		{"database.timeouts", prepared, (*examination).timeouts},
		{"database.listener", prepared, (*examination).listener},
		{"database.transactions", reached, (*examination).transactions},
		{"migrations", reached, (*examination).migrations},
		{"database.autovacuum", reached, (*examination).autovacuum},
		{"disk", nil, (*examination).disk},
		{"sessions", migrated, (*examination).sessions},
	}
}

// errNothing is of a check that has no question here.
var errNothing = errors.New("there is nothing to check")

// make asks one question within its time (D4).
func (x *examination) make(ctx context.Context, c check) (f Finding, made bool) {
	ctx, cancel := context.WithTimeout(ctx, x.Timeout)
	defer cancel()
	f, err := c.ask(x, ctx)
	switch {
	case errors.Is(err, errNothing):
		return f, false
	case err != nil && ctx.Err() != nil:
		f = failure(fmt.Sprintf("no answer came within %s", x.Timeout), "see what the database is busy with, or give --timeout more")
	case err != nil:
		f = failure(fmt.Sprintf("it could not be found out: %v", err), "remove the cause and run this again")
	}
	f.Check, f.Found, f.Do = c.name, sentence(f.Found), sentence(f.Do)
	return f, true
}

// sentence makes one of what errors say in several (D2).
func sentence(text string) string {
	return strings.ReplaceAll(strings.TrimRight(text, ".\n"), "\n", "; ")
}

// tellLeft adds to the finding that the others needed.
func (x *examination) tellLeft(left []string) {
	if len(left) == 0 {
		return
	}
	for i := range x.findings {
		f := &x.findings[i]
		needed := f.Check == "database.connection" && x.plain == nil || f.Check == "database.settings" && x.own == nil ||
			f.Check == "migrations" && x.own != nil && !x.migrated
		if needed && f.Verdict == Failure {
			f.Found += fmt.Sprintf("; %d checks that need it were not made", len(left))
			return
		}
	}
}

func (x *examination) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, conn := range []*pgx.Conn{x.plain, x.own} {
		if conn != nil {
			_ = conn.Close(ctx) // it is thrown away, whatever it says
		}
	}
}

// Worst is the worst verdict of all, [OK] of none.
func Worst(findings []Finding) Verdict {
	worst := OK
	for _, f := range findings {
		if f.Verdict.rank() > worst.rank() {
			worst = f.Verdict
		}
	}
	return worst
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Found: fmt.Sprintf(format, args...)}
}

func warning(found, do string) Finding { return Finding{Verdict: Warning, Found: found, Do: do} }
func failure(found, do string) Finding { return Finding{Verdict: Failure, Found: found, Do: do} }

// worstOf is the one of several answers to the same question that matters most: the first of the worst.
func worstOf(first Finding, others ...Finding) Finding {
	for _, f := range others {
		if f.Verdict.rank() > first.Verdict.rank() {
			first = f
		}
	}
	return first
}
