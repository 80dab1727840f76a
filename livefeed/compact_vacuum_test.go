package livefeed

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestF15_DiskStaysFlat while everything is replaced again and again, with the database's own vacuum turned off.
func TestF15_DiskStaysFlat(t *testing.T) {
	t.Parallel()
	db, n, f := startFeed(t)
	for _, table := range vacuumed {
		exec(t, n, "alter table "+table+" set (autovacuum_enabled = false)")
	}
	size := func() (bytes int64) {
		if err := db.Pool.QueryRow(t.Context(), "select sum(pg_total_relation_size(u.name::regclass))::bigint from unnest($1::text[]) as u(name)", vacuumed).Scan(&bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	var sizes []int64
	for round := range 9 {
		for i := range 5 {
			var edits []Edit
			for j := range 500 {
				edits = append(edits, put(i*500+j, attr("a", "b"), attr("n", fmt.Sprint(j)), beefOf(fmt.Sprintf("%0300d", round*2500+i*500+j))))
			}
			f.mustAppend(t, group(fmt.Sprint(round, "-", i), edits...))
		}
		f.compactAll(t, nobody)
		if err := n.Vacuum(t.Context()); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size()>>10)
	}
	t.Logf("kB after each round: %d", sizes)
	if first, last := sizes[2], sizes[8]; float64(last) > 1.2*float64(first) {
		t.Errorf("%d kB after a third of the rounds, %d kB at their end", first, last)
	}
	if vacuums := metricValue(n.metrics.vacuums); vacuums < 2 || vacuums > 8 {
		t.Errorf("%v vacuums", vacuums)
	}
}

// TestF15_AVacuumIsNotDueForLittle: neither below the least, nor below the share of what is retained.
func TestF15_AVacuumIsNotDueForLittle(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	for i, x := range []struct {
		removed, retained int64
		vacuums           float64
		left              int64
	}{{vacuumLeast - 1, 0, 0, vacuumLeast - 1}, {vacuumLeast, vacuumLeast*vacuumShare + vacuumShare, 0, vacuumLeast}, {vacuumLeast, vacuumLeast * vacuumShare, 1, 0}} {
		n.removed.Store(x.removed)
		exec(t, n, "update feed_head set versions = $2 where feed_id = $1", f.id, x.retained)
		if err := n.Vacuum(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := metricValue(n.metrics.vacuums); got != x.vacuums || n.removed.Load() != x.left {
			t.Errorf("%d: %v vacuums, %d rows removed since", i, got, n.removed.Load())
		}
	}
}

// TestF15_ARefusalIsSaidOnce and does no harm: not everybody owns the tables it uses.
func TestF15_ARefusalIsSaidOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := "overlayd_" + strings.TrimPrefix(db.Pool.Config().ConnConfig.Database, "overlayd_t_")
	for _, sql := range []string{"create role " + role, "grant all on all tables in schema public to " + role} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, sql := range []string{"drop owned by " + role, "drop role " + role} {
			if _, err := db.Pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
				t.Error(err)
			}
		}
	})
	var log testkit.Log
	guest := func(c *pgxpool.Config) {
		Configure(c)
		c.ConnConfig.RuntimeParams["role"] = role
	}
	n := newStore(t, db, func(c *Config) {
		c.Pool, c.Writer = pgtest.NewPool(t, db, guest), pgtest.NewPool(t, db, guest)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 2 {
		n.removed.Store(vacuumLeast)
		if err := n.Vacuum(t.Context()); err != nil {
			t.Errorf("%v", err)
		}
	}
	if said := log.Count("make it the tables' owner"); said != 1 {
		t.Errorf("said %d times:\n%s", said, log.String())
	}
}
