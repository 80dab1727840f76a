package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/livefeed"
)

// pools are the two pools of a provider: what requests use, and what commits
// use, so that readers can never starve writers.
type pools struct{ main, writer *pgxpool.Pool }

func (p *pools) close() {
	p.main.Close()
	p.writer.Close()
}

// openPools connects, and checks that the database answers, that its schema is the
// one of this program, and that it lost nothing the witness saw: the epochs that
// did are broken before anything else is asked of it.
func openPools(ctx context.Context, c config.Database, w *livefeed.Witness) (_ *pools, err error) {
	var p pools
	if p.main, err = openPool(ctx, c.URL, c.MaxConnections, "overlayd", w); err != nil {
		return nil, err
	}
	if p.writer, err = openPool(ctx, c.URL, c.WriterConnections, "overlayd writer", w); err != nil {
		p.main.Close()
		return nil, err
	}
	if err := p.check(ctx); err != nil {
		p.close()
		return nil, err
	}
	return &p, nil
}

func openPool(ctx context.Context, url string, size uint32, name string, w *livefeed.Witness) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.url is not usable: %w; write a Postgres URL", err)
	}
	c.MaxConns = int32(size)
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = name
	}
	livefeed.Configure(c)
	w.Guard(c)
	guard := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := guard(ctx, conn); err != nil {
			return refusedError{err}
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, unreachable(url, err)
	}
	return pool, nil
}

// check is what readiness asks too: the database answers, the schema fits.
func (p *pools) check(ctx context.Context) error {
	conn, err := p.main.Acquire(ctx)
	if err != nil {
		return unreachable(p.main.Config().ConnString(), err)
	}
	defer conn.Release()
	return schema.Check(ctx, conn.Conn())
}

// connect opens one connection, for migrations.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.url is not usable: %w; write a Postgres URL", err)
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, unreachable(url, err)
	}
	return conn, nil
}

// refusedError is of a database that was reached and may not be used: what the
// witness says is the whole sentence.
type refusedError struct{ error }

func (r refusedError) Unwrap() error { return r.error }

// unreachable says in one sentence what the driver says in several: the first
// address it tried is enough.
func unreachable(url string, err error) error {
	cause := err
	if refused, ok := errors.AsType[refusedError](err); ok {
		return refused.error
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		cause = errors.New(refused.Message)
	} else if dial, ok := errors.AsType[*net.OpError](err); ok {
		cause = dial
	}
	return fmt.Errorf("the database %s cannot be reached: %w; check database.url and that the server runs", config.Redacted(url), cause)
}
