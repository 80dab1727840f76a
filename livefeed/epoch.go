package livefeed

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// An epoch is the life of a feed's continuity (BRC-193 s3). Turns count the epochs of a feed: what is promised at a turn is void
// once feed.broken is greater. A retired epoch leaves broken where it is, so what was promised under it lives on. Every
// turn takes the head lock, so that no group is committed across it.

// ErrRewritten says that the feed does not hold what a position stands for: the position is beyond the head, or another group
// is there. Whoever knows that the position was given by this feed has proof of it: see [Feed.Suspect].
var ErrRewritten = errors.New("the feed's history is not the one the position is of")

// Mode is what a rotation of an epoch does to what was promised under it.
type Mode uint8

const (
	Retire Mode = iota + 1 // it is kept; only what is new comes under the new epoch
	Break                  // it is void
)

func (m Mode) String() string {
	switch m {
	case Retire:
		return "retire"
	case Break:
		return "break"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Rotation is an epoch's beginning.
type Rotation struct {
	Epoch    string // 64 hex digits, random: it never comes back
	Turn     uint64
	Mode     Mode
	Replayed bool // it was asked for before, with the same key
}

// maxTurnReason bounds the reason of a rotation, in bytes. It is for operators; no peer sees it.
const maxTurnReason = 1024

const (
	headOnlyLock = `select head from feed_head where feed_id = $1 for update`

	turnFind = `select turn, mode, epoch from feed_turn where feed_id = $1 and key = $2`

	// A turn is above every one that anybody saw, also when the database lost some.
	turnPut = `
with turned as (
  update feed set turn = greatest(turn, $2) + 1, epoch = $3,
                  broken = case when $4::smallint = 2 then greatest(turn, $2) + 1 else broken end
  where id = $1
  returning turn
)
insert into feed_turn (feed_id, turn, mode, key, epoch, reason, at)
select $1, turn, $4::smallint, $5, $3, $6, floor(extract(epoch from clock_timestamp()))::bigint from turned
returning turn`

	// suspectRead takes the tag from the floor or the log: what the log does not hold proves nothing.
	suspectRead = `
select f.turn, f.broken, fl.floor,
       case when $2 = fl.floor then fl.tag else (select g.tag from feed_group g where g.feed_id = $1 and g.seq = $2) end
from feed f
join feed_floor fl on fl.feed_id = f.id
where f.id = $1`
)

// breakPayload, after a feed's id and a colon, tells every node to look at the feed's epoch.
const breakPayload = "!"

// turning is a rotation about to be written.
type turning struct {
	feed   int32
	least  uint64 // the new turn is greater
	mode   Mode
	key    []byte // nil: no operator asked for it
	epoch  string
	reason string
}

// write begins a new epoch, under the head lock that the caller holds.
func (t *turning) write(ctx context.Context, tx pgx.Tx) (turn uint64, err error) {
	var n int64
	if err := tx.QueryRow(ctx, turnPut, t.feed, int64(t.least), t.epoch, int16(t.mode), t.key, []byte(t.reason)).Scan(&n); err != nil {
		return 0, fmt.Errorf("write the new epoch: %w", err)
	}
	if t.mode == Break {
		if _, err := tx.Exec(ctx, headNotify, strconv.FormatInt(int64(t.feed), 10)+":"+breakPayload); err != nil {
			return 0, fmt.Errorf("tell other nodes: %w", err)
		}
	}
	return uint64(n), nil
}

// newEpoch draws an epoch: a Hex32, which every peer takes for one.
func newEpoch() string {
	var random [32]byte
	rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// Rotate begins a new epoch, once per key (16..128 of [A-Za-z0-9_-]): asked again with the same key and mode it answers as
// the first time; the key of another mode is Conflict. reason is kept for operators, at most 1024 bytes.
// [Break] makes void whatever was promised before and wakes every waiter of the feed, on every node. An outcome that is not
// known is Unavailable: ask again with the same key.
func (f *Feed) Rotate(ctx context.Context, key string, mode Mode, reason string) (Rotation, error) {
	if !validKeyText(key) {
		return Rotation{}, fault(Invalid, "the key must be 16 to 128 of A-Z, a-z, 0-9, _ and -")
	}
	if mode != Retire && mode != Break {
		return Rotation{}, fault(Invalid, `the mode is neither "retire" nor "break"`)
	}
	if len(reason) > maxTurnReason {
		return Rotation{}, fault(Invalid, fmt.Sprintf("the reason is longer than %d bytes", maxTurnReason))
	}
	sum := sha256.Sum256([]byte(key))
	t := turning{feed: f.id, mode: mode, key: sum[:16], epoch: newEpoch(), reason: reason}
	var r Rotation
	var head uint64
	err := f.retry(ctx, func(work context.Context) (err error) {
		r, head, err = f.rotate(work, &t)
		return err
	})
	if err != nil {
		f.store.log.Error("livefeed: an epoch could not be rotated", "feed", f.name, "mode", mode.String(), "err", err)
		return Rotation{}, faultf(Unavailable, err, "the database did not take the rotation, or its outcome is not known: ask again with the same key, it does no harm")
	}
	// Found with the epoch that this call drew, it is this call's: an answer was lost on the way.
	r.Replayed = r.Epoch != t.epoch
	if r.Mode != mode {
		return Rotation{}, fault(Conflict, "the key was used before for a rotation of the other mode: use another key")
	}
	if !r.Replayed {
		f.store.log.Info("livefeed: the feed has a new epoch", "feed", f.name, "mode", mode.String(), "epoch", r.Epoch, "turn", r.Turn, "reason", reason)
		if mode == Break {
			f.see(r.Turn, head)
		}
		f.store.remember(ctx)
	}
	return r, nil
}

// remember has the witness see what was just committed. If that fails now the backstop does it.
func (s *Store) remember(ctx context.Context) {
	if err := s.Verify(ctx); err != nil {
		s.lookNow()
	}
}

func (f *Feed) rotate(ctx context.Context, t *turning) (Rotation, uint64, error) {
	var r Rotation
	var head int64
	err := pgx.BeginFunc(ctx, f.store.cfg.Writer, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, headOnlyLock, f.id).Scan(&head); err != nil {
			return fmt.Errorf("lock the head: %w", err)
		}
		var turn int64
		var mode int16
		err := tx.QueryRow(ctx, turnFind, f.id, t.key).Scan(&turn, &mode, &r.Epoch)
		if err == nil {
			r.Turn, r.Mode = uint64(turn), Mode(mode)
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("look for the key: %w", err)
		}
		r.Epoch, r.Mode = t.epoch, t.mode
		r.Turn, err = t.write(ctx, tx)
		failpoint.Hit(failpoint.RotateWritten)
		return err
	})
	failpoint.Hit(failpoint.RotateCommitted)
	if hook := f.hooks.turned; hook != nil && err == nil {
		err = hook()
	}
	return r, uint64(head), err
}

// Suspect says that somebody holds proof that group seq had this tag at a turn: a cursor that only this deployment can have made.
// The feed is asked under the head lock; if it denies it, and the epoch was not broken since that turn, its history
// was rewritten (a restored backup, a standby without everything) and the epoch is broken. A sequence below
// the floor proves nothing. It reports whether what was promised at that turn is void now.
func (f *Feed) Suspect(ctx context.Context, seq uint64, tag [8]byte, turn uint64) (broken bool, err error) {
	if seq > maxSequence || turn >= maxSequence {
		return false, nil // nobody was given such a position
	}
	t := turning{feed: f.id, least: turn, mode: Break, epoch: newEpoch()}
	var now, head uint64 // the turn that this call began, and the head then
	err = pgx.BeginFunc(ctx, f.store.cfg.Writer, func(tx pgx.Tx) error {
		var at, turned, voided, floor int64
		var stored []byte
		if err := tx.QueryRow(ctx, headOnlyLock, f.id).Scan(&at); err != nil {
			return fmt.Errorf("lock the head: %w", err)
		}
		if err := tx.QueryRow(ctx, suspectRead, f.id, int64(seq)).Scan(&turned, &voided, &floor, &stored); err != nil {
			return fmt.Errorf("read the position: %w", err)
		}
		head = uint64(at)
		switch {
		case uint64(voided) > turn:
			broken = true
			return nil
		case seq > head:
			t.reason = fmt.Sprintf("a cursor is at group %d and the log ends at %d", seq, head)
		case seq >= uint64(floor) && stored != nil && [8]byte(stored) != tag:
			t.reason = fmt.Sprintf("a cursor is at another group %d than the log has", seq)
		default:
			return nil
		}
		var err error
		now, err = t.write(ctx, tx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("livefeed: examine a position in feed %q: %w", f.name, err)
	}
	if now == 0 {
		return broken, nil
	}
	f.store.witness.broken(f.name, &t, now)
	f.see(now, head)
	f.store.remember(ctx)
	return true, nil
}
