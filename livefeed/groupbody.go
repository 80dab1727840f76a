package livefeed

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/internal/canon"
)

// Bounds of a group, part of the operator contract.
const (
	MaxGroupBytes     = 8 << 20 // of the JSON body
	MaxEdits          = 1024    // per group, at least 1
	MaxAttributePairs = 64      // name/value pairs per row
	MaxAttributeBytes = 256     // of a name, of a value; at least 1
	MaxOrderBytes     = maxOrderLen
	MaxTextBytes      = 1024 // of a reason, a context id, a context schema; at least 1
	minKeyLen         = 16
	maxKeyLen         = 128
)

// DecodeGroup reads the JSON body of one group:
//
//	{"key": "16..128 of [A-Za-z0-9_-]", "edits": [1..1024 of
//	  {"op":"put", "output":{"txid","outputIndex","beef"}, "attributes"?, "order"?, "context"?, "expiresAt"?, "readers"?}
//	  {"op":"spend", "outpoint":{"txid","outputIndex"}, "spendingTxid", "beef"}
//	  {"op":"withdraw", "outpoint", "reason"}
//	  {"op":"invalidate", "contextId", "reason"}]}
//
// Shapes are closed at every depth. The BEEF of a put must hold the named output, that of a spend a
// transaction that spends the outpoint; no script and no proof is looked at.
//
// The error is an *Error and means that not even a key could be read, or TooLarge. Any later fault is left in
// [Proposal.Err], because the key may be known: then the group is answered as it was the first time.
func DecodeGroup(body []byte) (*Proposal, error) {
	if len(body) > MaxGroupBytes {
		return nil, faultf(TooLarge, nil, "the group has %d bytes, at most %d are taken: split it", len(body), MaxGroupBytes)
	}
	root, err := canon.Parse(body, canon.Limits{MaxBytes: MaxGroupBytes})
	if err != nil {
		if e, ok := errors.AsType[*canon.Error](err); ok {
			return nil, faultf(Invalid, err, "%s", e.Reason)
		}
		return nil, faultf(Invalid, err, "the group is not JSON")
	}
	if root.Kind() != canon.Object {
		return nil, fault(Invalid, "a group is a JSON object")
	}
	key, _ := root.Get("key")
	if !validKey(key) {
		return nil, fault(Invalid, "key must be 16 to 128 of A-Z a-z 0-9 _ -")
	}
	sum := sha256.Sum256(root.AppendCanonical(nil))
	p := &Proposal{Key: key.Str(), Digest: [16]byte(sum[:16])}
	if p.Edits, err = decodeEdits(root); err != nil {
		p.Edits, p.Err = nil, err
	}
	return p, nil
}

func validKey(v canon.Value) bool { return v.Kind() == canon.String && validKeyText(v.Str()) }

func validKeyText(s string) bool {
	if len(s) < minKeyLen || len(s) > maxKeyLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func decodeEdits(root canon.Value) ([]Edit, error) {
	o := object{v: root}
	o.need("key", canon.String)
	list := o.need("edits", canon.Array).Elements()
	if err := o.close(); err != nil {
		return nil, faultf(Invalid, nil, "%s", err)
	}
	if len(list) == 0 || len(list) > MaxEdits {
		return nil, faultf(Invalid, nil, "edits must have 1 to %d elements", MaxEdits)
	}
	edits := make([]Edit, len(list))
	for i, v := range list {
		if err := decodeEdit(v, &edits[i]); err != nil {
			// Everything below is a text of this package, of canon or of beef: all of them public.
			return nil, &Error{Code: Invalid, Edit: i, Reason: publicText(err), cause: err}
		}
	}
	return edits, nil
}

func publicText(err error) string {
	if e, ok := errors.AsType[*beef.Error](err); ok {
		return "beef: " + e.Reason
	}
	return err.Error()
}

func decodeEdit(v canon.Value, e *Edit) error {
	o := object{v: v}
	op := o.need("op", canon.String).Str()
	switch op {
	case "put":
		e.Op = Put
		decodePut(&o, e)
	case "spend":
		e.Op = Spend
		e.Outpoint = o.outpoint("outpoint")
		e.SpendingTxID = o.hex32("spendingTxid")
		e.BEEF = o.bytes("beef")
	case "withdraw":
		e.Op = Withdraw
		e.Outpoint = o.outpoint("outpoint")
		e.Reason = o.text("reason", MaxTextBytes)
	case "invalidate":
		e.Op = Invalidate
		e.ContextID = o.text("contextId", MaxTextBytes)
		e.Reason = o.text("reason", MaxTextBytes)
	default:
		o.fail("op must be put, spend, withdraw or invalidate")
	}
	if err := o.close(); err != nil {
		return err
	}
	switch e.Op {
	case Put:
		return beef.CheckOutput(e.BEEF, e.Outpoint.TxID, e.Outpoint.Index)
	case Spend:
		return beef.CheckSpend(e.BEEF, e.SpendingTxID, e.Outpoint.TxID, e.Outpoint.Index)
	}
	return nil
}

func decodePut(o *object, e *Edit) {
	out := o.object("output")
	e.Outpoint = out.outpointHere()
	e.BEEF = out.bytes("beef")
	o.adopt(out.close())

	if v, ok := o.maybe("attributes", canon.Object); ok {
		list, err := decodeAttributeObject(v)
		o.adopt(err)
		e.Attributes = list
	}
	if v, ok := o.maybe("order", canon.String); ok {
		e.Order = []byte(v.Str())
		if len(e.Order) == 0 {
			e.Order = nil
		}
		if len(e.Order) > MaxOrderBytes {
			o.fail("order has more than 128 bytes")
		}
	}
	if v, ok := o.maybe("context", canon.Object); ok {
		c := &object{v: v}
		e.Context = &Context{Schema: c.text("schema", MaxTextBytes), Bytes: c.bytes("bytes")}
		if c.err == nil && !absoluteIRI(e.Context.Schema) {
			c.fail("schema must be an absolute IRI")
		}
		o.adopt(c.close())
	}
	if v, ok := o.maybe("expiresAt", canon.String); ok {
		t, err := canon.ParseU64(v.Str())
		if err != nil || t == 0 || t > maxSequence {
			o.fail("expiresAt must be a Unix second from 1 to 9223372036854775806, in a decimal string")
		}
		e.ExpiresAt = t
	}
	if v, ok := o.maybe("readers", canon.Array); ok {
		e.HasReaders = true
		for _, r := range v.Elements() {
			id, err := canon.ParseIdentity(r.Str())
			if r.Kind() != canon.String || err != nil {
				o.fail("a reader must be a compressed public key in lowercase hexadecimal")
				return
			}
			e.Readers = append(e.Readers, id)
		}
		slices.SortFunc(e.Readers, func(a, b [33]byte) int { return bytes.Compare(a[:], b[:]) })
		e.Readers = slices.Compact(e.Readers)
		if len(e.Readers) == 0 {
			o.fail(noReaders)
		}
	}
}

// checkShape holds a proposal that was not decoded from JSON to the same bounds.
func checkShape(p *Proposal) error {
	if !validKeyText(p.Key) {
		return fault(Invalid, "key must be 16 to 128 of A-Z a-z 0-9 _ -")
	}
	if len(p.Edits) == 0 || len(p.Edits) > MaxEdits {
		return faultf(Invalid, nil, "edits must have 1 to %d elements", MaxEdits)
	}
	for i := range p.Edits {
		if err := checkEdit(&p.Edits[i]); err != nil {
			return editFault(i, "%s", err)
		}
	}
	return nil
}

func checkEdit(e *Edit) error {
	text := func(name, s string) error {
		if canon.CheckString(s, MaxTextBytes) != nil {
			return fmt.Errorf("%s must have 1 to %d bytes", name, MaxTextBytes)
		}
		return nil
	}
	switch e.Op {
	case Put:
	case Spend:
		return nil
	case Withdraw:
		return text("reason", e.Reason)
	case Invalidate:
		return errors.Join(text("contextId", e.ContextID), text("reason", e.Reason))
	default:
		return errors.New("op must be put, spend, withdraw or invalidate")
	}
	if len(e.Order) > MaxOrderBytes {
		return errors.New("order has more than 128 bytes")
	}
	if e.ExpiresAt > maxSequence {
		return errors.New("expiresAt is out of range")
	}
	if e.HasReaders && len(e.Readers) == 0 {
		return errors.New(noReaders)
	}
	if !slices.IsSortedFunc(e.Readers, func(a, b [33]byte) int { return bytes.Compare(a[:], b[:]) }) {
		return errors.New("readers must be sorted")
	}
	if c := e.Context; c != nil && (canon.CheckString(c.Schema, MaxTextBytes) != nil || !absoluteIRI(c.Schema)) {
		return errors.New("schema must be an absolute IRI of at most 1024 bytes")
	}
	return checkAttributes(e.Attributes)
}

const noReaders = "readers is empty, so nobody could read the row: leave it out or withdraw the row"

func checkAttributes(list []Attribute) error {
	pairs := 0
	for i, a := range list {
		if canon.CheckString(a.Name, MaxAttributeBytes) != nil || (i > 0 && list[i-1].Name >= a.Name) {
			return errors.New("attribute names must have 1 to 256 bytes, be sorted and distinct")
		}
		if len(a.Values) == 0 {
			return errors.New("an attribute without values is left out")
		}
		for j, v := range a.Values {
			if canon.CheckString(v, MaxAttributeBytes) != nil || (j > 0 && a.Values[j-1] >= v) {
				return errors.New("attribute values must have 1 to 256 bytes, be sorted and distinct")
			}
		}
		if pairs += len(a.Values); pairs > MaxAttributePairs {
			return errors.New("a row has at most 64 attribute name/value pairs")
		}
	}
	return nil
}

// decodeAttributeObject reads {"name":["value",...],...}. Names are sorted, values sorted and distinct; a name
// without values is left out.
func decodeAttributeObject(v canon.Value) ([]Attribute, error) {
	var list []Attribute
	pairs := 0
	for _, m := range v.Members() {
		if canon.CheckString(m.Name, MaxAttributeBytes) != nil {
			return nil, errors.New("an attribute name must have 1 to 256 bytes")
		}
		if m.Value.Kind() != canon.Array {
			return nil, errors.New("an attribute's values must be an array of strings")
		}
		a := Attribute{Name: m.Name}
		for _, value := range m.Value.Elements() {
			if value.Kind() != canon.String || canon.CheckString(value.Str(), MaxAttributeBytes) != nil {
				return nil, errors.New("an attribute value must be a string of 1 to 256 bytes")
			}
			a.Values = append(a.Values, value.Str())
		}
		if pairs += len(a.Values); pairs > MaxAttributePairs {
			return nil, errors.New("a row has at most 64 attribute name/value pairs")
		}
		if len(a.Values) > 0 {
			slices.Sort(a.Values)
			a.Values = slices.Compact(a.Values)
			list = append(list, a)
		}
	}
	// canon sorts members by UTF-16; rows are kept in the plain order of bytes.
	slices.SortFunc(list, func(a, b Attribute) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return list, nil
}

// absoluteIRI looks for a scheme, a colon and something behind it, without spaces or controls.
func absoluteIRI(s string) bool {
	scheme := true
	for i, r := range s {
		if r <= ' ' || r == 0x7f || bytes.ContainsRune([]byte("<>\"{}|\\^`"), r) {
			return false
		}
		if !scheme {
			continue
		}
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		switch {
		case r == ':' && i > 0:
			scheme = false
			if i == len(s)-1 {
				return false
			}
		case letter, i > 0 && (r >= '0' && r <= '9' || r == '+' || r == '-' || r == '.'):
		default:
			return false
		}
	}
	return !scheme
}

// object reads one closed JSON object: every member is asked for by name, once, and close refuses what was not. The first
// fault stays; later asks answer zero values.
type object struct {
	v    canon.Value
	seen int
	err  error
}

func (o *object) fail(text string) { o.adopt(errors.New(text)) }

func (o *object) adopt(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *object) maybe(name string, kind canon.Kind) (canon.Value, bool) {
	v, ok := o.v.Get(name)
	if !ok {
		return canon.Value{}, false
	}
	o.seen++
	if v.Kind() != kind {
		o.adopt(fmt.Errorf("%s must be %s", name, article(kind)))
		return canon.Value{}, false
	}
	return v, true
}

func article(kind canon.Kind) string {
	switch kind {
	case canon.Array:
		return "an array"
	case canon.Object:
		return "an object"
	}
	return "a " + kind.String()
}

func (o *object) need(name string, kind canon.Kind) canon.Value {
	if o.v.Kind() != canon.Object {
		o.fail("expected an object")
		return canon.Value{}
	}
	v, ok := o.maybe(name, kind)
	if !ok {
		o.adopt(fmt.Errorf("%s is missing", name))
	}
	return v
}

func (o *object) object(name string) *object { return &object{v: o.need(name, canon.Object)} }

func (o *object) text(name string, limit int) string {
	s := o.need(name, canon.String).Str()
	if canon.CheckString(s, limit) != nil {
		o.adopt(fmt.Errorf("%s must have 1 to %d bytes", name, limit))
	}
	return s
}

func (o *object) bytes(name string) []byte {
	b, err := canon.ParseBytes(o.need(name, canon.String).Str())
	if err != nil {
		o.adopt(fmt.Errorf("%s must be canonical padded base64", name))
	}
	return b
}

func (o *object) hex32(name string) [32]byte {
	h, err := canon.ParseHex32(o.need(name, canon.String).Str())
	if err != nil {
		o.adopt(fmt.Errorf("%s must be 64 lowercase hexadecimal characters", name))
	}
	return h
}

func (o *object) outpointHere() Outpoint {
	p := Outpoint{TxID: o.hex32("txid")}
	n, ok := o.need("outputIndex", canon.Number).Int()
	if !ok || n < 0 || n > 1<<32-1 {
		o.fail("outputIndex must be an integer from 0 to 4294967295")
		return Outpoint{}
	}
	p.Index = uint32(n)
	return p
}

func (o *object) outpoint(name string) Outpoint {
	p := o.object(name)
	out := p.outpointHere()
	o.adopt(p.close())
	return out
}

// close reports the first fault, or a member nobody asked for.
func (o *object) close() error {
	if o.err == nil && o.seen < len(o.v.Members()) {
		// The name is the sender's text: it is not repeated.
		return errors.New("an object has a field that is not part of the contract")
	}
	return o.err
}
