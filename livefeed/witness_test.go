package livefeed

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// What a real restore does is shown in internal/failover. Here a database loses one thing at a time.

// rewind takes the groups after `to` out of the log, as if they had never been committed.
func rewind(t testing.TB, n *node, to uint64) {
	t.Helper()
	_, err := n.pool.Exec(t.Context(), fmt.Sprintf(`do $$ begin
		perform from feed_head for update;
		update feed_head set head = %[1]d, tag = coalesce((select tag from feed_group where seq = %[1]d), (select tag from feed_floor));
		delete from feed_group where seq > %[1]d; delete from group_selector where seq > %[1]d; delete from group_key where seq > %[1]d;
		delete from row_version where valid_from > %[1]d; delete from posting where valid_from > %[1]d;
		end $$`, to))
	if err != nil {
		t.Fatal(err)
	}
}

// counts is a table of marks of a user of the feed.
func counts(t testing.TB, n *node, f *Feed, name string, value uint64) {
	t.Helper()
	exec(t, n, "create table if not exists counts (feed_id int, name text primary key, value bigint)")
	exec(t, n, "insert into counts values ($1, $2, $3) on conflict (name) do update set value = excluded.value", f.id, name, int64(value))
	n.Marked(Mark{Feed: f.id, Name: name, Value: value})
}

const readCounts = "select feed_id, name, value from counts"

func (n *node) mustVerify(t testing.TB) {
	t.Helper()
	if err := n.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// quiet leaves checking to the test.
func quiet(c *Config) { c.Backstop, c.NoListen = time.Hour, true }

// TestO12_EachLossBreaksTheEpochOnce: whatever a database lacks of what was seen in it, and nothing else, breaks the epoch; the
// node then goes on with what is there.
func TestO12_EachLossBreaksTheEpochOnce(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"head":         "",
		"head's group": `with g as (update feed_group set tag = '\x0102030405060708' where seq = 4 returning tag) update feed_head set tag = g.tag from g`,
		"turn":         "update feed set turn = 1, epoch = (select epoch from feed_turn where turn = 1)",
		"epoch":        "update feed set epoch = repeat('a', 64)",
		"older epoch":  "update feed_turn set epoch = repeat('a', 64) where turn = 2; update feed set turn = 3",
		"older turn":   "delete from feed_turn where turn = 2; update feed set turn = 3",
		"break":        "update feed set broken = 0",
		"prohibitions": "update feed set prohibition_rev = 0",
		"evaluated":    "update feed_clock set evaluated = evaluated - 1",
		"mark":         "update counts set value = 6 where name = 'b'",
		"marks":        "truncate counts",
		"feed": `update feed set name = 'away' where name = 'f'; insert into feed (name, network, genesis, epoch) select 'f', network, genesis, epoch from feed;
			insert into feed_head select f.id, h.head, h.tag from feed f, feed_head h where f.name = 'f'; insert into feed_floor select f.id, 0, l.tag from feed f, feed_floor l where f.name = 'f';
			insert into feed_clock select f.id, c.evaluated from feed f, feed_clock c where f.name = 'f'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			stopTimers(t, db)
			w, err := OpenWitness(t.TempDir()+"/state.json", nil)
			if err != nil {
				t.Fatal(err)
			}
			n := startStore(t, db, quiet, func(c *Config) { c.Witness = w })
			f := n.ensure(t, "f")
			counts(t, n, f, "a", 3)
			counts(t, n, f, "b", 7)
			n.WatchMarks(readCounts)
			f.mustRotate(t, rotationKey+"1", Break)
			f.mustRotate(t, rotationKey+"2", Retire)
			if _, err := f.Prohibit(t.Context(), outpoint(77), "a test"); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				f.mustAppend(t, group(fmt.Sprint(i), put(i)))
			}
			n.mustVerify(t)
			f.wantTurns(t, "1 break", "2 retire")
			waiter := f.Watch(AttributeSelector("n", "nobody"))
			defer waiter.Close()

			if name == "feed" { // found at the next start: a running store refuses it
				n.stop()
			}
			if name == "head" {
				rewind(t, n, 2)
			} else if _, err := n.pool.Exec(t.Context(), damage, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			if name == "feed" {
				n = startStore(t, db, quiet, func(c *Config) { c.Witness = w })
				n.WatchMarks(readCounts)
				f = n.ensure(t, "f")
				// Another feed under the name: of that one nothing was promised.
				f.wantTurns(t)
				f.mustAppend(t, group("anew", put(1)))
				n.mustVerify(t)
				f.wantTurns(t)
				return
			}
			before := len(f.turns(t))
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { n.mustVerify(t) })
			}
			wg.Wait()
			n.mustVerify(t)
			got := f.turns(t)
			if len(got) != before+1 || !strings.HasSuffix(got[before], " break found") {
				t.Fatalf("turns %q", got)
			}
			await(t, "the wake-up by the break", waiter.C())
			// The node stands where the database stands, and hears what comes.
			c := f.cut(t)
			if r := f.hub.reach(); r.era != c.Turn || r.published != c.W {
				t.Errorf("%+v, the cut is %+v", r, c)
			}
			f.mustAppend(t, group("after", put(50, attr("n", "nobody"))))
			await(t, "the wake-up by a group after the break", waiter.C())
			n.mustVerify(t)
			if again := f.turns(t); len(again) != len(got) || w.broke.Load() != 1 {
				t.Errorf("turns %q, then %q; %d counted", got, again, w.broke.Load())
			}
		})
	}
}

// TestO12_GrowthIsNoAlarm: what is committed and seen while a check waits for its answer is ahead of that answer. With the
// witness as it is after the answer, instead of the copy from before the question, every such check would be an alarm.
func TestO12_GrowthIsNoAlarm(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	log := &recorder{Handler: slog.DiscardHandler}
	n := startStore(t, db, quiet, func(c *Config) { c.Log = slog.New(log) })
	f := n.ensure(t, "f")
	counts(t, n, f, "a", 1)
	n.WatchMarks(readCounts)
	n.mustVerify(t)
	grow := func(round int) {
		f.mustAppend(t, group(fmt.Sprint("grow-", round), put(round)))
		counts(t, n, f, "a", uint64(2+round))
		if _, err := f.Prohibit(t.Context(), outpoint(1000+round), "a test"); err != nil {
			t.Error(err)
		}
		if err := f.Advance(t.Context(), n.pool, f.cut(t).Now+uint64(round)); err != nil {
			t.Error(err)
		}
	}
	for round := range 3 {
		n.witness.asked = func() {
			n.witness.asked = nil
			grow(round)
			f.mustRotate(t, fmt.Sprint(rotationKey, round), Retire)
			n.mustVerify(t)
		}
		n.mustVerify(t)
	}
	f.wantTurns(t, "1 retire", "2 retire", "3 retire")
	if n := log.warnings.Load(); n != 0 { // not even a doubt that a second look removes
		t.Errorf("%d warnings", n)
	}

	// An answer from before a break, that comes after it, teaches nothing.
	n.witness.asked = func() {
		n.witness.asked = nil
		rewind(t, n, 1)
		n.mustVerify(t)
	}
	n.mustVerify(t)
	n.mustVerify(t)
	f.wantTurns(t, "1 retire", "2 retire", "3 retire", "4 break found")
	if s := n.witness.of("f"); s.head != 1 || s.broken != 4 {
		t.Errorf("%+v", s)
	}
}

// TestO12_NoAlarmUnderLoad: several nodes commit, rotate and check as fast as they can.
func TestO12_NoAlarmUnderLoad(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var nodes []*node
	var feeds []*Feed
	log := &recorder{Handler: slog.DiscardHandler}
	for range 2 {
		n := startStore(t, db, func(c *Config) { c.Backstop = time.Millisecond; c.Log = slog.New(log) })
		nodes, feeds = append(nodes, n), append(feeds, n.ensure(t, "f"))
	}
	var wg sync.WaitGroup
	for i := range 6 {
		f, n := feeds[i%2], nodes[i%2]
		wg.Go(func() {
			for j := range 20 {
				switch i {
				case 4:
					f.mustRotate(t, fmt.Sprint(rotationKey, j), Retire)
				case 5:
					if _, err := f.Prohibit(t.Context(), outpoint(10_000+j), "a test"); err != nil {
						t.Error(err)
					}
				default:
					f.mustAppend(t, group(fmt.Sprint(i, "-", j), put(100*i+j)))
				}
				n.mustVerify(t)
			}
		})
	}
	wg.Wait()
	for _, turn := range feeds[0].turns(t) {
		if strings.Contains(turn, "break") {
			t.Fatalf("a false alarm: %q", feeds[0].turns(t))
		}
	}
	if n := log.warnings.Load(); n != 0 {
		t.Errorf("%d warnings", n)
	}
}

// TestO12_SeveralNodesBreakOnce: the second sees that it was done, also when it was told of it by nobody.
func TestO12_SeveralNodesBreakOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	var nodes []*node
	var feeds []*Feed
	for range 4 {
		n := startStore(t, db, quiet)
		nodes, feeds = append(nodes, n), append(feeds, n.ensure(t, "f"))
	}
	for i := range 5 {
		feeds[0].mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	for _, n := range nodes {
		n.mustVerify(t)
	}
	rewind(t, nodes[0], 2)
	var wg sync.WaitGroup
	for _, n := range nodes[:3] {
		wg.Go(func() { n.mustVerify(t) })
	}
	wg.Wait()
	// The fourth comes later, when the log is longer again than what it saw.
	for i := range 5 {
		feeds[0].mustAppend(t, group(fmt.Sprint("new-", i), put(10+i)))
	}
	w := feeds[3].Watch()
	defer w.Close()
	nodes[3].mustVerify(t)
	await(t, "the wake-up", w.C())
	feeds[0].wantTurns(t, "1 break found")
	for i, f := range feeds {
		nodes[i].mustVerify(t)
		if r := f.hub.reach(); r.era != 1 || r.target != 7 {
			t.Errorf("node %d: %+v", i, r)
		}
	}
}

// TestO12_NothingIsAppendedToALostHistory: the committer compares what it locked with what was seen, before it writes.
func TestO12_NothingIsAppendedToALostHistory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	n := startStore(t, db, quiet)
	f := n.ensure(t, "f")
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	for i, damage := range []func(){
		func() { rewind(t, n, 3) },
		func() { exec(t, n, `update feed_head set tag = '\x0102030405060708'`) },
	} {
		damage()
		var planned atomic.Int32
		f.hooks.planned = func() {
			planned.Add(1)
			if got := f.turns(t); len(got) != i+1 {
				t.Errorf("a group is planned and the turns are %q", got)
			}
		}
		r := f.mustAppend(t, group(fmt.Sprint("after-", i), put(20+i)))
		if planned.Load() != 1 || r.Sequence != uint64(4+i) {
			t.Errorf("%+v, planned %d times", r, planned.Load())
		}
		f.hooks.planned = nil
	}
	f.wantTurns(t, "1 break found", "2 break found")
}

// TestO12_AConnectionIsVerifiedBeforeItIsUsed, in a pool of one as well.
func TestO12_AConnectionIsVerifiedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	var log strings.Builder
	w, err := OpenWitness("", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	n := startStore(t, db, quiet, func(c *Config) { c.Witness = w })
	f := n.ensure(t, "f")
	for i := range 5 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	n.stop()
	var first atomic.Int32
	open := func(options ...func(*pgxpool.Config)) *pgxpool.Pool {
		return pgtest.NewPool(t, db, append([]func(*pgxpool.Config){Configure, func(c *pgxpool.Config) {
			c.MaxConns = 1
			c.AfterConnect = func(context.Context, *pgx.Conn) error { first.Add(1); return nil }
		}, w.Guard}, options...)...)
	}
	healthy := open()
	if err := healthy.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wantTurns(t)
	rewind(t, n, 2)

	// A database that may not be written, as a standby, is refused; nothing is concluded from it.
	standby := open(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	if err := standby.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "connect to the primary") {
		t.Errorf("a read-only database that is behind: %v", err)
	}
	f.wantTurns(t)

	pool := open()
	var broken int64
	if err := pool.QueryRow(t.Context(), "select broken from feed").Scan(&broken); err != nil || broken != 1 {
		t.Errorf("the first statement of a new connection sees a break at turn %d, %v", broken, err)
	}
	if first.Load() < 3 {
		t.Errorf("the pool's own AfterConnect ran %d times", first.Load())
	}
	if got := log.String(); strings.Count(got, "level=ERROR") != 1 || !strings.Contains(got, "its log ends at group 2 and this node saw 5") {
		t.Errorf("logged: %s", got)
	}
	// Caught up, a read-only database is as good as any.
	if err := standby.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestO12_ReadOnlyAndBehind is an error of the checks of a running store too, and of nothing else.
func TestO12_ReadOnlyAndBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	n := startStore(t, db, quiet)
	f := n.ensure(t, "f")
	f.mustAppend(t, group("1", put(1)))
	name := n.pool.Config().ConnConfig.Database
	rewind(t, n, 0)
	exec(t, n, "alter database "+name+" set default_transaction_read_only = on")
	n.pool.Reset()
	if err := n.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("%v", err)
	}
	f.wantTurns(t)
	if _, err := pgtest.Conn(t, &pgtest.DB{URL: pgtest.URL(t)}).Exec(t.Context(), "alter database "+name+" set default_transaction_read_only = off"); err != nil {
		t.Fatal(err)
	}
	n.pool.Reset()
	n.mustVerify(t)
	f.wantTurns(t, "1 break found")
}

// TestO12_AFeedThatIsGone is an error for the store that uses it, and a warning to who only saw it.
func TestO12_AFeedThatIsGone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	log := &recorder{Handler: slog.DiscardHandler}
	w, err := OpenWitness("", slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	n := startStore(t, db, quiet, func(c *Config) { c.Witness = w })
	n.ensure(t, "f")
	exec(t, n, "update feed set name = 'away'")
	for range 2 {
		if err := n.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), `"f" is not in the database any more`) {
			t.Errorf("%v", err)
		}
	}
	n.stop()
	again := newStore(t, db, func(c *Config) { c.Witness = w })
	again.mustVerify(t)
	if log.warnings.Load() != 1 {
		t.Errorf("%d warnings", log.warnings.Load())
	}
	// Made anew it is another feed, of which nothing was ever promised: there is nothing to break.
	f := again.ensure(t, "f")
	f.wantTurns(t)
	if log.warnings.Load() != 2 {
		t.Errorf("%d warnings", log.warnings.Load())
	}

	// A running store does not follow a name to another number.
	exec(t, n, "update feed set name = 'f-old' where name = 'f'")
	exec(t, n, "update feed set name = 'f' where name = 'away'")
	if err := again.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "stop this process and start it again") {
		t.Errorf("%v", err)
	}

	// Without any tables there is no feed either.
	empty := pgtest.NewEmpty(t)
	if err := pgtest.NewPool(t, empty, w.Guard).Ping(t.Context()); err == nil {
		t.Error("a database without the feed of a running store is accepted")
	}
	w.attach(nil)
	if err := pgtest.NewPool(t, empty, w.Guard).Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
