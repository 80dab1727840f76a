package doctor

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/pgtest"
)

func TestD4_ADatabaseThatIsAwayIsOneFailure(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"postgres://u:hush-hush@127.0.0.1:1/x", "", "postgres://u:hush-hush@127.0.0.1:port/x", "host=127.0.0.1 port=1 password=hush-hush"} {
		c := settingsOf(t, "postgres://x/y")
		c.Database.URL, c.Quotas.Waiters = to, 100
		found := examined(t, c)
		says(t, found, "database.connection", Failure, "checks that need it were not made")
		for _, check := range []string{"database.version", "database.pooler", "migrations", "sessions"} {
			if f, made := found[check]; made {
				t.Errorf("%s was made: %+v", check, f)
			}
		}
		says(t, found, "quotas", OK)
	}
}

func TestD4_AHangingDatabaseIsLeftInTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	slow := &pooler{delay: 40 * time.Millisecond}
	found := examined(t, settingsOf(t, slow.between(t, db.URL)), func(o *Options) { o.Timeout = 20 * time.Millisecond })
	says(t, found, "database.connection", Failure)
	if findings := Examine(ended(t), Options{Config: settingsOf(t, db.URL)}); Worst(findings) != Failure {
		t.Errorf("an examination that was ended: %+v", findings)
	}
}

func TestConnectionVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.roundTrip = time.Minute }), "database.connection", OK, "a round trip")
	far := &pooler{delay: 6 * time.Millisecond}
	says(t, examined(t, settingsOf(t, far.between(t, db.URL))), "database.connection", Warning, "near its database")
}

func TestVersionVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.tested = 90000 }), "database.version", OK, "Postgres ")
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.tested = 990000 }), "database.version", Warning, "Postgres 99")
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.oldest, o.limits.tested = 980000, 990000 }), "database.version", Failure, "Postgres 99")
}

func TestPoolerVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		pooler   *pooler
		verdict  Verdict
		settings Verdict
		listener Verdict
	}{
		"none":                 {&pooler{}, OK, OK, OK},
		"session mode":         {&pooler{renumber: true}, Warning, OK, OK},
		"transaction mode":     {&pooler{transactions: 3}, Failure, Failure, Failure},
		"one for all":          {&pooler{transactions: 1}, Failure, "", ""},
		"settings are ignored": {&pooler{renumber: true, strip: true}, Warning, Failure, OK},
		"settings are refused": {&pooler{renumber: true, refuse: true}, Warning, Failure, ""},
		"shared and refused":   {&pooler{transactions: 2, refuse: true}, Failure, Failure, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := examined(t, settingsOf(t, c.pooler.between(t, db.URL)), func(o *Options) {
				o.limits.wake = time.Minute
				if c.pooler.transactions == 1 {
					o.Timeout = 2 * time.Second
				}
			})
			says(t, found, "database.pooler", c.verdict)
			for check, want := range map[string]Verdict{"database.settings": c.settings, "database.listener": c.listener} {
				if want != "" {
					says(t, found, check, want)
				} else if f, made := found[check]; made && f.Verdict == OK {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

func TestTimeoutVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	says(t, examined(t, settingsOf(t, db.URL)), "database.timeouts", OK)
	for _, c := range []struct {
		name, value string
		verdict     Verdict
	}{
		{"statement_timeout", "5s", Failure},
		{"statement_timeout", "5min", Warning},
		{"lock_timeout", "1s", Warning},
		{"idle_session_timeout", "10s", Failure},
		{"idle_session_timeout", "10min", Warning},
	} {
		says(t, examined(t, settingsOf(t, with(t, db.URL, c.name, c.value))), "database.timeouts", c.verdict, c.name)
	}
	c := settingsOf(t, with(t, db.URL, "idle_session_timeout", "10s"))
	c.Database.Notifications = false
	says(t, examined(t, c), "database.timeouts", Warning, "idle_session_timeout")
}

func TestListenerVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := settingsOf(t, db.URL)
	says(t, examined(t, c, func(o *Options) { o.limits.wake = time.Minute }), "database.listener", OK, "arrives within")
	says(t, examined(t, c, func(o *Options) { o.limits.wake = 1 }), "database.listener", Warning, "wake that late")
	c.Database.Notifications = false
	says(t, examined(t, c), "database.listener", OK, "250 ms")
}

func TestClockVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for off, want := range map[time.Duration]Verdict{0: OK, 10 * time.Second: Warning, -10 * time.Second: Warning, time.Hour: Failure, -time.Hour: Failure} {
		found := examined(t, settingsOf(t, db.URL), func(o *Options) { o.Now = func() time.Time { return time.Now().Add(off) } })
		word := "the database's"
		if off > time.Second {
			word = "ahead of the database's"
		} else if off < -time.Second {
			word = "behind the database's"
		}
		says(t, found, "clock", want, word)
	}
}

func TestMigrationVerdicts(t *testing.T) {
	t.Parallel()
	found := examined(t, settingsOf(t, pgtest.NewEmpty(t).URL))
	says(t, found, "migrations", Failure, "001_livefeed.sql", "overlayd migrate", "checks that need it were not made")
	if f, made := found["sessions"]; made {
		t.Errorf("%+v", f)
	}
	db := pgtest.New(t)
	says(t, examined(t, settingsOf(t, db.URL)), "migrations", OK, "up to date")
	if _, err := db.Pool.Exec(t.Context(), "update overlayd_schema_version set version = version - 1"); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, settingsOf(t, db.URL)), "migrations", Failure, "lacks 0", "overlayd migrate")
	if _, err := db.Pool.Exec(t.Context(), "update overlayd_schema_version set version = version + 2"); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, settingsOf(t, db.URL)), "migrations", Failure, "upgrade overlayd")
}

func TestConnectionsVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := settingsOf(t, db.URL)
	says(t, examined(t, c), "database.connections", OK, "1 processes take up to 30 connections")
	// A node is 30 connections; the shared server has 300, of which some are the superuser's.
	says(t, examined(t, c, func(o *Options) { o.Nodes = 9 }), "database.connections", Warning, "rolling restart")
	says(t, examined(t, c, func(o *Options) { o.Nodes = 10 }), "database.connections", Failure)
	c.Database.MaxConnections = 1000
	says(t, examined(t, c), "database.connections", Failure, "max_connections")
	c.Database.MaxConnections = 20
	name := pgx.Identifier{db.Pool.Config().ConnConfig.Database}.Sanitize()
	for limit, want := range map[int]Verdict{29: Failure, 40: Warning} {
		if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("alter database %s connection limit %d", name, limit)); err != nil {
			t.Fatal(err)
		}
		says(t, examined(t, c), "database.connections", want, "limit of the database")
	}
}

func TestTransactionsVerdicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// Autovacuum may be at work in this database too; nothing else is.
	says(t, examined(t, settingsOf(t, db.URL)), "database.transactions", OK)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it only has to end
	if _, err := tx.Exec(t.Context(), "select 1 from feed"); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, settingsOf(t, db.URL)), "database.transactions", OK, "the oldest transaction")
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.transactionWarning = 1 }), "database.transactions", Warning, "end it")
	says(t, examined(t, settingsOf(t, db.URL), func(o *Options) { o.limits.transactionFailure = 1 }), "database.transactions", Failure, "end it")
}

func TestAutovacuumVerdicts_Ownership(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	says(t, examined(t, settingsOf(t, db.URL)), "database.autovacuum", OK)
	if _, err := db.Pool.Exec(t.Context(), "alter table posting set (autovacuum_enabled = off)"); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, settingsOf(t, db.URL)), "database.autovacuum", Warning, "off for posting")
	guest := role(t, db)
	says(t, examined(t, settingsOf(t, guest)), "database.autovacuum", Warning, "does not own", "row_version")
}

// role is the database's URL as a user who may read everything and owns nothing.
func role(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	name := db.Pool.Config().ConnConfig.Database + "_guest"
	for _, sql := range []string{
		"create role " + name + " login password 'hush-hush'", "grant pg_read_all_data to " + name,
	} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Conn(t, &pgtest.DB{URL: pgtest.URL(t)})
	t.Cleanup(func() { // after the database is gone: nothing there names it then
		if _, err := server.Exec(contextOf(t), "drop role if exists "+name); err != nil {
			t.Logf("a role is left behind: %v", err)
		}
	})
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "hush-hush")
	return u.String()
}

func TestD1_NothingIsChanged(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fill(t, db, 50)
	guard := `create function refuse() returns event_trigger language plpgsql as $$ begin raise 'a change'; end $$;
		create event trigger refuse on ddl_command_start execute function refuse()`
	if _, err := db.Pool.Exec(t.Context(), guard); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		var text string
		// Every row of every table, and what each transaction that wrote would have counted.
		if err := db.Pool.QueryRow(t.Context(), `select string_agg(c.relname || ' ' || (xpath('/row/h/text()', query_to_xml(
				format('select md5(coalesce(string_agg(t::text, '''' order by t::text), '''')) h from %I t', c.relname), false, true, '')))[1]::text, ' ' order by c.relname)
			from pg_class c where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := state()
	c := settingsOf(t, db.URL)
	c.StateFile = t.TempDir() + "/none.state"
	c.Services[0].SessionSeconds, c.Services[0].ReplaySeconds = 600, 60 // so that the disk is large enough on any machine
	found := examined(t, c)
	says(t, found, "stateFile", Warning, "not there yet")
	says(t, found, "sessions", OK, "50 rows")
	if after := state(); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
	// A statement that would write is refused by the server, not by good will.
	conn := pgtest.Conn(t, db)
	err := read(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "delete from row_version")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a delete within a check: %v", err)
	}
}

func TestFeedsWithADatabaseOfTheirOwn(t *testing.T) {
	t.Parallel()
	here, there := pgtest.New(t), pgtest.New(t)
	fill(t, there, 10) // named catalogue too: only where the configuration has it is it looked at
	c := settingsOf(t, here.URL)
	c.Services = append(c.Services, c.Services[0])
	c.Services[1].Name, c.Services[1].Feed = "ls_other", "other"
	c.Feeds = []config.Feed{{Name: "other", Database: config.FeedDatabase{URL: there.URL}}, {Name: "away", Database: config.FeedDatabase{URL: "postgres://u:hush-hush@127.0.0.1:1/x"}}}
	if _, err := there.Pool.Exec(t.Context(), "update feed set name = 'other'"); err != nil {
		t.Fatal(err)
	}
	found := examined(t, c)
	says(t, found, "sessions", OK, "catalogue has 0 rows")
	says(t, found, "sessions@other", OK, "other has 10 rows")
	says(t, found, "database.pooler@other", OK)
	says(t, found, "database.connection@away", Failure, "127.0.0.1:1")
	if strings.Contains(found["sessions"].Found, "other") || strings.Contains(found["sessions@other"].Found, "catalogue") {
		t.Errorf("%+v %+v", found["sessions"], found["sessions@other"])
	}
}

func TestFindingsAreJSON(t *testing.T) {
	t.Parallel()
	findings := Examine(t.Context(), Options{Config: &config.Config{}, Offline: true})
	text, err := json.Marshal(findings[0])
	if err != nil || !strings.HasPrefix(string(text), `{"check":"configuration","verdict":"failure","found":"serve would refuse it: baseURL is missing`) || !strings.Contains(string(text), `"do":"`) {
		t.Errorf("%s %v", text, err)
	}
}
