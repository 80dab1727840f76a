package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
)

func newReconcileCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "reconcile",
		Short: "Look at what follow --reconcile keeps",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("reconcile needs a command: inspect") },
	}
	c.AddCommand(newInspectCommand(e))
	return c
}

const inspectLong = `Inspect shows what a store of follow --reconcile holds, and why: sources and their generations,
changes whose evidence is not enough and what they wait for, transactions that were not selected and
because of which other, parts of the graph that wait, claims that were refused, and how far readers of
the store are. It changes nothing, and may look while a run writes to the store. STATE is the directory
of --state, or the URL of a Postgres database.

Of each list it shows the first --limit entries and how many there are; --json has all of them, as one
JSON object, with numbers that may grow as strings. With --check everything is computed once more from
what was received, and compared: that takes time in proportion to the store.

Exit codes: 0; 1 when the store cannot be read, or --check found a difference; 2 usage.`

type inspectFlags struct {
	account     string
	json, check bool
	limit       int
}

func newInspectCommand(e *env) *cobra.Command {
	var f inspectFlags
	c := &cobra.Command{
		Use:   "inspect STATE",
		Short: "Show sources, pending groups, conflicts with their reasons, and refused claims",
		Long:  inspectLong,
		Example: "  overlayd reconcile inspect ./wallet\n" +
			"  overlayd reconcile inspect ./wallet --check\n" +
			"  overlayd reconcile inspect postgres://wallet@db.example.com/wallet --account main --json",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return inspect(c.Context(), e, args[0], f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.account, "account", "main", "`name` of whose knowledge it is, in a database that holds several")
	flags.BoolVar(&f.json, "json", false, "one JSON object, with every entry")
	flags.BoolVar(&f.check, "check", false, "compute everything once more and compare")
	flags.IntVar(&f.limit, "limit", 20, "entries of each list to show")
	return c
}

func inspect(ctx context.Context, e *env, state string, f inspectFlags) (err error) {
	if f.limit < 0 {
		return usagef("--limit is %d; use 0 or more", f.limit)
	}
	store, err := openToInspect(ctx, state, f.account)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	i, err := look(ctx, store)
	if err != nil {
		return err
	}
	if f.check {
		differences, err := store.Audit(ctx)
		if err != nil {
			return err
		}
		i.Differences = []inspectedDifference{}
		for _, d := range differences {
			i.Differences = append(i.Differences, inspectedDifference(d))
		}
	}
	if f.json {
		out := json.NewEncoder(e.stdout)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		err = out.Encode(i)
	} else {
		err = i.say(e.stdout, f.limit)
	}
	if err == nil && len(i.Differences) > 0 {
		return fmt.Errorf("%d differences between what is kept and what was received: the store is damaged; restore it, or begin another one", len(i.Differences))
	}
	return err
}

// openToInspect opens a store for reading.
func openToInspect(ctx context.Context, state, account string) (reconcile.Store, error) {
	o := reconcile.Options{ReadOnly: true}
	if !strings.Contains(state, "://") {
		b, err := sqlitestore.Inspect(ctx, state)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", state, err)
		}
		store, err := reconcile.Open(ctx, b, o)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", state, err), b.Close())
		}
		return store, nil
	}
	f := storeFlags{store: storePostgres, database: state, account: account}
	if err := f.check(""); err != nil {
		return nil, err
	}
	pool, err := knowledgePool(ctx, state)
	if err != nil {
		return nil, err
	}
	o.Partition = f.partition()
	b, err := pgstore.Inspect(ctx, pool, pgstore.Options{Partition: o.Partition})
	if err != nil {
		pool.Close()
		return nil, unreachable(state, err)
	}
	store, err := reconcile.Open(ctx, b, o)
	if err != nil {
		err = errors.Join(fmt.Errorf("the database: %w", err), b.Close())
		pool.Close()
		return nil, err
	}
	return &knowledge{Store: store, pool: pool}, nil
}

// --- what is shown ---

type inspection struct {
	Received   string               `json:"received"`
	Accepted   string               `json:"accepted"`
	Durability string               `json:"durability"`
	Context    inspectedContext     `json:"context"`
	Counts     inspectedCounts      `json:"counts"`
	Sources    []inspectedSource    `json:"sources"`
	Groups     []inspectedGroup     `json:"pendingGroups"`
	Components []inspectedComponent `json:"pendingComponents"`
	Conflicts  []inspectedConflict  `json:"conflicts"`
	Quarantine []inspectedClaim     `json:"quarantine"`
	Projectors []inspectedProjector `json:"projectors"`
	// Nil: nothing was compared.
	Differences []inspectedDifference `json:"differences,omitzero"`
}

type inspectedContext struct {
	ID             string `json:"id"`
	TipHash        string `json:"tipHash"`
	Height         string `json:"height"`
	MedianTimePast string `json:"medianTimePast"`
	Chosen         string `json:"chosen,omitempty"`
}

type inspectedCounts struct {
	Transactions  string            `json:"transactions"`
	Memberships   string            `json:"memberships"`
	Outputs       map[string]string `json:"outputs"`
	PendingGroups int               `json:"pendingGroups"`
	PendingBytes  string            `json:"pendingBytes"`
}

type inspectedSource struct {
	ID            uint32 `json:"id"`
	Name          string `json:"name"`
	Kind          string `json:"kind"`
	Principal     string `json:"principal,omitempty"`
	Active        string `json:"activeGeneration"`
	Generation    string `json:"generation"`
	State         string `json:"state"`
	Phase         string `json:"phase"`
	Snapshot      string `json:"snapshot"` // its watermark
	Through       string `json:"through"`
	PendingGroups int    `json:"pendingGroups"`
	PendingBytes  string `json:"pendingBytes"`
	Stale         bool   `json:"stale"`
	Limited       bool   `json:"limited"`
	Quarantined   int    `json:"quarantined"`
	Ended         string `json:"ended,omitempty"`
	Reason        string `json:"reason,omitempty"`
	At            string `json:"at,omitempty"`
}

type inspectedGroup struct {
	Source     string   `json:"source"`
	Generation string   `json:"generation"`
	ID         string   `json:"id"`
	Sequence   string   `json:"sequence"`
	Since      string   `json:"since"`
	State      string   `json:"state"`
	Open       int      `json:"open"`
	Reason     string   `json:"reason,omitempty"`
	Waiting    []string `json:"waiting,omitempty"`
}

type inspectedComponent struct {
	Reason  string   `json:"reason"`
	Members []string `json:"members"`
}

type inspectedConflict struct {
	TxID     string `json:"txid"`
	Status   string `json:"status"`
	Pending  bool   `json:"pending,omitempty"`
	Reason   string `json:"reason"`
	Other    string `json:"other,omitempty"`
	Received string `json:"received"`          // position.index of its first receipt
	ReadyAt  string `json:"readyAt,omitempty"` // position
	Eligible string `json:"eligibleAt,omitempty"`
}

type inspectedClaim struct {
	Source     string `json:"source"`
	Generation string `json:"generation"`
	At         string `json:"at"`
	Code       string `json:"code"`
	Reason     string `json:"reason"`
	ID         string `json:"id"`
	Length     string `json:"length"`
	SHA256     string `json:"sha256"`
}

type inspectedProjector struct {
	Name      string `json:"name"`
	Projected string `json:"projected"`
	Lag       string `json:"lag"`
	Failure   string `json:"failure,omitempty"`
}

type inspectedDifference struct {
	What string `json:"what"`
	Key  string `json:"key"`
	Have string `json:"have"`
	Want string `json:"want"`
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// moment spells a time in Unix seconds; empty for none.
func moment(seconds uint64) string {
	if seconds == 0 || seconds > 1<<40 {
		return ""
	}
	return time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339)
}

// sourceLabel names a source for people.
func sourceLabel(k reconcile.SourceKey) string {
	return strings.Join(strings.Fields(k.Base+" "+k.Service+" "+k.Label), " ")
}

// look reads everything from one snapshot, and the refused claims after it.
func look(ctx context.Context, store reconcile.Store) (_ *inspection, err error) {
	s, err := store.Read(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	at, view := s.Revision(), s.Context()
	i := &inspection{
		Received: number(at.Received), Accepted: number(at.Accepted), Durability: string(store.Durability()),
		Context: inspectedContext{
			ID: view.ID, TipHash: view.View.TipHash, Height: number(view.View.TipHeight),
			MedianTimePast: number(view.View.MedianTimePast), Chosen: moment(view.Now),
		},
		Sources: []inspectedSource{}, Groups: []inspectedGroup{}, Components: []inspectedComponent{}, Conflicts: []inspectedConflict{},
		Quarantine: []inspectedClaim{}, Projectors: []inspectedProjector{},
	}
	sources, err := s.Sources()
	if err != nil {
		return nil, err
	}
	names := map[reconcile.SourceID]string{}
	for _, source := range sources {
		names[source.ID] = sourceLabel(source.Key)
		i.Sources = append(i.Sources, inspectSource(source))
	}
	if err := i.lists(s, names); err != nil {
		return nil, err
	}
	for _, source := range sources {
		for q, err := range store.Quarantine(ctx, source.ID) {
			if err != nil {
				return nil, err
			}
			i.Quarantine = append(i.Quarantine, inspectedClaim{
				Source: names[source.ID], Generation: number(q.Generation), At: moment(q.At), Code: q.Code, Reason: q.Reason, ID: q.ID,
				Length: number(q.Length), SHA256: hex.EncodeToString(q.Digest[:]),
			})
		}
	}
	return i, nil
}

func inspectSource(s reconcile.SourceStatus) inspectedSource {
	g := s.Latest
	out := inspectedSource{
		ID: uint32(s.ID), Name: sourceLabel(s.Key), Kind: s.Key.Kind, Principal: s.Key.Principal, Active: number(s.Active),
		Generation: number(g.Number), State: string(g.State), Snapshot: number(g.W), Through: number(g.Through),
		PendingGroups: g.Pending.Groups, PendingBytes: strconv.FormatInt(g.Pending.Bytes, 10),
		Stale: s.Stale, Limited: s.Limited, Quarantined: s.Quarantined,
	}
	switch {
	case g.Number == 0:
		out.Phase = "none"
	case !g.Received:
		out.Phase = "receiving the snapshot"
	case !g.Complete:
		out.Phase = "accepting the snapshot"
	default:
		out.Phase = "live"
	}
	if g.Ending != nil {
		out.Phase, out.Ended, out.Reason, out.At = "ended", g.Ending.Code, g.Ending.Reason, moment(g.Ending.At)
	}
	return out
}

// lists reads what waits, what was not selected, and the counters.
func (i *inspection) lists(s reconcile.Snapshot, names map[reconcile.SourceID]string) error {
	for g, err := range s.PendingGroups() {
		if err != nil {
			return err
		}
		out := inspectedGroup{
			Source: names[g.Source], Generation: number(g.Generation), ID: g.ID, Sequence: number(g.Sequence), Since: moment(g.Since),
			State: "waits for evidence", Open: g.Open, Reason: g.Reason,
		}
		switch {
		case g.Settled:
			out.State = "waits for its turn"
		case g.Reason == "quarantined":
			out.State = "refused" // with its generation; it is kept for whoever looks
		}
		for _, o := range g.Waiting {
			out.Waiting = append(out.Waiting, o.String())
		}
		i.Groups = append(i.Groups, out)
	}
	for c, err := range s.PendingComponents() {
		if err != nil {
			return err
		}
		out := inspectedComponent{Reason: c.Reason.String()}
		for _, id := range c.Members {
			out.Members = append(out.Members, id.String())
		}
		i.Components = append(i.Components, out)
	}
	for tx, err := range s.Transactions() {
		if err != nil {
			return err
		}
		switch tx.Status {
		case spend.Conflicting, spend.DependentConflict, spend.InvalidTx, spend.LimitedTx:
		default:
			continue
		}
		out := inspectedConflict{
			TxID: tx.ID.String(), Status: tx.Status.String(), Pending: tx.Pending, Reason: tx.Reason.String(),
			Received: fmt.Sprintf("%d.%d", tx.FirstRaw.Position, tx.FirstRaw.Index),
		}
		if tx.Other != (spend.TxID{}) {
			out.Other = tx.Other.String()
		}
		if tx.Order != nil {
			out.ReadyAt = number(tx.Order.ReadyAt)
		}
		if tx.Eligible != nil {
			out.Eligible = number(tx.Eligible.At)
		}
		i.Conflicts = append(i.Conflicts, out)
	}
	counts, err := s.Counts()
	if err != nil {
		return err
	}
	i.Counts = inspectedCounts{
		Transactions: number(counts.Transactions), Memberships: number(counts.Memberships), Outputs: map[string]string{},
		PendingGroups: counts.Pending.Groups, PendingBytes: strconv.FormatInt(counts.Pending.Bytes, 10),
	}
	for state, n := range counts.Outputs {
		i.Counts.Outputs[string(state)] = number(n)
	}
	for _, p := range counts.Projectors {
		i.Projectors = append(i.Projectors, inspectedProjector{Name: p.Name, Projected: number(p.Projected), Lag: number(p.Lag), Failure: p.Failure})
	}
	return nil
}

// say writes it for people.
func (i *inspection) say(w io.Writer, limit int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "received %s, accepted %s, %s\n", i.Received, i.Accepted, i.Durability)
	fmt.Fprintf(&b, "view %s: height %s, median time %s\n", i.Context.ID, i.Context.Height, i.Context.MedianTimePast)
	fmt.Fprintf(&b, "transactions %s, memberships %s, outputs", i.Counts.Transactions, i.Counts.Memberships)
	for _, state := range []reconcile.OutputState{reconcile.Current, reconcile.Spent, reconcile.Pending, reconcile.Conflicting, reconcile.Unknown} {
		n := i.Counts.Outputs[string(state)]
		if n == "" {
			n = "0"
		}
		fmt.Fprintf(&b, " %s %s", state, n)
	}
	fmt.Fprintf(&b, "; waiting %d groups with %s bytes\n", i.Counts.PendingGroups, i.Counts.PendingBytes)

	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	row := func(cells ...string) {
		for n, c := range cells {
			if cells[n] = strings.Map(printable, c); c == "" {
				cells[n] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	list := func(title string, n int, head []string, each func(n int)) {
		fmt.Fprintf(t, "\n%s: %d\n", title, n)
		if n == 0 || limit == 0 {
			return
		}
		row(head...)
		for k := range min(n, limit) {
			each(k)
		}
		if n > limit {
			fmt.Fprintf(t, "and %d more\n", n-limit)
		}
	}
	list("sources", len(i.Sources), []string{"source", "generation", "phase", "through", "waiting", "marks", "reason"}, func(n int) {
		s := i.Sources[n]
		var marks []string
		for _, m := range []struct {
			set  bool
			word string
		}{{s.Stale, "stale"}, {s.Limited, "limited"}, {s.Quarantined > 0, fmt.Sprintf("%d refused", s.Quarantined)}} {
			if m.set {
				marks = append(marks, m.word)
			}
		}
		phase := s.Phase
		if s.Ended != "" {
			phase += " (" + s.Ended + ")"
		}
		row(s.Name, s.Generation+" "+s.State, phase, s.Through, strconv.Itoa(s.PendingGroups), strings.Join(marks, ", "), s.Reason)
	})
	list("waiting groups", len(i.Groups), []string{"source", "group", "sequence", "since", "state", "reason", "for"}, func(n int) {
		g := i.Groups[n]
		row(g.Source, g.ID, g.Sequence, g.Since, g.State, g.Reason, strings.Join(g.Waiting, " "))
	})
	list("waiting parts of the graph", len(i.Components), []string{"reason", "transactions"}, func(n int) {
		row(i.Components[n].Reason, strings.Join(i.Components[n].Members, " "))
	})
	list("not selected", len(i.Conflicts), []string{"transaction", "status", "reason", "because of", "received", "ready", "eligible"}, func(n int) {
		c := i.Conflicts[n]
		row(c.TxID, c.Status, c.Reason, c.Other, c.Received, c.ReadyAt, c.Eligible)
	})
	list("refused claims", len(i.Quarantine), []string{"source", "generation", "at", "code", "claim", "bytes", "reason"}, func(n int) {
		q := i.Quarantine[n]
		row(q.Source, q.Generation, q.At, q.Code, q.ID, q.Length, q.Reason)
	})
	list("projectors", len(i.Projectors), []string{"name", "projected", "lag", "failure"}, func(n int) {
		p := i.Projectors[n]
		row(p.Name, p.Projected, p.Lag, p.Failure)
	})
	if i.Differences != nil {
		list("differences", len(i.Differences), []string{"what", "key", "kept", "computed"}, func(n int) {
			d := i.Differences[n]
			row(d.What, d.Key, d.Have, d.Want)
		})
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
