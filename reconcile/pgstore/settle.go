package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	lockTimeout    = `set local lock_timeout = '1s'; `
	lockNotGranted = "55P03"

	// endWriter ends a session while it is still in that very transaction, whose
	// client has gone: both numbers together are used once.
	endWriter = `select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_xid = $2::text::xid`
)

// lost is a transaction whose COMMIT was not answered.
type lost struct {
	pid int32
	xid string
}

func (b *Backend) lose(who lost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = append(b.lost, who)
	b.open.Store(true)
}

// settle makes sure, before anything is read, that every commit of this store
// whose answer was lost has either happened or failed. Such a transaction holds
// the lock of the partition for as long as it can still go either way: once the
// lock is ours on another connection, it is over. A session that keeps it, because
// the COMMIT never got there and neither did the end of its connection, is ended.
func (b *Backend) settle(ctx context.Context) error {
	if !b.open.Load() {
		return nil
	}
	select {
	case b.settling <- struct{}{}:
		defer func() { <-b.settling }()
	case <-ctx.Done():
		return fmt.Errorf("settle a lost commit: %w", context.Cause(ctx))
	}
	b.mu.Lock()
	known := b.lost[:len(b.lost):len(b.lost)]
	b.mu.Unlock()
	for len(known) > 0 {
		over, err := b.turn(ctx)
		if err != nil {
			return fmt.Errorf("settle a lost commit: %w", err)
		}
		if over {
			break
		}
		for _, who := range known {
			if _, err := b.pool.Exec(ctx, endWriter, who.pid, who.xid); err != nil {
				return fmt.Errorf("settle a lost commit: %w", err)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = b.lost[len(known):]
	b.open.Store(len(b.lost) > 0)
	return nil
}

// turn takes the lock of the partition and gives it back. It reports false when
// somebody held it for a second.
func (b *Backend) turn(ctx context.Context) (bool, error) {
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: `begin isolation level read committed; ` + lockTimeout + b.lock})
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == lockNotGranted {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	rollback(ctx, tx)
	return true, nil
}
