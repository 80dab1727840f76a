package reconcile

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"go/build"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/reconcile/spend"
)

func sampleReceive() Receive {
	return Receive{
		Batch: Batch{
			Source: 3, Generation: 4, Provenance: Provenance{Adapter: "a", Authentication: "brc103", Peer: "p", ReceivedAt: 5},
			Scope: []byte(`{"epoch":"e"}`), Phase: PhaseLive, Complete: true, Through: 8, HighWater: 9,
			Groups: []Group{{ID: "g", Sequence: 7, Observations: []Observation{
				{ID: "1", Canonical: []byte(`{"id":"1"}`)}, {ID: "2", Canonical: []byte(`{"id":"2"}`)},
			}}},
			Checkpoint: &Checkpoint{Session: "secret-session", Cursor: "secret-cursor", ExpiresAt: 1, ReplayUntil: 2},
		},
		Plan: []Planned{{}}, Context: "c",
	}
}

// TestR8_TheKeyCoversTheBody changes every part of a body, one at a time: each makes
// another key. What is derived or beside the body makes none.
func TestR8_TheKeyCoversTheBody(t *testing.T) {
	t.Parallel()
	key := sampleReceive().Key()
	for name, change := range map[string]func(*Receive){
		"source": func(r *Receive) { r.Batch.Source++ }, "generation": func(r *Receive) { r.Batch.Generation++ },
		"adapter": func(r *Receive) { r.Batch.Provenance.Adapter = "b" }, "authentication": func(r *Receive) { r.Batch.Provenance.Authentication = "x" },
		"peer": func(r *Receive) { r.Batch.Provenance.Peer = "x" }, "receivedAt": func(r *Receive) { r.Batch.Provenance.ReceivedAt++ },
		"scope": func(r *Receive) { r.Batch.Scope = []byte(`{"epoch":"f"}`) }, "phase": func(r *Receive) { r.Batch.Phase = PhaseFinite },
		"complete": func(r *Receive) { r.Batch.Complete = false }, "through": func(r *Receive) { r.Batch.Through++ },
		"highWater": func(r *Receive) { r.Batch.HighWater++ }, "group": func(r *Receive) { r.Batch.Groups[0].ID = "h" },
		"sequence":    func(r *Receive) { r.Batch.Groups[0].Sequence++ },
		"observation": func(r *Receive) { r.Batch.Groups[0].Observations[1].Canonical = []byte(`{"id":"3"}`) },
		"order": func(r *Receive) {
			r.Batch.Groups[0].Observations = []Observation{r.Batch.Groups[0].Observations[1], r.Batch.Groups[0].Observations[0]}
		},
		"session": func(r *Receive) { r.Batch.Checkpoint.Session = "s" }, "cursor": func(r *Receive) { r.Batch.Checkpoint.Cursor = "s" },
		"expiresAt": func(r *Receive) { r.Batch.Checkpoint.ExpiresAt++ }, "replayUntil": func(r *Receive) { r.Batch.Checkpoint.ReplayUntil++ },
		"checkpoint": func(r *Receive) { r.Batch.Checkpoint = nil },
	} {
		r := sampleReceive()
		if change(&r); r.Key() == key {
			t.Errorf("%s is not in the key", name)
		}
	}
	for name, change := range map[string]func(*Receive){
		"plan": func(r *Receive) { r.Plan = nil }, "context": func(r *Receive) { r.Context = "d" }, "fresh": func(r *Receive) { r.Fresh = true },
		"attachments": func(r *Receive) { r.Attach.Delete = [][]byte{{1}} },
	} {
		r := sampleReceive()
		if change(&r); r.Key() != key {
			t.Errorf("%s is in the key", name)
		}
	}
}

// TestR8_BodiesAreCanonical reads every body back: it is canonical JSON, its digest
// is the key, and no bearer secret is in it.
func TestR8_BodiesAreCanonical(t *testing.T) {
	t.Parallel()
	kinds := map[string]Mutation{
		"receive": sampleReceive(),
		"accept": Accept{Source: 1, Scope: []byte(`{"a":1}`), GroupID: "<g>", Generation: 2, Context: "c", Results: []Result{
			{Index: 1, Context: "c", Status: Verified, Dependencies: []spend.Outpoint{{Index: 1}, {Index: 2}}}, {Index: 2},
		}},
		"context":    ContextChange{Context: Context{ID: "c", View: ChainView{TipHash: "00", TipHeight: 1, MedianTimePast: 2, PolicyDigest: "p"}}, Prepared: "b"},
		"reconcile":  Reconcile{Context: "c", Reason: "\u00e9\n", All: true, Received: 1<<64 - 1},
		"invalidate": Invalidate{Assessments: [][32]byte{{1}, {2}}, Reason: "r", Now: 4},
	}
	for kind, m := range kinds {
		b := m.body()
		if canonical, err := canon.Canonicalize(b); err != nil || !bytes.Equal(canonical, b) {
			t.Errorf("%s: %v\n%s\n%s", kind, err, b, canonical)
		}
		var head struct{ Kind string }
		if err := json.Unmarshal(b, &head); err != nil || head.Kind != kind || m.kind() != kind {
			t.Errorf("%s: %v, %q", kind, err, head.Kind)
		}
		if k := m.Key(); hex.EncodeToString(k[:]) != canon.Digest(canon.DomainKnowledgeMutation, b) {
			t.Errorf("%s: the key is not the digest of the body", kind)
		}
		if strings.Contains(string(b), "secret-") {
			t.Errorf("%s holds a bearer secret: %s", kind, b)
		}
	}
}

// TestR10_NothingActsOnAWallet looks at what the port offers and at what the engine
// is built from: nothing signs, sends, pays or opens a connection.
func TestR10_NothingActsOnAWallet(t *testing.T) {
	t.Parallel()
	for _, port := range []reflect.Type{reflect.TypeFor[Store](), reflect.TypeFor[Snapshot](), reflect.TypeFor[Projector](), reflect.TypeFor[Backend]()} {
		for i := range port.NumMethod() {
			name := strings.ToLower(port.Method(i).Name)
			for _, act := range []string{"sign", "broadcast", "send", "pay", "internalize", "submit", "create"} {
				if strings.Contains(name, act) {
					t.Errorf("%s.%s", port.Name(), port.Method(i).Name)
				}
			}
		}
	}
	for _, dir := range []string{".", "spend"} {
		p, err := build.ImportDir(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range p.Imports {
			if slices.Contains([]string{"net", "net/http", "os/exec"}, path) || strings.Contains(path, "go-sdk") {
				t.Errorf("%s imports %s", dir, path)
			}
		}
	}
}
