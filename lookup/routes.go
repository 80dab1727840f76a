package lookup

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// BasePath is the path of the base URL, "" for the root: the group that Mount expects.
func (p *Provider) BasePath() string {
	u, err := url.Parse(p.baseURL)
	if err != nil {
		return ""
	}
	return u.EscapedPath()
}

// Mount adds the endpoints to a group that stands at the base URL's path. Behind a proxy, set the server's IPExtractor to one
// that trusts it: anonymous callers are told apart by the address that it finds (see [Quotas]).
func (p *Provider) Mount(g *echo.Group) {
	for _, route := range []struct {
		path, method string
		handle       echo.HandlerFunc
	}{
		{"/overlay/v1/capabilities", http.MethodGet, p.capabilities},
		{"/overlay/v1/lookup/open", http.MethodPost, p.open},
		{"/overlay/v1/lookup/read", http.MethodPost, p.read},
		{"/overlay/v1/lookup/close", http.MethodPost, p.close},
	} {
		h := func(c echo.Context) error {
			if p.preflight(c, route.method) {
				return c.NoContent(http.StatusNoContent)
			}
			return route.handle(c)
		}
		g.Any(route.path, h)
		g.RouteNotFound(route.path, h) // methods Echo does not know
	}
}

// MountHandshake adds the endpoint where BRC-104 sessions begin. It stands at the root of the origin, whatever the base
// path, and only if a service is authenticated.
func (p *Provider) MountHandshake(e *echo.Echo) {
	if p.auth == nil {
		return
	}
	h := func(c echo.Context) error {
		if p.preflight(c, http.MethodPost) {
			return c.NoContent(http.StatusNoContent)
		}
		return p.handshake(c)
	}
	e.Any(brc104.HandshakePath, h)
	e.RouteNotFound(brc104.HandshakePath, h)
}

// admitsOrigin reports whether these Origin fields are one of a configured origin.
func (p *Provider) admitsOrigin(origins []string) bool {
	return len(origins) == 1 && slices.Contains(p.origins, origins[0])
}

// preflight answers a configured origin's question before its request (CORS); no origin is ever allowed credentials. A
// question of any other origin, or with too many headers, is an ordinary request with the wrong method, and refused.
func (p *Provider) preflight(c echo.Context, method string) bool {
	r, h := c.Request(), c.Response().Header()
	origins := r.Header.Values(echo.HeaderOrigin)
	if r.Method != http.MethodOptions || r.Header.Get(echo.HeaderAccessControlRequestMethod) == "" || !p.admitsOrigin(origins) ||
		headerBytes(r) > wire.MaxHeaderBytes {
		return false
	}
	p.headers(h, &inbound{origin: origins[0]})
	h.Set(echo.HeaderAccessControlAllowMethods, method)
	h.Set(echo.HeaderAccessControlAllowHeaders, allowedHeaders)
	h.Set(echo.HeaderAccessControlMaxAge, "600")
	return true
}

// allowedHeaders are what a page of a configured origin may send.
var allowedHeaders = headerList([]string{"cache-control", wire.HeaderCapability, wire.HeaderProfile}, brc104.AllowedHeaders())

// exposedHeaders are what it may read of a response: every x-bsv header that is ever sent (BRC-193 s8).
var exposedHeaders = headerList([]string{wire.HeaderCapability, wire.HeaderProfile}, brc104.ExposedHeaders())

func headerList(lists ...[]string) string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// Echo returns a server of nothing but this provider, mounted at its base path, whose every other answer has the
// protocol's shape too. See [Provider.Mount] on proxies.
func (p *Provider) Echo() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if c.Response().Committed {
			return
		}
		if werr := p.HandleError(err, c); werr != nil {
			p.log.Debug("an answer could not be written", "cause", werr.Error())
		}
	}
	p.Mount(e.Group(p.BasePath()))
	p.MountHandshake(e)
	return e
}

// HandleError answers, in the protocol's shape, a request that no endpoint took.
func (p *Provider) HandleError(err error, c echo.Context) error {
	in, r := p.receive(c, "none", c.Request().Method)
	return p.respond(c, in, func(context.Context) (answer, error) {
		if r != nil {
			return answer{}, r
		}
		if he, ok := errors.AsType[*echo.HTTPError](err); ok && he.Code < http.StatusInternalServerError {
			return answer{}, refuse(wire.NotFound, textPath).because(err)
		}
		return answer{}, err
	})
}
