package beef

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestR9_EveryVectorVerifies(t *testing.T) {
	t.Parallel()
	n := 0
	for _, v := range vectors(t) {
		b, err := Parse(v.data)
		if err != nil {
			t.Fatal(err)
		}
		if _, atomic := b.Subject(); atomic {
			continue
		}
		for _, id := range b.TxIDs() {
			if err := b.Verify(t.Context(), id, chainRoots()); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			n++
		}
	}
	if n != 58 {
		t.Errorf("%d verified, 58 expected", n)
	}
}

func TestR9_FaultsAreFound(t *testing.T) {
	t.Parallel()
	data := readHex(t, "../sample/data/main-814435.hex")
	parent := txid(t, "3ecead27a44d013ad1aae40038acbb1883ac9242406808bb4667c15b4f164eac")
	child := txid(t, "157428aee67d11123203735e4c540fa1bdab3b36d5882c6f8c5ff79f07d20d1c")
	verify := func(data []byte, id [32]byte, headers roots) error {
		b, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		return b.Verify(t.Context(), id, headers)
	}
	if err := verify(data, parent, roots{}); err == nil {
		t.Error("a root that no header has was believed")
	}
	// A changed leaf leads to another root.
	leaf := bytes.Clone(data)
	leaf[20] ^= 1
	if err := verify(leaf, parent, chainRoots()); err == nil {
		t.Error("a changed Merkle path was believed")
	}
	// A changed signature is another transaction, whose script fails.
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.find(child)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(data)
	forged[e.start+60] ^= 1
	fb, err := Parse(forged)
	if err != nil {
		t.Fatal(err)
	}
	ids := fb.TxIDs()
	if _, ok := errors.AsType[*Error](fb.Verify(t.Context(), ids[1], chainRoots())); !ok || ids[1] == child {
		t.Error("a forged signature was believed")
	}
}

// rawTransaction makes a transaction whose outputs anybody may spend.
func rawTransaction(prev [32]byte, indexes []uint32, values ...uint64) []byte {
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, byte(len(indexes)))
	for _, i := range indexes {
		wire := reversed(prev[:])
		raw = binary.LittleEndian.AppendUint32(append(raw, wire[:]...), i)
		raw = append(raw, 0, 0xff, 0xff, 0xff, 0xff)
	}
	raw = append(raw, byte(len(values)))
	for _, v := range values {
		raw = append(binary.LittleEndian.AppendUint64(raw, v), 1, 0x51)
	}
	return append(raw, 0, 0, 0, 0)
}

func TestR9_ValueAndStructureOfUnmined(t *testing.T) {
	t.Parallel()
	parent := rawTransaction([32]byte{9}, []uint32{0}, 10, math.MaxUint64)
	only := binary.LittleEndian.AppendUint32(nil, versionV2)
	only = append(append(only, 0, 1, formatRaw), parent...)
	pb, err := Parse(only)
	if err != nil {
		t.Fatal(err)
	}
	id := pb.TxIDs()[0]
	headers := roots{7: hex.EncodeToString(id[:])} // a block of one transaction
	for name, c := range map[string]struct {
		child  []byte
		reason string
	}{
		"fine":                     {rawTransaction(id, []uint32{0}, 4, 6), ""},
		"more out than in":         {rawTransaction(id, []uint32{0}, 5, 6), "spends 11 satoshis and has 10"},
		"values out overflow":      {rawTransaction(id, []uint32{0}, 5, math.MaxUint64), "overflow"},
		"values in overflow":       {rawTransaction(id, []uint32{0, 1}, 5), "overflow"},
		"the same output twice":    {rawTransaction(id, []uint32{0, 0}, 20), "twice"},
		"an output that is absent": {rawTransaction(id, []uint32{2}, 1), "does not exist"},
		"nothing spent":            {rawTransaction(id, nil, 1), "spends nothing"},
	} {
		wire := reversed(id[:])
		data := binary.LittleEndian.AppendUint32(nil, versionV2)
		data = append(append(data, 1, 7, 1, 1, 0, 2), wire[:]...)
		data = append(data, 2, formatRaw) // the child stands before its parent
		data = append(append(append(data, c.child...), formatRawBump, 0), parent...)
		b, err := Parse(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = b.Verify(t.Context(), b.TxIDs()[0], headers)
		if c.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Reason, c.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The way up is not there: level 40 lacks its sibling. go-sdk, asked directly,
// would search for it with 2^40 steps.
func TestJ1_IncompletePathIsCheap(t *testing.T) {
	t.Parallel()
	data := readHex(t, "../sample/data/main-885388.hex")
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	id := b.TxIDs()[0]
	wire := reversed(id[:])
	bump := []byte{1, 5, 60}                         // one BUMP, block height 5, 60 levels
	bump = append(append(bump, 2, 0, 2), wire[:]...) // level 0: the transaction
	bump = append(append(bump, 1, 0), bytes.Repeat([]byte{7}, 32)...)
	for range 59 {
		bump = append(bump, 0)
	}
	out := binary.LittleEndian.AppendUint32(nil, versionV2)
	out = append(out, bump...)
	out = append(out, 1, formatRawBump, 0)
	out = append(out, b.data[b.layout.entries[0].start:b.layout.entries[0].end]...)
	long, err := Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Verify(t.Context(), id, chainRoots()); err == nil {
		t.Fatal("an incomplete path was believed")
	}
}

func TestR9_VerifyStopsWithItsContext(t *testing.T) {
	t.Parallel()
	b, err := Parse(readHex(t, "../sample/data/main-814435.hex"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Verify(ctx, b.TxIDs()[1], chainRoots()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
