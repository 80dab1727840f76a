package lookup

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/livefeed"
)

// The secrets behind BRC-104 session nonces live in the database and are shared by every node. A new one is accepted as soon
// as a node has read it, and seals only when every node must have: rotation harms no session.
const (
	secretRefresh = 30 * time.Second // how often a node reads them
	secretRipens  = 5 * time.Minute  // after which age a secret seals
	secretRotates = 24 * time.Hour   // after which age of the newest another is drawn
	secretLock    = 0x6f76_6c64_6e6f_6e63
)

// Ring implements brc104.KeySource from memory.
func (p *Provider) Ring(context.Context) (*brc104.Ring, error) {
	ring := p.ring.Load()
	if ring == nil {
		return nil, errors.New("lookup: the session secrets are not loaded")
	}
	return ring, nil
}

// ringRead reads the secrets, and whether it is time to draw another. The one that seals comes first: the newest that has ripened, or the
// oldest of all. The rest, newest first, are accepted for as long as a session sealed with them may live.
const ringRead = `with s as (
		select secret, created_at, id, created_at + $1 <= ` + clock + ` as ripe from session_secret
		where created_at + $2 > ` + clock + ` or id = (select max(id) from session_secret))
	select secret, (select max(created_at) from s) + $4 <= ` + clock + ` from s order by
		(id = coalesce((select max(id) from s where ripe), (select min(id) from s))) desc, id desc limit $3`

// refreshRing reads the secrets, drawing the first or the next one if it is time.
func (p *Provider) refreshRing(ctx context.Context) error {
	ring, due, err := readRing(ctx, p.main.pool)
	if err == nil && due {
		err = pgx.BeginTxFunc(ctx, p.main.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := drawSecret(ctx, tx); err != nil {
				return err
			}
			ring, _, err = readRing(ctx, tx)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("lookup: read the session secrets: %w", err)
	}
	p.ring.Store(ring)
	return nil
}

func readRing(ctx context.Context, q livefeed.Querier) (ring *brc104.Ring, due bool, err error) {
	rows, err := q.Query(ctx, ringRead, int64(secretRipens.Seconds()), int64((secretRotates + secretRipens + brc104.MaxSessionTTL).Seconds()),
		brc104.MaxRingKeys, int64(secretRotates.Seconds()))
	if err != nil {
		return nil, false, err
	}
	ring, due = &brc104.Ring{}, true // none: the first is to be drawn
	var secret []byte
	_, err = pgx.ForEachRow(rows, []any{&secret, &due}, func() error {
		ring.Secrets = append(ring.Secrets, bytes.Clone(secret))
		return nil
	})
	return ring, due, err
}

// drawSecret adds a secret unless another node just did.
func drawSecret(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(secretLock)); err != nil {
		return err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `insert into session_secret (secret, created_at)
		select $1, `+clock+` where (select coalesce(max(created_at), 0) + $2 <= `+clock+` from session_secret)`,
		secret, int64(secretRotates.Seconds()))
	return err
}
