package operator

import (
	"context"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"
)

// health answers GET /healthz: the process lives and answers.
func (a *API) health(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]bool{"ok": true})
}

// ready answers GET /readyz: 200 when every check that is not advisory passes
// and nobody has asked the program to stop, else 503. Each check is shown as
// "ok", "failing" or, for advisory ones, "degraded"; causes go to the log.
func (a *API) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), probeTimeout)
	defer cancel()
	ready := !a.isDraining()
	checks := map[string]string{}
	if !ready {
		checks["shutdown"] = "failing"
	}
	results := make([]error, len(a.checks))
	var asked sync.WaitGroup
	for i, check := range a.checks { // at once, so that one that hangs leaves time for the others
		asked.Go(func() { results[i] = check.Probe(ctx) })
	}
	asked.Wait()
	for i, check := range a.checks {
		err := results[i]
		switch {
		case err == nil:
			checks[check.Name] = "ok"
			continue
		case check.Advisory:
			checks[check.Name] = "degraded"
		default:
			checks[check.Name] = "failing"
			ready = false
		}
		a.log.Warn("a readiness check failed", "check", check.Name, "error", err)
	}
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	return c.JSON(status, map[string]any{"ready": ready, "checks": checks})
}
