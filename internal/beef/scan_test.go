package beef

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// Pieces of a small, well-formed BEEF.
const (
	v1     = "0100beef"
	v2     = "0200beef"
	rawTx  = "01000000" + "01" + "1111111111111111111111111111111111111111111111111111111111111111" + "00000000" + "00" + "ffffffff" + "01" + "0100000000000000" + "00" + "00000000"
	leaf   = "2222222222222222222222222222222222222222222222222222222222222222"
	bump   = "05" + "01" + "02" + "0002" + leaf + "0100" + leaf // height 5, one level, two leaves
	huge   = "ffffffffffffffffff"
	efTx   = "01000000" + "0000000000ef" + "01" + "1111111111111111111111111111111111111111111111111111111111111111" + "00000000" + "00" + "ffffffff" + "0100000000000000" + "00" + "01" + "0100000000000000" + "00" + "00000000"
	txidly = "02" + leaf
)

func TestJ1_HostileInputs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ hex, reason string }{
		"nothing":                        {"", "four bytes"},
		"three bytes":                    {"0100be", "four bytes"},
		"unknown version":                {"0300beef" + "00" + "01" + rawTx + "00", "unknown version"},
		"giant BUMP count":               {v1 + huge, "cannot fit"},
		"112 TB of BUMPs":                {v1 + "ff0000e803dd5d0000", "cannot fit"},
		"tree height 0":                  {v1 + "01" + "05" + "00" + "01" + rawTx + "0100", "tree height 0"},
		"tree height 65":                 {v1 + "01" + "05" + "41" + strings.Repeat("00", 99), "tree height 65"},
		"block height over 32 bits":      {v1 + "01" + "ff0000000001000000" + "01" + "01" + "0002" + leaf + "00", "block height"},
		"giant leaf count":               {v1 + "01" + "05" + "01" + huge, "leaves cannot fit"},
		"no leaves":                      {v1 + "01" + "05" + "02" + "00" + "00" + "01" + rawTx + "00", "without leaves"},
		"unknown leaf flags":             {v1 + "01" + "05" + "01" + "01" + "0004" + leaf + "01" + rawTx + "00", "leaf flags"},
		"flags duplicate and txid":       {v1 + "01" + "05" + "01" + "01" + "0003" + leaf + "01" + rawTx + "00", "leaf flags"},
		"two duplicates in a level":      {v1 + "01" + "05" + "01" + "02" + "0001" + "0101" + "01" + rawTx + "00", "duplicate leaves"},
		"an offset twice":                {v1 + "01" + "05" + "01" + "02" + "0002" + leaf + "0000" + leaf + "01" + rawTx + "00", "offset 0 twice"},
		"an offset twice, apart":         {v1 + "01" + "05" + "01" + "03" + "0102" + leaf + "0000" + leaf + "0100" + leaf + "01" + rawTx + "00", "offset 1 twice"},
		"short leaf":                     {v1 + "01" + "05" + "01" + "01" + "0002" + leaf[:62], "a leaf"},
		"no transactions":                {v1 + "00" + "00", "no transactions"},
		"giant transaction count":        {v1 + "00" + huge, "transactions cannot fit"},
		"giant input count":              {v1 + "00" + "01" + "01000000" + huge + strings.Repeat("00", 40), "inputs cannot fit"},
		"giant output count":             {v1 + "00" + "01" + rawTx[:8+2+82] + huge + strings.Repeat("00", 40), "outputs cannot fit"},
		"giant unlocking script":         {v1 + "00" + "01" + rawTx[:8+2+72] + huge + strings.Repeat("00", 40), "unlocking script"},
		"giant locking script":           {v1 + "00" + "01" + rawTx[:8+2+82+2+16] + huge + strings.Repeat("00", 40), "locking script"},
		"no inputs, no outputs":          {v1 + "00" + "01" + "01000000" + "00" + "00" + "00000000" + strings.Repeat("00", 40), "without inputs and outputs"},
		"extended format, V1":            {v1 + "00" + "01" + efTx + "00", "extended-format"},
		"extended format, V2":            {v2 + "00" + "01" + "00" + efTx, "extended-format"},
		"BUMP index without BUMPs":       {v1 + "00" + "01" + rawTx + "0100", "BUMP index 0"},
		"BUMP index out of range, V1":    {v1 + "01" + bump + "01" + rawTx + "0101", "BUMP index 1"},
		"BUMP index out of range, V2":    {v2 + "01" + bump + "01" + "0101" + rawTx, "BUMP index 1"},
		"giant BUMP index":               {v2 + "01" + bump + "01" + "01" + huge + rawTx, "BUMP index"},
		"BUMP marker 2":                  {v1 + "01" + bump + "01" + rawTx + "0200", "BUMP marker"},
		"unknown transaction format":     {v2 + "00" + "01" + "03" + rawTx, "transaction format 3"},
		"short txid-only":                {v2 + "00" + "01" + "02" + leaf[:62], "a txid"},
		"one byte after the end, V1":     {v1 + "01" + bump + "01" + rawTx + "0100" + "00", "after the end"},
		"one byte after the end, V2":     {v2 + "01" + bump + "01" + "0100" + rawTx + "00", "after the end"},
		"two BEEFs":                      {strings.Repeat(v2+"00"+"01"+"00"+rawTx, 2), "after the end"},
		"missing last byte":              {v2 + "00" + "01" + "00" + rawTx[:len(rawTx)-2], "lock time"},
		"size not in its shortest form":  {v2 + "fd0000" + "01" + "00" + rawTx, "shortest form"},
		"count not in its shortest form": {v2 + "00" + "01" + "00" + strings.Replace(rawTx, "ffffffff01", "fffffffffd0100", 1), "shortest form"},
		"a transaction listed twice":     {v2 + "00" + "02" + "00" + rawTx + "00" + rawTx, "listed twice"},
		"atomic without a subject":       {"01010101" + leaf[:60], "atomic subject"},
		"atomic without a BEEF":          {"01010101" + leaf, "four bytes"},
		"atomic in atomic":               {"01010101" + leaf + "01010101" + leaf + v2 + "00" + "01" + "00" + rawTx, "unknown version"},
		"atomic about something else":    {"01010101" + leaf + v2 + "00" + "01" + "00" + rawTx, "is not in the BEEF"},
		"atomic about a txid":            {"01010101" + leaf + v2 + "00" + "02" + "00" + rawTx + txidly, "txid-only"},
	} {
		_, err := Parse(unhex(t, c.hex))
		e, ok := errors.AsType[*Error](err)
		switch {
		case !ok:
			t.Errorf("%s: error %v", name, err)
		case !strings.Contains(e.Reason, c.reason):
			t.Errorf("%s: %q does not say %q", name, e.Reason, c.reason)
		}
	}
	for name, good := range map[string]string{
		"V1":               v1 + "01" + bump + "01" + rawTx + "0100",
		"V2":               v2 + "01" + bump + "01" + "0100" + rawTx,
		"no BUMP":          v2 + "00" + "01" + "00" + rawTx,
		"txid-only beside": v2 + "00" + "02" + txidly + "00" + rawTx,
		"empty level":      v2 + "01" + "05" + "02" + "02" + "0002" + leaf + "0100" + leaf + "00" + "01" + "0100" + rawTx,
	} {
		if _, err := Parse(unhex(t, good)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJ1_Mutants(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	rng := rand.New(rand.NewPCG(193, 62))
	parsed := 0
	for range 40_000 {
		data := mutate(rng, all)
		b, err := Parse(data)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%v is no *Error", err)
			}
			continue
		}
		parsed++
		if parsed%50 == 0 {
			checkFixedPoint(t, b)
		}
		for _, id := range b.TxIDs() {
			if _, err := b.Transaction(id); err != nil && !errors.Is(err, ErrSubject) {
				t.Fatalf("own transaction: %v\n%x", err, data)
			}
		}
	}
	if parsed == 0 {
		t.Fatal("no mutant parsed: the test shows nothing")
	}
	t.Logf("%d of 40000 mutants parsed", parsed)
}

// mutate changes, cuts, doubles or splices one of the vectors.
func mutate(rng *rand.Rand, all []vector) []byte {
	data := bytes.Clone(all[rng.IntN(len(all))].data)
	for range 1 + rng.IntN(4) {
		at := rng.IntN(len(data))
		switch rng.IntN(7) {
		case 0:
			data[at] ^= 1 << rng.IntN(8)
		case 1:
			data[at] = byte(rng.Uint32())
		case 2:
			copy(data[at:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff"[:1+rng.IntN(9)])
		case 3:
			copy(data[at:], []byte{0xfe, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())})
		case 4:
			data = data[:at+1]
		case 5:
			end := min(len(data), at+1+rng.IntN(40))
			data = append(bytes.Clone(data[:end]), data[at:]...)
		case 6:
			other := all[rng.IntN(len(all))].data
			data = append(bytes.Clone(data[:at+1]), other[rng.IntN(len(other)):]...)
		}
	}
	return data
}

// The worst that a well-formed input can ask for stays a small multiple of it.
// Not parallel: it measures the whole process.
func TestJ1_AllocationIsBoundedByTheInput(t *testing.T) {
	repeat := func(head string, n int, body, tail string) []byte {
		out := unhex(t, head)
		out = AppendCompactSize(out, uint64(n))
		out = append(out, bytes.Repeat(unhex(t, body), n)...)
		return append(out, unhex(t, tail)...)
	}
	const n = 20_000
	output := "0000000000000000" + "00"
	oneInput := rawTx[:8+2+82]
	manyLeaves := unhex(t, v1+"01"+"05"+"01")
	manyLeaves = AppendCompactSize(manyLeaves, n)
	for i := range uint64(n) {
		manyLeaves = append(append(AppendCompactSize(manyLeaves, i), 0), unhex(t, leaf)...)
	}
	// One transaction that is large, beside one path that has many leaves:
	// go-sdk's V1 reader would hash it once for each of them.
	manyLeaves = append(manyLeaves, 1)
	manyLeaves = append(manyLeaves, repeat(oneInput, n, output, "00000000")...)
	manyLeaves = append(manyLeaves, 1, 0)
	for name, data := range map[string][]byte{
		"outputs":      append(repeat(v1+"00"+"01"+oneInput, n, output, "00000000"), 0),
		"inputs":       append(repeat(v1+"00"+"01"+"01000000", n, rawTx[10:10+82], "00"+"00000000"), 0),
		"empty levels": repeat(v1, n, "05"+"40"+"01"+"0002"+leaf+strings.Repeat("00", 63), "01"+rawTx+"00"),
		"leaves":       manyLeaves,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(data)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		total := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d bytes in, %d allocated in all (x%d)", name, len(data), total, total/uint64(len(data)))
		if total > 64*uint64(len(data)) {
			t.Errorf("%s: %d bytes in, %d allocated", name, len(data), total)
		}
	}
}

func FuzzJ6_BEEF(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.data)
	}
	for _, s := range []string{v1 + "01" + bump + "01" + rawTx + "0100", v2 + "00" + "02" + txidly + "00" + rawTx} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%v is no *Error", err)
			}
			return
		}
		checkFixedPoint(t, b)
		for _, id := range b.TxIDs() {
			tx, err := b.Transaction(id)
			if errors.Is(err, ErrSubject) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if tx.Outputs > 0 {
				if err := CheckOutput(data, id, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
