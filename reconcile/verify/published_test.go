package verify_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// packet is what this package needs of reconciliation-vectors.json.
type packet struct {
	Transactions map[string]struct {
		TxID, Raw   string
		ScriptValid bool
	}
	Headers []struct {
		Height    uint32
		Hash, Raw string
	}
	Views     map[string]struct{ TipHash string }
	Anchors   []placed
	Inclusion placed
}

type placed struct {
	Name   string
	Height uint32
	BEEF   string
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The published transactions, headers and proofs through the parts that a program
// uses: a header tree, plans, checks with scripts. The published file is not part
// of this repository.
func TestR9_PublishedEvidence(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("OVERLAYD_BRC_PACKET")
	if dir == "" {
		t.Log("the published BRC packet was left out: set OVERLAYD_BRC_PACKET to the absolute path of its folder to check reconciliation-vectors.json")
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "reconciliation-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p packet
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}

	// Headers: links, own targets, times; the views' heights and median times.
	var tree *verify.Headers
	for _, h := range p.Headers {
		if raw := unhex(t, h.Raw); tree == nil {
			if tree, err = verify.NewHeaders(raw); err != nil {
				t.Fatal(err)
			}
		} else if err := tree.Add(raw); err != nil {
			t.Fatal(err)
		}
		if v, err := tree.View([32]byte(unhex(t, h.Hash))); err != nil || v.Context().TipHeight != uint64(h.Height) {
			t.Fatalf("header %s: %v", h.Hash, err)
		}
	}
	views := map[string]verify.View{}
	for name, want := range map[string]reconcile.ChainView{
		"base":     {TipHeight: 101, MedianTimePast: 1000000096},
		"included": {TipHeight: 102, MedianTimePast: 1000000097},
		"fork":     {TipHeight: 102, MedianTimePast: 1000000097},
		"mature":   {TipHeight: 110, MedianTimePast: 1000000105},
	} {
		want.TipHash = p.Views[name].TipHash
		v, err := tree.View([32]byte(unhex(t, want.TipHash)))
		if err != nil || v.Context() != want {
			t.Fatalf("view %s: %+v, %v", name, v.Context(), err)
		}
		views[name] = v
	}
	if len(p.Headers) != 113 || len(p.Views) != 4 {
		t.Errorf("%d headers, %d views", len(p.Headers), len(p.Views))
	}

	// Placements: root and P in every view, B in one.
	name := func(n string) spend.TxID { return spend.TxID(unhex(t, p.Transactions[n].TxID)) }
	s := newStore(t)
	for _, a := range append(p.Anchors, p.Inclusion) {
		evidence, err := base64.StdEncoding.DecodeString(a.BEEF)
		if err != nil {
			t.Fatal(err)
		}
		for in, view := range views {
			plan := verify.Plan(evidence, name(a.Name), view, reconcile.Budget{})
			holds := a.Name != p.Inclusion.Name || in == "included"
			if plan.Fault.Status != "" || len(plan.Claims) != 1 || plan.Claims[0].Height != a.Height || plan.Claims[0].Holds != holds || !plan.Claims[0].Known {
				t.Errorf("%s in %s: %+v %+v", a.Name, in, plan.Fault, plan.Claims)
			}
			if other := verify.Plan(evidence, name("A"), view, reconcile.Budget{}); other.Fault.Status != reconcile.Invalid {
				t.Errorf("the evidence of %s shows A: %+v", a.Name, other.Fault)
			}
		}
	}

	// Scripts: every input but those of what stands on trust. root and P are
	// proved above; brc197Parent and brc197Funding are pre-verified, since their
	// parents lie outside the packet.
	outside := map[string]bool{"root": true, "brc197Parent": true, "brc197Funding": true}
	for n, tx := range p.Transactions {
		s.add(t, unhex(t, tx.Raw))
		if outside[n] {
			s.decided = append(s.decided, reconcile.Fact{TxID: name(n), Valid: true})
		}
	}
	inputs := 0
	v := verify.New(verify.Config{})
	for n, tx := range p.Transactions {
		if outside[n] {
			continue
		}
		m, err := beef.Prepare(unhex(t, tx.Raw))
		if err != nil || spend.TxID(m.TxID) != name(n) {
			t.Fatalf("%s: %v", n, err)
		}
		valid := true
		for i, in := range m.Inputs {
			inputs++
			spent := s.raws[in.Prev].Outputs[in.Index]
			valid = m.Execute(i, spent.Script, spent.Satoshis) == nil && valid
		}
		if valid != tx.ScriptValid {
			t.Errorf("%s: scripts hold %t", n, valid)
		}
		r := v.Check(t.Context(), s.load(reconcile.Planned{Target: name(n)}, output(0)))
		if want := map[bool]reconcile.ResultStatus{true: reconcile.Verified, false: reconcile.Invalid}[tx.ScriptValid]; r.Status != want {
			t.Errorf("%s: %s %s", n, r.Status, r.Reason)
		}
	}
	if len(p.Transactions) != 30 || inputs != 42 {
		t.Errorf("%d transactions, %d inputs", len(p.Transactions), inputs)
	}
	t.Logf("published packet: %d headers, %d views, %d inputs; brc197Parent and brc197Funding are pre-verified: their parents lie outside the packet", len(p.Headers), len(p.Views), inputs)
}
