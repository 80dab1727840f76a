package lookup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// state of a stored session. The numbers are stored.
type state int16

const (
	stateOpen    state = 1
	stateClosed  state = 2 // by its owner
	stateReset   state = 3 // it would have to serve what may no longer be disclosed
	stateRevoked state = 4 // access was withdrawn
)

// session is one stored session. All but state is frozen at open.
type session struct {
	shard       *shard // where it lives
	digest      [32]byte
	id          string // as the client named it
	feed        *livefeed.Feed
	state       state
	service     string
	epoch       string
	turn        uint64 // the feed's turn at open
	unbroken    bool   // no break of the epoch since, when it was loaded
	capability  string
	w           uint64
	wTag        [8]byte
	t           uint64
	expiresAt   uint64
	replayUntil uint64
	maxRequest  uint32
	most        wire.Limits // the greatest limits it can ever be read with
	viewer      viewer
	voice       voice
	principal   *[33]byte // nil: anonymous
	grant       *int64    // the grant it was opened under, where one was needed
	granted     bool      // that grant stood when it was loaded
	now         uint64    // T when it was loaded
}

// Session ids are a mode letter ('n': authentication none, 'b': brc103), the database's id in 8 hex characters, a dot and 256 random
// bits in base64url. Mode and database are in the clear, so that the wrong kind of caller is refused without a look-up
// that would reveal whether a session exists (conformance row A1).
const (
	modeNone        = 'n'
	modeBRC103      = 'b'
	sessionIDPrefix = 1 + 8 + 1
	sessionIDSize   = sessionIDPrefix + 43
)

func (p *shard) newSessionID(mode byte) (string, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return "", fmt.Errorf("lookup: draw a session id: %w", err)
	}
	return string(mode) + hex.EncodeToString(p.databaseID[:]) + "." + base64.RawURLEncoding.EncodeToString(secret), nil
}

// sessionDigest is how a session id reaches the database. ok is false for a string that cannot name a session here.
func (p *Provider) sessionDigest(id string) (digest [32]byte, ok bool) {
	if p.bearing(id) == nil {
		return digest, false
	}
	return sha256.Sum256([]byte(id)), true
}

// frozen are the columns from which a session is rebuilt.
const frozen = `s.feed_id, s.state, s.service, s.epoch, s.capability, s.w, s.w_tag, s.t, s.expires_at, s.replay_until,
	s.max_request_bytes, s.max_response_bytes, s.max_observations, s.max_wait_ms, s.rules_id, s.rules_parameters, s.query, s.scope,
	s.principal, s.grant_id, s.turn, ` + granted + `, ` + unbroken

// granted holds while the grant a session was opened under has not been revoked. A grant given again is another one.
const granted = `(s.grant_id is null or exists (select from service_grant g where g.id = s.grant_id))`

// unbroken holds while what the session was promised is still the feed's history: a break of the epoch voids every earlier turn.
const unbroken = `exists (select from feed f where f.id = s.feed_id and s.turn >= f.broken)`

// now is T: the database's clock, never behind the feed's last evaluated time (conformance row T1).
const now = `greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated)`

// load reads a session by the digest of its id; nil when there is none.
func (p *shard) load(ctx context.Context, q livefeed.Querier, id string, digest [32]byte) (*session, error) {
	row := q.QueryRow(ctx, `select `+now+`, `+frozen+`
		from lookup_session s join feed_clock c on c.feed_id = s.feed_id where s.id = $1`, digest[:])
	s := &session{digest: digest, id: id}
	if err := p.scan(row, s); errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("lookup: load a session: %w", err)
	}
	return s, nil
}

func (p *shard) scan(row pgx.Row, s *session, more ...any) error {
	var feedID int32
	var rulesID string
	var capability, wTag, parameters, query, scope, principal []byte
	into := []any{&s.now, &feedID, &s.state, &s.service, &s.epoch, &capability, &s.w, &wTag, &s.t, &s.expiresAt, &s.replayUntil,
		&s.maxRequest, &s.most.MaxBytes, &s.most.MaxObservations, &s.most.WaitMs, &rulesID, &parameters, &query, &scope,
		&principal, &s.grant, &s.turn, &s.granted, &s.unbroken}
	if err := row.Scan(append(into, more...)...); err != nil {
		return err
	}
	if len(wTag) != len(s.wTag) {
		return errors.New("a stored tag has the wrong width")
	}
	s.shard, s.wTag = p, [8]byte(wTag)
	if principal != nil {
		if len(principal) != 33 {
			return errors.New("a stored principal has the wrong width")
		}
		s.principal = new([33]byte(principal))
		s.viewer.reader = s.principal
	}
	if err := p.stillOffered(s); err != nil {
		return err
	}
	s.capability = hex.EncodeToString(capability)
	if s.feed = p.feeds[feedID]; s.feed == nil {
		return refuseReset(fmt.Errorf("feed %d of a stored session is not configured", feedID))
	}
	// The stored contract rules, not the configured one (conformance row S10).
	rules, ok := p.rules[rulesID]
	if !ok {
		return refuseReset(fmt.Errorf("rules %s of a stored session are not installed", rulesID))
	}
	contract, err := rules.Contract(parameters)
	if err != nil {
		return refuseReset(fmt.Errorf("stored parameters of rules %s: %w", rulesID, err))
	}
	if s.viewer.query, err = contract.Query(query); err != nil {
		return refuseReset(fmt.Errorf("stored query under rules %s: %w", rulesID, err))
	}
	stored, err := canon.Parse(scope, canon.Limits{})
	if err != nil {
		return refuseReset(fmt.Errorf("stored scope: %w", err))
	}
	chain, _ := stored.Get("chain")
	speaker, _ := stored.Get("provider")
	if s.principal != nil && speaker.Str() != p.identityHex {
		return refuseReset(errors.New("the session was opened under another identity of this provider"))
	}
	s.voice = voice{scope: scope, chain: chain.AppendCanonical(nil)}
	return nil
}

// gate is what the database said, in one statement, about the right to send a body now. Its snapshot is the moment at which
// the sending is ordered against close, revocation and expiry (conformance row A6).
type gate struct {
	state      state // 0: the session is not there any more
	expired    bool
	broken     bool // the epoch was broken since: nothing the session was promised holds
	granted    bool // access stands
	prohibited bool // a row that the body discloses is prohibited
	narrowed   bool // a row that the body discloses is not for this principal any more
}

// gate asks. It is one uncached statement on the primary. Only in a feed that ever had a prohibition, or narrowed the readers of a
// row since the session's W, are the rows that a body discloses looked up too, and then it is the second statement,
// with all of it asked again, whose snapshot counts.
func (p *shard) gate(ctx context.Context, s *session, disclosed [][]byte) (gate, error) {
	g, look, err := p.askGate(ctx, s, nil)
	if err == nil && look && len(disclosed) > 0 {
		g, _, err = p.askGate(ctx, s, disclosed)
	}
	return g, err
}

// gateAsk looks rows up one key at a time, behind fences, as livefeed does.
const gateAsk = `select s.state, ` + now + `, ` + granted + `, s.turn < f.broken,
		f.prohibition_rev > 0 or exists (select from row_audience a where a.feed_id = s.feed_id and a.seq > s.w),
		exists (select from prohibition p where p.feed_id = s.feed_id and p.outpoint = any($2::bytea[])),
		exists (select from unnest($2::bytea[]) as u(outpoint)
			cross join lateral (select a.readers from row_audience a where a.outpoint = u.outpoint and a.feed_id = s.feed_id offset 0) a
			where not coalesce(s.principal = any(a.readers), false))
	from lookup_session s join feed_clock c on c.feed_id = s.feed_id join feed f on f.id = s.feed_id
	where s.id = $1`

// askGate puts the question once; look says that it must be put with what the body discloses.
func (p *shard) askGate(ctx context.Context, s *session, disclosed [][]byte) (g gate, look bool, err error) {
	var t uint64
	err = p.pool.QueryRow(ctx, gateAsk, s.digest[:], disclosed).Scan(&g.state, &t, &g.granted, &g.broken, &look, &g.prohibited, &g.narrowed)
	if errors.Is(err, pgx.ErrNoRows) {
		return gate{}, false, nil
	}
	if err != nil {
		return gate{}, false, fmt.Errorf("lookup: ask the gate: %w", err)
	}
	if g.expired = t >= s.expiresAt; g.expired {
		// An expiry once told stays told, whatever the clock does next.
		if err := s.feed.Advance(ctx, p.pool, t); err != nil {
			return gate{}, false, fmt.Errorf("lookup: keep the time: %w", err)
		}
	}
	return g, look, nil
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
	}
	return nil
}

// ask is the gate's question put to what load has just read.
func (s *session) ask() gate {
	return gate{state: s.state, broken: !s.unbroken, expired: s.now >= s.expiresAt, granted: s.granted}
}

// head starts a batch of this session.
func (s *session) head(limits wire.Limits) head {
	return head{session: s.id, scope: s.voice.scope, expiresAt: s.expiresAt, replayUntil: s.replayUntil, limits: limits}
}
