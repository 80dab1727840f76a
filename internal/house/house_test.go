package house_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/overlayd/overlayd/internal/house"
)

// realTree is this module, read once for all tests.
var realTree = sync.OnceValues(func() (*house.Tree, error) {
	root, err := house.Root()
	if err != nil {
		return nil, err
	}
	return house.Load(os.DirFS(root))
})

func load(t *testing.T) *house.Tree {
	t.Helper()
	tree, err := realTree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func small(t *testing.T, files map[string]string) *house.Tree {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, content := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	tree, err := house.Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// holds fails with every sentence that a rule has to say about the real tree.
func holds(t *testing.T, check func(*house.Tree) []string) {
	t.Helper()
	for _, wrong := range check(load(t)) {
		t.Error(wrong)
	}
}

// finds fails unless a rule says exactly one thing for each wanted part.
func finds(t *testing.T, wrong []string, want ...string) {
	t.Helper()
	if len(wrong) != len(want) {
		t.Errorf("got %d faults, want %d:\n%s", len(wrong), len(want), strings.Join(wrong, "\n"))
	}
	for _, w := range want {
		if !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, w) }) {
			t.Errorf("no fault says %q:\n%s", w, strings.Join(wrong, "\n"))
		}
	}
}

func TestZ1_ImportsRunOneWay(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckImports)
}

func TestZ1_ForbiddenImportIsFoundThroughOtherPackages(t *testing.T) {
	t.Parallel()
	const m = house.Module
	tree := small(t, map[string]string{
		"livefeed/a.go":            "package livefeed\nimport _ \"" + m + "/internal/between\"\nimport _ \"log/slog\"",
		"livefeed/a_test.go":       "package livefeed\nimport _ \"net/http\"",
		"internal/between/b.go":    "package between\nimport _ \"net/http\"",
		"lookup/l.go":              "package lookup\nimport _ \"" + m + "/livefeed\"\nimport _ \"" + m + "/lookup/part\"",
		"lookup/part/p.go":         "package part",
		"openfence/f.go":           "package openfence\nimport _ \"github.com/jackc/pgx/v5\"\nimport _ \"github.com/labstack/echo/v4\"",
		"client/c.go":              "package client\nimport _ \"" + m + "/client/sqlitestate\"",
		"client/sqlitestate/s.go":  "package sqlitestate\nimport _ \"modernc.org/sqlite\"",
		"internal/other/log.go":    "package other\nimport _ \"log\"",
		"internal/other/p.go":      "package other\nimport _ \"github.com/bsv-blockchain/go-sdk/transaction/chaintracker\"",
		"internal/pgtest/pg.go":    "package pgtest\nimport _ \"testing\"",
		"cmd/overlayd/main.go":     "package main\nimport _ \"" + m + "/lookup\"",
		"internal/operator/ops.go": "package operator\nimport _ \"" + m + "/livefeed\"",
	})
	finds(t, house.CheckImports(tree),
		"livefeed -> internal/between -> net/http: ",
		"openfence -> github.com/labstack/echo/v4: ",
		"client -> client/sqlitestate -> modernc.org/sqlite: ",
		"internal/other -> log: ",
		"internal/other imports github.com/bsv-blockchain/go-sdk/transaction/chaintracker: ",
	)
}

func TestZ2_OnePackageCommentInDocGo(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckPackageComments)
}

func TestZ2_CommentsInOtherFilesAreFound(t *testing.T) {
	t.Parallel()
	tree := small(t, map[string]string{
		"fine/doc.go":         "// Package fine is documented.\npackage fine",
		"fine/more.go":        "// Copyright notice.\n\npackage fine",
		"none/doc.go":         "package none",
		"two/doc.go":          "// Package two says this.\npackage two",
		"two/two_test.go":     "// Package two says that.\npackage two_test",
		"elsewhere/main.go":   "// Command elsewhere is documented here.\npackage main",
		"fine/testdata/x.go":  "package broken; this does not parse",
		".hidden/also/not.go": "nor does this",
	})
	finds(t, house.CheckPackageComments(tree), "none: no package comment", "two: 2 package comments", "elsewhere/main.go: the package comment belongs in elsewhere/doc.go")
}

func TestZ3_NoFileIsTooLong(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckLengths)
}

func TestZ3_LongFileIsFound(t *testing.T) {
	t.Parallel()
	tree := small(t, map[string]string{
		"a/fits.go": "package a\n" + strings.Repeat("\n", house.MaxLines-1),
		"a/long.go": "package a\n" + strings.Repeat("\n", house.MaxLines),
	})
	finds(t, house.CheckLengths(tree), "a/long.go: 701 lines")
}

func TestZ5_EachThingHasOnePlace(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckPlaces)
}

func TestZ5_OtherPlacesAreFound(t *testing.T) {
	t.Parallel()
	const server = "import web \"net/http\"\nvar s = web.Server{}\nfunc f() { web.ListenAndServe(\"\", nil) }\nvar h web.Handler"
	const parse = "import \"github.com/bsv-blockchain/go-sdk/transaction\"\nvar b, _ = transaction.NewBeefFromBytes(nil)\nvar make = transaction.NewBeefV2"
	const env = "import \"os\"\nvar v = os.Getenv(\"X\")\nvar w, _ = os.LookupEnv(\"X\")\nvar a = os.Args"
	tree := small(t, map[string]string{
		"internal/httpserve/a.go": "package httpserve\n" + server,
		"lookup/a.go":             "package lookup\n" + server,
		"lookup/a_test.go":        "package lookup\n" + server,
		"internal/beef/a.go":      "package beef\n" + parse,
		"livefeed/a.go":           "package livefeed\n" + parse,
		"cmd/overlayd/a.go":       "package main\n" + env,
		"internal/x/cmd/y/a.go":   "package main\n" + env,
		"internal/pgtest/a.go":    "package pgtest\n" + env,
		"internal/config/a.go":    "package config\n" + env,
	})
	finds(t, house.CheckPlaces(tree),
		"lookup/a.go:3: an HTTP server is built", "lookup/a.go:4: an HTTP server is built",
		"livefeed/a.go:3: BEEF is parsed",
		"internal/config/a.go:3: the environment is read", "internal/config/a.go:4: the environment is read")
}

func TestZ6_NothingNamesTheMachine(t *testing.T) {
	t.Parallel()
	holds(t, func(tree *house.Tree) []string { return house.CheckWords(shipped(t, tree)) })
}

// shipped leaves out what lies about in a checkout and is not the project's: a log somebody wrote there, a data folder.
func shipped(t *testing.T, tree *house.Tree) *house.Tree {
	t.Helper()
	root, err := house.Root()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil { // no git, or an unpacked archive: everything ships
		return tree
	}
	tracked := make(map[string]bool)
	for name := range strings.SplitSeq(string(names), "\x00") {
		tracked[name] = true
	}
	only := *tree
	only.Texts = slices.DeleteFunc(slices.Clone(tree.Texts), func(x house.Text) bool { return !tracked[x.Path] })
	if len(only.Texts) == 0 {
		t.Fatal("git names no file of the tree")
	}
	return &only
}

func TestZ6_WordsAreFound(t *testing.T) {
	t.Parallel()
	tree := small(t, map[string]string{
		"a.md":   "see /wor" + "k/main/x\nframe/wor" + "k/done is fine\n",
		"b.yaml": "path: /home" + "/someone/x\nurl: https://example.org/home/page\n",
		"c.sql":  "-- TO" + "DO later\n-- a todo list\n",
		"go.sum": "/roo" + "t/x",
	})
	finds(t, house.CheckWords(tree), "a.md:1", "b.yaml:1", "c.sql:1")
}

func TestZ7_VersionsAreExact(t *testing.T) {
	t.Parallel()
	holds(t, house.CheckVersions)
}

func TestZ7_FloatingVersionsAreFound(t *testing.T) {
	t.Parallel()
	tree := small(t, map[string]string{
		"go.mod":             "module m\n\ngo 1.26\n\nrequire (\n\texample.org/a v1.2.3\n\texample.org/b v0.0.0-20231108232855-2478ac86f678 // indirect\n\texample.org/c latest\n)\nreplace example.org/a => ../a\n",
		"Dockerfile":         "FROM golang:1.26-bookworm AS build\nFROM --platform=linux/amd64 debian\nCOPY --from=build /x /x\nFROM build\n",
		"docker-compose.yml": "services:\n  a:\n    image: postgres:latest\n  b:\n    image: overlayd:dev\n  c:\n    image: postgres:15\n",
	})
	finds(t, house.CheckVersions(tree), "the go line must name a full version", "a replaced module", "example.org/c latest", "image debian names no version", "image postgres:latest names no version")

	other := small(t, map[string]string{
		"go.mod":     "module m\n\ngo 1.26.0\n\nrequire example.org/a v1.2.3\n",
		"Dockerfile": "FROM golang:1.25.1\n",
	})
	finds(t, house.CheckVersions(other), "golang:1.25.1, but go.mod says go 1.26")
}

func TestLoadRefusesWhatDoesNotParse(t *testing.T) {
	t.Parallel()
	_, err := house.Load(fstest.MapFS{"a/a.go": {Data: []byte("package a; func {")}})
	if err == nil || !strings.Contains(err.Error(), "a/a.go") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

func ExampleIDs() {
	fmt.Println(house.IDs("TestO4_RetryAtExpiry"))
	fmt.Println(house.IDs("TestO1_O5_SameBody"))
	fmt.Println(house.IDs("TestH13_U0000_InCursor"))
	fmt.Println(house.IDs("FuzzJ6_Canonicalize"))
	fmt.Println(house.IDs("TestSmallThings"))
	// Output:
	// [O4]
	// [O1 O5]
	// [H13]
	// [J6]
	// []
}
