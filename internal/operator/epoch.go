package operator

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/livefeed"
)

// modes are the words for what a rotation does to what the old epoch promised.
var modes = map[string]livefeed.Mode{"retire": livefeed.Retire, "break": livefeed.Break}

// rotated is the answer to a rotation: the epoch that began with it, which is not
// the present one when the key was used long ago.
type rotated struct {
	Epoch    string `json:"epoch"`
	Feed     string `json:"feed"`
	Mode     string `json:"mode"`
	Replayed bool   `json:"replayed"`
}

// rotate answers POST /operator/v1/feeds/{feed}/epoch, once for each key. With
// mode retire what the old epoch promised lives on and new Opens name the new
// one; with mode break every session, cursor and manifest of it is void from the
// answer on, on any node.
func (a *API) rotate(c echo.Context) error {
	f, err := a.open(c)
	if err != nil {
		return err
	}
	body, err := order(c, "key", "mode", "reason")
	if err != nil {
		return err
	}
	key, err := textOf(body, "key", true)
	if err != nil {
		return err
	}
	word, err := textOf(body, "mode", true)
	if err != nil {
		return err
	}
	mode, ok := modes[word]
	if !ok {
		return invalid("mode is retire, which lets old sessions live on, or break, which ends them")
	}
	why, err := textOf(body, "reason", false)
	if err != nil {
		return err
	}
	r, err := f.Rotate(c.Request().Context(), key, mode, why)
	if err != nil {
		return err
	}
	if !r.Replayed {
		a.log.Warn("an operator rotated a feed's epoch", "feed", f.Name(), "mode", word, "epoch", r.Epoch)
	}
	return c.JSON(http.StatusOK, rotated{r.Epoch, f.Name(), word, r.Replayed})
}

// textOf reads a member that is a text of 1 to 1024 bytes; "" stands for one that
// may be absent and is.
func textOf(body canon.Value, name string, required bool) (string, error) {
	v, ok := body.Get(name)
	if !ok && !required {
		return "", nil
	}
	if v.Kind() != canon.String || canon.CheckString(v.Str(), livefeed.MaxTextBytes) != nil {
		return "", invalid(name + " must be a text of 1 to 1024 bytes")
	}
	return v.Str(), nil
}
