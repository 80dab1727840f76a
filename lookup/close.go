package lookup

import (
	"context"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/wire"
)

// closed is the whole answer to every well-formed Close: it never tells whether there was a session to close.
var closed = []byte(`{"closed":true,"version":1}`)

// close ends a session (BRC-193 s8, conformance row A9). Any syntactically valid identifier gets the same answer; only the
// caller's own open session is changed. If the database cannot say so, nothing is closed and the answer is unavailable.
func (p *Provider) close(c echo.Context) error {
	in, r := p.receive(c, "close", http.MethodPost)
	return p.respond(c, in, func(ctx context.Context) (answer, error) {
		if r != nil {
			return answer{}, r
		}
		if r := p.accept(c, in); r != nil {
			return answer{}, r
		}
		message, r := parsed(wire.ParseClose(in.body))
		if r != nil {
			return answer{}, r
		}
		if digest, ok := p.sessionDigest(message.Session); ok {
			d := p.bearing(message.Session)
			list, err := d.end(ctx, d.pool, stateClosed, `s.id = $2 and s.principal is not distinct from $3`,
				digest[:], bytesOf(in.principal()))
			if err != nil {
				return answer{}, fmt.Errorf("lookup: close a session: %w", err)
			}
			d.told(list)
		}
		return answer{status: http.StatusOK, built: built{body: closed}}, nil
	})
}
