package lookup

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/livefeed"
)

// BenchmarkGate asks for the bodies of many sessions that carry the same group: as it was asked before (feed, clock and evidence
// looked up for each body) and as it is asked now, taking turns on one connection. The verdicts are compared first.
func BenchmarkGate(b *testing.B) {
	n := start(b, setup{})
	c := mint("shared", 0)
	n.append(c.put(genre(0), ""))
	point := c.point().Bytes()
	rows, err := n.pool.Query(b.Context(), `select sha from blob`)
	if err != nil {
		b.Fatal(err)
	}
	sums, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil || len(sums) != 1 {
		b.Fatal(len(sums), err)
	}
	var all []gateQuestion
	for range batchMost {
		s := n.loaded(n.open(ask{}).Session)
		all = append(all, gateQuestion{session: s.digest, feed: n.feed.ID(), disclosed: point[:], evidence: sums[0]})
	}
	conn, err := n.pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	for _, count := range []int{1, 16, batchMost} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			questions := all[:count]
			var took [2][]time.Duration
			for round := 0; b.Loop(); round++ {
				var verdicts [2][]gate
				for i, send := range []func(context.Context, livefeed.Querier, []gateQuestion) ([]gate, error){n.provider.formerGates, n.provider.askGates} {
					began := time.Now()
					verdicts[i], err = send(b.Context(), conn, questions)
					took[i] = append(took[i], time.Since(began))
					if err != nil {
						b.Fatal(err)
					}
					for k := range verdicts[i] {
						verdicts[i][k].now = 0
					}
				}
				if !slices.Equal(verdicts[0], verdicts[1]) || verdicts[1][0].state != stateOpen {
					b.Fatalf("%+v, not %+v", verdicts[1], verdicts[0])
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			before, after := took[0][len(took[0])/2], took[1][len(took[1])/2]
			b.ReportMetric(float64(before.Nanoseconds())/float64(count)/1000, "us/former")
			b.ReportMetric(float64(after.Nanoseconds())/float64(count)/1000, "us/now")
			b.ReportMetric(float64(after)/float64(before), "ratio")
		})
	}
}

// formerGateAsk is the statement as it was.
const formerGateAsk = `select u.n, s.state, ` + now + `, s.expires_at, ` + granted + `, s.turn < f.broken,
		case when l.look then exists (select from generate_series(0, octet_length(u.disclosed) / 36 - 1) i
			cross join lateral (select p.feed_id from prohibition p
				where p.feed_id = s.feed_id and p.outpoint = substr(u.disclosed, i * 36 + 1, 36) offset 0) p) else false end,
		case when l.look then exists (select from generate_series(0, octet_length(u.disclosed) / 36 - 1) i
			cross join lateral (select a.readers from row_audience a
				where a.outpoint = substr(u.disclosed, i * 36 + 1, 36) and a.feed_id = s.feed_id offset 0) a
			where not coalesce(s.principal = any(a.readers), false)) else false end,
		exists (select from generate_series(0, octet_length(u.evidence) / 32 - 1) i
			left join lateral (select b.sha from blob b where b.sha = substr(u.evidence, i * 32 + 1, 32) offset 0) b on true
			where b.sha is null)
	from unnest($1::bytea[], $2::bytea[], $3::bytea[]) with ordinality as u(id, disclosed, evidence, n)
	cross join lateral (select s.state, s.feed_id, s.expires_at, s.w, s.turn, s.grant_id, s.principal
		from lookup_session s where s.id = u.id offset 0) s
	cross join lateral (select c.evaluated from feed_clock c where c.feed_id = s.feed_id offset 0) c
	cross join lateral (select f.broken, f.prohibition_rev from feed f where f.id = s.feed_id offset 0) f
	cross join lateral (select f.prohibition_rev > 0
		or exists (select from row_audience a where a.feed_id = s.feed_id and a.seq > s.w) as look offset 0) l`

func (p *Provider) formerGates(ctx context.Context, q livefeed.Querier, questions []gateQuestion) ([]gate, error) {
	ids, disclosed, evidence := make([][]byte, len(questions)), make([][]byte, len(questions)), make([][]byte, len(questions))
	for i := range questions {
		ids[i], disclosed[i], evidence[i] = questions[i].session[:], nonNil(questions[i].disclosed), nonNil(questions[i].evidence)
	}
	rows, err := q.Query(ctx, formerGateAsk, ids, disclosed, evidence)
	if err != nil {
		return nil, err
	}
	gates := make([]gate, len(questions))
	var n int
	var g gate
	var expiresAt uint64
	_, err = pgx.ForEachRow(rows, []any{&n, &g.state, &g.now, &expiresAt, &g.granted, &g.broken, &g.prohibited, &g.narrowed, &g.lost}, func() error {
		g.expired = g.now >= expiresAt
		gates[n-1] = g
		return nil
	})
	return gates, err
}
