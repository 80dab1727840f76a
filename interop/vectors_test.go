package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// judged is what node/vectors.mjs prints.
type judged struct {
	Counts struct{ Cases, Headers, Transactions, Inputs, Invalid, Bundles, Paths int }
	Faults []string
}

// TestR9_OwnVectorsByTheTypeScriptSDK has @bsv/sdk read every transaction, header and bundle of testvectors/reconcile, run every
// script and follow every Merkle path; and shows that a changed file is noticed.
func TestR9_OwnVectorsByTheTypeScriptSDK(t *testing.T) {
	t.Parallel()
	node, ok := nodeProgram(t, "the check of testvectors/reconcile by @bsv/sdk")
	if !ok {
		return
	}
	own := filepath.Join("..", "testvectors", "reconcile")
	sound := judgeVectors(t, node, own)
	c := sound.Counts
	for _, fault := range sound.Faults {
		t.Error(fault)
	}
	files, err := filepath.Glob(filepath.Join(own, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Cases != len(files) || c.Cases < 40 || c.Inputs < 80 || c.Invalid < 5 || c.Bundles < 40 || c.Paths < 30 {
		t.Errorf("%+v of %d files", c, len(files))
	}
	t.Logf("by @bsv/sdk: %+v", c)

	dir := t.TempDir()
	changes := map[string][2]string{
		"bad-signature.json": {`"valid": false`, `"valid": true`},
		"first-seen.json":    {`"valid": true`, `"valid": false`},
		"proved-output.json": {`"height": 2`, `"height": 3`},
		"swap.json":          {`"p"`, `"q"`},
	}
	for file, change := range changes {
		data, err := os.ReadFile(filepath.Join(own, file))
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(data, []byte(change[0]), []byte(change[1]), 1)
		if err := os.WriteFile(filepath.Join(dir, file), changed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spoiled := judgeVectors(t, node, dir)
	for file := range changes {
		if !slices.ContainsFunc(spoiled.Faults, func(f string) bool { return strings.HasPrefix(f, file+": ") }) {
			t.Errorf("nothing is said of %s: %v", file, spoiled.Faults)
		}
	}
}

// judgeVectors runs the script over one folder. It ends with code 1 where it has faults to tell.
func judgeVectors(t *testing.T, node, dir string) judged {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startDriver)
	defer cancel()
	command := exec.CommandContext(ctx, node, filepath.Join("node", "vectors.mjs"), dir)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	var got judged
	if json.Unmarshal(out, &got) != nil {
		t.Fatalf("%v: %s%s", err, out, stderr.Bytes())
	}
	var exit *exec.ExitError
	if failed := errors.As(err, &exit); err != nil && !failed || failed != (len(got.Faults) > 0) {
		t.Errorf("%v with faults %v", err, got.Faults)
	}
	return got
}
