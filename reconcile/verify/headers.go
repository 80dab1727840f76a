package verify

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/reconcile"
)

const headerSize = 80

// ErrHeader says that a header is refused. Compare with errors.Is.
var ErrHeader = errors.New("verify: a header that does not belong here")

// Headers is a tree of headers in memory, all branches of it. The selected chain
// is the one with the most work, the first seen of equals, unless [Headers.Select]
// chooses another. It is safe for concurrent use.
type Headers struct {
	changed chan struct{}

	mu     sync.RWMutex
	base   uint32 // height of the first header
	nodes  []header
	index  map[[32]byte]int32  // by hash, display order
	levels []int32             // the first header of each height, from base on
	others map[uint32][]int32  // the further ones
	tip    int32               // of the selected chain
	pinned bool                // Select chose it
	views  map[int32]*treeView // of the tip alone
}

// header is one block of the tree. prev and skip are places in Headers.nodes.
type header struct {
	hash, root [32]byte // display order
	work       uint256  // of the chain up to here
	prev, skip int32    // skip leads far back
	height     uint32
	time       uint32
}

// uint256 is a number, its highest word first.
type uint256 [4]uint64

func (a uint256) add(b uint256) (sum uint256) {
	carry := uint64(0)
	for i := 3; i >= 0; i-- {
		sum[i], carry = bits.Add64(a[i], b[i], carry)
	}
	return sum
}

func (a uint256) more(b uint256) bool { return slices.Compare(a[:], b[:]) > 0 }

// NewHeaders begins a tree with its first block, whose hash the caller has chosen
// to trust.
func NewHeaders(genesis []byte) (*Headers, error) { return newHeaders(genesis, 0) }

func newHeaders(first []byte, height uint32) (*Headers, error) {
	h := &Headers{
		changed: make(chan struct{}, 1), base: height, index: map[[32]byte]int32{}, others: map[uint32][]int32{}, views: map[int32]*treeView{},
	}
	n, _, err := readHeader(first)
	if err != nil {
		return nil, err
	}
	n.height, n.prev, n.skip = height, -1, -1
	h.put(n)
	return h, nil
}

// readHeader decodes 80 bytes and holds the hash against the target they claim.
func readHeader(raw []byte) (n header, prev [32]byte, err error) {
	if len(raw) != headerSize {
		return n, prev, fmt.Errorf("%w: %d bytes, not %d", ErrHeader, len(raw), headerSize)
	}
	once := sha256.Sum256(raw)
	n.hash = flipped(sha256.Sum256(once[:]))
	n.root, prev = flipped([32]byte(raw[36:68])), flipped([32]byte(raw[4:36]))
	n.time = binary.LittleEndian.Uint32(raw[68:])
	target, ok := targetOf(binary.LittleEndian.Uint32(raw[72:]))
	if !ok {
		return n, prev, fmt.Errorf("%w: %x has no valid target", ErrHeader, n.hash)
	}
	if new(big.Int).SetBytes(n.hash[:]).Cmp(target) > 0 {
		return n, prev, fmt.Errorf("%w: %x does not meet its target", ErrHeader, n.hash)
	}
	// 2^256 / (target + 1), as every implementation counts work.
	work := new(big.Int).Div(new(big.Int).Lsh(big.NewInt(1), 256), target.Add(target, big.NewInt(1)))
	var word [32]byte
	work.FillBytes(word[:])
	for i := range n.work {
		n.work[i] = binary.BigEndian.Uint64(word[8*i:])
	}
	return n, prev, nil
}

// targetOf expands the compact form; false for zero, negative and oversized ones.
func targetOf(compact uint32) (*big.Int, bool) {
	exponent, mantissa := compact>>24, compact&0x007fffff
	if compact&0x00800000 != 0 || mantissa == 0 || exponent > 32 {
		return nil, false
	}
	t := big.NewInt(int64(mantissa))
	if exponent >= 3 {
		t.Lsh(t, uint(8*(exponent-3)))
	} else {
		t.Rsh(t, uint(8*(3-exponent)))
	}
	return t, t.Sign() > 0 && t.BitLen() <= 256
}

// Add takes headers of 80 bytes each whose predecessors are in the tree or come
// before them. A header that is there already changes nothing. It stops at the
// first that is refused ([ErrHeader]); those before it are kept.
func (h *Headers) Add(raw ...[]byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range raw {
		at, err := h.add(b)
		if err != nil {
			return err
		}
		if !h.pinned && h.nodes[at].work.more(h.nodes[h.tip].work) {
			h.tip = at
			h.tell()
		}
	}
	return nil
}

func (h *Headers) add(raw []byte) (int32, error) {
	n, prev, err := readHeader(raw)
	if err != nil {
		return 0, err
	}
	if at, ok := h.index[n.hash]; ok {
		return at, nil
	}
	before, ok := h.index[prev]
	if !ok {
		return 0, fmt.Errorf("%w: the block before %x is not known", ErrHeader, n.hash)
	}
	p := h.nodes[before]
	n.prev, n.height, n.work = before, p.height+1, p.work.add(n.work)
	if uint64(n.time) <= h.median(before) {
		return 0, fmt.Errorf("%w: %x is not later than the median of the blocks before it", ErrHeader, n.hash)
	}
	n.skip = h.ancestor(before, skipHeight(n.height))
	return h.put(n), nil
}

func (h *Headers) put(n header) int32 {
	at := int32(len(h.nodes))
	h.nodes = append(h.nodes, n)
	h.index[n.hash] = at
	if level := n.height - h.base; uint64(level) == uint64(len(h.levels)) {
		h.levels = append(h.levels, at)
	} else {
		h.others[n.height] = append(h.others[n.height], at)
	}
	return at
}

// skipHeight is where the second link of a block leads: far enough that a walk
// to any height takes about the logarithm of the distance.
func skipHeight(height uint32) uint32 {
	if height < 2 {
		return 0
	}
	low := func(n uint32) uint32 { return n & (n - 1) }
	if height&1 == 1 {
		return low(low(height-1)) + 1
	}
	return low(height)
}

// ancestor walks back to a height; -1 below the first header.
func (h *Headers) ancestor(at int32, height uint32) int32 {
	if height < h.base {
		return -1
	}
	for at >= 0 && h.nodes[at].height > height {
		n := h.nodes[at]
		if n.skip >= 0 && h.nodes[n.skip].height >= height {
			at = n.skip
		} else {
			at = n.prev
		}
	}
	return at
}

// median is the middle of the times of a block and up to ten before it.
func (h *Headers) median(at int32) uint64 {
	times := make([]uint32, 0, 11)
	for ; at >= 0 && len(times) < cap(times); at = h.nodes[at].prev {
		times = append(times, h.nodes[at].time)
	}
	slices.Sort(times)
	return uint64(times[len(times)/2])
}

// Select makes the chain that ends in a block (display order) the selected one,
// whatever the work of others, until it is called again; the zero hash goes back
// to the chain with the most work. An unknown block is [ErrHeader].
func (h *Headers) Select(tip [32]byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := int32(0)
	if tip == ([32]byte{}) {
		for i, n := range h.nodes {
			if n.work.more(h.nodes[at].work) {
				at = int32(i)
			}
		}
	} else {
		var ok bool
		if at, ok = h.index[tip]; !ok {
			return fmt.Errorf("%w: block %x is not known", ErrHeader, tip)
		}
	}
	h.pinned = tip != [32]byte{}
	if h.tip != at {
		h.tip = at
		h.tell()
	}
	return nil
}

func (h *Headers) tell() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Changed is a hint that another chain is selected.
func (h *Headers) Changed() <-chan struct{} { return h.changed }

// Current is the view of the selected chain.
func (h *Headers) Current(context.Context) (View, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.views[h.tip]
	if !ok {
		clear(h.views)
		v = h.view(h.tip)
		h.views[h.tip] = v
	}
	return v, nil
}

// View is the view of the chain that ends in a block (display order).
func (h *Headers) View(tip [32]byte) (View, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at, ok := h.index[tip]
	if !ok {
		return nil, fmt.Errorf("%w: block %x is not known", ErrHeader, tip)
	}
	return h.view(at), nil
}

func (h *Headers) view(at int32) *treeView {
	n := h.nodes[at]
	id := hex.EncodeToString(n.hash[:])
	return &treeView{h: h, tip: at, context: reconcile.ChainView{TipHash: id, TipHeight: uint64(n.height), MedianTimePast: h.median(at)}}
}

// Fork is the height of the last common block of two views.
func (h *Headers) Fork(_ context.Context, old, new string) (uint32, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	a, ok := h.named(old)
	b, also := h.named(new)
	if !ok || !also {
		return 0, nil
	}
	low := min(h.nodes[a].height, h.nodes[b].height)
	for a, b = h.ancestor(a, low), h.ancestor(b, low); a != b; a, b = h.nodes[a].prev, h.nodes[b].prev {
	}
	return h.nodes[a].height, nil
}

func (h *Headers) named(id string) (int32, bool) {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != 32 {
		return 0, false
	}
	at, ok := h.index[[32]byte(b)]
	return at, ok
}

// Prefetch has nothing to do: all is here.
func (h *Headers) Prefetch(context.Context, View, []reconcile.Claim) error { return nil }

// Tip is the hash (display order) and the height of the selected chain's end.
func (h *Headers) Tip() (hash [32]byte, height uint32) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.nodes[h.tip].hash, h.nodes[h.tip].height
}

// treeView is one chain of the tree.
type treeView struct {
	h       *Headers
	tip     int32
	context reconcile.ChainView
}

func (v *treeView) ID() string                   { return v.context.TipHash }
func (v *treeView) Context() reconcile.ChainView { return v.context }

func (v *treeView) Root(height uint32) (root [32]byte, ok bool) {
	if uint64(height) > v.context.TipHeight {
		return root, false
	}
	v.h.mu.RLock()
	defer v.h.mu.RUnlock()
	at := v.h.ancestor(v.tip, height)
	if at < 0 {
		return root, false
	}
	return v.h.nodes[at].root, true
}

func (v *treeView) Known(height uint32, root [32]byte) bool {
	v.h.mu.RLock()
	defer v.h.mu.RUnlock()
	if height < v.h.base {
		return true // before the first header: nobody can tell
	}
	level := height - v.h.base
	if uint64(level) >= uint64(len(v.h.levels)) {
		return true // above every branch: it may come
	}
	if v.h.nodes[v.h.levels[level]].root == root {
		return true
	}
	return slices.ContainsFunc(v.h.others[height], func(at int32) bool { return v.h.nodes[at].root == root })
}

// flipped turns wire order into display order and back.
func flipped(b [32]byte) [32]byte {
	slices.Reverse(b[:])
	return b
}

var _ ChainView = (*Headers)(nil)
