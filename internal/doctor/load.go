package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/config"
)

// nonce is a word that nobody else says.
func nonce() string { return strings.ToLower(rand.Text()) }

// transactions asks for what keeps dead rows, and write-ahead log, from being removed.
func (x *examination) transactions(ctx context.Context) (Finding, error) {
	var oldest float64
	var prepared, slots int
	// Only this database's transactions hold its rows back, and standbys that ask for it.
	if err := one(ctx, x.plain, `select
		coalesce((select max(extract(epoch from clock_timestamp() - xact_start)) from pg_stat_activity
			where pid <> pg_backend_pid() and (datname = current_database() and xact_start is not null or backend_type = 'walsender' and backend_xmin is not null)), 0)::float8,
		(select count(*) from pg_prepared_xacts where database = current_database()),
		(select count(*) from pg_replication_slots where not active)`, nil, &oldest, &prepared, &slots); err != nil {
		return Finding{}, err
	}
	age := time.Duration(oldest * float64(time.Second))
	what := fmt.Sprintf("the oldest transaction has been open for %s", rounded(age))
	const do = "end it (pg_stat_activity names it): while it is open nothing that was compacted gives its space back"
	switch {
	case age > x.limits.transactionFailure:
		return failure(what, do), nil
	case age > x.limits.transactionWarning:
		return warning(what, do), nil
	case prepared > 0:
		return warning(fmt.Sprintf("%d transactions are prepared and not ended: they hold rows back for as long", prepared), "commit or roll them back (pg_prepared_xacts)"), nil
	case slots > 0:
		return warning(fmt.Sprintf("%d replication slots are used by nobody: the server keeps write-ahead log for them without bound", slots), "drop them, or set max_slot_wal_keep_size"), nil
	}
	if oldest == 0 {
		return ok("no transaction is open"), nil
	}
	return ok("%s", what), nil
}

// vacuumed are the tables that compaction leaves holes in.
const vacuumed = `'row_version', 'posting', 'feed_group', 'group_selector', 'lookup_session', 'blob', 'group_evidence'`

func (x *examination) autovacuum(ctx context.Context) (Finding, error) {
	var on, counts string
	var off, foreign []string
	if err := one(ctx, x.plain, `select current_setting('autovacuum'), current_setting('track_counts'),
		coalesce(array_agg(c.relname order by c.relname) filter (where 'autovacuum_enabled=false' = any(c.reloptions) or 'autovacuum_enabled=off' = any(c.reloptions)), '{}')::text[],
		coalesce(array_agg(c.relname order by c.relname) filter (where not pg_has_role(c.relowner, 'usage')), '{}')::text[]
		from pg_class c where c.relkind = 'r' and c.relname in (`+vacuumed+`) and pg_table_is_visible(c.oid)`, nil, &on, &counts, &off, &foreign); err != nil {
		return Finding{}, err
	}
	const do = "turn autovacuum on"
	idle := on != "on" || counts != "on"
	switch {
	case idle && len(foreign) > 0:
		return failure("autovacuum is off, and overlayd's role may not vacuum: it does not own "+strings.Join(foreign, ", "), "turn autovacuum on, and let overlayd's role own its tables"), nil
	case idle:
		return warning("autovacuum is off: only overlayd's own vacuum gives space back, and statistics grow old", do), nil
	case len(foreign) > 0:
		return warning("overlayd's role does not own "+strings.Join(foreign, ", ")+": it cannot vacuum them after compaction", "migrate with the role of database.url, or let it own the tables"), nil
	case len(off) > 0:
		return warning("autovacuum is off for "+strings.Join(off, ", "), do+" for them"), nil
	}
	return ok("autovacuum is on, and overlayd may vacuum its own tables"), nil
}

// room is what a disk has, in bytes.
type room struct {
	path       string
	free, size uint64
}

func (x *examination) judge(r *room, whose string) Finding {
	l := x.limits
	what := fmt.Sprintf("%s are free of %s on the disk of %s", size(float64(r.free)), size(float64(r.size)), whose)
	const do = "make room, or lower sessionSeconds: what sessions pin is in docs/scaling.md"
	share := float64(r.free) / float64(max(r.size, 1))
	switch {
	case r.free < l.freeFailure || share < l.freeFailureShare:
		return failure(what, do)
	case r.free < l.freeWarning || share < l.freeWarningShare:
		return warning(what, do)
	}
	return ok("%s", what)
}

// disk asks for the room of the state file and, when that is on this machine, of the database.
func (x *examination) disk(ctx context.Context) (Finding, error) {
	f := Finding{}
	if path := x.Config.StateFile; path != "" {
		if r, err := roomAt(filepath.Dir(path)); err == nil {
			f = x.judge(r, "the state file")
		}
	}
	if x.plain == nil {
		if f.Verdict == "" {
			return f, errNothing
		}
		return f, nil
	}
	var stored int64
	var folder *string
	if err := one(ctx, x.plain, `select pg_database_size(current_database()), (select setting from pg_settings where name = 'data_directory')`, nil, &stored, &folder); err != nil {
		return Finding{}, err
	}
	if host, _, err := net.SplitHostPort(x.plain.PgConn().Conn().RemoteAddr().String()); folder != nil && (err != nil || loopback(host)) {
		x.room, _ = roomAt(*folder)
	}
	of := ok("the database holds %s; the room on its disk is not known here", size(float64(stored)))
	if x.room != nil {
		of = x.judge(x.room, fmt.Sprintf("the database, which holds %s", size(float64(stored))))
	}
	if f.Verdict == "" {
		return of, nil
	}
	return worstOf(of, f), nil
}

// load is what a feed has to carry.
type load struct {
	feed                string
	rows                int64
	edits               float64 // a second
	evidence            float64 // bytes a row
	selectors           float64 // a row
	page                time.Duration
	network, genesis    string
	head, versions, age int64
}

// sampleGroups is over how many groups the rate of edits is measured, pageRows and pages what is read to time a scan.
const (
	sampleGroups = 10000
	pageRows     = 256
	pages        = 5
)

// measure reads a feed's rate from its log and times a few pages of its rows. A feed that is not there has no load.
func measure(ctx context.Context, conn *pgx.Conn, name string) (*load, error) {
	l := &load{feed: name}
	err := read(ctx, conn, func(tx pgx.Tx) error {
		var id int32
		var now int64
		if err := tx.QueryRow(ctx, `select f.id, f.network, encode(f.genesis, 'hex'), h.head, h.live, h.versions,
				floor(extract(epoch from clock_timestamp()))::bigint, floor(extract(epoch from clock_timestamp() - f.created_at))::bigint
			from feed f join feed_head h on h.feed_id = f.id where f.name = $1`, name).
			Scan(&id, &l.network, &l.genesis, &l.head, &l.rows, &l.versions, &now, &l.age); err != nil {
			return err
		}
		groups, over := float64(l.head), l.age
		var first, committed int64
		err := tx.QueryRow(ctx, `select seq, committed_at from feed_group where feed_id = $1 and seq > $2 order by seq limit 1`,
			id, max(l.head-sampleGroups, 0)).Scan(&first, &committed)
		switch {
		case err == nil:
			groups, over = float64(l.head-first+1), now-committed
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		if l.head > 0 {
			l.edits = groups / float64(max(over, 1)) * max(float64(l.versions)/float64(l.head), 1)
		}
		return l.scan(ctx, tx, id)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return l, nil
	}
	return l, err
}

// scan reads pages as snapshots are read, whole.
func (l *load) scan(ctx context.Context, tx pgx.Tx, id int32) error {
	var took []time.Duration
	rows, bytes, selectors, after := int64(0), int64(0), int64(0), []byte{}
	for range pages {
		start := time.Now()
		var n, b, s int64
		var last []byte
		if err := tx.QueryRow(ctx, `select count(md5(b.bytes)), coalesce(sum(octet_length(b.bytes)), 0),
				coalesce(sum(cardinality(v.selectors)), 0), (array_agg(v.order_key order by v.order_key desc))[1] from (
				select evidence, selectors, order_key from row_version
				where feed_id = $1 and order_key > $2 and valid_from <= $3 and valid_to > $3 order by order_key limit $4) v
			cross join lateral (select bytes from blob where sha = v.evidence offset 0) b`, id, after, l.head, pageRows).Scan(&n, &b, &s, &last); err != nil {
			return err
		}
		if n > 0 {
			took = append(took, time.Since(start))
		}
		rows, bytes, selectors, after = rows+n, bytes+b, selectors+s, last
		if n < pageRows {
			break
		}
	}
	if rows > 0 {
		l.page, l.evidence, l.selectors = median(took), float64(bytes)/float64(rows), float64(selectors)/float64(rows)
	}
	return nil
}

// takes is how long a slow client needs to read the whole feed: the pages of the database, and its own network. On the wire evidence
// is base64.
func (l *load) takes(rate float64) time.Duration {
	return time.Duration(float64(l.page)*float64(l.rows)/pageRows + float64(l.rows)*(l.evidence*4/3+300)/rate*float64(time.Second))
}

// sessions compares what services promise with what their feeds have to carry.
func (x *examination) sessions(ctx context.Context) (Finding, error) {
	measured := map[string]*load{}
	for _, name := range x.feeds {
		l, err := measure(ctx, x.own, name)
		if err != nil {
			return Finding{}, err
		}
		measured[name] = l
	}
	f := Finding{Verdict: OK}
	var said []string
	longest := map[string]float64{} // seconds a feed is pinned, by its longest service
	for _, s := range x.Config.Services {
		longest[s.Feed] = max(longest[s.Feed], float64(s.SessionSeconds+s.ReplaySeconds))
		l := measured[s.Feed]
		if l == nil {
			continue // it lives elsewhere
		}
		if l.network != "" && (l.network != x.Config.Chain.Network || l.genesis != x.Config.Chain.GenesisHash) {
			f = worstOf(f, failure(fmt.Sprintf("feed %s holds outputs of chain %s, not of %s", s.Feed, l.network, x.Config.Chain.Network), "use another feed, or the feed's own chain"))
		}
		f = worstOf(f, x.fits(&s, l))
	}
	total := 0.0
	for _, name := range x.feeds {
		l := measured[name]
		pinned := l.edits * longest[name] * (x.limits.editBytes + x.limits.selectorBytes*l.selectors + l.evidence)
		total += pinned
		said = append(said, fmt.Sprintf("%s has %d rows and %s edits a second, a scan takes about %s, and its longest session pins up to %s",
			name, l.rows, strconv.FormatFloat(l.edits, 'g', 3, 64), rounded(l.takes(x.limits.clientRate)), size(pinned)))
	}
	if x.room != nil {
		what := fmt.Sprintf("what sessions pin may grow to %s and %s are free: %s", size(total), size(float64(x.room.free)), strings.Join(said, "; "))
		const do = "lower sessionSeconds or replaySeconds, or give the database a larger disk"
		switch share := total / float64(max(x.room.free, 1)); {
		case share > 1:
			f = worstOf(f, failure(what, do))
		case share > x.limits.pinnedWarning:
			f = worstOf(f, warning(what, do))
		}
	}
	if f.Verdict == OK {
		f = ok("%s", strings.Join(said, "; "))
	}
	return f, nil
}

// fits asks whether a scan of the feed fits into a session.
func (x *examination) fits(s *config.Service, l *load) Finding {
	scan := l.takes(x.limits.clientRate)
	life := time.Duration(s.SessionSeconds) * time.Second
	what := fmt.Sprintf("sessions of %s last %s, and a scan of feed %s takes a client with %s a second about %s",
		s.Name, life, s.Feed, size(x.limits.clientRate), rounded(scan))
	const do = "raise sessionSeconds: a client whose session ends before its scan begins anew, for ever"
	switch {
	case scan > life:
		return failure(what, do)
	case float64(scan)*x.limits.scanTimes > float64(life):
		return warning(what, do)
	}
	return ok("%s", what)
}

// quotas asks whether what clients may take is there to be taken.
func (x *examination) quotas(context.Context) (Finding, error) {
	q, l := x.Config.Quotas, x.limits
	pool := uint64(x.Config.Database.MaxConnections)
	requests := uint64(q.Requests)
	if requests == 0 {
		requests = 4 * pool
	}
	f := ok("%d requests at once for %d connections, and %d waiting polls, are what this machine can carry", requests, pool, q.Waiters)
	switch {
	case requests > l.requestsPerConnection*pool:
		f = worstOf(f, warning(fmt.Sprintf("quotas.requests lets %d answers be built at once on %d connections: they wait for those instead of for their turn", requests, pool),
			"set it to 0, which is four for each of database.maxConnections"))
	case requests < pool:
		f = worstOf(f, warning(fmt.Sprintf("quotas.requests lets %d answers be built at once and database.maxConnections is %d: the rest is never used", requests, pool),
			"set quotas.requests to 0, or lower database.maxConnections"))
	}
	largest := uint64(0)
	for _, s := range x.Config.Services {
		largest = max(largest, uint64(s.MaxResponseBytes))
	}
	if memory, known := memory(); known {
		need := float64(requests * largest * l.answerCopies)
		what := fmt.Sprintf("%d answers of %s at once may take %s of the %s of memory", requests, size(float64(largest)), size(need), size(float64(memory)))
		const do = "lower quotas.requests or maxResponseBytes"
		switch share := need / float64(memory); {
		case share > l.memoryFailure:
			f = worstOf(f, failure(what, do))
		case share > l.memoryWarning:
			f = worstOf(f, warning(what, do))
		}
	}
	if open, known := files(); known && uint64(q.Waiters)+requests+pool > open {
		f = worstOf(f, warning(fmt.Sprintf("quotas.waiters lets %d polls wait, and a process started like this one may have %d files open", q.Waiters, open),
			"raise the limit (ulimit -n, LimitNOFILE=), or lower quotas.waiters"))
	}
	if kept := float64(q.RetainedBytes) * float64(len(x.Config.Services)); x.room != nil && kept > float64(x.room.free) {
		f = worstOf(f, warning(fmt.Sprintf("quotas.retainedBytes lets %d services keep %s, and %s are free on the database's disk", len(x.Config.Services), size(kept), size(float64(x.room.free))),
			"lower it: what it refuses is told, a full disk is not"))
	}
	return f, nil
}

// memory is what this process may use: of its control group, else of the machine.
func memory() (uint64, bool) {
	if data, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64); err == nil {
			return n, true
		}
	}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, "MemTotal:"); found {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// size is a number of bytes as people read it.
func size(bytes float64) string {
	for _, u := range []struct {
		name string
		of   float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if bytes >= u.of {
			return strconv.FormatFloat(bytes/u.of, 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(bytes, 'f', 0, 64) + " bytes"
}
