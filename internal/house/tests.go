package house

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// TestFunc is a top-level test or fuzz target.
type TestFunc struct {
	Dir  string
	Name string
	File string
	IDs  []string // the rows or invariants that it is named after, in order
}

// ShowsRow reports whether the test, named after id, stands for the row of that
// name. In the help for tests it does not: what that promises are its own
// invariants, whatever their letter.
func (f TestFunc) ShowsRow(id string) bool {
	return IsRow(id) && !f.ownInvariant(id)
}

// ownInvariant reports whether id, in the name of the test, is an invariant of
// the package and not a row of the checklist.
func (f TestFunc) ownInvariant(id string) bool {
	return !isFamily(id) || within(f.Dir, "internal/pgtest")
}

// Fuzz reports whether it is a fuzz target.
func (f TestFunc) Fuzz() bool { return strings.HasPrefix(f.Name, "Fuzz") }

// Tests returns every top-level test and fuzz target of the tree, by folder
// and name, as `go test -list '^(Test|Fuzz)'` would on a machine that builds
// every file.
func (t *Tree) Tests() []TestFunc {
	var found []TestFunc
	for _, f := range t.Files {
		if !f.Test {
			continue
		}
		for _, decl := range f.AST.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !isTest(fn) {
				continue
			}
			found = append(found, TestFunc{Dir: f.Dir, Name: fn.Name.Name, File: f.Path, IDs: IDs(fn.Name.Name)})
		}
	}
	slices.SortFunc(found, func(a, b TestFunc) int {
		if c := strings.Compare(a.Dir, b.Dir); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found
}

// isTest reports whether go test would run the function: the right name and
// one parameter of the right type.
func isTest(fn *ast.FuncDecl) bool {
	var want string
	switch {
	case goTestName(fn.Name.Name, "Test"):
		want = "T"
	case goTestName(fn.Name.Name, "Fuzz"):
		want = "F"
	default:
		return false
	}
	params := fn.Type.Params
	if params.NumFields() != 1 || fn.Type.Results.NumFields() != 0 {
		return false
	}
	star, ok := params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch x := star.X.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == want
	case *ast.Ident:
		return x.Name == want
	}
	return false
}

// goTestName is the go command's rule: what follows the prefix does not start
// with a lower-case letter.
func goTestName(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && (rest == "" || rest[0] < 'a' || rest[0] > 'z')
}

var leadingID = regexp.MustCompile(`^([A-Z][1-9][0-9]*)_`)

// IDs returns the rows or invariants that a test is named after. The first
// may be of any letter; further ones count only when they are rows, so that
// TestH13_U0000InCursor stands for H13 alone.
func IDs(name string) []string {
	rest := strings.TrimPrefix(strings.TrimPrefix(name, "Test"), "Fuzz")
	var ids []string
	for {
		m := leadingID.FindStringSubmatch(rest)
		if m == nil || len(ids) > 0 && !IsRow(m[1]) {
			return ids
		}
		ids = append(ids, m[1])
		rest = rest[len(m[0]):]
	}
}

// Families returns the families of conformance rows with the number of rows
// in each, in the order of the checklist.
func Families() []Family {
	return []Family{{"O", 15}, {"S", 10}, {"L", 13}, {"W", 8}, {"T", 5}, {"A", 9}, {"H", 13}, {"C", 8}, {"R", 12}, {"J", 6}}
}

// Family is one letter of the checklist: its rows are Letter1 to LetterN.
type Family struct {
	Letter string
	Rows   int
}

// Rows returns the ids of every conformance row, in the checklist's order.
func Rows() []string {
	var ids []string
	for _, f := range Families() {
		for n := range f.Rows {
			ids = append(ids, f.Letter+strconv.Itoa(n+1))
		}
	}
	return ids
}

// IsRow reports whether id is a row of the checklist.
func IsRow(id string) bool { return slices.Contains(Rows(), id) }

// isFamily reports whether id has the letter of a family, row or not.
func isFamily(id string) bool {
	return slices.ContainsFunc(Families(), func(f Family) bool { return f.Letter == id[:1] })
}

// packageName is how a folder is written in docs/conformance.md.
func packageName(dir string) string {
	if dir == "." {
		return path.Base(Module)
	}
	return dir
}
