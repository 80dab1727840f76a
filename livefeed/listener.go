package livefeed

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Commits of other processes arrive as notifications, and breaks of an epoch as "feed id:!". They are hints: one that is lost costs the
// backstop's period and nothing else. A commit that no other process listens for is not notified.
//
//	id:head:era                    groups up to head are committed
//	id:head:era:groups:selectors   so many last ones of them by this commit, posted under these and no other selectors

const (
	notifyChannel = "overlayd_feed"
	// notifySelectors bounds what a notification names: its payload must be shorter than 8000 bytes.
	notifySelectors = 256
)

const (
	// listenIdle is after how long without a notification the listener probes its connection, and listenProbe how long a probe may take.
	listenIdle  = 15 * time.Second
	listenProbe = 5 * time.Second

	// marksEvery is how often the backstop compares the marks too. A database that was put in the place of another is met on new
	// connections, which are verified whole before they are used.
	marksEvery = time.Second

	// followGroups bounds how many groups are read to wake only whom they concern; further behind, everybody wakes.
	followGroups = 4096
	followPage   = 256
)

const (
	// A role that may not see when its server processes began leaves null.
	listenerPut = `
insert into feed_listener (node, pid, since)
select $1, a.pid, a.backend_start from pg_stat_get_activity(pg_backend_pid()) a
on conflict (node) do update set pid = excluded.pid, since = excluded.since`

	listenerDrop = `delete from feed_listener where node = $1`

	// Those whose server process is gone, or certainly another one now.
	listenersForget = `
delete from feed_listener l
where not exists (select from pg_stat_get_activity(l.pid) a where coalesce(a.backend_start = l.since, true))`

	// listenerWait waits for who is committing, for so long: two statements in one transaction.
	listenerWait = `set local lock_timeout = '2s'; ` + headOnlyLock

	probeSend  = `select pg_notify($1, '')`
	followRead = `select seq, changes from feed_group where feed_id = $1 and seq > $2 and seq <= $3 order by seq limit $4`
)

// listenLoop keeps one listening connection: it connects, LISTENs, says so, then reads all heads (what was committed
// before is never notified), then waits. A connection that died is logged, counted and replaced.
func (s *Store) listenLoop(ctx context.Context) {
	backoff := firstBackoff
	for {
		up, err := s.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		level := slog.LevelDebug // while it stays down
		if up || backoff == firstBackoff {
			backoff, level = firstBackoff, slog.LevelWarn
		}
		s.metrics.listenerRestarts.Inc()
		s.log.Log(ctx, level, "livefeed: the listening connection was lost and is replaced; until then other processes' commits are seen by polling", "err", err)
		if !pause(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// listen serves one connection until it fails. up reports whether it was listening.
func (s *Store) listen(ctx context.Context) (up bool, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	defer closeConn(conn)
	work, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if _, err := conn.Exec(work, "listen "+notifyChannel); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	if _, err := conn.Exec(work, "listen "+hintChannel); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	probe := "overlayd_probe_" + strings.ToLower(rand.Text()) // a channel of our own: no other node hears it
	if _, err := conn.Exec(work, "listen "+probe); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	defer s.beForgotten(conn)
	if err := s.beHeard(work, conn); err != nil {
		return false, err
	}
	if err := s.readHeads(work, conn, true); err != nil {
		return false, err
	}
	defer s.metrics.listening.Set(0)
	for {
		if err := s.probe(ctx, conn, probe); err != nil {
			return up, err
		}
		up = true
		s.metrics.listening.Set(1)
		for err == nil {
			_, err = s.heard(ctx, conn, s.listenIdle)
		}
		if !errors.Is(err, errSilence) {
			return true, err
		}
		err = nil
	}
}

// beHeard has other processes notify of their commits. Who held a head before that may not, and has ended when the head is locked: the
// heads are read after it. One who holds it for long is not waited for, and is found by the backstop.
func (s *Store) beHeard(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, listenerPut, s.node); err != nil {
		return fmt.Errorf("say that this process listens: %w", err)
	}
	for _, f := range s.Feeds() {
		if _, err := conn.Exec(ctx, listenerWait, pgx.QueryExecModeSimpleProtocol, f.id); err != nil && !busy(err) {
			return fmt.Errorf("lock the head of feed %q: %w", f.name, err)
		}
	}
	return nil
}

// beForgotten takes back what beHeard said. If the connection is lost it stays, until another process forgets it or this one listens again.
func (s *Store) beForgotten(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, listenerDrop, s.node)
}

// errSilence says that nothing was heard in time, on a connection that seems to be up.
var errSilence = errors.New("no notification came")

// heard waits for one notification and takes it.
func (s *Store) heard(ctx context.Context, conn *pgx.Conn, most time.Duration) (channel string, err error) {
	wait, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	n, err := conn.WaitForNotification(wait)
	switch {
	case err == nil:
		switch n.Channel {
		case notifyChannel:
			s.metrics.notifications.Inc()
			s.notified(n.PID, n.Payload)
		case hintChannel:
			s.hinted(n.Payload)
		}
		return n.Channel, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && !conn.IsClosed():
		return "", errSilence
	}
	return "", fmt.Errorf("wait for a notification: %w", err)
}

// probe sends a notification through the pool and waits for it. A connection can be up and deaf: a pooler that shares the server's
// connections leaves the LISTEN with another one, and of a connection that a network has forgotten nothing is heard either.
func (s *Store) probe(ctx context.Context, conn *pgx.Conn, channel string) error {
	work, cancel := context.WithTimeout(ctx, s.listenProbe)
	defer cancel()
	if _, err := s.cfg.Pool.Exec(work, probeSend, channel); err != nil {
		s.log.DebugContext(ctx, "livefeed: the listening connection could not be probed", "err", err)
		return nil // that says nothing of the listener
	}
	end := time.Now().Add(s.listenProbe)
	for {
		heard, err := s.heard(ctx, conn, time.Until(end))
		if errors.Is(err, errSilence) {
			return fmt.Errorf("a notification that this process sent itself did not arrive within %v: is a pooler between it and the database that shares connections? Then turn notifications off or connect past it", s.listenProbe)
		}
		if err != nil || heard == channel {
			return err
		}
	}
}

// connect opens a connection of the store's own, with the pool's settings.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	timeout, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(timeout, s.cfg.Pool.Config().ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is thrown away, whatever it says
}

// payload tells other processes of the plan's groups.
func (pl *plan) payload(feed int32) string {
	head := fmt.Sprintf("%d:%d:%d", feed, pl.head, pl.era)
	var all []Selector
	for _, list := range pl.selectors {
		if all = append(all, list...); len(all) > 4*notifySelectors {
			return head
		}
	}
	if all = sortSelectors(all); len(all) > notifySelectors {
		return head
	}
	raw := make([]byte, 0, notifySelectors*len(Selector{}))
	for i := range all {
		raw = append(raw, all[i][:]...)
	}
	return fmt.Sprintf("%s:%d:%s", head, len(pl.groups), base64.RawStdEncoding.EncodeToString(raw))
}

// heard is what a notification says.
type heard struct {
	feed      int32
	broken    bool // nothing else is said then
	head, era uint64
	groups    uint64 // 0: it is not said what they hold
	selectors []Selector
}

func parsePayload(payload string) (h heard, ok bool) {
	parts := strings.Split(payload, ":")
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(parts[i], 10, 63)
		ok = ok && err == nil
		return n
	}
	id, err := strconv.ParseInt(parts[0], 10, 32)
	h.feed, ok = int32(id), err == nil
	switch len(parts) {
	case 2:
		h.broken = true
		return h, ok && parts[1] == breakPayload
	case 3:
		h.head, h.era = number(1), number(2)
		return h, ok
	case 5:
		h.head, h.era, h.groups = number(1), number(2), number(3)
		raw, err := base64.RawStdEncoding.Strict().DecodeString(parts[4])
		const size = len(Selector{})
		for i := 0; i+size <= len(raw); i += size {
			h.selectors = append(h.selectors, Selector(raw[i:i+size]))
		}
		return h, ok && err == nil && len(raw)%size == 0 && h.groups > 0 && h.groups <= h.head
	}
	return h, false
}

func (s *Store) notified(pid uint32, payload string) {
	h, ok := parsePayload(payload)
	if !ok {
		s.log.Warn("livefeed: a notification of unknown form was left alone", "channel", notifyChannel)
		return
	}
	if h.broken {
		s.lookNow()
		return
	}
	for _, f := range s.Feeds() {
		// Our committer announces its own commit, from memory.
		if f.id == h.feed && (pid == 0 || f.writer.Load() != pid) {
			f.heard(h)
		}
	}
}

// heard announces what a notification says. Who is woken by it need not wait for the groups to be read first; followLoop reads them
// meanwhile, for all.
func (f *Feed) heard(h heard) {
	if era, published := f.hub.announced(); h.era == era && h.head <= published {
		return // as our own commit, most of the time
	}
	f.tail.turn(h.era)
	if h.groups > 0 {
		var a announcement
		a.add(h.selectors)
		if f.hub.publish(h.era, h.head-h.groups+1, h.head, a) {
			f.nudge()
			return
		}
	}
	f.see(h.era, h.head)
}

// lookNow has the backstop read the heads at once.
func (s *Store) lookNow() {
	select {
	case s.looking <- struct{}{}:
	default:
	}
}

// backstopLoop reads all heads at a fixed period, in one query for the process, so that a lost notification is only late.
func (s *Store) backstopLoop(ctx context.Context) {
	t := time.NewTicker(s.cfg.Backstop)
	defer t.Stop()
	failing, marked, forgot := false, time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.looking:
		}
		marks := time.Since(marked) >= marksEvery
		if marks {
			marked = time.Now()
		}
		work, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := s.readHeads(work, s.cfg.Pool, marks)
		if err == nil && time.Since(forgot) >= s.listenIdle {
			forgot = time.Now()
			_, err = s.cfg.Pool.Exec(work, listenersForget)
		}
		cancel()
		if err != nil && ctx.Err() == nil && !failing {
			s.log.Warn("livefeed: the feeds' heads could not be read; tried again each period", "err", err, "period", s.cfg.Backstop)
		}
		failing = err != nil
	}
}

// readHeads tells every feed its head, and notices a database that lost history; by the marks as well, if it is told to.
func (s *Store) readHeads(ctx context.Context, db database, marks bool) error {
	if s.witness.empty() {
		_, err := db.Exec(ctx, "select 1")
		return err
	}
	if err := s.witness.compare(ctx, db, marks); err != nil {
		return fmt.Errorf("read the heads: %w", err)
	}
	return nil
}

// see says that the feed's head is at least this in the era that the break at turn era began.
func (f *Feed) see(era, head uint64) {
	f.tail.turn(era)
	if f.hub.see(era, head) {
		f.nudge()
	}
}

func (f *Feed) nudge() {
	select {
	case f.nudged <- struct{}{}:
	default:
	}
}

// followLoop announces what neither this process's committer nor a notification did: groups of other processes, and of ours whose answer
// was lost. It keeps the tail up with what was announced.
func (f *Feed) followLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.nudged:
		}
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			// The backstop nudges again.
			f.store.log.Warn("livefeed: groups of another process could not be read", "feed", f.name, "err", err)
		}
	}
}

func (f *Feed) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	for {
		r := f.hub.reach()
		if r.published >= r.target {
			f.keepUp(ctx, r)
			return nil
		}
		if !r.anybody { // whoever registers from now on reads the log after that, and finds them there
			f.hub.publish(r.era, r.published+1, r.target, announcement{})
			continue
		}
		if r.target-r.published > followGroups {
			f.hub.publish(r.era, r.published+1, r.target, announcement{everyone: true})
			continue
		}
		a, last, err := f.news(ctx, r)
		if err != nil {
			return err
		}
		f.hub.publish(r.era, r.published+1, last, a)
	}
}

// keepUp brings into the tail what was announced before it was read, if somebody may want it.
func (f *Feed) keepUp(ctx context.Context, r reach) {
	if head := f.tail.latest().head; r.anybody && head < r.published && r.published <= head+lookPage {
		_, _ = f.look(ctx, f.store.cfg.Pool, maxSequence, r.published) // whoever wants it asks again
	}
}

// news is what the groups after those announced mean to waiters. They are put into the tail, where who is woken finds them.
func (f *Feed) news(ctx context.Context, r reach) (announcement, uint64, error) {
	if a, last, ok := f.tail.news(r); ok {
		return a, last, nil
	}
	if _, err := f.look(ctx, f.store.cfg.Pool, maxSequence, r.target); err == nil {
		if a, last, ok := f.tail.news(r); ok {
			return a, last, nil
		}
	}
	return f.announcementOf(ctx, r.published, r.target)
}

// announcementOf reads groups after published, at most up to target, and returns the last one it covers.
func (f *Feed) announcementOf(ctx context.Context, published, target uint64) (announcement, uint64, error) {
	rows, err := f.store.cfg.Pool.Query(ctx, followRead, f.id, int64(published), int64(target), followPage)
	if err != nil {
		return announcement{}, 0, fmt.Errorf("read groups after %d: %w", published, err)
	}
	var a announcement
	last := published
	var seq int64
	var record []byte
	_, err = pgx.ForEachRow(rows, []any{&seq, &record}, func() error {
		last++
		changes, err := decodeRecord(record)
		if err != nil || uint64(seq) != last {
			// Whoever is woken reads the log, and is told there what is wrong with it.
			a.everyone = true
			last = uint64(seq)
			return nil
		}
		a.add(groupSelectors(changes))
		return nil
	})
	if err != nil {
		return announcement{}, 0, fmt.Errorf("read groups after %d: %w", published, err)
	}
	if last == published { // the log has a hole there
		return announcement{everyone: true}, target, nil
	}
	return a, last, nil
}
