package pgstore

// AtCommit sets what happens before and after each COMMIT.
func (b *Backend) AtCommit(before, after func()) { b.committing, b.committed = before, after }

// RolledBack is how an error of COMMIT is read.
func RolledBack(err error) bool { return rolledBack(err) }

// Statements are all that read or write keys, with arguments of the right types.
func (b *Backend) Statements() map[string][]any {
	key, keys := []byte("a"), [][]byte{[]byte("a"), []byte("b")}
	return map[string][]any{
		getMany: {b.part, keys}, scanRange: {b.part, key, 10, key}, scanOpen: {b.part, key, 10},
		rangesMany: {b.part, keys, keys, 64}, putMany: {b.part, keys, keys}, deleteMany: {b.part, keys},
	}
}

// BeginUpdate is the statement that begins an Update.
func (b *Backend) BeginUpdate() string { return b.beginUpdate }
