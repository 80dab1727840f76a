package lookup

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// TestS4_RetentionCostsWhatItRemoves: the statements of retention are planned while the tables are empty and run when there are
// many sessions. Each touches what it needs and not the rest.
func TestS4_RetentionCostsWhatItRemoves(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := start(t, setup{db: db})
	conn, err := pgx.ConnectConfig(t.Context(), n.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	feed := n.feed.ID()
	statements := map[string]struct {
		sql  string
		args string
	}{
		"horizon":   {horizon, fmt.Sprint(feed)},
		"horizons":  {horizons, fmt.Sprint("array[", feed, "]")},
		"look":      {sessionsLook, ""},
		"sessions":  {sessionsGone, fmt.Sprint(feed, ", 100")},
		"void":      {sessionsVoid, fmt.Sprint(feed, ", 100")},
		"ending":    {endSessions(`s.id = any($2::bytea[])`), `3, array[sha256(convert_to('s7', 'UTF8'))]`},
		"revoke":    {endSessions(`s.service = $2 and s.principal = $3 and s.grant_id is not null`), `3, 'ls', 'nobody'`},
		"gate":      {gateAsk, `array[sha256(convert_to('s4990', 'UTF8'))], array[sha256('1') || '\x00000000'::bytea], ` + fmt.Sprint("array[", feed, "]")},
		"manifests": {manifestsGone, fmt.Sprint(manifestKept)},
	}
	types := map[string]string{"horizon": "int", "horizons": "int[]", "look": "", "sessions": "int, bigint", "void": "int, bigint", "ending": "smallint, bytea[]", "revoke": "smallint, text, bytea", "manifests": "bigint", "gate": "bytea[], bytea[], int[]"}
	buffers := func(name string) int {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is to stay
		var plan []byte
		if err := tx.QueryRow(t.Context(), `explain (analyze, buffers, format json) execute `+name+bracketed(statements[name].args)).Scan(&plan); err != nil {
			t.Fatal(err)
		}
		var out []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal(plan, &out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(plan), "Seq Scan on lookup_session") {
			t.Errorf("%s reads the table: %s", name, plan)
		}
		return out[0].Plan.Hit + out[0].Plan.Read
	}
	for name, s := range statements {
		if _, err := conn.Exec(t.Context(), `prepare `+name+bracketed(types[name])+` as `+s.sql); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		buffers(name)
	}
	// 20000 sessions that are promised, of the turn of the last break or later, and of manifests that they name.
	if _, err := db.Pool.Exec(t.Context(), `insert into manifest (digest, content, issued_at, expires_at, packet)
		select sha256(convert_to('m' || i, 'UTF8')), sha256('c'), 0, 10, 'x' from generate_series(1, 200) i`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), `insert into lookup_session (id, fence, ref, feed_id, service, epoch, capability, w, w_tag, t, expires_at,
			replay_until, max_request_bytes, max_response_bytes, max_observations, max_wait_ms, rules_id, rules_parameters, query, scope, request, first_batch)
		select sha256(convert_to('s' || i, 'UTF8')), sha256(convert_to('f' || i, 'UTF8')), gen_random_uuid(), $1, 'ls', 'e',
			sha256(convert_to('m' || (i % 200 + 1), 'UTF8')), i % 5000, '\x0000000000000000', 0, 4000000000, 4000000000 + i, 1, 1, 1, 1, 'r', '', '', '', '', ''
		from generate_series(1, 20000) i`, feed); err != nil {
		t.Fatal(err)
	}
	// Rows were narrowed, all before W of the session at the gate.
	if _, err := db.Pool.Exec(t.Context(), `insert into row_audience (feed_id, outpoint, seq, readers)
		select $1, sha256(convert_to(i::text, 'UTF8')) || '\x00000000', i % 4900, '{}' from generate_series(1, 20000) i`, feed); err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]int{"gate": 30, "horizon": 12, "horizons": 14, "look": 14, "sessions": 20, "void": 21000, "ending": 60, "revoke": 12, "manifests": 200 * 8} {
		if got := buffers(name); got > most {
			t.Errorf("%s touches %d buffers among 20000 promised sessions, at most %d are needed", name, got, most)
		} else {
			t.Logf("%-10s %5d buffers, nothing to remove", name, got)
		}
	}
	if _, err := db.Pool.Exec(t.Context(), `update lookup_session set replay_until = 1 where w < 25`); err != nil {
		t.Fatal(err)
	}
	if got := buffers("sessions"); got > 100*30 {
		t.Errorf("removing 100 sessions touches %d buffers", got)
	} else {
		t.Logf("%-10s %5d buffers, 100 to remove", "sessions", got)
	}
}

// bracketed is a list of arguments, or nothing.
func bracketed(list string) string {
	if list == "" {
		return ""
	}
	return "(" + list + ")"
}
