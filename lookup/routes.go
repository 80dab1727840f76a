package lookup

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

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

// Mount adds the endpoints to a group that stands at the base URL's path.
func (p *Provider) Mount(g *echo.Group) {
	for path, h := range map[string]echo.HandlerFunc{
		"/overlay/v1/capabilities": p.capabilities,
		"/overlay/v1/lookup/open":  p.open,
		"/overlay/v1/lookup/read":  p.read,
		"/overlay/v1/lookup/close": p.close,
	} {
		g.Any(path, h)
		g.RouteNotFound(path, h) // methods Echo does not know
	}
}

// Echo returns a server of nothing but this provider, mounted at its base path, whose every other answer has the
// protocol's shape too.
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
