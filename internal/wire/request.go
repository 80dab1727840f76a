package wire

import "github.com/overlayd/overlayd/internal/canon"

// Open asks for a new session, or for the first batch of one already opened by
// the same request (BRC-193 s2, s8).
type Open struct {
	RequestID           string // 16 to 128 of [A-Za-z0-9_-]
	Service             string
	Query               canon.Value // any JSON value; the service's rules judge it
	RequiredRulesDigest string      // Hex32; "" is absent
	Limits              Limits      // as requested, before any clamping
	Extensions          []canon.Member
	Critical            []string
	Canonical           []byte // RFC 8785 form of the whole object as received; set by ParseOpen
}

// Read asks for the batch after a cursor (BRC-193 s2).
type Read struct {
	Session string // any string of 1 to 1024 bytes
	Cursor  string // any string of 1 to 1024 bytes
	Limits  Limits
}

// Close ends a session (BRC-193 s2).
type Close struct {
	Session string // any string of 1 to 1024 bytes
}

// ParseOpen reads a request body of at most [MaxRequestBytes]. Errors are
// [*Error]: Invalid, Limited or Unsupported.
func ParseOpen(body []byte) (*Open, error) {
	root, err := parseBody(body, MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the request", "version", "requestId", "service", "query", "limits",
		"requiredRulesDigest?", "extensions?", "critical?")
	r.version(root)
	o := &Open{
		RequestID: r.requestID(root),
		Service:   r.str(root, "service", MaxString),
		Query:     r.get(root, "query"),
		Limits:    r.limits(root),
	}
	if _, ok := root.Get("requiredRulesDigest"); ok {
		o.RequiredRulesDigest = r.hex32(root, "requiredRulesDigest")
	}
	o.Extensions, o.Critical = r.extensions(root)
	if err := r.err(); err != nil {
		return nil, err
	}
	o.Canonical = root.AppendCanonical(make([]byte, 0, len(body)))
	return o, nil
}

// ParseRead reads a request body of at most [MaxRequestBytes]. Errors are
// [*Error]: Invalid or Limited.
func ParseRead(body []byte) (*Read, error) {
	root, err := parseBody(body, MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the request", "version", "session", "cursor", "limits")
	r.version(root)
	q := &Read{
		Session: r.str(root, "session", MaxString),
		Cursor:  r.str(root, "cursor", MaxString),
		Limits:  r.limits(root),
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return q, nil
}

// ParseClose reads a request body of at most [MaxRequestBytes]. Errors are
// [*Error]: Invalid or Limited.
func ParseClose(body []byte) (*Close, error) {
	root, err := parseBody(body, MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the request", "version", "session")
	r.version(root)
	c := &Close{Session: r.str(root, "session", MaxString)}
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Encode returns the RFC 8785 form of the request, built from the fields. For
// an Open that was parsed it equals Canonical.
func (o *Open) Encode() []byte {
	members := append([]canon.Member{
		version1(),
		{Name: "requestId", Value: canon.Str(o.RequestID)},
		{Name: "service", Value: canon.Str(o.Service)},
		{Name: "query", Value: o.Query},
		{Name: "limits", Value: o.Limits.value()},
	}, extensionMembers(o.Extensions, o.Critical)...)
	if o.RequiredRulesDigest != "" {
		members = append(members, canon.Member{Name: "requiredRulesDigest", Value: canon.Str(o.RequiredRulesDigest)})
	}
	return canon.Obj(members...).AppendCanonical(nil)
}

// Encode returns the RFC 8785 form of the request.
func (q *Read) Encode() []byte {
	return canon.Obj(
		version1(),
		canon.Member{Name: "session", Value: canon.Str(q.Session)},
		canon.Member{Name: "cursor", Value: canon.Str(q.Cursor)},
		canon.Member{Name: "limits", Value: q.Limits.value()},
	).AppendCanonical(nil)
}

// Encode returns the RFC 8785 form of the request.
func (c *Close) Encode() []byte {
	return canon.Obj(
		version1(),
		canon.Member{Name: "session", Value: canon.Str(c.Session)},
	).AppendCanonical(nil)
}

func version1() canon.Member { return canon.Member{Name: "version", Value: canon.Num(1)} }

func (l Limits) value() canon.Value {
	return canon.Obj(
		canon.Member{Name: "maxBytes", Value: canon.Num(int64(l.MaxBytes))},
		canon.Member{Name: "maxObservations", Value: canon.Num(int64(l.MaxObservations))},
		canon.Member{Name: "waitMs", Value: canon.Num(int64(l.WaitMs))},
	)
}

func (r *reader) requestID(o canon.Value) string {
	s := r.get(o, "requestId").Str()
	if !ValidRequestID(s) {
		r.invalid("requestId", "must be 16 to 128 of A-Z a-z 0-9 _ -")
		return ""
	}
	return s
}

// ValidRequestID reports whether s is 16 to 128 ASCII letters, digits, _ or -
// (BRC-193 s2).
func ValidRequestID(s string) bool {
	if len(s) < 16 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
