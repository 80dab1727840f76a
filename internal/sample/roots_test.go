package sample

import (
	"bytes"
	"testing"
)

func TestR9_SmallRoots(t *testing.T) {
	t.Parallel()
	var out, again bytes.Buffer
	if err := SmallRoots(&out); err != nil {
		t.Fatal(err)
	}
	// BRC-62's own example says so.
	const known = `{"height":814435,"merkleRoot":"bb6f640cc4ee56bf38eb5a1969ac0c16caa2d3d202b22bf3735d10eec0ca6e00"}` + "\n"
	if !bytes.HasPrefix(out.Bytes(), []byte(known)) {
		t.Errorf("the first of them is another:\n%s", out.String())
	}
	if err := SmallRoots(&again); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("the second time they are others: %v", err)
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n < len(chapters())-1 {
		t.Errorf("%d roots for %d chapters", n, len(chapters()))
	}
}
