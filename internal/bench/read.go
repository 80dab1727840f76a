package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// catalogue is rows to open and page: row N has a value for every size above N.
type catalogue struct {
	*bench
	run   *run
	sizes []int
	rows  atomic.Uint64 // numbers below this may be listed
}

const (
	cataloguePart = "c"
	fillers       = 4 // appends of the filling that are under way at once
)

// value selects so many rows.
func (c *catalogue) value(size int) string { return c.run.name + "-" + strconv.Itoa(size) }

// fill appends the rows.
func (c *catalogue) fill(ctx context.Context) error {
	if c.Target.Attribute == "" {
		return errors.New("opens and pages of a target want --attribute, the name of one that its rules declare: its own rows are not what is measured")
	}
	most := slices.Max(c.sizes)
	perGroup := max(1, min(withdrawn, 2<<20/(2*c.run.bytes+2048)))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range fillers {
		all.Go(func() {
			o, err := c.Target.operator()
			for err == nil && ctx.Err() == nil {
				to := int(c.rows.Add(uint64(perGroup)))
				from := to - perGroup
				if from >= most {
					break
				}
				if c.Plan.Progress != nil {
					c.Plan.Progress(min(to, most), most, "listing the rows")
				}
				_, err = o.append(context.WithoutCancel(ctx), c.group(from, min(to, most)))
			}
			if err != nil {
				cancel(err)
			}
			if o != nil {
				o.close()
			}
		})
	}
	all.Wait()
	c.rows.Store(min(c.rows.Load(), uint64(most)))
	return context.Cause(ctx)
}

func (c *catalogue) group(from, to int) []byte {
	dst := append([]byte(`{"key":"`), c.run.key(cataloguePart, uint64(from))...)
	dst = append(dst, `","edits":[`...)
	for n := from; n < to; n++ {
		if n > from {
			dst = append(dst, ',')
		}
		var values []string
		for _, size := range c.sizes {
			if n < size {
				values = append(values, c.value(size))
			}
		}
		dst = c.run.appendPut(dst, cataloguePart, uint64(n), c.Target.Attribute, values...)
	}
	return append(dst, "]}"...)
}

// newCatalogue lists the rows and makes those of the baseline. What it returns must be ended, also with an error.
func (s Setup) newCatalogue(ctx context.Context, command string, sizes []int) (*catalogue, error) {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	b, err := s.start(ctx, command, 2, map[string]any{"rows": sizes})
	if err != nil {
		return nil, err
	}
	c := &catalogue{bench: b, run: newRun(s.Target.evidence()), sizes: sizes}
	if err := c.fill(ctx); err != nil {
		return c, err
	}
	if b.bare != nil {
		return c, b.bare.fill(ctx, slices.Max(sizes), s.Target.evidence())
	}
	return c, nil
}

func (c *catalogue) end(ctx context.Context, err error) (*Report, error) {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		err, c.report.Interrupted = nil, true
	}
	err = errors.Join(err, c.run.clear(ctx, c.Target, cataloguePart, 0, c.rows.Load()))
	return c.bench.end(ctx, err)
}

// Open measures the opening of sessions, to the first page of 256 rows, of queries that select so many rows.
func Open(ctx context.Context, s Setup, sizes []int) (*Report, error) {
	c, err := s.newCatalogue(ctx, "open", sizes)
	if c == nil {
		return nil, err
	}
	if err != nil {
		return c.end(ctx, err)
	}
	caller, err := s.Target.caller()
	if err != nil {
		return c.end(ctx, err)
	}
	defer caller.close()
	first, err := caller.open(ctx, c.value(c.sizes[0]), pageRows)
	if err != nil {
		return c.end(ctx, err)
	}
	answer := len(first.batch.AppendCanonical(nil))
	if err := first.leave(ctx); err != nil {
		return c.end(ctx, err)
	}
	var cases []oneCase
	for _, size := range c.sizes {
		cases = append(cases, counted(openName(size), false, func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			session, err := caller.open(ctx, c.value(size), pageRows)
			took := time.Since(began)
			if session != nil && session.batch != nil {
				err = errors.Join(err, session.leave(ctx))
			}
			return took, err
		}))
	}
	if c.bare != nil {
		cases = append(cases, counted(barePage, true, timed(func(ctx context.Context) error { return c.bare.page(ctx, 0) })))
	}
	err = s.Plan.measure(ctx, c.report, append(cases, c.echoCase(min(answer, echoBytes))))
	for _, size := range c.sizes {
		if size != c.sizes[0] {
			c.report.compare(openName(size), openName(c.sizes[0]), figureP50)
		}
		c.report.compare(openName(size), barePage, figureP50)
		c.report.compare(openName(size), bareEcho, figureP50)
	}
	return c.end(ctx, err)
}

func openName(size int) string { return "open, " + count(size, "row") }

// Page measures reads of pages of 256 rows near the start and near the end of one query that selects so many rows.
func Page(ctx context.Context, s Setup, rows int) (*Report, error) {
	c, err := s.newCatalogue(ctx, "page", []int{rows})
	if c == nil {
		return nil, err
	}
	if err != nil {
		return c.end(ctx, err)
	}
	caller, err := s.Target.caller()
	if err != nil {
		return c.end(ctx, err)
	}
	defer caller.close()
	session, err := caller.open(ctx, c.value(rows), pageRows)
	if session == nil || session.batch == nil {
		return c.end(ctx, err)
	}
	p := &paging{session: session}
	if err == nil {
		err = p.scan(ctx)
	}
	if err != nil {
		return c.end(ctx, errors.Join(err, session.leave(ctx)))
	}
	// The first tenth of the pages, and the tenth that begins at 90 %.
	tenth := max(1, len(p.cursors)/10)
	places := []struct {
		name string
		from int
	}{{"start", 0}, {"90 %", min(len(p.cursors)*9/10, len(p.cursors)-1)}}
	var cases []oneCase
	for _, at := range places {
		next := 0
		cases = append(cases, counted("page at "+at.name, false, timed(func(ctx context.Context) error {
			next++
			return p.read(ctx, min(at.from+next%tenth, len(p.cursors)-1))
		})))
		if c.bare != nil {
			cases = append(cases, counted(barePage+" at "+at.name, true, timed(func(ctx context.Context) error {
				next++
				return c.bare.page(ctx, int64(min(at.from+next%tenth, len(p.cursors)-1)*pageRows))
			})))
		}
	}
	err = s.Plan.measure(ctx, c.report, append(cases, c.echoCase(min(p.answer, echoBytes))))
	c.report.compare("page at 90 %", "page at start", figureP50)
	for _, at := range places {
		c.report.compare("page at "+at.name, barePage+" at "+at.name, figureP50)
		c.report.compare("page at "+at.name, bareEcho, figureP50)
	}
	return c.end(ctx, errors.Join(err, session.leave(ctx)))
}

// paging is a session whose pages are read again and again: a cursor may be used as often as one likes.
type paging struct {
	*session
	cursors []string // before each page but the first
	answer  int      // bytes of a page
}

// scan reads to the end and keeps the cursors.
func (p *paging) scan(ctx context.Context) error {
	for !p.batch.SnapshotComplete {
		p.cursors = append(p.cursors, p.batch.Cursor)
		if err := p.session.read(ctx, 0); err != nil {
			return err
		}
	}
	if len(p.cursors) == 0 {
		return fmt.Errorf("a query of at most %d rows has one page; give more --rows", pageRows)
	}
	return nil
}

// read reads the page behind a cursor.
func (p *paging) read(ctx context.Context, at int) error {
	request, err := p.readBody(p.cursors[at], 0)
	if err != nil {
		return err
	}
	body, err := p.retry(ctx, http.MethodPost, lookupPath+"read", request, 0, wire.MaxResponseBytes)
	if err != nil {
		return err
	}
	b, err := wire.ParseBatch(body)
	if err != nil {
		return err
	}
	p.answer = len(body)
	if b.Session != p.batch.Session || b.Phase != wire.PhaseSnapshot || len(b.Groups) == 0 {
		return fmt.Errorf("page %d is not one of the snapshot", at)
	}
	return nil
}
