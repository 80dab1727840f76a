package lookup

import (
	"context"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// smallestGroup is a lower bound of the bytes of any snapshot group; it bounds how many rows a page reads ahead.
const smallestGroup = 600

// page is one snapshot page, cut but not yet written.
type page struct {
	head   head
	groups []*draft
	space  space
	size   int // least bytes, as space.size counts them
}

// cutPage reads the rows that follow a position in the immutable snapshot at W and takes the longest prefix that fits
// (BRC-193 s3). Its content depends on the session, the position and the limits alone.
func (p *shard) cutPage(ctx context.Context, q livefeed.Querier, s *session, after int64, limits wire.Limits) (*page, error) {
	pg := &page{head: s.head(limits)}
	pg.head.phase = "snapshot"
	pg.head.through = s.w
	pg.head.cursor = p.cursors.seal(s.digest, s.epoch, position{tag: s.wTag}) // for its length
	pg.space = newSpace(pg.head)
	if r := pg.space.envelope(s.w, false); r != nil {
		return nil, r
	}
	ahead := min(int(limits.MaxObservations), int(limits.MaxBytes)/smallestGroup+1)
	selectors, err := s.feed.Drive(ctx, q, s.viewer.query.Selectors())
	if err != nil {
		return nil, fmt.Errorf("lookup: choose a posting: %w", err)
	}
	rows, err := s.feed.Page(ctx, q, livefeed.PageQuery{
		W: s.w, WTag: s.wTag, T: s.t, After: after, Selectors: selectors, Reader: s.viewer.reader, Limit: ahead,
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: read a page: %w", err)
	}
	at, bytes := after, 0
	for i := range rows.Rows {
		row := &rows.Rows[i]
		if !s.viewer.sees(&row.State) {
			at = row.Version // a posting that only looked alike
			continue
		}
		d := s.voice.snapshotDraft(s.digest, s.w, row)
		last := !rows.More && i == len(rows.Rows)-1
		size := pg.space.size(bytes+d.size, len(pg.groups)+1, s.w, last)
		if size > int(limits.MaxBytes) {
			if len(pg.groups) == 0 {
				return nil, pg.space.group(d, s.w, last, s.most)
			}
			return p.endPage(pg, s, at, false, bytes), nil
		}
		pg.groups = append(pg.groups, d)
		bytes += d.size
		at = row.Version
	}
	if rows.More {
		at = rows.Last
	}
	return p.endPage(pg, s, at, !rows.More, bytes), nil
}

// endPage sets the boundary and the cursor after the last row of the page.
func (p *shard) endPage(pg *page, s *session, at int64, complete bool, bytes int) *page {
	pg.head.complete = complete
	next := position{after: uint64(at), tag: s.wTag}
	if complete {
		next = position{live: true, after: s.w, tag: s.wTag}
	}
	pg.head.cursor = p.cursors.seal(s.digest, s.epoch, next)
	pg.size = pg.space.size(bytes, len(pg.groups), s.w, complete)
	return pg
}

// finish fetches the evidence of the chosen groups and writes the body.
func (pg *page) finish(ctx context.Context, q livefeed.Querier, feed *livefeed.Feed, headSequence uint64) (body []byte, disclosed [][]byte, err error) {
	blobs, err := fetch(ctx, q, feed, pg.groups)
	if err != nil {
		return nil, nil, err
	}
	pg.head.highWater = pg.space.highWater(pg.size, pg.head.through, headSequence)
	return assemble(&pg.head, pg.groups, blobs, pg.size)
}

// assemble writes a body whose least size is known, and checks that it keeps its limit.
func assemble(h *head, groups []*draft, blobs map[[32]byte][]byte, leastSize int) (body []byte, disclosed [][]byte, err error) {
	body = h.append(make([]byte, 0, leastSize+widestU64), groups, blobs)
	if len(body) > int(h.limits.MaxBytes) {
		return nil, nil, fmt.Errorf("lookup: a body of %d bytes outgrew its %d", len(body), h.limits.MaxBytes)
	}
	for _, g := range groups {
		disclosed = append(disclosed, g.disclosed...)
	}
	return body, disclosed, nil
}

// fetch reads the BEEF of the chosen groups, each once.
func fetch(ctx context.Context, q livefeed.Querier, feed *livefeed.Feed, groups []*draft) (map[[32]byte][]byte, error) {
	want := make(map[[32]byte]int)
	var sums [][32]byte
	for _, g := range groups {
		for i := range g.pieces {
			if e := g.pieces[i].evidence; e != nil {
				if _, seen := want[e.SHA256]; !seen {
					sums = append(sums, e.SHA256)
				}
				want[e.SHA256] = e.Size
			}
		}
	}
	if len(sums) == 0 {
		return nil, nil
	}
	blobs, err := feed.Blobs(ctx, q, sums)
	if err != nil {
		return nil, fmt.Errorf("lookup: read evidence: %w", err)
	}
	for sum, size := range want {
		if b, ok := blobs[sum]; !ok || len(b) != size {
			return nil, refuseReset(errors.New("stored evidence is missing or has another size"))
		}
	}
	return blobs, nil
}
