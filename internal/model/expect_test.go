package model_test

import (
	"encoding/hex"
	"slices"

	"github.com/overlayd/overlayd/internal/wire"
)

// What the services promise.
const (
	sessionSeconds    = 20
	replaySeconds     = 10
	maxBytes          = 65536
	leastObservations = 8 // the smaller of the two services' maxObservations
	memberExtra       = 4 // how many more the other takes
	maxWait           = 1000
)

type life int

const (
	living life = iota
	closed
	reset
	revoked
)

func (l life) String() string { return [...]string{"open", "closed", "reset", "revoked"}[l] }

// session is one session as it was promised.
type session struct {
	number      int
	id          string
	requestID   string
	request     []byte // the Open as it was sent
	first       []byte // its answer
	discloses   []int  // the rows in that answer
	capability  string
	who         int // person, or -1
	query       query
	most        wire.Limits
	w, t        uint64
	expiresAt   uint64
	replayUntil uint64
	turn, grant int
	state       life
	removed     bool // its records are gone: the fence alone is left
	rows        []*version
	scope       wire.Scope
	marks       []*mark
	cursors     map[spot]string
	ids         map[string]string
}

// spot is a place in a session: behind so many rows of the snapshot, or behind a sequence of the log.
type spot struct {
	live bool
	at   uint64
}

// mark is a cursor with what it stands for.
type mark struct {
	s      *session
	spot   spot
	cursor string
}

// service is what a session was opened on.
func serviceOf(who int) (name string, most wire.Limits) {
	if who < 0 {
		return "ls_public", wire.Limits{MaxBytes: maxBytes, MaxObservations: leastObservations, WaitMs: maxWait}
	}
	return "ls_members", wire.Limits{MaxBytes: maxBytes, MaxObservations: leastObservations + memberExtra, WaitMs: maxWait}
}

// answer is what the provider must say: a refusal, or a batch whose ids, session and cursor are still open.
type answer struct {
	code  wire.Code
	kind  wire.LimitKind
	batch *wire.Batch
	facts [][]fact // of the batch's groups
	next  spot     // where its cursor stands
	drawn bool     // the answer is the first one, byte for byte
}

func refusal(code wire.Code) answer { return answer{code: code} }

func limited(kind wire.LimitKind) answer { return answer{code: wire.Limited, kind: kind} }

// standing is what the session's own state says to a Read, or to a repeated Open.
func (w *world) standing(s *session, again bool) wire.Code {
	switch {
	case s.turn < w.broken:
		return wire.ResetRequired
	case s.state == closed:
		return wire.Expired
	case s.state == revoked, s.state == living && s.who >= 0 && w.grants[s.who] != s.grant:
		return wire.Unauthorized
	case s.state == reset:
		return wire.ResetRequired
	case w.t >= s.expiresAt && again:
		return wire.Expired
	case w.t >= s.expiresAt:
		return wire.ResetRequired
	}
	return ""
}

// gate is the last word on a body that names these rows.
func (w *world) gate(s *session, points []int) bool {
	barred := func(p int) bool {
		return w.prohibited[p] || w.audience[p] != nil && (s.who < 0 || !slices.Contains(w.audience[p], s.who))
	}
	if !slices.ContainsFunc(points, barred) {
		return true
	}
	s.state = reset
	return false
}

func discloses(groups [][]fact) []int {
	var points []int
	for _, g := range groups {
		for _, f := range g {
			if f.kind == "output" || f.kind == "spend" {
				points = append(points, f.point)
			}
		}
	}
	return points
}

// repeat answers an Open whose key was used by s.
func (w *world) repeat(s *session, request []byte, capability string) answer {
	switch {
	case string(s.request) != string(request):
		return refusal(wire.Conflict)
	case s.capability != capability:
		return refusal(wire.ContextChanged)
	case s.removed:
		return refusal(wire.Expired)
	}
	if code := w.standing(s, true); code != "" {
		return refusal(code)
	}
	if !w.gate(s, s.discloses) {
		return refusal(wire.ResetRequired)
	}
	return answer{drawn: true}
}

// open answers a new Open and fills in what s is promised; manifestEpoch is the epoch that the manifest names.
func (w *world) open(s *session, manifestEpoch string, limits wire.Limits) answer {
	if s.who >= 0 && w.grants[s.who] == 0 {
		return refusal(wire.Unauthorized)
	}
	w.drain()
	if manifestEpoch != w.epoch {
		return refusal(wire.ResetRequired)
	}
	s.w, s.t, s.turn = w.head(), w.t, w.turn
	if s.who >= 0 {
		s.grant = w.grants[s.who]
	}
	s.expiresAt = s.t + sessionSeconds
	s.replayUntil = s.expiresAt + replaySeconds
	s.rows = w.snapshot(s)
	return w.page(s, 0, limits)
}

// read answers a Read by caller who, with a mark of any session or a cursor that nobody made (m.s nil).
func (w *world) read(s *session, who int, capability string, m *mark, limits wire.Limits) answer {
	switch {
	case (s.who >= 0) != (who >= 0):
		return refusal(wire.Unauthorized)
	case s.removed, s.who != who:
		return refusal(wire.ResetRequired)
	case s.capability != capability:
		return refusal(wire.ContextChanged)
	}
	if code := w.standing(s, false); code != "" {
		return refusal(code)
	}
	if m.s != s {
		return refusal(wire.ResetRequired)
	}
	limits = limits.Min(s.most)
	a := answer{}
	if m.spot.live {
		a = w.tail(s, m.spot.at, limits, w.drain)
	} else {
		a = w.page(s, int(m.spot.at), limits)
	}
	if a.code == "" && !w.gate(s, discloses(a.facts)) {
		return refusal(wire.ResetRequired)
	}
	return a
}

// blank is a batch of the session without groups.
func (s *session) blank(phase string, limits wire.Limits) *wire.Batch {
	return &wire.Batch{
		Session: anySession, Cursor: anyCursor, Scope: s.scope, Phase: phase, SnapshotComplete: phase == wire.PhaseLive,
		ExpiresAt: s.expiresAt, ReplayUntil: s.replayUntil, Limits: limits,
	}
}

// size is how many bytes the batch takes if highWater needs no more digits than through.
func size(b *wire.Batch, through uint64) int {
	c := *b
	c.Through, c.HighWater = through, through
	return len(c.AppendCanonical(nil))
}

func digits(n uint64) int {
	d := 1
	for ; n > 9; n /= 10 {
		d++
	}
	return d
}

// within is the greatest number up to n of so many digits.
func within(n uint64, width int) uint64 {
	if digits(n) <= width {
		return n
	}
	most := uint64(0)
	for range width {
		most = most*10 + 9
	}
	return most
}

// settle sets the watermarks: through between last and reached, highWater up to head, as far as their digits have room.
func settle(b *wire.Batch, last, reached, head uint64) {
	spare := int(b.Limits.MaxBytes) - size(b, last)
	b.Through = within(reached, digits(last)+spare/2)
	spare = int(b.Limits.MaxBytes) - size(b, b.Through)
	b.HighWater = within(head, digits(b.Through)+spare)
}

// page answers within the snapshot, behind its first rows.
func (w *world) page(s *session, behind int, limits wire.Limits) answer {
	b := s.blank(wire.PhaseSnapshot, limits)
	if size(b, s.w) > int(limits.MaxBytes) {
		return limited(wire.LimitEnvelope)
	}
	rows := s.rows[behind:]
	var facts [][]fact
	b.SnapshotComplete = len(rows) == 0
	for i, r := range rows {
		f := []fact{{kind: "output", point: r.point, state: r.state}}
		next := *b
		next.Groups = append(slices.Clone(b.Groups), w.group(s, s.w, f))
		next.SnapshotComplete = i == len(rows)-1
		if len(facts) == int(limits.MaxObservations) || size(&next, s.w) > int(limits.MaxBytes) {
			break
		}
		*b = next
		facts = append(facts, f)
	}
	if len(facts) == 0 && len(rows) > 0 {
		return limited(wire.LimitGroup)
	}
	settle(b, s.w, s.w, w.head())
	next := spot{at: uint64(behind + len(facts))}
	if b.SnapshotComplete {
		next = spot{live: true, at: s.w}
	}
	return answer{batch: b, facts: facts, next: next}
}

// tail answers with what the log has after a sequence; drain is called when that seems to be all.
func (w *world) tail(s *session, after uint64, limits wire.Limits, drain func()) answer {
	b := s.blank(wire.PhaseLive, limits)
	if size(b, after) > int(limits.MaxBytes) {
		return limited(wire.LimitEnvelope)
	}
	var facts [][]fact
	last, reached, observations := after, after, 0
	drained := false
	for {
		for reached < w.head() {
			seq := reached + 1
			f := s.observe(w.groups[seq-1])
			if len(f) == 0 {
				reached = seq
				continue
			}
			next := *b
			next.Groups = append(slices.Clone(b.Groups), w.group(s, seq, f))
			if observations+len(f) > int(limits.MaxObservations) || size(&next, seq) > int(limits.MaxBytes) {
				if len(facts) == 0 {
					return limited(wire.LimitGroup)
				}
				settle(b, last, reached, w.head())
				return answer{batch: b, facts: facts, next: spot{live: true, at: b.Through}}
			}
			*b = next
			facts = append(facts, f)
			observations += len(f)
			last, reached = seq, seq
		}
		if drained {
			break
		}
		drained = true
		drain()
	}
	settle(b, last, reached, w.head())
	return answer{batch: b, facts: facts, next: spot{live: true, at: b.Through}}
}

// group is a group in the shape of the wire, its ids still open.
func (w *world) group(s *session, seq uint64, facts []fact) wire.Group {
	g := wire.Group{ID: anyID, Sequence: seq}
	for _, f := range facts {
		o := wire.Observation{ID: anyID, Scope: s.scope, Kind: f.kind}
		c := w.coins[f.point/2]
		point := wire.Outpoint{Chain: s.scope.Chain, TxID: c.hex(), OutputIndex: uint32(f.point % 2)}
		switch f.kind {
		case wire.KindOutput:
			o.Output = &wire.Output{Evidence: wire.Evidence{TxID: c.hex(), OutputIndex: point.OutputIndex, BEEF: c.beef[f.state.evidence]}, Context: contexts[f.state.context]}
		case wire.KindSpend:
			by := c.spenders[f.point%2][f.by]
			o.Spend = &wire.Spend{Previous: point, SpendingTxID: hex.EncodeToString(by.txid[:]), BEEF: by.beef[0]}
		case wire.KindWithdraw:
			o.Withdraw = &wire.Withdraw{Outpoint: point, Reason: f.reason}
		default:
			o.Invalidated = &wire.Invalidated{ContextID: invalidContext, Reason: f.reason}
		}
		g.Observations = append(g.Observations, o)
	}
	return g
}
