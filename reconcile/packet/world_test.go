package packet_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// world is what the cases of one corpus are about.
type world struct {
	t       testing.TB
	txs     map[string]*fixture
	names   map[spend.TxID]string
	headers *tree
	views   map[string]viewOf
	roots   []string          // names trusted by configuration
	beefs   map[string][]byte // evidence by its name
}

// fixture is a transaction of a corpus, read by this file's own parser.
type fixture struct {
	name     string
	raw      []byte
	id       spend.TxID
	valid    bool // what the corpus says of its scripts
	version  uint32
	inputs   []spend.Input
	outputs  []coin
	lockTime uint32
}

type coin struct {
	value  uint64
	script []byte
}

func newWorld(t testing.TB) *world {
	return &world{
		t: t, txs: map[string]*fixture{}, names: map[spend.TxID]string{}, headers: &tree{blocks: map[[32]byte]*block{}},
		views: map[string]viewOf{}, beefs: map[string][]byte{},
	}
}

// add reads a transaction.
func (w *world) add(name string, raw []byte, valid bool) *fixture {
	w.t.Helper()
	f, err := parse(raw)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	f.name, f.valid = name, valid
	if other, ok := w.names[f.id]; ok {
		w.t.Fatalf("%s and %s are one transaction", name, other)
	}
	w.txs[name], w.names[f.id] = f, name
	return f
}

func (w *world) tx(name string) *fixture {
	w.t.Helper()
	f, ok := w.txs[name]
	if !ok {
		w.t.Fatalf("the corpus has no transaction %q", name)
	}
	return f
}

// evidence is what a source would send for a transaction: what the corpus has, or the transaction alone.
func (w *world) evidence(name string) []byte {
	w.t.Helper()
	if b, ok := w.beefs[name]; ok {
		return b
	}
	return alone(w.tx(name).raw)
}

// beef is evidence by its name.
func (w *world) beef(name string) []byte {
	w.t.Helper()
	b, ok := w.beefs[name]
	if !ok {
		w.t.Fatalf("the corpus has no evidence %q", name)
	}
	return b
}

// outpoint reads "name:index".
func (w *world) outpoint(text string) spend.Outpoint {
	w.t.Helper()
	for i := len(text) - 1; i > 0; i-- {
		if text[i] == ':' {
			var index uint32
			if _, err := fmt.Sscanf(text[i+1:], "%d", &index); err != nil {
				w.t.Fatalf("outpoint %q: %v", text, err)
			}
			return spend.Outpoint{TxID: w.tx(text[:i]).id, Index: index}
		}
	}
	w.t.Fatalf("outpoint %q", text)
	return spend.Outpoint{}
}

// show writes "name:index".
func (w *world) show(o spend.Outpoint) string { return fmt.Sprintf("%s:%d", w.name(o.TxID), o.Index) }

func (w *world) name(id spend.TxID) string {
	if name, ok := w.names[id]; ok {
		return name
	}
	return hex.EncodeToString(id[:])
}

// alone is a BEEF V2 that holds one raw transaction, and neither a path nor a parent: how a child travels before them.
func alone(raw []byte) []byte {
	return append([]byte{2, 0, 0xbe, 0xef, 0, 1, 0}, raw...)
}

func sha256d(b []byte) [32]byte {
	first := sha256.Sum256(b)
	return sha256.Sum256(first[:])
}

// display turns wire order into display order, and back.
func display(b [32]byte) [32]byte {
	slices.Reverse(b[:])
	return b
}

func mustHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parse reads a transaction with nothing of the product's code.
func parse(raw []byte) (f *fixture, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, fmt.Errorf("not a transaction: %v", r)
		}
	}()
	f = &fixture{raw: raw, id: display(sha256d(raw))}
	rest := raw
	take := func(n uint64) []byte {
		b := rest[:n:n]
		rest = rest[n:]
		return b
	}
	u32 := func() uint32 { return binary.LittleEndian.Uint32(take(4)) }
	size := func() uint64 {
		switch first := take(1)[0]; first {
		case 0xfd:
			return uint64(binary.LittleEndian.Uint16(take(2)))
		case 0xfe:
			return uint64(u32())
		case 0xff:
			return binary.LittleEndian.Uint64(take(8))
		default:
			return uint64(first)
		}
	}
	f.version = u32()
	for range size() {
		in := spend.Input{Outpoint: spend.Outpoint{TxID: display([32]byte(take(32))), Index: u32()}}
		take(size())
		in.Sequence = u32()
		f.inputs = append(f.inputs, in)
	}
	for range size() {
		value := binary.LittleEndian.Uint64(take(8))
		f.outputs = append(f.outputs, coin{value, take(size())})
	}
	f.lockTime = u32()
	if len(rest) != 0 {
		return nil, fmt.Errorf("%d bytes after the transaction", len(rest))
	}
	return f, nil
}

// selectable is the transaction as finality and replacement see it.
func (f *fixture) selectable() *spend.Tx {
	return &spend.Tx{ID: f.id, Inputs: f.inputs, LockTime: f.lockTime}
}

// tree is every header that a corpus knows, in all branches.
type tree struct{ blocks map[[32]byte]*block }

type block struct {
	hash, prev, root [32]byte // display order
	raw              []byte
	height           uint32
	time             uint32
}

// add takes a header whose predecessor is known, or one of height 0.
func (h *tree) add(raw []byte) (*block, error) {
	if len(raw) != 80 {
		return nil, fmt.Errorf("a header of %d bytes", len(raw))
	}
	b := &block{
		hash: display(sha256d(raw)), prev: display([32]byte(raw[4:36])), root: display([32]byte(raw[36:68])), raw: raw,
		time: binary.LittleEndian.Uint32(raw[68:]),
	}
	if bits := binary.LittleEndian.Uint32(raw[72:]); bits != 0x207fffff {
		return nil, fmt.Errorf("bits %08x", bits)
	}
	if easiest := [32]byte{0x7f, 0xff, 0xff}; bytes.Compare(b.hash[:], easiest[:]) > 0 {
		return nil, fmt.Errorf("%x is above the target", b.hash)
	}
	if b.prev != ([32]byte{}) {
		before, ok := h.blocks[b.prev]
		if !ok {
			return nil, fmt.Errorf("%x has no known predecessor", b.hash)
		}
		b.height = before.height + 1
	}
	h.blocks[b.hash] = b
	return b, nil
}

// chain is the blocks from height 0 to a tip.
func (h *tree) chain(tip [32]byte) []*block {
	var chain []*block
	for at := h.blocks[tip]; at != nil; at = h.blocks[at.prev] {
		chain = append(chain, at)
	}
	slices.Reverse(chain)
	return chain
}

// viewOf is a view as a corpus gives it: a tip, and for contexts of height alone what is said instead of it.
type viewOf struct {
	tip    [32]byte
	height *uint32
	mtp    *uint64
}
