package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// overhead is what an answer may take beyond the wait that was asked for.
const overhead = 60 * time.Second

// conn is one HTTP/1.1 connection that is used by one goroutine: no pool, and no goroutines of its own, so that a reader costs
// the generator little. It is dialled when it is needed.
type conn struct {
	base *url.URL
	c    net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
}

func newConn(base string) (*conn, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is no URL; write http://127.0.0.1:8080", base)
	}
	return &conn{base: u}, nil
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// brokenError is of a connection: the same request may be sent again.
type brokenError struct{ error }

func (b brokenError) Unwrap() error { return b.error }

// do sends a request and reads its whole answer, of at most most bytes. When ctx ends the connection is closed.
func (c *conn) do(ctx context.Context, r *http.Request, wait time.Duration, most int64) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, context.Cause(ctx)
	}
	a, err := c.attempt(ctx, r, wait, most)
	if err != nil {
		c.close()
		if ctx.Err() != nil {
			return a, context.Cause(ctx)
		}
		return a, brokenError{err}
	}
	return a, nil
}

func (c *conn) attempt(ctx context.Context, r *http.Request, wait time.Duration, most int64) (reply, error) {
	if c.c == nil {
		if err := c.dial(ctx); err != nil {
			return reply{}, err
		}
	}
	nc := c.c
	if err := nc.SetDeadline(time.Now().Add(wait + overhead)); err != nil {
		return reply{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := r.Write(c.out); err != nil {
		return reply{}, err
	}
	if err := c.out.Flush(); err != nil {
		return reply{}, err
	}
	resp, err := http.ReadResponse(c.in, r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := readBody(resp, most)
	if err != nil {
		return reply{}, err
	}
	if resp.Close {
		c.close()
	}
	return reply{resp.StatusCode, resp.Header, body}, nil
}

func readBody(resp *http.Response, most int64) ([]byte, error) {
	if n := resp.ContentLength; n > most {
		return nil, fmt.Errorf("an answer of %d bytes, more than the %d asked for", n, most)
	} else if n >= 0 {
		body := make([]byte, n)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err == nil && int64(len(body)) > most {
		err = errors.New("an answer of more bytes than were asked for")
	}
	return body, err
}

func (c *conn) dial(ctx context.Context) error {
	host := c.base.Host
	if c.base.Port() == "" {
		host = net.JoinHostPort(c.base.Hostname(), map[string]string{"http": "80", "https": "443"}[c.base.Scheme])
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	var nc net.Conn
	var err error
	if c.base.Scheme == "https" {
		nc, err = (&tls.Dialer{NetDialer: &d}).DialContext(ctx, "tcp", host)
	} else {
		nc, err = d.DialContext(ctx, "tcp", host)
	}
	if err != nil {
		return err
	}
	c.c, c.in, c.out = nc, bufio.NewReaderSize(nc, 8<<10), bufio.NewWriterSize(nc, 4<<10)
	return nil
}

func (c *conn) close() {
	if c.c != nil {
		_ = c.c.Close()
		c.c = nil
	}
}

// origin is where a handshake goes.
func (c *conn) origin() string { return c.base.Scheme + "://" + c.base.Host }
