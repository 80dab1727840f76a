package livefeed

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// audiences are the records of a feed, as "row@seq readers".
func (f *Feed) audiences(t testing.TB) []string {
	t.Helper()
	rows, err := f.store.cfg.Pool.Query(t.Context(), "select outpoint, seq, readers from row_audience where feed_id = $1 order by seq", f.id)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		var point []byte
		var seq int64
		var readers [][]byte
		err := r.Scan(&point, &seq, &readers)
		row := -1
		for n := range 10 {
			if o := outpoint(n).Bytes(); string(o[:]) == string(point) {
				row = n
			}
		}
		var ids []byte
		for _, r := range readers {
			ids = append(ids, r[32])
		}
		return fmt.Sprint(row, "@", seq, " ", ids), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestF19_WhoMayReadARowIsOnRecord once they are fewer, until nobody can be served what was before.
func TestF19_WhoMayReadARowIsOnRecord(t *testing.T) {
	t.Parallel()
	db, _, f := startFeed(t)
	other := startStore(t, db).ensure(t, f.name)
	for i, step := range []struct {
		edits []Edit
		want  []string
	}{
		{[]Edit{put(1), put(2, readers(7))}, []string{"2@1 [7]"}}, // nobody knows what row 2 was before
		{[]Edit{put(1, readers(7, 8))}, []string{"2@1 [7]", "1@2 [7 8]"}},
		{[]Edit{put(1, readers(7, 8), attr("a", "b"))}, []string{"2@1 [7]", "1@2 [7 8]"}},
		{[]Edit{put(1, readers(8))}, []string{"2@1 [7]", "1@4 [8]"}},
		{[]Edit{put(1, readers(7, 8, 9))}, []string{"2@1 [7]", "1@5 [7 8 9]"}}, // on record it stays, and right
		{[]Edit{spend(1), put(2)}, []string{"1@5 [7 8 9]"}},
		{[]Edit{put(1, readers(9))}, []string{"1@7 [9]"}},
		{[]Edit{put(3), put(3, readers(9)), put(3, readers(8))}, []string{"1@7 [9]", "3@8 [8]"}},
		{[]Edit{put(4, readers(9)), put(4)}, []string{"1@7 [9]", "3@8 [8]"}},
		{[]Edit{withdraw(3), put(5)}, []string{"1@7 [9]", "3@8 [8]"}},
		{[]Edit{put(5, readers(1)), put(1)}, []string{"3@8 [8]", "5@11 [1]"}},
	} {
		by := f
		if i%2 == 1 {
			by = other
		}
		by.mustAppend(t, group(fmt.Sprint(i), step.edits...))
		if got := f.audiences(t); !slices.Equal(got, step.want) {
			t.Fatalf("after group %d: %v, want %v", i+1, got, step.want)
		}
	}
	for _, c := range []struct {
		floor uint64
		want  []string
	}{{7, []string{"3@8 [8]", "5@11 [1]"}}, {8, []string{"5@11 [1]"}}, {10, []string{"5@11 [1]"}}, {11, nil}} {
		f.compactAll(t, until(c.floor))
		if got := f.audiences(t); !slices.Equal(got, c.want) {
			t.Fatalf("floor %d: %v, want %v", c.floor, got, c.want)
		}
	}
}

// TestF19_CompactionLeavesARecordThatIsRenewed: a commit that has renewed a record and is not done holds nobody up.
func TestF19_CompactionLeavesARecordThatIsRenewed(t *testing.T) {
	t.Parallel()
	db, _, f := startFeed(t)
	f.mustAppend(t, group("1", put(1, readers(7, 8))))
	f.mustAppend(t, group("2", put(2, readers(7, 8))))
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may be committed
	o := outpoint(1).Bytes()
	if _, err := tx.Exec(t.Context(), audiencePut, f.id, [][]byte{o[:]}, []int64{3}, []string{byteaArray(0, nil)}); err != nil {
		t.Fatal(err)
	}
	f.compactAll(t, nobody)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.audiences(t); !slices.Equal(got, []string{"1@3 []"}) {
		t.Fatal(got)
	}
}
