package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What operators do to sessions and access. Each is one transaction; when it has returned, no body whose gate starts later
// is sent in spite of it, on any node (conformance rows A3, A6). Polls of this process that it concerns are woken.

// ErrNoService says that no service of that name is configured, or that it needs no grants.
var ErrNoService = errors.New("there is no service of that name with access: list")

// Grant admits an identity to a service with access: list. It reports whether it was not admitted before.
func (p *Provider) Grant(ctx context.Context, service string, identity [33]byte) (changed bool, err error) {
	if err := p.listed(service); err != nil {
		return false, err
	}
	s := p.services[service]
	var changes uint64
	err = pgx.BeginTxFunc(ctx, s.shard.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into service_grant (service, identity, granted_at) values ($1, $2, `+clock+`)
			on conflict (service, identity) do nothing`, service, identity[:])
		if changed = tag.RowsAffected() == 1; err != nil || !changed {
			return err
		}
		changes, err = s.shard.note(ctx, tx, s)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("lookup: grant: %w", err)
	}
	if changed {
		s.shard.marked(s.feed.ID(), service, changes)
	}
	return changed, nil
}

// Revoke takes an identity's grant away and ends its sessions for ever: granting again revives none of them. It reports
// whether there was a grant.
func (p *Provider) Revoke(ctx context.Context, service string, identity [33]byte) (changed bool, err error) {
	if err := p.listed(service); err != nil {
		return false, err
	}
	s := p.services[service]
	var list []ended
	var changes uint64
	err = pgx.BeginTxFunc(ctx, s.shard.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from service_grant where service = $1 and identity = $2`, service, identity[:])
		if err != nil {
			return err
		}
		changed = tag.RowsAffected() == 1
		// A session whose Open is committing meanwhile is not seen here: the gate finds that its grant is gone.
		list, err = s.shard.end(ctx, tx, stateRevoked, `s.service = $2 and s.principal = $3 and s.grant_id is not null`, service, identity[:])
		if err != nil || !changed {
			return err
		}
		// A database that has lost a revocation must be known by it.
		changes, err = s.shard.note(ctx, tx, s)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("lookup: revoke: %w", err)
	}
	s.shard.told(list)
	if changed {
		s.shard.marked(s.feed.ID(), service, changes)
	}
	return changed, nil
}

func (p *Provider) listed(service string) error {
	if s := p.services[service]; s == nil || s.Access != AccessList {
		return ErrNoService
	}
	return nil
}

// SessionInfo is a session as operators may see it: nothing in it lets anyone read.
type SessionInfo struct {
	Ref       uuid.UUID
	Service   string
	Principal *[33]byte // nil: anonymous
	State     string    // open, expired, closed, reset or revoked
	OpenedAt  uint64    // T of the open
	ExpiresAt uint64
}

// SessionFilter chooses sessions. Zero fields choose all.
type SessionFilter struct {
	Service   string
	Principal *[33]byte
	After     uuid.UUID // those behind this one, in the order of Ref
	Limit     int       // at most 1000; 0 means 1000
}

// maxSessions bounds one listing.
const maxSessions = 1000

// ListSessions lists stored sessions in the order of their refs.
func (p *Provider) ListSessions(ctx context.Context, f SessionFilter) ([]SessionInfo, error) {
	if f.Limit <= 0 || f.Limit > maxSessions {
		f.Limit = maxSessions
	}
	homes := p.shards
	if f.Service != "" {
		homes = []*shard{p.serving(f.Service)}
	}
	var all []SessionInfo
	for _, d := range homes {
		list, err := d.listSessions(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b SessionInfo) int { return bytes.Compare(a.Ref[:], b.Ref[:]) })
	return all[:min(len(all), f.Limit)], nil
}

func (p *shard) listSessions(ctx context.Context, f SessionFilter) ([]SessionInfo, error) {
	rows, err := p.pool.Query(ctx, `select s.ref, s.service, s.principal, s.state, s.t, s.expires_at, s.expires_at <= `+now+`, s.turn < f.broken
		from lookup_session s join feed_clock c on c.feed_id = s.feed_id join feed f on f.id = s.feed_id
		where ($1 = '' or s.service = $1) and ($2::bytea is null or s.principal = $2) and s.ref > $3 order by s.ref limit $4`,
		f.Service, bytesOf(f.Principal), f.After, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("lookup: list sessions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (SessionInfo, error) {
		var i SessionInfo
		var principal []byte
		var st state
		var expired, broken bool
		if err := r.Scan(&i.Ref, &i.Service, &principal, &st, &i.OpenedAt, &i.ExpiresAt, &expired, &broken); err != nil {
			return i, err
		}
		if len(principal) == 33 {
			i.Principal = new([33]byte(principal))
		}
		i.State = map[state]string{stateOpen: "open", stateClosed: "closed", stateReset: "reset", stateRevoked: "revoked"}[st]
		switch { // as a read would say
		case st == stateOpen && broken:
			i.State = "reset"
		case st == stateOpen && expired:
			i.State = "expired"
		}
		return i, nil
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: list sessions: %w", err)
	}
	return list, nil
}

// SessionCount is what the sessions of a feed are and hold.
type SessionCount struct {
	Open int64 // can be read now
	Pins int64 // still promised: they hold row versions and log back, until their replayUntil
	// Oldest is the smallest watermark of those: the feed's floor stays at or below it. 0 when there are none.
	Oldest uint64
}

// CountSessions counts a feed's sessions. It looks at every one that is open.
func (p *Provider) CountSessions(ctx context.Context, feed string) (n SessionCount, err error) {
	err = p.homeOf(feed).pool.QueryRow(ctx, `select count(*) filter (where s.expires_at > `+now+`), count(*) filter (where s.replay_until > `+now+`),
			coalesce(min(s.w) filter (where s.replay_until > `+now+`), 0)
		from lookup_session s join feed f on f.id = s.feed_id join feed_clock c on c.feed_id = f.id
		where f.name = $1 and s.state = $2 and s.turn >= f.broken`, feed, stateOpen).Scan(&n.Open, &n.Pins, &n.Oldest)
	if err != nil {
		return SessionCount{}, fmt.Errorf("lookup: count the sessions of feed %s: %w", feed, err)
	}
	return n, nil
}

// RemoveSession revokes one session for ever, by its ref. It reports whether it was open.
func (p *Provider) RemoveSession(ctx context.Context, ref uuid.UUID) (changed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var removed atomic.Bool
	faults := make([]error, len(p.shards))
	p.each(func(i int, d *shard) { // a ref does not say where
		list, err := d.end(ctx, d.pool, stateRevoked, `s.ref = $2`, ref)
		if err != nil {
			faults[i] = fmt.Errorf("lookup: remove a session: %w", err)
			return
		}
		d.told(list)
		if len(list) == 1 {
			removed.Store(true)
			cancel() // it is in no other
		}
	})
	if removed.Load() {
		return true, nil
	}
	return false, errors.Join(faults...)
}
