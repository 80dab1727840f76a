package reconcile

import "context"

// SetRevision puts a store at a revision and a journal position of its choice.
func SetRevision(ctx context.Context, b Backend, r Revision, position uint64) error {
	return b.Update(ctx, func(reader Reader) (Writes, error) {
		t, err := newTxn(ctx, reader)
		if err != nil {
			return Writes{}, err
		}
		t.meta.Revision, t.meta.Position = r, position
		return t.writes(), nil
	})
}
