package livefeed

import "testing"

func TestT2_AShortDrainTellsHowFarTheLogIsComplete(t *testing.T) {
	t.Parallel()
	due := func(deadlines ...uint64) *plan {
		pl := &plan{now: 500, clock: 90, rows: map[Outpoint]*row{}}
		for i, d := range deadlines {
			r := &row{outpoint: Outpoint{Index: uint32(i)}, state: &State{ExpiresAt: d}}
			pl.rows[r.outpoint] = r
			pl.dueRows = append(pl.dueRows, r)
		}
		return pl
	}
	for name, c := range map[string]struct {
		deadlines []uint64
		limit     int
		evaluated uint64
		remaining bool
	}{
		"all":                          {[]uint64{100, 200, 300}, 3, 500, false},
		"none":                         {nil, 3, 500, false},
		"up to the next deadline":      {[]uint64{100, 200, 300}, 2, 299, true},
		"not into an equal deadline":   {[]uint64{100, 200, 200}, 2, 199, true},
		"nothing before what is known": {[]uint64{50, 60, 80}, 1, 0, true},
	} {
		pl := due(c.deadlines...)
		logged, remaining := pl.expireDue(500, c.limit)
		if pl.evaluated != c.evaluated || remaining != c.remaining || logged != min(c.limit, len(c.deadlines)) {
			t.Errorf("%s: logged %d, remaining %v, evaluated %d, want %d", name, logged, remaining, pl.evaluated, c.evaluated)
		}
	}
}
