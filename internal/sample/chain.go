package sample

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/bsv-blockchain/go-sdk/chainhash"
)

// SyntheticNetwork is the chain.network of what [Generate] makes.
const SyntheticNetwork = "overlayd-synthetic"

// MainNetwork is the chain.network of what [Small] tells of.
const MainNetwork = "main"

// Hashes of the first blocks, in display order: chain.genesisHash of the two
// networks. Treat them as constants.
var (
	SyntheticGenesis = genesis().Hash()
	MainGenesis      = [32]byte{
		0x00, 0x00, 0x00, 0x00, 0x00, 0x19, 0xd6, 0x68, 0x9c, 0x08, 0x5a, 0xe1, 0x65, 0x83, 0x1e, 0x93,
		0x4f, 0xf7, 0x63, 0xae, 0x46, 0xa2, 0xa6, 0xc1, 0x72, 0xb3, 0xf1, 0xb6, 0x0a, 0x8c, 0xe2, 0x6f,
	}
)

// Header is a block header of the synthetic chain in its 80 wire bytes.
type Header [80]byte

const (
	genesisTime  = 1_700_000_000 // Unix seconds of block 0
	blockSeconds = 600
	easiestBits  = 0x207fffff
)

// genesis is block 0. It holds no transactions that could be spent.
func genesis() Header {
	return mine([32]byte{}, sha256d([]byte(SyntheticNetwork)), 0)
}

// mine makes the header of a block; prev and root are in wire order.
func mine(prev, root [32]byte, height uint32) Header {
	var h Header
	binary.LittleEndian.PutUint32(h[0:], 1)
	copy(h[4:], prev[:])
	copy(h[36:], root[:])
	binary.LittleEndian.PutUint32(h[68:], genesisTime+blockSeconds*height)
	binary.LittleEndian.PutUint32(h[72:], easiestBits)
	for nonce := uint32(0); ; nonce++ {
		binary.LittleEndian.PutUint32(h[76:], nonce)
		if id := sha256d(h[:]); id[31] < 0x7f {
			return h
		}
	}
}

// Hash is the block hash in display order.
func (h Header) Hash() [32]byte { return display(sha256d(h[:])) }

// Prev is the hash of the block before, in display order.
func (h Header) Prev() [32]byte { return display([32]byte(h[4:36])) }

// MerkleRoot is in display order.
func (h Header) MerkleRoot() [32]byte { return display([32]byte(h[36:68])) }

// Headers knows the blocks of one synthetic stream by their height. It is a
// chain tracker as go-sdk and internal/beef take it. The zero value knows none;
// it may be used by several goroutines.
type Headers struct {
	mu    sync.RWMutex
	roots [][32]byte // by height, display order; guarded by mu
}

// Add takes the next header: the first is that of height 0.
func (h *Headers) Add(header Header) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.roots = append(h.roots, header.MerkleRoot())
}

// MerkleRoot gives the root of the block at height, in display order.
func (h *Headers) MerkleRoot(height uint32) (root [32]byte, ok bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if uint64(height) >= uint64(len(h.roots)) {
		return root, false
	}
	return h.roots[height], true
}

// IsValidRootForHeight says whether the block at height has this root.
func (h *Headers) IsValidRootForHeight(_ context.Context, root *chainhash.Hash, height uint32) (bool, error) {
	known, ok := h.MerkleRoot(height)
	return ok && root != nil && known == display(*root), nil
}

// CurrentHeight is the height of the last block, and 0 when there is none.
func (h *Headers) CurrentHeight(context.Context) (uint32, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return uint32(max(len(h.roots), 1) - 1), nil
}

func sha256d(b []byte) [32]byte {
	once := sha256.Sum256(b)
	return sha256.Sum256(once[:])
}

// display turns wire order into display order and back.
func display(id [32]byte) [32]byte {
	slices.Reverse(id[:])
	return id
}
