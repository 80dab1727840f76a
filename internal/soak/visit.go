package soak

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

const base = "http://soak.test"

// answer is a response in memory.
type answer struct {
	header http.Header
	status int
	bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (s *soak) serve(r *http.Request) (int, []byte) {
	a := &answer{header: http.Header{}, status: http.StatusOK}
	s.handler.ServeHTTP(a, r)
	return a.status, a.Bytes()
}

func (s *soak) get(ctx context.Context, path string) (int, []byte) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, http.NoBody)
	if err != nil {
		return 0, nil
	}
	return s.serve(r)
}

// post sends a request until it is answered: what the provider says may be tried again is.
func (s *soak) post(ctx context.Context, path string, body []byte) (int, []byte, error) {
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, io.NopCloser(bytes.NewReader(body)))
		if err != nil {
			return 0, nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Cache-Control", "no-store")
		r.Header.Set(wire.HeaderCapability, s.digest)
		r.Header.Set(wire.HeaderProfile, wire.Profile)
		r.RemoteAddr = "127.0.0.1:1"
		status, answer := s.serve(r)
		if status == http.StatusOK {
			return status, answer, nil
		}
		e, err := wire.ParseError(answer, status)
		if err != nil {
			return status, answer, err
		}
		if !e.Retryable {
			return status, answer, e
		}
		s.retried.Add(1)
		select {
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// visitor is one session at a time.
type visitor struct {
	*soak
	genre int
	whole bool // asks for every row
	batch *wire.Batch
	edits map[int]int // row number -> the edit seen last
}

// visit opens, scans, follows and closes sessions until the load ends.
func (s *soak) visit(ctx context.Context, i int) {
	for n := i; ctx.Err() == nil; n += s.Sessions {
		v := &visitor{soak: s, genre: n % s.Genres, whole: i%s.Whole == 0}
		whole := context.WithoutCancel(ctx) // what was begun is finished
		err := v.snapshot(whole)
		if err == nil {
			err = v.follow(whole, time.Now().Add(followTime/2+time.Duration(i)*followTime/2/time.Duration(s.Sessions)), ctx.Done())
		}
		if err == nil {
			err = v.leave(whole)
		}
		if err != nil {
			s.fault(fmt.Errorf("session %d: %w", n, err))
			return
		}
		s.sessions.Add(1)
	}
}

func (v *visitor) leave(ctx context.Context) error {
	if v.batch == nil {
		return nil
	}
	_, _, err := v.post(ctx, "/overlay/v1/lookup/close", fmt.Appendf(nil, `{"version":1,"session":"%s"}`, v.batch.Session))
	return err
}

// Pages of what one genre selects are what is measured; whoever asks for everything takes more at a time.
const (
	pageRows      = 256
	wholePageRows = wire.MaxObservations
)

func (v *visitor) limits(wait int) string {
	rows := pageRows
	if v.whole {
		rows = wholePageRows
	}
	return fmt.Sprintf(`{"maxBytes":%d,"maxObservations":%d,"waitMs":%d}`, wire.MaxResponseBytes, rows, wait)
}

func (v *visitor) read(ctx context.Context, cursor string, wait int) ([]byte, error) {
	c, err := json.Marshal(cursor)
	if err != nil {
		return nil, err
	}
	_, body, err := v.post(ctx, "/overlay/v1/lookup/read", fmt.Appendf(nil,
		`{"version":1,"session":"%s","cursor":%s,"limits":%s}`, v.batch.Session, c, v.limits(wait)))
	return body, err
}

// snapshot opens and scans, twice: the second time every page must hold the same groups. Each row must be there once, as
// it was at W.
func (v *visitor) snapshot(ctx context.Context) error {
	id := make([]byte, 24)
	_, _ = rand.Read(id) //nolint:errcheck // never fails
	query := fmt.Sprintf(`{"match":{"genre":"%d"}}`, v.genre)
	if v.whole {
		query = `{}`
	}
	_, body, err := v.post(ctx, "/overlay/v1/lookup/open", fmt.Appendf(nil,
		`{"version":1,"requestId":"%s","service":"%s","query":%s,"limits":%s}`,
		base64.RawURLEncoding.EncodeToString(id), serviceName, query, v.limits(0)))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	v.edits = map[int]int{}
	var cursors []string
	var sums [][32]byte
	for {
		if v.batch, err = wire.ParseBatch(body); err != nil {
			return err
		}
		for i := range v.batch.Groups {
			if err := v.take(&v.batch.Groups[i].Observations[0], true); err != nil {
				return fmt.Errorf("snapshot at %d: %w", v.batch.Through, err)
			}
		}
		if v.batch.SnapshotComplete {
			break
		}
		began := time.Now()
		if body, err = v.read(ctx, v.batch.Cursor, 0); err != nil {
			return fmt.Errorf("read a page: %w", err)
		}
		if !v.whole {
			v.latency.Load().note(time.Since(began))
		}
		cursors, sums = append(cursors, v.batch.Cursor), append(sums, groupsOf(body))
	}
	if err := v.checkSnapshot(ctx, v.batch.Through); err != nil {
		return err
	}
	for i, cursor := range cursors {
		body, err := v.read(ctx, cursor, 0)
		if err != nil {
			return fmt.Errorf("read a page again: %w", err)
		}
		if groupsOf(body) != sums[i] {
			return fmt.Errorf("page %d holds other groups when it is read again", i+1)
		}
	}
	v.compared.Add(1)
	return nil
}

// groupsOf is a digest of a body's groups: all of it but the cursor before them and the watermarks behind them.
func groupsOf(body []byte) [32]byte {
	from, to := bytes.Index(body, []byte(`"groups":[`)), bytes.LastIndex(body, []byte(`],"highWater":`))
	if from < 0 || to < from {
		return [32]byte{}
	}
	return sha256.Sum256(body[from:to])
}

// take notes the edit that an output shows. In the log it must be the one after the last.
func (v *visitor) take(o *wire.Observation, snapshot bool) error {
	if o.Output == nil || o.Output.Context == nil || len(o.Output.Context.Bytes) != 8 {
		return fmt.Errorf("a %s of a row that nobody took out", o.Kind)
	}
	number, ok := v.numbers[o.Output.Evidence.TxID]
	n := int(binary.BigEndian.Uint64(o.Output.Context.Bytes))
	last, seen := v.edits[number]
	switch {
	case !ok || !v.whole && v.genreOf(number) != v.genre:
		return fmt.Errorf("row %s does not belong here", o.Output.Evidence.TxID)
	case snapshot && seen:
		return fmt.Errorf("row %d is there twice", number)
	case !snapshot && n != last+1:
		return fmt.Errorf("row %d: edit %d came after edit %d", number, n, last)
	}
	v.edits[number] = n
	return nil
}

// checkSnapshot asks the writers whether each row is the one of W.
func (v *visitor) checkSnapshot(ctx context.Context, w uint64) error {
	want := v.Rows
	if !v.whole {
		want = (v.Rows - v.genre + v.Genres - 1) / v.Genres
	}
	if len(v.edits) != want {
		return fmt.Errorf("the snapshot at %d has %d rows, want %d", w, len(v.edits), want)
	}
	for number, n := range v.edits {
		known, seq, next := v.rows[number].at(n)
		for !known { // the reader may hear of a commit before its writer does
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
			known, seq, next = v.rows[number].at(n)
		}
		if seq > w || next != 0 && next <= w {
			return fmt.Errorf("the snapshot at %d shows row %d as edit %d of sequence %d, and the next is of %d", w, number, n, seq, next)
		}
	}
	return nil
}

// follow reads the log until then, or until the load ends.
func (v *visitor) follow(ctx context.Context, until time.Time, over <-chan struct{}) error {
	for {
		body, err := v.read(ctx, v.batch.Cursor, 1000)
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		b, err := wire.ParseBatch(body)
		if err != nil {
			return err
		}
		if b.Through < v.batch.Through {
			return fmt.Errorf("through fell from %d to %d", v.batch.Through, b.Through)
		}
		for i := range b.Groups {
			if b.Groups[i].Sequence <= v.batch.Through {
				return fmt.Errorf("group %d came after %d", b.Groups[i].Sequence, v.batch.Through)
			}
			for j := range b.Groups[i].Observations {
				if err := v.take(&b.Groups[i].Observations[j], false); err != nil {
					return err
				}
			}
			v.live.Add(1)
		}
		v.batch = b
		select {
		case <-over:
			return nil
		default:
		}
		if time.Now().After(until) {
			return nil
		}
	}
}
