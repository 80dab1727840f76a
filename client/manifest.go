package client

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// Manifest is a verified capabilities manifest (BRC-194).
type Manifest struct {
	Packet    []byte // the whole signed packet
	Digest    string // capability digest, hex
	BaseURL   string
	Identity  string // the signer, hex
	Chain     Chain
	IssuedAt  uint64   // Unix seconds
	ExpiresAt uint64   // Unix seconds, exclusive
	Services  []string // lookup services that offer the lookup-live profile
	body      *wire.Capabilities
}

// Discover gets and verifies the manifest of o.BaseURL, with a key the one that
// its owner is to see. It uses BaseURL, Key, Identity, Chain, ClockSkew,
// ManifestMaxAge, LocalDevelopment and Transport.
func Discover(ctx context.Context, o Options) (*Manifest, error) {
	base, err := canonicalBase(o.BaseURL, o.LocalDevelopment)
	if err != nil {
		return nil, err
	}
	t, err := newTransport(base, &o)
	if err != nil {
		return nil, err
	}
	defer t.close()
	return discover(ctx, t, o)
}

func discover(ctx context.Context, t *transport, o Options) (*Manifest, error) {
	packet, err := t.discover(ctx)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(packet)
	if err != nil {
		return nil, err
	}
	now := uint64(time.Now().Unix())
	skew := uint64(orDefault(o.ClockSkew, defaultClockSkew) / time.Second)
	age := uint64(orDefault(o.ManifestMaxAge, defaultManifestMaxAge) / time.Second)
	switch {
	case m.BaseURL != t.base:
		return nil, &ManifestError{Reason: "it is for the base URL " + m.BaseURL + ", not for " + t.base + ": use that URL"}
	case o.Identity != "" && m.Identity != o.Identity:
		return nil, &PinError{What: "identity", Want: o.Identity, Got: m.Identity}
	case t.signer != nil && m.Identity != t.signer.answerer():
		return nil, &PinError{What: "identity", Want: t.signer.answerer(), Got: m.Identity}
	case o.Chain != nil && m.Chain != *o.Chain:
		return nil, pinChain(*o.Chain, m.Chain)
	case m.ExpiresAt <= now:
		return nil, &ManifestError{Reason: "it has expired: check the clocks of both machines"}
	case m.IssuedAt > now && m.IssuedAt-now > skew:
		return nil, &ManifestError{Reason: "it was issued in the future: check the clocks of both machines"}
	case m.IssuedAt < now && now-m.IssuedAt > age:
		return nil, &ManifestError{Reason: "it is older than this client accepts"}
	}
	return m, nil
}

// parseManifest verifies signature, signer and shape, and nothing that changes
// with time: a session keeps the manifest it was opened under.
func parseManifest(packet []byte) (*Manifest, error) {
	c, err := wire.VerifyCapabilities(packet)
	if err != nil {
		return nil, &ManifestError{Reason: "the signed packet is not valid", Err: err}
	}
	m := &Manifest{
		Packet: packet, Digest: c.Digest(), BaseURL: c.BaseURL, Identity: c.Identity, Chain: c.Chain,
		IssuedAt: c.IssuedAt, ExpiresAt: c.ExpiresAt, body: c,
	}
	for i := range c.Services {
		if s := &c.Services[i]; s.Kind == wire.KindLookup && s.Profile(wire.Profile) != nil {
			m.Services = append(m.Services, s.Name)
		}
	}
	return m, nil
}

// terms are what a manifest promises of one service, frozen for a session.
type terms struct {
	service         string
	rulesDigest     string
	epoch           string // "" when the manifest does not name it
	limits          Limits // manifest and profile
	maxRequestBytes uint32
	replaySeconds   uint64
	sessionSeconds  uint64
}

// terms chooses the lookup-live profile of a service. There is no fall-back to
// anything else: who has a key is never anonymous, and who has none never signs.
func (m *Manifest) terms(service string, signed bool) (terms, error) {
	entry := m.body.Find(wire.KindLookup, service)
	if entry == nil {
		return terms{}, &ManifestError{Reason: "it does not offer the lookup service " + service}
	}
	profile, params, err := entry.Live()
	if err != nil {
		return terms{}, &ManifestError{Reason: "the service " + service + " cannot be followed", Err: err}
	}
	switch wants := profile.Authentication != wire.AuthenticationNone; {
	case wants && !signed:
		return terms{}, ErrSigned
	case !wants && signed:
		return terms{}, ErrPublic
	}
	if got := wire.RulesDigest(entry.RulesID, entry.RulesParameters); got != entry.RulesDigest {
		return terms{}, &ManifestError{Reason: "the rules of the service " + service + " do not have the digest it states"}
	}
	epochs, err := wire.Epochs(m.body)
	if err != nil {
		return terms{}, &ManifestError{Reason: "its epochs cannot be read", Err: err}
	}
	return terms{
		service:         service,
		rulesDigest:     entry.RulesDigest,
		epoch:           epochs[service],
		limits:          profile.Limits(params),
		maxRequestBytes: min(profile.MaxRequestBytes, wire.MaxRequestBytes),
		replaySeconds:   params.ReplaySeconds,
		sessionSeconds:  params.SessionSeconds,
	}, nil
}

func pinChain(want, got Chain) *PinError {
	return &PinError{What: "chain", Want: want.Network + " " + want.GenesisHash, Got: got.Network + " " + got.GenesisHash}
}
