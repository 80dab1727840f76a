package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// constants reads the names and values that points.go declares.
func constants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for i, name := range v.Names {
				found[name.Name] = strings.Trim(v.Values[i].(*ast.BasicLit).Value, `"`)
			}
		}
		return true
	})
	return found
}

func TestX2_EveryPointIsHit(t *testing.T) {
	t.Parallel()
	declared := constants(t)
	if values := slices.Sorted(maps.Values(declared)); !slices.Equal(values, slices.Sorted(slices.Values(Points()))) || len(slices.Compact(values)) != len(declared) {
		t.Errorf("Points does not list every point once: %v", values)
	}
	hits := map[string]int{}
	root := os.DirFS("../..")
	for _, dir := range []string{"livefeed", "lookup", "openfence", "cmd/overlayd", "reconcile", "reconcile/live"} {
		files, err := fs.Glob(root, dir+"/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("no Go files in %s, %v", dir, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := fs.ReadFile(root, path)
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || name(call.Fun) != "Hit" {
					return true
				}
				point := name(call.Args[0])
				if _, ok := declared[point]; !ok {
					t.Errorf("%s hits %s, which is not a point", path, point)
				}
				hits[point]++
				return true
			})
		}
	}
	for point := range declared {
		if hits[point] != 1 {
			t.Errorf("%s is hit in %d places, want one", point, hits[point])
		}
	}
}

// name is the name behind failpoint., or "".
func name(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "failpoint" {
		return ""
	}
	return s.Sel.Name
}
