package canon

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The hard limits of the protocol (BRC-192 section 9).
const (
	MaxBytes    = 4 << 20 // bytes of one message
	MaxDepth    = 32      // nesting; the root value counts 1, and so does a scalar
	MaxElements = 4096    // elements of one array
	MaxKeys     = 256     // members of one object
)

const (
	maxPath  = 256
	fewNames = 32  // a text with fewer names is parsed sooner without remembering any
	maxNames = 128 // names that a parse remembers
)

// Limits bounds one [Parse]. A zero field means the protocol's hard limit.
type Limits struct {
	MaxBytes    int // bytes of the input; a caller with a bound of its own may set more than 4 MiB
	MaxDepth    int // nesting of values; the root counts 1
	MaxElements int // elements of one array
	MaxKeys     int // members of one object
}

func (l Limits) orHard() Limits {
	if l.MaxBytes == 0 {
		l.MaxBytes = MaxBytes
	}
	if l.MaxDepth == 0 {
		l.MaxDepth = MaxDepth
	}
	if l.MaxElements == 0 {
		l.MaxElements = MaxElements
	}
	if l.MaxKeys == 0 {
		l.MaxKeys = MaxKeys
	}
	return l
}

// Parse reads exactly one JSON value, with white space around it and nothing
// else. Errors are [*Error]: TooLarge when a limit of lim was reached, Invalid
// otherwise. Numbers are finite doubles; whether they are integers is for the
// caller to ask ([Value.Int], [Value.CheckIntegers]). The result does not alias
// data.
func Parse(data []byte, lim Limits) (Value, error) {
	p := parser{lim: lim.orHard()}
	if len(data) > p.lim.MaxBytes {
		return Value{}, &Error{Code: TooLarge, Reason: reasonBytes}
	}
	// A bytes.Buffer is read in place by the decoder, without a copy.
	p.dec = jsontext.NewDecoder(bytes.NewBuffer(data))
	v, err := p.value(1)
	if err != nil {
		return Value{}, err
	}
	if _, err := p.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Value{}, invalid(reasonTrailing)
	}
	return v, nil
}

type parser struct {
	dec *jsontext.Decoder
	lim Limits

	// Elements and members of the containers that are open, the innermost last: a container gets a slice of its own size when it ends.
	elements []Value
	members  []Member
	names    map[string]string // member names, which recur in a long text; nil before there were fewNames
	named    int               // names so far
}

func (p *parser) value(depth int) (Value, error) {
	if depth > p.lim.MaxDepth {
		return Value{}, p.limited(reasonDepth)
	}
	tok, err := p.dec.ReadToken()
	if err != nil {
		return Value{}, p.syntax(err)
	}
	switch tok.Kind() {
	case jsontext.KindNull:
		return Value{}, nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return Value{v: tok.Bool()}, nil
	case jsontext.KindString:
		return Value{v: tok.String()}, nil
	case jsontext.KindNumber:
		return p.number(tok.String())
	case jsontext.KindBeginArray:
		return p.array(depth)
	case jsontext.KindBeginObject:
		return p.object(depth)
	}
	return Value{}, p.fail(reasonSyntax)
}

func (p *parser) array(depth int) (Value, error) {
	from := len(p.elements)
	for p.dec.PeekKind() != jsontext.KindEndArray {
		if len(p.elements)-from == p.lim.MaxElements {
			return Value{}, p.limited(reasonElements)
		}
		e, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		p.elements = append(p.elements, e)
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return Value{}, p.syntax(err)
	}
	elements := append([]Value(nil), p.elements[from:]...)
	clear(p.elements[from:])
	p.elements = p.elements[:from]
	return Value{v: elements}, nil
}

func (p *parser) object(depth int) (Value, error) {
	from := len(p.members)
	for p.dec.PeekKind() != jsontext.KindEndObject {
		if len(p.members)-from == p.lim.MaxKeys {
			return Value{}, p.limited(reasonKeys)
		}
		name, err := p.name()
		if err != nil {
			return Value{}, err
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		p.members = append(p.members, Member{Name: name, Value: v})
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return Value{}, p.syntax(err)
	}
	members := append([]Member(nil), p.members[from:]...)
	clear(p.members[from:])
	p.members = p.members[:from]
	sortMembers(members)
	return Value{v: members}, nil
}

// name reads a member's name. One that was met before is not made again.
func (p *parser) name() (string, error) {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return "", p.syntax(err)
	}
	p.named++
	if known, ok := p.names[string(raw)]; ok {
		return known, nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "", p.syntax(err)
	}
	name := string(text)
	switch {
	case p.named < fewNames || len(p.names) == maxNames:
		return name, nil
	case p.names == nil:
		p.names = make(map[string]string, fewNames)
	}
	p.names[string(raw)] = name
	return name, nil
}

// number takes the nearest double of a token the decoder has found to be a
// well-formed JSON number. The decoder's own Float clamps 1e309 and reads
// 1e-400 as zero, so the text is judged here.
func (p *parser) number(text string) (Value, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return Value{}, p.fail(reasonNumber)
	}
	if f == 0 {
		if !writtenAsZero(text) {
			return Value{}, p.fail(reasonNumber)
		}
		f = 0 // drop the sign of -0
	}
	return Value{v: f}, nil
}

// writtenAsZero reports whether the digits before the exponent are all zero.
func writtenAsZero(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c == 'e' || c == 'E':
			return true
		case c >= '1' && c <= '9':
			return false
		}
	}
	return true
}

func (p *parser) limited(reason string) *Error {
	return &Error{Code: TooLarge, Path: p.path(), Reason: reason}
}

func (p *parser) fail(reason string) *Error {
	return &Error{Code: Invalid, Path: p.path(), Reason: reason}
}

func (p *parser) syntax(err error) *Error {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return p.fail(reasonDuplicate)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return p.fail(reasonEmpty)
	}
	return p.fail(reasonSyntax)
}

func (p *parser) path() string {
	path := string(p.dec.StackPointer())
	if len(path) > maxPath {
		path = path[:maxPath]
	}
	return path
}
