package sqlitestore

// AtCommit sets what happens before and after each COMMIT.
func (b *Backend) AtCommit(before, after func()) { b.committing, b.committed = before, after }
