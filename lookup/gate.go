package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// gate is what the database said, in one statement, about the right to send a body now. Its snapshot is the moment at which
// the sending is ordered against close, revocation and expiry (conformance row A6).
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
	session   [32]byte // digest of its id
	feed      int32    // of the session
	disclosed []byte   // the outpoints that a body newly serialises, 36 bytes each
	evidence  []byte   // the digests of what it carries and was not just read, 32 bytes each
}

func (q gateQuestion) items() int { return len(q.disclosed)/outpointSize + len(q.evidence)/digestSize }

// Widths in lists of outpoints and of digests of evidence.
const (
	outpointSize = 36
	digestSize   = 32
)

// gateAsk asks for many bodies at once, on the primary and uncached. What bodies share is looked up once for all of them: T and the
// revisions of each feed ($4), and whether evidence is there that several carry ($3, each digest once). For a body alone there is
// its session; and only in a feed that ever had a prohibition, or narrowed the readers of a row since the session's W, are the
// rows that it discloses looked up. Everything is looked up one key at a time, behind fences, as livefeed does.
const gateAsk = `with feeds as materialized (
		select f.id, f.broken, f.prohibition_rev > 0 as prohibits, ` + now + ` as now,
			(select max(a.seq) from row_audience a where a.feed_id = f.id) as narrowed
		from unnest($4::int[]) as u(id)
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
		(select array_agg(e.sha) from unnest($3::bytea[]) as e(sha)
			left join lateral (select b.sha from blob b where b.sha = e.sha offset 0) b on true
			where b.sha is null)
	from unnest($1::bytea[], $2::bytea[]) with ordinality as u(id, disclosed, n)
	cross join lateral (select s.state, s.feed_id, s.expires_at, s.w, s.turn, s.grant_id, s.principal
		from lookup_session s where s.id = u.id offset 0) s
	cross join lateral (select * from feeds f where f.id = s.feed_id offset 0) f
	cross join lateral (select f.prohibits or coalesce(f.narrowed > s.w, false) as look) l`

// askGates puts the question for each of many bodies, in one statement.
func (p *shard) askGates(ctx context.Context, q livefeed.Querier, questions []gateQuestion) ([]gate, error) {
	ids, disclosed := make(pgtype.FlatArray[[]byte], len(questions)), make(pgtype.FlatArray[[]byte], len(questions))
	feeds, evidence := pgtype.FlatArray[int32]{}, pgtype.FlatArray[[]byte]{}
	asked := make(map[[digestSize]byte]struct{})
	for i := range questions {
		question := &questions[i]
		ids[i], disclosed[i] = question.session[:], nonNil(question.disclosed)
		if !slices.Contains(feeds, question.feed) {
			feeds = append(feeds, question.feed)
		}
		for sum := range slices.Chunk(question.evidence, digestSize) {
			if _, twice := asked[[digestSize]byte(sum)]; !twice {
				asked[[digestSize]byte(sum)] = struct{}{}
				evidence = append(evidence, sum)
			}
		}
	}
	p.at(gateAsked)
	rows, err := q.Query(ctx, gateAsk, ids, disclosed, evidence, feeds)
	if err != nil {
		return nil, fmt.Errorf("lookup: ask the gate: %w", err)
	}
	gates := make([]gate, len(questions))
	var n int
	var g gate
	var expiresAt uint64
	var missing [][]byte
	_, err = pgx.ForEachRow(rows, []any{&n, &g.state, &g.now, &expiresAt, &g.granted, &g.broken, &g.prohibited, &g.narrowed, &missing}, func() error {
		g.expired = g.now >= expiresAt
		g.lost = len(missing) > 0 && carries(questions[n-1].evidence, missing)
		gates[n-1] = g
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: ask the gate: %w", err)
	}
	p.at(gateAnswered)
	return gates, nil
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
	g, err := p.gates.ask(ctx, gateQuestion{session: s.digest, feed: s.feed.ID(), disclosed: disclosed, evidence: evidence})
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
