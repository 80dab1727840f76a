package pgtest

import (
	"context"
	"testing"
)

// T1: databases are each test's own.
func TestT1_OwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := NewEmpty(t), NewEmpty(t)
	for _, db := range []*DB{a, b} {
		if _, err := db.Pool.Exec(context.Background(), "create table mine()"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	New(t)
}
