package sqlitestate_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

var chain = client.Chain{Network: "test", GenesisHash: strings.Repeat("0a", 32)}

func open(t *testing.T, dir string) *sqlitestate.Store {
	t.Helper()
	s, err := sqlitestate.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func acquire(t *testing.T, s *sqlitestate.Store, service string) client.Record {
	t.Helper()
	r, err := s.Acquire(t.Context(), client.Key{Base: "https://overlay.test", Service: service, Query: []byte("{}"), QueryDigest: "q"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	return r
}

func begin(t *testing.T, r client.Record) uint64 {
	t.Helper()
	n, err := r.Begin(t.Context(), client.Intent{RequestID: "request", Open: []byte("{}"), Manifest: []byte("packet"), Digest: "digest", Chain: chain, Identity: "02"})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func output(id, txid string, beef []byte) client.Received {
	return client.Received{
		ID: id, Kind: "output", Effect: client.EffectPresent, TxID: txid, Index: math.MaxUint32, Evidence: beef,
		Canonical: fmt.Appendf(nil, `{"id":%q,"beef":%q,"tail":true}`, id, base64.StdEncoding.EncodeToString(beef)),
	}
}

func checkpoint(cursor string, phase client.Phase, through uint64) client.Checkpoint {
	return client.Checkpoint{
		Session: "session", Cursor: cursor, Scope: []byte(`{}`), ScopeDigest: "scope", Phase: phase,
		W: through, Through: through, HighWater: through, ExpiresAt: math.MaxUint64, ReplayUntil: math.MaxUint64,
	}
}

func TestC3_BytesAndNumbersComeBackExactly(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	defer s.Close()
	r := acquire(t, s, "a")
	generation := begin(t, r)
	tx := strings.Repeat("ab", 32)
	groups := []client.Receipt{{ID: "g1", Sequence: math.MaxUint64, Observations: []client.Received{
		output("o1", tx, bytes.Repeat([]byte{1, 2, 3}, 1000)),
		output("o2", strings.Repeat("cd", 32), bytes.Repeat([]byte{1, 2, 3}, 1000)), // the same evidence
		output("o3", tx, []byte{0}),
		output("o4", tx, nil),
	}}, {ID: "g2", Sequence: math.MaxUint64}}
	done, err := r.Commit(t.Context(), client.Commit{Generation: generation, Checkpoint: checkpoint("c1", client.PhaseComplete, math.MaxUint64), Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Undelivered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.Mark != done.Mark || !d.Opened || !d.Complete || d.Through != math.MaxUint64 || len(d.Groups) != 2 || d.Groups[0].Sequence != math.MaxUint64 {
		t.Fatalf("delivery %+v", d)
	}
	for i, want := range groups[0].Observations {
		if got := d.Groups[0].Observations[i]; !bytes.Equal(got.Canonical, want.Canonical) || got.ID != want.ID {
			t.Errorf("observation %d came back as %.80s", i, got.Canonical)
		}
	}
	st, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Latest.Checkpoint; got.ExpiresAt != math.MaxUint64 || got.W != math.MaxUint64 || got.Cursor != "c1" {
		t.Fatalf("checkpoint %+v", got)
	}
	src, err := s.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for row, err := range s.Rows(t.Context(), src[0]) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if row.OutputIndex != math.MaxUint32 || row.Sequence != math.MaxUint64 || !row.Present {
			t.Errorf("row %+v", row)
		}
		if row.TxID == tx && row.Observation != "o4" {
			t.Errorf("the last observation is %s", row.Observation)
		}
	}
	if n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestC3_DeliveryMarks(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	defer s.Close()
	r := acquire(t, s, "a")
	for generation := uint64(1); generation <= 2; generation++ {
		if begin(t, r) != generation {
			t.Fatal("generations are not numbered in order")
		}
		if _, err := r.Begin(t.Context(), client.Intent{Chain: chain}); err == nil {
			t.Fatal("a generation began before the last one ended")
		}
		for i, phase := range []client.Phase{client.PhaseSnapshot, client.PhaseComplete, client.PhaseLive, client.PhaseLive} {
			from := ""
			if i > 0 {
				from = fmt.Sprintf("c%d", i-1)
			}
			if _, err := r.Commit(t.Context(), client.Commit{Generation: generation, From: from, Checkpoint: checkpoint(fmt.Sprintf("c%d", i), phase, 7)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.End(t.Context(), client.Ending{Generation: generation, Code: client.CodeExpired, Reason: "over", At: 5}); err != nil {
			t.Fatal(err)
		}
		if err := r.End(t.Context(), client.Ending{Generation: generation, Code: client.CodeExpired}); err == nil {
			t.Fatal("a generation ended twice")
		}
	}
	var got []string
	for {
		d, err := r.Undelivered(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d == nil {
			break
		}
		got = append(got, fmt.Sprintf("%d.%d %v%v%v %v", d.Mark.Generation, d.Mark.Page, d.Opened, d.Complete, d.FirstLive, d.Ending != nil))
		if err := r.Delivered(t.Context(), d.Mark); err != nil {
			t.Fatal(err)
		}
	}
	// The last, empty live batch of each generation has nothing to show.
	want := []string{
		"1.1 truefalsefalse false", "1.2 falsetruefalse false", "1.3 falsefalsetrue false", "1.3 falsefalsefalse true",
		"2.1 truefalsefalse false", "2.2 falsetruefalse false", "2.3 falsefalsetrue false", "2.3 falsefalsefalse true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("deliveries\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestC2_OneChainAState(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	defer s.Close()
	begin(t, acquire(t, s, "a"))
	_, err := acquire(t, s, "b").Begin(t.Context(), client.Intent{RequestID: "r", Open: []byte("{}"), Digest: "d", Manifest: []byte("p"), Chain: client.Chain{Network: "main"}})
	if _, ok := errors.AsType[*client.PinError](err); !ok {
		t.Fatalf("another chain got %v", err)
	}
}

func TestC2_QuarantineIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	defer s.Close()
	r := acquire(t, s, "a")
	for i := range 70 {
		e := client.Ending{Generation: begin(t, r), Code: client.CodeEquivocation, ClaimID: fmt.Sprint(i), Claim: make([]byte, 2<<20)}
		if i > 0 {
			e.Claim = e.Claim[:10]
		}
		if i == 69 {
			e.Claim = make([]byte, 2<<20)
		}
		if err := r.End(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	src, err := s.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claims, err := s.Quarantine(t.Context(), src[0])
	if err != nil {
		t.Fatal(err)
	}
	if last := claims[len(claims)-1]; len(claims) != 64 || claims[0].ID != "6" || last.ID != "69" || len(last.Bytes) != 1<<20 {
		t.Fatalf("%d claims, from %s", len(claims), claims[0].ID)
	}
}

func TestC7_Files(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "a state? 100% #1")
	if _, err := sqlitestate.Inspect(t.Context(), dir); err == nil {
		t.Fatal("looked into a state that does not exist")
	}
	s := open(t, dir)
	begin(t, acquire(t, s, "a"))
	if runtime.GOOS != "windows" {
		for _, name := range []string{dir, filepath.Join(dir, sqlitestate.File), filepath.Join(dir, sqlitestate.File+"-wal")} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
		}
	}
	reader, err := sqlitestate.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if src, err := reader.Sources(t.Context()); err != nil || len(src) != 1 || src[0].Latest != 1 {
		t.Fatalf("a reader sees %+v, %v", src, err)
	}
	if _, err := reader.Acquire(t.Context(), client.Key{}); err == nil {
		t.Fatal("a reader wrote")
	}
	if err := errors.Join(reader.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	// What one run left, the next one finds.
	s = open(t, dir)
	st, err := acquire(t, s, "a").Status(t.Context())
	if err != nil || st.Latest == nil || st.Latest.Intent.RequestID != "request" || string(st.Latest.Intent.Manifest) != "packet" || st.Chain != chain {
		t.Fatalf("status %+v, %v", st, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestC7_AnotherTruth: what reconciles and what does not never share a directory, and a refused one stays as it was.
func TestC7_AnotherTruth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "knowledge.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitestate.Open(t.Context(), dir); !errors.Is(err, sqlitestate.ErrKnowledge) {
		t.Errorf("%v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

func TestC7_NewerState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, sqlitestate.File))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, open := range []func(context.Context, string) (*sqlitestate.Store, error){sqlitestate.Open, sqlitestate.Inspect} {
		if _, err := open(t.Context(), dir); !errors.Is(err, sqlitestate.ErrNewer) {
			t.Errorf("a newer state got %v", err)
		}
	}
}
