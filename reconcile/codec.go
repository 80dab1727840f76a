package reconcile

import (
	"encoding/binary"
	"fmt"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// coder writes a record, or reads one. Each record says its fields once, in code,
// so that what is written and what is read cannot differ (K1): a number has one
// spelling, and a record has no bytes left over.
type coder struct {
	out     []byte
	in      []byte
	reading bool
	bad     bool
}

// record is a value of the store.
type record interface{ code(*coder) }

const codecVersion = 1

func encode(r record) []byte {
	c := coder{out: make([]byte, 1, 128)}
	c.out[0] = codecVersion
	r.code(&c)
	return c.out
}

func decode(b []byte, r record) error {
	if len(b) == 0 || b[0] != codecVersion {
		if len(b) > 0 && b[0] > codecVersion {
			return ErrNewer
		}
		return fmt.Errorf("%w: a value has no version", ErrDamaged)
	}
	c := coder{in: b[1:], reading: true}
	r.code(&c)
	if c.bad || len(c.in) > 0 {
		return fmt.Errorf("%w: a %T cannot be read", ErrDamaged, r)
	}
	return nil
}

func (c *coder) fail() { c.bad, c.in = true, nil }

func (c *coder) u64(v *uint64) {
	if !c.reading {
		c.out = binary.AppendUvarint(c.out, *v)
		return
	}
	n, size := binary.Uvarint(c.in)
	if size <= 0 || size > 1 && c.in[size-1] == 0 {
		c.fail()
		n, size = 0, 0
	}
	*v, c.in = n, c.in[size:]
}

func (c *coder) u32(v *uint32) {
	n := uint64(*v)
	c.u64(&n)
	if *v = uint32(n); uint64(*v) != n {
		c.fail()
	}
}

func (c *coder) byte(v *byte) {
	if !c.reading {
		c.out = append(c.out, *v)
		return
	}
	if len(c.in) == 0 {
		c.fail()
		return
	}
	*v, c.in = c.in[0], c.in[1:]
}

func (c *coder) bool(v *bool) {
	var b byte
	if *v {
		b = 1
	}
	c.byte(&b)
	if b > 1 {
		c.fail()
	}
	*v = b == 1
}

func (c *coder) hash(v *[32]byte) {
	if !c.reading {
		c.out = append(c.out, v[:]...)
		return
	}
	if len(c.in) < len(v) {
		c.fail()
		return
	}
	c.in = c.in[copy(v[:], c.in):]
}

func (c *coder) txid(v *spend.TxID) { c.hash((*[32]byte)(v)) }

// bytes reads a nil for nothing: the difference is not kept.
func (c *coder) bytes(v *[]byte) {
	n := uint64(len(*v))
	c.u64(&n)
	if !c.reading {
		c.out = append(c.out, *v...)
		return
	}
	if n > uint64(len(c.in)) {
		c.fail()
		return
	}
	*v = nil
	if n > 0 {
		*v = append([]byte{}, c.in[:n]...)
	}
	c.in = c.in[n:]
}

func (c *coder) str(v *string) {
	b := []byte(*v)
	c.bytes(&b)
	if c.reading {
		*v = string(b)
	}
}

func (c *coder) outpoint(v *spend.Outpoint) {
	c.txid(&v.TxID)
	c.u32(&v.Index)
}

// most takes an enumeration whose greatest value is known. One beyond it is read as 0, so that it can stand for an index.
func (c *coder) most(v *byte, greatest byte) {
	c.byte(v)
	if *v > greatest {
		c.fail()
		*v = 0
	}
}

// option codes whether a value is there.
func option[T any](c *coder, v **T, code func(*T)) {
	there := *v != nil
	c.bool(&there)
	if !there {
		*v = nil
		return
	}
	if *v == nil {
		*v = new(T)
	}
	code(*v)
}

// list codes a slice. Every element takes at least a byte, so that a length has
// no power of its own.
func list[T any](c *coder, v *[]T, code func(*T)) {
	n := uint64(len(*v))
	c.u64(&n)
	if !c.reading {
		for i := range *v {
			code(&(*v)[i])
		}
		return
	}
	*v = nil
	if n > uint64(len(c.in)) {
		c.fail()
		return
	}
	for range n {
		var e T
		code(&e)
		if c.bad {
			return
		}
		*v = append(*v, e)
	}
}
