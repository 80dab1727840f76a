package beef

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/transaction"
)

func TestJ2_EveryVectorByTxID(t *testing.T) {
	t.Parallel()
	distinct := map[[32]byte]bool{}
	for _, v := range vectors(t) {
		b, err := Parse(v.data)
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		subject, atomic := b.Subject()
		for _, id := range b.TxIDs() {
			if atomic && id != subject {
				continue
			}
			distinct[id] = true
			tx, err := b.Transaction(id)
			if err != nil {
				t.Errorf("%s: %v", v.name, err)
				continue
			}
			own, err := transaction.NewTransactionFromBytes(tx.Raw)
			if err != nil {
				t.Fatalf("%s: %v", v.name, err)
			}
			if own.TxID().String() != hex.EncodeToString(id[:]) || len(own.Inputs) != len(tx.Inputs) || len(own.Outputs) != tx.Outputs {
				t.Errorf("%s: %x is not what its raw bytes say", v.name, id)
			}
			if err := CheckOutput(v.data, id, uint32(tx.Outputs-1)); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			if err := CheckOutput(v.data, id, uint32(tx.Outputs)); err == nil {
				t.Errorf("%s: output %d of %x accepted", v.name, tx.Outputs, id)
			}
			for _, in := range tx.Inputs {
				if err := CheckSpend(v.data, id, in.Prev, in.Index); err != nil {
					t.Errorf("%s: %v", v.name, err)
				}
				if err := CheckSpend(v.data, id, in.Prev, in.Index+77); err == nil {
					t.Errorf("%s: a spend of another index accepted", v.name)
				}
			}
			if err := CheckSpend(v.data, id, id, 0); err == nil {
				t.Errorf("%s: a spend of itself accepted", v.name)
			}
		}
	}
	if len(distinct) != 54 {
		t.Errorf("%d distinct targets, 54 expected", len(distinct))
	}
}

func TestJ2_OrderOfTheBundleMeansNothing(t *testing.T) {
	t.Parallel()
	// In this one the transaction that spends the others stands first.
	data := readHex(t, "testdata/test-1663811.hex")
	first := txid(t, "1ad32c6f017c83803164750e48a3f967b3f79afd0422600c117901bcba452051")
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if b.TxIDs()[0] != first {
		t.Fatal("the vector has changed")
	}
	tx, err := b.Transaction(first)
	if err != nil || len(tx.Inputs) != 12 {
		t.Fatalf("%v, %d inputs", err, len(tx.Inputs))
	}
}

func TestJ5_AtomicProvesItsSubjectOnly(t *testing.T) {
	t.Parallel()
	data := readHex(t, "testdata/made-up-atomic.hex")
	subject := txid(t, "d3fea5678c09ae4f29e2995d2e2aa54756879744a866a4449fd117e7b46e9e33")
	other := txid(t, "92f06005f51981ae89f855306f6498bc8b764c4d7f6cbdb4881dc56d4d77314f")
	if err := CheckOutput(data, subject, 0); err != nil {
		t.Fatal(err)
	}
	if err := CheckOutput(data, other, 0); !errors.Is(err, ErrSubject) {
		t.Fatalf("another transaction of an atomic BEEF: %v", err)
	}
	// Without the wrapper the same transaction is evidence.
	if err := CheckOutput(data[36:], other, 0); err != nil {
		t.Fatal(err)
	}
	// A subject that is not in the bundle.
	wrong := bytes.Clone(data)
	wrong[4] ^= 1
	if _, err := Parse(wrong); !errors.Is(err, ErrNotFound) {
		t.Fatalf("an atomic BEEF without its subject: %v", err)
	}
}

// rebuilt makes V2 from the entries of a parsed BEEF, with some of them
// reduced to their txid.
func rebuilt(b *Bundle, reduce func(id [32]byte) bool) []byte {
	out := binary.LittleEndian.AppendUint32(nil, versionV2)
	out = append(out, b.data[b.layout.bumpStart:b.layout.bumpsEnd]...)
	out = AppendCompactSize(out, uint64(len(b.layout.entries)))
	for _, e := range b.layout.entries {
		if reduce(e.txid) {
			id := reversed(e.txid[:])
			out = append(append(out, formatTxIDOnly), id[:]...)
			continue
		}
		out = append(out, e.format)
		if e.format == formatRawBump {
			out = AppendCompactSize(out, e.bump)
		}
		out = append(out, b.data[e.start:e.end]...)
	}
	return out
}

func TestJ3_TxIDOnly(t *testing.T) {
	t.Parallel()
	data := readHex(t, "../sample/data/main-814435.hex")
	parent := txid(t, "3ecead27a44d013ad1aae40038acbb1883ac9242406808bb4667c15b4f164eac")
	child := txid(t, "157428aee67d11123203735e4c540fa1bdab3b36d5882c6f8c5ff79f07d20d1c")
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	reduced := rebuilt(b, func(id [32]byte) bool { return id == parent })
	if err := CheckSpend(reduced, child, parent, 0); err != nil {
		t.Errorf("txid-only ancestor: %v", err)
	}
	if err := CheckOutput(reduced, parent, 0); !errors.Is(err, ErrTxIDOnly) {
		t.Errorf("txid-only target: %v", err)
	}
	if err := CheckOutput(reduced, txid(t, strings.Repeat("ab", 32)), 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent target: %v", err)
	}
	rb, err := Parse(reduced)
	if err != nil {
		t.Fatal(err)
	}
	if err := rb.Verify(t.Context(), child, chainRoots()); !errors.Is(err, ErrUnresolved) {
		t.Errorf("verification with an unresolved ancestor: %v", err)
	}
	subject := reversed(parent[:])
	atomic := append(binary.LittleEndian.AppendUint32(nil, versionAtomic), subject[:]...)
	if _, err := Parse(append(atomic, reduced...)); !errors.Is(err, ErrTxIDOnly) {
		t.Errorf("atomic BEEF with a txid-only subject: %v", err)
	}
}

func TestJ6_NormalFormIsAFixedPoint(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		once, err := Parse(v.data)
		if err != nil {
			t.Fatal(err)
		}
		checkFixedPoint(t, once)
	}
}

func checkFixedPoint(t *testing.T, b *Bundle) {
	t.Helper()
	again, err := Parse(b.V2())
	if err != nil {
		t.Fatalf("own encoding refused: %v", err)
	}
	if !bytes.Equal(again.V2(), b.V2()) {
		t.Fatal("own encoding is not a fixed point")
	}
	if len(again.TxIDs()) != len(b.TxIDs()) {
		t.Fatal("own encoding lost a transaction")
	}
}
