package wire

import (
	"encoding/base64"
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
)

// Chain names a blockchain: an operator's namespace and the genesis hash.
type Chain struct {
	Network     string
	GenesisHash string // Hex32
}

// Scope is what a session's observations are true of (BRC-192 s1).
type Scope struct {
	Chain       Chain
	Provider    string // identity key, or the origin of a public service
	Service     string
	QueryDigest string // Hex32
	RulesDigest string // Hex32
	Access      string
	Epoch       string
}

// Outpoint names an output. Equality compares all of it.
type Outpoint struct {
	Chain       Chain
	TxID        string // Hex32
	OutputIndex uint32
}

// Context is provider data about an output, kept exactly as it came.
type Context struct {
	Schema string // absolute IRI
	Bytes  []byte
}

// Evidence is an asserted output and the BEEF that is said to hold it. Nothing
// of the BEEF has been looked at.
type Evidence struct {
	TxID        string // Hex32
	OutputIndex uint32
	BEEF        []byte
}

// The observation kinds of this profile (BRC-192 s2).
const (
	KindOutput      = "output"
	KindSpend       = "spend"
	KindWithdraw    = "withdraw"
	KindInvalidated = "assessment-invalidated"
)

// The phases of a batch.
const (
	PhaseSnapshot = "snapshot"
	PhaseLive     = "live"
)

// Output says that the source lists an output.
type Output struct {
	Evidence Evidence
	Context  *Context // nil is absent
}

// Spend says that a transaction spends an output.
type Spend struct {
	Previous     Outpoint
	SpendingTxID string // Hex32
	BEEF         []byte
}

// Withdraw says that the source no longer lists an output.
type Withdraw struct {
	Outpoint Outpoint
	Reason   string
}

// Invalidated says that assessments made in a context no longer hold.
type Invalidated struct {
	ContextID string
	Reason    string
}

// Observation is one assertion of a source. Exactly one of the four payloads is
// set, the one Kind names.
type Observation struct {
	ID          string
	Scope       Scope
	Kind        string
	Output      *Output
	Spend       *Spend
	Withdraw    *Withdraw
	Invalidated *Invalidated
	Extensions  []canon.Member
	Critical    []string
	Canonical   []byte // RFC 8785 form; set by ParseBatch
}

// Group is one committed change, indivisible (BRC-193 s3).
type Group struct {
	ID           string
	Sequence     uint64
	Observations []Observation
}

// Batch is the answer to an Open or a Read (BRC-193 s2).
type Batch struct {
	Session          string
	Scope            Scope
	Phase            string // PhaseSnapshot or PhaseLive
	Groups           []Group
	Cursor           string
	SnapshotComplete bool
	Through          uint64
	HighWater        uint64
	ExpiresAt        uint64 // whole Unix seconds
	ReplayUntil      uint64 // whole Unix seconds
	Limits           Limits // effective
	Extensions       []canon.Member
	Critical         []string
}

// ParseBatch reads a successful response body of at most [MaxResponseBytes]. It
// checks the shape and everything one body can be judged by: limits within the
// profile, through <= highWater, expiresAt <= replayUntil, live only after a
// complete snapshot, group sequences (equal to through in a snapshot, strictly
// increasing and at most through when live), no repeated group or observation
// id, every observation in the batch's scope, no more observations and bytes
// than the limits it states. Continuity with an earlier batch, the scope
// expected and the clock are the caller's. Errors are [*Error]; a proposal
// observation, which BRC-194 defines and nothing here installs, is Unsupported.
func ParseBatch(body []byte) (*Batch, error) {
	root, err := parseBody(body, MaxResponseBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the batch", "version", "session", "scope", "phase", "groups", "cursor",
		"snapshotComplete", "through", "highWater", "expiresAt", "replayUntil", "limits",
		"extensions?", "critical?")
	r.version(root)
	b := &Batch{
		Session:          r.str(root, "session", MaxString),
		Scope:            r.scope(r.get(root, "scope")),
		Phase:            r.str(root, "phase", MaxString),
		Cursor:           r.str(root, "cursor", MaxString),
		SnapshotComplete: r.boolean(root, "snapshotComplete"),
		Through:          r.u64(root, "through"),
		HighWater:        r.u64(root, "highWater"),
		ExpiresAt:        r.u64(root, "expiresAt"),
		ReplayUntil:      r.u64(root, "replayUntil"),
		Limits:           r.limits(root),
	}
	b.Extensions, b.Critical = r.extensions(root)
	if r.fault == nil {
		r.boundary(b)
		r.groups(b, r.get(root, "scope"), r.array(root, "groups", MaxObservations), len(body))
	}
	if r.fault == nil && int64(len(body)) > int64(b.Limits.MaxBytes) {
		r.limited("the batch", "is larger than the limit it states")
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return b, nil
}

// boundary checks the batch's own watermarks, deadlines and limits.
func (r *reader) boundary(b *Batch) {
	switch {
	case b.Phase != PhaseSnapshot && b.Phase != PhaseLive:
		r.invalid("phase", "is not known")
	case b.Phase == PhaseLive && !b.SnapshotComplete:
		r.invalid("phase", "is live before the snapshot is complete")
	case b.Through > b.HighWater:
		r.invalid("through", "is above highWater")
	case b.ExpiresAt > b.ReplayUntil:
		r.invalid("expiresAt", "is after replayUntil")
	case b.Limits != b.Limits.Min(MaxLimits()):
		r.invalid("limits", "are above the profile's maxima")
	}
}

// groups reads all groups. The canonical observations share one buffer: their
// sum is at most a small multiple of the body.
func (r *reader) groups(b *Batch, scope canon.Value, elements []canon.Value, size int) {
	b.Groups = make([]Group, 0, len(elements))
	buf := make([]byte, 0, size)
	groupIDs := make(map[string]struct{}, len(elements))
	observationIDs := make(map[string]struct{}, len(elements))
	last := uint64(0)
	for i, e := range elements {
		r.closed(e, "a group", "id", "sequence", "observations")
		g := Group{ID: r.str(e, "id", MaxString), Sequence: r.u64(e, "sequence")}
		_, repeated := groupIDs[g.ID]
		switch {
		case r.fault != nil:
		case repeated:
			r.invalid("groups", "repeat an id")
		case b.Phase == PhaseSnapshot && g.Sequence != b.Through:
			r.invalid("sequence", "of a snapshot group is not through")
		case g.Sequence > b.Through:
			r.invalid("sequence", "is above through")
		case b.Phase == PhaseLive && i > 0 && g.Sequence <= last:
			r.invalid("sequence", "does not increase")
		}
		groupIDs[g.ID] = struct{}{}
		last = g.Sequence
		items := r.array(e, "observations", MaxObservations)
		g.Observations = make([]Observation, 0, len(items))
		for _, item := range items {
			o := r.observation(item, &b.Scope, scope)
			if r.fault != nil {
				return
			}
			if _, repeated := observationIDs[o.ID]; repeated {
				r.invalid("observations", "repeat an id")
				return
			}
			observationIDs[o.ID] = struct{}{}
			from := len(buf)
			buf = item.AppendCanonical(buf)
			o.Canonical = buf[from:len(buf):len(buf)]
			g.Observations = append(g.Observations, o)
		}
		if r.fault != nil {
			return
		}
		b.Groups = append(b.Groups, g)
	}
	if uint64(len(observationIDs)) > uint64(b.Limits.MaxObservations) {
		r.limited("the batch", "has more observations than the limit it states")
	}
}

func (r *reader) scope(o canon.Value) Scope {
	r.closed(o, "scope", "chain", "provider", "service", "queryDigest", "rulesDigest", "access", "epoch")
	return Scope{
		Chain:       r.chain(o),
		Provider:    r.str(o, "provider", MaxString),
		Service:     r.str(o, "service", MaxString),
		QueryDigest: r.hex32(o, "queryDigest"),
		RulesDigest: r.hex32(o, "rulesDigest"),
		Access:      r.str(o, "access", MaxString),
		Epoch:       r.str(o, "epoch", MaxString),
	}
}

// observation reads an observation of a batch, whose scope it must have: all observations share it.
func (r *reader) observation(o canon.Value, batch *Scope, scope canon.Value) Observation {
	r.closed(o, "an observation", "id", "scope", "kind", "payload", "extensions?", "critical?")
	out := Observation{
		ID:    r.str(o, "id", MaxString),
		Scope: *batch,
		Kind:  r.str(o, "kind", MaxString),
	}
	if s := r.get(o, "scope"); !s.Equal(scope) {
		r.scope(s) // it may be none at all
		r.invalid("scope", "of an observation is not the batch's")
	}
	out.Extensions, out.Critical = r.extensions(o)
	p := r.get(o, "payload")
	switch out.Kind {
	case KindOutput:
		out.Output = r.output(p)
	case KindSpend:
		r.closed(p, "payload", "previous", "spendingTxid", "beef")
		out.Spend = &Spend{
			Previous:     r.outpoint(p, "previous"),
			SpendingTxID: r.hex32(p, "spendingTxid"),
			BEEF:         r.bytes(p, "beef"),
		}
	case KindWithdraw:
		r.closed(p, "payload", "outpoint", "reason")
		out.Withdraw = &Withdraw{Outpoint: r.outpoint(p, "outpoint"), Reason: r.str(p, "reason", MaxString)}
	case KindInvalidated:
		r.closed(p, "payload", "contextId", "reason")
		out.Invalidated = &Invalidated{ContextID: r.str(p, "contextId", MaxString), Reason: r.str(p, "reason", MaxString)}
	case "proposal", "proposal-state", "proposal-remove":
		if r.unsupported == nil {
			r.unsupported = &Error{Code: Unsupported, Message: "proposal observations are not supported"}
		}
	default:
		r.invalid("kind", "is not known")
	}
	return out
}

func (r *reader) output(p canon.Value) *Output {
	r.closed(p, "payload", "evidence", "context?")
	e := r.get(p, "evidence")
	r.closed(e, "evidence", "txid", "outputIndex", "beef")
	out := &Output{Evidence: Evidence{
		TxID:        r.hex32(e, "txid"),
		OutputIndex: r.u32(e, "outputIndex"),
		BEEF:        r.bytes(e, "beef"),
	}}
	if c, ok := p.Get("context"); ok {
		r.closed(c, "context", "schema", "bytes")
		out.Context = &Context{Schema: r.iri(c, "schema"), Bytes: r.bytes(c, "bytes")}
	}
	return out
}

func (r *reader) outpoint(o canon.Value, name string) Outpoint {
	p := r.get(o, name)
	r.closed(p, name, "chain", "txid", "outputIndex")
	return Outpoint{Chain: r.chain(p), TxID: r.hex32(p, "txid"), OutputIndex: r.u32(p, "outputIndex")}
}

// QueryDigest returns digest("lookup-query", {service, query}) (BRC-193 s2).
func QueryDigest(service string, query canon.Value) string {
	return canon.Digest(canon.DomainLookupQuery, canon.Obj(
		canon.Member{Name: "service", Value: canon.Str(service)},
		canon.Member{Name: "query", Value: query},
	).AppendCanonical(nil))
}

// RulesDigest returns digest("service-rules", {id, parameters}) (BRC-194 s6).
func RulesDigest(id string, parameters canon.Value) string {
	return canon.Digest(canon.DomainServiceRules, canon.Obj(
		canon.Member{Name: "id", Value: canon.Str(id)},
		canon.Member{Name: "parameters", Value: parameters},
	).AppendCanonical(nil))
}

func appendU64(dst []byte, n uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, n, 10)
	return append(dst, '"')
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}
