package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// gate is what the database said about the right to send a body now. The snapshot of the last statement that was asked is the moment at
// which the sending is ordered against close, revocation and expiry (conformance row A6).
type gate struct {
	state      state  // 0: the session is not there any more
	now        uint64 // T
	expired    bool
	broken     bool // the epoch was broken since: nothing the session was promised holds
	granted    bool // access stands
	prohibited bool // a row that the body discloses is prohibited
	narrowed   bool // a row that the body discloses is not for this principal any more
	lost       bool // evidence that the body carries is not stored any more
}

// gateQuestion is what the gate is asked about.
type gateQuestion struct {
	session   *session
	disclosed []byte // the outpoints that a body newly serialises, 36 bytes each
	evidence  []byte // the digests of what it carries and was not just read, 32 bytes each
}

func (q gateQuestion) items() int { return len(q.disclosed)/outpointSize + len(q.evidence)/digestSize }

// Widths in lists of outpoints and of digests of evidence.
const (
	outpointSize = 36
	digestSize   = 32
)

// gateGlance asks for many bodies at once, on the primary and uncached, what they share: T and the revisions of each feed and the
// endings of each service ($1, $2), and whether evidence is there ($3, each digest once). Nothing of it grows with the bodies but evidence that they do not share. Where
// no revision has moved since a session was last looked at, it stands as it did. Everything is looked up one key at a time, behind fences,
// as livefeed does.
const gateGlance = `select k.n, ` + now + `, f.broken, f.prohibition_rev > 0,
		(select max(a.seq) from row_audience a where a.feed_id = k.feed), l.endings,
		(select array_agg(e.sha) from unnest($3::bytea[]) as e(sha)
			left join lateral (select b.sha from blob b where b.sha = e.sha offset 0) b on true
			where b.sha is null)
	from unnest($1::int[], $2::text[]) with ordinality as k(feed, service, n)
	cross join lateral (select f.broken, f.prohibition_rev from feed f where f.id = k.feed offset 0) f
	cross join lateral (select c.evaluated from feed_clock c where c.feed_id = k.feed offset 0) c
	left join lateral (select l.endings from lookup_ledger l where l.feed_id = k.feed and l.service = k.service offset 0) l on true`

// gateAsk looks at sessions themselves: those that are not known to stand, and those whose body may disclose what somebody may not read
// any more. Only in a feed that ever had a prohibition, or narrowed the readers of a row since the session's W, are the rows that a body
// discloses looked up. It says at which endings of the service all this was so.
const gateAsk = `with feeds as materialized (
		select f.id, f.broken, f.prohibition_rev > 0 as prohibits, ` + now + ` as now,
			(select max(a.seq) from row_audience a where a.feed_id = f.id) as narrowed
		from unnest($3::int[]) as u(id)
		cross join lateral (select f.id, f.broken, f.prohibition_rev from feed f where f.id = u.id offset 0) f
		cross join lateral (select c.evaluated from feed_clock c where c.feed_id = u.id offset 0) c
	)
	select u.n, s.state, f.now, s.expires_at, ` + granted + `, s.turn < f.broken,
		case when l.look then exists (select from generate_series(0, octet_length(u.disclosed) / 36 - 1) i
			cross join lateral (select p.feed_id from prohibition p
				where p.feed_id = s.feed_id and p.outpoint = substr(u.disclosed, i * 36 + 1, 36) offset 0) p) else false end,
		case when l.look then exists (select from generate_series(0, octet_length(u.disclosed) / 36 - 1) i
			cross join lateral (select a.readers from row_audience a
				where a.outpoint = substr(u.disclosed, i * 36 + 1, 36) and a.feed_id = s.feed_id offset 0) a
			where not coalesce(s.principal = any(a.readers), false)) else false end,
		coalesce(e.endings, 0)
	from unnest($1::bytea[], $2::bytea[]) with ordinality as u(id, disclosed, n)
	cross join lateral (select s.state, s.feed_id, s.service, s.expires_at, s.w, s.turn, s.grant_id, s.principal
		from lookup_session s where s.id = u.id offset 0) s
	cross join lateral (select * from feeds f where f.id = s.feed_id offset 0) f
	cross join lateral (select f.prohibits or coalesce(f.narrowed > s.w, false) as look) l
	left join lateral (select l.endings from lookup_ledger l where l.feed_id = s.feed_id and l.service = s.service offset 0) e on true`

// standing is what a node remembers of a session that it has looked at. All who have loaded the session here share it.
type standing struct {
	seen atomic.Uint64 // 1 + the endings of its service at which it was open and its grant stood; 0: never
}

// stood remembers that a session was open, and its grant stood, at so many endings of its service. Any such moment serves.
func (s *standing) stood(endings uint64) {
	if s != nil {
		s.seen.Store(endings + 1)
	}
}

// stands reports whether a session that has been looked at stands as it did.
func (s *standing) stands(endings uint64) bool { return s != nil && s.seen.Load() == endings+1 }

// premises are what sessions of one service stand on.
type premises struct {
	feed    int32
	service string
}

// glance is what gateGlance says of one service.
type glance struct {
	now, broken uint64
	prohibits   bool
	narrowed    *uint64 // the last group that narrowed the readers of a row; nil: none did
	endings     *uint64 // nil: the service has no ledger, and nothing stands
}

// verdict is the gate of a session that stands; false: the session itself has to be looked at.
func (g *glance) verdict(q *gateQuestion) (gate, bool) {
	s := q.session
	if g.endings == nil || !s.standing.stands(*g.endings) || len(q.disclosed) > 0 && (g.prohibits || g.narrowed != nil && *g.narrowed > s.w) {
		return gate{}, false
	}
	return gate{state: stateOpen, now: g.now, expired: g.now >= s.expiresAt, broken: s.turn < g.broken, granted: true}, true
}

// askGates puts the question for each of many bodies: in one statement, and where that does not tell, in another.
func (p *shard) askGates(ctx context.Context, q livefeed.Querier, questions []gateQuestion) ([]gate, error) {
	p.at(gateAsked)
	told, missing, err := glances(ctx, q, questions)
	if err != nil {
		return nil, fmt.Errorf("lookup: ask the gate: %w", err)
	}
	gates := make([]gate, len(questions))
	var unclear []int
	for i := range questions {
		question := &questions[i]
		clear := false
		if g, ok := told[premises{question.session.feed.ID(), question.session.service}]; ok {
			gates[i], clear = g.verdict(question)
		}
		if !clear {
			unclear = append(unclear, i)
		}
	}
	if len(unclear) > 0 {
		p.metrics.gatesWhole.Add(float64(len(unclear)))
		if err := askWhole(ctx, q, questions, unclear, gates); err != nil {
			return nil, fmt.Errorf("lookup: ask the gate: %w", err)
		}
	}
	if len(missing) > 0 {
		for i := range gates {
			gates[i].lost = gates[i].state != 0 && carries(questions[i].evidence, missing)
		}
	}
	p.at(gateAnswered)
	return gates, nil
}

// glances asks gateGlance.
func glances(ctx context.Context, q livefeed.Querier, questions []gateQuestion) (told map[premises]*glance, missing [][]byte, err error) {
	var order []premises
	feeds, services, evidence := pgtype.FlatArray[int32]{}, pgtype.FlatArray[string]{}, pgtype.FlatArray[[]byte]{}
	asked := make(map[[digestSize]byte]struct{})
	for i := range questions {
		question := &questions[i]
		on := premises{question.session.feed.ID(), question.session.service}
		if !slices.Contains(order, on) {
			order, feeds, services = append(order, on), append(feeds, on.feed), append(services, on.service)
		}
		for sum := range slices.Chunk(question.evidence, digestSize) {
			if _, twice := asked[[digestSize]byte(sum)]; !twice {
				asked[[digestSize]byte(sum)] = struct{}{}
				evidence = append(evidence, sum)
			}
		}
	}
	rows, err := q.Query(ctx, gateGlance, feeds, services, evidence)
	if err != nil {
		return nil, nil, err
	}
	told = make(map[premises]*glance, len(order))
	var n int
	var g glance
	_, err = pgx.ForEachRow(rows, []any{&n, &g.now, &g.broken, &g.prohibits, &g.narrowed, &g.endings, &missing}, func() error {
		told[order[n-1]] = new(g)
		return nil
	})
	return told, missing, err
}

// askWhole asks gateAsk for some of the questions, and remembers of what stands that it does.
func askWhole(ctx context.Context, q livefeed.Querier, questions []gateQuestion, unclear []int, gates []gate) error {
	ids, disclosed := make(pgtype.FlatArray[[]byte], len(unclear)), make(pgtype.FlatArray[[]byte], len(unclear))
	feeds := pgtype.FlatArray[int32]{}
	for k, i := range unclear {
		question := &questions[i]
		ids[k], disclosed[k] = question.session.digest[:], nonNil(question.disclosed)
		if feed := question.session.feed.ID(); !slices.Contains(feeds, feed) {
			feeds = append(feeds, feed)
		}
	}
	rows, err := q.Query(ctx, gateAsk, ids, disclosed, feeds)
	if err != nil {
		return err
	}
	var n int
	var g gate
	var expiresAt, endings uint64
	_, err = pgx.ForEachRow(rows, []any{&n, &g.state, &g.now, &expiresAt, &g.granted, &g.broken, &g.prohibited, &g.narrowed, &endings}, func() error {
		i := unclear[n-1]
		g.expired = g.now >= expiresAt
		if gates[i] = g; g.state == stateOpen && g.granted {
			questions[i].session.standing.stood(endings)
		}
		return nil
	})
	return err
}

// carries reports whether any of the digests is among the missing ones.
func carries(evidence []byte, missing [][]byte) bool {
	for sum := range slices.Chunk(evidence, digestSize) {
		if slices.ContainsFunc(missing, func(m []byte) bool { return bytes.Equal(m, sum) }) {
			return true
		}
	}
	return false
}

// nonNil is a list as the database takes it: empty, never null.
func nonNil(list []byte) []byte {
	if list == nil {
		return []byte{}
	}
	return list
}

// gate asks, along with whoever asks at the same moment, and in a snapshot that lies after that moment.
func (p *shard) gate(ctx context.Context, s *session, disclosed, evidence []byte) (gate, error) {
	g, err := p.gates.ask(ctx, gateQuestion{session: s, disclosed: disclosed, evidence: evidence})
	if err != nil {
		return gate{}, err
	}
	if g.state == 0 {
		p.sessions.drop(p.stored(s.digest))
	} else if g.expired {
		// An expiry once told stays told, whatever the clock does next.
		if err := s.feed.Advance(ctx, p.pool, g.now); err != nil {
			return gate{}, fmt.Errorf("lookup: keep the time: %w", err)
		}
	}
	return g, nil
}

// forRead tells a reader what the gate said: an owner's close is expired, every other end is reset-required.
func (g gate) forRead() *refusal {
	switch {
	case g.broken:
		return refuseReset(errBroken)
	case g.state == stateClosed:
		return refuse(wire.Expired, textExpired)
	case g.state == stateRevoked, g.state == stateOpen && !g.granted:
		return refuse(wire.Unauthorized, textUnauthorized)
	case g.state != stateOpen:
		return refuseReset(errors.New("the session is gone or was reset"))
	case g.expired:
		return refuseReset(errors.New("the session has expired"))
	case g.prohibited:
		return refuseReset(errProhibited)
	case g.narrowed:
		return refuseReset(errNarrowed)
	case g.lost:
		return refuseReset(errLost)
	}
	return nil
}

// errBroken is the cause of a reset after the history that the session was promised was lost or rewritten.
var errBroken = errors.New("the feed's epoch was broken since the session was opened")

// The causes of a reset that must be durable: what the session was promised may not be sent to its principal again.
var (
	errProhibited = errors.New("the body would serialise a prohibited row")
	errNarrowed   = errors.New("the body would serialise a row to somebody who is not among its readers any more")
)

// errLost is the cause of a reset after evidence was lost.
var errLost = errors.New("stored evidence is missing")

// forOpen tells a repeated Open what the gate said: closed, expired and gone are all expired (conformance row O4).
func (g gate) forOpen() *refusal {
	switch {
	case g.broken:
		return refuseReset(errBroken)
	case g.state == stateReset:
		return refuseReset(errors.New("the session was reset"))
	case g.state == stateRevoked, g.state == stateOpen && !g.granted:
		return refuse(wire.Unauthorized, textUnauthorized)
	case g.state != stateOpen || g.expired:
		return refuse(wire.Expired, textExpired)
	case g.prohibited:
		return refuseReset(errProhibited)
	case g.narrowed:
		return refuseReset(errNarrowed)
	case g.lost:
		return refuseReset(errLost)
	}
	return nil
}

// ask is the gate's question put to what load has just read.
func (s *session) ask() gate {
	return gate{state: s.state, now: s.now, broken: !s.unbroken, expired: s.now >= s.expiresAt, granted: s.granted}
}
