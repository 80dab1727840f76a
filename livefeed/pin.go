package livefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// compactLock is the class of the advisory locks that keep the compactor from the sessions being opened; the object is the
// feed's id.
const compactLock int32 = 0x6f76636d

// Pin keeps the feed's floor where it is until the transaction ends: compaction takes the same lock exclusively, and only
// in its next statement asks which watermarks are still needed. An Open calls it before it fixes its watermark.
func (f *Feed) Pin(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1, $2)`, compactLock, f.ID()); err != nil {
		return fmt.Errorf("livefeed: pin feed %s: %w", f.Name(), err)
	}
	return nil
}
