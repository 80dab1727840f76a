package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// errTx means that bytes are no transaction in its one serialisation.
var errTx = errors.New("these bytes are no transaction")

// parsedTx is what selection and verification read of a raw transaction.
type parsedTx struct {
	inputs   []spend.Input
	lockTime uint32
	outputs  []Coin
}

// TxIDOf is the double SHA-256 of raw bytes, in display order.
func TxIDOf(raw []byte) spend.TxID {
	once := sha256.Sum256(raw)
	id := spend.TxID(sha256.Sum256(once[:]))
	slices.Reverse(id[:])
	return id
}

// parseTx reads a transaction. Scripts share the bytes of raw.
func parseTx(raw []byte) (parsedTx, error) {
	r := txReader{raw}
	var tx parsedTx
	r.take(4)
	for range r.count(41) {
		id := spend.TxID(r.hash())
		slices.Reverse(id[:])
		in := spend.Input{Outpoint: spend.Outpoint{TxID: id, Index: r.u32()}}
		r.take(r.varint())
		in.Sequence = r.u32()
		tx.inputs = append(tx.inputs, in)
	}
	for range r.count(9) {
		sats := r.u64()
		tx.outputs = append(tx.outputs, Coin{Satoshis: sats, Script: r.take(r.varint()), Known: true})
	}
	tx.lockTime = r.u32()
	if r.b == nil || len(r.b) > 0 || len(tx.inputs) == 0 {
		return parsedTx{}, errTx
	}
	return tx, nil
}

// txReader reads until something is missing; then b is nil and stays so.
type txReader struct{ b []byte }

func (r *txReader) take(n uint64) []byte {
	if r.b == nil || n > uint64(len(r.b)) {
		r.b = nil
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *txReader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *txReader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *txReader) hash() (h [32]byte) {
	copy(h[:], r.take(32))
	return h
}

// varint refuses what could be shorter.
func (r *txReader) varint() uint64 {
	first := r.take(1)
	if first == nil {
		return 0
	}
	width, least := uint64(0), uint64(0)
	switch first[0] {
	case 0xfd:
		width, least = 2, 0xfd
	case 0xfe:
		width, least = 4, 1<<16
	case 0xff:
		width, least = 8, 1<<32
	default:
		return uint64(first[0])
	}
	var b [8]byte
	copy(b[:], r.take(width))
	n := binary.LittleEndian.Uint64(b[:])
	if n < least {
		r.b = nil
		return 0
	}
	return n
}

// count refuses more elements than the bytes that are left can hold.
func (r *txReader) count(size uint64) uint64 {
	n := r.varint()
	if n > uint64(len(r.b))/size {
		r.b = nil
		return 0
	}
	return n
}

// splice cuts base64(evidence) out of canonical JSON, so that it is kept once.
func splice(canonical []byte, encoded []byte) (head, tail []byte, ok bool) {
	if len(encoded) == 0 {
		return canonical, nil, false
	}
	at := bytes.Index(canonical, encoded)
	if at < 0 {
		return canonical, nil, false
	}
	return canonical[:at], canonical[at+len(encoded):], true
}
