package house_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/house"
)

func TestZ4_DocumentAndTestsAgree(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckConformance)
}

// document is a small docs/conformance.md with every row, of which those in
// tests name something and those in notYet have a reason.
func document(tests map[string]string, notYet ...string) string {
	var b strings.Builder
	b.WriteString("# Conformance\n\nProse with a | in it.\n")
	letter := ""
	for _, id := range house.Rows() {
		if id[:1] != letter {
			letter = id[:1]
			fmt.Fprintf(&b, "\n## %s. Family\n\n| id | behaviour | tests |\n| --- | --- | --- |\n", letter)
		}
		cell := tests[id]
		if cell == "" {
			cell = "none, see [Not yet](#not-yet)"
		}
		fmt.Fprintf(&b, "| %s | meaning of %s | %s |\n", id, id, cell)
	}
	b.WriteString("\n## Not yet\n\n| id | shown | why |\n| --- | --- | --- |\n")
	for _, id := range notYet {
		fmt.Fprintf(&b, "| %s | nothing | later |\n", id)
	}
	b.WriteString("\n## Invariants of packages\n\nold text\n\n## Fuzz targets\n")
	return b.String()
}

func except(leave ...string) []string {
	var rest []string
	for _, id := range house.Rows() {
		keep := true
		for _, l := range leave {
			keep = keep && id != l
		}
		if keep {
			rest = append(rest, id)
		}
	}
	return rest
}

const twoTests = "package a\nimport \"testing\"\n" +
	"func TestO1_RetryIsTheSame(t *testing.T) {}\n" +
	"func FuzzJ6_FixedPoint(f *testing.F) {}\n" +
	"func TestG1_Own(t *testing.T) {}\n" +
	"func TestHelperWithResult(t *testing.T) int { return 0 }\n" +
	"func Testlower(t *testing.T) {}\n" +
	"func TestMain(m *testing.M) {}\n"

func TestZ4_WritingOnceMakesThemAgree(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"a/doc.go":            "// Package a has an invariant.\n//\n//\tG1  it holds.\npackage a",
		"a/a_test.go":         twoTests,
		house.ConformanceFile: document(nil, except("O1")...),
	}
	tree := small(t, files)
	if wrong := house.CheckConformance(tree); len(wrong) == 0 {
		t.Error("a document that names no test passes")
	}
	next := string(house.Conformance(tree.Text(house.ConformanceFile), tree))
	for _, want := range []string{
		"| O1 | meaning of O1 | a: `TestO1_RetryIsTheSame` |",
		"| J6 | meaning of J6 | a: `FuzzJ6_FixedPoint` |",
		"| J6 | in part | later |",
		"| O2 | nothing | later |",
		"| a | G1 | `TestG1_Own` |",
		"| a | `FuzzJ6_FixedPoint` |",
		"Prose with a | in it.",
	} {
		if !strings.Contains(next, want+"\n") {
			t.Errorf("the written document lacks %q", want)
		}
	}
	if strings.Contains(next, "old text") {
		t.Error("the old text of a generated part was kept")
	}
	files[house.ConformanceFile] = next
	finds(t, house.CheckConformance(small(t, files)))
	if again := string(house.Conformance([]byte(next), tree)); again != next {
		t.Errorf("writing twice changes the document:\n%s", again)
	}
}

func TestZ4_DisagreementsAreFound(t *testing.T) {
	t.Parallel()
	rendered := func(doc, tests, comment string) map[string]string {
		files := map[string]string{
			"a/doc.go":            "// Package a. " + comment + "\npackage a",
			"a/a_test.go":         "package a\nimport \"testing\"\n" + tests,
			house.ConformanceFile: doc,
		}
		tree := small(t, files)
		files[house.ConformanceFile] = string(house.Conformance([]byte(doc), tree))
		return files
	}
	const o1 = "func TestO1_A(t *testing.T) {}\n"

	t.Run("a test that the document lacks", func(t *testing.T) {
		t.Parallel()
		files := rendered(document(nil, except("O1")...), o1, "")
		files["a/more_test.go"] = "package a\nimport \"testing\"\nfunc TestO2_New(t *testing.T) {}"
		finds(t, house.CheckConformance(small(t, files)), "does not list TestO2_New")
	})
	t.Run("a test that is gone", func(t *testing.T) {
		t.Parallel()
		files := rendered(document(nil, house.Rows()...), o1, "")
		files["a/a_test.go"] = "package a"
		finds(t, house.CheckConformance(small(t, files)), "lists TestO1_A, which does not exist")
	})
	t.Run("a row without test or reason", func(t *testing.T) {
		t.Parallel()
		files := rendered(document(nil, except("O1", "S3")...), o1, "")
		finds(t, house.CheckConformance(small(t, files)), "row S3 has no test")
	})
	t.Run("a row that is missing", func(t *testing.T) {
		t.Parallel()
		doc := strings.Replace(document(nil, except("O1")...), "| T5 | meaning of T5 | none, see [Not yet](#not-yet) |\n", "", 1)
		finds(t, house.CheckConformance(small(t, rendered(doc, o1, ""))), "row T5 stands there 0 times")
	})
	t.Run("names that mean nothing", func(t *testing.T) {
		t.Parallel()
		files := rendered(document(nil, house.Rows()...), "func TestO99_A(t *testing.T) {}\nfunc TestQ7_B(t *testing.T) {}\nfunc TestQ8_C(t *testing.T) {}\n", "Q8 holds.")
		finds(t, house.CheckConformance(small(t, files)), "named after row O99", "named after invariant Q7")
	})
	t.Run("help for tests shows no row", func(t *testing.T) {
		t.Parallel()
		files := rendered(document(nil, house.Rows()...), "", "")
		files["internal/pgtest/doc.go"] = "// Package pgtest. T1 holds.\npackage pgtest"
		files["internal/pgtest/a_test.go"] = "package pgtest\nimport \"testing\"\nfunc TestT1_A(t *testing.T) {}"
		next := string(house.Conformance([]byte(files[house.ConformanceFile]), small(t, files)))
		if !strings.Contains(next, "| T1 | nothing | later |") || !strings.Contains(next, "| internal/pgtest | T1 | `TestT1_A` |") {
			t.Errorf("the written document is:\n%s", next)
		}
	})
	t.Run("no document", func(t *testing.T) {
		t.Parallel()
		finds(t, house.CheckConformance(small(t, map[string]string{"a/doc.go": "package a"})), "is missing")
	})
}
