package vectors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	crypto "github.com/bsv-blockchain/go-sdk/primitives/hash"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/overlayd/overlayd/internal/beef"
)

const (
	sequenceFinal = 0xffffffff
	sighashAll    = 0x41 // ALL | FORKID
	easiestBits   = 0x207fffff
	genesisTime   = 1_700_000_000 // Unix seconds of block 0
	blockSeconds  = 600
)

// owner holds every output. The key is public knowledge.
var owner = func() (k struct {
	private *secp256k1.PrivateKey
	public  []byte
	lock    []byte // P2PKH script
}) {
	seed := sha256.Sum256([]byte("overlayd test vectors"))
	k.private = secp256k1.PrivKeyFromBytes(seed[:])
	k.public = k.private.PubKey().SerializeCompressed()
	k.lock = append([]byte{0x76, 0xa9, 0x14}, crypto.Hash160(k.public)...)
	k.lock = append(k.lock, 0x88, 0xac)
	return k
}()

func sha256d(b []byte) [32]byte {
	first := sha256.Sum256(b)
	return sha256.Sum256(first[:])
}

// display turns wire order into display order, and back.
func display(b [32]byte) [32]byte {
	slices.Reverse(b[:])
	return b
}

// tx is a transaction.
type tx struct {
	id     [32]byte // wire order
	raw    []byte
	values []uint64 // of its outputs
}

// from is an output that is to be spent.
type from struct {
	tx       *tx
	index    uint32
	sequence uint32
	unlock   []byte // instead of a signature
	before   []byte // script that runs before the signature is pushed
}

// spending is a transaction that is to be made. Every output is locked to owner.
type spending struct {
	inputs   []from
	outputs  []uint64
	lockTime uint32
	spoil    bool // the first signature is of something else
}

// make signs and serialises.
func (s spending) make() *tx {
	var prevouts, sequences, outputs []byte
	for _, in := range s.inputs {
		prevouts = append(prevouts, outpoint(in)...)
		sequences = binary.LittleEndian.AppendUint32(sequences, in.sequence)
	}
	for _, value := range s.outputs {
		outputs = binary.LittleEndian.AppendUint64(outputs, value)
		outputs = append(append(outputs, byte(len(owner.lock))), owner.lock...)
	}
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = beef.AppendCompactSize(raw, uint64(len(s.inputs)))
	for i, in := range s.inputs {
		unlock := in.unlock
		if unlock == nil {
			digest := s.digest(in, sha256d(prevouts), sha256d(sequences), sha256d(outputs))
			if s.spoil && i == 0 {
				digest[0] ^= 1
			}
			signature := append(ecdsa.Sign(owner.private, digest[:]).Serialize(), sighashAll)
			unlock = append(append(bytes.Clone(in.before), byte(len(signature))), signature...)
			unlock = append(append(unlock, byte(len(owner.public))), owner.public...)
		}
		raw = append(raw, outpoint(in)...)
		raw = beef.AppendCompactSize(raw, uint64(len(unlock)))
		raw = append(raw, unlock...)
		raw = binary.LittleEndian.AppendUint32(raw, in.sequence)
	}
	raw = beef.AppendCompactSize(raw, uint64(len(s.outputs)))
	raw = append(raw, outputs...)
	raw = binary.LittleEndian.AppendUint32(raw, s.lockTime)
	return &tx{id: sha256d(raw), raw: raw, values: s.outputs}
}

// digest is what a signature of one input covers.
func (s spending) digest(in from, prevouts, sequences, outputs [32]byte) [32]byte {
	pre := binary.LittleEndian.AppendUint32(nil, 1)
	pre = append(pre, prevouts[:]...)
	pre = append(pre, sequences[:]...)
	pre = append(pre, outpoint(in)...)
	pre = append(append(pre, byte(len(owner.lock))), owner.lock...)
	pre = binary.LittleEndian.AppendUint64(pre, in.tx.values[in.index])
	pre = binary.LittleEndian.AppendUint32(pre, in.sequence)
	pre = append(pre, outputs[:]...)
	pre = binary.LittleEndian.AppendUint32(pre, s.lockTime)
	pre = binary.LittleEndian.AppendUint32(pre, sighashAll)
	return sha256d(pre)
}

func outpoint(in from) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(in.tx.id[:]), in.index)
}

// coinbase makes the first transaction of a block. The tag sets it apart from others of its height.
func coinbase(height uint32, tag string) *tx {
	script := binary.LittleEndian.AppendUint32([]byte{4}, height)
	script = append(append(script, byte(len(tag))), tag...)
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, 1)
	raw = append(raw, make([]byte, 32)...)
	raw = binary.LittleEndian.AppendUint32(raw, 0xffffffff)
	raw = append(append(raw, byte(len(script))), script...)
	raw = binary.LittleEndian.AppendUint32(raw, sequenceFinal)
	raw = append(raw, 1)
	raw = binary.LittleEndian.AppendUint64(raw, 50_000)
	raw = append(append(raw, byte(len(owner.lock))), owner.lock...)
	raw = binary.LittleEndian.AppendUint32(raw, 0)
	return &tx{id: sha256d(raw), raw: raw, values: []uint64{50_000}}
}

// block is a header and what it holds.
type block struct {
	header []byte
	height uint32
	time   uint32
	tag    string
	txs    []*tx // the coinbase first
}

// mine makes the block after prev, nil for height 0. The tag names the branch.
func mine(prev *block, tag string, txs ...*tx) *block {
	b := &block{time: genesisTime, tag: tag}
	var before [32]byte
	if prev != nil {
		b.height, b.time = prev.height+1, prev.time+blockSeconds
		before = sha256d(prev.header)
	}
	b.txs = append([]*tx{coinbase(b.height, tag)}, txs...)
	root := b.tree()
	h := binary.LittleEndian.AppendUint32(nil, 1)
	h = append(h, before[:]...)
	h = append(h, root[len(root)-1][0][:]...)
	h = binary.LittleEndian.AppendUint32(h, b.time)
	h = binary.LittleEndian.AppendUint32(h, easiestBits)
	for nonce := uint32(0); ; nonce++ {
		b.header = binary.LittleEndian.AppendUint32(slices.Clone(h), nonce)
		if id := sha256d(b.header); id[31] < 0x7f {
			return b
		}
	}
}

// hash is the block hash in display order.
func (b *block) hash() [32]byte { return display(sha256d(b.header)) }

// tree is the Merkle tree: level 0 holds the txids, the last level the root, in wire order.
func (b *block) tree() [][][32]byte {
	level := make([][32]byte, len(b.txs))
	for i, t := range b.txs {
		level[i] = t.id
	}
	levels := [][][32]byte{level}
	for len(level) > 1 {
		var above [][32]byte
		for i := 0; i < len(level); i += 2 {
			right := level[min(i+1, len(level)-1)]
			above = append(above, sha256d(append(bytes.Clone(level[i][:]), right[:]...)))
		}
		levels, level = append(levels, above), above
	}
	return levels
}

// path is the Merkle path (BRC-74) of one transaction of the block. lose leaves the first sibling out.
func (b *block) path(t *tx, lose bool) (bump []byte, root [32]byte) {
	levels := b.tree()
	place := slices.Index(b.txs, t)
	bump = beef.AppendCompactSize(nil, uint64(b.height))
	bump = append(bump, byte(max(1, len(levels)-1)))
	leaf := func(nodes [][32]byte, at int) []byte {
		if at >= len(nodes) {
			return []byte{byte(at), 1}
		}
		return append([]byte{byte(at), 0}, nodes[at][:]...)
	}
	for level := range max(1, len(levels)-1) {
		nodes, own := levels[level], place>>level
		sibling := leaf(nodes, own^1)
		if level > 0 {
			bump = append(append(bump, 1), sibling...)
			continue
		}
		self := append([]byte{byte(own), 2}, nodes[own][:]...)
		switch {
		case len(levels) == 1 || lose:
			bump = append(append(bump, 1), self...)
		case own&1 == 0:
			bump = append(append(append(bump, 2), self...), sibling...)
		default:
			bump = append(append(append(bump, 2), sibling...), self...)
		}
	}
	return bump, display(levels[len(levels)-1][0])
}
