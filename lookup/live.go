package lookup

import (
	"context"
	"fmt"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// Bounds of the work of one live read. When one is spent the read answers with what it has, its cursor moved.
const (
	logChunk    = 256  // groups taken from the log at a time
	scanBudget  = 8192 // groups examined before an answer without any is given
	drainBudget = 500  // due timers drained by one read or Open: two transactions of the committer
)

// tail is a live read as far as it has come.
type tail struct {
	head   head
	space  space
	groups []*draft

	start        uint64   // the sequence this read continues after
	at           position // what has been examined
	headNow      uint64   // the greatest head seen
	bytes        int      // of groups
	observations int      // of groups
	examined     int      // groups looked at, against scanBudget
	full         bool     // the next relevant group does not fit
}

func (p *shard) newTail(s *session, from position, limits wire.Limits) (*tail, *refusal) {
	t := &tail{head: s.head(limits), start: from.after, at: from, headNow: from.after}
	t.head.phase, t.head.complete = "live", true
	t.head.cursor = anyCursor // for its length
	t.space = newSpace(t.head)
	return t, t.space.envelope(from.after, true)
}

// advance reads the log from where the tail stands until the tail is full, the head is reached, or the budget is spent;
// reached says that it was the head.
//
// Every timer that was due is in the log before the head counts as reached, within the drain budget (BRC-193 s8), unless the
// caller waits: it claims nothing yet.
func (p *shard) advance(ctx context.Context, s *session, t *tail, selectors []livefeed.Selector, waiting livefeed.Waiting) (reached bool, err error) {
	drained := false
	for ; t.examined < scanBudget && !t.full; waiting = livefeed.Here {
		chunk, err := s.feed.Follow(ctx, p.pool, livefeed.LogQuery{
			After: t.at.after, AfterTag: t.at.tag, Selectors: selectors, Limit: logChunk,
		}, waiting)
		if err != nil {
			return false, p.suspect(ctx, s, t.at.after, t.at.tag, fmt.Errorf("lookup: read the log: %w", err))
		}
		if chunk.Broken > s.turn {
			return false, refuseReset(errBroken)
		}
		t.headNow = max(t.headNow, chunk.Head)
		if err := p.take(ctx, s, t, chunk); err != nil {
			return false, err
		}
		switch {
		case t.full:
			return false, nil
		case chunk.Full:
			t.examined += len(chunk.Groups)
		case chunk.Due && !drained:
			if err := p.arrive(ctx, s); err != nil { // nothing is written for a session that is over
				return false, err
			}
			drained = true
			if _, err := s.feed.Drain(ctx, chunk.Now, drainBudget); err != nil {
				return false, fmt.Errorf("lookup: drain due timers: %w", err)
			}
		default:
			return true, nil
		}
	}
	return false, nil
}

// take adds a chunk's relevant groups as long as they fit and moves the position over what was examined.
func (p *shard) take(ctx context.Context, s *session, t *tail, chunk livefeed.LogPage) error {
	var l layer
	for i := range chunk.Groups {
		g := &chunk.Groups[i]
		d := p.layOut(&l, s, g, chunk.Head)
		if d == nil {
			continue
		}
		if t.observations+d.observations > int(t.head.limits.MaxObservations) ||
			t.space.size(t.bytes+d.size, len(t.groups)+1, g.Sequence, true) > int(t.head.limits.MaxBytes) {
			if len(t.groups) == 0 {
				return t.space.group(d, g.Sequence, true, s.most)
			}
			t.full = true
			return p.stand(ctx, s, t, g.Sequence-1)
		}
		t.groups = append(t.groups, d)
		t.bytes += d.size
		t.observations += d.observations
	}
	switch {
	case !chunk.Full:
		t.at = position{live: true, after: chunk.Head, tag: chunk.HeadTag}
	case len(chunk.Groups) > 0 && chunk.Groups[len(chunk.Groups)-1].Sequence == chunk.Examined:
		t.at = position{live: true, after: chunk.Examined, tag: chunk.Groups[len(chunk.Groups)-1].Tag}
	default:
		return p.stand(ctx, s, t, chunk.Examined)
	}
	return nil
}

// stand puts the tail at a sequence whose tag has to be asked for.
func (p *shard) stand(ctx context.Context, s *session, t *tail, sequence uint64) error {
	tag, err := s.feed.TagAt(ctx, p.pool, sequence)
	if err != nil {
		return fmt.Errorf("lookup: read a tag: %w", err)
	}
	t.at = position{live: true, after: sequence, tag: tag}
	return nil
}

// finish sets the watermarks and the cursor, fetches the evidence of the chosen groups and writes the body.
func (p *shard) finish(ctx context.Context, s *session, t *tail, r *room) (built, error) {
	last := t.start
	if len(t.groups) > 0 {
		last = t.groups[len(t.groups)-1].sequence
	}
	least := t.space.size(t.bytes, len(t.groups), last, true)
	// through may outgrow the room that an exact fit left, by a digit or two; then it stops a little earlier.
	if through := t.space.through(least, last, t.at.after); through != t.at.after {
		if err := p.stand(ctx, s, t, through); err != nil {
			return built{}, err
		}
	}
	t.head.through = t.at.after
	least = t.space.size(t.bytes, len(t.groups), t.head.through, true)
	t.head.highWater = t.space.highWater(least, t.head.through, t.headNow)
	t.head.cursor = p.cursors.seal(s.digest, s.epoch, t.at)
	room, refused := r.lay(least + widestU64)
	if refused != nil {
		return built{}, refused
	}
	e, err := p.liveEvidence(ctx, s.feed, t.groups)
	if err != nil {
		return built{}, err
	}
	return assemble(room, &t.head, t.groups, e)
}
