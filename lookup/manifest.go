package lookup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// capabilities answers discovery with the signed manifest (BRC-194 s1). It needs no selection headers.
func (p *Provider) capabilities(c echo.Context) error {
	in, r := p.receive(c, "capabilities", http.MethodGet)
	return p.respond(c, in, func(ctx context.Context) (answer, error) {
		if r != nil {
			return answer{}, r
		}
		packet, err := p.current(ctx, in.principal())
		if err != nil {
			return answer{}, err
		}
		in.room = room{bodies: p.quotas.bodies, who: p.clientOf(c, in)}
		if r := in.room.take(len(packet)); r != nil {
			return answer{}, r
		}
		return answer{status: http.StatusOK, built: built{body: packet}}, nil
	})
}

// manifestLock serialises issuing between nodes; the number is arbitrary and only ours.
const manifestLock = 0x6f76_6c64_6d61_6e69

// current is the manifest in force for a caller: the newest one with what it may see that is not past half its life. The
// first node to find none issues it; every node then serves the same bytes.
func (p *Provider) current(ctx context.Context, principal *[33]byte) ([]byte, error) {
	names, err := p.visible(ctx, principal)
	if err != nil {
		return nil, err
	}
	pool := p.main.pool
	content, err := p.content(ctx, pool, names)
	if err != nil {
		return nil, err
	}
	packet, err := p.newest(ctx, pool, content)
	if packet != nil || err != nil {
		return packet, err
	}
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("lookup: begin a manifest: %w", err)
	}
	defer rollback(ctx, tx)
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(manifestLock)); err != nil {
		return nil, fmt.Errorf("lookup: lock the manifest: %w", err)
	}
	// Another node may have issued it while this one waited, or an epoch may have turned.
	if content, err = p.content(ctx, tx, names); err != nil {
		return nil, err
	}
	if packet, err = p.newest(ctx, tx, content); packet != nil || err != nil {
		return packet, err
	}
	if packet, err = p.issue(ctx, tx, content); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("lookup: commit a manifest: %w", err)
	}
	p.log.InfoContext(ctx, "capabilities issued", "services", len(names), "manifestSeconds", p.manifestSeconds)
	return packet, nil
}

// content is what a manifest says apart from its times.
type content struct {
	capabilities wire.Capabilities
	digest       [32]byte
	elsewhere    uint64 // the time of other databases than the one of the manifests, as far as it is known
}

func (p *Provider) content(ctx context.Context, q livefeed.Querier, names []string) (content, error) {
	epochs := make(map[*livefeed.Feed]string)
	var elsewhere uint64
	for _, d := range p.shards {
		if d == p.main {
			if _, err := d.epochsOf(ctx, q, epochs); err != nil {
				return content{}, err
			}
			continue
		}
		latest, err := d.epochsOf(ctx, d.pool, epochs)
		if err != nil {
			return content{}, err
		}
		elsewhere = max(elsewhere, latest)
	}
	c := wire.Capabilities{Identity: p.identityHex, BaseURL: p.baseURL, Chain: p.chain}
	named := make(map[string]string, len(names))
	for _, name := range names {
		s := p.services[name]
		c.Services = append(c.Services, s.entry)
		named[name] = epochs[s.feed]
	}
	c.Extensions = []canon.Member{wire.EpochMember(named)}
	return content{c, sha256.Sum256(c.Value().AppendCanonical(nil)), elsewhere}, nil
}

// manifestNow is the time by which manifests are issued and renewed: the database's clock, behind no feed's evaluated time, so
// that no Open finds a manifest expired that is now being served (conformance rows T1, T3).
const manifestNow = `greatest(` + clock + `, (select coalesce(max(evaluated), 0) from feed_clock))`

const clock = `floor(extract(epoch from clock_timestamp()))::bigint`

func (p *Provider) newest(ctx context.Context, q livefeed.Querier, c content) ([]byte, error) {
	var packet []byte
	err := q.QueryRow(ctx, `select packet from manifest
		where content = $1 and issued_at <= (select greatest($2, `+manifestNow+`)) and issued_at + (expires_at - issued_at) / 2 > (select greatest($2, `+manifestNow+`))
		order by issued_at desc limit 1`, c.digest[:], int64(c.elsewhere)).Scan(&packet)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lookup: read the manifest: %w", err)
	}
	return packet, nil
}

func (p *Provider) issue(ctx context.Context, tx pgx.Tx, c content) ([]byte, error) {
	var issued uint64
	if err := tx.QueryRow(ctx, `select greatest($1, `+manifestNow+`)`, int64(c.elsewhere)).Scan(&issued); err != nil {
		return nil, fmt.Errorf("lookup: read the clock: %w", err)
	}
	c.capabilities.IssuedAt, c.capabilities.ExpiresAt = issued, issued+p.manifestSeconds
	packet, err := wire.SignPacket(canon.DomainCapabilities, c.capabilities.Value(), p.identity)
	if err != nil {
		return nil, fmt.Errorf("lookup: sign the manifest: %w", err)
	}
	if len(packet) > wire.MaxManifestBytes {
		return nil, fmt.Errorf("lookup: a manifest of %d bytes is above %d; configure fewer services", len(packet), wire.MaxManifestBytes)
	}
	digest, err := canon.ParseHex32(c.capabilities.Digest())
	if err != nil {
		return nil, fmt.Errorf("lookup: digest of the manifest: %w", err)
	}
	_, err = tx.Exec(ctx, `insert into manifest (digest, content, issued_at, expires_at, packet) values ($1, $2, $3, $4, $5)
		on conflict do nothing`, digest[:], c.digest[:], int64(issued), int64(c.capabilities.ExpiresAt), packet)
	if err != nil {
		return nil, fmt.Errorf("lookup: store the manifest: %w", err)
	}
	return packet, nil
}

// honour judges the manifest a new Open names: one that was issued here, is unexpired, and whose entry for the service is
// what the service is now. It returns the epoch the manifest names for the service, and when it expires; whether the epoch is
// the current one, and the manifest unexpired at T, is told where the snapshot is cut.
func (p *shard) honour(ctx context.Context, capability string, s *service) (epoch string, until uint64, err error) {
	digest, err := canon.ParseHex32(capability)
	if err != nil {
		return "", 0, refuse(wire.Invalid, textCapability).because(err)
	}
	var packet []byte
	var expired bool
	named := func() error {
		return p.pool.QueryRow(ctx, `select m.packet, m.expires_at, m.expires_at <= `+now+`
			from manifest m join feed_clock c on c.feed_id = $2 where m.digest = $1`, digest[:], s.feed.ID()).Scan(&packet, &until, &expired)
	}
	if err = named(); errors.Is(err, pgx.ErrNoRows) && p != p.main {
		if err = p.adopt(ctx, digest); err == nil {
			err = named()
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return "", 0, refuse(wire.ContextChanged, textUnknownCap)
	}
	if err != nil {
		return "", 0, fmt.Errorf("lookup: read a manifest: %w", err)
	}
	if expired {
		return "", 0, refuse(wire.Expired, textManifestOld)
	}
	body, err := storedBody(packet)
	if err != nil {
		return "", 0, fmt.Errorf("lookup: a stored manifest: %w", err)
	}
	for i := range body.Services {
		if entry := &body.Services[i]; entry.Name == s.Name {
			same := bytes.Equal(entry.Value().AppendCanonical(nil), s.entryJSON) && body.BaseURL == p.baseURL &&
				body.Identity == p.identityHex && body.Chain == p.chain
			epochs, err := wire.Epochs(body)
			if err != nil || !same {
				return "", 0, refuse(wire.ContextChanged, textUnknownCap).because(err)
			}
			return epochs[s.Name], until, nil
		}
	}
	return "", 0, refuse(wire.ContextChanged, textUnknownCap)
}

// adopt copies a manifest from the main database, which issued it, to the one where sessions will name it: it is kept there for
// as long as they do, and another Open under it does not need the main database.
func (p *shard) adopt(ctx context.Context, digest [32]byte) error {
	var content, packet []byte
	var issued, expires int64
	err := p.main.pool.QueryRow(ctx, `select content, issued_at, expires_at, packet from manifest where digest = $1`, digest[:]).Scan(&content, &issued, &expires, &packet)
	if err != nil {
		return err
	}
	_, err = p.pool.Exec(ctx, `insert into manifest (digest, content, issued_at, expires_at, packet) values ($1, $2, $3, $4, $5)
		on conflict do nothing`, digest[:], content, issued, expires, packet)
	return err
}

func storedBody(packet []byte) (*wire.Capabilities, error) {
	v, err := canon.Parse(packet, canon.Limits{})
	if err != nil {
		return nil, err
	}
	body, ok := v.Get("body")
	if !ok {
		return nil, errors.New("it has no body")
	}
	return wire.ParseCapabilities(body)
}

// entryOf is a service's entry in the manifest (BRC-194 s1, s2).
func entryOf(s *Service, parameters canon.Value) wire.ServiceEntry {
	seconds := func(n uint64) canon.Value { return canon.Str(strconv.FormatUint(n, 10)) }
	return wire.ServiceEntry{
		Name: s.Name, Kind: "lookup",
		RulesID: s.RulesID, RulesParameters: parameters, RulesDigest: wire.RulesDigest(s.RulesID, parameters),
		Profiles: []wire.ProfileEntry{{
			ID: wire.Profile, Authentication: s.Authentication, Payment: "none",
			MaxRequestBytes: s.MaxRequestBytes, MaxResponseBytes: s.MaxResponseBytes,
			Parameters: canon.Obj(
				canon.Member{Name: "replaySeconds", Value: seconds(s.ReplaySeconds)},
				canon.Member{Name: "sessionSeconds", Value: seconds(s.SessionSeconds)},
				canon.Member{Name: "maxObservations", Value: canon.Num(int64(s.MaxObservations))},
				canon.Member{Name: "maxWaitMs", Value: canon.Num(int64(s.MaxWaitMs))}),
		}},
	}
}

// hexOf is lowercase hex.
func hexOf(b []byte) string { return hex.EncodeToString(b) }
