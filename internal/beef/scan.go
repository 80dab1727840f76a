package beef

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The first four bytes, little endian.
const (
	versionV1     = 0xEFBE0001
	versionV2     = 0xEFBE0002
	versionAtomic = 0x01010101
)

// The fewest bytes an element can take: a count above the remaining bytes
// divided by this is a lie.
const (
	minBump   = 5  // height, tree height, one count, one leaf of offset and flags
	minLeaf   = 2  // offset and flags
	minEntry  = 20 // a transaction and one byte beside it
	minInput  = 41 // outpoint 36, script length 1, sequence 4
	minOutput = 9  // value 8, script length 1
)

// maxTreeHeight is BRC-74's bound; the lowest tree has one level.
const maxTreeHeight = 64

// Data formats of a V2 entry.
const (
	formatRaw      = 0
	formatRawBump  = 1
	formatTxIDOnly = 2
)

// efMarker stands where a transaction has its input count when it is in the
// extended format (BRC-30).
var efMarker = [6]byte{0, 0, 0, 0, 0, 0xEF}

// entry is one transaction of a bundle. start and end bound its raw bytes; they
// are equal for a txid-only entry.
type entry struct {
	txid            [32]byte // display order
	format          byte
	bump            uint64
	start, end      int
	inputs, outputs int
}

// layout is what the scan learnt: where things are, all of it in range.
type layout struct {
	atomic              bool
	subject             [32]byte // display order, when atomic
	bumps               int
	bumpStart, bumpsEnd int // the BUMPs, their count included
	entries             []entry
}

// Scan walks data and says whether it is one well-formed BEEF with nothing
// after it. Every count and size is held against the bytes that remain before
// it is believed, so the cost is bounded by len(data). The error is an [*Error].
func Scan(data []byte) error {
	_, err := scan(data)
	return err
}

func scan(data []byte) (*layout, error) {
	c := &cursor{data: data}
	l := &layout{}
	version := c.uint32()
	if version == versionAtomic {
		l.atomic = true
		l.subject = reversed(c.take(32, "the atomic subject"))
		version = c.uint32()
	}
	if c.err == nil && version != versionV1 && version != versionV2 {
		c.fail("not BEEF: unknown version bytes")
	}
	l.bumpStart = c.pos
	n := c.count(minBump, "BUMPs")
	for i := uint64(0); i < n && c.err == nil; i++ {
		c.bump()
	}
	l.bumps, l.bumpsEnd = int(n), c.pos
	n = c.count(minEntry, "transactions")
	if c.err == nil && n == 0 {
		c.fail("no transactions")
	}
	for i := uint64(0); i < n && c.err == nil; i++ {
		l.entries = append(l.entries, c.entry(version, uint64(l.bumps)))
	}
	if c.err == nil && c.pos != len(data) {
		c.fail("bytes after the end")
	}
	if c.err != nil {
		return nil, c.err
	}
	return l, nil
}

// cursor reads forward until the first fault and stays there: after it every
// read gives zero.
type cursor struct {
	data    []byte
	pos     int
	err     error
	offsets []uint64 // reused from level to level
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = &Error{Reason: fmt.Sprintf(format, args...) + fmt.Sprintf(" (at byte %d)", c.pos)}
	}
}

func (c *cursor) remaining() uint64 { return uint64(len(c.data) - c.pos) }

// take gives the next n bytes, or nil and a fault that names what.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.remaining() {
		c.fail("%s: %d bytes wanted, %d left", what, n, c.remaining())
		return nil
	}
	b := c.data[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b
}

func (c *cursor) byte() byte {
	if b := c.take(1, "a byte"); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.take(4, "four bytes"); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// varint reads a CompactSize in its shortest form.
func (c *cursor) varint() uint64 {
	var v, least uint64
	switch first := c.byte(); first {
	case 0xfd:
		if b := c.take(2, "a size"); b != nil {
			v, least = uint64(binary.LittleEndian.Uint16(b)), 0xfd
		}
	case 0xfe:
		if b := c.take(4, "a size"); b != nil {
			v, least = uint64(binary.LittleEndian.Uint32(b)), 0x1_0000
		}
	case 0xff:
		if b := c.take(8, "a size"); b != nil {
			v, least = binary.LittleEndian.Uint64(b), 0x1_0000_0000
		}
	default:
		v = uint64(first)
	}
	if c.err == nil && v < least {
		c.fail("a size not in its shortest form")
	}
	if c.err != nil {
		return 0
	}
	return v
}

// count reads how many elements of at least size bytes follow.
func (c *cursor) count(size uint64, what string) uint64 {
	n := c.varint()
	if c.err == nil && n > c.remaining()/size {
		c.fail("%d %s cannot fit in %d bytes", n, what, c.remaining())
		return 0
	}
	return n
}

// bump walks one Merkle path (BRC-74).
func (c *cursor) bump() {
	if height := c.varint(); height > math.MaxUint32 {
		c.fail("block height %d is out of range", height)
	}
	levels := c.byte()
	if c.err == nil && (levels == 0 || levels > maxTreeHeight) {
		c.fail("tree height %d is not 1..%d", levels, maxTreeHeight)
	}
	for level := range levels {
		c.level(level)
		if c.err != nil {
			return
		}
	}
}

func (c *cursor) level(level byte) {
	n := c.count(minLeaf, "leaves")
	if c.err == nil && level == 0 && n == 0 {
		c.fail("a Merkle path without leaves")
	}
	c.offsets = c.offsets[:0]
	duplicates, sorted := 0, true
	for i := uint64(0); i < n && c.err == nil; i++ {
		offset := c.varint()
		if i > 0 && offset <= c.offsets[i-1] {
			sorted = false
		}
		c.offsets = append(c.offsets, offset)
		switch flags := c.byte(); flags {
		case 0, 2:
			c.take(32, "a leaf")
		case 1:
			// Only the last node of a level can be its own sibling. Two such
			// leaves are also what would let a few bytes ask for many objects.
			if duplicates++; duplicates > 1 {
				c.fail("two duplicate leaves at level %d", level)
			}
		default:
			c.fail("unknown leaf flags %d", flags)
		}
	}
	if c.err != nil || sorted {
		return
	}
	slices.Sort(c.offsets)
	for i := 1; i < len(c.offsets); i++ {
		if c.offsets[i] == c.offsets[i-1] {
			c.fail("offset %d twice at level %d", c.offsets[i], level)
			return
		}
	}
}

// entry walks one element of the transaction list.
func (c *cursor) entry(version uint32, bumps uint64) entry {
	var e entry
	if version == versionV2 {
		switch e.format = c.byte(); e.format {
		case formatRaw:
		case formatRawBump:
			e.bump = c.bumpIndex(bumps)
		case formatTxIDOnly:
			e.txid = reversed(c.take(32, "a txid"))
			return e
		default:
			c.fail("unknown transaction format %d", e.format)
		}
		c.transaction(&e)
		return e
	}
	c.transaction(&e)
	switch has := c.byte(); has {
	case 0:
	case 1:
		e.format, e.bump = formatRawBump, c.bumpIndex(bumps)
	default:
		c.fail("BUMP marker %d is neither 0 nor 1", has)
	}
	return e
}

func (c *cursor) bumpIndex(bumps uint64) uint64 {
	i := c.varint()
	if c.err == nil && i >= bumps {
		c.fail("BUMP index %d, but there are %d", i, bumps)
	}
	return i
}

// transaction walks raw transaction bytes and hashes them.
func (c *cursor) transaction(e *entry) {
	e.start = c.pos
	c.uint32()
	if c.err == nil && bytes.HasPrefix(c.data[c.pos:], efMarker[:]) {
		c.fail("extended-format transaction: send it in its plain form")
	}
	inputs := c.count(minInput, "inputs")
	for i := uint64(0); i < inputs && c.err == nil; i++ {
		c.take(36, "an outpoint")
		c.take(c.varint(), "an unlocking script")
		c.take(4, "a sequence")
	}
	outputs := c.count(minOutput, "outputs")
	for i := uint64(0); i < outputs && c.err == nil; i++ {
		c.take(8, "a value")
		c.take(c.varint(), "a locking script")
	}
	c.take(4, "a lock time")
	if c.err == nil && inputs == 0 && outputs == 0 {
		c.fail("a transaction without inputs and outputs")
	}
	if c.err != nil {
		return
	}
	e.end, e.inputs, e.outputs = c.pos, int(inputs), int(outputs)
	once := sha256.Sum256(c.data[e.start:e.end])
	twice := sha256.Sum256(once[:])
	e.txid = reversed(twice[:])
}

// reversed turns wire order into display order and back. A short b gives zero.
func reversed(b []byte) (out [32]byte) {
	if len(b) == len(out) {
		copy(out[:], b)
		slices.Reverse(out[:])
	}
	return out
}
