package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/livefeed"
)

// beside is how many connections a process has beside its pools: one that listens, and one each for the locks of timers,
// of retention and of a vacuum.
const beside = 4

// dial opens a connection to the database: with overlayd's own settings, or those of the URL alone. Statements are sent whole,
// which every pooler passes.
func (x *examination) dial(ctx context.Context, own bool) (*pgx.Conn, error) {
	c, err := pgxpool.ParseConfig(x.url)
	if err != nil {
		return nil, fmt.Errorf("database.url is not usable: %w; write a Postgres URL", err)
	}
	if own {
		livefeed.Configure(c)
	}
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, c.ConnConfig)
	if err != nil && x.Unreachable != nil {
		return nil, x.Unreachable(x.url, err)
	} else if err != nil {
		return nil, fmt.Errorf("the database %s cannot be reached", config.Redacted(x.url))
	}
	return conn, nil
}

// read runs ask in a read-only transaction (D1). It is not the session that is made so: behind a pooler it is somebody else's
// next.
func read(ctx context.Context, conn *pgx.Conn, ask func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, ask)
}

// one reads the one row of a statement.
func one(ctx context.Context, conn *pgx.Conn, sql string, args []any, into ...any) error {
	return read(ctx, conn, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sql, args...).Scan(into...) })
}

func (x *examination) connection(ctx context.Context) (Finding, error) {
	if x.url == "" {
		return failure("database.url is not set", "set it in the file of --config, as OVERLAYD_DATABASE_URL or with --database-url"), nil
	}
	conn, err := x.dial(ctx, false)
	if err != nil {
		return failure(err.Error(), "check database.url, that the server runs, and that its pg_hba.conf lets this machine in"), nil
	}
	var took []time.Duration
	for range 7 {
		start := time.Now()
		if err := conn.Ping(ctx); err != nil {
			_ = conn.Close(context.WithoutCancel(ctx)) // and nobody waits for it again
			return failure(fmt.Sprintf("the database took the connection and then did not answer: %v", err), "see what the database is busy with"), nil
		}
		took = append(took, time.Since(start))
	}
	roundTrip := median(took)
	x.plain = conn
	if roundTrip > x.limits.roundTrip {
		return warning(fmt.Sprintf("a round trip to the database takes %s, and every answer makes at least three", rounded(roundTrip)),
			"run overlayd near its database"), nil
	}
	return ok("the database answers, in %s a round trip", rounded(roundTrip)), nil
}

func (x *examination) version(ctx context.Context) (Finding, error) {
	var number int
	var text string
	if err := one(ctx, x.plain, `select current_setting('server_version_num')::int, current_setting('server_version')`, nil, &number, &text); err != nil {
		return Finding{}, err
	}
	switch {
	case number < x.limits.oldest:
		return failure(fmt.Sprintf("the server is Postgres %s, which lacks what is needed", text), fmt.Sprintf("use Postgres %d or newer", x.limits.tested/10000)), nil
	case number < x.limits.tested:
		return warning(fmt.Sprintf("the server is Postgres %s, older than what overlayd is tested on", text), fmt.Sprintf("use Postgres %d or newer", x.limits.tested/10000)), nil
	}
	return ok("the server is Postgres %s", text), nil
}

// role asks whether this is the database that is written, and whether a failover could lose what was acknowledged.
func (x *examination) role(ctx context.Context) (Finding, error) {
	var standby bool
	var readOnly, synchronous string
	var standbys int
	// The default of the session, not of the transaction that asks.
	if err := one(ctx, x.plain, `select pg_is_in_recovery(), current_setting('default_transaction_read_only'), current_setting('synchronous_standby_names'),
		(select count(*) from pg_stat_replication)`, nil, &standby, &readOnly, &synchronous, &standbys); err != nil {
		return Finding{}, err
	}
	switch {
	case standby:
		return failure("the server is a standby: nothing can be appended or opened there, and its answers may be old",
			"name the primary, or several hosts and target_session_attrs=read-write, in database.url"), nil
	case readOnly == "on":
		return failure("transactions are read-only by default for this role or database", "set default_transaction_read_only to off for overlayd's role"), nil
	case standbys > 0 && synchronous == "":
		return warning(fmt.Sprintf("the server is the primary of %d standbys and none is synchronous: a failover can lose groups that were acknowledged, which breaks epochs", standbys),
			"set synchronous_standby_names if a failover must lose nothing"), nil
	}
	return ok("the server is a primary, with %d standbys", standbys), nil
}

func (x *examination) durability(ctx context.Context) (Finding, error) {
	var fsync, pages, commit string
	if err := one(ctx, x.plain, `select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')`, nil, &fsync, &pages, &commit); err != nil {
		return Finding{}, err
	}
	for _, s := range []struct{ name, value string }{{"fsync", fsync}, {"full_page_writes", pages}} {
		if s.value == "off" {
			return failure(s.name+" is off: a crash of the machine can lose or damage what was acknowledged", "set "+s.name+" = on in the server's configuration"), nil
		}
	}
	if commit == "off" || commit == "local" {
		return warning(fmt.Sprintf("synchronous_commit is %s by default; overlayd turns it on for its own connections, others stay exposed", commit), "set it to on"), nil
	}
	return ok("fsync and full_page_writes are on, synchronous_commit is %s", commit), nil
}

func (x *examination) checksums(ctx context.Context) (Finding, error) {
	var on string
	if err := one(ctx, x.plain, `select current_setting('data_checksums')`, nil, &on); err != nil {
		return Finding{}, err
	}
	if on != "on" {
		return warning("the server keeps no checksums of its pages: damage by a disk is noticed late or never", "stop the server and run pg_checksums --enable"), nil
	}
	return ok("the server keeps checksums of its pages"), nil
}

// connections asks whether the pools of all nodes fit into what the server has.
func (x *examination) connections(ctx context.Context) (Finding, error) {
	var server, role, database, others int
	if err := one(ctx, x.plain, `select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true), '0')::int,
		(select rolconnlimit from pg_roles where rolname = current_user),
		(select datconnlimit from pg_database where datname = current_database()),
		(select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()
			and application_name not in ('overlayd', 'overlayd writer'))`, nil, &server, &role, &database, &others); err != nil {
		return Finding{}, err
	}
	c := x.Config.Database
	node := int(c.MaxConnections) + int(c.WriterConnections) + beside
	need, room, whose := node*x.Nodes, server, "max_connections of the server leaves"
	if role >= 0 && role < room {
		room, whose = role, "the limit of the role is"
	}
	if database >= 0 && database < room {
		room, whose = database, "the limit of the database is"
	}
	what := fmt.Sprintf("%d processes take up to %d connections (%d each), and %s %d", x.Nodes, need, node, whose, room)
	const do = "lower database.maxConnections or raise the limit; more than some ten connections for each core of the database make nothing faster"
	switch {
	case need > room:
		return failure(what, do), nil
	case need+node > room:
		return warning(what+": one more, as in a rolling restart, does not fit", do), nil
	case need+others > room:
		return warning(fmt.Sprintf("%s, of which other programs hold %d now", what, others), do), nil
	}
	return ok("%s", what), nil
}

// pooler asks whether a session is one: what LISTEN, advisory locks and settings need.
func (x *examination) pooler(ctx context.Context) (Finding, error) {
	const do = "connect to Postgres itself, or to a pool in session mode: LISTEN, the locks of timers and retention and overlayd's settings live in a session"
	const looks = 4 // a pool that takes turns shows it by itself, one that takes the last one only while that is busy
	seen := map[uint32]bool{}
	look := func(ctx context.Context) error {
		for range looks {
			var pid uint32
			if err := x.plain.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
				return err
			}
			seen[pid] = true
		}
		return nil
	}
	if err := look(ctx); err != nil {
		return Finding{}, err
	}
	// Somebody else's transaction takes the server's connection that is free: ours, unless it is really ours.
	other, err := x.dial(ctx, false)
	if err != nil {
		return Finding{}, err
	}
	defer other.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is thrown away
	err = read(ctx, other, func(tx pgx.Tx) error {
		var pid uint32
		if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		x.pooled = seen[pid]
		// A pool of one connection lets nobody else in meanwhile.
		short, cancel := context.WithTimeout(ctx, x.Timeout/2)
		defer cancel()
		return look(short)
	})
	switch {
	case err != nil && x.plain.IsClosed():
		x.pooled, x.plain = true, nil
		return failure("while another transaction was open this session got no answer: a pooler shares connections between transactions", do), nil
	case err != nil:
		return Finding{}, err
	case x.pooled || len(seen) > 1:
		x.pooled = true
		return failure("a session is moved from one connection of the server to another: a pooler shares them between transactions", do), nil
	case !seen[x.plain.PgConn().PID()]:
		return warning("a pooler stands between, in session mode", "see that it gives each of overlayd's connections one of the server's for as long as it lives, and has as many"), nil
	}
	return ok("sessions are the server's own"), nil
}

// settings asks whether what overlayd sets on its connections arrives.
func (x *examination) settings(ctx context.Context) (Finding, error) {
	const do = "connect to Postgres itself: without these settings pages and reads are planned badly, and commits may be lost"
	conn, err := x.dial(ctx, true)
	if err != nil {
		return failure("a connection with overlayd's settings is refused: "+err.Error(), do), nil
	}
	x.own = conn
	c := &pgxpool.Config{ConnConfig: &pgx.ConnConfig{}}
	livefeed.Configure(c)
	var wrong []string
	err = read(ctx, conn, func(tx pgx.Tx) error {
		for name, want := range c.ConnConfig.RuntimeParams {
			switch name {
			case "application_name", "random_page_cost", "idle_in_transaction_session_timeout":
				continue // only tune, and may be chosen otherwise
			}
			var got string
			if err := tx.QueryRow(ctx, `select current_setting($1)`, name).Scan(&got); err != nil {
				return err
			}
			if got != want && !(name == "synchronous_commit" && strings.HasPrefix(got, "remote_")) {
				wrong = append(wrong, name+" is "+got)
			}
		}
		return nil
	})
	if err != nil {
		return Finding{}, err
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return failure("overlayd's settings do not reach the server: "+strings.Join(wrong, ", "), do), nil
	}
	return ok("overlayd's settings reach the server"), nil
}

// timeouts asks for those that cut overlayd off; of role, database and URL, which its own settings leave alone.
func (x *examination) timeouts(ctx context.Context) (Finding, error) {
	found := map[string]time.Duration{}
	err := read(ctx, x.own, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `select name, setting::bigint from pg_settings
			where name in ('statement_timeout', 'lock_timeout', 'idle_session_timeout', 'transaction_timeout') and unit = 'ms' and setting::bigint > 0`)
		if err != nil {
			return err
		}
		var name string
		var ms int64
		_, err = pgx.ForEachRow(rows, []any{&name, &ms}, func() error {
			found[name] = time.Duration(ms) * time.Millisecond
			return nil
		})
		return err
	})
	if err != nil {
		return Finding{}, err
	}
	const unset = "set it to 0 for overlayd's role (alter role ... set ... = 0): it bounds its own work"
	f := ok("no timeout of the server cuts overlayd off")
	if d, set := found["idle_session_timeout"]; set {
		what := fmt.Sprintf("idle_session_timeout is %s", d)
		if x.Config.Database.Notifications && d <= x.limits.idle {
			f = worstOf(f, failure(what+": the connection that listens is ended again and again", unset))
		}
		f = worstOf(f, warning(what+": idle connections of the pools are ended and made anew", unset))
	}
	for _, name := range []string{"statement_timeout", "transaction_timeout"} {
		if d, set := found[name]; set {
			what := fmt.Sprintf("%s is %s", name, d)
			if d < x.limits.statement {
				f = worstOf(f, failure(what+": batches of commits, compaction and vacuum are cut off", unset))
			}
			f = worstOf(f, warning(what+": a vacuum of what was compacted may be cut off", unset))
		}
	}
	if d, set := found["lock_timeout"]; set {
		f = worstOf(f, warning(fmt.Sprintf("lock_timeout is %s: a commit that waits for another node's may be refused", d), unset))
	}
	return f, nil
}

// migrations asks whether the schema is this program's.
func (x *examination) migrations(ctx context.Context) (Finding, error) {
	current, target, pending, err := schema.Status(ctx, x.plain)
	if err != nil {
		return Finding{}, err
	}
	x.migrated = current == target
	switch {
	case current > target:
		return failure((&schema.NewerError{Current: current, Target: target}).Error(), "upgrade overlayd to the release that migrated the database"), nil
	case len(pending) > 0:
		var names []string
		for _, m := range pending {
			names = append(names, m.Name)
		}
		return failure(fmt.Sprintf("the schema is at version %d of %d and lacks %s", current, target, strings.Join(names, ", ")), "stop every node, run `overlayd migrate`, then start again"), nil
	}
	return ok("the schema is up to date, at version %d", current), nil
}

// clock compares this machine's clock with the database's, which is the one that counts.
func (x *examination) clock(ctx context.Context) (Finding, error) {
	best, off := time.Duration(-1), time.Duration(0)
	for range 5 {
		start, began := x.Now(), time.Now()
		var there float64
		if err := x.plain.QueryRow(ctx, `select extract(epoch from clock_timestamp())::float8`).Scan(&there); err != nil {
			return Finding{}, err
		}
		took := time.Since(began)
		if best < 0 || took < best { // the shortest exchange says it most exactly
			best, off = took, start.Add(took/2).Sub(time.UnixMicro(int64(there*1e6)))
		}
	}
	what := fmt.Sprintf("this machine's clock is %s ahead of the database's", rounded(off))
	if off < 0 {
		what = fmt.Sprintf("this machine's clock is %s behind the database's", rounded(-off))
	}
	what += fmt.Sprintf(" (to %s)", rounded(best/2))
	switch size := max(off, -off); {
	case size > x.limits.clockFailure:
		return failure(what+"; clients refuse a manifest of a clock that is that far ahead", "set both by NTP: deadlines and manifests follow the database's clock, certificates and logs this one"), nil
	case size > x.limits.clockWarning:
		return warning(what+"; times in the log and times in answers do not go together", "set both by NTP"), nil
	}
	return ok("%s; tolerated are %s", what, x.limits.clockWarning), nil
}

// listener sends itself notifications and measures how long they take.
func (x *examination) listener(ctx context.Context) (Finding, error) {
	c := x.Config.Database
	if !c.Notifications {
		return ok("notifications are off: commits of other processes are seen within database.pollMs, %d ms", c.PollMs), nil
	}
	const do = "connect to Postgres itself, or set database.notifications: false and live with database.pollMs"
	if x.pooled || x.plain == nil {
		return failure("what is listened for would arrive at somebody else: a pooler shares connections between transactions", do), nil
	}
	channel := "overlayd_doctor_" + nonce()
	if _, err := x.own.Exec(ctx, "listen "+channel); err != nil {
		return failure(fmt.Sprintf("LISTEN is refused: %v", err), do), nil
	}
	var took []time.Duration
	for range 5 {
		payload, start := nonce(), time.Now()
		if err := read(ctx, x.plain, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select pg_notify($1, $2)`, channel, payload)
			return err
		}); err != nil {
			return failure(fmt.Sprintf("NOTIFY is refused: %v", err), do), nil
		}
		short, cancel := context.WithTimeout(ctx, x.Timeout/4)
		n, err := x.own.WaitForNotification(short)
		cancel()
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.New("it did not arrive")
			}
			return failure(fmt.Sprintf("a notification was sent and not heard: %v", err), do), nil
		}
		if n.Channel == channel && n.Payload == payload {
			took = append(took, time.Since(start))
		}
	}
	if len(took) == 0 {
		return failure("notifications arrive changed", do), nil
	}
	m := median(took)
	if m > x.limits.wake {
		return warning(fmt.Sprintf("a notification takes %s to arrive: polls on other nodes wake that late", rounded(m)), "see what the database is busy with"), nil
	}
	return ok("a notification arrives within %s", rounded(m)), nil
}

func median[T cmp.Ordered](list []T) T {
	slices.Sort(list)
	return list[len(list)/2]
}

// rounded keeps three digits or so.
func rounded(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= 10*unit {
			return d.Round(unit / 10)
		}
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}
