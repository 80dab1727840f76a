package sample

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	crypto "github.com/bsv-blockchain/go-sdk/primitives/hash"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/overlayd/overlayd/internal/beef"
)

const (
	keyCount    = 64
	walletKey   = 0                // pays for new listings; the others own them
	subsidy     = 50 * 100_000_000 // satoshis of a coinbase
	maturity    = 100              // blocks before a coinbase may be spent
	sighashAll  = 0x41             // ALL | FORKID
	lockBytes   = 25               // of a P2PKH script
	txidLeaf    = 2                // BUMP flags
	pairLeaf    = 0
	doubledLeaf = 1
)

// encoding is how the evidence of a transaction is written.
type encoding uint8

const (
	beefV1 encoding = iota
	beefV2
	atomicBEEF // around V2
)

// key owns outputs of the synthetic chain.
type key struct {
	private *secp256k1.PrivateKey
	public  []byte // compressed
	lock    []byte // P2PKH script
}

// newKeys derives the keys of the synthetic chain. They are public knowledge.
func newKeys() []key {
	keys := make([]key, keyCount)
	for i := range keys {
		seed := sha256.Sum256(fmt.Appendf(nil, "%s key %d", SyntheticNetwork, i))
		k := key{private: secp256k1.PrivKeyFromBytes(seed[:])}
		k.public = k.private.PubKey().SerializeCompressed()
		k.lock = append([]byte{0x76, 0xa9, 0x14}, crypto.Hash160(k.public)...)
		k.lock = append(k.lock, 0x88, 0xac)
		keys[i] = k
	}
	return keys
}

// tx is a transaction of the synthetic chain.
type tx struct {
	id  [32]byte // wire order
	raw []byte
	enc encoding

	// Known once its block is closed. An unmined transaction has the parent
	// whose block proves it.
	beef   []byte
	parent *tx
	place  int // in its block
}

// coin is an output that a key of ours can spend.
type coin struct {
	txid  [32]byte // wire order
	index uint32
	value uint64
	owner int
}

// output is one P2PKH output to be made.
type output struct {
	value uint64
	owner int
}

// coinbase makes the first transaction of a block. The seed sets the chains of
// different streams apart from their first block on.
func coinbase(keys []key, seed uint64, height uint32) *tx {
	script := []byte{4}
	script = binary.LittleEndian.AppendUint32(script, height)
	script = append(script, 8)
	script = binary.LittleEndian.AppendUint64(script, seed)
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, 1)
	raw = append(raw, make([]byte, 32)...)
	raw = binary.LittleEndian.AppendUint32(raw, 0xffffffff)
	raw = append(raw, byte(len(script)))
	raw = append(raw, script...)
	raw = binary.LittleEndian.AppendUint32(raw, 0xffffffff)
	raw = appendOutputs(raw, keys, []output{{subsidy, walletKey}})
	raw = binary.LittleEndian.AppendUint32(raw, 0)
	return &tx{id: sha256d(raw), raw: raw}
}

// pay spends one coin into outputs and signs for it.
func pay(keys []key, from coin, enc encoding, outputs ...output) *tx {
	owner := keys[from.owner]
	var prevout [36]byte
	copy(prevout[:], from.txid[:])
	binary.LittleEndian.PutUint32(prevout[32:], from.index)
	sequence := []byte{0xff, 0xff, 0xff, 0xff}
	list := appendOutputs(make([]byte, 0, 1+len(outputs)*(9+lockBytes)), keys, outputs)

	// The digest that ALL|FORKID signs, for the only input.
	hash := sha256d(prevout[:])
	pre := binary.LittleEndian.AppendUint32(make([]byte, 0, 192), 1)
	pre = append(pre, hash[:]...)
	hash = sha256d(sequence)
	pre = append(pre, hash[:]...)
	pre = append(pre, prevout[:]...)
	pre = append(pre, lockBytes)
	pre = append(pre, owner.lock...)
	pre = binary.LittleEndian.AppendUint64(pre, from.value)
	pre = append(pre, sequence...)
	hash = sha256d(list[1:]) // without the count
	pre = append(pre, hash[:]...)
	pre = binary.LittleEndian.AppendUint32(pre, 0)
	pre = binary.LittleEndian.AppendUint32(pre, sighashAll)
	digest := sha256d(pre)
	signature := append(ecdsa.Sign(owner.private, digest[:]).Serialize(), sighashAll)

	raw := binary.LittleEndian.AppendUint32(make([]byte, 0, 160+len(list)), 1)
	raw = append(raw, 1)
	raw = append(raw, prevout[:]...)
	raw = append(raw, byte(1+len(signature)+1+len(owner.public)))
	raw = append(raw, byte(len(signature)))
	raw = append(raw, signature...)
	raw = append(raw, byte(len(owner.public)))
	raw = append(raw, owner.public...)
	raw = append(raw, sequence...)
	raw = append(raw, list...)
	raw = binary.LittleEndian.AppendUint32(raw, 0)
	return &tx{id: sha256d(raw), raw: raw, enc: enc}
}

func appendOutputs(dst []byte, keys []key, outputs []output) []byte {
	dst = append(dst, byte(len(outputs)))
	for _, o := range outputs {
		dst = binary.LittleEndian.AppendUint64(dst, o.value)
		dst = append(dst, lockBytes)
		dst = append(dst, keys[o.owner].lock...)
	}
	return dst
}

// tree is the Merkle tree of a block: level 0 holds the txids, the last level
// the root. All in wire order.
type tree [][][32]byte

func newTree(txs []*tx) tree {
	level := make([][32]byte, len(txs))
	for i, t := range txs {
		t.place = i
		level[i] = t.id
	}
	levels := tree{level}
	var pair [64]byte
	for len(level) > 1 {
		above := make([][32]byte, 0, (len(level)+1)/2)
		for i := 0; i < len(level); i += 2 {
			copy(pair[:32], level[i][:])
			copy(pair[32:], level[min(i+1, len(level)-1)][:])
			above = append(above, sha256d(pair[:]))
		}
		levels = append(levels, above)
		level = above
	}
	return levels
}

func (t tree) root() [32]byte { return t[len(t)-1][0] }

// appendBUMP writes the Merkle path (BRC-74) of one transaction of a block that
// has at least two, and fewer than 253.
func (t tree) appendBUMP(dst []byte, height uint32, place int) []byte {
	dst = beef.AppendCompactSize(dst, uint64(height))
	dst = append(dst, byte(len(t)-1))
	for level, nodes := range t[:len(t)-1] {
		own, sibling := place>>level, place>>level^1
		if level > 0 {
			dst = append(dst, 1)
			dst = appendLeaf(dst, nodes, sibling)
			continue
		}
		dst = append(dst, 2)
		if sibling < own {
			dst = appendLeaf(dst, nodes, sibling)
		}
		dst = append(append(dst, byte(own), txidLeaf), nodes[own][:]...)
		if sibling > own {
			dst = appendLeaf(dst, nodes, sibling)
		}
	}
	return dst
}

func appendLeaf(dst []byte, nodes [][32]byte, place int) []byte {
	if place >= len(nodes) {
		return append(dst, byte(place), doubledLeaf)
	}
	return append(append(dst, byte(place), pairLeaf), nodes[place][:]...)
}

// prove writes the evidence of t: its own path when it is mined, its parent's
// path and its parent when it is not.
func (t *tx) prove(blocks tree, height uint32) {
	mined := t
	if t.parent != nil {
		mined = t.parent
	}
	out := make([]byte, 0, 320+len(t.raw)+len(mined.raw))
	if t.enc == atomicBEEF {
		out = append(out, 1, 1, 1, 1)
		out = append(out, t.id[:]...)
	}
	first := byte(1)
	if t.enc != beefV1 {
		first = 2
	}
	out = append(out, first, 0, 0xbe, 0xef, 1)
	out = blocks.appendBUMP(out, height, mined.place)
	if t.parent != nil {
		out = append(out, 2)
	} else {
		out = append(out, 1)
	}
	if t.enc == beefV1 {
		out = append(append(out, mined.raw...), 1, 0)
		if t.parent != nil {
			out = append(append(out, t.raw...), 0)
		}
	} else {
		out = append(append(out, 1, 0), mined.raw...)
		if t.parent != nil {
			out = append(append(out, 0), t.raw...)
		}
	}
	t.beef = out
	t.parent = nil
}
