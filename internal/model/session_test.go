package model_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/overlayd/overlayd/internal/wire"
)

// limits draws limits: wide, a few observations, or about so many bytes.
func (d *drive) limits() wire.Limits {
	l := wire.Limits{MaxBytes: maxBytes, MaxObservations: 1024}
	switch d.n(4) {
	case 0:
		l.MaxObservations = uint32(1 + d.n(6))
	case 1:
		l.MaxBytes = uint32(900 + d.n(4000))
	case 2:
		l.MaxBytes = uint32(900 + d.n(12000))
		l.MaxObservations = uint32(1 + d.n(10))
	}
	return l
}

func limitsJSON(l wire.Limits) []byte { return l.AppendCanonical(nil) }

// opening draws a new Open and sends it.
func (d *drive) opening() error {
	n, at := d.node()
	who := max(d.n(5)-3, -1) // -1 three times of five
	name, most := serviceOf(who)
	s := &session{
		number: len(d.sessions), requestID: newKey(), who: who, query: queries[d.n(len(queries))], most: most,
		cursors: map[spot]string{}, ids: map[string]string{},
	}
	s.capability = d.digests[d.epoch]
	if d.chance(12) { // an old manifest
		olds := make([]string, 0, len(d.digests))
		for _, old := range d.digests {
			olds = append(olds, old)
		}
		slices.Sort(olds)
		s.capability = olds[d.n(len(olds))]
	}
	epoch := d.epochs[s.capability]
	limits := d.limits()
	s.request = fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":"%s","query":%s,"limits":%s}`, s.requestID, name, s.query.text, limitsJSON(limits))
	d.say("open #%d on node %d: who %d, query %s, limits %s", s.number, at, who, s.query.text, limitsJSON(limits))
	status, body, err := n.call(d.person(who), openPath, s.request, s.capability)
	if err != nil {
		return err
	}
	scopeKey := fmt.Sprint(name, who, s.query.text, epoch)
	if err := d.learnScope(s, scopeKey, name, epoch, status, body); err != nil {
		return err
	}
	want := d.world.open(s, epoch, limits.Min(most))
	if err := d.check(s, want, status, body); err != nil || want.code != "" {
		return err
	}
	s.first, s.discloses = body, discloses(want.facts)
	d.sessions = append(d.sessions, s)
	d.say("  -> W %d, %d of %d rows", s.w, len(want.facts), len(s.rows))
	return nil
}

// pick is a session, a recent one rather than an old one; nil if there is none.
func (d *drive) pick() *session {
	if len(d.sessions) == 0 {
		return nil
	}
	if d.chance(4) {
		return d.sessions[d.n(len(d.sessions))]
	}
	return d.sessions[len(d.sessions)-1-d.n(min(6, len(d.sessions)))]
}

// again repeats an Open, as it was or with something changed.
func (d *drive) again() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	request, capability := s.request, s.capability
	switch d.n(5) {
	case 0:
		request = bytes.Replace(request, []byte(`"waitMs":0`), []byte(`"waitMs":1`), 1)
	case 1:
		capability = strings.Repeat("ab", 32)
	}
	d.say("open #%d again on node %d, changed %v, other capability %v", s.number, at, !bytes.Equal(request, s.request), capability != s.capability)
	status, body, err := n.call(d.person(s.who), openPath, request, capability)
	if err != nil {
		return err
	}
	return d.check(s, d.repeat(s, request, capability), status, body)
}

// reading reads on from a cursor: mostly the last one, often an older one, sometimes one that is not the session's.
func (d *drive) reading() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	m := s.marks[len(s.marks)-1]
	if d.chance(3) {
		m = s.marks[d.n(len(s.marks))]
	}
	who, capability, strange := s.who, s.capability, ""
	if d.chance(10) {
		switch d.n(4) {
		case 0:
			other := d.sessions[d.n(len(d.sessions))]
			m, strange = other.marks[d.n(len(other.marks))], "a cursor of another"
		case 1:
			raw := []byte(m.cursor)
			i := d.n(len(raw))
			raw[i] = 'A' + (raw[i]+1)%26
			if string(raw) != m.cursor {
				m, strange = &mark{cursor: string(raw)}, "a forged cursor"
			}
		case 2:
			who, strange = d.n(3)-1, "another caller"
		default:
			capability, strange = strings.Repeat("cd", 32), "another capability"
		}
	}
	limits := d.limits()
	if d.chance(5) && m.s == s && !s.removed {
		limits = d.exact(s, m, limits)
	}
	if d.chance(30) { // a poll, which finds what there is, or waits in vain
		limits.WaitMs = uint32(1 + d.n(3))
	}
	return d.readAt(s, m, who, capability, strange, limits, true)
}

// exact narrows limits to the very bytes of what they would get, or to one less.
func (d *drive) exact(s *session, m *mark, limits wire.Limits) wire.Limits {
	a := d.peek(s, m, limits)
	if a.code != "" {
		return limits
	}
	for { // its own digits count
		a.batch.Limits = limits.Min(s.most)
		a.batch.HighWater = a.batch.Through
		bytes := uint32(len(a.batch.AppendCanonical(nil)))
		if bytes == limits.MaxBytes || digits(uint64(bytes)) > digits(uint64(limits.MaxBytes)) {
			break
		}
		limits.MaxBytes = bytes
	}
	limits.MaxBytes -= uint32(d.n(2))
	return limits
}

func (d *drive) readAt(s *session, m *mark, who int, capability, strange string, limits wire.Limits, follow bool) error {
	n, at := d.node()
	d.say("read #%d on node %d at %+v, limits %s %s", s.number, at, m.spot, limitsJSON(limits), strange)
	session, _ := json.Marshal(s.id)    //nolint:errcheck // strings marshal
	cursor, _ := json.Marshal(m.cursor) //nolint:errcheck // strings marshal
	request := fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":%s}`, session, cursor, limitsJSON(limits))
	status, body, err := n.call(d.person(who), readPath, request, capability)
	if err != nil {
		return err
	}
	want := d.read(s, who, capability, m, limits)
	if err := d.check(s, want, status, body); err != nil {
		return err
	}
	if want.code == "" {
		d.say("  -> %d groups, %s, complete %v, through %d, head %d", len(want.batch.Groups), want.batch.Phase, want.batch.SnapshotComplete, want.batch.Through, d.head())
		return nil
	}
	d.say("  -> %s %s", want.code, want.kind)
	if want.code != wire.Limited || !follow {
		return nil
	}
	// What is named as enough must be enough.
	e, err := wire.ParseError(body, status)
	if err != nil || e.Limit.MinimumBytes == nil {
		return fmt.Errorf("limited without a minimum: %s", body)
	}
	limits.MaxBytes = max(limits.MaxBytes, *e.Limit.MinimumBytes)
	if o := e.Limit.MinimumObservations; o != nil {
		limits.MaxObservations = max(limits.MaxObservations, *o)
	}
	d.steps++
	if next := d.peek(s, m, limits); next.code == wire.Limited && (want.kind != wire.LimitEnvelope || next.kind == wire.LimitEnvelope) {
		return fmt.Errorf("the minimum is not enough: %s", body)
	}
	return d.readAt(s, m, who, capability, "with what it asked for", limits, false)
}

// peek is what a read by the session's owner would be answered, leaving the model as it is.
func (d *drive) peek(s *session, m *mark, limits wire.Limits) answer {
	l := limits.Min(s.most)
	if m.spot.live {
		return d.tail(s, m.spot.at, l, func() {})
	}
	return d.page(s, int(m.spot.at), l)
}

// closing closes a session, as its owner or as somebody else.
func (d *drive) closing() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	who := s.who
	if d.chance(3) {
		who = d.n(3) - 1
	}
	d.say("close #%d on node %d by %d", s.number, at, who)
	status, body, err := n.call(d.person(who), closePath, fmt.Appendf(nil, `{"version":1,"session":"%s"}`, s.id), s.capability)
	if err != nil {
		return err
	}
	if status != 200 || string(body) != `{"closed":true,"version":1}` {
		return fmt.Errorf("close was answered %d %s", status, body)
	}
	if who == s.who && s.state == living && !s.removed {
		s.state = closed
	}
	return nil
}

// removing takes a session away as an operator would.
func (d *drive) removing() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	d.say("remove #%d on node %d", s.number, at)
	ref, found, err := d.ref(s)
	if err != nil {
		return err
	}
	if found == s.removed {
		return fmt.Errorf("session #%d is stored: %v, and should be: %v", s.number, found, !s.removed)
	}
	if !found {
		return nil
	}
	changed, err := n.provider.RemoveSession(d.ctx, ref)
	if err != nil {
		return err
	}
	if changed != (s.state == living) {
		return fmt.Errorf("removing session #%d, which is %s, changed something: %v", s.number, s.state, changed)
	}
	if changed {
		s.state = revoked
	}
	return nil
}

func (d *drive) ref(s *session) (ref uuid.UUID, found bool, err error) {
	digest := sha256.Sum256([]byte(s.id))
	rows, err := d.r.stores[0].pool.Query(d.ctx, `select ref from lookup_session where id = $1`, digest[:])
	if err != nil {
		return ref, false, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&ref); err != nil {
			return ref, false, err
		}
		found = true
	}
	return ref, found, rows.Err()
}
