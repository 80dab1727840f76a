package packet_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// order is one entry of "orders".
type order struct {
	ReadyAt  uint64 `json:"readyAt"`
	Depth    uint32 `json:"depth"`
	FirstRaw uint64 `json:"firstRaw"`
	Context  string `json:"context"`
}

// compare holds the named fields of the snapshot against a checkpoint.
func (p *player) compare(want map[string]json.RawMessage) {
	p.t.Helper()
	s, err := p.store.Read(p.ctx, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer closeIt(p.t, s)
	for field, text := range want {
		got, err := json.Marshal(p.value(s, field))
		if err != nil {
			p.t.Fatal(err)
		}
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal(text, &b) != nil || !reflect.DeepEqual(a, b) {
			p.t.Errorf("step %d: %s\n got %s\nwant %s", p.at, field, got, text)
		}
	}
}

// value is one field of a checkpoint, from the snapshot alone.
func (p *player) value(s reconcile.Snapshot, field string) any {
	p.t.Helper()
	list := []string{}
	switch field {
	case "walletActions":
		return 0 // nothing below reconcile can act on a wallet: there is nothing to count
	case "view":
		return viewName(s.Context().ID)
	case "states":
		for tx := range all(p.t, s.Transactions()) {
			list = append(list, p.w.name(tx.ID)+":"+state(tx))
		}
	case "stale":
		for tx := range all(p.t, s.Transactions()) {
			if tx.Pending && tx.Status != spend.Pending {
				list = append(list, p.w.name(tx.ID)+":"+tx.Status.String())
			}
		}
	case "current":
		for _, text := range p.watch {
			if o := p.output(s, text); o.State == reconcile.Current {
				list = append(list, text)
			}
		}
	case "spent":
		for _, text := range p.watch {
			if o := p.output(s, text); o.State == reconcile.Spent {
				list = append(list, text+"->"+p.w.name(o.By))
			}
		}
	case "memberships":
		for m := range all(p.t, s.Memberships()) {
			src := p.sources[m.Source]
			if src.facts {
				continue
			}
			word := "absent"
			if m.Present {
				word = "present"
			}
			list = append(list, fmt.Sprintf("%s/%d/%s/%s/%d", src.label, m.Generation-1+src.first, p.w.show(m.Outpoint), word, m.Sequence))
		}
	case "orders":
		orders := map[string]order{}
		for tx := range all(p.t, s.Transactions()) {
			if tx.Order != nil && tx.Valid && p.supported(s, tx) {
				orders[p.w.name(tx.ID)] = order{tx.Order.ReadyAt, tx.Order.Depth, tx.Order.FirstRaw.Position, viewName(tx.Order.ReadyContext)}
			}
		}
		return orders
	default:
		p.t.Fatalf("step %d: no field %q", p.at, field)
	}
	slices.Sort(list)
	return list
}

// state is the word for a transaction: while its component waits, that it waits.
func state(tx reconcile.Transaction) string {
	if tx.Pending {
		return spend.Pending.String()
	}
	return tx.Status.String()
}

// supported reports whether every parent is a root or valid, whether it is selected or not.
func (p *player) supported(s reconcile.Snapshot, tx reconcile.Transaction) bool {
	for _, o := range tx.Dependencies {
		if slices.Contains(p.w.roots, p.w.name(o.TxID)) {
			continue
		}
		parent, ok, err := s.Transaction(o.TxID)
		if err != nil {
			p.t.Fatal(err)
		}
		if !ok || !parent.Valid {
			return false
		}
	}
	return true
}

func (p *player) output(s reconcile.Snapshot, text string) reconcile.Output {
	p.t.Helper()
	o, err := s.Output(p.w.outpoint(text))
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

// dump is a text of everything that a snapshot says. The random name of the journal is left out.
func (p *player) dump() string {
	p.t.Helper()
	s, err := p.store.Read(p.ctx, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer closeIt(p.t, s)
	var b strings.Builder
	fmt.Fprintf(&b, "revision %+v\ncontext %+v\n", s.Revision(), s.Context())
	for tx := range all(p.t, s.Transactions()) {
		tx.FirstRaw.Journal = ""
		fmt.Fprintf(&b, "transaction %s %v pending=%v valid=%v %v %v first=%+v", p.w.name(tx.ID), tx.Status, tx.Pending, tx.Valid, tx.Reason, tx.Other, tx.FirstRaw)
		if tx.Order != nil {
			fmt.Fprintf(&b, " order=%d/%d/%d/%d/%s", tx.Order.ReadyAt, tx.Order.Depth, tx.Order.FirstRaw.Position, tx.Order.FirstRaw.Index, tx.Order.ReadyContext)
		}
		if tx.Eligible != nil {
			fmt.Fprintf(&b, " eligible=%+v", *tx.Eligible)
		}
		if tx.Replaces != nil {
			fmt.Fprintf(&b, " replaces=%s", *tx.Replaces)
		}
		fmt.Fprintf(&b, " inputs=%v conflicts=%v evidence=%x\n", tx.Dependencies, tx.ConflictsWith, tx.Evidence)
	}
	for o := range all(p.t, s.Outputs("")) {
		fmt.Fprintf(&b, "output %+v\n", o)
	}
	for _, text := range p.watch {
		fmt.Fprintf(&b, "watched %s %+v\n", text, p.output(s, text))
	}
	for m := range all(p.t, s.Memberships()) {
		fmt.Fprintf(&b, "membership %+v\n", m)
	}
	for r := range all(p.t, s.Replacements()) {
		fmt.Fprintf(&b, "replacement %+v\n", r)
	}
	for g := range all(p.t, s.PendingGroups()) {
		fmt.Fprintf(&b, "group %+v\n", g)
	}
	for c := range all(p.t, s.PendingComponents()) {
		fmt.Fprintf(&b, "component %+v\n", c)
	}
	sources, err := s.Sources()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, src := range sources {
		ending := src.Latest.Ending
		src.Latest.Ending = nil
		fmt.Fprintf(&b, "source %+v", src)
		if ending != nil {
			fmt.Fprintf(&b, " ending %+v", *ending)
		}
		b.WriteByte('\n')
	}
	counts, err := s.Counts()
	if err != nil {
		p.t.Fatal(err)
	}
	fmt.Fprintf(&b, "counts %+v\n", counts)
	return b.String()
}

// all ends the test at the first error of a list.
func all[T any](t testing.TB, list iter.Seq2[T, error]) iter.Seq[T] {
	t.Helper()
	return func(yield func(T) bool) {
		for v, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(v) {
				return
			}
		}
	}
}

func closeIt(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
