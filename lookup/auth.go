package lookup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

// identify verifies the authentication of a request, if it has any, and arranges for its answers to be signed. A request
// that carries any part of an authentication is valid or refused, never taken for anonymous (conformance row A1).
func (p *Provider) identify(c echo.Context, in *inbound) *refusal {
	r := c.Request()
	if brc104.Anonymous(r) {
		return nil
	}
	if p.auth == nil {
		return refuse(wire.Unauthorized, textNotSigned)
	}
	claim, err := p.auth.Open(r)
	if err != nil {
		return in.unproven(err)
	}
	body, refused := wholeBody(r)
	if refused != nil {
		return refused
	}
	var peer *brc104.Peer
	if waited := p.turnstile.pass(r.Context(), beginning, func() { peer, err = claim.Verify(body) }); waited != nil {
		return in.unproven(waited)
	}
	if err != nil {
		return in.unproven(err)
	}
	in.peer, in.body, in.seal = peer, peer.Body, peer.Seal
	return nil
}

// unproven is the unsigned answer to a request whose authentication does not hold.
func (in *inbound) unproven(err error) *refusal {
	e, ok := errors.AsType[*brc104.Error](err)
	if !ok || e.Kind == brc104.Unavailable {
		return refuseUnavailable(textUnavailable, err)
	}
	in.annotate = e.Annotate
	return refuse(wire.Unauthorized, e.Public()).because(err)
}

// offered finds the service a new Open names and judges whether the caller may open it. A service that is not there and one
// that is hidden from the caller are told in the same words.
func (p *Provider) offered(ctx context.Context, name string, principal *[33]byte) (*service, *int64, error) {
	s := p.services[name]
	if s == nil {
		return nil, nil, refuse(wire.NotFound, textService)
	}
	if s.Authentication == wire.AuthenticationNone {
		if principal != nil {
			return nil, nil, refuse(wire.Unauthorized, textAnonymousOnly)
		}
		return s, nil, nil
	}
	outside := refuse(wire.Unauthorized, textUnauthorized)
	if s.Hidden {
		outside = refuse(wire.NotFound, textService)
	}
	if principal == nil {
		return nil, nil, outside
	}
	if s.Access == AccessOpen {
		return s, nil, nil
	}
	var grant int64
	err := s.shard.pool.QueryRow(ctx, `select id from service_grant where service = $1 and identity = $2`, name, principal[:]).Scan(&grant)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, outside
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lookup: look up a grant: %w", err)
	}
	return s, &grant, nil
}

// stillOffered judges a stored session by what its service is now: a session never changes its mode of authentication, and
// one that needed no grant ends when the service begins to need them (conformance rows A4, S10). A service that is not
// configured any more lets its sessions live out their lives.
func (p *Provider) stillOffered(s *session) error {
	now := p.services[s.service]
	if now == nil {
		return nil
	}
	if (now.Authentication == wire.AuthenticationNone) != (s.principal == nil) {
		return refuseReset(errors.New("the service changed its authentication"))
	}
	if now.Authentication != wire.AuthenticationNone && now.Access == AccessList && s.grant == nil {
		return refuse(wire.Unauthorized, textUnauthorized)
	}
	return nil
}

// visible are the names of the services that a caller's manifest shows: all but the hidden ones that do not admit it.
func (p *Provider) visible(ctx context.Context, principal *[33]byte) ([]string, error) {
	var names []string
	for _, name := range p.names {
		if p.services[name].Hidden {
			home := p.services[name].shard
			err := home.reach(ctx, func(ctx context.Context) error {
				_, _, err := p.offered(ctx, name, principal)
				return err
			})
			if r, ok := errors.AsType[*refusal](err); ok && r.public.Code == wire.NotFound {
				continue
			}
			if err != nil && home != p.main && ctx.Err() == nil {
				continue // who is admitted is not known now, and it can not be opened now
			}
			if err != nil {
				return nil, err
			}
		}
		names = append(names, name)
	}
	return names, nil
}

// access names the evaluated policy and the caller's partition, disclosing neither key nor grant (BRC-192 s1).
func (p *shard) access(s *service, principal *[33]byte) string {
	if principal == nil {
		return "public"
	}
	sum := p.cursors.sum("overlayd/access/1", principal[:], []byte(s.Name))
	return "p:" + hex.EncodeToString(sum[:])
}

func samePrincipal(a, b *[33]byte) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// bytesOf is a principal as the database takes it: null for none.
func bytesOf(principal *[33]byte) []byte {
	if principal == nil {
		return nil
	}
	return principal[:]
}

// handshake serves the beginning of BRC-104 sessions.
func (p *Provider) handshake(c echo.Context) error {
	in := &inbound{endpoint: "handshake"}
	if origins := c.Request().Header.Values(echo.HeaderOrigin); len(origins) > 0 {
		if !p.admitsOrigin(origins) {
			return p.respond(c, in, func(context.Context) (answer, error) {
				return answer{}, refuse(wire.Unauthorized, textOrigin)
			})
		}
		in.origin = origins[0]
	}
	if headerBytes(c.Request()) > wire.MaxHeaderBytes {
		return p.respond(c, in, func(context.Context) (answer, error) {
			return answer{}, refuse(wire.Limited, textHeaders)
		})
	}
	p.headers(c.Response().Header(), in)
	p.auth.Handshake(c.Response(), c.Request())
	return nil
}

func (p *Provider) unsignedBody(e *brc104.Error) []byte {
	code := wire.Unauthorized
	switch e.Status() {
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		code = wire.Invalid
	case http.StatusRequestEntityTooLarge:
		code = wire.Limited
	case http.StatusServiceUnavailable:
		code = wire.Unavailable
	}
	return (&wire.Error{Code: code, Message: e.Public(), Retryable: code == wire.Unavailable}).AppendCanonical(nil)
}
