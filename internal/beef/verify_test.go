package beef

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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
	// More value out than in.
	greedy := bytes.Clone(data)
	greedy[e.end-4-34+7] = 0x7f
	gb, err := Parse(greedy)
	if err != nil {
		t.Fatal(err)
	}
	if err := gb.Verify(t.Context(), gb.TxIDs()[1], chainRoots()); err == nil {
		t.Error("value from nowhere was believed")
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
	bump := []byte{0x01, 60}                         // one BUMP... height 60 levels
	bump = append([]byte{0x01, 0x05}, bump[1:]...)   // count, block height, tree height
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
