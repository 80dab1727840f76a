package lookup

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// bound tells every feed under what limits its groups must be deliverable, so that a group that no client could ever
// receive is refused when it is appended (conformance row L6). Limits that a service had before stay in force while a
// session opened under them may live.
func (p *shard) bound(ctx context.Context) error {
	for id, feed := range p.feeds {
		var limits []livefeed.AdmissionLimit
		longest := uint64(0)
		for _, name := range p.names {
			s := p.services[name]
			if s.shard != p || s.feed.ID() != id {
				continue
			}
			envelope, observation := p.worst(s)
			limits = append(limits, livefeed.AdmissionLimit{
				Service: name, MaxBytes: s.MaxResponseBytes, MaxObservations: s.MaxObservations,
				EnvelopeBytes: envelope, ObservationBytes: observation,
			})
			longest = max(longest, s.SessionSeconds)
		}
		former, err := p.former(ctx, feed, limits, longest)
		if err != nil {
			return err
		}
		err = pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return feed.Narrow(ctx, tx, append(limits, former...))
		})
		if livefeed.CodeOf(err) == livefeed.Limited {
			return fmt.Errorf("lookup: %w", err)
		}
		if err != nil {
			return fmt.Errorf("lookup: set the admission limits of feed %s: %w", feed.Name(), err)
		}
	}
	return nil
}

// worst returns the greatest size of a batch holding one group without observations, and of one observation without its
// BEEF, context, reason and context id.
func (p *shard) worst(s *service) (envelope, observation int) {
	const epochSize = 64 // an epoch is a Hex32
	var anyone [33]byte
	scope := p.scope(s, "", nil, wire.QueryDigest(s.Name, canon.Obj()))
	if s.Authentication != wire.AuthenticationNone {
		scope = p.scope(s, "", &anyone, wire.QueryDigest(s.Name, canon.Obj()))
	}
	scope.Epoch = strings.Repeat("e", epochSize)
	v := newVoice(scope)
	id := strings.Repeat("i", identitySize)
	size := func(f ...fact) int {
		return v.draft(math.MaxUint64, f, func(dst []byte, _ int) []byte { return append(dst, id...) }).size
	}
	empty := size()
	point := livefeed.Outpoint{Index: math.MaxUint32}
	for _, f := range []fact{
		{kind: kindOutput, outpoint: point, state: &livefeed.State{Context: &livefeed.Context{}}},
		{kind: kindSpend, outpoint: point},
		{kind: kindWithdraw, outpoint: point, reason: reasonProhibited},
		{kind: kindInvalidated},
	} {
		observation = max(observation, size(f)-empty+1) // and the comma before it
	}
	h := head{
		session: strings.Repeat("s", sessionIDSize), cursor: strings.Repeat("c", cursorSize),
		scope: v.scope, phase: "snapshot", through: math.MaxUint64, highWater: math.MaxUint64,
		expiresAt: math.MaxUint64, replayUntil: math.MaxUint64,
		limits: wire.Limits{MaxBytes: math.MaxUint32, MaxObservations: math.MaxUint32, WaitMs: math.MaxUint32},
	}
	return len(h.append(nil, nil, nil)) + empty, observation
}

// former are the limits that no service has any more but that a session may still be read under: until the last session
// of the feed has expired, and as long as a session opened a moment ago could live.
func (p *shard) former(ctx context.Context, feed *livefeed.Feed, current []livefeed.AdmissionLimit, longest uint64) ([]livefeed.AdmissionLimit, error) {
	before, err := feed.Limits(ctx, p.pool)
	if err != nil {
		return nil, fmt.Errorf("lookup: read the admission limits of feed %s: %w", feed.Name(), err)
	}
	var last uint64
	err = p.pool.QueryRow(ctx, `select greatest(coalesce(max(expires_at), 0), `+clock+` + $2)
		from lookup_session where feed_id = $1 and state = $3`, feed.ID(), int64(longest), stateOpen).Scan(&last)
	if err != nil {
		return nil, fmt.Errorf("lookup: read the last deadline of feed %s: %w", feed.Name(), err)
	}
	var former []livefeed.AdmissionLimit
	for _, old := range before {
		kept := slices.ContainsFunc(current, func(l livefeed.AdmissionLimit) bool {
			return l.MaxBytes == old.MaxBytes && l.MaxObservations == old.MaxObservations && l.Service == old.Service
		})
		if kept {
			continue
		}
		if old.Until == 0 {
			old.Until = last
		}
		former = append(former, old)
	}
	return former, nil
}
