package echoauth

import (
	"errors"
	"maps"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
)

// draft is the http.ResponseWriter that a handler writes to. It has no Flush, no Hijack and no Unwrap: there is no way around it.
type draft struct {
	before   http.Header // what stood there before the handler ran; not changed
	header   http.Header
	status   int // 0 until written
	body     []byte
	limit    int
	overflow bool // the handler wrote more than limit
}

var errTooLong = errors.New("echoauth: the response is longer than MaxResponse")

func (d *draft) Header() http.Header { return d.header }

func (d *draft) WriteHeader(status int) {
	if d.status == 0 && status >= 200 {
		d.status = status
	}
}

func (d *draft) Write(b []byte) (int, error) {
	d.WriteHeader(http.StatusOK)
	if len(b) > d.limit-len(d.body) {
		d.overflow = true
		return 0, errTooLong
	}
	d.body = append(d.body, b...)
	return len(b), nil
}

// take makes a whole body the draft's own.
func (d *draft) take(body []byte) error {
	if len(d.body) > 0 {
		return errors.New("echoauth: Blob after part of a response was written")
	}
	if len(body) > d.limit {
		d.overflow = true
		return errTooLong
	}
	d.body = body
	return nil
}

// reset makes the draft what it was before the handler ran.
func (d *draft) reset() {
	clear(d.header)
	maps.Copy(d.header, d.before)
	d.status, d.body, d.overflow = 0, nil, false
}

// replace puts a reply in the place of all that the handler wrote, headers included.
func (d *draft) replace(r *Reply) {
	d.reset()
	d.header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	maps.Copy(d.header, r.Header)
	d.status, d.body = r.Status, r.Body
}

// drop removes the headers whose names are meant.
func (d *draft) drop(meant func(name string) bool) {
	for name := range d.header {
		if meant(name) {
			delete(d.header, name)
		}
	}
}

// finish settles what the handler left open. What is to be signed gets a body and a status that allows one, since clients can
// verify nothing else; what is not loses every sign of a signature.
func (d *draft) finish(signed, head bool) {
	if d.status == 0 {
		d.status = http.StatusOK
	}
	if !signed {
		d.drop(brc104.Authentication)
		return
	}
	if d.status == http.StatusNoContent || d.status == http.StatusResetContent {
		d.status = http.StatusOK
	}
	if len(d.body) == 0 && !head && bodyAllowed(d.status) {
		d.header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		d.body = []byte("{}")
	}
}
