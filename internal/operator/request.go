package operator

import (
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// maxOrderBytes bounds the body of a request that orders something.
const maxOrderBytes = 16 << 10

// param is a part of the path as its sender meant it: the router hands escapes
// through when there was any.
func param(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return text
	}
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// outpointParam reads {txid}.{outputIndex}, of which there is one spelling.
func outpointParam(c echo.Context) (livefeed.Outpoint, error) {
	id, index, _ := strings.Cut(param(c, "outpoint"), ".")
	txid, err := canon.ParseHex32(id)
	n, nerr := strconv.ParseUint(index, 10, 32)
	if err != nil || nerr != nil || strconv.FormatUint(n, 10) != index {
		return livefeed.Outpoint{}, invalid("an outpoint is written <txid>.<outputIndex>: 64 lower-case hex characters, a dot and a number")
	}
	return livefeed.Outpoint{TxID: txid, Index: uint32(n)}, nil
}

func identityParam(c echo.Context) ([33]byte, error) {
	identity, err := canon.ParseIdentity(param(c, "identity"))
	if err != nil {
		return identity, invalid("an identity is a compressed public key in 66 lower-case hex characters")
	}
	return identity, nil
}

// reason reads a body that is {"reason": text}, or nothing where none is needed.
func reason(c echo.Context, required bool) (string, error) {
	body, err := order(c, "reason")
	if err != nil {
		return "", err
	}
	v, ok := body.Get("reason")
	if !ok && !required {
		return "", nil
	}
	if v.Kind() != canon.String || canon.CheckString(v.Str(), livefeed.MaxTextBytes) != nil {
		return "", invalid(`send {"reason": text} with a text of 1 to 1024 bytes`)
	}
	return v.Str(), nil
}

// order reads the body of a request that orders something: nothing, or a closed
// object of the members named.
func order(c echo.Context, members ...string) (canon.Value, error) {
	data, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxOrderBytes))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return canon.Value{}, &wire.Error{Code: wire.Limited, Message: "the body of this request is at most 16384 bytes"}
		}
		return canon.Value{}, invalid("the body could not be read whole; send it again").WithCause(err)
	}
	if len(data) == 0 {
		return canon.Obj(), nil
	}
	v, err := canon.Parse(data, canon.Limits{MaxBytes: maxOrderBytes})
	if err != nil {
		message := "the body is not acceptable JSON"
		if e, ok := errors.AsType[*canon.Error](err); ok {
			message = e.Reason
		}
		return v, invalid(message).WithCause(err)
	}
	if v.Kind() != canon.Object {
		return v, invalid("the body is a JSON object, or empty")
	}
	known := 0
	for _, name := range members {
		if _, ok := v.Get(name); ok {
			known++
		}
	}
	if known != len(v.Members()) {
		return v, invalid("the body holds a member that is not known")
	}
	return v, nil
}

// query reads the query of a request: each of the names at most once, and no
// other. A name that is absent or empty gives "".
func query(c echo.Context, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, invalid("the query is not well formed").WithCause(err)
	}
	out := make(map[string]string, len(names))
	for _, name := range names {
		given := values[name]
		if len(given) > 1 {
			return nil, invalid("the query names " + name + " twice")
		}
		if len(given) == 1 {
			out[name] = given[0]
		}
		delete(values, name)
	}
	if len(values) > 0 {
		return nil, invalid("the query may name " + strings.Join(names, " and ") + ", and nothing else")
	}
	return out, nil
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
