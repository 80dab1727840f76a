package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeWalk runs the README's walk through the protocol, as it stands there, against a fresh provider.
func TestReadmeWalk(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(readme), "<!-- walk -->\n```sh\n")
	walk, _, ended := strings.Cut(walk, "```\n")
	if !found || !ended {
		t.Fatal("the README has no walk")
	}
	dir := t.TempDir()
	p, ready := Dev(t, filepath.Join(dir, "data"))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", walk)
	cmd.Dir = dir
	cmd.Env = environment([]string{"BASE=" + ready.BaseURL, "OPERATOR=" + ready.OperatorURL, "TOKEN=" + ready.OperatorToken})
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"the snapshot had 3 pages", `"replayed":false`, `"kind":"assessment-invalidated"`, `{"closed":true,"version":1}`, `"code":"expired"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the walk did not print %s:\n%s", want, out)
		}
	}
	if code := p.Interrupt(); code != 0 {
		t.Errorf("overlayd ended with %d", code)
	}
}
