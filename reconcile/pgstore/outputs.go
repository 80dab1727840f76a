package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

const (
	// outputsAtOnce is how many rows one statement writes.
	outputsAtOnce = 5000

	// A whole partition is removed in the order of its key.
	outputsClear = `delete from overlay_outputs where part = $1`
	// Arrays inside arrays are not ragged in Postgres: sources travel as literals.
	outputsPut = `
insert into overlay_outputs (part, txid, output_index, state, spender, sources, since_revision)
select $1, u.txid, u.output_index, u.state, u.spender, u.sources::bigint[], $2
from unnest($3::bytea[], $4::bigint[], $5::text[], $6::bytea[], $7::text[]) as u(txid, output_index, state, spender, sources)
on conflict (part, txid, output_index) do update set state = excluded.state, spender = excluded.spender,
  sources = excluded.sources, since_revision = excluded.since_revision`
)

// NewOutputs returns a projector that keeps this partition's rows of the table
// overlay_outputs for SQL: what reconcile.Snapshot.Outputs says, at the
// projector's own checkpoint and in the same commit with it. A row stays when no
// source lists its output any more; then its sources are {}.
func NewOutputs(b *Backend) reconcile.Projector { return outputs{b.part} }

type outputs struct{ part int32 }

// Apply writes one change.
func (o outputs) Apply(ctx context.Context, c reconcile.Change, tx reconcile.ProjectTx) error {
	own, ok := tx.(pgx.Tx)
	if !ok {
		return errors.New("project the outputs: the transaction is not one of this store")
	}
	if c.Revision.Accepted > math.MaxInt64 {
		return fmt.Errorf("project the outputs: revision %d does not fit a column", c.Revision.Accepted)
	}
	if c.Kind == "snapshot" {
		if _, err := own.Exec(ctx, outputsClear, o.part); err != nil {
			return fmt.Errorf("project the outputs: %w", err)
		}
	}
	for rows := range slices.Chunk(c.Outputs, outputsAtOnce) {
		var (
			txids, spenders [][]byte
			indexes         []int64
			states, sources []string
		)
		for _, row := range rows {
			var spender []byte
			if row.By != (spend.TxID{}) && (row.State == reconcile.Spent || row.State == reconcile.Pending) {
				spender = row.By[:]
			}
			txids, spenders = append(txids, row.Outpoint.TxID[:]), append(spenders, spender)
			indexes = append(indexes, int64(row.Outpoint.Index))
			states, sources = append(states, string(row.State)), append(sources, literal(row.Sources))
		}
		_, err := own.Exec(ctx, outputsPut, o.part, int64(c.Revision.Accepted), txids, indexes, states, spenders, sources)
		if err != nil {
			return fmt.Errorf("project the outputs: %w", err)
		}
	}
	return nil
}

// literal is an array as Postgres reads it.
func literal(list []reconcile.SourceID) string {
	text := []byte{'{'}
	for i, n := range list {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, uint64(n), 10)
	}
	return string(append(text, '}'))
}
