package spend_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

const sealed = 0xffffffff // a final sequence

// scene plays a history by hand, on the model and on the oracle. The trusted transaction root has outputs 0 to 9.
type scene struct {
	t *testing.T
	*pair
	txs     map[string]spendtest.Tx
	targets map[spend.GroupID][]string
	groups  spend.GroupID
}

func newScene(t *testing.T, nonFinal bool) *scene {
	t.Helper()
	root := spendtest.Seal(spendtest.Tx{Name: "root", Outputs: 10}, 0)
	first := spendtest.View{Name: "first", Height: 100, MTP: 1_600_000_000}
	h := &spendtest.History{NonFinal: nonFinal, Roots: []spendtest.Tx{root}, First: first}
	return &scene{
		t: t, pair: newPair(h, false), txs: map[string]spendtest.Tx{"root": root}, targets: map[spend.GroupID][]string{},
	}
}

// tx defines a transaction. Inputs are written parent:index or parent:index/sequence; without one the sequence is final.
func (s *scene) tx(name string, lock uint32, inputs ...string) {
	s.t.Helper()
	x := spendtest.Tx{Name: name, LockTime: lock, Outputs: 4, Result: spend.Valid}
	for _, spec := range inputs {
		spec, sequence, found := strings.Cut(spec, "/")
		in := spend.Input{Sequence: sealed}
		if found {
			in.Sequence = number(s.t, sequence)
		}
		parent, index, _ := strings.Cut(spec, ":")
		p, ok := s.txs[parent]
		if !ok {
			s.t.Fatalf("%s: no transaction %s", name, parent)
		}
		in.Outpoint = spend.Outpoint{TxID: p.ID, Index: number(s.t, index)}
		x.Inputs = append(x.Inputs, in)
	}
	x = spendtest.Seal(x, uint64(len(s.txs)))
	s.txs[name], s.names[x.ID] = x, name
	s.h.Txs = append(s.h.Txs, x)
}

func number(t *testing.T, text string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// proof is the one that a view holds which includes the transaction.
func (s *scene) proof(name string) spendtest.Claim {
	id := s.txs[name].ID
	return spendtest.Claim{TxID: id, Height: uint32(1 + slices.IndexFunc(s.h.Txs, func(x spendtest.Tx) bool { return x.ID == id })), Root: sha256.Sum256(id[:])}
}

// group makes a group of targets, which it carries; a name with a star comes with its proof, one in brackets is carried
// and no target.
func (s *scene) group(names ...string) spendtest.Group {
	s.groups++
	g := spendtest.Group{ID: s.groups}
	for _, name := range names {
		bare := strings.Trim(name, "*[]")
		x := s.txs[bare]
		g.Carries = append(g.Carries, x.ID)
		if !strings.HasPrefix(name, "[") {
			g.Targets = append(g.Targets, x.ID)
			s.targets[g.ID] = append(s.targets[g.ID], bare)
		}
		if strings.Contains(name, "*") {
			g.Claims = append(g.Claims, s.proof(bare))
		}
	}
	slices.SortFunc(g.Carries, spend.TxID.Compare)
	return g
}

// batch receives groups together.
func (s *scene) batch(groups ...spendtest.Group) {
	s.t.Helper()
	s.event(spendtest.Event{Groups: groups})
	s.check()
}

// receive receives each transaction in a group and a batch of its own.
func (s *scene) receive(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.batch(s.group(name))
	}
}

// verify reveals results and settles the groups that have all of theirs.
func (s *scene) verify(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.reveal(s.txs[name])
		s.check()
	}
	for k := 0; k < len(s.open); {
		if slices.ContainsFunc(s.targets[s.open[k]], func(name string) bool { return s.m.nodes[s.txs[name].ID].Result != spend.Valid }) {
			k++
			continue
		}
		s.finish(k, "settle")
		s.check()
	}
}

// refuse reveals that a transaction is invalid and quarantines the groups that assert it.
func (s *scene) refuse(name string) {
	s.t.Helper()
	x := s.txs[name]
	x.Result = spend.Invalid
	s.reveal(x)
	s.check()
	for k := 0; k < len(s.open); {
		if !slices.Contains(s.targets[s.open[k]], name) {
			k++
			continue
		}
		s.finish(k, "quarantine")
		s.check()
	}
}

// view changes the view.
func (s *scene) view(height, mtp uint64, includes ...string) {
	s.t.Helper()
	v := spendtest.View{Name: fmt.Sprint("at ", height), Height: height, MTP: mtp, Roots: map[uint32][32]byte{}}
	for _, name := range includes {
		c := s.proof(name)
		v.Roots[c.Height] = c.Root
	}
	s.event(spendtest.Event{View: &v})
	s.check()
}

// later is a view that differs from the first in height and in what it includes.
func (s *scene) later(height uint64, includes ...string) {
	s.t.Helper()
	s.view(height, 1_600_000_000, includes...)
}

func (s *scene) check() {
	s.t.Helper()
	if err := s.compare(); err != nil {
		s.t.Fatalf("the component and the whole history differ: %v\n%s", err, s.describe())
	}
}

// want checks states, written "name status" or "name status other".
func (s *scene) want(states ...string) {
	s.t.Helper()
	s.check()
	for _, state := range states {
		f := strings.Fields(state)
		o := s.m.published[s.txs[f[0]].ID]
		if o.Status.String() != f[1] || len(f) > 2 && s.names[o.Other] != f[2] {
			s.t.Errorf("%s is %s (%s %s), want %s\n%s", f[0], o.Status, o.Reason, s.names[o.Other], state, s.describe())
		}
	}
}

func (s *scene) outcome(name string) spend.Outcome { return s.m.published[s.txs[name].ID] }
