package livefeed

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Querier is what reads need of a connection: *pgxpool.Pool, pgx.Tx and *pgx.Conn have it.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Config is what a [Store] is made of.
type Config struct {
	Pool     *pgxpool.Pool
	Writer   *pgxpool.Pool
	Log      *slog.Logger
	Backstop time.Duration
	NoListen bool
	Metrics  prometheus.Registerer
}

type Store struct{}

type Feed struct{}

type Pending struct{}

type Waiter struct{ c chan struct{} }

type Stats struct {
	Feed, Epoch            string
	Head, Floor            uint64
	Rows, Versions, Groups int64
	Waiters, DueTimers     int64
}

type Cut struct {
	W         uint64
	Tag       [8]byte
	Now       uint64
	Evaluated uint64
	Due       bool
	Floor     uint64
	Epoch     string
}

type PageQuery struct {
	W, T      uint64
	After     int64
	Selectors []Selector
	Reader    *[33]byte
	Limit     int
}

type PageRow struct {
	Version  int64
	Outpoint Outpoint
	State    State
}

type Page struct {
	Rows []PageRow
	More bool
	Last int64
}

type LogQuery struct {
	After     uint64
	AfterTag  [8]byte
	Selectors []Selector
	Limit     int
}

type LogPage struct {
	Groups   []Group
	Full     bool
	Examined uint64
	Head     uint64
	HeadTag  [8]byte
	Now      uint64
	Due      bool
	Epoch    string
}

type AdmissionLimit struct {
	Service                         string
	MaxBytes, MaxObservations       uint32
	EnvelopeBytes, ObservationBytes int
	Until                           uint64
}

func Configure(*pgxpool.Config)                              {}
func NewStore(ctx context.Context, c Config) (*Store, error) { return nil, nil }
func (*Store) Ensure(ctx context.Context, name string, chain Chain) (*Feed, error) {
	return nil, nil
}
func (*Store) Feed(name string) *Feed        { return nil }
func (*Store) Feeds() []*Feed                { return nil }
func (*Store) Run(ctx context.Context) error { return nil }
func (*Feed) Name() string                   { return "" }
func (*Feed) ID() int32                      { return 0 }
func (*Feed) Chain() Chain                   { return Chain{} }

func (*Feed) Append(ctx context.Context, p *Proposal) (Receipt, error) { return Receipt{}, nil }
func (*Feed) Submit(ctx context.Context, p *Proposal) *Pending         { return nil }
func (*Pending) Wait(ctx context.Context) (Receipt, error)             { return Receipt{}, nil }
func (*Feed) Drain(ctx context.Context, t uint64, budget int) (remaining bool, err error) {
	return false, nil
}
func (*Feed) Stats(ctx context.Context) (Stats, error)                        { return Stats{}, nil }
func (*Feed) Cut(ctx context.Context, q Querier) (Cut, error)                 { return Cut{}, nil }
func (*Feed) Advance(ctx context.Context, q Querier, t uint64) error          { return nil }
func (*Feed) Page(ctx context.Context, q Querier, p PageQuery) (Page, error)  { return Page{}, nil }
func (*Feed) Log(ctx context.Context, q Querier, l LogQuery) (LogPage, error) { return LogPage{}, nil }
func (*Feed) TagAt(ctx context.Context, q Querier, seq uint64) ([8]byte, error) {
	return [8]byte{}, nil
}
func (*Feed) Blobs(ctx context.Context, q Querier, sums [][32]byte) (map[[32]byte][]byte, error) {
	return nil, nil
}
func (*Feed) Drive(ctx context.Context, q Querier, s []Selector) ([]Selector, error) { return s, nil }
func (*Feed) Watch(selectors ...Selector) *Waiter                                    { return nil }
func (w *Waiter) C() <-chan struct{}                                                 { return w.c }
func (w *Waiter) Close()                                                             {}
func (*Feed) SetLimits(ctx context.Context, q Querier, limits []AdmissionLimit) error {
	return nil
}
func (*Feed) Limits(ctx context.Context, q Querier) ([]AdmissionLimit, error) { return nil, nil }
func DecodeGroup(body []byte) (*Proposal, error)                              { return nil, nil }
