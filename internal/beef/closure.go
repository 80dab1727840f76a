package beef

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Member is one raw transaction of a closure, read whole. Its slices are shared
// with the bytes it was read from: read only.
type Member struct {
	TxID     [32]byte // display order
	Raw      []byte
	Version  uint32
	Inputs   []Input
	LockTime uint32
	Outputs  []Output
	Coinbase bool
	Proof    *Proof // nil: the bundle does not say that it is mined

	unlocking [][]byte
}

// Output is one output of a [Member].
type Output struct {
	Satoshis uint64
	Script   []byte
}

// Proof is where a Merkle path leads: not that the chain has such a block.
type Proof struct {
	Height uint32
	Root   [32]byte // display order
	Offset uint64   // place in the block; a coinbase has 0
}

// ParseTx reads one raw transaction as strictly as a bundle does, nothing after
// it. The error is an [*Error].
func ParseTx(raw []byte) (*Member, error) {
	c := &cursor{data: raw}
	var e entry
	c.transaction(&e)
	if c.err == nil && c.pos != len(raw) {
		c.fail("bytes after the transaction")
	}
	if c.err != nil {
		return nil, c.err
	}
	return decode(raw, e), nil
}

// decode reads a transaction that the scan has walked: nothing can be short.
func decode(raw []byte, e entry) *Member {
	c := &cursor{data: raw}
	m := &Member{
		TxID: e.txid, Raw: raw, Version: c.uint32(),
		Inputs: make([]Input, e.inputs), Outputs: make([]Output, e.outputs), unlocking: make([][]byte, e.inputs),
	}
	c.varint()
	for i := range m.Inputs {
		m.Inputs[i].Prev = reversed(c.take(32, "a txid"))
		m.Inputs[i].Index = c.uint32()
		m.unlocking[i] = c.take(c.varint(), "an unlocking script")
		m.Inputs[i].Sequence = c.uint32()
	}
	c.varint()
	for i := range m.Outputs {
		if b := c.take(8, "a value"); b != nil {
			m.Outputs[i].Satoshis = binary.LittleEndian.Uint64(b)
		}
		m.Outputs[i].Script = c.take(c.varint(), "a locking script")
	}
	m.LockTime = c.uint32()
	m.Coinbase = len(m.Inputs) == 1 && m.Inputs[0].Prev == [32]byte{} && m.Inputs[0].Index == math.MaxUint32
	return m
}

// Closure gives the transaction txid and all of its ancestors that the bundle
// holds, parents first and the target last, with what their Merkle paths lead
// to. Entries outside the closure are not looked at. missing lists, once each and
// in the order they are met, the parents without raw bytes of members that have
// no proof.
//
// The error is an [*Error]: [ErrNotFound], [ErrTxIDOnly], [ErrSubject],
// [ErrLimit] when there are more than limit members, or a path that is broken.
// The work is bounded by the size of the bundle.
func (b *Bundle) Closure(txid [32]byte, limit int) (members []Member, missing [][32]byte, err error) {
	if _, _, err := b.target(txid); err != nil {
		return nil, nil, err
	}
	p := &paths{bundle: b, folded: make([]*folded, b.layout.bumps)}
	absent := map[[32]byte]bool{}
	met := map[[32]byte]bool{txid: true}
	type step struct {
		member *Member
		next   int // input to look at
	}
	open := func(id [32]byte) (step, error) {
		if len(met) > limit {
			return step{}, &Error{Reason: fmt.Sprintf("more than %d transactions stand behind %x", limit, txid), kind: ErrLimit}
		}
		e := b.layout.entries[b.index[id]]
		m := decode(b.data[e.start:e.end:e.end], e)
		m.Proof, err = p.proof(e, m)
		return step{member: m}, err
	}
	first, err := open(txid)
	if err != nil {
		return nil, nil, err
	}
	for way := []step{first}; len(way) > 0; {
		at := &way[len(way)-1]
		if at.next == len(at.member.Inputs) {
			members = append(members, *at.member)
			way = way[:len(way)-1]
			continue
		}
		prev := at.member.Inputs[at.next].Prev
		at.next++
		if at.member.Coinbase || met[prev] {
			continue
		}
		if _, err := b.find(prev); err != nil {
			if at.member.Proof == nil && !absent[prev] {
				absent[prev] = true
				missing = append(missing, prev)
			}
			continue
		}
		met[prev] = true
		parent, err := open(prev)
		if err != nil {
			return nil, nil, err
		}
		way = append(way, parent)
	}
	return members, missing, nil
}
