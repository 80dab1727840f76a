package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/overlayd/overlayd/internal/wire"
)

// uploader sends lines to an import and matches answers to lines.
//
// Three goroutines: one reads the input for the whole run; one a connection
// writes the request; the caller's reads the answers. A line stays in the queue
// until it is answered, so that a lost connection is resumed from the first line
// nobody answered; what had been committed without an answer is replayed by its
// key. The bytes of all lines in memory are bounded.
type uploader struct {
	url, token string
	retryFor   time.Duration // without any answer
	answered   func(answered)
	retrying   func(err error, wait time.Duration)

	memory *semaphore.Weighted
	input  chan line // closed at the end of the input

	mu sync.Mutex
	// guarded by mu
	queue []line // taken from input, not answered; in order
	ended bool   // input is closed and drained into queue
	cause error  // why reading the input failed
}

// line is one group of the input.
type line struct {
	number int
	text   []byte // with its line end
	held   int64  // of memory
}

// answered is the outcome of one line.
type answered struct {
	line     int
	size     int64 // bytes of input
	replayed bool
	refusal  string // empty: the group is in the feed
}

const (
	uploadBytes  = 64 << 20
	firstBackoff = 100 * time.Millisecond
	longBackoff  = 3 * time.Second
)

// permanentError cannot be cured by trying again.
type permanentError struct{ error }

// run sends all of input. It returns when every line is answered, when ctx ends,
// or when nothing was answered for retryFor.
func (u *uploader) run(ctx context.Context, input io.Reader) error {
	u.memory = semaphore.NewWeighted(uploadBytes)
	u.input = make(chan line, 64)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Not waited for: a read of a terminal or a pipe ends when it likes.
	go u.read(ctx, input)

	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

	backoff, last := firstBackoff, time.Now()
	for {
		n, err := u.attempt(ctx, client)
		if n > 0 {
			backoff, last = firstBackoff, time.Now()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return u.cause
		}
		if p, ok := errors.AsType[permanentError](err); ok {
			return p.error
		}
		if time.Since(last) > u.retryFor {
			return fmt.Errorf("no answer for %s: %w; run the same command again to go on", u.retryFor, err)
		}
		u.retrying(err, backoff)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return ctx.Err()
		}
		backoff = min(2*backoff, longBackoff)
	}
}

// read takes lines from the input until its end.
func (u *uploader) read(ctx context.Context, input io.Reader) {
	defer close(u.input)
	r := bufio.NewReaderSize(input, 256<<10)
	for number := 1; ; number++ {
		text, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			u.mu.Lock()
			u.cause = fmt.Errorf("reading line %d of the input: %w", number, err)
			u.mu.Unlock()
			return
		}
		if len(bytes.Trim(text, " \t\r\n")) > 0 {
			if text[len(text)-1] != '\n' {
				text = append(text, '\n')
			}
			l := line{number: number, text: text, held: min(int64(len(text)+1024), uploadBytes)}
			if u.memory.Acquire(ctx, l.held) != nil {
				return
			}
			select {
			case u.input <- l:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// attempt is one connection: it sends what is unanswered, then what is new, and
// returns how many answers came. A nil error means that everything is answered.
func (u *uploader) attempt(ctx context.Context, client *http.Client) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	body, sink := io.Pipe()
	var sending sync.WaitGroup
	sending.Go(func() { sink.CloseWithError(u.send(ctx, sink)) })
	defer sending.Wait()
	defer body.Close() //nolint:errcheck // a pipe
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url, body)
	if err != nil {
		return 0, permanentError{err}
	}
	request.Header.Set("Authorization", "Bearer "+u.token)
	request.Header.Set("Content-Type", "application/x-ndjson")
	response, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("the operator API cannot be reached: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or given up
	if response.StatusCode != http.StatusOK {
		return 0, refusedImport(response)
	}

	answers := bufio.NewReaderSize(response.Body, 64<<10)
	for n := 0; ; n++ {
		text, err := answers.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && u.done() {
				return n, nil
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("the connection ended before every line was answered")
			}
			return n, fmt.Errorf("the import was cut off: %w", err)
		}
		if err := u.answer(text); err != nil {
			return n, err
		}
	}
}

// send writes the queue, then the input, until its end or the attempt's.
func (u *uploader) send(ctx context.Context, w io.Writer) error {
	u.mu.Lock()
	again := append([]line(nil), u.queue...)
	u.mu.Unlock()
	for _, l := range again {
		if _, err := w.Write(l.text); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l, ok := <-u.input:
			u.mu.Lock()
			if ok {
				u.queue = append(u.queue, l)
			}
			u.ended = !ok
			u.mu.Unlock()
			if !ok {
				return nil
			}
			if _, err := w.Write(l.text); err != nil {
				return err
			}
		}
	}
}

// answer matches one answer with the first unanswered line.
func (u *uploader) answer(text []byte) error {
	var a struct {
		Sequence string
		Replayed bool
		Error    *struct {
			Code, Message string
			Retryable     bool
		}
	}
	if err := json.Unmarshal(text, &a); err != nil || a.Sequence == "" && a.Error == nil {
		return permanentError{errors.New("the operator API gave an answer that is none; check the URL of --operator")}
	}
	if a.Error != nil && (a.Error.Retryable || a.Error.Code == string(wire.Unavailable)) {
		return fmt.Errorf("a group could not be appended for now: %s", a.Error.Message)
	}
	u.mu.Lock()
	if len(u.queue) == 0 {
		u.mu.Unlock()
		return permanentError{errors.New("the operator API gave more answers than there were lines; check that nothing else sits between")}
	}
	l := u.queue[0]
	u.queue[0] = line{}
	u.queue = u.queue[1:]
	u.mu.Unlock()
	u.memory.Release(l.held)
	out := answered{line: l.number, size: int64(len(l.text)), replayed: a.Replayed}
	if a.Error != nil {
		out.refusal = a.Error.Code + ": " + a.Error.Message
	}
	u.answered(out)
	return nil
}

// done reports whether the input has ended and every line is answered.
func (u *uploader) done() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ended && len(u.queue) == 0
}

// refusedImport reads the answer of an import that did not begin.
func refusedImport(response *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(response.Body, wire.MaxErrorBytes+1))
	if err != nil {
		return fmt.Errorf("the operator API answered %s: %w", response.Status, err)
	}
	message := fmt.Errorf("the operator API answered %s; check the URL of --operator", response.Status)
	if e, err := wire.ParseError(data, response.StatusCode); err == nil {
		message = fmt.Errorf("the import was refused: %s", e.Message)
		if e.Retryable {
			return message
		}
	}
	if response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusBadGateway {
		return message
	}
	return permanentError{message}
}
