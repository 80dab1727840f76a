package spendtest

import (
	"crypto/sha256"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

func TestM1_HistoriesAreWellFormed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		h := Generate(seed, Shape{Contradictions: seed%2 == 0})
		before := map[spend.TxID]bool{}
		for i, x := range slices.Concat(h.Roots, h.Txs) {
			id, inputs, lock, outputs := parse(t, x.Raw)
			if id != x.ID || lock != x.LockTime || outputs != x.Outputs || !slices.Equal(inputs, x.Inputs) {
				t.Fatalf("history %d: %s does not say what its bytes say", seed, x.Name)
			}
			if before[x.ID] {
				t.Fatalf("history %d: %s is there twice", seed, x.Name)
			}
			for _, in := range x.Inputs {
				if !before[in.TxID] && i >= len(h.Roots) {
					t.Fatalf("history %d: %s consumes what comes after it", seed, x.Name)
				}
			}
			before[x.ID] = true
		}
		received := map[spend.TxID]bool{}
		groups := map[spend.GroupID]bool{}
		for _, e := range h.Events {
			if (e.View == nil) == (len(e.Groups) == 0) {
				t.Fatalf("history %d: an event is neither a batch nor a view", seed)
			}
			for _, g := range e.Groups {
				if groups[g.ID] || len(g.Targets) == 0 {
					t.Fatalf("history %d: group %d", seed, g.ID)
				}
				groups[g.ID] = true
				for _, id := range slices.Concat(g.Targets, g.Carries) {
					if !slices.Contains(g.Carries, id) {
						t.Fatalf("history %d: group %d does not carry a target", seed, g.ID)
					}
					received[id] = true
				}
				for _, c := range g.Claims {
					if !slices.Contains(g.Carries, c.TxID) {
						t.Fatalf("history %d: group %d proves what it does not carry", seed, g.ID)
					}
				}
			}
			if e.View != nil && uint64(slices.Max(slices.Collect(heights(e.View)))) > e.View.Height {
				t.Fatalf("history %d: view %s has a root above its tip", seed, e.View.Name)
			}
		}
		if len(received) != len(h.Txs) {
			t.Fatalf("history %d: %d of %d transactions are received", seed, len(received), len(h.Txs))
		}
	}
}

func heights(v *View) func(func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for height := range v.Roots {
			if !yield(height) {
				return
			}
		}
	}
}

func TestM2_TheSameNumberGivesTheSameHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		if !reflect.DeepEqual(Generate(seed, Shape{}), Generate(seed, Shape{})) {
			t.Fatalf("history %d is two histories", seed)
		}
	}
	if reflect.DeepEqual(Generate(1, Shape{}), Generate(2, Shape{})) {
		t.Fatal("all numbers give one history")
	}
}

// parse reads a transaction of less than 253 inputs and outputs.
func parse(t *testing.T, raw []byte) (id spend.TxID, inputs []spend.Input, lock uint32, outputs int) {
	t.Helper()
	once := sha256.Sum256(raw)
	id = sha256.Sum256(once[:])
	slices.Reverse(id[:])
	take := func(n int) []byte {
		if len(raw) < n {
			t.Fatal("a transaction is too short")
		}
		part := raw[:n]
		raw = raw[n:]
		return part
	}
	take(4)
	for range take(1)[0] {
		var in spend.Input
		copy(in.TxID[:], take(32))
		slices.Reverse(in.TxID[:])
		in.Index = binary.LittleEndian.Uint32(take(4))
		take(int(take(1)[0]))
		in.Sequence = binary.LittleEndian.Uint32(take(4))
		inputs = append(inputs, in)
	}
	outputs = int(take(1)[0])
	for range outputs {
		take(8)
		take(int(take(1)[0]))
	}
	lock = binary.LittleEndian.Uint32(take(4))
	if len(raw) > 0 {
		t.Fatal("bytes follow a transaction")
	}
	return id, inputs, lock, outputs
}
