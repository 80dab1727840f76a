package lookup

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/overlayd/overlayd/livefeed"
)

// Anonymous sessions that ask the same of the same service are told a group in the same bytes: what it is to them is derived and laid
// out once (conformance row L4: ids come from scope, sequence and index alone), and kept as long as the group is among the
// last of its feed. A signed session's scope names its principal, so there is nobody to share with.

// kinGroups is how far behind the head a group may be for its layout to be kept.
const kinGroups = 256

// kinKey names a group's layout. The tag keeps it from a group of a history that was rewritten.
type kinKey struct {
	kin      [32]byte
	sequence uint64
	tag      [8]byte
}

// kinOf is a digest of all that a live group's layout comes from besides the group.
func kinOf(database DatabaseID, feed int32, rules string, parameters, query, scope, chain []byte) (kin [32]byte) {
	text := binary.BigEndian.AppendUint32(append(make([]byte, 0, 512+len(parameters)+len(query)+len(scope)), database[:]...), uint32(feed))
	for _, part := range [][]byte{[]byte(rules), parameters, query, scope, chain} {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(text)
}

// layer lays out groups one after the other; it keeps the room that takes.
type layer struct{ facts []fact }

// layOut derives and lays out one live group; nil: it means nothing to the session. Others may be given the same draft.
func (p *shard) layOut(l *layer, s *session, g *livefeed.Group, head uint64) *draft {
	shared := s.kin != [32]byte{} && head-g.Sequence < kinGroups
	key := kinKey{s.kin, g.Sequence, g.Tag}
	if shared {
		if d, ok := p.layouts.get(key); ok {
			return d
		}
	}
	l.facts = l.facts[:0]
	for c := range g.Changes {
		l.facts = s.viewer.observe(l.facts, &g.Changes[c])
	}
	var d *draft
	if len(l.facts) > 0 {
		d = s.voice.liveDraft(g.Sequence, l.facts)
	}
	if shared {
		p.layouts.put(key, d, d.weight())
	}
	return d
}

// layoutOverhead is about what keeping a layout takes besides its text.
const layoutOverhead = 384

func (d *draft) weight() int {
	if d == nil {
		return layoutOverhead
	}
	return layoutOverhead + cap(d.text) + len(d.disclosed) + 48*len(d.cuts)
}
