package sqlitestate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/wire"
)

// quarantineRows bounds the refused claims kept for one source; the newest stay.
const quarantineRows = 64

// quarantineBytes bounds the bytes kept of one refused claim.
const quarantineBytes = 1 << 20

// record is one source of a Store, held by one writer.
type record struct {
	// Static after construction.
	store  *Store
	source int64
	free   func()
}

var _ client.Record = (*record)(nil)

// Acquire opens the record of a source; see client.State.
func (s *Store) Acquire(ctx context.Context, key client.Key) (client.Record, error) {
	if s.writer == nil {
		return nil, errors.New("acquire a source: the state is open for reading only")
	}
	_, err := s.writer.ExecContext(ctx,
		`INSERT INTO sources (base, service, query_digest, query, principal) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		key.Base, key.Service, key.QueryDigest, key.Query, key.Principal)
	if err != nil {
		return nil, fmt.Errorf("acquire a source: %w", err)
	}
	var id int64
	err = s.writer.QueryRowContext(ctx,
		`SELECT source FROM sources WHERE base = ? AND service = ? AND query_digest = ? AND principal = ?`,
		key.Base, key.Service, key.QueryDigest, key.Principal).Scan(&id)
	if err != nil {
		return nil, fmt.Errorf("acquire a source: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.held[id]; taken {
		return nil, client.ErrBusy
	}
	s.held[id] = struct{}{}
	return &record{store: s, source: id, free: sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, id)
	})}, nil
}

func (r *record) Release() { r.free() }

// write runs f in one transaction. A verified batch in hand is worth finishing,
// so a cancelled context does not tear a local commit.
func (r *record) write(ctx context.Context, what string, f func(context.Context, *sql.Tx) error) error {
	ctx = context.WithoutCancel(ctx)
	tx, err := r.store.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer tx.Rollback()
	if err := f(ctx, tx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (r *record) Status(ctx context.Context) (client.Status, error) {
	st, err := readStatus(ctx, r.store.writer, r.source)
	if err != nil {
		return client.Status{}, fmt.Errorf("read the state: %w", err)
	}
	return st, nil
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func readStatus(ctx context.Context, q querier, source int64) (client.Status, error) {
	var st client.Status
	err := q.QueryRowContext(ctx, `SELECT network, genesis_hash FROM pin`).Scan(&st.Chain.Network, &st.Chain.GenesisHash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return st, err
	}
	var published int64
	err = q.QueryRowContext(ctx, `SELECT identity, published FROM sources WHERE source = ?`, source).Scan(&st.Identity, &published)
	if err != nil {
		return st, err
	}
	st.Published = uint64(published)

	g := client.Generation{Intent: client.Intent{Chain: st.Chain, Identity: st.Identity}}
	var (
		number                                      int64
		session, cursor, scopeDigest, phase         sql.NullString
		scope                                       []byte
		w, through, highWater, expires, replayUntil sql.NullInt64
		endCode, endReason                          sql.NullString
		endedAt                                     sql.NullInt64
	)
	err = q.QueryRowContext(ctx, `
		SELECT g.generation, g.request_id, g.open, g.manifest, m.packet,
		       g.session, g.cursor, g.scope, g.scope_digest, g.phase, g.w, g.through, g.high_water, g.expires_at, g.replay_until,
		       g.end_code, g.end_reason, g.ended_at
		FROM generations g JOIN manifests m ON m.digest = g.manifest
		WHERE g.source = ? ORDER BY g.generation DESC LIMIT 1`, source).Scan(
		&number, &g.Intent.RequestID, &g.Intent.Open, &g.Intent.Digest, &g.Intent.Manifest,
		&session, &cursor, &scope, &scopeDigest, &phase, &w, &through, &highWater, &expires, &replayUntil,
		&endCode, &endReason, &endedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	g.Number = uint64(number)
	if session.Valid {
		g.Checkpoint = &client.Checkpoint{
			Session: session.String, Cursor: cursor.String, Scope: scope, ScopeDigest: scopeDigest.String,
			Phase: client.Phase(phase.String), W: uint64(w.Int64), Through: uint64(through.Int64), HighWater: uint64(highWater.Int64),
			ExpiresAt: uint64(expires.Int64), ReplayUntil: uint64(replayUntil.Int64),
		}
	}
	if endCode.Valid {
		g.Ended = &client.Ending{Generation: g.Number, Code: wire.Code(endCode.String), Reason: endReason.String, At: uint64(endedAt.Int64)}
	}
	st.Latest = &g
	return st, nil
}

func (r *record) Begin(ctx context.Context, intent client.Intent) (generation uint64, err error) {
	err = r.write(ctx, "save the open", func(ctx context.Context, tx *sql.Tx) error {
		st, err := readStatus(ctx, tx, r.source)
		if err != nil {
			return err
		}
		switch {
		case st.Chain == (client.Chain{}):
			if _, err := tx.ExecContext(ctx, `INSERT INTO pin VALUES (1, ?, ?)`, intent.Chain.Network, intent.Chain.GenesisHash); err != nil {
				return err
			}
		case st.Chain != intent.Chain:
			return &client.PinError{What: "chain", Want: st.Chain.Network + " " + st.Chain.GenesisHash, Got: intent.Chain.Network + " " + intent.Chain.GenesisHash}
		}
		generation = 1
		if st.Latest != nil {
			if st.Latest.Ended == nil {
				return errors.New("the generation before it has not ended")
			}
			generation = st.Latest.Number + 1
		}
		for _, step := range []struct {
			query string
			args  []any
		}{
			{`UPDATE sources SET identity = ? WHERE source = ?`, []any{intent.Identity, r.source}},
			{`INSERT INTO manifests VALUES (?, ?) ON CONFLICT DO NOTHING`, []any{intent.Digest, intent.Manifest}},
			{`INSERT INTO generations (source, generation, begun_at, request_id, open, manifest) VALUES (?, ?, ?, ?, ?, ?)`,
				[]any{r.source, int64(generation), time.Now().Unix(), intent.RequestID, intent.Open, intent.Digest}},
		} {
			if _, err := tx.ExecContext(ctx, step.query, step.args...); err != nil {
				return err
			}
		}
		return nil
	})
	return generation, err
}

func (r *record) End(ctx context.Context, e client.Ending) error {
	return r.write(ctx, "record the end of the generation", func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `
			UPDATE generations SET end_code = ?, end_reason = ?, ended_at = ?
			WHERE source = ? AND generation = ? AND end_code IS NULL`,
			string(e.Code), e.Reason, int64(e.At), r.source, int64(e.Generation))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n != 1 {
			return fmt.Errorf("generation %d is not open", e.Generation)
		}
		if e.Claim == nil {
			return nil
		}
		claim := e.Claim[:min(len(e.Claim), quarantineBytes)]
		_, err = tx.ExecContext(ctx, `INSERT INTO quarantine (source, generation, at, code, reason, id, bytes) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			r.source, int64(e.Generation), int64(e.At), string(e.Code), e.Reason, e.ClaimID, claim)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			DELETE FROM quarantine WHERE source = ?1 AND claim NOT IN
			(SELECT claim FROM quarantine WHERE source = ?1 ORDER BY claim DESC LIMIT ?2)`, r.source, quarantineRows)
		return err
	})
}

func (r *record) Delivered(ctx context.Context, m client.Mark) error {
	return r.write(ctx, "record the delivery", func(ctx context.Context, tx *sql.Tx) error {
		// Whatever lies before the mark has been delivered too.
		_, err := tx.ExecContext(ctx, `
			UPDATE generations SET delivered = pages, end_delivered = 1
			WHERE source = ? AND generation < ? AND end_delivered = 0`, r.source, int64(m.Generation))
		if err != nil {
			return err
		}
		if m.End {
			_, err = tx.ExecContext(ctx, `UPDATE generations SET delivered = pages, end_delivered = 1 WHERE source = ? AND generation = ?`,
				r.source, int64(m.Generation))
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE generations SET delivered = max(delivered, ?) WHERE source = ? AND generation = ?`,
			int64(m.Page), r.source, int64(m.Generation))
		return err
	})
}

func (r *record) Undelivered(ctx context.Context) (*client.Delivery, error) {
	d, err := r.undelivered(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what was not delivered: %w", err)
	}
	return d, nil
}

func (r *record) undelivered(ctx context.Context) (*client.Delivery, error) {
	q := r.store.writer
	var (
		generation, pages, delivered int64
		scope                        []byte
		w, expires                   sql.NullInt64
		endCode, endReason           sql.NullString
		endedAt                      sql.NullInt64
	)
	err := q.QueryRowContext(ctx, `
		SELECT generation, pages, delivered, scope, w, expires_at, end_code, end_reason, ended_at FROM generations
		WHERE source = ? AND (delivered < pages OR (end_code IS NOT NULL AND end_delivered = 0))
		ORDER BY generation LIMIT 1`, r.source).Scan(
		&generation, &pages, &delivered, &scope, &w, &expires, &endCode, &endReason, &endedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := &client.Delivery{
		Mark: client.Mark{Generation: uint64(generation)}, Scope: scope,
		W: uint64(w.Int64), ExpiresAt: uint64(expires.Int64),
	}
	if delivered == pages {
		d.Mark.Page, d.Mark.End = uint64(pages), true
		d.Ending = &client.Ending{Generation: d.Mark.Generation, Code: wire.Code(endCode.String), Reason: endReason.String, At: uint64(endedAt.Int64)}
		return d, nil
	}
	page := delivered + 1
	var through, highWater, replaces, unseen int64
	err = q.QueryRowContext(ctx, `
		SELECT snapshot, complete, first_live, through, high_water, replaces, unseen FROM pages
		WHERE source = ? AND generation = ? AND page = ?`, r.source, generation, page).Scan(
		&d.Snapshot, &d.Complete, &d.FirstLive, &through, &highWater, &replaces, &unseen)
	if err != nil {
		return nil, err
	}
	d.Mark.Page, d.Opened = uint64(page), page == 1
	d.Through, d.HighWater, d.Replaces, d.Unseen = uint64(through), uint64(highWater), uint64(replaces), uint64(unseen)
	d.Groups, err = readGroups(ctx, q, r.source, generation, page)
	return d, err
}
