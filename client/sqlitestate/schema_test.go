package sqlitestate_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

// kept puts a state that a release with schema 1 wrote into a folder. Its source
// ls_a has a generation that was read to live and ended for equivocation, and a
// second one with a page that was not delivered; ls_b an Open without an answer.
func kept(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	packed, err := os.Open("testdata/schema1.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, sqlitestate.File), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// dump is everything a file holds, by table, and how its tables are made.
func dump(t *testing.T, dir string) (contents map[string][]string, schema []string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, sqlitestate.File)+"?_pragma=query_only(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	column := func(query string) (out []string) {
		rows, err := db.Query(query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
		return out
	}
	contents = make(map[string][]string)
	for _, table := range column(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`) {
		var quoted []string
		for _, c := range column(fmt.Sprintf(`SELECT name FROM pragma_table_info('%s') WHERE name <> 'principal' ORDER BY cid`, table)) {
			quoted = append(quoted, "quote("+c+")")
		}
		contents[table] = column("SELECT " + strings.Join(quoted, " || ',' || ") + " FROM " + table + " ORDER BY 1")
	}
	for _, s := range column(`SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`) {
		schema = append(schema, strings.Join(strings.Fields(strings.NewReplacer(`"`, "", "(", " ( ", ")", " ) ").Replace(s)), " "))
	}
	return contents, schema, version
}

// A state of schema 1 is brought up to date with everything in it, and goes on
// where it was; its sources are those of anonymous requests.
func TestC3_SchemaOneIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	dir := kept(t)
	before, _, version := dump(t, dir)
	if version != 1 || len(before["observations"]) != 4 || len(before["quarantine"]) != 1 {
		t.Fatalf("the kept file is of schema %d and holds %v", version, before)
	}
	s := open(t, dir)
	defer s.Close()
	after, schema, version := dump(t, dir)
	if version != 2 {
		t.Fatalf("schema %d", version)
	}
	for table, rows := range before {
		if !slices.Equal(after[table], rows) {
			t.Errorf("%s holds\n%s\nand held\n%s", table, strings.Join(after[table], "\n"), strings.Join(rows, "\n"))
		}
	}
	fresh := t.TempDir()
	if err := open(t, fresh).Close(); err != nil {
		t.Fatal(err)
	}
	if _, want, _ := dump(t, fresh); !slices.Equal(schema, want) {
		t.Errorf("the tables are\n%s\nand of a new file\n%s", strings.Join(schema, "\n"), strings.Join(want, "\n"))
	}

	r := acquire(t, s, "ls_a")
	st, err := r.Status(t.Context())
	if err != nil || st.Published != 1 || st.Latest.Number != 2 || st.Latest.Checkpoint.Cursor != "d1" || st.Latest.Checkpoint.Session != "session-2" {
		t.Fatalf("status %+v, %v", st, err)
	}
	for _, mark := range []client.Mark{{Generation: 1, Page: 3, End: true}, {Generation: 2, Page: 1}} {
		d, err := r.Undelivered(t.Context())
		if err != nil || d == nil || d.Mark != mark {
			t.Fatalf("undelivered %+v, %v, want %+v", d, err, mark)
		}
		if err := r.Delivered(t.Context(), mark); err != nil {
			t.Fatal(err)
		}
	}
	cp := checkpoint("d2", client.PhaseComplete, 12)
	cp.Session = "session-2"
	done, err := r.Commit(t.Context(), client.Commit{Generation: 2, From: "d1", Checkpoint: cp})
	if err != nil || done.Replaces != 1 {
		t.Fatalf("the next page is %+v, %v", done, err)
	}
}

// Reading what an earlier release wrote does not change it.
func TestC3_SchemaOneIsReadAsItIs(t *testing.T) {
	t.Parallel()
	dir := kept(t)
	s, err := sqlitestate.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := s.Sources(t.Context())
	if err != nil || len(sources) != 2 || sources[0].Service != "ls_a" || sources[0].Principal != "" || sources[0].Latest != 2 {
		t.Fatalf("sources %+v, %v", sources, err)
	}
	n := 0
	for _, err := range s.Rows(t.Context(), sources[0]) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if err := s.Close(); err != nil || n != 3 {
		t.Fatalf("%d rows, %v", n, err)
	}
	if _, _, version := dump(t, dir); version != 1 {
		t.Fatalf("reading left schema %d", version)
	}
}

// What goes wrong on the way to schema 2 leaves schema 1 whole.
func TestC3_SchemaOneIsNeverLeftHalfWay(t *testing.T) {
	t.Parallel()
	dir := kept(t)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, sqlitestate.File))
	if err != nil {
		t.Fatal(err)
	}
	// A damaged file: a generation of a source that is not there.
	if _, err := db.Exec(`INSERT INTO generations (source, generation, begun_at, request_id, open, manifest) VALUES (99, 1, 0, 'r', x'', 'digest')`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, _, _ := dump(t, dir)
	if s, err := sqlitestate.Open(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "generations") {
		_ = s.Close()
		t.Fatalf("a damaged file got %v", err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sqlitestate.Open(stopped, dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("a stopped start got %v", err)
	}
	after, _, version := dump(t, dir)
	if version != 1 {
		t.Fatalf("schema %d", version)
	}
	for table, rows := range before {
		if !slices.Equal(after[table], rows) {
			t.Errorf("%s changed", table)
		}
	}
}

// One service of one provider is a source of its own for each identity, and for
// nobody's.
func TestC7_PrincipalsAreSources(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	defer s.Close()
	key := client.Key{Base: "https://overlay.test", Service: "a", Query: []byte("{}"), QueryDigest: "q"}
	held := make(map[string]client.Record)
	for _, principal := range []string{"", "02aa", "02bb"} {
		key.Principal = principal
		r, err := s.Acquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if _, err := s.Acquire(t.Context(), key); !errors.Is(err, client.ErrBusy) {
			t.Errorf("%q is held twice: %v", principal, err)
		}
		held[principal] = r
		generation := begin(t, r)
		o := output("o", strings.Repeat("ab", 32), bytes.Repeat([]byte{1}, 10+len(principal)))
		cp := checkpoint("c", client.PhaseComplete, 1)
		if _, err := r.Commit(t.Context(), client.Commit{Generation: generation, Checkpoint: cp, Groups: []client.Receipt{{ID: "g", Sequence: 1, Observations: []client.Received{o}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := held["02aa"].End(t.Context(), client.Ending{Generation: 1, Code: client.CodeUnauthorized, Reason: "revoked"}); err != nil {
		t.Fatal(err)
	}
	sources, err := s.Sources(t.Context())
	if err != nil || len(sources) != 3 {
		t.Fatalf("sources %+v, %v", sources, err)
	}
	for _, src := range sources {
		for row, err := range s.Rows(t.Context(), src) {
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]sqlitestate.Freshness{true: sqlitestate.Stale, false: sqlitestate.Current}[src.Principal == "02aa"]; row.Freshness != want {
				t.Errorf("a row of %q is %s", src.Principal, row.Freshness)
			}
		}
	}
}
