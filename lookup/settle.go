package lookup

import (
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
	for i, place := range places {
		var of []byte
		if err := place.Pool.QueryRow(ctx, `update deployment set main_id = coalesce(main_id, $1) returning main_id`, ids[0][:]).Scan(&of); err != nil {
			return fmt.Errorf("lookup: ask %s whose it is: %w", name(places, i), err)
		}
		switch {
		case DatabaseID(of) == ids[0]:
		case DatabaseID(of) == ids[i]:
			return fmt.Errorf("lookup: %s (%s) is the main database of another provider: use one that is new", name(places, i), ids[i])
		default:
			return fmt.Errorf("lookup: %s (%s) belongs to the provider whose main database is %x, not %s: every node of a provider has the same main database", name(places, i), ids[i], of, ids[0])
		}
	}
	var faults []error
	for i, place := range places {
		for _, list := range []struct {
			kind  string
			names []string
		}{{"feed", place.Feeds}, {"service", place.Services}} {
			moved, err := settle(ctx, main.Pool, list.kind, list.names, ids[i])
			if err != nil {
				return err
			}
			for _, m := range moved {
				home := fmt.Sprintf("a database (%s) that is not configured", m.home)
				if at := slices.Index(ids, m.home); at >= 0 {
					home = fmt.Sprintf("%s (%s)", name(places, at), m.home)
				}
				faults = append(faults, fmt.Errorf("%s %s lives in %s and is configured to be in %s (%s), where nothing of it is: %s", list.kind, m.name, home, name(places, i), ids[i], advice[list.kind]))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	return nil
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

type movedAway struct {
	name string
	home DatabaseID
}

// settle records names that are new, and returns those that live elsewhere.
func settle(ctx context.Context, q livefeed.Querier, kind string, names []string, id DatabaseID) ([]movedAway, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if _, err := q.Exec(ctx, `insert into home (kind, name, database_id) select $1, unnest($2::text[]), $3 on conflict do nothing`, kind, names, id[:]); err != nil {
		return nil, fmt.Errorf("lookup: record where each %s lives: %w", kind, err)
	}
	rows, err := q.Query(ctx, `select h.name, h.database_id from unnest($2::text[]) as u(name)
		cross join lateral (select h.name, h.database_id from home h where h.kind = $1 and h.name = u.name offset 0) h
		where h.database_id <> $3`, kind, names, id[:])
	if err != nil {
		return nil, fmt.Errorf("lookup: read where each %s lives: %w", kind, err)
	}
	moved, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (m movedAway, err error) {
		var home []byte
		if err = r.Scan(&m.name, &home); err == nil {
			m.home = DatabaseID(home)
		}
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("lookup: read where each %s lives: %w", kind, err)
	}
	return moved, nil
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
