package operator

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
)

const profilesPath = "/debug/pprof"

// A profile over time is done before its answer has to be (answerWithin).
const (
	defaultProfile = 30 * time.Second
	maxProfile     = 50 * time.Second
)

// profileOf answers GET /debug/pprof/{name}, in the format of `go tool pprof`: profile and trace over ?seconds=, one of each at a
// time, or a profile that the runtime keeps (heap, allocs, goroutine, threadcreate), with ?debug=1 as text. The tool sends no
// token: fetch a file with one, then open it. net/http/pprof is not used: it tells the command line, which may hold a password.
func (a *API) profileOf(c echo.Context) error {
	chosen, err := query(c, "seconds", "debug", "gc")
	if err != nil {
		return err
	}
	over := defaultProfile
	if text := chosen["seconds"]; text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if over = time.Duration(n) * time.Second; err != nil || n < 1 || over > maxProfile {
			return invalid(fmt.Sprintf("seconds is a number from 1 to %d", maxProfile/time.Second))
		}
	}
	switch name := param(c, "name"); name {
	case "profile":
		return a.record(c, over, pprof.StartCPUProfile, pprof.StopCPUProfile)
	case "trace":
		return a.record(c, over, trace.Start, trace.Stop)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			return notFound("there is no profile of this name; profile, trace, heap, allocs and goroutine are some")
		}
		if chosen["gc"] == "1" {
			runtime.GC()
		}
		debug, kind := 0, echo.MIMEOctetStream
		if chosen["debug"] == "1" {
			debug, kind = 1, echo.MIMETextPlainCharsetUTF8
		}
		c.Response().Header().Set(echo.HeaderContentType, kind)
		return p.WriteTo(c.Response(), debug)
	}
}

// record writes what happens during a time.
func (a *API) record(c echo.Context, over time.Duration, start func(io.Writer) error, stop func()) error {
	if err := http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(over + writeTimeout)); err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderContentType, echo.MIMEOctetStream)
	if err := start(c.Response()); err != nil {
		return unavailable("a profile of this kind is being taken already; wait for its end").WithCause(err)
	}
	defer stop()
	t := time.NewTimer(over)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.Request().Context().Done():
	case <-a.draining:
	}
	return nil
}
