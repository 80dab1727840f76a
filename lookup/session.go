package lookup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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

// session is one stored session as a request has it.
type session struct {
	*terms
	id string // as the client named it

	// What may change, as it was when the session was opened or loaded here. Of one that was remembered it is not known until asked.
	asked    bool // it was read for this request
	state    state
	now      uint64 // T
	granted  bool   // the grant stood
	unbroken bool   // no break of the epoch since
}

// terms are what is frozen of a session at open. All who have loaded it here share them.
type terms struct {
	shard       *shard // where it lives
	digest      [32]byte
	feed        *livefeed.Feed
	service     string
	epoch       string
	turn        uint64 // the feed's turn at open
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
	kin         [32]byte  // the same for anonymous sessions to which every group means the same, in the same bytes; zero: not known
	principal   *[33]byte // nil: anonymous
	grant       *int64    // the grant it was opened under, where one was needed
	driven      *driven   // nil: it was just opened
	standing    *standing // likewise
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

// load finds the session of an id, along with whoever loads one at the same moment; nil when there is none. What is frozen is
// read once: of a session that this node remembers nothing is read, and it has not been asked for what may have changed.
func (p *shard) load(ctx context.Context, id string, digest [32]byte) (*session, error) {
	if known, ok := p.sessions.get(p.stored(digest)); ok {
		return &session{terms: known, id: id}, nil
	}
	l, err := p.loads.ask(ctx, digest)
	if err != nil || l.err != nil || l.session == nil {
		return nil, cmp.Or(err, l.err)
	}
	p.sessions.put(p.stored(digest), l.session.terms, l.size)
	s := *l.session
	s.id, s.asked = id, true
	return &s, nil
}

// arrive reads whether what the session was promised still stands, unless that was read for this request already, and returns how a
// reader is told when it does not. A session whose body goes to the gate next need not arrive: its state, its grant and its epoch only
// ever end, so whatever arriving would refuse the gate refuses.
func (p *shard) arrive(ctx context.Context, s *session) error {
	if err := p.renew(ctx, s); err != nil {
		return err
	}
	if r := s.ask().forRead(); r != nil {
		return r
	}
	return nil
}

// renew reads what may have changed of a session that was remembered, unless that was done for this request already. Its state is 0
// then if it is not there any more.
func (p *shard) renew(ctx context.Context, s *session) error {
	if s.asked {
		return nil
	}
	g, err := p.gate(ctx, s, nil, nil)
	if err != nil {
		return err
	}
	s.asked, s.state, s.now, s.granted, s.unbroken = true, g.state, g.now, g.granted, !g.broken
	return nil
}

// loaded is a session as it was read, or why it cannot be served; neither when there is none.
type loaded struct {
	session *session
	err     error
	size    int // bytes that remembering it takes, about
}

const loadAsk = `select u.n, ` + now + `, ` + frozen + `, coalesce(l.endings, 0)
	from unnest($1::bytea[]) with ordinality as u(id, n)
	cross join lateral (select * from lookup_session s where s.id = u.id offset 0) s
	cross join lateral (select c.evaluated from feed_clock c where c.feed_id = s.feed_id offset 0) c
	left join lateral (select l.endings from lookup_ledger l where l.feed_id = s.feed_id and l.service = s.service offset 0) l on true`

// loadAll reads many sessions in one statement.
func (p *shard) loadAll(ctx context.Context, q livefeed.Querier, digests [][32]byte) ([]loaded, error) {
	ids := make([][]byte, len(digests))
	for i := range digests {
		ids[i] = digests[i][:]
	}
	rows, err := q.Query(ctx, loadAsk, ids)
	if err != nil {
		return nil, fmt.Errorf("lookup: load sessions: %w", err)
	}
	defer rows.Close()
	all := make([]loaded, len(digests))
	for rows.Next() {
		var n int
		l := loaded{session: &session{terms: &terms{}}}
		var endings uint64
		err := p.scan(rows, l.session, &l.size, []any{&n}, &endings)
		if n < 1 {
			return nil, fmt.Errorf("lookup: load sessions: %w", err)
		}
		l.session.digest = digests[n-1]
		if l.session.state == stateOpen && l.session.granted {
			l.session.standing.stood(endings)
		}
		if err != nil {
			l = loaded{err: fmt.Errorf("lookup: load a session: %w", err)}
		}
		all[n-1] = l
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("lookup: load sessions: %w", err)
	}
	return all, nil
}

// alike is what most sessions of a database say in the same words, which they share.
type alike struct{ service, epoch, capability latest }

// latest is the text that was said last.
type latest struct{ text atomic.Pointer[string] }

// as is the same text, in the memory of the latest one if it is that.
func (l *latest) as(text string) string {
	if known := l.text.Load(); known != nil && *known == text {
		return *known
	}
	l.text.Store(&text)
	return text
}

// sessionOverhead is about what remembering a session takes besides its columns, which are there twice, stored and parsed.
const sessionOverhead = 1024

// driven is the posting that drives a session's live reads, chosen anew from time to time. Any choice reads the same groups.
type driven struct {
	mu        sync.Mutex
	selectors []livefeed.Selector
	until     time.Time
}

// driveFor is how long a choice stands: what it depends on changes slowly.
const driveFor = time.Minute

// drive puts the posting first that live reads are driven by.
func (s *session) drive(ctx context.Context, q livefeed.Querier) ([]livefeed.Selector, error) {
	d := s.driven
	d.mu.Lock()
	selectors, until := d.selectors, d.until
	d.mu.Unlock()
	if time.Now().Before(until) {
		return selectors, nil
	}
	selectors, err := s.feed.Drive(ctx, q, s.viewer.query.Selectors())
	if err != nil {
		return nil, fmt.Errorf("lookup: choose a posting: %w", err)
	}
	d.mu.Lock()
	d.selectors, d.until = selectors, time.Now().Add(driveFor)
	d.mu.Unlock()
	return selectors, nil
}

// scan reads a session whose columns come between others, and says what remembering it takes, about. What is wrong with it is told
// after everything else was read.
func (p *shard) scan(row pgx.Row, s *session, size *int, before []any, behind ...any) error {
	var feedID int32
	var rulesID string
	var capability, wTag, parameters, query, scope, principal []byte
	s.driven, s.standing = &driven{}, &standing{}
	into := append(before, &s.now, &feedID, &s.state, &s.service, &s.epoch, &capability, &s.w, &wTag, &s.t, &s.expiresAt, &s.replayUntil,
		&s.maxRequest, &s.most.MaxBytes, &s.most.MaxObservations, &s.most.WaitMs, &rulesID, &parameters, &query, &scope,
		&principal, &s.grant, &s.turn, &s.granted, &s.unbroken)
	if err := row.Scan(append(into, behind...)...); err != nil {
		return err
	}
	*size = sessionOverhead + 2*(len(parameters)+len(query)+len(scope))
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
	s.service, s.epoch, s.capability = p.alike.service.as(s.service), p.alike.epoch.as(s.epoch), p.alike.capability.as(hex.EncodeToString(capability))
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
	if bytes.Equal(s.voice.chain, p.chainJSON) {
		s.voice.chain = p.chainJSON
	}
	if s.principal == nil {
		s.kin = kinOf(p.databaseID, feedID, rulesID, parameters, query, scope, s.voice.chain)
	}
	return nil
}

// head starts a batch of this session.
func (s *session) head(limits wire.Limits) head {
	return head{session: s.id, scope: s.voice.scope, expiresAt: s.expiresAt, replayUntil: s.replayUntil, limits: limits}
}
