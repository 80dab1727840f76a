package house

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ConformanceFile is the document that says which tests show which row.
const ConformanceFile = "docs/conformance.md"

// Headings of the parts of the document that are not families of rows.
const (
	notYetHeading    = "## Not yet"
	packagesHeading  = "## Invariants of packages"
	fuzzHeading      = "## Fuzz targets"
	noTests          = "none, see [Not yet](#not-yet)"
	shownNothing     = "nothing"
	shownPart        = "in part"
	tableRule3       = "| --- | --- | --- |"
	tableRule2       = "| --- | --- |"
	regenerateAdvice = "run `make conformance`"
)

var tableRow = regexp.MustCompile(`^\| ([A-Z][0-9]+) \| ([^|]*) \| ([^|]*) \|$`)

// Conformance renders docs/conformance.md anew: the prose, the rows and their
// meanings, and the reasons under "Not yet" are kept as they stand in doc; the
// columns and tables of tests are written from the tree.
func Conformance(doc []byte, t *Tree) []byte {
	shown := testsByID(t)
	var out bytes.Buffer
	section, generated := "", false
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "## ") {
			section, generated = line, line == packagesHeading || line == fuzzHeading
			out.WriteString(line + "\n")
			switch section {
			case packagesHeading:
				writePackages(&out, t)
			case fuzzHeading:
				writeFuzz(&out, t)
			}
			continue
		}
		if generated {
			continue
		}
		if m := tableRow.FindStringSubmatch(line); m != nil {
			id, tests := m[1], shown[m[1]]
			switch {
			case section == notYetHeading && len(tests) == 0:
				line = fmt.Sprintf("| %s | %s | %s |", id, shownNothing, m[3])
			case section == notYetHeading:
				line = fmt.Sprintf("| %s | %s | %s |", id, shownPart, m[3])
			case len(tests) == 0:
				line = fmt.Sprintf("| %s | %s | %s |", id, m[2], noTests)
			default:
				line = fmt.Sprintf("| %s | %s | %s |", id, m[2], listTests(tests))
			}
		}
		out.WriteString(line + "\n")
	}
	return out.Bytes()
}

// testsByID collects the tests named after each row.
func testsByID(t *Tree) map[string][]TestFunc {
	shown := map[string][]TestFunc{}
	for _, test := range t.Tests() {
		for _, id := range test.IDs {
			if test.ShowsRow(id) {
				shown[id] = append(shown[id], test)
			}
		}
	}
	return shown
}

// listTests writes tests as "package: A, B; package: C".
func listTests(tests []TestFunc) string {
	var b strings.Builder
	dir := ""
	for i, test := range tests {
		switch {
		case i == 0:
			fmt.Fprintf(&b, "%s: ", packageName(test.Dir))
		case test.Dir != dir:
			fmt.Fprintf(&b, "; %s: ", packageName(test.Dir))
		default:
			b.WriteString(", ")
		}
		dir = test.Dir
		b.WriteString("`" + test.Name + "`")
	}
	return b.String()
}

func writePackages(out *bytes.Buffer, t *Tree) {
	out.WriteString("\nTests named after an invariant that the package's own `doc.go` states. Written by `make conformance`.\n\n")
	out.WriteString("| package | invariant | tests |\n" + tableRule3 + "\n")
	type key struct{ dir, id string }
	byKey := map[key][]TestFunc{}
	var keys []key
	for _, test := range t.Tests() {
		for _, id := range test.IDs {
			if !test.ownInvariant(id) {
				continue
			}
			k := key{test.Dir, id}
			if byKey[k] == nil {
				keys = append(keys, k)
			}
			byKey[k] = append(byKey[k], test)
		}
	}
	slices.SortStableFunc(keys, func(a, b key) int {
		if c := strings.Compare(a.dir, b.dir); c != 0 {
			return c
		}
		if c := len(a.id) - len(b.id); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	for _, k := range keys {
		var names []string
		for _, test := range byKey[k] {
			names = append(names, "`"+test.Name+"`")
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", packageName(k.dir), k.id, strings.Join(names, ", "))
	}
	out.WriteString("\n")
}

func writeFuzz(out *bytes.Buffer, t *Tree) {
	out.WriteString("\nRun by `make fuzz`, each for `FUZZTIME`. Written by `make conformance`.\n\n")
	out.WriteString("| package | target |\n" + tableRule2 + "\n")
	for _, test := range t.Tests() {
		if test.Fuzz() {
			fmt.Fprintf(out, "| %s | `%s` |\n", packageName(test.Dir), test.Name)
		}
	}
}

// CheckConformance reports where the document and the tests disagree.
func CheckConformance(t *Tree) []string {
	doc := t.Text(ConformanceFile)
	if doc == nil {
		return []string{ConformanceFile + " is missing"}
	}
	var wrong []string
	rows, notYet := readConformance(string(doc))
	if want := Rows(); !slices.Equal(rows, want) {
		for _, id := range want {
			if n := count(rows, id); n != 1 {
				wrong = append(wrong, fmt.Sprintf("%s: row %s stands there %d times, must be once", ConformanceFile, id, n))
			}
		}
		for _, id := range rows {
			if !slices.Contains(want, id) {
				wrong = append(wrong, fmt.Sprintf("%s: there is no row %s", ConformanceFile, id))
			}
		}
		if len(wrong) == 0 {
			wrong = append(wrong, ConformanceFile+": the rows are not in the checklist's order")
		}
	}
	shown := testsByID(t)
	for _, id := range Rows() {
		if len(shown[id]) == 0 && notYet[id] == "" {
			wrong = append(wrong, fmt.Sprintf("row %s has no test of its name and no reason under \"Not yet\" in %s", id, ConformanceFile))
		}
	}
	for id := range notYet {
		if !IsRow(id) {
			wrong = append(wrong, fmt.Sprintf("%s: \"Not yet\" names %s, which is no row", ConformanceFile, id))
		}
	}
	wrong = append(wrong, checkTestNames(t)...)
	wrong = append(wrong, staleNames(doc, Conformance(doc, t))...)
	return wrong
}

// readConformance returns the ids of the rows in order, and the reasons given
// under "Not yet".
func readConformance(doc string) (rows []string, notYet map[string]string) {
	notYet = map[string]string{}
	section := ""
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "## ") {
			section = line
		}
		m := tableRow.FindStringSubmatch(line)
		switch {
		case m == nil || section == packagesHeading || section == fuzzHeading:
		case section == notYetHeading:
			notYet[m[1]] = strings.TrimSpace(m[3])
		default:
			rows = append(rows, m[1])
		}
	}
	return rows, notYet
}

// checkTestNames reports tests named after something that does not exist.
func checkTestNames(t *Tree) []string {
	docs := map[string]string{}
	for _, f := range t.Files {
		if !f.Test {
			docs[f.Dir] += f.AST.Doc.Text()
		}
	}
	var wrong []string
	for _, test := range t.Tests() {
		for _, id := range test.IDs {
			switch {
			case test.ShowsRow(id):
			case !test.ownInvariant(id):
				wrong = append(wrong, fmt.Sprintf("%s: %s is named after row %s, which does not exist", test.File, test.Name, id))
			case !regexp.MustCompile(`\b` + id + `\b`).MatchString(docs[test.Dir]):
				wrong = append(wrong, fmt.Sprintf("%s: %s is named after invariant %s, which the package comment of %s does not state", test.File, test.Name, id, packageName(test.Dir)))
			}
		}
	}
	return wrong
}

var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// staleNames says what the document lacks or has too much, by name where it
// can.
func staleNames(have, want []byte) []string {
	if bytes.Equal(have, want) {
		return nil
	}
	var wrong []string
	before, after := mentioned(have), mentioned(want)
	for _, name := range after {
		if !slices.Contains(before, name) {
			wrong = append(wrong, fmt.Sprintf("%s does not list %s: %s", ConformanceFile, name, regenerateAdvice))
		}
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			wrong = append(wrong, fmt.Sprintf("%s lists %s, which does not exist: %s", ConformanceFile, name, regenerateAdvice))
		}
	}
	if len(wrong) == 0 {
		wrong = append(wrong, ConformanceFile+" is out of date: "+regenerateAdvice)
	}
	return wrong
}

func mentioned(doc []byte) []string {
	var found []string
	for _, m := range testName.FindAllSubmatch(doc, -1) {
		found = append(found, string(m[1]))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func count(all []string, one string) int {
	n := 0
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}
