package operator

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

const (
	// windowGroups is how many groups of one import are under way: a committer's
	// batch, and another waiting for it.
	windowGroups = 512
	// windowBytes bounds their bodies; one group of MaxGroupBytes always fits.
	windowBytes = 32 << 20
	// writeTimeout is how long a peer may leave answers unread.
	writeTimeout = 60 * time.Second
	// answerGrace is how long groups that were taken are still answered once the
	// request has ended.
	answerGrace = 5 * time.Second
)

// Result is the outcome of one line.
type Result struct {
	Line    int // counted from 1, empty lines included
	Receipt livefeed.Receipt
	Err     error // *livefeed.Error or *wire.Error; nil when appended
}

// Appender takes groups in order; *livefeed.Feed is one.
type Appender interface {
	SubmitAfter(ctx context.Context, p *livefeed.Proposal, before *livefeed.Pending) *livefeed.Pending
}

// ErrInterrupted ends an import because a group could not be appended for now
// (P4). Its result was emitted.
var ErrInterrupted = errors.New("the import was interrupted; send the rest again, beginning with the last line answered")

// Import appends the groups of r, one a line, and calls emit for each in order,
// on the caller's goroutine; more says that another result follows without
// waiting for the input. Empty lines are passed over. It ends with r, with the
// first error of emit or r, or with ErrInterrupted, after its reader has ended:
// a Read that blocks must be ended by the caller.
func Import(ctx context.Context, feed Appender, r io.Reader, emit func(res Result, more bool) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	i := &importer{
		feed:   feed,
		lines:  bufio.NewReaderSize(r, 64<<10),
		queue:  make(chan entry, windowGroups),
		memory: semaphore.NewWeighted(windowBytes),
	}
	var reading errgroup.Group
	reading.Go(func() error {
		defer close(i.queue)
		return i.read(ctx)
	})
	err := i.answer(ctx, emit)
	cancel(err)
	for range i.queue { // what was read but will not be answered
	}
	return errors.Join(err, reading.Wait())
}

type importer struct {
	feed   Appender
	lines  *bufio.Reader
	queue  chan entry
	memory *semaphore.Weighted
	before *livefeed.Pending // the group submitted last; owned by read
}

// entry is a line under way.
type entry struct {
	line    int
	size    int64             // held of memory
	pending *livefeed.Pending // nil when err is set
	err     error
}

// read takes lines, submits them and queues them, within the window (P3).
func (i *importer) read(ctx context.Context) error {
	for line := 1; ; line++ {
		text, err := i.next()
		long := errors.Is(err, errLongLine)
		if len(text) > 0 || long {
			if err := i.submit(ctx, line, text, long); err != nil {
				return nil // ctx has ended: the answering side knows why
			}
		}
		switch {
		case err == nil || long:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("reading line %d: %w", line, err)
		}
	}
}

// submit puts one line into the window.
func (i *importer) submit(ctx context.Context, line int, text []byte, long bool) error {
	e := entry{line: line, size: int64(len(text))}
	if err := i.memory.Acquire(ctx, e.size); err != nil {
		return err
	}
	if long {
		e.err = tooLong()
	} else if p, err := livefeed.DecodeGroup(text); err != nil {
		e.err = err
	} else {
		e.pending = i.feed.SubmitAfter(ctx, p, i.before)
		i.before = e.pending
	}
	select {
	case i.queue <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer emits results in order.
func (i *importer) answer(ctx context.Context, emit func(Result, bool) error) error {
	for e := range i.queue {
		res := Result{Line: e.line, Err: e.err}
		if e.pending != nil {
			res.Receipt, res.Err = e.pending.Wait(ctx)
		}
		if err := context.Cause(ctx); err != nil {
			return err // nobody waits for this answer any more
		}
		i.memory.Release(e.size)
		if err := emit(res, len(i.queue) > 0); err != nil {
			return err
		}
		if interrupts(res) {
			return ErrInterrupted
		}
	}
	return nil
}

// interrupts reports whether a result ends its import (P4).
func interrupts(res Result) bool {
	return res.Err != nil && publicError(res.Err).Code == wire.Unavailable
}

var errLongLine = errors.New("the line is too long")

// next reads one line without its end. At the end of the input it returns what
// was left and io.EOF. A line above MaxGroupBytes is consumed and dropped.
func (i *importer) next() ([]byte, error) {
	var line []byte
	for {
		part, err := i.lines.ReadSlice('\n')
		if len(line)+len(part) > MaxGroupBytes+1 {
			return nil, i.discard(err)
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err // a line cut off by a lost peer is no group
		}
		line = bytes.Trim(line, " \t\r\n")
		if len(line) > MaxGroupBytes {
			return nil, errLongLine
		}
		return line, err
	}
}

// discard consumes the rest of a line that is too long.
func (i *importer) discard(err error) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = i.lines.ReadSlice('\n')
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return errLongLine // the end of the input, if this was it, is met again
}

// importGroups answers POST /operator/v1/feeds/{feed}/import.
func (a *API) importGroups(c echo.Context) error {
	f, err := a.open(c)
	if err != nil {
		return err
	}
	r, w := c.Request(), c.Response()
	control := http.NewResponseController(w)
	// Without this HTTP/1.1 would stop reading the request at our first answer,
	// and answers would be lost without an error.
	if err := control.EnableFullDuplex(); err != nil {
		return fmt.Errorf("answering while reading: %w", err)
	}
	// A pipe may pause as long as it likes: only shutdown and disconnection end it.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("lifting the read deadline: %w", err)
	}
	// Groups that were taken are answered even when the peer has ended its side
	// or we are asked to stop, so the request's own end is followed only after a
	// grace; a lost peer shows in reading and writing.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	interrupt := func() { _ = control.SetReadDeadline(time.Unix(1, 0)) } // ends a blocked read
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-a.draining:
			interrupt()
		case <-r.Context().Done():
		case <-ctx.Done():
			return
		}
		select {
		case <-r.Context().Done():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(answerGrace):
			cancel()
			interrupt()
		case <-ctx.Done():
		}
	}()
	defer func() {
		cancel()
		<-watched
	}()

	w.Header().Set(echo.HeaderContentType, "application/x-ndjson")
	// An import that ends before its input must not leave the rest of it to
	// net/http, which in full duplex would read it and the next request at once.
	w.Header().Set(echo.HeaderConnection, "close")
	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 16<<10)
	var line []byte
	err = Import(ctx, f, r.Body, func(res Result, more bool) error {
		line = a.appendResult(line[:0], f.Name(), res)
		err := control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err == nil {
			_, err = out.Write(line)
		}
		if err == nil && !more {
			if err = out.Flush(); err == nil {
				err = control.Flush()
			}
		}
		if err != nil || interrupts(res) {
			interrupt() // Import ends here and waits for its reader
		}
		return err
	})
	if ferr := out.Flush(); err == nil {
		err = ferr
	}
	if err != nil && !a.isDraining() && r.Context().Err() == nil {
		a.log.Info("an import ended early", "feed", f.Name(), "error", err)
	}
	return nil
}

// appendResult writes one answer line and counts it.
func (a *API) appendResult(dst []byte, feed string, res Result) []byte {
	result := "appended"
	if res.Err != nil {
		public := publicError(res.Err)
		result = string(public.Code)
		if public.Code == wire.Unavailable {
			a.log.Error("a line of an import could not be appended", "feed", feed, "line", res.Line, "error", res.Err)
		}
		dst = public.AppendCanonical(dst)
	} else {
		if res.Receipt.Replayed {
			result = "replayed"
		}
		dst = appendReceipt(dst, res.Receipt)
	}
	a.metrics.lines.WithLabelValues(feed, result).Inc()
	return append(dst, '\n')
}
