package verifytest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	crypto "github.com/bsv-blockchain/go-sdk/primitives/hash"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile/spend"
)

const sighashAll = 0x41 // ALL | FORKID

// Final is the sequence number of an input that never waits.
const Final = 0xffffffff

// key owns outputs.
type key struct {
	private *secp256k1.PrivateKey
	public  []byte // compressed
	lock    []byte // P2PKH script
}

// keys derives the owners of outputs: output n of every transaction belongs to
// key n mod 4.
var keys = func() (out [4]key) {
	for i := range out {
		seed := sha256.Sum256(fmt.Appendf(nil, "overlayd verifytest key %d", i))
		k := key{private: secp256k1.PrivKeyFromBytes(seed[:])}
		k.public = k.private.PubKey().SerializeCompressed()
		k.lock = append([]byte{0x76, 0xa9, 0x14}, crypto.Hash160(k.public)...)
		k.lock = append(k.lock, 0x88, 0xac)
		out[i] = k
	}
	return out
}()

// Tx is a transaction.
type Tx struct {
	ID      spend.TxID // display order
	Raw     []byte
	Outputs []Output

	parents []*Tx
	wire    [32]byte
}

// Output is one output of a [Tx].
type Output struct {
	Satoshis uint64
	Script   []byte
	key      int // -1: a script of the caller's
}

// Out names an output to spend.
type Out struct {
	Tx    *Tx
	Index uint32
}

// Out is output i of the transaction.
func (t *Tx) Out(i uint32) Out { return Out{t, i} }

// Outpoint is output i as the store names it.
func (t *Tx) Outpoint(i uint32) spend.Outpoint { return spend.Outpoint{TxID: t.ID, Index: i} }

// Payment says what a transaction does. Every output is P2PKH unless Scripts has
// one for it.
type Payment struct {
	From      []Out
	Sequences []uint32 // of the inputs; missing ones are [Final]
	LockTime  uint32
	Values    []uint64       // of the outputs; empty: one with all but 10 satoshis of what is spent
	Scripts   map[int][]byte // locking scripts of outputs
	Unlock    map[int][]byte // unlocking scripts of inputs, for outputs with a script
	Forged    bool           // the signature of the first input is of something else
}

// Pay makes a signed transaction. It is in no block until it is mined.
func Pay(p Payment) *Tx {
	t := &Tx{}
	in := uint64(0)
	for _, o := range p.From {
		in += o.Tx.Outputs[o.Index].Satoshis
		t.parents = append(t.parents, o.Tx)
	}
	values := p.Values
	if len(values) == 0 {
		values = []uint64{in - 10}
	}
	for i, v := range values {
		o := Output{Satoshis: v, Script: keys[i%len(keys)].lock, key: i % len(keys)}
		if s, ok := p.Scripts[i]; ok {
			o.Script, o.key = s, -1
		}
		t.Outputs = append(t.Outputs, o)
	}
	var prevouts, sequences, outputs []byte
	for i, o := range p.From {
		prevouts = append(append(prevouts, o.Tx.wire[:]...), le32(o.Index)...)
		sequences = append(sequences, le32(sequence(p, i))...)
	}
	for _, o := range t.Outputs {
		outputs = binary.LittleEndian.AppendUint64(outputs, o.Satoshis)
		outputs = append(beef.AppendCompactSize(outputs, uint64(len(o.Script))), o.Script...)
	}
	raw := beef.AppendCompactSize(le32(1), uint64(len(p.From)))
	for i, o := range p.From {
		raw = append(raw, prevouts[36*i:][:36]...)
		unlock, ok := p.Unlock[i]
		if spent := o.Tx.Outputs[o.Index]; !ok && spent.key >= 0 {
			unlock = sign(p, i, spent, prevouts, sequences, outputs)
		}
		raw = append(beef.AppendCompactSize(raw, uint64(len(unlock))), unlock...)
		raw = append(raw, le32(sequence(p, i))...)
	}
	raw = append(beef.AppendCompactSize(raw, uint64(len(t.Outputs))), outputs...)
	t.Raw = append(raw, le32(p.LockTime)...)
	t.name()
	return t
}

func (t *Tx) name() {
	t.wire = sha256d(t.Raw)
	t.ID = display(t.wire)
}

func sequence(p Payment, i int) uint32 {
	if i < len(p.Sequences) {
		return p.Sequences[i]
	}
	return Final
}

// sign makes the unlocking script of a P2PKH input: the digest of ALL|FORKID.
func sign(p Payment, i int, spent Output, prevouts, sequences, outputs []byte) []byte {
	pre := le32(1)
	for _, part := range [][]byte{prevouts, sequences} {
		h := sha256d(part)
		pre = append(pre, h[:]...)
	}
	pre = append(pre, prevouts[36*i:][:36]...)
	pre = append(append(pre, byte(len(spent.Script))), spent.Script...)
	pre = binary.LittleEndian.AppendUint64(pre, spent.Satoshis)
	pre = append(pre, le32(sequence(p, i))...)
	h := sha256d(outputs)
	pre = append(pre, h[:]...)
	pre = append(append(pre, le32(p.LockTime)...), le32(sighashAll)...)
	if p.Forged && i == 0 {
		pre[0] ^= 1
	}
	digest := sha256d(pre)
	k := keys[spent.key]
	s := append(ecdsa.Sign(k.private, digest[:]).Serialize(), sighashAll)
	out := append([]byte{byte(len(s))}, s...)
	return append(append(out, byte(len(k.public))), k.public...)
}

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

func sha256d(b []byte) [32]byte {
	once := sha256.Sum256(b)
	return sha256.Sum256(once[:])
}

// display turns wire order into display order and back.
func display(b [32]byte) [32]byte {
	slices.Reverse(b[:])
	return b
}
