package livefeed

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A row's readers are part of its version, so the log and a snapshot say who saw a version when it was the present one. Whether
// somebody may be served it now is another question: of a row whose readers were narrowed there is a record of whom that left,
// in the transaction of the narrowing, asked by those who serve earlier versions (conformance row A7). It is forgotten once
// it is at or below the floor: every version that is still served began after it.

const (
	audiencePut = `
insert into row_audience (feed_id, outpoint, seq, readers)
select $1, u.outpoint, u.seq, u.readers::bytea[] from unnest($2::bytea[], $3::bigint[], $4::text[]) as u(outpoint, seq, readers)
on conflict (outpoint, feed_id) do update set seq = excluded.seq, readers = excluded.readers`

	audienceDrop = `
delete from row_audience a
using (select x.place from unnest($2::bytea[]) as u(outpoint)
       cross join lateral (select n.ctid as place from row_audience n where n.outpoint = u.outpoint and n.feed_id = $1 offset 0) x) found
where a.ctid = found.place`

	// A record that a commit is about to renew is left alone.
	audienceForget = `
delete from row_audience a
using (select n.ctid as place from row_audience n where n.feed_id = $1 and n.seq <= $2 order by n.seq limit $3 for update skip locked) old
where a.ctid = old.place`
)

// audience is what is on record of who may read a row.
type audience struct {
	readers [][33]byte // nil: everyone, and there is no record
	seq     uint64     // 0: as it is stored
	stored  bool
}

// admit records who may read the row at an outpoint from group seq on, if they are fewer than before. Of a row that was
// absent nobody knows who could read it before it went.
func (pl *plan) admit(o Outpoint, before, after *State, seq uint64) {
	known := pl.audiences[o]
	switch {
	case known == nil && (after.Readers == nil || before != nil && within(before.Readers, after.Readers)):
		return
	case known == nil:
		known = &audience{}
		pl.audiences[o] = known
	case slices.Equal(known.readers, after.Readers):
		return
	}
	known.readers, known.seq = after.Readers, seq
}

// within reports whether everybody among readers is among others too; nil is everyone.
func within(readers, others [][33]byte) bool {
	if readers == nil || others == nil {
		return others == nil
	}
	return !slices.ContainsFunc(readers, func(r [33]byte) bool { return !slices.Contains(others, r) })
}

func (pl *plan) queueAudiences(b *pgx.Batch, feed int32) {
	var put, drop [][]byte
	var seqs []int64
	var readers []string
	for o, a := range pl.audiences {
		point := o.Bytes()
		switch {
		case a.seq == 0:
		case a.readers != nil:
			put, seqs = append(put, point[:]), append(seqs, int64(a.seq))
			readers = append(readers, byteaArray(len(a.readers), func(i int) []byte { return a.readers[i][:] }))
		case a.stored:
			drop = append(drop, point[:])
		}
	}
	if len(put) > 0 {
		b.Queue(audiencePut, feed, put, seqs, readers)
	}
	if len(drop) > 0 {
		b.Queue(audienceDrop, feed, drop)
	}
}

// forgetAudiences removes records at or below the floor and reports whether there may be more.
func (f *Feed) forgetAudiences(ctx context.Context, floor uint64, _ *Compacted) (more bool, err error) {
	var n int64
	err = f.store.compactTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, audienceForget, f.id, int64(floor), compactRows)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return true, fmt.Errorf("forget who could read rows: %w", err)
	}
	f.store.noteRemoved(f.name, "audiences", n)
	return n == compactRows, nil
}
