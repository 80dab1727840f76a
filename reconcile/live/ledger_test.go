package live_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// readLedger reads the ledger in a transaction of its store.
func readLedger(ctx context.Context, tx any) (out []uint64, err error) {
	const query = `SELECT revision FROM ledger ORDER BY n`
	switch tx := tx.(type) {
	case *sql.Tx:
		rows, err := tx.QueryContext(ctx, query)
		if err != nil {
			return nil, err
		}
		defer rows.Close() //nolint:errcheck // it was read to its end
		for rows.Next() {
			var n int64
			if err := rows.Scan(&n); err != nil {
				return nil, err
			}
			out = append(out, uint64(n))
		}
		return out, rows.Err()
	case pgx.Tx:
		rows, err := tx.Query(ctx, query)
		if err != nil {
			return nil, err
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, n := range list {
			out = append(out, uint64(n))
		}
		return out, err
	}
	return nil, errors.New("no transaction")
}
