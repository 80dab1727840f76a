package pgstore_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/pgstore"
	"github.com/overlayd/overlayd/reconcile/spend"
)

func TestR10_TheTableOfOutputsFollowsTheChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	b := open(t, db.Pool)
	other, err := pgstore.Open(t.Context(), db.Pool, pgstore.Options{Partition: reconcile.Partition{Application: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	outpoint := func(tx byte, index uint32) spend.Outpoint { return spend.Outpoint{TxID: spend.TxID{tx}, Index: index} }
	apply := func(b *pgstore.Backend, c reconcile.Change, fail error, want ...string) {
		t.Helper()
		err := b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
			tx := r.Tx().(pgx.Tx)
			if err := pgstore.NewOutputs(b).Apply(t.Context(), c, tx); err != nil {
				return w, err
			}
			rows, err := tx.Query(t.Context(), `select format('%s.%s %s %s %s %s', left(encode(txid, 'hex'), 2), output_index, state, coalesce(left(encode(spender, 'hex'), 2), '-'), sources, since_revision)
				from overlay_outputs order by part, txid, output_index`)
			if err != nil {
				return w, err
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return w, err
			}
			if fail == nil && !slices.Equal(got, want) {
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
	apply(b, reconcile.Change{Revision: reconcile.Revision{Accepted: 4}, Kind: "snapshot", Outputs: first}, nil,
		"aa.1 current - {1,3} 4", "aa.4294967295 pending cc {} 4", "bb.0 conflicting - {} 4")
	spent := []reconcile.OutputChange{{Outpoint: outpoint(0xaa, 1), State: reconcile.Spent, By: spend.TxID{0xee}}}
	apply(b, reconcile.Change{Revision: reconcile.Revision{Accepted: 5}, Kind: "accept", Outputs: spent}, errors.New("the commit fails"))
	apply(b, reconcile.Change{Revision: reconcile.Revision{Accepted: 6}, Kind: "accept", Outputs: spent}, nil,
		"aa.1 spent ee {} 6", "aa.4294967295 pending cc {} 4", "bb.0 conflicting - {} 4")
	// Another partition has rows of its own, and a rebuilt one removes only those.
	apply(other, reconcile.Change{Revision: reconcile.Revision{Accepted: 1}, Kind: "snapshot", Outputs: spent}, nil,
		"aa.1 spent ee {} 6", "aa.4294967295 pending cc {} 4", "bb.0 conflicting - {} 4", "aa.1 spent ee {} 1")
	apply(b, reconcile.Change{Revision: reconcile.Revision{Accepted: 9}, Kind: "snapshot", Outputs: spent}, nil,
		"aa.1 spent ee {} 9", "aa.1 spent ee {} 1")

	if err := pgstore.NewOutputs(b).Apply(t.Context(), reconcile.Change{Outputs: spent}, nil); err == nil {
		t.Error("applied without a transaction")
	}
	err = b.Update(t.Context(), func(r reconcile.Reader) (w reconcile.Writes, _ error) {
		return w, pgstore.NewOutputs(b).Apply(t.Context(), reconcile.Change{Revision: reconcile.Revision{Accepted: math.MaxInt64 + 1}}, r.Tx())
	})
	if err == nil {
		t.Error("a revision that does not fit was taken")
	}
}
