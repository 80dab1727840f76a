package sample

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func TestN1_SmallIsAccepted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Small(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	f := newFeed(t)
	targets := map[[32]byte]bool{}
	n := 0
	for _, text := range lines(t, out.Bytes()) {
		for _, e := range f.apply(text) {
			targets[e.target] = true
		}
		n++
	}
	t.Logf("%d groups, %d bytes, %d transactions, %d rows left, %v", n, out.Len(), len(targets), len(f.rows), f.ops)
	if len(targets) != 36 {
		t.Errorf("%d transactions, 36 expected", len(targets))
	}
	if f.ops["put"] < 60 || f.ops["spend"] < 20 || f.ops["replacement"] < 12 || f.ops["spend"] == f.ops["replacement"] || f.multi == 0 || f.contexts == 0 || len(f.rows) < 20 {
		t.Errorf("%v, %d many-valued, %d contexts, %d rows", f.ops, f.multi, f.contexts, len(f.rows))
	}
}

func TestN2_SmallIsDeterministic(t *testing.T) {
	t.Parallel()
	var one, two bytes.Buffer
	if err := Small(t.Context(), &one); err != nil {
		t.Fatal(err)
	}
	if err := Small(t.Context(), &two); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatal("two runs differ")
	}
}

func TestGenesisHashes(t *testing.T) {
	t.Parallel()
	if got := hex.EncodeToString(MainGenesis[:]); got != "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f" {
		t.Error(got)
	}
	if SyntheticGenesis == MainGenesis || SyntheticGenesis[0] >= 0x7f {
		t.Errorf("%x", SyntheticGenesis)
	}
}
