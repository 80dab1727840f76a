package canon

import (
	"math"
	"slices"
)

// MaxSafeInteger is 2^53-1, the largest integer a protocol number may hold.
const MaxSafeInteger = 1<<53 - 1

// Kind is the JSON type of a [Value].
type Kind uint8

// The six JSON types.
const (
	Null Kind = iota
	Boolean
	Number
	String
	Array
	Object
)

// String returns the JSON name of the kind.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Boolean:
		return "boolean"
	case Number:
		return "number"
	case String:
		return "string"
	case Array:
		return "array"
	case Object:
		return "object"
	}
	return "unknown"
}

// Value is one immutable JSON value. The zero Value is null. Values cannot be
// compared with ==; use [Value.Equal].
type Value struct {
	_ [0]func()
	v any // nil, bool, float64, string, []Value, or []Member in canonical order
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// Kind returns the JSON type of v.
func (v Value) Kind() Kind {
	switch v.v.(type) {
	case bool:
		return Boolean
	case float64:
		return Number
	case string:
		return String
	case []Value:
		return Array
	case []Member:
		return Object
	}
	return Null
}

// Bool returns the boolean v holds, or false when it is of another kind.
func (v Value) Bool() bool {
	b, _ := v.v.(bool)
	return b
}

// Str returns the string v holds, or "" when it is of another kind.
func (v Value) Str() string {
	s, _ := v.v.(string)
	return s
}

// Float returns the number v holds, or 0 when it is of another kind.
func (v Value) Float() float64 {
	f, _ := v.v.(float64)
	return f
}

// Int returns the number v holds as an integer. It reports false when v is not
// a number, is not integral, or is larger than [MaxSafeInteger] in size. The
// number -0 is 0.
func (v Value) Int() (int64, bool) {
	f, ok := v.v.(float64)
	if !ok || f != math.Trunc(f) || math.Abs(f) > MaxSafeInteger {
		return 0, false
	}
	return int64(f), true
}

// Elements returns the elements of an array, nil for every other kind. The
// caller must not change the slice.
func (v Value) Elements() []Value {
	e, _ := v.v.([]Value)
	return e
}

// Members returns the members of an object in canonical order, nil for every
// other kind. The caller must not change the slice.
func (v Value) Members() []Member {
	m, _ := v.v.([]Member)
	return m
}

// Get returns the member of that name. It reports false when v is not an object
// or has no such member; a member holding null is present.
func (v Value) Get(name string) (Value, bool) {
	for _, m := range v.Members() {
		if m.Name == name {
			return m.Value, true
		}
	}
	return Value{}, false
}

// Equal reports whether v and o have the same canonical bytes.
func (v Value) Equal(o Value) bool {
	switch a := v.v.(type) {
	case []Value:
		b, ok := o.v.([]Value)
		return ok && slices.EqualFunc(a, b, Value.Equal)
	case []Member:
		b, ok := o.v.([]Member)
		return ok && slices.EqualFunc(a, b, func(x, y Member) bool {
			return x.Name == y.Name && x.Value.Equal(y.Value)
		})
	}
	switch o.v.(type) {
	case []Value, []Member:
		return false
	}
	return v.v == o.v
}

// CheckIntegers returns an [*Error] when any number in v, at any depth, is not
// a safe integer. Numbers inside open containers (query, parameters,
// extensions) obey the same limit as those of protocol fields (BRC-192 s1).
func (v Value) CheckIntegers() error {
	switch x := v.v.(type) {
	case float64:
		if _, ok := v.Int(); !ok {
			return &Error{Code: Invalid, Reason: reasonInteger}
		}
	case []Value:
		for _, e := range x {
			if err := e.CheckIntegers(); err != nil {
				return err
			}
		}
	case []Member:
		for _, m := range x {
			if err := m.Value.CheckIntegers(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Obj makes an object. A name given twice is a mistake of the caller and
// panics; names that come from data must be known to be distinct.
func Obj(members ...Member) Value {
	m := slices.Clone(members)
	sortMembers(m)
	for i := 1; i < len(m); i++ {
		if m[i].Name == m[i-1].Name {
			panic("canon: Obj called with a repeated member name")
		}
	}
	return Value{v: m}
}

// Arr makes an array.
func Arr(elements ...Value) Value { return Value{v: slices.Clone(elements)} }

// Str makes a string. Malformed UTF-8 is written as U+FFFD.
func Str(s string) Value { return Value{v: s} }

// Num makes a number. A size above [MaxSafeInteger] would not survive the wire;
// it is a mistake of the caller and panics.
func Num(n int64) Value {
	if n > MaxSafeInteger || n < -MaxSafeInteger {
		panic("canon: Num called with an unsafe integer")
	}
	return Value{v: float64(n)}
}

// Bool makes true or false.
func Bool(b bool) Value { return Value{v: b} }

func sortMembers(m []Member) {
	byName := func(a, b Member) int { return compareUTF16(a.Name, b.Name) }
	if !slices.IsSortedFunc(m, byName) {
		slices.SortFunc(m, byName)
	}
}

// compareUTF16 orders two strings by their UTF-16 code units. For well-formed
// UTF-8 that is byte order, except that characters above U+FFFF (lead bytes
// F0..F4, surrogates D800..DFFF in UTF-16) come before U+E000..U+FFFF (lead
// bytes EE and EF).
func compareUTF16(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xF0 && (y == 0xEE || y == 0xEF) {
			return -1
		}
		if y >= 0xF0 && (x == 0xEE || x == 0xEF) {
			return 1
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}
