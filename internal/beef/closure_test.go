package beef

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/chainhash"
)

func TestX1_ClosureOfEveryVector(t *testing.T) {
	t.Parallel()
	known := chainRoots()
	proofs := 0
	for _, v := range vectors(t) {
		b, err := Parse(v.data)
		if err != nil {
			t.Fatal(err)
		}
		subject, atomic := b.Subject()
		for _, id := range b.TxIDs() {
			if atomic && id != subject {
				continue
			}
			members, missing, err := b.Closure(id, 1000)
			if err != nil {
				t.Fatalf("%s: %v", v.name, err)
			}
			place := map[[32]byte]int{}
			for i, m := range members {
				place[m.TxID] = i
				own, err := ParseTx(m.Raw)
				if err != nil || own.TxID != m.TxID || len(own.Outputs) != len(m.Outputs) || own.LockTime != m.LockTime {
					t.Fatalf("%s: %x is not what its raw bytes say: %v", v.name, m.TxID, err)
				}
				if m.Proof != nil {
					proofs++
					root := chainhash.Hash(reversed(m.Proof.Root[:]))
					if known[m.Proof.Height] != root.String() {
						t.Errorf("%s: %x leads to %s at %d", v.name, m.TxID, root, m.Proof.Height)
					}
				}
			}
			if members[len(members)-1].TxID != id {
				t.Fatalf("%s: the target is not the last", v.name)
			}
			for i, m := range members {
				for _, in := range m.Inputs {
					at, here := place[in.Prev]
					_, err := b.find(in.Prev)
					switch {
					case here && at >= i:
						t.Errorf("%s: a child before its parent", v.name)
					case !here && err == nil:
						t.Errorf("%s: the bundle holds a parent that is left out", v.name)
					case !here && m.Proof == nil && !slices.Contains(missing, in.Prev):
						t.Errorf("%s: %x is missing and not told", v.name, in.Prev)
					}
				}
			}
			if len(members) > 1 {
				if _, _, err := b.Closure(id, len(members)-1); !errors.Is(err, ErrLimit) {
					t.Errorf("%s: over the limit: %v", v.name, err)
				}
			}
		}
	}
	if proofs < 40 {
		t.Errorf("%d proofs only", proofs)
	}
}

// Closure and go-sdk agree on where a path leads.
func TestX1_RootsAreThoseOfTheLibrary(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, v := range vectors(t) {
		b, err := Parse(v.data)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range b.sdk.BUMPs {
			f := foldPath(path)
			for id := range f.leaves {
				if !provable(path, id) {
					continue
				}
				root, err := path.ComputeRoot(&id)
				if err != nil {
					t.Fatal(err)
				}
				proof, fault := f.proof(id, &Member{})
				if fault != "" || proof.Root != reversed(root[:]) {
					t.Errorf("%s: %s: %q", v.name, id, fault)
				}
				checked++
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d leaves only", checked)
	}
}

func TestX1_WhatIsNotInTheBundle(t *testing.T) {
	t.Parallel()
	data := readHex(t, "../sample/data/main-814435.hex")
	parent := txid(t, "3ecead27a44d013ad1aae40038acbb1883ac9242406808bb4667c15b4f164eac")
	child := txid(t, "157428aee67d11123203735e4c540fa1bdab3b36d5882c6f8c5ff79f07d20d1c")
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	reduced, err := Parse(rebuilt(b, func(id [32]byte) bool { return id == parent }))
	if err != nil {
		t.Fatal(err)
	}
	members, missing, err := reduced.Closure(child, 10)
	if err != nil || len(members) != 1 || !slices.Contains(missing, parent) {
		t.Errorf("txid-only parent: %d members, missing %x, %v", len(members), missing, err)
	}
	if _, _, err := reduced.Closure(parent, 10); !errors.Is(err, ErrTxIDOnly) {
		t.Errorf("txid-only target: %v", err)
	}
	if _, _, err := reduced.Closure(txid(t, strings.Repeat("ab", 32)), 10); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent target: %v", err)
	}
	atomic := readHex(t, "testdata/made-up-atomic.hex")
	a, err := Parse(atomic)
	if err != nil {
		t.Fatal(err)
	}
	other := txid(t, "92f06005f51981ae89f855306f6498bc8b764c4d7f6cbdb4881dc56d4d77314f")
	if _, _, err := a.Closure(other, 10); !errors.Is(err, ErrSubject) {
		t.Errorf("another target of an atomic BEEF: %v", err)
	}
}

// bundleOf writes a V2 BEEF with one path and one transaction tied to it.
func bundleOf(t *testing.T, path string, raw []byte) *Bundle {
	t.Helper()
	data := unhex(t, v2+"01"+path+"01"+"0100")
	b, err := Parse(append(data, raw...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestX1_BrokenPaths(t *testing.T) {
	t.Parallel()
	raw := unhex(t, rawTx)
	m, err := ParseTx(raw)
	if err != nil {
		t.Fatal(err)
	}
	wire := reversed(m.TxID[:])
	own, a, z := hex.EncodeToString(wire[:]), strings.Repeat("aa", 32), strings.Repeat("ee", 32)
	pair := func(l, r []byte) string {
		once := sha256.Sum256(append(bytes.Clone(l), r...))
		twice := sha256.Sum256(once[:])
		return hex.EncodeToString(twice[:])
	}
	up := pair(wire[:], unhex(t, a))
	for name, c := range map[string]struct{ path, fault string }{
		"whole":                     {"05" + "02" + "02" + "0002" + own + "0100" + a + "01" + "0100" + z, ""},
		"one transaction":           {"05" + "01" + "01" + "0002" + own, ""},
		"its right repeats it":      {"05" + "01" + "02" + "0002" + own + "0101", ""},
		"agrees with itself":        {"05" + "02" + "02" + "0002" + own + "0100" + a + "02" + "0000" + up + "0100" + z, ""},
		"another transaction's":     {"05" + "01" + "02" + "0002" + a + "0100" + z, "does not hold it"},
		"without a sibling":         {"05" + "01" + "02" + "0002" + own + "0200" + a, "incomplete"},
		"without an uncle":          {"05" + "02" + "02" + "0002" + own + "0100" + a + "00", "incomplete"},
		"far from everything":       {"05" + "01" + "01" + "ff0000000000000080" + "02" + own, ""},
		"far, with a sibling":       {"05" + "01" + "02" + "ff0000000000000080" + "02" + own + "ff0100000000000080" + "00" + a, "incomplete"},
		"contradicts itself":        {"05" + "02" + "02" + "0002" + own + "0100" + a + "02" + "0000" + z + "0100" + z, "contradicts itself"},
		"a left that repeats":       {"05" + "01" + "02" + "0102" + own + "0001", "repeats"},
		"a known node that repeats": {"05" + "02" + "04" + "0002" + own + "0100" + a + "0200" + a + "0300" + z + "01" + "0101", "contradicts itself"},
	} {
		members, _, err := bundleOf(t, c.path, raw).Closure(m.TxID, 1)
		switch {
		case c.fault == "" && (err != nil || members[0].Proof == nil || members[0].Proof.Height != 5):
			t.Errorf("%s: %v", name, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: %v", name, err)
		}
	}
	// A path that nobody ties to the transaction counts when it is whole, and
	// is no fault when it is not.
	for path, proved := range map[string]bool{
		"05" + "01" + "02" + "0002" + own + "0100" + a:                      true,
		"05" + "02" + "02" + "0002" + own + "0100" + a + "00":               false,
		"05" + "01" + "02" + "0002" + a + "0100" + z:                        false,
		"05" + "01" + "02" + "ff0000000000000080" + "02" + own + "0000" + a: false,
	} {
		b, err := Parse(append(unhex(t, v2+"01"+path+"01"+"00"), raw...))
		if err != nil {
			t.Fatal(err)
		}
		members, _, err := b.Closure(m.TxID, 1)
		if err != nil || (members[0].Proof != nil) != proved {
			t.Errorf("%s: %v, proof %v", path, err, members[0].Proof)
		}
	}
}

// A transaction as long as a tree node proves nothing.
func TestX1_TreeNodesAreNoTransactions(t *testing.T) {
	t.Parallel()
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, 1)
	raw = append(raw, bytes.Repeat([]byte{0x11}, 36)...)
	raw = append(raw, 0, 0xff, 0xff, 0xff, 0xff, 1)
	raw = append(binary.LittleEndian.AppendUint64(raw, 1), 4, 1, 2, 3, 4)
	raw = append(raw, 0, 0, 0, 0)
	if len(raw) != mimicSize {
		t.Fatalf("%d bytes", len(raw))
	}
	m, err := ParseTx(raw)
	if err != nil {
		t.Fatal(err)
	}
	wire := reversed(m.TxID[:])
	path := "05" + "01" + "02" + "0002" + hex.EncodeToString(wire[:]) + "0100" + leaf
	if _, _, err := bundleOf(t, path, raw).Closure(m.TxID, 1); err == nil || !strings.Contains(err.Error(), "size of a tree node") {
		t.Errorf("%v", err)
	}
}

func FuzzX1_Closure(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			return
		}
		for _, id := range b.TxIDs() {
			members, _, err := b.Closure(id, 64)
			if _, ok := errors.AsType[*Error](err); err != nil && !ok {
				t.Fatalf("%v is no *Error", err)
			}
			if err == nil && members[len(members)-1].TxID != id {
				t.Fatal("the target is not the last")
			}
		}
	})
}
