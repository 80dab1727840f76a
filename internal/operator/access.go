package operator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/lookup"
)

// Access is what the API does to sessions and grants, and what it tells of
// quotas. *lookup.Provider is one;
// its promises are those of the answers (P2): once a method has returned, no
// body whose last check starts later is sent in spite of it, on any node.
type Access interface {
	Grant(ctx context.Context, service string, identity [33]byte) (changed bool, err error)
	Revoke(ctx context.Context, service string, identity [33]byte) (changed bool, err error)
	ListSessions(ctx context.Context, f lookup.SessionFilter) ([]lookup.SessionInfo, error)
	RemoveSession(ctx context.Context, ref uuid.UUID) (changed bool, err error)
	Usage(ctx context.Context) (lookup.Usage, error)
}

// sessionView is a session as the API shows it: nothing in it lets anyone read.
// Times are U64 and therefore text.
type sessionView struct {
	Ref       string `json:"ref"`
	Service   string `json:"service"`
	Principal string `json:"principal,omitempty"`
	State     string `json:"state"`
	OpenedAt  string `json:"openedAt"`
	ExpiresAt string `json:"expiresAt"`
}

// sessionPage is how many sessions are held in memory at a time.
const sessionPage = 1000

// sessions answers GET /operator/v1/sessions with all that are stored, in the
// order of their refs. They are written as they are read: a failure after the
// first page can only cut the answer off, which is then no JSON (P6).
func (a *API) listSessions(c echo.Context) error {
	chosen, err := query(c, "service", "principal")
	if err != nil {
		return err
	}
	if s := chosen["service"]; strings.ContainsRune(s, 0) || s != "" && canon.CheckString(s, 256) != nil {
		return invalid("a service's name is a text of 1 to 256 bytes")
	}
	filter := lookup.SessionFilter{Service: chosen["service"], Limit: sessionPage}
	if text := chosen["principal"]; text != "" {
		identity, err := canon.ParseIdentity(text)
		if err != nil {
			return invalid("a principal is a compressed public key in 66 lower-case hex characters")
		}
		filter.Principal = &identity
	}
	ctx := c.Request().Context()
	page, err := a.access.ListSessions(ctx, filter)
	if err != nil {
		return err
	}

	w := c.Response()
	w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, 64<<10)
	separator := `{"sessions":[`
	for {
		for _, s := range page {
			text, err := json.Marshal(viewOf(s))
			if err != nil {
				return cut(err)
			}
			_, _ = out.WriteString(separator) // a Writer keeps its first error
			_, _ = out.Write(text)
			separator = ","
		}
		if len(page) < sessionPage {
			break
		}
		err := control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err == nil {
			err = out.Flush()
		}
		if err == nil {
			filter.After = page[len(page)-1].Ref
			page, err = a.access.ListSessions(ctx, filter)
		}
		if err != nil {
			if ctx.Err() == nil {
				a.log.Error("a listing of sessions was cut off", "error", err)
			}
			return cut(err)
		}
	}
	if separator != "," {
		_, _ = out.WriteString(separator)
	}
	_, _ = out.WriteString("]}\n")
	if err := out.Flush(); err != nil {
		return cut(err)
	}
	return nil
}

// cut ends an answer whose beginning is sent, so that its peer sees that it is
// not whole.
func cut(error) error { panic(http.ErrAbortHandler) }

func viewOf(s lookup.SessionInfo) sessionView {
	v := sessionView{
		Ref: s.Ref.String(), Service: s.Service, State: s.State,
		OpenedAt: strconv.FormatUint(s.OpenedAt, 10), ExpiresAt: strconv.FormatUint(s.ExpiresAt, 10),
	}
	if s.Principal != nil {
		v.Principal = hexOf(s.Principal[:])
	}
	return v
}

// removed is the answer to the removal of a session.
type removed struct {
	Changed bool   `json:"changed"`
	Ref     string `json:"ref"`
}

// removeSession answers DELETE /operator/v1/sessions/{ref}.
func (a *API) removeSession(c echo.Context) error {
	text := param(c, "ref")
	ref, err := uuid.Parse(text)
	if err != nil || ref.String() != text {
		return invalid("a session's ref is written as GET /operator/v1/sessions shows it")
	}
	if _, err := order(c); err != nil {
		return err
	}
	changed, err := a.access.RemoveSession(c.Request().Context(), ref)
	if err != nil {
		return err
	}
	if changed {
		a.log.Info("an operator removed a session", "ref", text)
	}
	return c.JSON(http.StatusOK, removed{changed, text})
}

// granted is the answer to a grant and to its end.
type granted struct {
	Changed  bool   `json:"changed"`
	Granted  bool   `json:"granted"`
	Identity string `json:"identity"`
	Service  string `json:"service"`
}

// grant answers PUT /operator/v1/services/{service}/grants/{identity}.
func (a *API) grant(c echo.Context) error { return a.setGrant(c, true, a.access.Grant) }

// revoke answers DELETE of the same.
func (a *API) revoke(c echo.Context) error { return a.setGrant(c, false, a.access.Revoke) }

func (a *API) setGrant(c echo.Context, to bool, set func(context.Context, string, [33]byte) (bool, error)) error {
	service := param(c, "service")
	identity, err := identityParam(c)
	if err != nil {
		return err
	}
	if _, err := order(c); err != nil {
		return err
	}
	changed, err := set(c.Request().Context(), service, identity)
	if errors.Is(err, lookup.ErrNoService) {
		return notFound("there is no service of this name with access: list; the configuration names the services")
	}
	if err != nil {
		return err
	}
	who := hexOf(identity[:])
	if changed {
		a.log.Info("an operator changed a grant", "service", service, "identity", who, "granted", to)
	}
	return c.JSON(http.StatusOK, granted{changed, to, who, service})
}
