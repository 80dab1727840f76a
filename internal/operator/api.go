package operator

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// Config is what the API is made of.
type Config struct {
	// Store holds the feeds.
	Store Feeds
	// Access changes and lists who may read.
	Access Access
	// Token is the bearer token, at least [MinToken] bytes.
	Token string
	// Sessions counts the sessions of a feed. Nil counts none.
	Sessions func(ctx context.Context, feed string) (lookup.SessionCount, error)
	// Checks are what /readyz asks, in order.
	Checks []Check
	// Metrics is what /metrics shows, and where the API registers its own.
	Metrics *prometheus.Registry
	// Log gets the causes of failures. Nil means slog.Default.
	Log *slog.Logger
}

// Check is one question of /readyz.
type Check struct {
	// Name is the check's name in the answer.
	Name string
	// Advisory checks are shown but do not make the provider unready.
	Advisory bool
	// Probe returns nil when all is well; its error is logged and its text is
	// not shown.
	Probe func(ctx context.Context) error
}

// MinToken is the shortest token accepted, in bytes.
const MinToken = 16

// probeTimeout bounds one answer of /readyz.
const probeTimeout = 3 * time.Second

// answerWithin bounds every request but an import, which is as long as its
// lines: what a database that hangs has not said by then is unavailable.
const answerWithin = time.Minute

const importPath = "/feeds/:feed/import"

// API is the operator API. It is an [http.Handler].
type API struct {
	// Immutable.
	store    Feeds
	access   Access
	token    [sha256.Size]byte
	sessions func(ctx context.Context, feed string) (lookup.SessionCount, error)
	checks   []Check
	log      *slog.Logger
	echo     *echo.Echo
	metrics  metrics
	within   time.Duration // answerWithin, but for tests

	drain    sync.Once
	draining chan struct{} // closed by Drain
}

type metrics struct {
	requests *prometheus.CounterVec // route, status
	lines    *prometheus.CounterVec // feed, result
}

// New makes the API.
func New(c Config) (*API, error) {
	if len(c.Token) < MinToken {
		return nil, fmt.Errorf("the operator token has %d bytes; use at least %d", len(c.Token), MinToken)
	}
	if c.Store == nil || c.Access == nil {
		return nil, errors.New("the operator API needs Store and Access")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	a := &API{
		store:    c.Store,
		access:   c.Access,
		token:    sha256.Sum256([]byte(c.Token)),
		sessions: c.Sessions,
		checks:   c.Checks,
		log:      c.Log,
		echo:     echo.New(),
		draining: make(chan struct{}),
		within:   answerWithin,
		metrics: metrics{
			requests: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "overlayd_operator_requests_total", Help: "Requests to the operator API, by route and status.",
			}, []string{"route", "status"}),
			lines: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "overlayd_import_lines_total", Help: "Lines answered by imports, by feed and result (appended, replayed or the error code).",
			}, []string{"feed", "result"}),
		},
	}
	if err := errors.Join(c.Metrics.Register(a.metrics.requests), c.Metrics.Register(a.metrics.lines)); err != nil {
		return nil, fmt.Errorf("registering the operator API's metrics: %w", err)
	}

	e := a.echo
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.refuse
	e.Use(a.count, a.guard, a.bound)
	e.GET("/healthz", a.health)
	e.GET("/readyz", a.ready)
	e.GET("/metrics", echo.WrapHandler(promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	})))
	e.GET(profilesPath+"/:name", a.profileOf)
	v1 := e.Group("/operator/v1")
	v1.GET("/feeds", a.feeds)
	v1.GET("/feeds/:feed", a.feed)
	v1.POST("/feeds/:feed/groups", a.appendGroup)
	v1.POST(importPath, a.importGroups)
	v1.POST("/feeds/:feed/epoch", a.rotate)
	v1.PUT("/feeds/:feed/prohibitions/:outpoint", a.prohibit)
	v1.DELETE("/feeds/:feed/prohibitions/:outpoint", a.allow)
	v1.GET("/quotas", a.quotas)
	v1.GET("/sessions", a.listSessions)
	v1.DELETE("/sessions/:ref", a.removeSession)
	v1.PUT("/services/:service/grants/:identity", a.grant)
	v1.DELETE("/services/:service/grants/:identity", a.revoke)
	return a, nil
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.echo.ServeHTTP(w, r) }

// Drain begins the end: /readyz says no, running imports stop reading, answer
// what they have taken and end. It may be called more than once.
func (a *API) Drain() { a.drain.Do(func() { close(a.draining) }) }

// bound is the middleware that ends a request's work in time.
func (a *API) bound(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if strings.HasSuffix(c.Path(), importPath) {
			return next(c)
		}
		whole := c.Request()
		ctx, cancel := context.WithTimeout(whole.Context(), a.within)
		defer cancel()
		c.SetRequest(whole.WithContext(ctx))
		defer c.SetRequest(whole)
		return next(c)
	}
}

// isDraining reports whether Drain was called.
func (a *API) isDraining() bool {
	select {
	case <-a.draining:
		return true
	default:
		return false
	}
}

// count is the outermost middleware: one metric, one set of headers, and no
// panic that takes anything with it but its own request.
func (a *API) count(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		c.Response().Header().Set(echo.HeaderCacheControl, "private, no-store")
		defer func() {
			if r := recover(); r != nil {
				if r == http.ErrAbortHandler {
					panic(r)
				}
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
			if err != nil {
				c.Error(err)
				err = nil
			}
			a.metrics.requests.WithLabelValues(c.Path(), fmt.Sprint(c.Response().Status)).Inc()
		}()
		return next(c)
	}
}

// guard lets nobody without the token past liveness and readiness (P1), and
// keeps the router's own answer to OPTIONS away.
func (a *API) guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		open := c.Path() == "/healthz" || c.Path() == "/readyz"
		if !open && !a.admits(r.Header.Values(echo.HeaderAuthorization)) {
			return &wire.Error{Code: wire.Unauthorized, Message: "send the operator token as Authorization: Bearer <token>"}
		}
		if r.Method == http.MethodOptions {
			if allow, ok := c.Get(echo.ContextKeyHeaderAllow).(string); ok {
				c.Response().Header().Set(echo.HeaderAllow, allow)
			}
			if c.Path() != "" {
				return echo.ErrMethodNotAllowed
			}
		}
		return next(c)
	}
}

// admits compares digests, so that neither content nor length shows in the time.
func (a *API) admits(headers []string) bool {
	if len(headers) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(headers[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

// open finds the feed a path names.
func (a *API) open(c echo.Context) (*livefeed.Feed, error) {
	if f := a.store.Feed(param(c, "feed")); f != nil {
		return f, nil
	}
	return nil, notFound("there is no feed of this name; the configuration names the feeds")
}
