package lookup

import (
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/openfence"
)

// fenceCount is the greatest number of fences that BenchmarkOpenFences copies in: go test -bench OpenFences ./lookup -fences 10000000
var fenceCount = flag.Int("fences", 1_000_000, "how many fences BenchmarkOpenFences opens sessions beside")

// BenchmarkOpenFences opens sessions beside no fence, a million and -fences of them, on a node and a database each, by turns, so that
// whatever else the machine does falls on all alike. What an Open touches of the fences may not grow by more than two buffers: more is a
// failure. Copying ten million in takes some minutes and 1.3 GB.
func BenchmarkOpenFences(b *testing.B) {
	sizes := []int{0, min(1_000_000, *fenceCount), *fenceCount}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	nodes := make([]*node, len(sizes))
	times := make([][]time.Duration, len(sizes))
	touched := make([]int, len(sizes))
	for i, size := range sizes {
		n := start(b, setup{})
		nodes[i] = n
		n.stock(10)
		n.digest = n.capability()
		n.open(ask{})
		began := time.Now()
		n.copyFences(b, size)
		took := time.Since(began)
		var bytes float64
		n.queryRow(b, &bytes, `select pg_total_relation_size('open_fence')`)
		touched[i] = n.fenceBuffers(b)
		each := bytes / float64(max(size, 1))
		if size > 0 {
			b.Logf("%d fences: copied in %s, %.1f bytes each, an Open touches %d buffers of them", size, took.Round(time.Second), each, touched[i])
		} else {
			b.Logf("no fences: an Open touches %d buffers of them", touched[i])
		}
		if touched[i] > touched[0]+2 {
			b.Fatalf("an Open touches %d buffers of %d fences, and %d when there are none", touched[i], size, touched[0])
		}
		if size == sizes[len(sizes)-1] {
			b.ReportMetric(each, "bytes/fence")
		}
	}
	open := func(i int) time.Duration {
		body := ask{limits: wire.Limits{MaxBytes: 65536, MaxObservations: 5}}.body()
		began := time.Now()
		nodes[i].request(openPath, body).batch(b)
		return time.Since(began)
	}
	for b.Loop() {
		for round := range 100 {
			for k := range nodes {
				i := (k + round) % len(nodes)
				times[i] = append(times[i], open(i))
			}
		}
	}
	none := median(times[0])
	for i, size := range sizes {
		m := median(times[i])
		b.Logf("%d fences: median Open %s, %.2f of one beside none (%d opens)", size, m, float64(m)/float64(none), len(times[i]))
		b.ReportMetric(float64(touched[i]), fmt.Sprintf("buffers-at-%d", size))
		b.ReportMetric(float64(m)/float64(none), fmt.Sprintf("median-ratio-at-%d", size))
	}
	b.ReportMetric(0, "ns/op") // of three hundred opens: it says nothing
}

func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

func (n *node) queryRow(b testing.TB, into any, sql string, args ...any) {
	b.Helper()
	if err := n.pool.QueryRow(context.Background(), sql, args...).Scan(into); err != nil {
		b.Fatal(err)
	}
}

// copyFences adds fences of random keys.
func (n *node) copyFences(b testing.TB, count int) {
	b.Helper()
	ctx := context.Background()
	random := rand.NewChaCha8([32]byte{1})
	for count > 0 {
		batch := min(count, 250_000)
		row := make([]byte, 16+16+8)
		copied, err := n.pool.CopyFrom(ctx, pgx.Identifier{"open_fence"}, []string{"key", "params", "selection", "key_id"},
			pgx.CopyFromSlice(batch, func(int) ([]any, error) {
				for i := 0; i < len(row); i += 8 {
					binary.LittleEndian.PutUint64(row[i:], random.Uint64())
				}
				return []any{row[:16], row[16:32], row[32:], int16(1)}, nil
			}))
		if err != nil || int(copied) != batch {
			b.Fatalf("%d of %d fences copied: %v", copied, batch, err)
		}
		count -= batch
	}
	if _, err := n.pool.Exec(ctx, `vacuum (analyze) open_fence`, pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
}

// fenceBuffers is what an Open touches of open_fence: the median over many new keys of the buffers of each statement that Find and Claim
// prepared, executed as they stand.
func (n *node) fenceBuffers(b testing.TB) int {
	b.Helper()
	ctx := context.Background()
	conn, err := n.pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	fences := n.provider.main.fences
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		key := fences.Key("s", "", newID())
		if _, _, err := fences.Find(ctx, tx, key); err != nil {
			return err
		}
		_, err := fences.Claim(ctx, tx, key, openfence.Entry{})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	rows, err := conn.Query(ctx, `select name, cardinality(parameter_types) from pg_prepared_statements where statement like '%open_fence%' and parameter_types <> '{}' order by 2`,
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		b.Fatal(err)
	}
	type statement struct {
		Name       string
		Parameters int
	}
	statements, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil || len(statements) != 2 {
		b.Fatalf("%v, %v", statements, err)
	}
	var all []int
	for i := range 401 {
		key := fences.Key("s", "", newID())
		sum := 0
		for _, s := range statements {
			args := []string{fmt.Sprintf(`'\x%x'`, key), fmt.Sprintf(`'\x%x'`, make([]byte, 16)), fmt.Sprintf(`'\x%x'`, make([]byte, 8)), "1"}
			sum += explained(b, conn.Conn(), fmt.Sprintf(`execute "%s" (%s)`, s.Name, strings.Join(args[:s.Parameters], ", ")))
		}
		if i > 100 { // warmed
			all = append(all, sum)
		}
	}
	return median(all)
}

// explained executes a statement and counts the buffers that it touched.
func explained(b testing.TB, conn *pgx.Conn, statement string) int {
	b.Helper()
	rows, err := conn.Query(context.Background(), "explain (analyze, buffers, timing off, summary off) "+statement, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		b.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range lines {
		if at := strings.Index(line, "Buffers: shared"); at >= 0 {
			sum := 0
			for _, field := range strings.Fields(line[at:]) {
				kind, count, _ := strings.Cut(field, "=")
				var v int
				if _, err := fmt.Sscan(count, &v); err == nil && (kind == "hit" || kind == "read") {
					sum += v
				}
			}
			return sum
		}
	}
	b.Fatalf("no buffers in %v", lines)
	return 0
}
