package livefeed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
)

// A log record is the changes of one group, complete but for evidence bytes:
//
//	record  = version(1 byte = 1) n:uvarint change*n
//	change  = op(1) flags(1) outpoint(36) [before:state] [after:state] [spend] [reason:string] [contextId:string]
//	flags   = 1 before | 2 after | 4 after equals before, and is not repeated
//	          spend follows for op 2, reason for ops 3 and 4, contextId for op 4; op 4 has no outpoint
//	spend   = spendingTxid(32) evidence
//	state   = flags(1) evidence attributes order:string [schema:string context:string] [expiresAt:uvarint] [readers]
//	flags   = 1 hidden | 2 context | 4 expiry | 8 readers
//	evidence = sha256(32) size:uvarint
//	attributes = n:uvarint (name:string m:uvarint value:string*m)*n
//	readers = n:uvarint key(33)*n
//	string  = length:uvarint bytes
//
// Uvarints are minimal and every byte is accounted for, so a record has exactly one reading and one spelling. The
// encoding is frozen by a golden test: what changes it takes a new version byte and keeps reading the old one.
const recordVersion = 1

const (
	changeBefore = 1 << iota
	changeAfter
	changeSame
)

const (
	stateHidden = 1 << iota
	stateContext
	stateExpiry
	stateReaders
)

func appendRecord(b []byte, changes []Change) []byte {
	b = append(b, recordVersion)
	b = binary.AppendUvarint(b, uint64(len(changes)))
	for i := range changes {
		b = appendChange(b, &changes[i])
	}
	return b
}

func appendChange(b []byte, c *Change) []byte {
	var flags byte
	if c.Before != nil {
		flags |= changeBefore
	}
	switch {
	case c.After == nil:
	case c.Before != nil && sameState(c.Before, c.After):
		flags |= changeSame
	default:
		flags |= changeAfter
	}
	b = append(b, byte(c.Op), flags)
	if c.Op != Invalidate {
		o := c.Outpoint.Bytes()
		b = append(b, o[:]...)
	}
	if flags&changeBefore != 0 {
		b = appendState(b, c.Before)
	}
	if flags&changeAfter != 0 {
		b = appendState(b, c.After)
	}
	switch c.Op {
	case Spend:
		b = append(b, c.SpendingTxID[:]...)
		b = appendEvidence(b, c.SpendEvidence)
	case Withdraw:
		b = appendText(b, c.Reason)
	case Invalidate:
		b = appendText(b, c.Reason)
		b = appendText(b, c.ContextID)
	}
	return b
}

func sameState(a, b *State) bool { return a == b || reflect.DeepEqual(a, b) }

func appendState(b []byte, s *State) []byte {
	var flags byte
	if s.Hidden {
		flags |= stateHidden
	}
	if s.Context != nil {
		flags |= stateContext
	}
	if s.ExpiresAt != 0 {
		flags |= stateExpiry
	}
	if s.Readers != nil {
		flags |= stateReaders
	}
	b = append(b, flags)
	b = appendEvidence(b, s.Evidence)
	b = appendAttributes(b, s.Attributes)
	b = appendText(b, s.Order)
	if s.Context != nil {
		b = appendText(b, s.Context.Schema)
		b = appendText(b, s.Context.Bytes)
	}
	if s.ExpiresAt != 0 {
		b = binary.AppendUvarint(b, s.ExpiresAt)
	}
	if s.Readers != nil {
		b = binary.AppendUvarint(b, uint64(len(s.Readers)))
		for _, r := range s.Readers {
			b = append(b, r[:]...)
		}
	}
	return b
}

func appendEvidence(b []byte, e Evidence) []byte {
	b = append(b, e.SHA256[:]...)
	return binary.AppendUvarint(b, uint64(e.Size))
}

// appendAttributes is also the encoding of row_version.attributes.
func appendAttributes(b []byte, list []Attribute) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, a := range list {
		b = appendText(b, a.Name)
		b = binary.AppendUvarint(b, uint64(len(a.Values)))
		for _, v := range a.Values {
			b = appendText(b, v)
		}
	}
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// decodeRecord reads a log record. The result does not alias b.
func decodeRecord(b []byte) ([]Change, error) {
	r := recordReader{b: b}
	if v := r.byte(); r.err == nil && v != recordVersion {
		return nil, fmt.Errorf("log record of version %d, this overlayd reads version %d", v, recordVersion)
	}
	// The smallest change is an invalidate with two empty texts: 4 bytes.
	n := r.count(4)
	changes := make([]Change, 0, n)
	for range n {
		changes = append(changes, r.change())
		if r.err != nil {
			break
		}
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("read a log record: %w", err)
	}
	return changes, nil
}

func decodeAttributes(b []byte) ([]Attribute, error) {
	r := recordReader{b: b}
	list := r.attributes()
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("read a row's attributes: %w", err)
	}
	return list, nil
}

// recordReader takes a record apart. After the first fault everything reads as zero and err says what it was. Counts are
// checked against the bytes that remain before anything of that size is made.
type recordReader struct {
	b   []byte
	err error
}

var (
	errShort    = errors.New("it is cut short")
	errTrailing = errors.New("it has trailing bytes")
	errSpelling = errors.New("it is not in its one spelling")
)

func (r *recordReader) fail(err error) {
	if r.err == nil {
		r.err = err
		r.b = nil
	}
}

func (r *recordReader) end() error {
	if r.err == nil && len(r.b) != 0 {
		r.err = errTrailing
	}
	return r.err
}

func (r *recordReader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > len(r.b) {
		r.fail(errShort)
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *recordReader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *recordReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	if n > 1 && r.b[n-1] == 0 {
		r.fail(errSpelling)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads how many items of at least size bytes follow.
func (r *recordReader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

func (r *recordReader) text() string { return string(r.take(r.count(1))) }

func (r *recordReader) bytes() []byte { return append([]byte{}, r.take(r.count(1))...) }

func (r *recordReader) hash() (out [32]byte) {
	copy(out[:], r.take(len(out)))
	return out
}

func (r *recordReader) evidence() Evidence {
	e := Evidence{SHA256: r.hash()}
	size := r.uvarint()
	if size > math.MaxInt32 {
		r.fail(errSpelling)
		return Evidence{}
	}
	e.Size = int(size)
	return e
}

func (r *recordReader) attributes() []Attribute {
	n := r.count(2)
	if n == 0 {
		return nil
	}
	list := make([]Attribute, 0, n)
	for range n {
		a := Attribute{Name: r.text()}
		if m := r.count(1); m > 0 {
			a.Values = make([]string, 0, m)
			for range m {
				a.Values = append(a.Values, r.text())
			}
		}
		if r.err != nil {
			return nil
		}
		list = append(list, a)
	}
	return list
}

func (r *recordReader) state() *State {
	flags := r.byte()
	if flags&^(stateHidden|stateContext|stateExpiry|stateReaders) != 0 {
		r.fail(errSpelling)
		return nil
	}
	s := &State{Hidden: flags&stateHidden != 0, Evidence: r.evidence(), Attributes: r.attributes()}
	if order := r.bytes(); len(order) > 0 {
		s.Order = order
	}
	if flags&stateContext != 0 {
		s.Context = &Context{Schema: r.text(), Bytes: r.bytes()}
	}
	if flags&stateExpiry != 0 {
		if s.ExpiresAt = r.uvarint(); s.ExpiresAt == 0 {
			r.fail(errSpelling)
		}
	}
	if flags&stateReaders != 0 {
		n := r.count(33)
		s.Readers = make([][33]byte, n)
		for i := range s.Readers {
			copy(s.Readers[i][:], r.take(33))
		}
	}
	return s
}

func (r *recordReader) change() Change {
	c := Change{Op: Op(r.byte())}
	flags := r.byte()
	if r.err == nil && (c.Op < Put || c.Op > Expire || flags > changeBefore|changeSame) {
		r.fail(errSpelling)
	}
	if c.Op != Invalidate {
		if b := r.take(outpointLen); b != nil {
			c.Outpoint, _ = outpointOf(b)
		}
	}
	if flags&changeBefore != 0 {
		c.Before = r.state()
	}
	if flags&changeAfter != 0 {
		c.After = r.state()
	}
	if flags&changeSame != 0 {
		if flags&changeBefore == 0 || flags&changeAfter != 0 {
			r.fail(errSpelling)
		}
		c.After = c.Before
	}
	switch c.Op {
	case Spend:
		c.SpendingTxID = r.hash()
		c.SpendEvidence = r.evidence()
	case Withdraw:
		c.Reason = r.text()
	case Invalidate:
		c.Reason = r.text()
		c.ContextID = r.text()
	}
	if r.err == nil && flags == changeBefore|changeAfter && sameState(c.Before, c.After) {
		r.fail(errSpelling)
	}
	return c
}
