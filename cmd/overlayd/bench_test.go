package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/internal/bench"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// benchmarked is one run of bench, small, with a provider on a database of its own.
type benchmarked struct {
	dir, tmp string
	db       *pgtest.DB
}

func newBenchmarked(t *testing.T) *benchmarked {
	t.Helper()
	return &benchmarked{dir: t.TempDir(), tmp: t.TempDir(), db: pgtest.New(t)}
}

// options give the run a folder for temporary files that is looked at afterwards.
func (b *benchmarked) options() e2e.Options { return e2e.Options{Env: []string{"TMPDIR=" + b.tmp}} }

// args are those of a small run, before what the case asks for.
func (b *benchmarked) args(command string, more ...string) []string {
	return append([]string{
		"bench", command, "--rounds", "2", "--count", "3", "--time", "200ms", "--warm-up", "50ms", "--bytes", "150",
		"--json", filepath.Join(b.dir, "report.json"), "--html", filepath.Join(b.dir, "report.html"),
	}, more...)
}

// report reads the files of the run.
func (b *benchmarked) report(t *testing.T) *bench.Report {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(b.dir, "report.html"))
	if err != nil || strings.Count(string(page), "<svg") < 2 {
		t.Errorf("the page has no plots: %v", err)
	}
	return &r
}

// toldDurability checks that the report says what a commit of the database is worth (Y9).
func (b *benchmarked) toldDurability(t *testing.T, r *bench.Report) {
	t.Helper()
	var fsync string
	if err := b.db.Pool.QueryRow(t.Context(), `select current_setting('fsync')`).Scan(&fsync); err != nil {
		t.Fatal(err)
	}
	if said, _ := r.Settings["database"].(string); !strings.Contains(said, "fsync "+fsync+",") {
		t.Errorf("the report is of %q, and fsync is %s", said, fsync)
	}
	if warned := strings.Contains(strings.Join(r.Notes, " "), "does not flush"); warned != (fsync == "off") {
		t.Errorf("with fsync %s the notes are %q", fsync, r.Notes)
	}
}

// nothingLeft checks that neither files, nor tables, nor connections of the run are there any more (Y8).
func (b *benchmarked) nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(b.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	var schemas int
	if err := b.db.Pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'overlayd\_bench%'`).Scan(&schemas); err != nil || schemas > 0 {
		t.Errorf("%d schemas of baselines are left, %v", schemas, err)
	}
}

// noProvider checks that the provider of the run has ended: its connections have.
func (b *benchmarked) noProvider(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the provider's connections are gone", func() bool {
		var n int
		err := b.db.Pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'overlayd%'`).Scan(&n)
		return err == nil && n == 0
	})
}

// whole checks that every case was measured in every round.
func whole(t *testing.T, r *bench.Report, rounds int, cases ...string) {
	t.Helper()
	var names []string
	for _, c := range r.Cases {
		names = append(names, c.Name)
		if len(c.Rounds) != rounds || c.Medians.Count == 0 || c.Medians.P50Ms <= 0 || c.Medians.P50Ms > c.Medians.MaxMs {
			t.Errorf("%s: %d rounds, %+v", c.Name, len(c.Rounds), c.Medians)
		}
	}
	if got, want := strings.Join(names, "; "), strings.Join(cases, "; "); got != want {
		t.Errorf("the cases are %q, want %q", got, want)
	}
	if r.Interrupted || r.Lost != 0 || r.Doubled != 0 || len(r.Ratios) == 0 {
		t.Errorf("interrupted %t, lost %d, doubled %d, %d ratios", r.Interrupted, r.Lost, r.Doubled, len(r.Ratios))
	}
}

func TestBench_EachCommandMeasuresAndLeavesNothing(t *testing.T) {
	t.Parallel()
	const notify, insert, echo, curve = "bare NOTIFY round trip", "bare INSERT+COMMIT", "unsigned echo", "sign + verify"
	for _, c := range []struct {
		command string
		args    []string
		cases   []string
	}{
		{"append", []string{"--submitters", "1,3"}, []string{"append, 1 submitter", insert + ", 1 submitter", "append, 3 submitters", insert + ", 3 submitters", echo}},
		{"open", []string{"--rows", "40,300", "--signed"}, []string{"open, 40 rows", "open, 300 rows", "primary-key page", echo}},
		{"page", []string{"--rows", "600"}, []string{"page at start", "primary-key page at start", "page at 90 %", "primary-key page at 90 %", echo}},
		{"poll", nil, []string{"poll, public", notify, insert, echo}},
		{"fanout", []string{"--readers", "1,4", "--rate", "20", "--signed"}, []string{"overlayd signed, 1 reader", "overlayd signed, 4 readers", notify, insert, echo, curve}},
	} {
		t.Run(c.command, func(t *testing.T) {
			t.Parallel()
			b := newBenchmarked(t)
			result := e2e.RunWith(t, b.options(), append(b.args(c.command, c.args...), "--database-url", b.db.URL)...)
			if result.Code != exitFine {
				t.Fatalf("exit code %d:\n%s", result.Code, result.Stderr)
			}
			r := b.report(t)
			whole(t, r, 2, c.cases...)
			b.toldDurability(t, r)
			if r.Command != c.command || !r.Machine.Local {
				t.Errorf("the report is of %q, local %t", r.Command, r.Machine.Local)
			}
			for _, name := range c.cases {
				if !strings.Contains(result.Stdout, name) {
					t.Errorf("the table lacks %q:\n%s", name, result.Stdout)
				}
			}
			if !strings.Contains(result.Stderr, "round 2 of 2: "+c.cases[0]) {
				t.Errorf("no progress on stderr:\n%s", result.Stderr)
			}
			b.nothingLeft(t)
			b.noProvider(t)
		})
	}
}

func TestBench_SoakIsEndedByAnInterrupt(t *testing.T) {
	t.Parallel()
	b := newBenchmarked(t)
	p := e2e.StartWith(t, b.options(), append(b.args("soak", "--readers", "2", "--rate", "20", "--for", "1h", "--every", "200ms"), "--database-url", b.db.URL)...)
	testkit.Eventually(t, "an interval is told", func() bool { return strings.Count(p.Stderr(), "\n") > 3 && strings.Contains(p.Stderr(), "delivered/s") })
	if code := p.Interrupt(); code != exitFine {
		t.Fatalf("exit code %d:\n%s", code, p.Stderr())
	}
	var out strings.Builder
	for text, ok := p.Line(); ok; text, ok = p.Line() {
		out.WriteString(text + "\n")
	}
	if !strings.Contains(out.String(), "overlayd public, 2 readers") || !strings.Contains(out.String(), "was interrupted") {
		t.Errorf("what was measured is not told:\n%s", out.String())
	}
	r := b.report(t)
	if !r.Interrupted || len(r.Intervals) == 0 || r.Lost != 0 || r.Doubled != 0 || r.Intervals[0].P50Ms <= 0 {
		t.Errorf("interrupted %t, lost %d, doubled %d, intervals %+v", r.Interrupted, r.Lost, r.Doubled, r.Intervals)
	}
	b.nothingLeft(t)
	b.noProvider(t)
}

func TestBench_ATargetIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	b := newBenchmarked(t)
	data := filepath.Join(t.TempDir(), "data")
	provider := e2e.StartWith(t, e2e.Options{Env: []string{"OVERLAYD_DATABASE_URL=" + b.db.URL}},
		"dev", "--data", data, "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--sample", "none")
	ready := provider.Ready()
	key := filepath.Join(b.dir, "identity.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("2", 64)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	private := secp256k1.PrivKeyFromBytes(bytes.Repeat([]byte{0x22}, 32))
	target := func(command string, more ...string) e2e.Result {
		t.Helper()
		return e2e.RunWith(t, b.options(), append(b.args(command, "--target", ready.BaseURL, "--operator", ready.OperatorURL,
			"--token-file", filepath.Join(data, "operator.token")), more...)...)
	}
	asItWas := func() {
		t.Helper()
		if v := feedOf(t, ready); v.Rows != 0 || v.Sessions != 0 {
			t.Errorf("left at the target: %d rows, %d sessions", v.Rows, v.Sessions)
		}
		b.nothingLeft(t)
	}

	if r := target("poll", "--attribute", "genre", "--database-url", b.db.URL); r.Code != exitFine {
		t.Fatalf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	r := b.report(t)
	whole(t, r, 2, "poll, public", "bare NOTIFY round trip", "bare INSERT+COMMIT", "unsigned echo")
	if r.Machine.Local {
		t.Error("the target counts as the run's own")
	}
	asItWas()

	// Who is not admitted is told so, and who is measures; without a database some baselines are left out.
	signed := []string{"--signed", "--identity", key}
	if r := target("open", append(signed, "--attribute", "genre", "--rows", "30")...); r.Code != exitFailed || r.Stderr == "" {
		t.Errorf("without a grant: exit code %d:\n%s", r.Code, r.Stderr)
	}
	asItWas()
	grant := "/operator/v1/services/" + devMembers + "/grants/" + hex.EncodeToString(private.PubKey().SerializeCompressed())
	if status, body := call(t, ready, http.MethodPut, grant, ""); status != http.StatusOK {
		t.Fatalf("grant: %d %s", status, body)
	}
	if r := target("open", append(signed, "--attribute", "genre", "--rows", "30")...); r.Code != exitFine {
		t.Fatalf("with a grant: exit code %d:\n%s", r.Code, r.Stderr)
	}
	whole(t, b.report(t), 2, "open, 30 rows", "unsigned echo")
	asItWas()
}

func TestBench_RefusesWithASentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		code       int
		args       []string
	}{
		{"no command", "name what to measure", exitUsage, nil},
		{"no rounds", "--rounds", exitUsage, []string{"poll", "--rounds", "0"}},
		{"no readers", "--readers wants positive numbers", exitUsage, []string{"fanout", "--readers", "0"}},
		{"no rate", "--rate is 0", exitUsage, []string{"fanout", "--rate", "0"}},
		{"no time", "--for", exitUsage, []string{"soak", "--for", "0s"}},
		{"huge evidence", "--bytes is 70000", exitUsage, []string{"append", "--bytes", "70000"}},
		{"operator without a target", "give --target URL too", exitUsage, []string{"poll", "--operator", "http://127.0.0.1:1"}},
		{"identity without signatures", "give --signed too", exitUsage, []string{"poll", "--identity", "x"}},
		{"target without an attribute", "give --attribute", exitUsage, []string{"page", "--target", "http://127.0.0.1:1"}},
		{"no folder for the report", "there is no folder", exitUsage, []string{"poll", "--html", filepath.Join(t.TempDir(), "none", "a.html")}},
		{"no token", "no operator token", exitUsage, []string{"poll", "--target", "http://127.0.0.1:1", "--operator", "http://127.0.0.1:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), &env{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}, append([]string{"bench"}, c.args...))
			if code != c.code || !strings.Contains(stderr.String(), c.says) || stdout.Len() > 0 {
				t.Errorf("code %d, stderr %q, stdout %q; want %d and %q", code, stderr.String(), stdout.String(), c.code, c.says)
			}
		})
	}
}
