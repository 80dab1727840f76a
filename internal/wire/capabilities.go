package wire

import (
	"encoding/hex"
	"maps"
	"slices"
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
)

// The closed values of a manifest (BRC-194 s1).
const (
	KindLookup       = "lookup"
	KindTopic        = "topic"
	KindCoordination = "coordination"

	AuthenticationNone   = "none"
	AuthenticationBRC103 = "brc103"

	PaymentNone     = "none"
	PaymentBRC105   = "brc105"
	PaymentCovenant = "covenant"
)

// Capabilities is the body of a manifest (BRC-194 s1).
type Capabilities struct {
	Identity   string // the signer, 66 lowercase hex
	BaseURL    string // canonical
	Chain      Chain
	IssuedAt   uint64 // whole Unix seconds
	ExpiresAt  uint64 // whole Unix seconds, exclusive
	Services   []ServiceEntry
	Extensions []canon.Member
	Critical   []string
}

// ServiceEntry is one service of a manifest.
type ServiceEntry struct {
	Name            string
	Kind            string // KindLookup, KindTopic or KindCoordination
	RulesID         string // absolute IRI
	RulesParameters canon.Value
	RulesDigest     string // always RulesDigest(RulesID, RulesParameters)
	Profiles        []ProfileEntry
}

// ProfileEntry is one profile a service offers.
type ProfileEntry struct {
	ID               string // absolute IRI
	Authentication   string
	Payment          string
	MaxRequestBytes  uint32
	MaxResponseBytes uint32
	Parameters       canon.Value
}

// LookupParameters are the parameters of [Profile].
type LookupParameters struct {
	ReplaySeconds   uint64 // positive
	SessionSeconds  uint64 // positive
	MaxObservations uint32 // positive, as advertised: the profile's 1024 overrides more
	MaxWaitMs       uint32 // as advertised: the profile's 25000 overrides more
}

// ParseCapabilities reads the body of a manifest. It checks shape, limits,
// duplicates, issuedAt <= expiresAt and each rules digest. The signature, the
// clock, the expected base, chain and identity are the caller's; an unknown
// profile is kept, and one of ours is judged by [ProfileEntry.Lookup]. Errors
// are [*Error].
func ParseCapabilities(v canon.Value) (*Capabilities, error) {
	if err := v.CheckIntegers(); err != nil {
		return nil, fromCanon(err)
	}
	r := reader{}
	r.closed(v, "the manifest", "version", "identity", "baseURL", "chain", "issuedAt", "expiresAt",
		"services", "extensions?", "critical?")
	r.version(v)
	c := &Capabilities{
		Identity:  r.get(v, "identity").Str(),
		BaseURL:   r.str(v, "baseURL", MaxBaseBytes),
		Chain:     r.chain(v),
		IssuedAt:  r.u64(v, "issuedAt"),
		ExpiresAt: r.u64(v, "expiresAt"),
	}
	if _, err := canon.ParseIdentity(c.Identity); err != nil {
		r.invalid("identity", "must be a compressed public key")
	}
	if base, err := CanonicalBase(c.BaseURL, true); err != nil || base != c.BaseURL {
		r.invalid("baseURL", "is not canonical")
	}
	if c.IssuedAt > c.ExpiresAt {
		r.invalid("issuedAt", "is after expiresAt")
	}
	elements := r.array(v, "services", MaxServices)
	c.Services = make([]ServiceEntry, 0, len(elements))
	type key struct{ kind, name string }
	seen := make(map[key]struct{}, len(elements))
	for _, e := range elements {
		s := r.service(e)
		if _, repeated := seen[key{s.Kind, s.Name}]; repeated {
			r.invalid("services", "repeat a kind and name")
		}
		if r.fault != nil {
			return nil, r.fault
		}
		seen[key{s.Kind, s.Name}] = struct{}{}
		c.Services = append(c.Services, s)
	}
	c.Extensions, c.Critical = r.extensions(v)
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (r *reader) service(o canon.Value) ServiceEntry {
	r.closed(o, "a service", "name", "kind", "rules", "rulesDigest", "profiles")
	rules := r.get(o, "rules")
	r.closed(rules, "rules", "id", "parameters")
	s := ServiceEntry{
		Name:            r.str(o, "name", MaxString),
		Kind:            r.oneOf(o, "kind", KindLookup, KindTopic, KindCoordination),
		RulesID:         r.iri(rules, "id"),
		RulesParameters: r.object(rules, "parameters"),
		RulesDigest:     r.hex32(o, "rulesDigest"),
	}
	if r.fault == nil && s.RulesDigest != RulesDigest(s.RulesID, s.RulesParameters) {
		r.invalid("rulesDigest", "is not the digest of the rules")
	}
	elements := r.array(o, "profiles", MaxProfiles)
	s.Profiles = make([]ProfileEntry, 0, len(elements))
	for _, e := range elements {
		p := r.profile(e)
		if r.fault != nil {
			return s
		}
		if slices.ContainsFunc(s.Profiles, func(q ProfileEntry) bool { return q.ID == p.ID }) {
			r.invalid("profiles", "repeat an id")
		}
		s.Profiles = append(s.Profiles, p)
	}
	return s
}

func (r *reader) profile(o canon.Value) ProfileEntry {
	r.closed(o, "a profile", "id", "authentication", "payment", "maxRequestBytes", "maxResponseBytes", "parameters")
	return ProfileEntry{
		ID:               r.iri(o, "id"),
		Authentication:   r.oneOf(o, "authentication", AuthenticationNone, AuthenticationBRC103),
		Payment:          r.oneOf(o, "payment", PaymentNone, PaymentBRC105, PaymentCovenant),
		MaxRequestBytes:  r.u32(o, "maxRequestBytes"),
		MaxResponseBytes: r.u32(o, "maxResponseBytes"),
		Parameters:       r.object(o, "parameters"),
	}
}

func (r *reader) oneOf(o canon.Value, name string, allowed ...string) string {
	s := r.get(o, name).Str()
	if !slices.Contains(allowed, s) {
		r.invalid(name, "is not known")
	}
	return s
}

func (r *reader) object(o canon.Value, name string) canon.Value {
	v := r.get(o, name)
	if v.Kind() != canon.Object {
		r.invalid(name, "must be an object")
	}
	return v
}

// VerifyCapabilities reads a signed manifest of at most [MaxManifestBytes]: the
// packet's signature, the body, and that the signer is the body's identity.
// Errors are [*Error].
func VerifyCapabilities(data []byte) (*Capabilities, error) {
	body, signer, err := VerifyPacket(canon.DomainCapabilities, data, MaxManifestBytes)
	if err != nil {
		return nil, err
	}
	c, err := ParseCapabilities(body)
	if err != nil {
		return nil, err
	}
	if c.Identity != hex.EncodeToString(signer[:]) {
		return nil, faultf(Invalid, "identity", "is not the signer of the manifest")
	}
	return c, nil
}

// Value returns the body as JSON. For a manifest that was parsed it equals what
// was read.
func (c *Capabilities) Value() canon.Value {
	services := make([]canon.Value, len(c.Services))
	for i := range c.Services {
		services[i] = c.Services[i].Value()
	}
	return canon.Obj(append([]canon.Member{
		version1(),
		{Name: "identity", Value: canon.Str(c.Identity)},
		{Name: "baseURL", Value: canon.Str(c.BaseURL)},
		{Name: "chain", Value: c.Chain.value()},
		{Name: "issuedAt", Value: u64(c.IssuedAt)},
		{Name: "expiresAt", Value: u64(c.ExpiresAt)},
		{Name: "services", Value: canon.Arr(services...)},
	}, extensionMembers(c.Extensions, c.Critical)...)...)
}

// Digest returns the capability digest, digest("capabilities", body).
func (c *Capabilities) Digest() string {
	return canon.Digest(canon.DomainCapabilities, c.Value().AppendCanonical(nil))
}

// Find returns the service of that kind and name, or nil.
func (c *Capabilities) Find(kind, name string) *ServiceEntry {
	for i := range c.Services {
		if s := &c.Services[i]; s.Kind == kind && s.Name == name {
			return s
		}
	}
	return nil
}

// Value returns the entry as JSON, as the manifest holds it.
func (s *ServiceEntry) Value() canon.Value {
	profiles := make([]canon.Value, len(s.Profiles))
	for i := range s.Profiles {
		profiles[i] = s.Profiles[i].value()
	}
	return canon.Obj(
		canon.Member{Name: "name", Value: canon.Str(s.Name)},
		canon.Member{Name: "kind", Value: canon.Str(s.Kind)},
		canon.Member{Name: "rules", Value: canon.Obj(
			canon.Member{Name: "id", Value: canon.Str(s.RulesID)},
			canon.Member{Name: "parameters", Value: s.RulesParameters},
		)},
		canon.Member{Name: "rulesDigest", Value: canon.Str(s.RulesDigest)},
		canon.Member{Name: "profiles", Value: canon.Arr(profiles...)},
	)
}

// Profile returns the profile of that id, or nil.
func (s *ServiceEntry) Profile(id string) *ProfileEntry {
	for i := range s.Profiles {
		if p := &s.Profiles[i]; p.ID == id {
			return p
		}
	}
	return nil
}

// Live returns the lookup-live profile of a lookup service and its parameters.
// A service of another kind or without the profile is Unsupported; a profile
// that breaks its own rules is Invalid. Errors are [*Error].
func (s *ServiceEntry) Live() (*ProfileEntry, LookupParameters, error) {
	p := s.Profile(Profile)
	if p == nil || s.Kind != KindLookup {
		return nil, LookupParameters{}, &Error{Code: Unsupported, Message: "the service does not offer lookup-live"}
	}
	params, err := p.Lookup()
	if err != nil {
		return nil, LookupParameters{}, err
	}
	return p, params, nil
}

func (p *ProfileEntry) value() canon.Value {
	return canon.Obj(
		canon.Member{Name: "id", Value: canon.Str(p.ID)},
		canon.Member{Name: "authentication", Value: canon.Str(p.Authentication)},
		canon.Member{Name: "payment", Value: canon.Str(p.Payment)},
		canon.Member{Name: "maxRequestBytes", Value: canon.Num(int64(p.MaxRequestBytes))},
		canon.Member{Name: "maxResponseBytes", Value: canon.Num(int64(p.MaxResponseBytes))},
		canon.Member{Name: "parameters", Value: p.Parameters},
	)
}

// Lookup reads the parameters of a lookup-live profile (BRC-194 s2): exactly
// the four, all positive except maxWaitMs, without payment, with positive
// request bytes and at least 64 KiB of response bytes. Errors are [*Error].
func (p *ProfileEntry) Lookup() (LookupParameters, error) {
	r := reader{}
	r.closed(p.Parameters, "parameters", "replaySeconds", "sessionSeconds", "maxObservations", "maxWaitMs")
	out := LookupParameters{
		ReplaySeconds:   r.u64(p.Parameters, "replaySeconds"),
		SessionSeconds:  r.u64(p.Parameters, "sessionSeconds"),
		MaxObservations: r.positiveU32(p.Parameters, "maxObservations"),
		MaxWaitMs:       r.u32(p.Parameters, "maxWaitMs"),
	}
	switch {
	case p.ID != Profile:
		r.invalid("id", "is not the lookup-live profile")
	case p.Authentication != AuthenticationNone && p.Authentication != AuthenticationBRC103:
		r.invalid("authentication", "is not known")
	case p.Payment != PaymentNone:
		r.invalid("payment", "must be none")
	case p.MaxRequestBytes == 0:
		r.invalid("maxRequestBytes", "must be positive")
	case p.MaxResponseBytes < MinResponseBytes:
		r.invalid("maxResponseBytes", "must be at least 65536")
	case out.ReplaySeconds == 0:
		r.invalid("replaySeconds", "must be positive")
	case out.SessionSeconds == 0:
		r.invalid("sessionSeconds", "must be positive")
	}
	if err := r.err(); err != nil {
		return LookupParameters{}, err
	}
	return out, nil
}

// Value returns the parameters as JSON.
func (l LookupParameters) Value() canon.Value {
	return canon.Obj(
		canon.Member{Name: "replaySeconds", Value: u64(l.ReplaySeconds)},
		canon.Member{Name: "sessionSeconds", Value: u64(l.SessionSeconds)},
		canon.Member{Name: "maxObservations", Value: canon.Num(int64(l.MaxObservations))},
		canon.Member{Name: "maxWaitMs", Value: canon.Num(int64(l.MaxWaitMs))},
	)
}

// Limits returns the service's maxima: what the manifest states, but never more
// than the profile's own.
func (p *ProfileEntry) Limits(l LookupParameters) Limits {
	return Limits{
		MaxBytes:        p.MaxResponseBytes,
		MaxObservations: l.MaxObservations,
		WaitMs:          l.MaxWaitMs,
	}.Min(MaxLimits())
}

// Epochs returns the current epoch of each service the manifest's epoch
// extension names, an empty map when it has none. Errors are [*Error].
func Epochs(c *Capabilities) (map[string]string, error) {
	out := make(map[string]string)
	i := slices.IndexFunc(c.Extensions, func(m canon.Member) bool { return m.Name == EpochExtension })
	if i < 0 {
		return out, nil
	}
	v := c.Extensions[i].Value
	r := reader{}
	r.closed(v, "the epoch extension", "version", "services")
	r.version(v)
	for _, e := range r.array(v, "services", MaxServices) {
		r.closed(e, "an epoch", "service", "epoch")
		service, epoch := r.str(e, "service", MaxString), r.str(e, "epoch", MaxString)
		if _, repeated := out[service]; repeated {
			r.invalid("services", "of the epoch extension repeat a name")
		}
		out[service] = epoch
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// EpochMember makes the epoch extension, services in name order.
func EpochMember(epochs map[string]string) canon.Member {
	services := make([]canon.Value, 0, len(epochs))
	for _, name := range slices.Sorted(maps.Keys(epochs)) {
		services = append(services, canon.Obj(
			canon.Member{Name: "service", Value: canon.Str(name)},
			canon.Member{Name: "epoch", Value: canon.Str(epochs[name])},
		))
	}
	return canon.Member{Name: EpochExtension, Value: canon.Obj(
		version1(),
		canon.Member{Name: "services", Value: canon.Arr(services...)},
	)}
}

func (c Chain) value() canon.Value {
	return canon.Obj(
		canon.Member{Name: "network", Value: canon.Str(c.Network)},
		canon.Member{Name: "genesisHash", Value: canon.Str(c.GenesisHash)},
	)
}

func u64(n uint64) canon.Value { return canon.Str(strconv.FormatUint(n, 10)) }
