package lookup

import (
	"github.com/overlayd/overlayd/internal/wire"
)

// Fitting whole groups into a body. A response never exceeds the effective limits and never splits a group; what does not
// fit is refused with the numbers that would make it fit (BRC-193 s2, s8).
//
// highWater is the one number that another request may see grow, and a longer one must not change which groups a page
// holds (conformance row S7). So a page is cut as if highWater had only as many digits as its own watermark needs; if the
// head has outgrown the room that is left, the greatest sequence that fits is named instead, which is as truly committed.

// digits is the length of n in decimal.
func digits(n uint64) int {
	d := 1
	for n >= 10 {
		n /= 10
		d++
	}
	return d
}

// widestU64 is the length of the longest U64.
const widestU64 = 20

// widthLimited returns the greatest number not above n with at most width digits.
func widthLimited(n uint64, width int) uint64 {
	if digits(n) <= width {
		return n
	}
	limit := uint64(1)
	for range width {
		limit *= 10
	}
	return limit - 1
}

// space is the budget of one response.
type space struct {
	fixed  int // bytes of the empty batch without the digits of through and highWater, snapshotComplete false
	limits wire.Limits
}

func newSpace(h head) space {
	h.through, h.highWater, h.complete = 0, 0, false
	var room [2048]byte // for most
	return space{fixed: len(h.append(room[:0], nil, nil)) - 2, limits: h.limits}
}

// size is the least number of bytes of a batch with these groups; highWater takes as many digits as through.
func (s space) size(groupBytes, groups int, through uint64, complete bool) int {
	n := s.fixed + groupBytes + 2*digits(through)
	if groups > 1 {
		n += groups - 1
	}
	if complete {
		n-- // "true" for "false"
	}
	return n
}

// highWater returns what a batch of the given least size may name for the head.
func (s space) highWater(leastSize int, through, headSequence uint64) uint64 {
	spare := int(s.limits.MaxBytes) - leastSize
	return widthLimited(headSequence, digits(through)+max(spare, 0))
}

// through returns the furthest watermark between last and examined that a batch of the given least size, counted at last,
// has room for; highWater needs as many digits.
func (s space) through(leastSize int, last, examined uint64) uint64 {
	spare := max(int(s.limits.MaxBytes)-leastSize, 0)
	return widthLimited(examined, digits(last)+spare/2)
}

// envelope refuses limits that not even the empty batch fits into, before anything is waited for (conformance row L6).
func (s space) envelope(through uint64, complete bool) *refusal {
	if s.size(0, 0, through, complete) <= int(s.limits.MaxBytes) {
		return nil
	}
	return refuseLimit(wire.Limit{Kind: wire.LimitEnvelope, MinimumBytes: new(s.minimum(0, s.limits.MaxObservations))})
}

// minimum is the maxBytes that a retry needs for one group of that many bytes: every U64 that may grow at its widest, and
// the echoed limits as they would then stand (conformance row H7).
func (s space) minimum(groupBytes int, maxObservations uint32) uint32 {
	n := s.fixed + groupBytes + 2*widestU64
	n += digits(uint64(maxObservations)) - digits(uint64(s.limits.MaxObservations)) - digits(uint64(s.limits.MaxBytes))
	// The echoed maxBytes counts its own digits.
	width := digits(uint64(n))
	if digits(uint64(n+width)) > width {
		width++
	}
	return uint32(n + width)
}

// group refuses a first group that does not fit, given the greatest limits the session could ever ask for.
func (s space) group(d *draft, through uint64, complete bool, most wire.Limits) *refusal {
	observations := max(s.limits.MaxObservations, uint32(d.observations))
	atMost := space{fixed: s.fixed, limits: s.limits}
	atMost.fixed += digits(uint64(most.MaxBytes)) - digits(uint64(s.limits.MaxBytes))
	atMost.fixed += digits(uint64(observations)) - digits(uint64(s.limits.MaxObservations))
	if uint32(d.observations) > most.MaxObservations || atMost.size(d.size, 1, through, complete) > int(most.MaxBytes) {
		return refuseLimit(wire.Limit{Kind: wire.LimitPermanentGroup})
	}
	limit := wire.Limit{Kind: wire.LimitGroup, MinimumBytes: new(min(s.minimum(d.size, observations), most.MaxBytes))}
	if uint32(d.observations) > s.limits.MaxObservations {
		limit.MinimumObservations = new(uint32(d.observations))
	}
	return refuseLimit(limit)
}
