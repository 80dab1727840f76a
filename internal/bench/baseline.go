package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Names of the baselines.
const (
	bareInsert = "bare INSERT+COMMIT"
	barePage   = "primary-key page"
	bareNotify = "bare NOTIFY round trip"
	bareEcho   = "unsigned echo"
	bareCrypto = "sign + verify"
)

// pageRows is how many rows a page has, of the provider and of the baseline.
const pageRows = 256

// bare is what the same database does with nothing in between. Its tables are in a schema of this run's own, which is dropped.
type bare struct {
	pool   *pgxpool.Pool
	schema string
	// Of the server: what it is, and whether a commit that it acknowledged outlives a loss of power.
	server  string
	durable bool
}

// readDurability asks the server what its commits are worth.
func (b *bare) readDurability(ctx context.Context) error {
	var version, fsync, pages, commit string
	err := b.pool.QueryRow(ctx, `select current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
		current_setting('synchronous_commit')`).Scan(&version, &fsync, &pages, &commit)
	b.server = fmt.Sprintf("PostgreSQL %s, fsync %s, full_page_writes %s, synchronous_commit %s", version, fsync, pages, commit)
	b.durable = fsync == "on" && commit != "off"
	return err
}

// newBare connects with at most conns connections. A target without a database has no such baselines: nil.
func newBare(ctx context.Context, url string, conns int) (*bare, error) {
	if url == "" {
		return nil, nil
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the database URL is not usable: %w", err)
	}
	config.MaxConns = int32(max(conns, 2))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("the database of the baselines: %w", err)
	}
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	out := &bare{pool: pool, schema: "overlayd_bench_" + hex.EncodeToString(b[:])}
	_, err = pool.Exec(ctx, `create schema `+out.schema)
	if err == nil {
		_, err = pool.Exec(ctx, `create table `+out.schema+`.line (id bigint generated always as identity primary key, body bytea not null)`)
	}
	if err == nil {
		err = out.readDurability(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the tables of the baselines: %w", err), out.close(ctx))
	}
	return out, nil
}

// close drops the tables, whatever the state of ctx (Y8).
func (b *bare) close(ctx context.Context) error {
	if b == nil {
		return nil
	}
	defer b.pool.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if _, err := b.pool.Exec(ctx, `drop schema if exists `+b.schema+` cascade`); err != nil {
		return fmt.Errorf("drop the tables of the baselines (schema %s): %w", b.schema, err)
	}
	return nil
}

// insert commits one line: the least that a durable append costs.
func (b *bare) insert(ctx context.Context, body []byte) error {
	_, err := b.pool.Exec(ctx, `insert into `+b.schema+`.line (body) values ($1)`, body)
	return err
}

// fill makes rows of so many bytes to page through.
func (b *bare) fill(ctx context.Context, rows, bytes int) error {
	_, err := b.pool.Exec(ctx, `create table `+b.schema+`.page (id bigint primary key, body bytea not null)`)
	if err == nil { // read what is stored, as it is
		_, err = b.pool.Exec(ctx, `alter table `+b.schema+`.page alter column body set storage external`)
	}
	if err == nil {
		_, err = b.pool.Exec(ctx, `insert into `+b.schema+`.page
			select n, decode(repeat(md5(n::text), $2), 'hex') from generate_series(1, $1::bigint) n`, rows, max(bytes/16, 1))
	}
	if err == nil {
		_, err = b.pool.Exec(ctx, `vacuum analyze `+b.schema+`.page`)
	}
	if err != nil {
		return fmt.Errorf("the rows of the baseline: %w", err)
	}
	return nil
}

// page reads rows behind an id.
func (b *bare) page(ctx context.Context, after int64) error {
	rows, err := b.pool.Query(ctx, `select id, body from `+b.schema+`.page where id > $1 order by id limit `+strconv.Itoa(pageRows), after)
	if err != nil {
		return err
	}
	n := 0
	for rows.Next() {
		var id int64
		var body []byte
		if err := rows.Scan(&id, &body); err != nil {
			return err
		}
		n++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n == 0 {
		return errors.New("a page of the baseline without rows")
	}
	return nil
}

// notifier is one listening connection and one that notifies: a commit and its hint, as far as another process of the database.
type notifier struct {
	b        *bare
	listener *pgx.Conn
	channel  string
}

func (b *bare) notifier(ctx context.Context) (*notifier, error) {
	c, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	n := &notifier{b: b, listener: c.Hijack(), channel: b.schema}
	if _, err := n.listener.Exec(ctx, `listen `+n.channel); err != nil {
		return nil, errors.Join(err, n.close(ctx))
	}
	return n, nil
}

func (n *notifier) close(ctx context.Context) error {
	return n.listener.Close(context.WithoutCancel(ctx))
}

// trip is the time from a commit with a notification to its arrival.
func (n *notifier) trip(ctx context.Context, body []byte) (time.Duration, error) {
	arrived := make(chan error, 1)
	began := time.Now()
	var took time.Duration
	go func() {
		_, err := n.listener.WaitForNotification(ctx)
		took = time.Since(began)
		arrived <- err
	}()
	_, err := n.b.pool.Exec(ctx, `with line as (insert into `+n.b.schema+`.line (body) values ($1)) select pg_notify('`+n.channel+`', '')`, body)
	if fault := <-arrived; err == nil {
		err = fault
	}
	return took, err
}
