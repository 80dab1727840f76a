package lookup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/livefeed"
)

// Place is a database with what is configured to live in it.
type Place struct {
	Pool            *pgxpool.Pool
	Feeds, Services []string
}

// Settle makes sure that everything lives where it did: a feed's rows, and the sessions and fences of a service, are in one
// database for their life, since a configuration that names another would leave them behind and promise what they
// promised once more. What is new is recorded in the main database as living where it is configured. The error names
// all that was moved. A database belongs to one provider: one that is main somewhere is no other provider's.
//
// [New] settles what it is given. Whoever makes feeds before that calls it first.
func Settle(ctx context.Context, main Place, elsewhere ...Place) error {
	places := append([]Place{main}, elsewhere...)
	ids := make([]DatabaseID, len(places))
	for i, place := range places {
		id, err := Identify(ctx, place.Pool)
		if err != nil {
			return err
		}
		if twin := slices.Index(ids[:i], id); twin >= 0 {
			return fmt.Errorf("lookup: %s and %s are one database (%s), or a copy of it: give one of them the URL of the other, or the copy back", name(places, twin), name(places, i), id)
		}
		ids[i] = id
	}
	// A configuration that is refused changes nothing, so all is looked at before anything is claimed.
	for i, place := range places {
		if err := belongs(ctx, place.Pool, `select main_id from deployment`, name(places, i), ids[i], ids[0]); err != nil {
			return err
		}
	}
	if err := settle(ctx, places, ids); err != nil {
		return err
	}
	for i, place := range places {
		claim := `update deployment set main_id = coalesce(main_id, $1) returning main_id`
		if err := belongs(ctx, place.Pool, claim, name(places, i), ids[i], ids[0], ids[0][:]); err != nil {
			return err
		}
	}
	return nil
}

// belongs asks a database whose main database it names, and says what is wrong with one that is not main.
func belongs(ctx context.Context, q livefeed.Querier, sql, called string, id, main DatabaseID, args ...any) error {
	var of []byte
	if err := q.QueryRow(ctx, sql, args...).Scan(&of); err != nil {
		return fmt.Errorf("lookup: ask %s whose it is: %w", called, err)
	}
	switch {
	case of == nil || DatabaseID(of) == main:
		return nil
	case DatabaseID(of) == id:
		return fmt.Errorf("lookup: %s (%s) is the main database of another provider: use one that is new", called, id)
	}
	return fmt.Errorf("lookup: %s (%s) belongs to the provider whose main database is %x, not %s: every node of a provider has the same main database", called, id, of, main)
}

var advice = map[string]string{
	"feed":    "its database is fixed for its life; name that one, or give a feed that begins anew another name",
	"service": "its sessions and fences stay with them; let it show a feed of that database, or give the service another name",
}

// name says which database is meant, as the configuration does.
func name(places []Place, i int) string {
	if i == 0 {
		return "the main database"
	}
	return "the database of " + strings.Join(places[i].Feeds, ", ")
}

// settle records in the main database, the first place, where each name lives that is new, unless another lives elsewhere. All
// nodes record in one order.
func settle(ctx context.Context, places []Place, ids []DatabaseID) error {
	type entry struct {
		kind, name string
		at         int
	}
	var all []entry
	for i, place := range places {
		for _, feed := range place.Feeds {
			all = append(all, entry{"feed", feed, i})
		}
		for _, service := range place.Services {
			all = append(all, entry{"service", service, i})
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name), a.at-b.at)
	})
	return pgx.BeginTxFunc(ctx, places[0].Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var faults []error
		for _, e := range all {
			if _, err := tx.Exec(ctx, `insert into home (kind, name, database_id) values ($1, $2, $3) on conflict do nothing`, e.kind, e.name, ids[e.at][:]); err != nil {
				return fmt.Errorf("lookup: record where %s %s lives: %w", e.kind, e.name, err)
			}
			var stored []byte
			if err := tx.QueryRow(ctx, `select database_id from home where kind = $1 and name = $2`, e.kind, e.name).Scan(&stored); err != nil {
				return fmt.Errorf("lookup: read where %s %s lives: %w", e.kind, e.name, err)
			}
			id := DatabaseID(stored)
			if id == ids[e.at] {
				continue
			}
			home := fmt.Sprintf("a database (%s) that is not configured", id)
			if at := slices.Index(ids, id); at >= 0 {
				home = fmt.Sprintf("%s (%s)", name(places, at), id)
			}
			faults = append(faults, fmt.Errorf("%s %s lives in %s and is configured to be in %s (%s), where nothing of it is: %s",
				e.kind, e.name, home, name(places, e.at), ids[e.at], advice[e.kind]))
		}
		if err := errors.Join(faults...); err != nil {
			return fmt.Errorf("lookup: %w", err)
		}
		return nil
	})
}

// DatabaseID names a database, wherever it is reached and restored: it is drawn once and is the clear prefix of every
// session id born there.
type DatabaseID [4]byte

// String is 8 hex characters.
func (id DatabaseID) String() string { return hex.EncodeToString(id[:]) }

// Identify returns the id of a migrated database, drawing it on first use.
func Identify(ctx context.Context, q livefeed.Querier) (id DatabaseID, err error) {
	id, _, err = identify(ctx, q)
	return id, err
}

// identify returns the database's id and the secret of its cursors.
func identify(ctx context.Context, q livefeed.Querier) (id DatabaseID, cursors []byte, err error) {
	fresh := make([]byte, len(id)+32)
	if _, err := rand.Read(fresh); err != nil {
		return id, nil, fmt.Errorf("lookup: draw secrets: %w", err)
	}
	if _, err := q.Exec(ctx, `insert into deployment (database_id, cursor_secret) values ($1, $2) on conflict do nothing`,
		fresh[:len(id)], fresh[len(id):]); err != nil {
		return id, nil, fmt.Errorf("lookup: store secrets: %w", err)
	}
	var stored []byte
	if err := q.QueryRow(ctx, `select database_id, cursor_secret from deployment`).Scan(&stored, &cursors); err != nil {
		return id, nil, fmt.Errorf("lookup: read secrets: %w", err)
	}
	return DatabaseID(stored), cursors, nil
}
