package livefeed

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// vacuumed are the tables that compaction, and the forgetting of sessions beside it, leave holes in.
var vacuumed = []string{
	"row_version", "posting", "feed_group", "group_selector", "group_evidence", "blob", "blob_idle", "lookup_session",
}

const (
	// vacuumLeast and vacuumShare: a vacuum reads all the indexes of what it cleans, so it is due when at least so many rows were
	// removed, and one in so many of those retained. Holes never take much more than that.
	vacuumLeast = 5000
	vacuumShare = 20

	retainedRead = `
select coalesce(sum(h.head - fl.floor + h.versions - fl.removed), 0)::bigint from feed_head h join feed_floor fl on fl.feed_id = h.feed_id`
)

// vacuumState is what a store remembers of its vacuums.
type vacuumState struct {
	mu      sync.Mutex // held for one
	refused bool       // it was said that the database does not let us
}

// Removed tells the next [Store.Vacuum] of rows that a user of the feeds removed or emptied in the same database.
func (s *Store) Removed(rows int64) { s.removed.Add(rows) }

// Vacuum cleans the tables that compaction removes rows from, when at least 5000 rows and a twentieth of those retained were
// removed by this process since the last time: so space is used again rather than taken anew, whatever autovacuum is set
// to. It runs on a connection of its own. A database that refuses (only the owner of a table may) is no error: that
// is logged once, and left to autovacuum.
func (s *Store) Vacuum(ctx context.Context) error {
	removed := s.removed.Load()
	if removed < vacuumLeast || !s.vacuum.mu.TryLock() {
		return nil
	}
	defer s.vacuum.mu.Unlock()
	var retained int64
	if err := s.cfg.Pool.QueryRow(ctx, retainedRead).Scan(&retained); err != nil {
		return fmt.Errorf("livefeed: ask whether a vacuum is due: %w", err)
	}
	if removed < retained/vacuumShare {
		return nil
	}
	if err := s.runVacuum(ctx); err != nil {
		return fmt.Errorf("livefeed: vacuum: %w", err)
	}
	s.removed.Add(-removed)
	s.metrics.vacuums.Inc()
	return nil
}

func (s *Store) runVacuum(ctx context.Context) error {
	config := s.cfg.Pool.Config().ConnConfig
	var refusals []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code != "55P03" { // autovacuum has the table in hand
			refusals = append(refusals, n.Message)
		}
	}
	timeout, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(timeout, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "set statement_timeout = 0"); err != nil {
		return err
	}
	// Truncating would keep readers out while it lasts, for space that is used again soon.
	if _, err := conn.Exec(ctx, "vacuum (skip_locked, truncate false) "+strings.Join(vacuumed, ", ")); err != nil {
		return err
	}
	if len(refusals) > 0 && !s.vacuum.refused {
		s.vacuum.refused = true
		s.log.Warn("livefeed: the database does not let this role vacuum what it removes rows from: make it the tables' owner, or see that autovacuum keeps up", "answers", refusals)
	}
	return nil
}
