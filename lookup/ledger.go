package lookup

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/livefeed"
)

// The ledger holds one row a service: how many sessions it retains, how many bytes they keep, and two counts that only grow: of changes,
// and of those that end something, which triggers keep and the gate compares. Its row is the last thing every transaction here touches, so that it is locked over the flush alone, and after it
// nothing else is locked: there is no order to get wrong. Several rows are taken in the order of (feed, service), and
// the sessions before them in the order of their places.

// endSessions is the only way a session stops being open: it takes a new state, what it retained is let go at once, and the
// ledger says so, in one statement. It returns id, feed, service and changes of each; condition is about s and may use $2
// and what follows, $1 is the new state. Nothing else ever changes a session, so the lock keeps its place. "+ 0" keeps the partial
// indexes of open sessions away: in a plan that was made on empty tables they look as cheap as a key.
func endSessions(condition string) string {
	return `with ended as (
			update lookup_session s set state = $1, first_batch = '', disclosed = '', request = '', retained = 0
			from (select s.ctid as place, s.retained from lookup_session s where ` + condition + ` and s.state + 0 = 1
				order by s.ctid for update) old
			where s.ctid = old.place
			returning s.id, s.feed_id, s.service, old.retained
		), posted as (
			insert into lookup_ledger as l (feed_id, service, changes)
			select feed_id, service, 1 from ended group by feed_id, service order by feed_id, service
			on conflict (feed_id, service) do update set changes = l.changes + 1,
				sessions = l.sessions - (select count(*) from ended e where e.feed_id = l.feed_id and e.service = l.service),
				bytes = l.bytes - (select coalesce(sum(e.retained), 0) from ended e where e.feed_id = l.feed_id and e.service = l.service)
			returning l.feed_id, l.service, l.changes
		)
		select e.id, e.feed_id, e.service, p.changes from ended e join posted p on p.feed_id = e.feed_id and p.service = e.service`
}

// ended is one session that stopped being open.
type ended struct {
	id      [32]byte
	feed    int32
	service string
	changes uint64
}

// end runs endSessions and returns what it ended; announce it with [Provider.told] once it is committed.
func (p *shard) end(ctx context.Context, q livefeed.Querier, to state, condition string, args ...any) ([]ended, error) {
	failpoint.Hit(failpoint.EndAsked)
	rows, err := q.Query(ctx, endSessions(condition), append([]any{to}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (ended, error) {
		var e ended
		var id []byte
		err := r.Scan(&id, &e.feed, &e.service, &e.changes)
		if len(id) == len(e.id) {
			e.id = [32]byte(id)
		}
		return e, err
	})
}

// sessionRows is how many row versions a session weighs for the vacuum: its first body has about so many rows in it.
const sessionRows = 50

// told wakes the polls of sessions whose end is committed, on every node.
func (p *shard) told(list []ended) {
	failpoint.Hit(failpoint.EndCommitted)
	p.source.Removed(sessionRows * int64(len(list)))
	for _, e := range list {
		p.closing.announce(e.id)
		p.marked(e.feed, e.service, e.changes)
	}
	if len(list) > 0 {
		p.endings.add(list)
	}
}

// marked remembers how far a service's ledger has come, once that is committed: a database that says less has lost
// something this node was promised (conformance row O12).
func (p *shard) marked(feed int32, service string, changes uint64) {
	p.source.Marked(livefeed.Mark{Feed: feed, Name: service, Value: changes})
}

// ledgerMarks tells how far every ledger has come.
const ledgerMarks = `select feed_id, service as name, changes as value from lookup_ledger`

// note counts a change of who may read a service in its ledger, as the last statement of the transaction that makes it.
func (p *shard) note(ctx context.Context, q livefeed.Querier, s *service) (changes uint64, err error) {
	err = q.QueryRow(ctx, `insert into lookup_ledger as l (feed_id, service, changes) values ($1, $2, 1)
		on conflict (feed_id, service) do update set changes = l.changes + 1 returning changes`, s.feed.ID(), s.Name).Scan(&changes)
	return changes, err
}

// errOverQuota says that a service's ledger is full.
var errOverQuota = errors.New("the service retains as much as it may")

// ledgerOpen counts a session at watermark $6 if that is still retained and the service has room for it.
const ledgerOpen = `insert into lookup_ledger as l (feed_id, service, changes, sessions, bytes)
	select $1, $2::text, 1, 1, $3::bigint from feed_floor where feed_id = $1 and floor <= $6 and $3 <= $5
	on conflict (feed_id, service) do update set changes = l.changes + 1, sessions = l.sessions + 1, bytes = l.bytes + $3
		where l.sessions < $4 and l.bytes + $3 <= $5
	returning changes`

// enter counts a new session in the ledger, unless its watermark w was compacted away meanwhile, which is Reset (conformance
// row O7; the Open's pin holds that off, and this is asked all the same), or it would be above maxSessions or maxBytes:
// errOverQuota. It is the last statement of the Open's transaction.
func (p *shard) enter(ctx context.Context, tx pgx.Tx, feed int32, service string, w uint64, bytes, maxSessions, maxBytes int64) (changes uint64, err error) {
	err = tx.QueryRow(ctx, ledgerOpen, feed, service, bytes, maxSessions, maxBytes, int64(w)).Scan(&changes)
	if errors.Is(err, pgx.ErrNoRows) {
		var gone bool
		if err := tx.QueryRow(ctx, `select floor > $2 from feed_floor where feed_id = $1`, feed, int64(w)).Scan(&gone); err != nil {
			return 0, fmt.Errorf("lookup: read the floor: %w", err)
		}
		if gone {
			return 0, refuseReset(errors.New("the snapshot's watermark was compacted away before the open was committed"))
		}
		return 0, errOverQuota
	}
	if err != nil {
		return 0, fmt.Errorf("lookup: count the session: %w", err)
	}
	return changes, nil
}
