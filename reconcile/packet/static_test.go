package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// outside are the transactions of the packet whose parents are not in it.
var outside = map[string]bool{"root": true, "brc197Parent": true, "brc197Funding": true}

// TestR9_PublishedTransactions reads every transaction and header, which checks txids, links and work, and follows every input
// to a transaction of the packet.
func TestR9_PublishedTransactions(t *testing.T) {
	t.Parallel()
	w, v, ok := publishedWorld(t)
	if !ok {
		return
	}
	if len(w.txs) != 30 || len(w.headers.blocks) != 113 || len(v.Views) != 4 || len(v.FinalityContexts) != 2 || len(v.Anchors) != 2 || len(v.PreverifiedRoots) != 2 {
		t.Errorf("%d transactions, %d headers, %d views, %d contexts, %d anchors, %d pre-verified", len(w.txs), len(w.headers.blocks),
			len(v.Views), len(v.FinalityContexts), len(v.Anchors), len(v.PreverifiedRoots))
	}
	inputs := 0
	for name, f := range w.txs {
		if outside[name] {
			continue
		}
		in, out := uint64(0), uint64(0)
		seen := map[spend.Outpoint]bool{}
		for _, i := range f.inputs {
			inputs++
			parent, ok := w.names[i.TxID]
			if !ok || int(i.Index) >= len(w.txs[parent].outputs) {
				t.Fatalf("%s spends %s, which is not in the packet", name, i.Outpoint)
			}
			if seen[i.Outpoint] {
				t.Errorf("%s spends %s twice", name, w.show(i.Outpoint))
			}
			seen[i.Outpoint] = true
			in += w.txs[parent].outputs[i.Index].value
		}
		for _, o := range f.outputs {
			out += o.value
		}
		if in < out {
			t.Errorf("%s spends %d and makes %d", name, in, out)
		}
		if f.valid != (name != "badSignature") {
			t.Errorf("%s: scriptValid %v", name, f.valid)
		}
	}
	if inputs != 42 {
		t.Errorf("%d inputs, not 42", inputs)
	}

	e := v.ExpiryRetirement
	retire, listing := w.tx(e.Name), w.tx(e.ListingParent)
	if len(retire.inputs) != 2 || w.show(retire.inputs[0].Outpoint) != "brc197Parent:1" || w.show(retire.inputs[1].Outpoint) != e.FundingParent+":0" || e.ListingOutputIndex != 1 {
		t.Errorf("%s has other inputs: %v", e.Name, retire.inputs)
	}
	lock := listing.outputs[e.ListingOutputIndex].script
	if retire.lockTime != e.ExpiryHeight || retire.inputs[0].Sequence == 0xffffffff || len(lock) != 5627 || binary.LittleEndian.Uint32(lock[89:]) != e.ExpiryHeight {
		t.Errorf("%s: lock time %d, sequence %08x, a lock of %d bytes", e.Name, retire.lockTime, retire.inputs[0].Sequence, len(lock))
	}
}

// TestR6_PublishedFinality checks the boundary rows.
func TestR6_PublishedFinality(t *testing.T) {
	t.Parallel()
	w, v, ok := publishedWorld(t)
	if !ok {
		return
	}
	for _, row := range v.Finality {
		if got := spend.Final(w.tx(row.Name).selectable(), row.Height+1, row.MTP); got != row.Expected {
			t.Errorf("%s at height %d, median time %d: final %v", row.Name, row.Height, row.MTP, got)
		}
	}
	if len(v.Finality) != 17 {
		t.Errorf("%d rows, not 17", len(v.Finality))
	}
	t.Logf("published packet: %d finality", len(v.Finality))
}

// TestR6_PublishedComparisons checks which sequences increase.
func TestR6_PublishedComparisons(t *testing.T) {
	t.Parallel()
	w, v, ok := publishedWorld(t)
	if !ok {
		return
	}
	for _, row := range v.Replacements {
		old, _ := row[0].(string)
		next, _ := row[1].(string)
		want, ok := row[2].(bool)
		if len(row) != 3 || !ok {
			t.Fatalf("row %v", row)
		}
		if got := spend.Increases(w.tx(old).selectable(), w.tx(next).selectable()); got != want {
			t.Errorf("%s to %s: increases %v", old, next, got)
		}
	}
	if len(v.Replacements) != 11 {
		t.Errorf("%d rows, not 11", len(v.Replacements))
	}
	t.Logf("published packet: %d comparisons", len(v.Replacements))
}

// TestV1_OwnParserRefuses keeps the parser that judges honest: what is cut or lengthened is no transaction.
func TestV1_OwnParserRefuses(t *testing.T) {
	t.Parallel()
	raw, err := hex.DecodeString("01000000" + "01" + "00000000000000000000000000000000000000000000000000000000000000aa" + "01000000" + "0151" + "feffffff" + "01" + "0900000000000000" + "0151" + "07000000")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parse(raw)
	if err != nil || f.lockTime != 7 || len(f.inputs) != 1 || f.inputs[0].TxID[0] != 0xaa || f.inputs[0].Index != 1 || f.inputs[0].Sequence != 0xfffffffe || f.outputs[0].value != 9 || !bytes.Equal(f.outputs[0].script, []byte{0x51}) {
		t.Fatalf("%+v, %v", f, err)
	}
	for n := range raw {
		if _, err := parse(raw[:n]); err == nil {
			t.Errorf("%d bytes of it are a transaction", n)
		}
	}
	if _, err := parse(append(bytes.Clone(raw), 0)); err == nil {
		t.Error("a byte more is a transaction")
	}
}

// TestR9_PublishedScripts runs all 42 inputs against the outputs that they spend.
func TestR9_PublishedScripts(t *testing.T) {
	t.Parallel()
	w, _, ok := publishedWorld(t)
	if !ok {
		return
	}
	ran := 0
	for name, f := range w.txs {
		if outside[name] {
			continue
		}
		tx, err := beef.Prepare(f.raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		valid := true
		for i, in := range f.inputs {
			ran++
			spent := w.tx(w.name(in.TxID)).outputs[in.Index]
			if err := tx.Execute(i, spent.script, spent.value); err != nil {
				valid = false
				if f.valid {
					t.Errorf("%s, input %d: %v", name, i, err)
				}
			}
		}
		if valid != f.valid {
			t.Errorf("%s: its scripts hold: %v", name, valid)
		}
	}
	if ran != 42 {
		t.Errorf("%d inputs, not 42", ran)
	}
	t.Logf("published packet: %d inputs; brc197Parent and brc197Funding are pre-verified: their parents lie outside the packet", ran)
}

// TestR9_PublishedPlacements proves the anchors, and the one inclusion in its own branch alone. The views of this package's own
// tree are those of verify.Headers.
func TestR9_PublishedPlacements(t *testing.T) {
	t.Parallel()
	w, v, ok := publishedWorld(t)
	if !ok {
		return
	}
	headers, err := verify.NewHeaders(mustHex(t, v.Headers[0].Raw))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range v.Headers[1:] {
		if err := headers.Add(mustHex(t, h.Raw)); err != nil {
			t.Fatalf("header %s: %v", h.Label, err)
		}
	}
	views := map[string]verify.View{}
	for name, want := range map[string]reconcile.ChainView{
		"base": {TipHeight: 101, MedianTimePast: 1000000096}, "included": {TipHeight: 102, MedianTimePast: 1000000097},
		"fork": {TipHeight: 102, MedianTimePast: 1000000097}, "mature": {TipHeight: 110, MedianTimePast: 1000000105},
	} {
		if views[name], err = headers.View(w.views[name].tip); err != nil {
			t.Fatal(err)
		}
		for _, got := range []reconcile.ChainView{views[name].Context(), w.view(name, name).Context()} {
			if got.TipHeight != want.TipHeight || got.MedianTimePast != want.MedianTimePast || got.TipHash != v.Views[name].TipHash {
				t.Errorf("view %s: %+v", name, got)
			}
		}
	}
	for _, p := range append(v.Anchors, v.Inclusion) {
		f := w.tx(p.Name)
		for name, view := range views {
			for _, view := range []verify.View{view, w.view(name, name)} {
				plan := verify.Plan(p.bytes(t), f.id, view, reconcile.Budget{})
				if plan.Fault.Status != "" && !(p.Name == "B" && name != "included") || len(plan.Claims) != 1 || plan.Claims[0].TxID != f.id || plan.Claims[0].Height != p.Height {
					t.Fatalf("%s in %s: %+v", p.Name, name, plan)
				}
				want := p.Name != "B" || name == "included"
				if c := verify.Ask(view, plan.Claims)[0]; c.Holds != want || plan.Claims[0].Holds != want || !c.Known || c.Coinbase != (p.Name == "root") {
					t.Errorf("%s in %s: %+v", p.Name, name, c)
				}
			}
		}
	}
	for _, name := range v.PreverifiedRoots {
		t.Logf("%s is trusted as the packet says: its parents are not in it", name)
	}
}
