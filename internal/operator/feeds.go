package operator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// MaxGroupBytes is the largest body of a group, and the longest line of an import.
const MaxGroupBytes = 8 << 20

// Feeds finds feeds, in whichever database they live. *livefeed.Store is that of one
// database.
type Feeds interface {
	Feed(name string) *livefeed.Feed // nil: there is none
	Feeds() []*livefeed.Feed
}

// feedView is what a feed holds, as the API shows it. Sequences are U64 and
// therefore text; counts are numbers.
type feedView struct {
	Feed      string `json:"feed"`
	Epoch     string `json:"epoch"`
	Head      string `json:"head"`
	Floor     string `json:"floor"`
	Rows      int64  `json:"rows"`
	Versions  int64  `json:"versions"`
	Groups    int64  `json:"groups"`
	Sessions  int64  `json:"sessions"`
	Pins      int64  `json:"pins"`
	Waiters   int64  `json:"waiters"`
	DueTimers int64  `json:"dueTimers"`
	// OldestPin is the watermark of the oldest snapshot still promised, absent when
	// there is none: the floor may rise to it, or else to the head.
	OldestPin string `json:"oldestPin,omitempty"`
	// Removable is how many of Groups nobody is promised any more.
	Removable int64 `json:"removable"`
}

// unavailableView stands for a feed whose database does not answer while others do.
type unavailableView struct {
	Feed        string `json:"feed"`
	Unavailable bool   `json:"unavailable"`
}

const (
	// viewWithin bounds what is asked of one feed among all, and viewsAtOnce how many are asked at a time.
	viewWithin  = 10 * time.Second
	viewsAtOnce = 4
)

// feeds answers GET /operator/v1/feeds, in order of name. A feed whose database
// does not answer keeps no other from being shown.
func (a *API) feeds(c echo.Context) error {
	all := slices.Clone(a.store.Feeds())
	slices.SortFunc(all, func(x, y *livefeed.Feed) int { return strings.Compare(x.Name(), y.Name()) })
	views, errs := make([]any, len(all)), make([]error, len(all))
	turn := make(chan struct{}, viewsAtOnce)
	var asked sync.WaitGroup
	for i, f := range all {
		asked.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			ctx, cancel := context.WithTimeout(c.Request().Context(), viewWithin)
			defer cancel()
			v, err := a.view(ctx, f)
			if views[i], errs[i] = v, err; err != nil {
				views[i] = unavailableView{f.Name(), true}
			}
		})
	}
	asked.Wait()
	if len(all) > 0 && !slices.Contains(errs, nil) {
		return errs[0]
	}
	for i, err := range errs {
		if err != nil {
			a.log.Warn("a feed could not be shown", "feed", all[i].Name(), "error", err)
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"feeds": views})
}

// feed answers GET /operator/v1/feeds/{feed}.
func (a *API) feed(c echo.Context) error {
	f, err := a.open(c)
	if err != nil {
		return err
	}
	v, err := a.view(c.Request().Context(), f)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

func (a *API) view(ctx context.Context, f *livefeed.Feed) (feedView, error) {
	s, err := f.Stats(ctx)
	if err != nil {
		return feedView{}, err
	}
	var n lookup.SessionCount
	if a.sessions != nil {
		if n, err = a.sessions(ctx, f.Name()); err != nil {
			return feedView{}, err
		}
	}
	v := feedView{
		Feed: f.Name(), Epoch: s.Epoch,
		Head: strconv.FormatUint(s.Head, 10), Floor: strconv.FormatUint(s.Floor, 10),
		Rows: s.Rows, Versions: s.Versions, Groups: s.Groups,
		Sessions: n.Open, Pins: n.Pins, Waiters: s.Waiters, DueTimers: s.DueTimers,
	}
	needed := s.Head
	if n.Pins > 0 {
		needed = min(n.Oldest, s.Head)
		v.OldestPin = strconv.FormatUint(n.Oldest, 10)
	}
	if needed > s.Floor {
		v.Removable = int64(needed - s.Floor)
	}
	return v, nil
}

// appendGroup answers POST /operator/v1/feeds/{feed}/groups (P2).
func (a *API) appendGroup(c echo.Context) error {
	f, err := a.open(c)
	if err != nil {
		return err
	}
	r := c.Request()
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, MaxGroupBytes))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return tooLong()
		}
		return (&wire.Error{Code: wire.Invalid, Message: "the body could not be read whole; send it again"}).WithCause(err)
	}
	p, err := livefeed.DecodeGroup(body)
	if err != nil {
		return err
	}
	receipt, err := f.Append(r.Context(), p)
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, appendReceipt(nil, receipt))
}

func tooLong() *wire.Error {
	return &wire.Error{Code: wire.Limited, Message: "a group is at most 8388608 bytes; split it into several groups"}
}

// appendReceipt writes the answer to a group in canonical form.
func appendReceipt(dst []byte, r livefeed.Receipt) []byte {
	dst = append(dst, `{"highWater":"`...)
	dst = strconv.AppendUint(dst, r.HighWater, 10)
	dst = append(dst, `","replayed":`...)
	dst = strconv.AppendBool(dst, r.Replayed)
	dst = append(dst, `,"sequence":"`...)
	dst = strconv.AppendUint(dst, r.Sequence, 10)
	return append(dst, `"}`...)
}
