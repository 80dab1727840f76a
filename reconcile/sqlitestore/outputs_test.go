package sqlitestore_test

import (
	"database/sql"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
)

func TestR10_TheTableOfOutputsFollowsTheChanges(t *testing.T) {
	t.Parallel()
	b := open(t, t.TempDir())
	project := sqlitestore.NewOutputs(b)
	outpoint := func(tx byte, index uint32) spend.Outpoint { return spend.Outpoint{TxID: spend.TxID{tx}, Index: index} }
	rows := func(tx *sql.Tx) (lines []string) {
		t.Helper()
		rows, err := tx.Query(`SELECT format('%s.%d %s %s %s %d', substr(hex(txid), 1, 2), output_index, state, iif(spender IS NULL, '-', substr(hex(spender), 1, 2)), sources, since_revision)
			FROM overlay_outputs ORDER BY txid, output_index`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line)
		}
		return lines
	}
	apply := func(c reconcile.Change, fail error, want ...string) {
		t.Helper()
		err := b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
			tx := r.Tx().(*sql.Tx)
			if err := project.Apply(t.Context(), c, tx); err != nil {
				return w, err
			}
			if got := rows(tx); fail == nil && !slices.Equal(got, want) {
				t.Errorf("revision %d: %q, want %q", c.Revision.Accepted, got, want)
			}
			return w, fail
		})
		if !errors.Is(err, fail) {
			t.Error(err)
		}
	}
	first := []reconcile.OutputChange{
		{Outpoint: outpoint(0xaa, 1), State: reconcile.Current, Sources: []reconcile.SourceID{1, 3}},
		{Outpoint: outpoint(0xaa, math.MaxUint32), State: reconcile.Pending, By: spend.TxID{0xcc}},
		{Outpoint: outpoint(0xbb, 0), State: reconcile.Conflicting, By: spend.TxID{0xdd}},
	}
	apply(reconcile.Change{Revision: reconcile.Revision{Accepted: 4}, Kind: "snapshot", Outputs: first}, nil,
		"AA.1 current - [1,3] 4", "AA.4294967295 pending CC [] 4", "BB.0 conflicting - [] 4")
	spent := []reconcile.OutputChange{{Outpoint: outpoint(0xaa, 1), State: reconcile.Spent, By: spend.TxID{0xee}}}
	apply(reconcile.Change{Revision: reconcile.Revision{Accepted: 5}, Kind: "accept", Outputs: spent}, errors.New("the commit fails"))
	apply(reconcile.Change{Revision: reconcile.Revision{Accepted: 5}, Kind: "accept"}, nil,
		"AA.1 current - [1,3] 4", "AA.4294967295 pending CC [] 4", "BB.0 conflicting - [] 4")
	apply(reconcile.Change{Revision: reconcile.Revision{Accepted: 6}, Kind: "accept", Outputs: spent}, nil,
		"AA.1 spent EE [] 6", "AA.4294967295 pending CC [] 4", "BB.0 conflicting - [] 4")
	apply(reconcile.Change{Revision: reconcile.Revision{Accepted: 9}, Kind: "snapshot", Outputs: spent}, nil, "AA.1 spent EE [] 9")

	for name, tx := range map[string]any{"none": nil, "another's": &sql.Tx{}} {
		if err := project.Apply(t.Context(), reconcile.Change{Outputs: spent}, tx); err == nil {
			t.Errorf("applied in a transaction that is %s", name)
		}
	}
	err := b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
		return w, project.Apply(t.Context(), reconcile.Change{Revision: reconcile.Revision{Accepted: math.MaxInt64 + 1}}, r.Tx())
	})
	if err == nil {
		t.Error("a revision that does not fit was taken")
	}
}
