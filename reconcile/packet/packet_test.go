package packet_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// packetVariable names the folder of the published files.
const packetVariable = "OVERLAYD_BRC_PACKET"

// published reads one file of the packet. Without the packet it says so and reports false.
func published(t testing.TB, name string, into any) bool {
	t.Helper()
	dir := os.Getenv(packetVariable)
	if dir == "" {
		t.Logf("the published BRC packet was left out: set %s to the absolute path of its folder to check %s", packetVariable, name)
		return false
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return true
}

// vectors is reconciliation-vectors.json.
type vectors struct {
	Version      int
	Transactions map[string]struct {
		TxID        string `json:"txid"`
		Raw         string
		ScriptValid bool
	}
	Headers []struct {
		Label, Hash, Raw string
		Height           uint32
	}
	Views            map[string]struct{ TipHash string }
	PreverifiedRoots []string
	FinalityContexts map[string]struct {
		Height uint32
		MTP    uint64
	}
	ExpiryRetirement struct {
		Name, ListingParent, FundingParent string
		ListingOutputIndex                 uint32
		ExpiryHeight                       uint32
	}
	Anchors   []placed
	Inclusion placed
	Finality  []struct {
		Name     string
		Height   uint64
		MTP      uint64
		Expected bool
	}
	Replacements [][]any
}

// placed is an Atomic BEEF that proves a transaction in a block of a view.
type placed struct {
	Name, View string
	Height     uint32
	BEEF       string
}

func (p placed) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(p.BEEF)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// publishedWorld reads the transactions, headers and views of the packet.
func publishedWorld(t testing.TB) (*world, *vectors, bool) {
	t.Helper()
	var v vectors
	if !published(t, "reconciliation-vectors.json", &v) {
		return nil, nil, false
	}
	w := newWorld(t)
	for name, tx := range v.Transactions {
		f := w.add(name, mustHex(t, tx.Raw), tx.ScriptValid)
		if hex.EncodeToString(f.id[:]) != tx.TxID {
			t.Errorf("%s: txid %x, the packet says %s", name, f.id, tx.TxID)
		}
	}
	for _, h := range v.Headers {
		b, err := w.headers.add(mustHex(t, h.Raw))
		if err != nil {
			t.Fatalf("header %s: %v", h.Label, err)
		}
		if hash := mustHex(t, h.Hash); [32]byte(hash) != b.hash || h.Height != b.height {
			t.Errorf("header %s: %x at %d", h.Label, b.hash, b.height)
		}
	}
	for name, view := range v.Views {
		w.views[name] = viewOf{tip: [32]byte(mustHex(t, view.TipHash))}
	}
	for name, c := range v.FinalityContexts {
		w.views[name] = viewOf{tip: w.views["base"].tip, height: &c.Height, mtp: &c.MTP}
	}
	for _, a := range v.Anchors {
		w.roots = append(w.roots, a.Name)
		w.beefs[a.Name] = a.bytes(t)
	}
	w.roots = append(w.roots, v.PreverifiedRoots...)
	w.beefs[v.Inclusion.Name] = v.Inclusion.bytes(t)
	return w, &v, true
}

// scenario is one case of steps.
type scenario struct {
	Name     string
	Watch    []string
	NonFinal *bool
	Steps    []step
}

// step is one event of a case, or a look at what became of it.
type step struct {
	Op         string
	Names      []string
	Source     string
	Context    string
	ID         string
	Generation uint64
	Sequence   uint64
	Phase      string
	Verified   *bool
	Complete   bool
	Changes    []change
	Value      map[string]json.RawMessage

	// Only in this project's own cases.
	BEEFs   []string // names of evidence, for the names of a receive
	BEEF    string   // name of evidence
	Target  string
	Index   *uint32
	Spends  string
	Outcome string
}

// change is one observation of a membership step.
type change struct {
	Outpoint string
	Present  bool
	BEEF     string // name of evidence; the corpus's own for the transaction otherwise
}
