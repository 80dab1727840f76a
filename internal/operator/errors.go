package operator

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// retryAfterMs is when trying again makes sense after an outage.
const retryAfterMs = 1000

// publicError is the one table from what went wrong to what the peer reads (P5).
func publicError(err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*livefeed.Error](err); ok {
		return feedError(e)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return unavailable("the request was ended before it was finished; send it again unchanged, which does no harm")
	}
	return unavailable("the request could not be finished; the server's log has the cause, send it again unchanged, which does no harm")
}

func feedError(e *livefeed.Error) *wire.Error {
	message := e.Reason
	if e.Edit >= 0 {
		message = "edit " + strconv.Itoa(e.Edit) + ": " + message
	}
	switch e.Code {
	case livefeed.Invalid:
		return &wire.Error{Code: wire.Invalid, Message: message}
	case livefeed.Conflict:
		return &wire.Error{Code: wire.Conflict, Message: message}
	case livefeed.Limited:
		return &wire.Error{Code: wire.Limited, Message: message, Limit: &wire.Limit{Kind: wire.LimitPermanentGroup}}
	case livefeed.TooLarge:
		return &wire.Error{Code: wire.Limited, Message: message}
	case livefeed.Reset:
		return &wire.Error{Code: wire.ResetRequired, Message: message}
	default:
		return unavailable(message)
	}
}

func unavailable(message string) *wire.Error {
	return &wire.Error{Code: wire.Unavailable, Message: message, Retryable: true, RetryAfterMs: new(uint32(retryAfterMs))}
}

func invalid(message string) *wire.Error {
	return &wire.Error{Code: wire.Invalid, Message: message}
}

func notFound(message string) *wire.Error {
	return &wire.Error{Code: wire.NotFound, Message: message}
}

// refuse answers every error of every handler, Echo's own included.
func (a *API) refuse(err error, c echo.Context) {
	if c.Response().Committed {
		return // an import that failed half-way: its answers stand, the connection says the rest
	}
	status := 0
	public := &wire.Error{}
	if he, ok := errors.AsType[*echo.HTTPError](err); ok {
		status, public = routeError(he.Code)
	} else {
		public = publicError(err)
		status = public.Code.Status()
	}
	switch {
	case status == http.StatusServiceUnavailable && c.Request().Context().Err() == nil:
		a.log.Error("an operator request failed", "route", c.Path(), "error", err)
	default:
		a.log.Debug("an operator request was refused", "route", c.Path(), "status", status, "error", err)
	}
	if status == http.StatusUnauthorized {
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, "Bearer")
	}
	if err := c.Blob(status, echo.MIMEApplicationJSON, public.AppendCanonical(nil)); err != nil {
		a.log.Debug("an answer could not be written", "route", c.Path(), "error", err)
	}
}

// routeError gives the router's refusals the common shape. A wrong method keeps
// its own status; Allow is already set by the router.
func routeError(code int) (int, *wire.Error) {
	switch code {
	case http.StatusNotFound:
		return code, notFound("there is nothing at this path")
	case http.StatusMethodNotAllowed:
		return code, &wire.Error{Code: wire.Invalid, Message: "this path does not take this method; Allow names those it takes"}
	case http.StatusRequestEntityTooLarge:
		return code, &wire.Error{Code: wire.Limited, Message: "the body is too large"}
	}
	return http.StatusServiceUnavailable, unavailable("the request could not be answered")
}
