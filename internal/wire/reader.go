package wire

import (
	"math"
	"strings"

	"github.com/overlayd/overlayd/internal/canon"
)

// reader walks a parsed value against a schema and keeps the first fault. After
// a fault its methods go on and return zero values, so a parser reads like the
// shape it accepts and asks for the fault once, at the end. Field names in
// messages come from the schema, never from the input.
type reader struct {
	fault       *Error
	unsupported *Error // reported only when nothing was invalid
}

// parseBody reads one JSON value whose numbers, at every depth, are safe
// integers.
func parseBody(body []byte, maxBytes int) (canon.Value, error) {
	v, err := canon.Parse(body, canon.Limits{MaxBytes: maxBytes})
	if err != nil {
		return canon.Value{}, fromCanon(err)
	}
	if err := v.CheckIntegers(); err != nil {
		return canon.Value{}, fromCanon(err)
	}
	return v, nil
}

// err returns what was found wrong, invalid before unsupported.
func (r *reader) err() error {
	switch {
	case r.fault != nil:
		return r.fault
	case r.unsupported != nil:
		return r.unsupported
	}
	return nil
}

func (r *reader) fail(e *Error) {
	if r.fault == nil {
		r.fault = e
	}
}

func (r *reader) invalid(field, reason string) { r.fail(faultf(Invalid, field, reason)) }

func (r *reader) limited(field, reason string) { r.fail(faultf(Limited, field, reason)) }

// closed checks that o is an object with exactly the named members; a name that
// ends in ? may be absent.
func (r *reader) closed(o canon.Value, at string, names ...string) {
	if r.fault != nil {
		return
	}
	if o.Kind() != canon.Object {
		r.invalid(at, "must be an object")
		return
	}
	known := 0
	for _, name := range names {
		bare, optional := strings.CutSuffix(name, "?")
		if _, ok := o.Get(bare); ok {
			known++
		} else if !optional {
			r.invalid(bare, "is missing from "+at)
			return
		}
	}
	if known != len(o.Members()) {
		r.invalid(at, "has a property that its schema does not know")
	}
}

func (r *reader) get(o canon.Value, name string) canon.Value {
	v, _ := o.Get(name)
	return v
}

func (r *reader) version(o canon.Value) {
	if n, ok := r.get(o, "version").Int(); !ok || n != 1 {
		r.invalid("version", "must be 1")
	}
}

func (r *reader) str(o canon.Value, name string, maxBytes int) string {
	v := r.get(o, name)
	if v.Kind() != canon.String {
		r.invalid(name, "must be a string")
		return ""
	}
	s := v.Str()
	if canon.CheckString(s, maxBytes) != nil {
		r.invalid(name, "is empty or too long")
		return ""
	}
	return s
}

func (r *reader) iri(o canon.Value, name string) string {
	s := r.str(o, name, MaxString)
	if r.fault == nil && !isAbsoluteIRI(s) {
		r.invalid(name, "must be an absolute IRI")
	}
	return s
}

func (r *reader) boolean(o canon.Value, name string) bool {
	v := r.get(o, name)
	if v.Kind() != canon.Boolean {
		r.invalid(name, "must be true or false")
	}
	return v.Bool()
}

func (r *reader) u32(o canon.Value, name string) uint32 {
	n, ok := r.get(o, name).Int()
	if !ok || n < 0 || n > math.MaxUint32 {
		r.invalid(name, "must be an integer from 0 to 4294967295")
		return 0
	}
	return uint32(n)
}

func (r *reader) positiveU32(o canon.Value, name string) uint32 {
	n := r.u32(o, name)
	if n == 0 {
		r.invalid(name, "must be positive")
	}
	return n
}

func (r *reader) optionalU32(o canon.Value, name string) *uint32 {
	if _, ok := o.Get(name); !ok {
		return nil
	}
	n := r.u32(o, name)
	return &n
}

func (r *reader) u64(o canon.Value, name string) uint64 {
	v := r.get(o, name)
	n, err := canon.ParseU64(v.Str()) // "" for every other kind, which is refused
	if err != nil {
		r.invalid(name, "must be an unsigned 64-bit decimal string")
	}
	return n
}

func (r *reader) hex32(o canon.Value, name string) string {
	s := r.get(o, name).Str()
	if _, err := canon.ParseHex32(s); err != nil {
		r.invalid(name, "must be 64 lowercase hexadecimal characters")
		return ""
	}
	return s
}

func (r *reader) bytes(o canon.Value, name string) []byte {
	v := r.get(o, name)
	if v.Kind() != canon.String {
		r.invalid(name, "must be a base64 string")
		return nil
	}
	b, err := canon.ParseBytes(v.Str())
	if err != nil {
		r.invalid(name, "must be canonical base64")
	}
	return b
}

func (r *reader) array(o canon.Value, name string, max int) []canon.Value {
	v := r.get(o, name)
	if v.Kind() != canon.Array {
		r.invalid(name, "must be an array")
		return nil
	}
	if len(v.Elements()) > max {
		r.limited(name, "has too many elements")
		return nil
	}
	return v.Elements()
}

func (r *reader) limits(o canon.Value) Limits {
	l := r.get(o, "limits")
	r.closed(l, "limits", "maxBytes", "maxObservations", "waitMs")
	return Limits{
		MaxBytes:        r.positiveU32(l, "maxBytes"),
		MaxObservations: r.positiveU32(l, "maxObservations"),
		WaitMs:          r.u32(l, "waitMs"),
	}
}

func (r *reader) chain(o canon.Value) Chain {
	c := r.get(o, "chain")
	r.closed(c, "chain", "network", "genesisHash")
	return Chain{Network: r.str(c, "network", MaxString), GenesisHash: r.hex32(c, "genesisHash")}
}

// extensions reads the two optional members every extensible object has. An
// absent one is nil, a present and empty one is not.
func (r *reader) extensions(o canon.Value) ([]canon.Member, []string) {
	var ext []canon.Member
	if v, ok := o.Get("extensions"); ok {
		if v.Kind() != canon.Object {
			r.invalid("extensions", "must be an object")
			return nil, nil
		}
		if len(v.Members()) > MaxExtensions {
			r.limited("extensions", "has too many members")
			return nil, nil
		}
		ext = append([]canon.Member{}, v.Members()...)
		for _, m := range ext {
			if !isAbsoluteIRI(m.Name) {
				r.invalid("extensions", "must have absolute IRIs as names")
				return nil, nil
			}
		}
	}
	v, ok := o.Get("critical")
	if !ok {
		return ext, nil
	}
	elements := r.array(o, "critical", MaxExtensions)
	critical := make([]string, 0, len(elements))
	for i, e := range elements {
		if e.Kind() != canon.String {
			r.invalid("critical", "must hold strings")
			return nil, nil
		}
		for _, earlier := range critical[:i] {
			if earlier == e.Str() {
				r.invalid("critical", "names an extension twice")
				return nil, nil
			}
		}
		if _, ok := r.get(o, "extensions").Get(e.Str()); !ok {
			r.invalid("critical", "names an extension that is absent")
			return nil, nil
		}
		critical = append(critical, e.Str())
	}
	if len(v.Elements()) > 0 && r.unsupported == nil {
		r.unsupported = &Error{Code: Unsupported, Message: "a critical extension is not supported"}
	}
	return ext, critical
}

// extensionMembers is the inverse of extensions.
func extensionMembers(ext []canon.Member, critical []string) []canon.Member {
	var out []canon.Member
	if ext != nil {
		out = append(out, canon.Member{Name: "extensions", Value: canon.Obj(ext...)})
	}
	if critical != nil {
		names := make([]canon.Value, len(critical))
		for i, c := range critical {
			names[i] = canon.Str(c)
		}
		out = append(out, canon.Member{Name: "critical", Value: canon.Arr(names...)})
	}
	return out
}
