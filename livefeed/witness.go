package livefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A restored backup, or a standby that took over without everything, looks like any other database: measured on Postgres 15, a data
// directory that is copied back and a dump restored into the same cluster both keep the system identifier and the timeline.
// What gives them away is that they hold less than was seen in them before. Everything compared here only ever grows within
// one history, or never changes in it; so a smaller or another value is proof, and nothing else counts.

// Witness remembers, outside the database, what one process has seen of each feed. Its methods may be called from any
// goroutine. One witness belongs to one process and one database.
type Witness struct {
	path string // "": memory only
	log  *slog.Logger

	// mu guards what follows. It is held for no I/O and before no other lock.
	mu      sync.Mutex
	seen    map[string]sight // by feed name; a sight's marks are never changed in place
	missing map[string]bool  // feeds whose absence was logged
	doubted map[string]bool  // feeds of which it was logged that they seem to have lost something
	changed bool             // since the file was written
	marks   string           // the query of all marks; "": there are none
	adopt   func(name string, s sight)

	broke atomic.Int64 // epochs, because history was lost

	asked func() // tests: the statement has answered, nothing is compared yet
}

// sight is what was seen of a feed, all of it at one moment of its history.
type sight struct {
	known        bool // false: nothing was seen yet
	used         bool // by a store of this process, under this id
	met          bool // in the database that store uses
	id           int32
	born         uint64 // when the feed was made, microseconds: no two feeds of a name share it, and no restore changes it
	epoch        string
	turn, broken uint64
	head         uint64
	tag          [8]byte // of group head
	prohibitions uint64
	evaluated    uint64
	marks        map[string]uint64 // nil: they were not read
}

// Mark is a counter that only grows, kept in the feed's database by a user of the feed.
type Mark struct {
	Feed  int32
	Name  string // 1..256 bytes
	Value uint64 // below 2^63
}

// answer is what the database says of a feed now.
type answer struct {
	sight
	tagThen   []byte  // tag of the group that was the head then; nil: the log does not hold it
	epochThen *string // epoch of the turn then; nil: not recorded
}

// WatchMarks sets the query that tells all marks, as feed_id int, name text and value bigint. It is asked inside the witness's own
// statement, a feed at a time. What was [Store.Marked] once must be among them for ever.
func (s *Store) WatchMarks(query string) {
	w := s.witness
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = query
}

// Marked remembers a mark. Call it after the commit that wrote it: what is not committed was never promised.
func (s *Store) Marked(m Mark) {
	for _, f := range s.Feeds() {
		if f.id == m.Feed {
			s.witness.grow(f.name, func(e *sight) bool { return e.mark(m.Name, m.Value) })
			return
		}
	}
}

// Verify compares the database with what this process has seen of it, and breaks the epoch of every feed that lost something. The
// error says that this could not be done: the database cannot be asked, or is behind and read-only (a standby).
func (s *Store) Verify(ctx context.Context) error {
	if err := s.witness.check(ctx, s.cfg.Pool); err != nil {
		return fmt.Errorf("livefeed: compare the database with what was seen of it: %w", err)
	}
	return nil
}

// Guard makes every new connection of a pool be verified before it is used: while it is refused nothing is asked of a
// database that lost history. It keeps an AfterConnect that is set already, and runs after it.
func (w *Witness) Guard(c *pgxpool.Config) {
	first := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if first != nil {
			if err := first(ctx, conn); err != nil {
				return err
			}
		}
		if w.empty() {
			return nil
		}
		// On the new connection itself: a pool has no other to give while it opens its first.
		if err := w.check(ctx, conn); err != nil {
			return fmt.Errorf("livefeed: compare the database with what was seen of it: %w", err)
		}
		return nil
	}
}

func (w *Witness) empty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen) == 0
}

// use says that a store uses a feed under an id.
func (w *Witness) use(name string, id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seen[name]
	s.used, s.id = true, id
	w.seen[name] = s
}

// attach makes a store hear of what is seen.
func (w *Witness) attach(adopt func(string, sight)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adopt, w.marks = adopt, ""
	for name, s := range w.seen {
		s.used, s.met = false, false
		w.seen[name] = s
	}
}

func (w *Witness) of(name string) sight {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[name]
}

// database is a pool, or one connection.
type database interface {
	Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// check asks the database once and compares. What it compares with is a copy taken before the statement is sent: a snapshot
// taken later can only be ahead of it. What others see meanwhile may be ahead of the snapshot, and proves nothing.
func (w *Witness) check(ctx context.Context, db database) error { return w.compare(ctx, db, true) }

// compare is check, of everything or of everything but the marks.
func (w *Witness) compare(ctx context.Context, db database, marks bool) error {
	before, query := w.copy()
	if len(before) == 0 {
		return nil
	}
	asked := query
	if !marks {
		asked = ""
	}
	now, err := ask(ctx, db, before, asked)
	if err != nil {
		return err
	}
	if w.asked != nil {
		w.asked()
	}
	var faults []error
	for name, was := range before {
		is, found := now[name]
		if !found {
			faults = append(faults, w.absent(name, was))
			continue
		}
		if was.used && (was.id != is.id || was.met && was.born != is.born) {
			faults = append(faults, fmt.Errorf("feed %q is another one in the database than when this process opened it: stop this process and start it again", name))
			continue
		}
		if was.known && was.born != is.born {
			w.stranger(name, is.sight)
			continue
		}
		missing := was.lost(&is)
		if missing == "" {
			w.learn(name, is.sight)
			continue
		}
		w.doubt(ctx, name, missing)
		if err := w.breakEpoch(ctx, db, name, was, query); err != nil {
			faults = append(faults, fmt.Errorf("feed %q: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

func (w *Witness) copy() (seen map[string]sight, marks string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.seen), w.marks
}

// absent says that a feed is not there. Of one that nobody uses that is no reason to refuse the database: if it is created
// again its epoch is another one.
func (w *Witness) absent(name string, was sight) error {
	if was.used {
		return fmt.Errorf("feed %q is not in the database any more: restore it, or stop this process and start it again to begin the feed anew", name)
	}
	w.mu.Lock()
	told := w.missing[name]
	w.missing[name] = true
	w.mu.Unlock()
	if !told {
		w.log.Error("livefeed: a feed that this node saw before is not in the database: is it the right database, and the right state file?", "feed", name, "stateFile", w.path)
	}
	return nil
}

// doubt logs what a check found missing: once, until the feed is well again.
func (w *Witness) doubt(ctx context.Context, name, missing string) {
	w.mu.Lock()
	level := slog.LevelWarn
	if w.doubted[name] {
		level = slog.LevelDebug
	}
	w.doubted[name] = true
	w.mu.Unlock()
	w.log.Log(ctx, level, "livefeed: the database seems to have lost history; it is asked again under the head's lock", "feed", name, "found", missing)
}

// stranger takes a feed that only shares its name with the one that was seen: nothing promised of that one was promised of it, so
// nothing is broken.
func (w *Witness) stranger(name string, is sight) {
	w.mu.Lock()
	was := w.seen[name]
	if was.born == is.born { // somebody else took it meanwhile
		w.mu.Unlock()
		return
	}
	is.used, is.met = was.used, was.used
	w.seen[name], w.changed = is, true
	adopt := w.adopt
	w.mu.Unlock()
	w.log.Error("livefeed: the feed in the database is not the one this node saw before, though it has its name; nothing was broken. Is it the right database, and the right state file?", "feed", name, "stateFile", w.path)
	if adopt != nil {
		adopt(name, is)
	}
}

// lost says what the database does not hold any more, or nothing.
func (was *sight) lost(is *answer) string {
	switch {
	case !was.known:
		return ""
	case is.broken > was.turn:
		return "" // all that was seen is void already
	case is.turn < was.turn:
		return fmt.Sprintf("its epoch has turned %d times and this node saw %d", is.turn, was.turn)
	case is.broken != was.broken:
		return fmt.Sprintf("its epoch was last broken at turn %d and this node saw %d", is.broken, was.broken)
	case is.epochThen != nil && *is.epochThen != was.epoch, is.epochThen == nil && was.turn > 0:
		return fmt.Sprintf("its epoch at turn %d is not the one this node saw", was.turn)
	case is.head < was.head:
		return fmt.Sprintf("its log ends at group %d and this node saw %d", is.head, was.head)
	case is.tagThen != nil && [8]byte(is.tagThen) != was.tag:
		return fmt.Sprintf("its group %d is not the one this node saw", was.head)
	case is.prohibitions < was.prohibitions:
		return fmt.Sprintf("its prohibitions changed %d times and this node saw %d", is.prohibitions, was.prohibitions)
	case is.evaluated < was.evaluated:
		return fmt.Sprintf("its time was evaluated up to %d and this node saw %d", is.evaluated, was.evaluated)
	}
	if is.marks == nil { // nobody reads them here
		return ""
	}
	for name, value := range was.marks {
		if is.marks[name] < value {
			return fmt.Sprintf("the count %q is %d and this node saw %d", name, is.marks[name], value)
		}
	}
	return ""
}

// errLostHistory is retried: the check that follows it has put things in order.
var errLostHistory = errors.New("the database lost history that this process saw")

// fits reports whether a plan's head can follow what was seen before its transaction began.
func (was *sight) fits(pl *plan) bool {
	if pl.era > was.turn {
		return true // all that was seen is void already
	}
	return pl.era == was.broken && (pl.head > was.head || pl.head == was.head && pl.tag == was.tag)
}

// learn takes what a check saw of a feed that lost nothing.
func (w *Witness) learn(name string, is sight) {
	w.mu.Lock()
	s := w.seen[name]
	switch {
	case is.turn < s.broken: // asked before the break that is known here
		w.mu.Unlock()
		return
	case !s.known || is.broken > s.turn:
		is.used = s.used
		s, w.changed = is, true
	default:
		w.changed = s.merge(&is) || w.changed
	}
	s.met = s.used
	w.seen[name] = s
	delete(w.missing, name)
	delete(w.doubted, name)
	adopt := w.adopt
	w.mu.Unlock()
	if adopt != nil {
		adopt(name, is)
	}
}

// merge takes the greater of everything, and reports whether that changed anything. Both are of one history.
func (s *sight) merge(is *sight) (changed bool) {
	raise := func(to *uint64, from uint64) bool {
		grown := from > *to
		if grown {
			*to, changed = from, true
		}
		return grown
	}
	if raise(&s.turn, is.turn) {
		s.epoch, s.broken = is.epoch, is.broken
	}
	if raise(&s.head, is.head) {
		s.tag = is.tag
	}
	raise(&s.prohibitions, is.prohibitions)
	raise(&s.evaluated, is.evaluated)
	for name, value := range is.marks {
		changed = s.mark(name, value) || changed
	}
	return changed
}

// mark raises a mark, in a copy of the map.
func (s *sight) mark(name string, value uint64) bool {
	if old, ok := s.marks[name]; ok && old >= value {
		return false
	}
	marks := make(map[string]uint64, len(s.marks)+1)
	maps.Copy(marks, s.marks)
	marks[name] = value
	s.marks = marks
	return true
}

// grow takes what this process itself has committed.
func (w *Witness) grow(name string, change func(*sight) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seen[name]
	if s.known && change(&s) {
		w.seen[name], w.changed = s, true
	}
}

// committed remembers what this process wrote.
func (w *Witness) committed(name string, pl *plan) {
	w.grow(name, func(s *sight) (changed bool) {
		if pl.era != s.broken {
			return false // of another era: the next check learns what it is
		}
		if pl.head > s.head {
			s.head, s.tag, changed = pl.head, pl.tag, true
		}
		if pl.revision > s.prohibitions {
			s.prohibitions, changed = pl.revision, true
		}
		return changed
	})
}

// What the witness asks: for feeds by name, each with the head and the turn that were seen, or -1. Every look-up is fenced: it
// goes to an index one key at a time.
const (
	witnessAsk = `
select u.name, f.id, (extract(epoch from f.created_at) * 1000000)::bigint, f.epoch, f.turn, f.broken, h.head, h.tag, f.prohibition_rev, c.evaluated,
       case when u.head = h.head then h.tag
            when u.head = l.floor then l.tag
            when u.head > l.floor and u.head < h.head then (select g.tag from feed_group g where g.feed_id = f.id and g.seq = u.head) end,
       case when u.turn = f.turn then f.epoch
            when u.turn < f.turn then (select t.epoch from feed_turn t where t.feed_id = f.id and t.turn = u.turn) end, `
	witnessFrom = `
from unnest($1::text[], $2::bigint[], $3::bigint[]) as u(name, head, turn)
cross join lateral (select * from feed f where f.name = u.name offset 0) f
cross join lateral (select * from feed_head h where h.feed_id = f.id offset 0) h
cross join lateral (select * from feed_floor l where l.feed_id = f.id offset 0) l
cross join lateral (select * from feed_clock c where c.feed_id = f.id offset 0) c`

	witnessRead = witnessAsk + `null::text[], null::bigint[]` + witnessFrom
)

// witnessMarks is witnessRead with the marks of each feed.
func witnessMarks(query string) string {
	return witnessAsk + `k.names, k.counts` + witnessFrom + `
cross join lateral (select coalesce(array_agg(m.name), '{}') as names, coalesce(array_agg(m.value), '{}') as counts
                    from (` + query + `) m where m.feed_id = f.id) k`
}

// ask reads what the database holds of the feeds now, and the marks if their query is given. A database without these tables holds none.
func ask(ctx context.Context, q Querier, feeds map[string]sight, marks string) (map[string]answer, error) {
	var names []string
	var heads, turns []int64
	for name, s := range feeds {
		head, turn := int64(-1), int64(-1)
		if s.known {
			head, turn = int64(s.head), int64(s.turn)
		}
		names, heads, turns = append(names, name), append(heads, head), append(turns, turn)
	}
	sql := witnessRead
	if marks != "" {
		sql = witnessMarks(marks)
	}
	now := make(map[string]answer, len(feeds))
	rows, err := q.Query(ctx, sql, names, heads, turns)
	if err == nil {
		err = scanAnswers(rows, now, marks != "")
	}
	if err == nil {
		return now, nil
	}
	const noTable, noColumn = "42P01", "42703"
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == noTable || e.Code == noColumn) {
		if marks == "" {
			return nil, nil // the schema's own check says what to do about it
		}
		// Of which tables?
		if none, fault := ask(ctx, q, feeds, ""); fault == nil && none == nil {
			return nil, nil
		}
	}
	return nil, fmt.Errorf("read what the feeds hold: %w", err)
}

func scanAnswers(rows pgx.Rows, now map[string]answer, marked bool) error {
	defer rows.Close()
	for rows.Next() {
		a := answer{sight: sight{known: true}}
		var name string
		var born, turn, broken, head, prohibitions, evaluated int64
		var tag []byte
		var marks []string
		var counts []int64
		if err := rows.Scan(&name, &a.id, &born, &a.epoch, &turn, &broken, &head, &tag, &prohibitions, &evaluated, &a.tagThen, &a.epochThen, &marks, &counts); err != nil {
			return err
		}
		a.born = uint64(born)
		a.turn, a.broken, a.head, a.prohibitions, a.evaluated = uint64(turn), uint64(broken), uint64(head), uint64(prohibitions), uint64(evaluated)
		a.tag = [8]byte(tag)
		if marked {
			a.marks = make(map[string]uint64, len(marks))
			for i, mark := range marks {
				a.marks[mark] = uint64(counts[i])
			}
		}
		now[name] = a
	}
	return rows.Err()
}

// broken counts a break because of lost history, and says what it means.
func (w *Witness) broken(feed string, t *turning, turn uint64) {
	w.broke.Add(1)
	w.log.Error("livefeed: the database lost history that was promised from it, so the feed's epoch was broken: earlier sessions and cursors are answered reset-required and clients begin anew. "+
		"A backup was restored, a standby without everything took over, or rows were changed by hand: find out which, and whether groups must be imported again",
		"feed", feed, "found", t.reason, "epoch", t.epoch, "turn", turn)
}

// breakEpoch breaks a feed's epoch if the database, under the head lock, still lacks what was seen. Of several nodes that
// find out the second sees that it was done.
func (w *Witness) breakEpoch(ctx context.Context, db database, name string, was sight, marks string) error {
	t := turning{least: was.turn, mode: Break, epoch: newEpoch()}
	var is answer
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select f.id from feed f where f.name = $1`, name).Scan(&t.feed); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, headOnlyLock, t.feed); err != nil {
			return err
		}
		now, err := ask(ctx, tx, map[string]sight{name: was}, marks)
		if err != nil {
			return err
		}
		var found bool
		if is, found = now[name]; !found {
			return errors.New("it is not in the database any more")
		}
		if t.reason = was.lost(&is); t.reason == "" {
			return nil
		}
		turn, err := t.write(ctx, tx)
		is.turn, is.broken, is.epoch = turn, turn, t.epoch
		return err
	})
	const readOnly = "25006"
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == readOnly {
		return fmt.Errorf("the database is read-only and behind what this process has seen in it, as a standby can be: nothing was changed, connect to the primary: %w", err)
	}
	if err != nil {
		return fmt.Errorf("break the epoch, because the database lost history (%s): %w", t.reason, err)
	}
	if t.reason != "" {
		w.broken(name, &t, is.turn)
	}
	w.learn(name, is.sight)
	return nil
}
