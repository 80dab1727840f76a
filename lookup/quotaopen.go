package lookup

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"
)

// client is whose quotas a request counts against: a keyed digest, which is all that memory and database ever hold of it
// (conformance rows A8, O15).
type client [16]byte

// clientOf tells clients apart: by principal, or by the address from which an anonymous request came.
func (p *Provider) clientOf(c echo.Context, in *inbound) client {
	if in.peer != nil {
		return client(p.main.cursors.sum("overlayd/client/1/principal", in.peer.Identity[:]))
	}
	p.suspectProxy(c)
	return client(p.main.cursors.sum("overlayd/client/1/address", network(c.RealIP())))
}

// network is the part of an address that one caller cannot change at will: all of an IPv4 one, the /64 of an IPv6 one. Callers
// whose address cannot be read are one client.
func network(address string) []byte {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		a = netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a.AsSlice()
}

// elsewhere is an address that no caller has (RFC 5737).
const elsewhere = "192.0.2.1"

// suspectProxy warns, once, of a proxy in front that is not trusted: then all its callers would count as one client.
func (p *Provider) suspectProxy(c echo.Context) {
	r := c.Request()
	if r.Header.Get(echo.HeaderXForwardedFor) == "" || p.quotas.warned.Load() {
		return
	}
	// The extractor itself is asked whether it believes this peer.
	if extract := c.Echo().IPExtractor; extract != nil {
		probe := &http.Request{RemoteAddr: r.RemoteAddr, Header: http.Header{echo.HeaderXForwardedFor: {elsewhere}}}
		if extract(probe) == elsewhere {
			return
		}
	}
	if p.quotas.warned.CompareAndSwap(false, true) {
		p.log.Warn("X-Forwarded-For came from a peer that is not a trusted proxy and was ignored; if that is your proxy, add it to trustedProxies, or all who come through it count as one client for quotas")
	}
}

// allow admits a new Open by the rates, and refuses it early, at the price of one look-up without a lock, when what lasts is
// spent: what counts is what [Provider.own] and [Provider.share] say before the commit. An identical Open may have taken the
// last place since this one asked for its fence; then this one is answered as that was, not refused.
func (p *shard) allow(ctx context.Context, o *opening) (again *answer, err error) {
	if spent, wait := p.quotas.opens.take(o.client, o.service.Name); spent != "" {
		return nil, refuseLoad(spent, wait)
	}
	spent, err := p.spent(ctx, o)
	if err != nil || spent == "" {
		return nil, err
	}
	if again, err = p.repeat(ctx, p.pool, o); again != nil || err != nil {
		return again, err
	}
	return nil, refuseLasting(spent)
}

// spent names a quota of what lasts that has no room for any Open.
func (p *shard) spent(ctx context.Context, o *opening) (quota, error) {
	var own, sessions, bytes int64
	err := p.pool.QueryRow(ctx, lookSpent, o.client[:], o.service.Name, p.quotas.SessionsPerClient, o.service.feed.ID()).Scan(&own, &sessions, &bytes)
	switch {
	case err != nil:
		return "", fmt.Errorf("lookup: look at the quotas: %w", err)
	case own >= p.quotas.SessionsPerClient:
		return quotaSessionsPerClient, nil
	case sessions >= p.quotas.Sessions:
		return quotaSessions, nil
	case bytes >= p.quotas.RetainedBytes:
		return quotaRetainedBytes, nil
	}
	return "", nil
}

// countHeld counts the sessions of service $2, of feed $4, that client $1 holds, up to $3: open, and promised until later.
// lookSpent reads what the service retains beside it. The order is the index's, and makes the planner take that one.
const (
	held = `(select count(*) from (select from lookup_session h
		where h.client = $1 and h.service = $2 and h.state = 1 and h.replay_until > n.t
		order by h.replay_until limit $3) held)`
	countHeld = `select ` + held + ` from (select ` + now + ` as t from feed_clock c where c.feed_id = $4 offset 0) n`
	lookSpent = `select ` + held + `, coalesce(l.sessions, 0), coalesce(l.bytes, 0)
		from (select ` + now + ` as t from feed_clock c where c.feed_id = $4 offset 0) n
		left join lookup_ledger l on l.feed_id = $4 and l.service = $2`
)

// own checks, exactly, that the client holds no more sessions than it may, the one that this transaction has stored among
// them. The client's Opens of the service come one after the other from here to their commit, on all nodes, and each counts in
// a statement of its own what those before it have committed. After this lock only the clock's row and the ledger's are taken.
func (p *shard) own(ctx context.Context, tx pgx.Tx, o *opening) error {
	of := sha256.Sum256(append(o.client[:], o.service.Name...))
	var count int64
	b := &pgx.Batch{}
	b.Queue(`select pg_advisory_xact_lock($1)`, int64(binary.BigEndian.Uint64(of[:])))
	b.Queue(countHeld, o.client[:], o.service.Name, p.quotas.SessionsPerClient+1, o.service.feed.ID()).QueryRow(func(row pgx.Row) error { return row.Scan(&count) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("lookup: count the client's sessions: %w", err)
	}
	if count > p.quotas.SessionsPerClient {
		return refuseLasting(quotaSessionsPerClient)
	}
	return nil
}

// share counts the session in its service's ledger, or says what of that is spent. The refused statement holds the
// ledger's row, so that what is read next is what it was judged by.
func (p *shard) share(ctx context.Context, tx pgx.Tx, s *session, retained int64) (changes uint64, err error) {
	changes, err = p.enter(ctx, tx, s.feed.ID(), s.service, s.w, retained, p.quotas.Sessions, p.quotas.RetainedBytes)
	if !errors.Is(err, errOverQuota) {
		return changes, err
	}
	var sessions int64
	err = tx.QueryRow(ctx, `select sessions from lookup_ledger where feed_id = $1 and service = $2`, s.feed.ID(), s.service).Scan(&sessions)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("lookup: read the ledger: %w", err)
	}
	if sessions >= p.quotas.Sessions {
		return 0, refuseLasting(quotaSessions)
	}
	return 0, refuseLasting(quotaRetainedBytes)
}
