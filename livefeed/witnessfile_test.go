package livefeed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
)

// TestO12_ARestartRemembers: what a node saw outlives it in its file, and is compared before anything else is done.
func TestO12_ARestartRemembers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stopTimers(t, db)
	path := filepath.Join(t.TempDir(), "state.json")
	open := func() option {
		w, err := OpenWitness(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return func(c *Config) { c.Witness = w }
	}
	n := startStore(t, db, quiet, open())
	f := n.ensure(t, "f")
	counts(t, n, f, "a", 7)
	n.WatchMarks(readCounts)
	f.mustRotate(t, rotationKey, Retire)
	for i := range 3 {
		f.mustAppend(t, group(fmt.Sprint(i), put(i)))
	}
	n.mustVerify(t)
	n.stop()

	n = startStore(t, db, quiet, open())
	f = n.ensure(t, "f")
	n.WatchMarks(readCounts)
	n.mustVerify(t)
	f.wantTurns(t, "1 retire")
	n.stop()

	rewind(t, n, 1)
	n = newStore(t, db, quiet, open())
	var broken int64
	if err := n.pool.QueryRow(t.Context(), "select broken from feed").Scan(&broken); err != nil || broken != 2 {
		t.Errorf("broken at turn %d after the start, %v", broken, err)
	}
	n.run(t)
	f = n.ensure(t, "f")
	f.wantTurns(t, "1 retire", "2 break found")
	n.stop()

	// A mark is compared as soon as somebody reads marks again, though the file is from before a break.
	n = startStore(t, db, quiet, open())
	f = n.ensure(t, "f")
	counts(t, n, f, "b", 9)
	n.stop()
	exec(t, n, "delete from counts where name = 'b'")
	n = startStore(t, db, quiet, open())
	f = n.ensure(t, "f")
	f.wantTurns(t, "1 retire", "2 break found")
	n.WatchMarks(readCounts)
	n.mustVerify(t)
	f.wantTurns(t, "1 retire", "2 break found", "3 break found")
}

// TestO12_TheStateFileIsWrittenWhileTheStoreRuns: what a killed process leaves is at most a second old.
func TestO12_TheStateFileIsWrittenWhileTheStoreRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	path := filepath.Join(t.TempDir(), "state.json")
	w, err := OpenWitness(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	f := startStore(t, db, func(c *Config) { c.Witness = w }).ensure(t, "f")
	f.mustAppend(t, group("1", put(1)))
	deadline := time.Now().Add(patience)
	for {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := decodeWitness(raw)
		if err != nil {
			t.Fatal(err)
		}
		if seen["f"].head == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the file says %s", raw)
		}
		pause(t.Context(), 10*time.Millisecond)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("%v", left)
	}
}

// TestO12_AStateFileThatCannotBeUsed is an error that says what to do.
func TestO12_AStateFileThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"empty": "", "cut": `{"version":1,"feeds":[{"name":"f"`, "other version": `{"version":2,"feeds":[]}`, "more": `{"version":1,"feeds":[],"x":1}`,
	} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := OpenWitness(path, nil)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "put a copy back") {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	if _, err := OpenWitness(folder, nil); err == nil {
		t.Error("a folder was taken for a file")
	}
	if _, err := OpenWitness(filepath.Join(folder, "none", "state.json"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	w, err := OpenWitness(filepath.Join(folder, "fine"), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.path = filepath.Join(folder, "none", "state.json")
	w.changed = true
	if err := w.save(); err == nil || !w.changed {
		t.Errorf("a write that failed: %v, and it is tried again: %v", err, w.changed)
	}
}

func someSights() map[string]sight {
	return map[string]sight{
		"f": {known: true, id: 1, born: 1_600_000_000_000_000, epoch: strings.Repeat("0a", 32), turn: 3, broken: 2, head: 9, tag: [8]byte{1, 2, 3}, prohibitions: 4, evaluated: 1_700_000_000,
			marks: map[string]uint64{"ls_a": 1, "\u0000\u2028 name": maxSequence}},
		"\u00fc": {known: true, id: 1<<31 - 1, epoch: "e", head: maxSequence},
	}
}

// TestO12_TheStateFileHasOneSpelling: it reads as what was written, and nothing else reads at all.
func TestO12_TheStateFileHasOneSpelling(t *testing.T) {
	t.Parallel()
	good := string(encodeWitness(someSights()))
	got, err := decodeWitness([]byte(good))
	if err != nil || !reflect.DeepEqual(got, someSights()) {
		t.Fatalf("%+v, %v", got, err)
	}
	for old, bad := range map[string]string{
		`"version":1`: `"version":1.5`, `"id":1,`: `"id":0,`, `"born":"0",`: ``, `"turn":"3"`: `"turn":3`, `"broken":"2"`: `"broken":"4"`, `"head":"9"`: `"head":"09"`,
		`"evaluated":"1700000000"`: `"evaluated":"9223372036854775808"`, `"tag":"0102030000000000"`: `"tag":"010203000000000"`, `"tag":"0000000000000000"`: `"tag":"000000000000000G"`,
		`"prohibitions":"4",`: ``, `"name":"f"`: `"name":"ü"`, `"name":"ls_a"`: `"name":""`, `"marks":[]`: `"marks":{}`, `"value":"1"`: `"value":"1","x":null`,
		`"feeds":[`: `"feeds":[7,`, `}` + "\n": `}{}`,
	} {
		if !strings.Contains(good, old) {
			t.Errorf("%s is not in %s", old, good)
		}
		if got, err := decodeWitness([]byte(strings.Replace(good, old, bad, 1))); err == nil {
			t.Errorf("with %s for %s it reads as %+v", bad, old, got)
		}
	}
}

// FuzzO12_StateFile: whatever reads is written back as it reads.
func FuzzO12_StateFile(f *testing.F) {
	f.Add(encodeWitness(someSights()))
	f.Add(encodeWitness(nil))
	f.Add([]byte(`{"feeds":[{"born":"1","broken":"0","epoch":"e","evaluated":"0","head":"0","id":1,"marks":[{"name":"m","value":"0"}],"name":"f","prohibitions":"0","tag":"0000000000000000","turn":"0"}],"version":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		seen, err := decodeWitness(raw)
		if err != nil {
			return
		}
		again, err := decodeWitness(encodeWitness(seen))
		if err != nil || !reflect.DeepEqual(again, seen) {
			t.Errorf("%+v, then %+v, %v", seen, again, err)
		}
	})
}
