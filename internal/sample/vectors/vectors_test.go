package vectors

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/testvectors"
)

const folder = "../../../testvectors/reconcile"

// TestN1_FilesAreWhatIsMade compares every byte, twice: what is made does not change from one time to the next either.
func TestN1_FilesAreWhatIsMade(t *testing.T) {
	t.Parallel()
	changed, err := Sync(folder, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range changed {
		t.Errorf("%s is not what the generator makes: go run ./internal/sample/cmd/vectors -w", name)
	}
	once, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	if len(once) != 57 {
		t.Errorf("%d cases, not 57", len(once))
	}
	for name, data := range once {
		if !bytes.Equal(data, again[name]) {
			t.Errorf("%s is made in two ways", name)
		}
	}
}

// TestN1_SyncSeesEveryDifference changes, adds and removes a file.
func TestN1_SyncSeesEveryDifference(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if changed, err := Sync(dir, true); err != nil || len(changed) != 57 {
		t.Fatalf("%d files written, %v", len(changed), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "swap.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "extra.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "first-seen.json")); err != nil {
		t.Fatal(err)
	}
	want := []string{"extra.json", "first-seen.json", "swap.json"}
	for _, write := range []bool{false, true} {
		if changed, err := Sync(dir, write); err != nil || !slices.Equal(changed, want) {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	if changed, err := Sync(dir, false); err != nil || len(changed) != 0 {
		t.Errorf("after writing: %v, %v", changed, err)
	}
}

// TestN2_CasesHoldTogether reads the embedded cases and checks what they say about their own parts: names, bundles, and that
// sound evidence is taken by the one door for it while broken evidence of the kind that cannot be read is not.
func TestN2_CasesHoldTogether(t *testing.T) {
	t.Parallel()
	kinds := map[string]int{}
	count := 0
	for c, err := range testvectors.Reconcile() {
		if err != nil {
			t.Fatal(err)
		}
		count++
		kinds[c.ExpectFailure]++
		if c.About == "" || len(c.Rows) == 0 || len(c.Steps) == 0 || c.Views["base"] == "" {
			t.Errorf("%s lacks something", c.Name)
		}
		for _, name := range c.Roots {
			if _, ok := c.Transactions[name]; !ok {
				t.Errorf("%s: no root %s", c.Name, name)
			}
		}
		for name, e := range c.Evidence {
			data, err := base64.StdEncoding.DecodeString(e.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if !e.WellFormed {
				continue
			}
			b, err := beef.Parse(data)
			if err != nil {
				t.Errorf("%s: %s: %v", c.Name, name, err)
				continue
			}
			var holds []string
			for _, id := range b.TxIDs() {
				holds = append(holds, called(c, hex.EncodeToString(id[:])))
			}
			if !slices.Equal(holds, e.Holds) {
				t.Errorf("%s: %s holds %v, not %v", c.Name, name, holds, e.Holds)
			}
		}
		for _, s := range c.Steps {
			for _, name := range slices.Concat(s.Names, []string{s.Target}) {
				if _, ok := c.Transactions[name]; name != "" && !ok {
					t.Errorf("%s: no transaction %s", c.Name, name)
				}
			}
			for _, name := range slices.Concat(s.BEEFs, []string{s.BEEF}) {
				if _, ok := c.Evidence[name]; name != "" && !ok {
					t.Errorf("%s: no evidence %s", c.Name, name)
				}
			}
		}
	}
	if count != 57 || kinds["invalid"] != 9 || kinds["unresolved"] < 2 || kinds["limited"] != 1 || kinds["equivocation"] != 1 || kinds["context-changed"] != 1 {
		t.Errorf("%d cases with failures %v", count, kinds)
	}
}

func called(c testvectors.Case, id string) string {
	for name, tx := range c.Transactions {
		if tx.TxID == id {
			return name
		}
	}
	return id
}
