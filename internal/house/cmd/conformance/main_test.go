package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/house"
)

func TestParseListKeepsNamesWithTheirPackage(t *testing.T) {
	t.Parallel()
	const m = house.Module
	got := parseList("TestA\nFuzzB\nok  \t" + m + "/lookup\t0.01s\n?   \t" + m + "/cmd\t[no test files]\nTestA\nok  \t" + m + "\t(cached)\n")
	if want := []string{"lookup TestA", "lookup FuzzB", ". TestA"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompareFindsWhatOneSideLacks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, content := range map[string]string{
		"a_test.go":       "package a\nimport \"testing\"\nfunc TestBoth(t *testing.T) {}\nfunc TestSource(t *testing.T) {}\n",
		"a_plan9_test.go": "package a\nimport \"testing\"\nfunc TestElsewhere(t *testing.T) {}\n",
		"own/go.mod":      "module own\n",
		"own/a/a_test.go": "package a\nimport \"testing\"\nfunc TestOfItsOwnModule(t *testing.T) {}\n",
	} {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := house.Load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	wrong := compare(root, tree, []string{". TestBoth", ". TestListed"})
	if len(wrong) != 2 || !strings.Contains(wrong[0], "TestSource is in the source") || !strings.Contains(wrong[1], "TestListed is listed") {
		t.Errorf("got %q", wrong)
	}
}

func TestReadRanKnowsFolders(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(name, []byte(house.Module+" TestA\n"+house.Module+"/lookup ExampleB\n"+house.Module+"/lookup TestB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readRan(name)
	if want := []string{". TestA", "lookup TestB"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
