package lookup

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/overlayd/overlayd/livefeed"
)

// Evidence of live groups is read for all who wait for the same commit by one statement, encoded once, and kept for those who
// come next. What is kept may have been lost in the database meanwhile: the gate is asked about it with the rest (conformance
// row L10). Snapshot pages take what is kept and read the rest for themselves: a scan would drive out what is shared. The first
// page of an Open takes nothing that is kept: it is stored, and answered again without asking for its evidence.

// evidence is the BEEF that a body needs, by digest.
type evidence struct {
	text map[[32]byte][]byte // in base64; shared, never written to
	raw  map[[32]byte][]byte // as stored
	kept []byte              // the digests, 32 bytes each, of what was not read just now
}

// append appends the base64 of one BEEF.
func (e *evidence) append(dst []byte, sum *[32]byte) []byte {
	if text, ok := e.text[*sum]; ok {
		return append(dst, text...)
	}
	return base64.StdEncoding.AppendEncode(dst, e.raw[*sum])
}

// evidenceQuestion is what a body needs that is not kept.
type evidenceQuestion struct {
	feed *livefeed.Feed
	sums [][32]byte
	size int // bytes
}

// items counts kibibytes, so that one statement reads at most 4 MiB and one question more.
func (q evidenceQuestion) items() int { return q.size >> 10 }

// needs are the digests of the evidence in groups, each once, with its size.
func needs(groups []*draft) map[[32]byte]int {
	want := make(map[[32]byte]int)
	for _, g := range groups {
		for i := range g.cuts {
			e := g.cuts[i].evidence
			want[e.SHA256] = e.Size
		}
	}
	return want
}

// keptOf takes what is kept of what is needed, and returns the question for the rest.
func (p *shard) keptOf(feed *livefeed.Feed, want map[[32]byte]int) (*evidence, evidenceQuestion, error) {
	e, q := &evidence{}, evidenceQuestion{feed: feed}
	for sum, size := range want {
		text, ok := p.encoded.get(p.stored(sum))
		switch {
		case !ok:
			q.sums = append(q.sums, sum)
			q.size += size
		case len(text) != base64Size(size):
			return nil, q, errEvidence
		default:
			if e.text == nil {
				e.text = make(map[[32]byte][]byte, len(want))
			}
			e.text[sum] = text
			e.kept = append(e.kept, sum[:]...)
		}
	}
	return e, q, nil
}

// errEvidence is the cause of a reset.
var errEvidence = refuseReset(errors.New("stored evidence is missing or has another size"))

// pageEvidence reads what snapshot groups need, all of it if nothing that is kept may be taken.
func (p *shard) pageEvidence(ctx context.Context, q livefeed.Querier, feed *livefeed.Feed, groups []*draft, kept bool) (*evidence, error) {
	want := needs(groups)
	e, rest := &evidence{}, evidenceQuestion{sums: slices.Collect(maps.Keys(want))}
	var err error
	if kept {
		if e, rest, err = p.keptOf(feed, want); err != nil {
			return nil, err
		}
	}
	if len(rest.sums) == 0 {
		return e, nil
	}
	if e.raw, err = feed.Blobs(ctx, q, rest.sums); err != nil {
		return nil, fmt.Errorf("lookup: read evidence: %w", err)
	}
	for _, sum := range rest.sums {
		if b, ok := e.raw[sum]; !ok || len(b) != want[sum] {
			return nil, errEvidence
		}
	}
	return e, nil
}

// liveEvidence reads what live groups need, along with whoever needs any at the same moment.
func (p *shard) liveEvidence(ctx context.Context, feed *livefeed.Feed, groups []*draft) (*evidence, error) {
	want := needs(groups)
	e, rest, err := p.keptOf(feed, want)
	if err != nil || len(rest.sums) == 0 {
		return e, err
	}
	read, err := p.reads.ask(ctx, rest)
	if err != nil {
		return nil, err
	}
	if e.text == nil {
		e.text = make(map[[32]byte][]byte, len(want))
	}
	for _, sum := range rest.sums {
		text, ok := read.text[sum]
		if !ok || len(text) != base64Size(want[sum]) {
			return nil, errEvidence
		}
		e.text[sum] = text
		if read.before[sum] {
			e.kept = append(e.kept, sum[:]...)
		}
	}
	return e, nil
}

// evidenceAnswer is shared by all questions of a statement.
type evidenceAnswer struct {
	text   map[[32]byte][]byte
	before map[[32]byte]bool // those that were kept by now, and not read
}

// readEvidence reads what many bodies need, each BEEF once. What was read for those who asked before is not read again.
func (p *shard) readEvidence(ctx context.Context, q livefeed.Querier, questions []evidenceQuestion) ([]evidenceAnswer, error) {
	all := evidenceAnswer{text: make(map[[32]byte][]byte), before: make(map[[32]byte]bool)}
	var rest [][32]byte
	asked := make(map[[32]byte]struct{})
	for i := range questions {
		for _, sum := range questions[i].sums {
			if _, twice := asked[sum]; twice {
				continue
			}
			asked[sum] = struct{}{}
			if text, ok := p.encoded.get(p.stored(sum)); ok {
				all.text[sum], all.before[sum] = text, true
			} else {
				rest = append(rest, sum)
			}
		}
	}
	if len(rest) > 0 {
		blobs, err := questions[0].feed.Blobs(ctx, q, rest)
		if err != nil {
			return nil, fmt.Errorf("lookup: read evidence: %w", err)
		}
		for sum, b := range blobs {
			text := base64.StdEncoding.AppendEncode(make([]byte, 0, base64Size(len(b))), b)
			all.text[sum] = text
			p.encoded.put(p.stored(sum), text, len(text)+evidenceOverhead)
		}
	}
	answers := make([]evidenceAnswer, len(questions))
	for i := range answers {
		answers[i] = all
	}
	return answers, nil
}

// freshEvidence is how large evidence may be that is kept as soon as it is stored. Larger is read when somebody needs it: to encode it
// would hold up the commits.
const freshEvidence = 64 << 10

// keepFresh keeps what a commit has just stored, for the polls that it wakes.
func (p *shard) keepFresh(sum [32]byte, data []byte) {
	if len(data) > freshEvidence {
		return
	}
	text := base64.StdEncoding.AppendEncode(make([]byte, 0, base64Size(len(data))), data)
	p.encoded.put(p.stored(sum), text, len(text)+evidenceOverhead)
}

// evidenceOverhead is about what keeping one BEEF takes besides its text.
const evidenceOverhead = 256
