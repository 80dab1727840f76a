package shuffle

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// all ends the run at the first error of a list.
func all[T any](p *run, list iter.Seq2[T, error]) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v, err := range list {
			p.must(err)
			if !yield(v) {
				return
			}
		}
	}
}

// tell writes a line of a text.
func tell(b *strings.Builder, format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// text is what a snapshot says, without what doc.go names as what may differ.
func (p *run) text() string {
	p.t.Helper()
	s, err := p.store.Read(p.ctx, 0)
	p.must(err)
	defer func() { p.must(s.Close()) }()
	var b strings.Builder
	tell(&b, "context %+v", s.Context())
	for tx := range all(p, s.Transactions()) {
		p.transaction(&b, tx)
	}
	for o := range all(p, s.Outputs("")) {
		if o.Stale {
			o.By, o.Reason = spend.TxID{}, 0
		}
		tell(&b, "output %s of %s: %s stale=%v by %s, %v, sources %v, evidence %x", o.Outpoint, p.names([]spend.TxID{o.Outpoint.TxID}), o.State, o.Stale, p.known(o.By), o.Reason, o.Sources, o.Evidence)
	}
	for m := range all(p, s.Memberships()) {
		tell(&b, "membership %+v", m)
	}
	for r := range all(p, s.Replacements()) {
		tell(&b, "replacement of %s by %s at %d in %s", p.known(r.Previous), p.known(r.Next), r.At, r.Context)
	}
	for g := range all(p, s.PendingGroups()) {
		if g.Reason == "quarantined" {
			g.Open = 0 // what was checked by then
		}
		tell(&b, "waits %+v", g)
	}
	for c := range all(p, s.PendingComponents()) {
		tell(&b, "pending %v: %s", c.Reason, p.names(c.Members))
	}
	sources, err := s.Sources()
	p.must(err)
	for _, src := range sources {
		if e := src.Latest.Ending; e != nil {
			tell(&b, "ended %d %s", e.Generation, e.Code)
			src.Latest.Ending = nil
		}
		tell(&b, "source %+v", src)
	}
	counts, err := s.Counts()
	p.must(err)
	tell(&b, "counts %+v", counts)
	return b.String()
}

func (p *run) known(id spend.TxID) string {
	if tx, ok := p.h.Tx(id); ok {
		return tx.Name
	}
	return "-"
}

func (p *run) transaction(b *strings.Builder, tx reconcile.Transaction) {
	t, _ := p.h.Tx(tx.ID)
	tx.FirstRaw.Journal = ""
	if tx.Pending {
		tx.ConflictsWith = nil // as it was published before
	}
	fmt.Fprintf(b, "transaction %s first %d/%d inputs %v conflicts %s evidence %x", t.Name, tx.FirstRaw.Position, tx.FirstRaw.Index, tx.Dependencies, p.names(tx.ConflictsWith), tx.Evidence)
	switch {
	case tx.Pending:
		tell(b, " pending")
		return
	case t.Result == spend.Invalid:
		// Which bad member of a group is found first decides whether the others are looked at.
		tell(b, " not valid %v", tx.Status != spend.InvalidTx && tx.Status != spend.Unresolved)
		return
	}
	fmt.Fprintf(b, " %v, %v %s", tx.Status, tx.Reason, p.known(tx.Other))
	if tx.Status != spend.Unresolved {
		fmt.Fprintf(b, ", valid %v", tx.Valid)
	}
	if tx.Order != nil {
		fmt.Fprintf(b, ", ready %d/%d in %s", tx.Order.ReadyAt, tx.Order.Depth, tx.Order.ReadyContext)
	}
	if tx.Eligible != nil {
		fmt.Fprintf(b, ", eligible %d in %s", tx.Eligible.At, tx.Eligible.Context)
	}
	if tx.Replaces != nil {
		fmt.Fprintf(b, ", replaces %s", p.known(*tx.Replaces))
	}
	tell(b, "")
}

// oracle compares the snapshot with what the whole history says.
func (p *run) oracle() {
	p.t.Helper()
	s, err := p.store.Read(p.ctx, 0)
	p.must(err)
	defer func() { p.must(s.Close()) }()
	want := p.world.Snapshot()
	seen := 0
	for tx := range all(p, s.Transactions()) {
		seen++
		w, ok := want.States[tx.ID]
		if !ok {
			p.fatal("%s is not in the oracle", p.known(tx.ID))
		}
		status := tx.Status
		if tx.Pending {
			status = spend.Pending
		}
		ready, readyAt, depth := tx.Order != nil, uint64(0), uint32(0)
		if ready {
			readyAt, depth = tx.Order.ReadyAt, tx.Order.Depth
		}
		eligible, at := tx.Eligible != nil, uint64(0)
		if eligible {
			at = tx.Eligible.At
		}
		same := status == w.Status && ready == w.Ready && (!ready || readyAt == w.ReadyAt && depth == w.Depth)
		if status != spend.Pending {
			same = same && eligible == w.Eligible && (!eligible || at == w.EligibleAt)
			link, replaces := want.Replacements[tx.ID]
			same = same && replaces == (tx.Replaces != nil) && (!replaces || link.Previous == *tx.Replaces)
		}
		if !same {
			p.fatal("%s is %v (pending %v, %v %s), ready %v %d/%d, eligible %v %d, the oracle has %+v\n%s", p.known(tx.ID), status, tx.Pending, tx.Reason,
				p.known(tx.Other), ready, readyAt, depth, eligible, at, w, p.text())
		}
	}
	if seen != len(want.States) {
		p.fatal("%d transactions, the oracle has %d", seen, len(want.States))
	}
	var links []spend.TxID
	for r := range all(p, s.Replacements()) {
		links = append(links, r.Next)
		if l, ok := want.Replacements[r.Next]; !ok || l.Previous != r.Previous || l.At != r.At {
			p.fatal("%s replaced %s at %d, the oracle has %+v", p.known(r.Next), p.known(r.Previous), r.At, l)
		}
	}
	for id := range want.Replacements {
		if !slices.Contains(links, id) {
			p.fatal("the replacement by %s is missing", p.known(id))
		}
	}
}

// differing are the lines that stand in one text alone.
func differing(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out []string
	for _, line := range x {
		if !slices.Contains(y, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range y {
		if !slices.Contains(x, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}
