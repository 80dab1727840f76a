package operator

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/livefeed"
)

// prohibited is the answer to a prohibition and to its end.
type prohibited struct {
	Changed    bool         `json:"changed"`
	Feed       string       `json:"feed"`
	Outpoint   outpointView `json:"outpoint"`
	Prohibited bool         `json:"prohibited"`
}

type outpointView struct {
	TxID        string `json:"txid"`
	OutputIndex uint32 `json:"outputIndex"`
}

// prohibit answers PUT /operator/v1/feeds/{feed}/prohibitions/{outpoint}: once
// it has, no body whose last check starts later holds the row, on any node.
func (a *API) prohibit(c echo.Context) error {
	return a.rule(c, true, func(f *livefeed.Feed, o livefeed.Outpoint, why string) (bool, error) {
		return f.Prohibit(c.Request().Context(), o, why)
	})
}

// allow answers DELETE of the same.
func (a *API) allow(c echo.Context) error {
	return a.rule(c, false, func(f *livefeed.Feed, o livefeed.Outpoint, _ string) (bool, error) {
		return f.Allow(c.Request().Context(), o)
	})
}

func (a *API) rule(c echo.Context, to bool, set func(*livefeed.Feed, livefeed.Outpoint, string) (bool, error)) error {
	f, err := a.open(c)
	if err != nil {
		return err
	}
	outpoint, err := outpointParam(c)
	if err != nil {
		return err
	}
	why, err := reason(c, to)
	if err != nil {
		return err
	}
	changed, err := set(f, outpoint, why)
	if err != nil {
		return err
	}
	if changed {
		a.log.Info("an operator changed a prohibition", "feed", f.Name(), "outpoint", outpoint.String(), "prohibited", to)
	}
	return c.JSON(http.StatusOK, prohibited{changed, f.Name(), outpointView{hexOf(outpoint.TxID[:]), outpoint.Index}, to})
}
