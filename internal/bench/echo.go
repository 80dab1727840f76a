package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/overlayd/overlayd/internal/httpserve"
)

// echoBytes bounds what an echo answers.
const echoBytes = 4 << 20

// ServeEcho is the server of the baseline that does nothing: it writes its URL on one line, then answers each POST to /N with N
// bytes, until in ends.
func ServeEcho(ctx context.Context, in io.Reader, out io.Writer) error {
	s, err := httpserve.Listen(ctx, httpserve.Config{Name: "echo", Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "http://%s\n", s.Addr()); err != nil {
		return errors.Join(err, s.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	body := bytes.Repeat([]byte("x"), echoBytes)
	return s.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil || n < 0 || n > echoBytes {
			http.NotFound(w, r)
			return
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(r.Body, echoBytes)); err != nil {
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(body[:n]) // a reader that went away is its own affair
	}))
}

// EchoCommand is how a program is asked to be the echo: these are its arguments.
type EchoCommand struct {
	Program string
	Args    []string
	Environ []string
}

// echo is one connection to an echo in a process of its own.
type echo struct {
	child *Child
	c     *conn
}

func startEcho(ctx context.Context, command EchoCommand) (*echo, error) {
	child, err := StartChild(ctx, command.Program, command.Args, cleanEnvironment(command.Environ))
	if err != nil {
		return nil, err
	}
	c, err := newConn(child.Line)
	if err != nil {
		return nil, errors.Join(err, child.Stop())
	}
	return &echo{child, c}, nil
}

func (e *echo) stop() error {
	e.c.close()
	return e.child.Stop()
}

// trip posts a body and gets an answer of so many bytes.
func (e *echo) trip(ctx context.Context, body []byte, answer int) error {
	r, err := http.NewRequest(http.MethodPost, e.c.base.String()+"/"+strconv.Itoa(answer), bytes.NewReader(body))
	if err != nil {
		return err
	}
	a, err := e.c.do(ctx, r, 0, echoBytes)
	if err == nil && (a.status != http.StatusOK || len(a.body) != answer) {
		err = fmt.Errorf("the echo answered %d with %d bytes", a.status, len(a.body))
	}
	return err
}
