package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

const (
	outputsClear = `DELETE FROM overlay_outputs`
	outputsPut   = `
INSERT INTO overlay_outputs (txid, output_index, state, spender, sources, since_revision) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (txid, output_index) DO UPDATE SET state = excluded.state, spender = excluded.spender, sources = excluded.sources, since_revision = excluded.since_revision`
)

// NewOutputs returns a projector that keeps the table overlay_outputs of this
// store for SQL: what reconcile.Snapshot.Outputs says, at the projector's own
// checkpoint and in the same commit with it. A row stays when no source lists its
// output any more; then its sources are [].
func NewOutputs(b *Backend) reconcile.Projector { return outputs{b} }

type outputs struct{ b *Backend }

// Apply writes one change.
func (o outputs) Apply(ctx context.Context, c reconcile.Change, tx reconcile.ProjectTx) error {
	own, ok := tx.(*sql.Tx)
	if !ok || o.b.writing.Load() != own {
		return errors.New("project the outputs: the transaction is not one of this store")
	}
	if c.Revision.Accepted > math.MaxInt64 {
		return fmt.Errorf("project the outputs: revision %d does not fit a column", c.Revision.Accepted)
	}
	if c.Kind == "snapshot" {
		if _, err := own.ExecContext(ctx, outputsClear); err != nil {
			return fmt.Errorf("project the outputs: %w", err)
		}
	}
	if len(c.Outputs) == 0 {
		return nil
	}
	put, err := own.PrepareContext(ctx, outputsPut)
	if err != nil {
		return fmt.Errorf("project the outputs: %w", err)
	}
	defer put.Close()
	for _, row := range c.Outputs {
		sources := row.Sources
		if sources == nil {
			sources = []reconcile.SourceID{}
		}
		list, err := json.Marshal(sources)
		if err != nil {
			return fmt.Errorf("project the outputs: %w", err)
		}
		var spender []byte
		if row.By != (spend.TxID{}) && (row.State == reconcile.Spent || row.State == reconcile.Pending) {
			spender = row.By[:]
		}
		_, err = put.ExecContext(ctx, row.Outpoint.TxID[:], int64(row.Outpoint.Index), string(row.State), spender, string(list), int64(c.Revision.Accepted))
		if err != nil {
			return fmt.Errorf("project the outputs: %w", err)
		}
	}
	return nil
}
