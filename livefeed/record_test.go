package livefeed

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// drawState draws any state the feed could store, U+0000 in every text included.
func drawState(t *rapid.T) *State {
	text := rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a', 'é', '\U0001F600'}), 1, 12, -1)
	s := &State{
		Evidence: Evidence{SHA256: sha256.Sum256([]byte(text.Draw(t, "evidence"))), Size: rapid.IntRange(0, 1<<22).Draw(t, "size")},
		Hidden:   rapid.Bool().Draw(t, "hidden"),
	}
	for _, name := range rapid.SliceOfNDistinct(text, 0, 3, rapid.ID[string]).Draw(t, "names") {
		s.Attributes = append(s.Attributes, Attribute{Name: name, Values: rapid.SliceOfN(text, 1, 3).Draw(t, "values")})
	}
	if order := rapid.SliceOfN(rapid.Byte(), 0, maxOrderLen).Draw(t, "order"); len(order) > 0 {
		s.Order = order
	}
	if rapid.Bool().Draw(t, "context") {
		s.Context = &Context{Schema: text.Draw(t, "schema"), Bytes: append([]byte{}, text.Draw(t, "bytes")...)}
	}
	if rapid.Bool().Draw(t, "expiry") {
		s.ExpiresAt = rapid.Uint64Min(1).Draw(t, "expiresAt")
	}
	if n := rapid.IntRange(0, 3).Draw(t, "readers"); n > 0 {
		s.Readers = make([][33]byte, n)
		for i := range s.Readers {
			s.Readers[i][0], s.Readers[i][32] = 2, byte(i)
		}
	}
	return s
}

func drawChange(t *rapid.T) Change {
	c := Change{Op: Op(rapid.IntRange(int(Put), int(Expire)).Draw(t, "op"))}
	if c.Op != Invalidate {
		c.Outpoint = Outpoint{TxID: sha256.Sum256([]byte{rapid.Byte().Draw(t, "txid")}), Index: rapid.Uint32().Draw(t, "index")}
	}
	if rapid.Bool().Draw(t, "before") {
		c.Before = drawState(t)
	}
	switch rapid.IntRange(0, 2).Draw(t, "after") {
	case 1:
		c.After = drawState(t)
	case 2:
		c.After = c.Before
	}
	switch c.Op {
	case Spend:
		c.SpendingTxID = sha256.Sum256([]byte{1})
		c.SpendEvidence = Evidence{SHA256: sha256.Sum256([]byte{2}), Size: 3}
	case Withdraw:
		c.Reason = "evicted\x00"
	case Invalidate:
		c.Reason, c.ContextID = "reorg", "ctx"
	}
	return c
}

func TestF9_RecordRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		changes := rapid.SliceOfN(rapid.Custom(drawChange), 1, 4).Draw(t, "changes")
		b := appendRecord(nil, changes)
		got, err := decodeRecord(b)
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		if !reflect.DeepEqual(got, changes) {
			t.Fatalf("got  %+v\nwant %+v", got, changes)
		}
		if again := appendRecord(nil, got); !bytes.Equal(again, b) {
			t.Fatalf("second encoding differs")
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := decodeRecord(b[:cut]); err == nil {
			t.Fatalf("a record cut to %d of %d bytes was read", cut, len(b))
		}
		if _, err := decodeRecord(append(b, 0)); err == nil {
			t.Fatal("a trailing byte was ignored")
		}
	})
}

// goldenChanges has every field in it. Its encoding is in every log ever written: if this test fails the decoder has
// lost old logs, and the answer is a new record version, not a new golden text.
func goldenChanges() []Change {
	before := &State{
		Evidence:   Evidence{SHA256: [32]byte{1}, Size: 300},
		Attributes: []Attribute{{Name: "artist", Values: []string{"a1", "a2"}}, {Name: "genre", Values: []string{"jazz"}}},
		Order:      []byte("0001"),
		Context:    &Context{Schema: "urn:x:1", Bytes: []byte{0, 1}},
		ExpiresAt:  1_800_000_000,
		Readers:    [][33]byte{{2, 7}},
	}
	after := &State{Evidence: Evidence{SHA256: [32]byte{2}, Size: 1}, Hidden: true}
	o := Outpoint{TxID: [32]byte{9}, Index: 258}
	return []Change{
		{Op: Put, Outpoint: o, Before: before, After: after},
		{Op: Put, Outpoint: o, Before: after, After: after},
		{Op: Spend, Outpoint: o, Before: after, SpendingTxID: [32]byte{8}, SpendEvidence: Evidence{SHA256: [32]byte{3}, Size: 2}},
		{Op: Withdraw, Outpoint: o, Reason: "evicted"},
		{Op: Invalidate, Reason: "reorg", ContextID: "c1"},
		{Op: Expire, Outpoint: o, Before: before},
	}
}

const goldenRecord = "" +
	"010601030900000000000000000000000000000000000000000000000000000000000000000001020e01000000000000000000000000000000000000" +
	"00000000000000000000000000ac020206617274697374020261310261320567656e726501046a617a7a04303030310775726e3a783a3102000180a4" +
	"a7da06010207000000000000000000000000000000000000000000000000000000000000000102000000000000000000000000000000000000000000" +
	"000000000000000000000100000105090000000000000000000000000000000000000000000000000000000000000000000102010200000000000000" +
	"000000000000000000000000000000000000000000000000010000020109000000000000000000000000000000000000000000000000000000000000" +
	"000000010201020000000000000000000000000000000000000000000000000000000000000001000008000000000000000000000000000000000000" +
	"000000000000000000000000000300000000000000000000000000000000000000000000000000000000000000020300090000000000000000000000" +
	"000000000000000000000000000000000000000000000102076576696374656404000572656f72670263310501090000000000000000000000000000" +
	"0000000000000000000000000000000000000001020e0100000000000000000000000000000000000000000000000000000000000000ac0202066172" +
	"74697374020261310261320567656e726501046a617a7a04303030310775726e3a783a3102000180a4a7da0601020700000000000000000000000000" +
	"000000000000000000000000000000000000"

func TestF9_RecordGolden(t *testing.T) {
	t.Parallel()
	if got := hex.EncodeToString(appendRecord(nil, goldenChanges())); got != goldenRecord {
		t.Errorf("the encoding changed:\n%s", got)
	}
	b, err := hex.DecodeString(goldenRecord)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := goldenChanges(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestF9_RecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	if _, err := decodeRecord([]byte{recordVersion + 1, 0}); err == nil {
		t.Error("a record of an unknown version was read")
	}
}

func FuzzF9_Record(f *testing.F) {
	f.Add(appendRecord(nil, goldenChanges()))
	f.Add([]byte{recordVersion, 0})
	f.Add([]byte{recordVersion, 1, byte(Invalidate), 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		changes, err := decodeRecord(b)
		if err != nil {
			return
		}
		if again := appendRecord(nil, changes); !bytes.Equal(again, b) {
			t.Errorf("%x reads, but is written %x", b, again)
		}
	})
}

func TestF8_OrderKeySortsAsPromised(t *testing.T) {
	t.Parallel()
	type row struct {
		order []byte
		o     Outpoint
	}
	draw := rapid.Custom(func(t *rapid.T) row {
		small := rapid.SampledFrom([]byte{0, 0, 1, 0xfe, 0xff})
		return row{
			order: rapid.SliceOfN(small, 0, 5).Draw(t, "order"),
			o:     Outpoint{TxID: [32]byte{0: small.Draw(t, "first"), 31: small.Draw(t, "last")}, Index: rapid.SampledFrom([]uint32{0, 1, 255, 256, 1 << 31}).Draw(t, "index")},
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		want := cmp.Or(bytes.Compare(a.order, b.order), bytes.Compare(a.o.TxID[:], b.o.TxID[:]), cmp.Compare(a.o.Index, b.o.Index))
		if got := bytes.Compare(orderKey(a.order, a.o), orderKey(b.order, b.o)); got != want {
			t.Fatalf("%x %v against %x %v: %d, want %d", a.order, a.o, b.order, b.o, got, want)
		}
		order, o, err := orderOf(orderKey(a.order, a.o))
		if err != nil || !bytes.Equal(order, a.order) || o != a.o {
			t.Fatalf("%x %v came back as %x %v, %v", a.order, a.o, order, o, err)
		}
	})
}

func TestF8_MalformedOrderKeys(t *testing.T) {
	t.Parallel()
	tail := make([]byte, outpointLen)
	for _, head := range [][]byte{{}, {0}, {1}, {1, 0}, {0, 1}, {0, 0, 0}, {1, 0, 0, 1, 0, 0}} {
		if _, _, err := orderOf(append(append([]byte{}, head...), tail...)); err == nil {
			t.Errorf("order key with head %x was read", head)
		}
	}
}
