package livefeed

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// A transaction of the committer is two pipelines: the first takes the head lock and reads what the plan needs, the
// second writes everything, advances the head, notifies once and commits. READ COMMITTED: each statement sees
// what is committed when it starts, so nothing may share a statement with the lock.

const (
	txBegin = "begin isolation level read committed"

	headLock = `select head, tag, live, versions from feed_head where feed_id = $1 for update`

	// firstDeadline is the earliest deadline of the rows present. Asked for in order, it is found in the one index that has
	// the order, whatever the planner knows about the table.
	firstDeadline = `(
  select v.expires_at from row_version v
  where v.feed_id = $1 and v.valid_to = 9223372036854775807 and v.expires_at is not null
  order by v.expires_at, v.order_key limit 1)`

	// clockRead repeats what it says of the feed for each of its limits.
	clockRead = `
select t.now, c.evaluated, coalesce(` + firstDeadline + ` <= t.now, false), f.broken, f.epoch,
       l.service, l.max_bytes, l.max_observations, l.envelope_bytes, l.observation_bytes, coalesce(l.until, 0)
from feed_clock c
join feed f on f.id = c.feed_id
cross join lateral (select greatest(floor(extract(epoch from clock_timestamp()))::bigint, c.evaluated) as now) t
left join feed_limits l on l.feed_id = $1
where c.feed_id = $1`

	// The two look-ups by many keys go one key at a time to an index, which "= any" on the second column of an index
	// does only when the statistics are good.
	keyFind = `
select k.key, k.body, k.seq
from unnest($2::bytea[]) as u(key)
cross join lateral (select * from group_key k where k.feed_id = $1 and k.key = u.key offset 0) k`

	// stateColumns are read by scanState, in this order.
	stateColumns = `v.ver, v.order_key, v.valid_from, v.expires_at, v.attributes, v.context_schema, v.context, v.evidence, v.evidence_size, v.readers, v.hidden`

	// rowFind says of each outpoint whether it is prohibited, who may read its row if there is a record of that, and the row.
	rowFind = `
select u.outpoint, p.feed_id is not null, a.readers, ` + stateColumns + `, v.ver is null
from unnest($2::bytea[]) as u(outpoint)
left join lateral (select * from row_version v where v.outpoint = u.outpoint and v.valid_to = 9223372036854775807 offset 0) v on v.feed_id = $1
left join lateral (select p.feed_id from prohibition p where p.feed_id = $1 and p.outpoint = u.outpoint offset 0) p on true
left join lateral (select a.readers from row_audience a where a.outpoint = u.outpoint and a.feed_id = $1 offset 0) a on true`

	rowDue = `
select ` + stateColumns + ` from row_version v
where v.feed_id = $1 and v.valid_to = 9223372036854775807 and v.expires_at is not null and v.expires_at <= $2
order by v.expires_at, v.order_key limit $3`

	// Sorted, so that two feeds that bring the same evidence take their places in one order.
	blobPut = `
insert into blob (sha, bytes)
select u.sha, u.bytes from unnest($1::bytea[], $2::bytea[]) as u(sha, bytes) order by u.sha
on conflict (sha) do nothing`

	// Rows are found one key at a time, behind a fence, and updated by their place: joined to the keys directly they are found by
	// reading every live row of the feed when the statement was planned on an empty table. "Above the last but one" says "live" without
	// saying what the partial indexes say, whose entries it could read instead. The head lock keeps the place.
	versionEnd = `
with ended as (
  update row_version v set valid_to = found.seq
  from (select u.seq, x.place from unnest($2::bigint[], $3::bigint[]) as u(ver, seq)
        cross join lateral (select v.ctid as place, v.feed_id from row_version v
                            where v.ver = u.ver and v.valid_to > 9223372036854775806 offset 0) x
        where x.feed_id = $1) found
  where v.ctid = found.place
  returning 1
)
-- The commit is on its way behind this statement: what does not fit must fail here, in SQL.
select 1 / ((select count(*) from ended) = $4)::int`

	postingEnd = `
with ended as (
  update posting p set valid_to = found.seq
  from (select u.seq, x.place from unnest($2::bytea[], $3::bytea[], $4::bigint[]) as u(selector, order_key, seq)
        cross join lateral (select p.ctid as place from posting p
                            where p.feed_id = $1 and p.selector = u.selector and p.order_key = u.order_key
                              and p.valid_to = 9223372036854775807 offset 0) x) found
  where p.ctid = found.place
  returning 1
)
select 1 / ((select count(*) from ended) = $5)::int`

	// A version that begins a run is given its number here, and is posted under all its selectors. Arrays inside arrays are not ragged
	// in Postgres: selectors and readers travel as array literals.
	versionPut = `
with u as materialized (
  select case u.ver when 0 then nextval('row_version_ver_seq') else u.ver end as ver, u.ver = 0 as begins,
         u.outpoint, u.order_key, u.valid_from, u.valid_to, nullif(u.expires_at, 0) as expires_at, u.attributes, u.selectors::bytea[] as selectors,
         u.context_schema, u.context, u.evidence, u.evidence_size, u.readers::bytea[] as readers, u.hidden
  from unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::text[],
              $9::bytea[], $10::bytea[], $11::bytea[], $12::int[], $13::text[], $14::boolean[], $15::bigint[])
       as u(outpoint, order_key, valid_from, valid_to, expires_at, attributes, selectors,
            context_schema, context, evidence, evidence_size, readers, hidden, ver)
), made as (
  insert into row_version (ver, feed_id, outpoint, order_key, valid_from, valid_to, expires_at, attributes, selectors,
                           context_schema, context, evidence, evidence_size, readers, hidden)
  select ver, $1, outpoint, order_key, valid_from, valid_to, expires_at, attributes, selectors,
         context_schema, context, evidence, evidence_size, readers, hidden
  from u
)
insert into posting (feed_id, selector, order_key, valid_from, valid_to, ver)
select $1, s.selector, u.order_key, u.valid_from, u.valid_to, u.ver from u cross join lateral unnest(u.selectors) as s(selector) where u.begins`

	postingPut = `
insert into posting (feed_id, selector, order_key, valid_from, valid_to, ver)
select $1, u.* from unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[]) as u`

	// Three tables in one statement: it is as much work for the rows, and less for what comes with every statement.
	groupPut = `
with groups as (
  insert into feed_group (feed_id, seq, tag, committed_at, changes)
  select $1, u.seq, u.tag, $2, u.changes from unnest($3::bigint[], $4::bytea[], $5::bytea[]) as u(seq, tag, changes)
), selectors as (
  insert into group_selector (feed_id, selector, seq)
  select $1, u.selector, u.seq from unnest($6::bytea[], $7::bigint[]) as u(selector, seq)
)
insert into group_key (feed_id, key, body, seq)
select $1, u.key, u.body, u.seq from unnest($8::bytea[], $9::bytea[], $10::bigint[]) as u(key, body, seq)`

	// An Open may hold the row until its commit: the next transaction writes it then.
	clockWrite = `
update feed_clock c set evaluated = $2
from (select feed_id from feed_clock where feed_id = $1 and evaluated < $2 for update skip locked) free
where c.feed_id = free.feed_id`

	headWrite = `update feed_head set head = $2, tag = $3, live = $4, versions = $5 where feed_id = $1`

	// headTelling ends the write of the head: the notification costs no statement of its own. Nobody is told if no other process
	// listens: what this one commits it announces itself, and telling it so would wake the listener and its server process for
	// nothing. The head lock is held: who says that it listens and then locks the head misses nothing.
	headTelling = `
returning (select pg_notify('` + notifyChannel + `', $6) where exists (select from feed_listener l where l.node <> $7))`
	headNotify = `select pg_notify('` + notifyChannel + `', $1)`
)

// reads are what a plan wants to know besides head, clock and limits.
type reads struct {
	keys, outpoints [][]byte
	dueAt           uint64 // for a drain: its time
	dueLimit        int    // and its rows; 0 = no drain
}

func batchReads(batch []*Pending) reads {
	var r reads
	seen := map[Outpoint]struct{}{}
	for _, n := range batch {
		r.keys = append(r.keys, n.key[:])
		if n.fault != nil {
			continue
		}
		for i := range n.p.Edits {
			e := &n.p.Edits[i]
			if _, ok := seen[e.Outpoint]; ok || e.Op == Invalidate {
				continue
			}
			seen[e.Outpoint] = struct{}{}
			o := e.Outpoint.Bytes()
			r.outpoints = append(r.outpoints, o[:])
		}
	}
	return r
}

func timerReads(t uint64, limit int) reads { return reads{dueAt: min(t, maxSequence), dueLimit: limit} }

// transact runs one transaction: lock and read, fill in the plan, write and commit, announce. sending, if given,
// is called just before the commit is sent: an error after that leaves the outcome unknown, unless the database
// itself refused. On success the plan's groups are durable.
func (f *Feed) transact(ctx context.Context, r reads, fill func(*plan), sending func()) (*plan, error) {
	seen := f.store.witness.of(f.name)
	conn, err := f.store.cfg.Writer.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a writer connection: %w", err)
	}
	// Release closes a connection that is not idle, and the server then rolls back.
	defer conn.Release()

	pl, err := f.readPlan(ctx, conn, r)
	if err != nil {
		rollback(ctx, conn)
		return nil, err
	}
	if seen.known && !seen.fits(pl) {
		// Nothing is appended to a history that is not the one this process saw, before its epoch is broken.
		rollback(ctx, conn)
		if err := f.store.witness.check(ctx, conn); err != nil {
			return nil, err
		}
		return nil, errLostHistory
	}
	fill(pl)
	if hook := f.hooks.planned; hook != nil {
		hook()
	}
	if len(pl.groups) == 0 && pl.evaluated == 0 && pl.ruling == nil {
		rollback(ctx, conn)
		f.see(pl.era, pl.head) // a commit of ours whose answer was lost is announced now
		return pl, nil
	}
	if sending != nil {
		sending()
	}
	f.writer.Store(conn.Conn().PgConn().PID())
	defer f.writer.Store(0)
	if err := f.writePlan(ctx, conn, pl); err != nil {
		rollback(ctx, conn)
		return nil, err
	}
	failpoint.Hit(failpoint.Committed)
	if hook := f.hooks.committed; hook != nil {
		if err := hook(pl.head); err != nil {
			return nil, err
		}
	}
	f.committed(pl)
	return pl, nil
}

// committed remembers the plan's groups and announces them to this process.
func (f *Feed) committed(pl *plan) {
	f.store.witness.committed(f.name, pl)
	if f.hooks.mute {
		return
	}
	if len(pl.groups) == 0 {
		f.see(pl.era, pl.head) // a commit of ours whose answer was lost is announced now
		return
	}
	f.show(pl) // this and the tail before anybody is woken
	f.tail.commit(pl, f.hub.waiting() > 0)
	var a announcement
	for _, selectors := range pl.selectors {
		a.add(selectors)
	}
	if !f.hub.publish(pl.era, pl.first+1, pl.head, a) {
		f.see(pl.era, pl.head)
	}
	m := f.store.metrics
	m.groups.WithLabelValues(f.name).Add(float64(len(pl.groups)))
	m.batch.WithLabelValues(f.name).Observe(float64(len(pl.groups)))
	m.drained.WithLabelValues(f.name).Add(float64(pl.expired))
}

func rollback(ctx context.Context, conn *pgxpool.Conn) {
	if pg := conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() != 'I' {
		// A failure leaves the connection in its transaction, and Release closes it.
		_, _ = conn.Exec(ctx, "rollback")
	}
}

func (f *Feed) readPlan(ctx context.Context, conn *pgxpool.Conn, r reads) (*plan, error) {
	pl := &plan{keys: map[[16]byte]knownKey{}, rows: map[Outpoint]*row{}, blobs: map[[32]byte][]byte{}, prohibited: map[Outpoint]bool{},
		audiences: map[Outpoint]*audience{}, began: time.Now()}
	b := &pgx.Batch{}
	b.Queue(txBegin)
	b.Queue(headStatement, f.id).QueryRow(func(r pgx.Row) error {
		var head int64
		var tag []byte
		if err := r.Scan(&head, &tag, &pl.live, &pl.versions); err != nil {
			return fmt.Errorf("lock the head: %w", err)
		}
		pl.head, pl.first, pl.tag, pl.firstTag = uint64(head), uint64(head), [8]byte(tag), [8]byte(tag)
		return nil
	})
	b.Queue(clockRead, f.id).Query(pl.scanClock)
	if len(r.keys) > 0 {
		b.Queue(keyFind, f.id, r.keys).Query(pl.scanKeys)
	}
	if len(r.outpoints) > 0 {
		b.Queue(rowFind, f.id, r.outpoints).Query(pl.scanPresent)
	}
	if r.dueLimit > 0 {
		b.Queue(rowDue, f.id, int64(r.dueAt), r.dueLimit+1).Query(func(rows pgx.Rows) error {
			return eachState(rows, func(v *row) {
				// The clock was read before: what fell due since waits for the next drain.
				if v.state.ExpiresAt <= pl.now {
					pl.rows[v.outpoint] = v
					pl.dueRows = append(pl.dueRows, v)
				}
			})
		})
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock and read: %w", err)
	}
	if pl.head+uint64(2*len(r.outpoints)+len(r.keys)+r.dueLimit) > maxSequence {
		return nil, fmt.Errorf("%w: its sequences are used up", errPlan)
	}
	return pl, nil
}

func (pl *plan) scanKeys(rows pgx.Rows) error {
	var key, body []byte
	var seq int64
	_, err := pgx.ForEachRow(rows, []any{&key, &body, &seq}, func() error {
		pl.keys[[16]byte(key)] = knownKey{body: [16]byte(body), seq: uint64(seq)}
		return nil
	})
	return err
}

// scanClock receives clockRead.
func (pl *plan) scanClock(rows pgx.Rows) error {
	var now, clock, era, until int64
	var service *string
	var bytes, observations, envelope, observation *int64
	seen := false
	_, err := pgx.ForEachRow(rows, []any{&now, &clock, &pl.due, &era, &pl.epoch, &service, &bytes, &observations, &envelope, &observation, &until}, func() error {
		seen = true
		pl.now, pl.clock, pl.era = uint64(now), uint64(clock), uint64(era)
		if service != nil {
			pl.limits = append(pl.limits, AdmissionLimit{Service: *service, MaxBytes: uint32(*bytes), MaxObservations: uint32(*observations),
				EnvelopeBytes: int(*envelope), ObservationBytes: int(*observation), Until: uint64(until)})
		}
		return nil
	})
	if err == nil && !seen {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	slices.SortFunc(pl.limits, AdmissionLimit.compare)
	return nil
}

// scanPresent receives rowFind.
func (pl *plan) scanPresent(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		var s optionalState // not shared between rows: the values are kept
		var raw []byte
		var prohibited bool
		var readers [][]byte
		if err := rows.Scan(append([]any{&raw, &prohibited, &readers}, s.targets()...)...); err != nil {
			return err
		}
		o, err := outpointOf(raw)
		if err != nil {
			return err
		}
		if prohibited {
			pl.prohibited[o] = true
		}
		if readers != nil {
			a := &audience{stored: true}
			for _, r := range readers {
				a.readers = append(a.readers, [33]byte(r))
			}
			pl.audiences[o] = a
		}
		if *s.lost {
			continue
		}
		v, err := s.row()
		if err != nil {
			return err
		}
		v.selectors = v.state.Selectors()
		pl.rows[v.outpoint] = v
	}
	return rows.Err()
}

func scanLimits(rows pgx.Rows) ([]AdmissionLimit, error) {
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (AdmissionLimit, error) {
		var l AdmissionLimit
		var bytes, observations, envelope, observation, until int64
		err := r.Scan(&l.Service, &bytes, &observations, &envelope, &observation, &until)
		l.MaxBytes, l.MaxObservations = uint32(bytes), uint32(observations)
		l.EnvelopeBytes, l.ObservationBytes, l.Until = int(envelope), int(observation), uint64(until)
		return l, err
	})
}

// stateScan receives stateColumns.
type stateScan struct {
	ver, from                       int64
	expires                         *int64
	order, attributes, schema, body []byte
	evidence                        []byte
	size                            int32
	readers                         [][]byte
	hidden                          bool
}

func (s *stateScan) targets() []any {
	return []any{&s.ver, &s.order, &s.from, &s.expires, &s.attributes, &s.schema, &s.body, &s.evidence, &s.size, &s.readers, &s.hidden}
}

// row makes a version of what was scanned.
func (s *stateScan) row() (*row, error) {
	bad := func(what string, err error) (*row, error) {
		return nil, fmt.Errorf("%w: %s of row version %d: %v", errPlan, what, s.ver, err)
	}
	v := &row{ver: s.ver, stored: true, from: uint64(s.from), to: live, orderKey: s.order, state: &State{Hidden: s.hidden}}
	var err error
	if v.state.Order, v.outpoint, err = orderOf(s.order); err != nil {
		return bad("order key", err)
	}
	if v.state.Attributes, err = decodeAttributes(s.attributes); err != nil {
		return bad("attributes", err)
	}
	if len(s.evidence) != 32 {
		return bad("evidence", fmt.Errorf("%d bytes", len(s.evidence)))
	}
	v.state.Evidence = Evidence{SHA256: [32]byte(s.evidence), Size: int(s.size)}
	if s.schema != nil {
		v.state.Context = &Context{Schema: string(s.schema), Bytes: append([]byte{}, s.body...)}
	}
	if s.expires != nil {
		v.state.ExpiresAt = uint64(*s.expires)
	}
	for _, r := range s.readers {
		if len(r) != 33 {
			return bad("readers", fmt.Errorf("%d bytes", len(r)))
		}
		v.state.Readers = append(v.state.Readers, [33]byte(r))
	}
	return v, nil
}

func eachState(rows pgx.Rows, each func(*row)) error {
	defer rows.Close()
	for rows.Next() {
		var s stateScan // not shared between rows: the values are kept
		if err := rows.Scan(s.targets()...); err != nil {
			return err
		}
		v, err := s.row()
		if err != nil {
			return err
		}
		v.selectors = v.state.Selectors()
		each(v)
	}
	return rows.Err()
}

// writePlan sends everything and the commit in one pipeline.
func (f *Feed) writePlan(ctx context.Context, conn *pgxpool.Conn, pl *plan) error {
	b := &pgx.Batch{}
	pl.post()
	pl.queueBlobs(b)
	pl.queueEnded(b, f.id)
	pl.queueMade(b, f.id)
	pl.queueGroups(b, f.id)
	pl.queueEvidence(b, f.id)
	pl.queueRuling(b, f.id)
	pl.queueAudiences(b, f.id)
	if pl.evaluated > 0 {
		b.Queue(clockWrite, f.id, int64(pl.evaluated))
	}
	if len(pl.groups) > 0 {
		sql, args := headWriting, []any{f.id, int64(pl.head), pl.tag[:], pl.live, pl.versions}
		if !f.hooks.mute {
			sql, args = sql+headTelling, append(args, pl.payload(f.id), f.store.node)
		}
		b.Queue(sql, args...)
	}
	committed := false
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		committed = tag.String() == "COMMIT"
		return nil
	})
	results := conn.SendBatch(ctx, b)
	failpoint.Hit(failpoint.CommitSent)
	if hook := f.hooks.sent; hook != nil {
		hook(conn.Conn().PgConn().PID())
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("write and commit: %w", err)
	}
	if !committed {
		return fmt.Errorf("%w: the transaction was rolled back at its commit", errPlan)
	}
	return nil
}

func (pl *plan) queueBlobs(b *pgx.Batch) {
	if len(pl.blobs) == 0 {
		return
	}
	shas := make([][]byte, 0, len(pl.blobs))
	bytes := make([][]byte, 0, len(pl.blobs))
	for sha, data := range pl.blobs {
		shas = append(shas, append([]byte(nil), sha[:]...))
		bytes = append(bytes, data)
	}
	b.Queue(blobPut, shas, bytes)
}

func (pl *plan) queueEnded(b *pgx.Batch, feed int32) {
	if len(pl.ended) == 0 {
		return
	}
	var vers, seqs []int64
	for _, v := range pl.ended {
		vers = append(vers, v.ver)
		seqs = append(seqs, int64(v.to))
	}
	b.Queue(versionEnd, feed, vers, seqs, len(vers))
	if len(pl.unposted) == 0 {
		return
	}
	seqs = nil
	var selectors, orders [][]byte
	for _, p := range pl.unposted {
		selectors, orders, seqs = append(selectors, p.selector[:]), append(orders, p.run.orderKey), append(seqs, int64(p.to))
	}
	b.Queue(postingEnd, feed, selectors, orders, seqs, len(seqs))
}

func (pl *plan) queueMade(b *pgx.Batch, feed int32) {
	var from, to, expires, vers []int64
	var outpoint, order, attributes, schema, context, evidence [][]byte
	var selectors []string
	var readers []*string
	var size []int32
	var hidden []bool
	for _, v := range pl.made {
		if v.from == v.to {
			continue
		}
		o := v.outpoint.Bytes()
		vers = append(vers, v.ver)
		outpoint = append(outpoint, o[:])
		order = append(order, v.orderKey)
		from = append(from, int64(v.from))
		to = append(to, int64(v.to))
		s := v.state
		expires = append(expires, int64(s.ExpiresAt))
		attributes = append(attributes, appendAttributes(nil, s.Attributes))
		selectors = append(selectors, byteaArray(len(v.selectors), func(i int) []byte { return v.selectors[i][:] }))
		if s.Context != nil {
			schema, context = append(schema, []byte(s.Context.Schema)), append(context, s.Context.Bytes)
		} else {
			schema, context = append(schema, nil), append(context, nil)
		}
		evidence = append(evidence, s.Evidence.SHA256[:])
		size = append(size, int32(s.Evidence.Size))
		if s.Readers != nil {
			readers = append(readers, new(byteaArray(len(s.Readers), func(i int) []byte { return s.Readers[i][:] })))
		} else {
			readers = append(readers, nil)
		}
		hidden = append(hidden, s.Hidden)
	}
	pl.versions += int64(len(outpoint))
	if len(outpoint) > 0 {
		b.Queue(versionPut, feed, outpoint, order, from, to, expires, attributes, selectors, schema, context, evidence, size, readers, hidden, vers)
	}
	if len(pl.posted) == 0 {
		return
	}
	from, to, vers, order = nil, nil, nil, nil
	var posted [][]byte
	for _, p := range pl.posted {
		posted, order = append(posted, p.selector[:]), append(order, p.run.orderKey)
		from, to, vers = append(from, int64(p.from)), append(to, int64(p.to)), append(vers, p.run.ver)
	}
	b.Queue(postingPut, feed, posted, order, from, to, vers)
}

func (pl *plan) queueGroups(b *pgx.Batch, feed int32) {
	if len(pl.groups) == 0 {
		return
	}
	var seqs, selectorSeqs, keySeqs []int64
	var tags, selectors, keys, bodies [][]byte
	for i := range pl.groups {
		g := &pl.groups[i]
		seqs = append(seqs, int64(g.Sequence))
		tags = append(tags, g.Tag[:])
		posted := groupSelectors(g.Changes)
		pl.records, pl.selectors = append(pl.records, appendRecord(nil, g.Changes)), append(pl.selectors, posted)
		for _, s := range posted {
			selectors = append(selectors, append([]byte(nil), s[:]...))
			selectorSeqs = append(selectorSeqs, int64(g.Sequence))
		}
	}
	for i := range pl.newKeys {
		k := &pl.newKeys[i]
		keys, bodies, keySeqs = append(keys, k.key[:]), append(bodies, k.body[:]), append(keySeqs, int64(k.seq))
	}
	b.Queue(groupPut, feed, int64(pl.now), seqs, tags, pl.records, selectors, selectorSeqs, keys, bodies, keySeqs)
}

// byteaArray writes the literal of an array of n byte strings.
func byteaArray(n int, at func(i int) []byte) string {
	var s strings.Builder
	s.WriteByte('{')
	for i := range n {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(`"\\x`)
		s.WriteString(hex.EncodeToString(at(i)))
		s.WriteByte('"')
	}
	s.WriteByte('}')
	return s.String()
}
