package spend_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

// packet is what these tests read of the published corpus, which is not part of this repository.
type packet struct {
	Transactions map[string]struct {
		TxID        string
		Raw         string
		ScriptValid bool
	}
	Preverified []string `json:"preverifiedRoots"`
	Finality    []struct {
		Name        string
		Height, MTP uint64
		Expected    bool
	}
	Replacements [][3]any

	traces []trace
	txs    map[string]spendtest.Tx
}

type trace struct {
	Name     string
	NonFinal *bool
	Steps    []struct {
		Op      string
		Names   []string
		ID      string
		Context string
		Value   struct {
			States []string
			Orders map[string]struct {
				ReadyAt, FirstRaw uint64
				Depth             uint32
			}
		}
	}
}

// published reads the corpus, or says that it was left out.
func published(t *testing.T) (*packet, bool) {
	t.Helper()
	dir := os.Getenv("OVERLAYD_BRC_PACKET")
	if dir == "" {
		t.Log("the published BRC packet was left out: set OVERLAYD_BRC_PACKET to the absolute path of its folder to check reconciliation-vectors.json")
		return nil, false
	}
	p := &packet{txs: map[string]spendtest.Tx{}}
	for file, into := range map[string]any{"reconciliation-vectors.json": p, "reconciliation-traces.json": &p.traces} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	for name, x := range p.Transactions {
		raw, err := hex.DecodeString(x.Raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		tx := decode(t, name, raw)
		tx.Result = spend.Invalid
		if x.ScriptValid {
			tx.Result = spend.Valid
		}
		if _, err := hex.Decode(tx.ID[:], []byte(x.TxID)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p.txs[name] = tx
	}
	return p, true
}

// decode reads inputs and lock time of a transaction with less than 253 inputs and outputs.
func decode(t *testing.T, name string, raw []byte) spendtest.Tx {
	t.Helper()
	x := spendtest.Tx{Name: name, Raw: raw, LockTime: binary.LittleEndian.Uint32(raw[len(raw)-4:])}
	at := 5
	for range raw[4] {
		var in spend.Input
		copy(in.TxID[:], raw[at:at+32])
		slices.Reverse(in.TxID[:])
		in.Index = binary.LittleEndian.Uint32(raw[at+32:])
		at += 36
		script := int(raw[at])
		at++
		switch script {
		case 253:
			script = int(binary.LittleEndian.Uint16(raw[at:]))
			at += 2
		case 254, 255:
			t.Fatalf("%s: a script of more than 65535 bytes", name)
		}
		at += script
		in.Sequence = binary.LittleEndian.Uint32(raw[at:])
		at += 4
		x.Inputs = append(x.Inputs, in)
	}
	x.Outputs = int(raw[at])
	return x
}

func (p *packet) selection(name string) *spend.Tx {
	return &spend.Tx{Inputs: p.txs[name].Inputs, LockTime: p.txs[name].LockTime}
}

func TestR6_PublishedFinality(t *testing.T) {
	t.Parallel()
	p, ok := published(t)
	if !ok {
		return
	}
	for _, c := range p.Finality {
		if got := spend.Final(p.selection(c.Name), c.Height+1, c.MTP); got != c.Expected {
			t.Errorf("%s at height %d, time %d: final %v", c.Name, c.Height, c.MTP, got)
		}
	}
	if len(p.Finality) != 17 {
		t.Errorf("%d finality cases, want 17", len(p.Finality))
	}
}

func TestR6_PublishedReplacements(t *testing.T) {
	t.Parallel()
	p, ok := published(t)
	if !ok {
		return
	}
	for _, c := range p.Replacements {
		old, next, want := c[0].(string), c[1].(string), c[2].(bool)
		if got := spend.Increases(p.selection(old), p.selection(next)); got != want {
			t.Errorf("%s then %s: increases %v", old, next, got)
		}
	}
	if len(p.Replacements) != 11 {
		t.Errorf("%d comparisons, want 11", len(p.Replacements))
	}
}

// The states and orders of the published traces, on the model and on the oracle, without what belongs to stores:
// memberships, restarts and stale answers. Scripts and headers are taken at the corpus's word here.
func TestR3_R4_R5_R6_PublishedStates(t *testing.T) {
	t.Parallel()
	p, ok := published(t)
	if !ok {
		return
	}
	views := map[string]spendtest.View{
		"base":           {Height: 101, MTP: 1000000096},
		"included":       {Height: 102, MTP: 1000000097, Roots: map[uint32][32]byte{102: {1}}},
		"fork":           {Height: 102, MTP: 1000000097},
		"mature":         {Height: 110, MTP: 1000000105},
		"expiryBefore":   {Height: 123455, MTP: 1000000000},
		"expiryEligible": {Height: 123456, MTP: 1000000000},
	}
	checked := 0
	for _, tr := range p.traces {
		h := &spendtest.History{NonFinal: tr.NonFinal == nil || *tr.NonFinal, First: views["base"]}
		for _, name := range append([]string{"root", "P"}, p.Preverified...) {
			h.Roots = append(h.Roots, p.txs[name])
		}
		for _, name := range slices.Sorted(maps.Keys(p.txs)) {
			h.Txs = append(h.Txs, p.txs[name])
		}
		q := newPair(h, true)
		current := "base"
		var groups spend.GroupID
		for i, step := range tr.Steps {
			switch step.Op {
			case "receive":
				var list []spendtest.Group
				for _, name := range step.Names {
					groups++
					g := spendtest.Group{ID: groups, Targets: []spend.TxID{p.txs[name].ID}, Carries: []spend.TxID{p.txs[name].ID}}
					if name == "B" {
						g.Claims = []spendtest.Claim{{TxID: p.txs[name].ID, Height: 102, Root: [32]byte{1}}}
					}
					list = append(list, g)
				}
				q.event(spendtest.Event{Groups: list})
			case "membership":
				q.event(spendtest.Event{})
			case "view":
				current = step.ID
				q.event(spendtest.Event{View: new(views[step.ID])})
			case "verify":
				for _, name := range step.Names {
					if step.Context == "" || step.Context == current {
						q.reveal(p.txs[name])
					}
				}
			case "expect":
				checked += expected(t, q, p, step.Value.States, tr.Name)
				for name, want := range step.Value.Orders {
					n := q.m.nodes[p.txs[name].ID]
					if n.ReadyAt != want.ReadyAt || n.Depth != want.Depth || n.FirstRaw.At != want.FirstRaw {
						t.Errorf("%s: %s is ready at %d, depth %d, received at %d: want %+v", tr.Name, name, n.ReadyAt, n.Depth, n.FirstRaw.At, want)
					}
				}
			}
			if err := q.compare(); err != nil {
				t.Fatalf("%s, step %d: %v", tr.Name, i, err)
			}
		}
	}
	if len(p.traces) != 34 || checked != 56 {
		t.Errorf("%d traces with %d lists of states", len(p.traces), checked)
	}
}

func expected(t *testing.T, q *pair, p *packet, want []string, name string) int {
	t.Helper()
	if want == nil {
		return 0
	}
	var have []string
	for _, x := range q.known {
		have = append(have, fmt.Sprintf("%s:%s", x.Name, q.m.published[x.ID].Status))
	}
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("%s: have %s, want %s", name, strings.Join(have, " "), strings.Join(want, " "))
	}
	return 1
}
