package lookup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/openfence"
)

// open starts a session, or answers a repeated Open as the first was answered (BRC-193 s8).
func (p *Provider) open(c echo.Context) error {
	in, r := p.receive(c, "open", http.MethodPost)
	return p.respond(c, in, func(ctx context.Context) (answer, error) {
		if r != nil {
			return answer{}, r
		}
		if r := p.accept(c, in); r != nil {
			return answer{}, r
		}
		message, r := parsed(wire.ParseOpen(in.body))
		if r != nil {
			return answer{}, r
		}
		p := p.serving(message.Service) // the rest is done where the service lives
		o := &opening{
			message: message,
			key:     p.fences.Key(message.Service, in.principalHex(), message.RequestID),
			entry:   p.fences.Entry(message.Canonical, in.capability),
			room:    &in.room,
		}
		// An Open that was answered before is answered again whatever has changed since: fence first, then conflict, other
		// capability, expired, and only a new one is judged by what is true now (conformance row O3).
		again, err := p.repeat(ctx, p.pool, o)
		if err != nil || again != nil {
			return deref(again), err
		}
		in.slot.slots = p.slots
		if err := in.slot.take(ctx); err != nil {
			return answer{}, err
		}
		if err := p.admit(ctx, in, o); err != nil {
			return answer{}, err
		}
		p.at(admitted)
		if again, err := p.allow(ctx, o); err != nil || again != nil {
			return deref(again), err
		}
		return p.begin(ctx, o)
	})
}

// opening is an Open on its way.
type opening struct {
	message *wire.Open
	key     openfence.Key
	entry   openfence.Entry
	room    *room // of its body

	service    *service // set by admit
	principal  *[33]byte
	grant      *int64 // what admits the principal, where a grant is needed
	capability string
	epoch      string // the epoch its manifest names for the service
	until      uint64 // when that manifest expires
	query      Query
	canonical  []byte // of the query
	scope      []byte
	limits     wire.Limits
	client     client // whose quotas it counts against
}

func deref(a *answer) answer {
	if a == nil {
		return answer{}
	}
	return *a
}

// repeat answers an Open whose key is taken; nil when it is not.
func (p *shard) repeat(ctx context.Context, q livefeed.Querier, o *opening) (*answer, error) {
	fence, found, err := p.fences.Find(ctx, q, o.key)
	if err != nil || !found {
		return nil, err
	}
	switch fence.Compare(o.entry) {
	case openfence.Conflict:
		return nil, refuse(wire.Conflict, textConflict)
	case openfence.OtherSelection:
		return nil, refuse(wire.ContextChanged, textOther)
	}
	s := &session{terms: &terms{}}
	var digest, first, disclosed []byte
	var size int
	row := q.QueryRow(ctx, `select `+now+`, `+frozen+`, s.id, s.first_batch, s.disclosed
		from lookup_session s join feed_clock c on c.feed_id = s.feed_id where s.fence = $1`, o.key[:])
	if err := p.scan(row, s, &size, nil, &digest, &first, &disclosed); errors.Is(err, pgx.ErrNoRows) {
		return nil, refuse(wire.Expired, textExpired) // compacted: the fence alone is left
	} else if err != nil {
		return nil, fmt.Errorf("lookup: load the first answer: %w", err)
	}
	s.digest = [32]byte(digest)
	if r := s.ask().forOpen(); r != nil {
		return nil, r
	}
	if r := o.room.take(len(first)); r != nil {
		return nil, r
	}
	p.metrics.opens.WithLabelValues("repeated").Inc()
	return &answer{status: http.StatusOK, built: built{body: first, disclosed: disclosed}, session: s, refusal: gate.forOpen}, nil
}

// admit judges a new Open: service, caller, manifest, epoch, required rules, query.
func (p *shard) admit(ctx context.Context, in *inbound, o *opening) error {
	service, grant, err := p.offered(ctx, o.message.Service, in.principal())
	if err != nil {
		return err
	}
	o.service, o.principal, o.grant = service, in.principal(), grant
	if len(in.body) > int(o.service.MaxRequestBytes) {
		return refuse(wire.Limited, textBody)
	}
	epoch, until, err := p.honour(ctx, in.capability, o.service)
	if err != nil {
		return err
	}
	o.capability, o.epoch, o.until = in.capability, epoch, until
	if want := o.message.RequiredRulesDigest; want != "" && want != o.service.rulesDigest {
		return refuse(wire.ContextChanged, textRules)
	}
	o.canonical = o.message.Query.AppendCanonical(nil)
	query, err := o.service.contract.Query(o.canonical)
	if err != nil {
		return refuse(wire.Invalid, textQuery).because(err)
	}
	o.query = query
	o.scope = p.scope(o.service, epoch, in.principal(), wire.QueryDigest(o.message.Service, o.message.Query)).AppendCanonical(nil)
	o.limits = o.message.Limits.Min(o.service.most())
	o.client = in.client
	return nil
}

// begin opens the session: fence, cut, first page, session and saved body in one transaction on one connection. READ
// COMMITTED is what makes a loser of the fence see the winner's row in its next statement; it also means that W, T and
// "is a timer due" must come from one statement (DESIGN 3).
func (p *shard) begin(ctx context.Context, o *opening) (answer, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return answer{}, fmt.Errorf("lookup: acquire a connection: %w", err)
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return answer{}, fmt.Errorf("lookup: begin an open: %w", err)
	}
	defer rollback(ctx, tx)

	if err := o.service.feed.Pin(ctx, tx); err != nil {
		return answer{}, fmt.Errorf("lookup: hold off compaction: %w", err)
	}
	claimed, err := p.fences.Claim(ctx, tx, o.key, o.entry)
	if err != nil {
		return answer{}, err
	}
	if !claimed {
		again, err := p.repeat(ctx, tx, o)
		if err == nil && again == nil {
			err = errors.New("lookup: a fence that stood in the way is not there")
		}
		return deref(again), err
	}
	p.at(afterClaim)
	failpoint.Hit(failpoint.OpenClaimed)

	s, first, err := p.cut(ctx, tx, o)
	if err != nil {
		return answer{}, err
	}
	p.at(afterFirst)
	failpoint.Hit(failpoint.OpenFirst)
	changes, err := p.store(ctx, tx, o, s, first.body, nonNil(first.disclosed))
	if err != nil {
		return answer{}, err
	}
	failpoint.Hit(failpoint.OpenStored)
	if err := tx.Commit(ctx); err != nil {
		// The reply is lost, the commit perhaps not: the client's retry asks the fence, never a second snapshot.
		return answer{}, refuseUnavailable(textUnavailable, fmt.Errorf("lookup: commit an open: %w", err))
	}
	p.marked(s.feed.ID(), s.service, changes)
	p.at(afterCommit)
	failpoint.Hit(failpoint.OpenCommitted)
	p.metrics.opens.WithLabelValues("new").Inc()
	return answer{status: http.StatusOK, built: first, session: s, refusal: gate.forRead}, nil
}

// cut establishes T, S and W together and lays out the first page (BRC-193 s3, s8).
func (p *shard) cut(ctx context.Context, tx pgx.Tx, o *opening) (*session, built, error) {
	feed := o.service.feed
	cut, err := feed.Cut(ctx, tx)
	if err != nil {
		return nil, built{}, fmt.Errorf("lookup: cut: %w", err)
	}
	if cut.Due {
		if _, err := feed.Drain(ctx, cut.Now, drainBudget); err != nil {
			return nil, built{}, fmt.Errorf("lookup: drain due timers: %w", err)
		}
		if cut, err = feed.Cut(ctx, tx); err != nil {
			return nil, built{}, fmt.Errorf("lookup: cut: %w", err)
		}
	}
	if cut.Epoch != o.epoch {
		return nil, built{}, refuse(wire.ResetRequired, textEpoch)
	}
	if cut.Now >= o.until {
		return nil, built{}, refuse(wire.Expired, textManifestOld)
	}
	t := cut.Now
	if cut.Due { // the budget is spent, or the second turned: T is the time up to which the log is complete
		t = cut.Evaluated
	}
	mode := byte(modeNone)
	if o.principal != nil {
		mode = modeBRC103
	}
	id, err := p.newSessionID(mode)
	if err != nil {
		return nil, built{}, err
	}
	digest, _ := p.sessionDigest(id)
	expiresAt, replayUntil, err := deadlines(t, o.service.SessionSeconds, o.service.ReplaySeconds)
	if err != nil {
		return nil, built{}, err
	}
	s := &session{id: id, state: stateOpen, now: cut.Now, granted: true, unbroken: true, terms: &terms{
		shard: p, digest: digest, feed: feed, service: o.message.Service, epoch: cut.Epoch, turn: cut.Turn, capability: o.capability,
		w: cut.W, wTag: cut.Tag, t: t, expiresAt: expiresAt, replayUntil: replayUntil,
		maxRequest: o.service.MaxRequestBytes, most: o.service.most(), viewer: viewer{query: o.query, reader: o.principal},
		principal: o.principal, grant: o.grant, voice: voice{scope: o.scope, chain: p.chainJSON},
	}}
	failpoint.Hit(failpoint.OpenCut)
	pg, err := p.cutPage(ctx, tx, s, 0, o.limits)
	if err != nil {
		return nil, built{}, err
	}
	first, err := p.finishPage(ctx, tx, feed, pg, cut.W, false, o.room)
	return s, first, err
}

// deadlines are T + sessionSeconds and that + replaySeconds, checked (conformance row O14). They are kept within what a
// signed 64-bit column holds.
func deadlines(t, sessionSeconds, replaySeconds uint64) (expiresAt, replayUntil uint64, err error) {
	if sessionSeconds > math.MaxInt64-t || replaySeconds > math.MaxInt64-t-sessionSeconds {
		return 0, 0, fmt.Errorf("lookup: sessionSeconds %d and replaySeconds %d reach beyond the end of time", sessionSeconds, replaySeconds)
	}
	return t + sessionSeconds, t + sessionSeconds + replaySeconds, nil
}

// store writes the session with its exact first body and the outpoints that it discloses, the time it told, and last what the
// service now retains. It returns how far the service's ledger has come.
func (p *shard) store(ctx context.Context, tx pgx.Tx, o *opening, s *session, body, disclosed []byte) (changes uint64, err error) {
	capability, err := hex.DecodeString(s.capability)
	if err != nil {
		return 0, fmt.Errorf("lookup: capability digest: %w", err)
	}
	retained := len(body) + len(disclosed) + len(o.message.Canonical)
	_, err = tx.Exec(ctx, `insert into lookup_session (id, fence, ref, feed_id, state, service, epoch, capability,
			w, w_tag, t, expires_at, replay_until, max_request_bytes, max_response_bytes, max_observations, max_wait_ms,
			rules_id, rules_parameters, query, scope, request, first_batch, principal, grant_id, disclosed, turn, client, retained)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)`,
		s.digest[:], o.key[:], uuid.New(), s.feed.ID(), s.state, s.service, s.epoch, capability,
		int64(s.w), s.wTag[:], int64(s.t), int64(s.expiresAt), int64(s.replayUntil), int32(s.maxRequest), int32(s.most.MaxBytes),
		int32(s.most.MaxObservations), int32(s.most.WaitMs), o.service.RulesID, o.service.parameters, o.canonical, o.scope,
		o.message.Canonical, body, bytesOf(s.principal), s.grant, disclosed, int64(s.turn), o.client[:], retained)
	if err != nil {
		return 0, fmt.Errorf("lookup: store the session: %w", err)
	}
	if err := p.own(ctx, tx, o); err != nil {
		return 0, err
	}
	if err := s.feed.Advance(ctx, tx, s.t); err != nil {
		return 0, fmt.Errorf("lookup: keep the time: %w", err)
	}
	return p.share(ctx, tx, s, int64(retained))
}
