package lookup

import (
	"context"
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
	pg.head.cursor = anyCursor // for its length
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

// finishPage fetches the evidence of the chosen groups and writes the body. Kept says whether evidence that this node has kept may
// be taken.
func (p *shard) finishPage(ctx context.Context, q livefeed.Querier, feed *livefeed.Feed, pg *page, headSequence uint64, kept bool, r *room) (built, error) {
	room, refused := r.lay(pg.size + widestU64)
	if refused != nil {
		return built{}, refused
	}
	e, err := p.pageEvidence(ctx, q, feed, pg.groups, kept)
	if err != nil {
		return built{}, err
	}
	pg.head.highWater = pg.space.highWater(pg.size, pg.head.through, headSequence)
	return assemble(room, &pg.head, pg.groups, e)
}

// built is a finished body, and what the gate must ask of it.
type built struct {
	body []byte
	// disclosed are the outpoints, 36 bytes each, of the rows that the body newly serialises (conformance row A5).
	disclosed []byte
	evidence  []byte // the digests, 32 bytes each, of what it carries that was not read for it
}

// assemble writes a body into its room, and checks that it keeps its limit.
func assemble(room []byte, h *head, groups []*draft, e *evidence) (built, error) {
	body := h.append(room, groups, e)
	if len(body) > int(h.limits.MaxBytes) {
		return built{}, fmt.Errorf("lookup: a body of %d bytes outgrew its %d", len(body), h.limits.MaxBytes)
	}
	out := built{body: body, evidence: e.kept}
	size := 0
	for _, g := range groups {
		size += len(g.disclosed)
	}
	out.disclosed = make([]byte, 0, size)
	for _, g := range groups {
		out.disclosed = append(out.disclosed, g.disclosed...)
	}
	return out, nil
}
